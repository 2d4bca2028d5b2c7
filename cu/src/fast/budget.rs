// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many bytes of decoded code engines keep.
//!
//! Decoded code is some ten times as large as machine code, and code that enters a page at each of
//! its instructions has a block for each. So bytes are counted, as allocated. Each engine may hold
//! [`OWN_CODE`]; what it holds beyond comes out of a budget that all engines of a GPU share. An
//! engine that finds the budget exhausted forgets its own code, and no other's: each belongs to its
//! thread.
//!
//! Limits: the bytes of an engine that does nothing stay counted until its queue is removed. One
//! block, at most some 100 KiB, is built before its bytes are known.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// Bytes of decoded code that each engine may hold whatever the others hold.
pub const OWN_CODE: usize = 1 << 20;
/// Bytes that a budget has unless it is told otherwise.
const SHARED_CODE: usize = 48 << 20;

/// Bytes of decoded code that engines may hold beyond [`OWN_CODE`] each.
#[derive(Debug)]
pub struct CodeBudget {
    bytes: usize,
    /// What they hold of it. A count: nothing is published with it.
    taken: AtomicUsize,
}

impl CodeBudget {
    /// A budget of this many bytes.
    #[must_use]
    pub const fn new(bytes: usize) -> CodeBudget {
        CodeBudget { bytes, taken: AtomicUsize::new(0) }
    }

    /// Bytes that engines hold of it.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }
}

impl Default for CodeBudget {
    fn default() -> CodeBudget {
        CodeBudget::new(SHARED_CODE)
    }
}

/// What one engine holds.
pub(super) struct Held {
    budget: Arc<CodeBudget>,
    bytes: usize,
}

impl Held {
    pub(super) fn of(budget: &Arc<CodeBudget>) -> Held {
        Held { budget: budget.clone(), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn set(&mut self, bytes: usize) {
        let beyond = |bytes: usize| bytes.saturating_sub(OWN_CODE);
        let (before, now) = (beyond(self.bytes), beyond(bytes));
        self.budget.taken.fetch_add(now.saturating_sub(before), Relaxed);
        self.budget.taken.fetch_sub(before.saturating_sub(now), Relaxed);
        self.bytes = bytes;
    }

    /// The engine holds so many bytes more.
    pub(super) fn take(&mut self, bytes: usize) {
        self.set(self.bytes.saturating_add(bytes));
    }

    /// It holds so many less.
    pub(super) fn give(&mut self, bytes: usize) {
        self.set(self.bytes.saturating_sub(bytes));
    }

    /// It holds nothing.
    pub(super) fn give_all(&mut self) {
        self.set(0);
    }

    /// Whether the engine is to forget before it takes more: it has used up its own bytes, and all
    /// engines together the budget.
    pub(super) fn is_exhausted(&self) -> bool {
        self.bytes >= OWN_CODE && self.budget.taken() >= self.budget.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_all();
    }
}
