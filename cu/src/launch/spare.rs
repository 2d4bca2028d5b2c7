// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registers of ended waves, which the thread keeps for the next ones. Allocating and freeing
//! aligned memory would cost an empty launch more than the rest of its wave.
//!
//! They are kept without a destructor, because to register one a thread waits for the C library's
//! locks, and a GPU's thread may not. A thread that ends calls [`free_spare`].
//!
//! Limits: at most 4 MiB per thread, [`KEPT`] waves of 512 registers.

use crate::wave::Row;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// Waves whose registers are kept: those of the work-groups that a thread takes at once.
const KEPT: usize = 32;

thread_local! {
    static SPARE: ManuallyDrop<RefCell<Vec<Vec<Row>>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
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
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(rows);
        }
    });
}

/// Frees what the calling thread keeps for its next launches. For threads that end.
pub fn free_spare() {
    let _ = SPARE.try_with(|spare| spare.take());
}
