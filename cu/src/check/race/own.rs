// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A wave's own accesses to memory that may be under way, by the times at which they were issued.
//!
//! Others learn only of accesses that have completed: a wait has to come first.

use vkfd_isa::{Inst, Target};
use vkfd_lint::live::{waited, Waited};

/// Operations that a counter counts.
const MOST: usize = 63;

/// Operations under way that one counter counts, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    times: [u32; MOST],
    len: usize,
}

impl Queue {
    const EMPTY: Queue = Queue { times: [0; MOST], len: 0 };

    /// One more is issued. A full counter waits for its oldest one.
    fn push(&mut self, time: u32) {
        if self.len == MOST {
            self.keep(MOST - 1);
        }
        if let Some(place) = self.times.get_mut(self.len) {
            *place = time;
            self.len += 1;
        }
    }

    /// All have completed but the last `count`.
    fn keep(&mut self, count: usize) {
        let gone = self.len.saturating_sub(count);
        self.times.copy_within(gone..self.len, 0);
        self.len -= gone;
    }

    fn oldest(&self) -> Option<u32> {
        self.times.get(..self.len)?.first().copied()
    }
}

/// Counts that an instruction waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::check) struct Counts {
    pub(in crate::check) loads: Option<u8>,
    pub(in crate::check) stores: Option<u8>,
}

/// The counts that an instruction waits for.
pub(in crate::check) fn waits(target: Target, inst: &Inst) -> Counts {
    let Waited { vector, store, .. } = waited(target, inst);
    if target.is_rdna() {
        Counts { loads: vector, stores: store }
    } else {
        Counts { loads: vector, stores: None }
    }
}

/// What is under way.
#[derive(Clone, Debug)]
pub(super) struct Own {
    loads: Queue,
    /// Where these have a counter of their own.
    stores: Queue,
    /// It was ordered behind its group's accesses up to then.
    pub(super) mates: u32,
    /// It has waited for all of them since the last one.
    fenced: bool,
    /// When it last began to write its caches back.
    back: Option<u32>,
}

impl Own {
    pub(super) const NEW: Own = Own { loads: Queue::EMPTY, stores: Queue::EMPTY, mates: 0, fenced: false, back: None };

    pub(super) fn issue(&mut self, time: u32, is_store: bool) {
        self.fenced = false;
        if is_store { &mut self.stores } else { &mut self.loads }.push(time);
    }

    pub(super) fn wait(&mut self, counts: Counts) {
        for (queue, count) in [(&mut self.loads, counts.loads), (&mut self.stores, counts.stores)] {
            if let Some(count) = count {
                queue.keep(count.into());
                self.fenced |= count == 0;
            }
        }
    }

    /// Its caches are written back, which counts with the loads.
    pub(super) fn write_back(&mut self, now: u32) {
        self.issue(now, false);
        self.back = Some(now);
    }

    /// When it began to write back, if that has been done since this was asked the last time.
    pub(super) fn written_back(&mut self) -> Option<u32> {
        let back = self.back?;
        let is_done = self.loads.oldest().is_none_or(|oldest| oldest > back);
        is_done.then(|| self.back = None).map(|()| back)
    }

    /// The time up to which all has completed, at a time.
    pub(super) fn done(&self, now: u32) -> u32 {
        [self.loads.oldest(), self.stores.oldest()].into_iter().flatten().min().unwrap_or(now).saturating_sub(1)
    }

    /// Whether nothing is under way, because it has waited for that.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced && self.loads.len == 0 && self.stores.len == 0
    }
}

/// Stores of a group that are in a cache which other groups do not share, on targets that have
/// such: from the oldest one on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    oldest: Option<u32>,
    newest: u32,
}

impl Kept {
    /// A store of a time.
    pub(super) fn add(&mut self, time: u32) {
        self.oldest = self.oldest.or(Some(time));
        self.newest = time;
    }

    /// Those up to a time are written back.
    pub(super) fn written(&mut self, time: u32) {
        self.oldest = self.oldest.filter(|_| self.newest > time).map(|oldest| oldest.max(time.saturating_add(1)));
    }

    /// Of a time up to which all has completed, the part up to which others may see it.
    pub(super) fn limit(&self, time: u32) -> u32 {
        self.oldest.map_or(time, |oldest| time.min(oldest.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_waited_for_has_not_completed() {
        let mut own = Own::NEW;
        assert_eq!((own.done(7), own.is_fenced()), (6, false));
        [3, 5].into_iter().for_each(|time| own.issue(time, false));
        own.issue(6, true);
        assert_eq!(own.done(7), 2);
        own.wait(Counts { loads: Some(1), stores: None });
        assert_eq!(own.done(7), 4);
        own.wait(Counts { loads: Some(0), stores: None });
        assert_eq!(own.done(7), 5);
        own.wait(Counts { loads: None, stores: Some(0) });
        assert_eq!((own.done(7), own.is_fenced()), (6, true));
        (0..100).for_each(|time| own.issue(time, false));
        assert_eq!(own.done(100), 36, "the counter was full");
    }

    #[test]
    fn stores_are_kept_until_they_are_written_back() {
        let (mut own, mut kept) = (Own::NEW, Kept::default());
        own.issue(3, false);
        kept.add(3);
        own.wait(Counts { loads: Some(0), stores: None });
        assert_eq!((own.done(9), kept.limit(8)), (8, 2), "complete, and not written back");
        own.write_back(3);
        own.issue(4, false);
        kept.add(4);
        assert_eq!(own.written_back(), None, "nothing has waited");
        own.wait(Counts { loads: Some(1), stores: None });
        let time = own.written_back().expect("it is done");
        kept.written(time);
        assert_eq!((time, kept.limit(8), own.written_back()), (3, 3, None), "the second store is kept");
        kept.written(4);
        assert_eq!(kept.limit(8), 8);
    }
}
