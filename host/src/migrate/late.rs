// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reported discards that may still take effect.
//!
//! The kernel reports a discard before it discards, and the discarding thread continues once the
//! event was read. Contents that move to a device in between would outlive their discard, which
//! finds an empty mapping. So nothing moves to a device from addresses with a pending discard.
//!
//! Interposed calls announce themselves: an announced discard is over when all interposed calls are
//! over that had begun. For other calls there is no such sign: after [`GRACE`] they count as over.
//! A thread that has woken up needs some microseconds, and more if it is delayed just there. Many
//! discards come from the C library, which discards the stack of an ending thread: often the same
//! ones, and adjacent.
//!
//! The lock is a leaf. The threads that read events take it, and nothing is allocated under it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{CpuSpan, CpuVa};

/// How long a discard that nobody announced may take.
const GRACE: Duration = Duration::from_secs(1);
/// Announced discards at a time; more go unannounced.
const ANNOUNCED: usize = 64;
/// Places that unannounced discards in [`GRACE`] are noted for; of more of them, those that are
/// near to each other are noted as one.
const OTHERS: usize = 256;

/// From the beginning of the first to the end of the last.
fn hull(one: CpuSpan, other: CpuSpan) -> CpuSpan {
    CpuSpan::between(one.start().min(other.start()), one.end().max(other.end()))
}

struct State {
    announced: [Option<CpuSpan>; ANNOUNCED],
    /// Unannounced ones, and the time of their last report.
    others: [Option<(CpuSpan, Instant)>; OTHERS],
}

/// Where discards may still come.
pub(crate) struct LateDiscards(Mutex<State>);

impl LateDiscards {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(State { announced: [None; ANNOUNCED], others: [None; OTHERS] }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An interposed call discards `span` until the guard is dropped.
    #[cfg(feature = "interpose")]
    pub(super) fn announce(&self, span: CpuSpan) -> Announced<'_> {
        let mut state = self.state();
        let place = state.announced.iter().position(Option::is_none);
        if let Some(place) = place {
            state.announced[place] = Some(span);
        }
        drop(state);
        Announced { late: self, place }
    }

    /// The discard of `gone` was reported. O(1).
    pub(crate) fn expect(&self, gone: CpuSpan) {
        let now = Instant::now();
        let mut state = self.state();
        let covers = |span: &CpuSpan| span.start() <= gone.start() && gone.end() <= span.end();
        if state.announced.iter().flatten().any(covers) {
            return;
        }
        // The same once more, or a place for it, or what is nearest.
        let cost = |other: &Option<(CpuSpan, Instant)>| match other {
            Some((span, _)) if *span == gone => (0, 0),
            Some((span, since)) if now - *since < GRACE => (2, hull(*span, gone).bytes() - span.bytes()),
            _ => (1, 0),
        };
        let Some(place) = state.others.iter_mut().min_by_key(|other| cost(other)) else { return };
        let span = place.filter(|_| cost(place).0 == 2).map_or(gone, |(span, _)| hull(span, gone));
        *place = Some((span, now));
    }

    /// The first part of `span` to which no unannounced discard may still come. O(1).
    pub(super) fn clear_part(&self, span: CpuSpan) -> Option<CpuSpan> {
        let state = self.state();
        let is_late = |since: Instant| since.elapsed() < GRACE;
        let late = || state.others.iter().flatten().filter(|(late, since)| late.overlaps(span) && is_late(*since));
        let mut start = span.start();
        while let Some((late, _)) = late().find(|(late, _)| late.contains(start)) {
            start = late.end();
        }
        let end = late().map(|(late, _)| late.start()).filter(|at| *at > start).fold(span.end(), CpuVa::min);
        (start < end).then(|| CpuSpan::between(start, end))
    }
}

/// A discard by an interposed call, under way.
#[cfg(feature = "interpose")]
pub(crate) struct Announced<'a> {
    late: &'a LateDiscards,
    place: Option<usize>,
}

#[cfg(feature = "interpose")]
impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.late.state().announced[place] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_driver::base::addr::PAGE;

    fn pages(first: u64, count: u64) -> CpuSpan {
        CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE))
    }

    #[test]
    fn nothing_moves_from_where_a_discard_may_come() {
        let late = LateDiscards::new();
        assert_eq!(late.clear_part(pages(0, 10)), Some(pages(0, 10)));
        late.expect(pages(8, 4));
        late.expect(pages(2, 2));
        late.expect(pages(4, 1));
        assert_eq!(late.clear_part(pages(0, 20)), Some(pages(0, 2)));
        assert_eq!(late.clear_part(pages(3, 17)), Some(pages(5, 3)));
        assert_eq!(late.clear_part(pages(9, 3)), None);
        assert_eq!(late.clear_part(pages(9, 11)), Some(pages(12, 8)));
    }

    #[test]
    fn however_many_discards_come_what_is_far_from_them_moves() {
        let late = LateDiscards::new();
        (0..10 * OTHERS).for_each(|_| late.expect(pages(4, 1)));
        let (first, far) = (100, 1 << 30);
        late.expect(pages(far, 1));
        (0..2 * OTHERS as u64).for_each(|n| late.expect(pages(first + 4 * n, 1)));
        assert_eq!(late.clear_part(pages(0, 10)), Some(pages(0, 4)));
        assert_eq!(late.clear_part(pages(5, first - 5)), Some(pages(5, first - 5)));
        assert!((0..2 * OTHERS as u64).all(|n| late.clear_part(pages(first + 4 * n, 1)).is_none()));
        let (after, before) = (first + 8 * OTHERS as u64, far - 1);
        assert_eq!(late.clear_part(pages(after, before - after)), Some(pages(after, before - after)));
        assert_eq!(late.clear_part(pages(far, 1)), None);
    }

    #[test]
    #[cfg(feature = "interpose")]
    fn what_is_announced_is_known_until_it_is_over() {
        let late = LateDiscards::new();
        let one = late.announce(pages(4, 4));
        late.expect(pages(5, 2));
        late.expect(pages(4, 4));
        assert_eq!(late.clear_part(pages(0, 10)), Some(pages(0, 10)));
        late.expect(pages(3, 2));
        assert_eq!(late.clear_part(pages(3, 7)), Some(pages(5, 5)));
        drop(one);
        late.expect(pages(6, 1));
        assert_eq!(late.clear_part(pages(5, 5)), Some(pages(5, 1)));
    }
}
