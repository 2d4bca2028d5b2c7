// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's own memory: it never moves, and the host watches it for no process.
//!
//! It may be in one mapping with the client's memory, for example a stack just below it. The lock
//! is a leaf.

use crate::uffd::outside_of_heap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vkfd_driver::base::addr::CpuSpan;

/// The most pieces: eight always, the others for mappings that are kept ready.
const PIECES: usize = 32;

/// The pieces.
pub(super) struct OwnMemory(Mutex<[Option<CpuSpan>; PIECES]>);

impl OwnMemory {
    pub(super) const fn new() -> Self {
        Self(Mutex::new([None; PIECES]))
    }

    fn pieces(&self) -> MutexGuard<'_, [Option<CpuSpan>; PIECES]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `span` is the host's. False when there is too much of it.
    pub(super) fn add(&self, span: CpuSpan) -> bool {
        self.pieces().iter_mut().find(|piece| piece.is_none()).map(|free| *free = Some(span)).is_some()
    }

    /// `span`, which was added, is the host's no more.
    pub(super) fn remove(&self, span: CpuSpan) {
        self.pieces().iter_mut().filter(|piece| **piece == Some(span)).for_each(|piece| *piece = None);
    }

    /// Calls `f` for the parts of `span` that are not the host's, in order.
    pub(super) fn each_other(&self, span: CpuSpan, mut f: impl FnMut(CpuSpan)) {
        let pieces = *self.pieces();
        let mut at = span.start();
        while at < span.end() {
            let rest = CpuSpan::between(at, span.end());
            let next = pieces.iter().flatten().filter(|own| own.overlaps(rest)).min_by_key(|own| own.start());
            let end = next.map_or(span.end(), |own| own.start().max(at));
            if end > at {
                outside_of_heap(CpuSpan::between(at, end), &mut f);
            }
            at = next.map_or(span.end(), |own| own.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_driver::base::addr::{CpuVa, PAGE};

    #[test]
    fn what_is_the_hosts_is_left_out() {
        let pages = |first: u64, last: u64| CpuSpan::between(CpuVa(first * PAGE), CpuVa(last * PAGE));
        let own = OwnMemory::new();
        for span in [pages(20, 22), pages(12, 14), pages(4, 8), pages(8, 9)] {
            assert!(own.add(span));
        }
        own.remove(pages(12, 14));
        let others = |span| {
            let mut others = Vec::new();
            own.each_other(span, |other| others.push(other));
            others
        };
        assert_eq!(others(pages(0, 30)), [pages(0, 4), pages(9, 20), pages(22, 30)]);
        assert_eq!(others(pages(5, 21)), [pages(9, 20)]);
        assert_eq!(others(pages(5, 9)), []);
        assert_eq!(others(pages(10, 12)), [pages(10, 12)]);
        let too_many = (0..PIECES as u64).find(|n| !own.add(pages(100 + 2 * n, 101 + 2 * n)));
        assert_eq!(too_many, Some(PIECES as u64 - 3));
    }
}
