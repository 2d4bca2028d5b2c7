// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registers of ended waves, which the thread keeps for the next ones. Allocating and freeing
//! aligned memory would cost an empty launch more than the rest of its wave.
//!
//! Limits: at most 2 MiB per thread, [`KEPT`] waves of 512 registers.

use crate::wave::Row;
use std::cell::RefCell;

/// Waves whose registers are kept: those of a work-group.
const KEPT: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Vec<Row>>> = const { RefCell::new(Vec::new()) };
}

/// So many rows of zeros.
pub(super) fn rows(count: usize) -> Vec<Row> {
    let kept = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    let mut rows = kept.unwrap_or_default();
    rows.clear();
    rows.resize(count, Row::ZERO);
    rows
}

/// Keeps rows that are not needed any more.
pub(super) fn keep(rows: Vec<Row>) {
    // Where the thread ends, they are freed.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(rows);
        }
    });
}
