// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events that the collector has read and the worker has not processed yet: changes of mappings,
//! and accesses that wait.
//!
//! One producer, one consumer, a fixed place in memory. The worker may read entries before it
//! processes them, and strike its own ones out.

use crate::sys;
use crate::table::Table;
use crate::uffd::everything;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa};

/// Entries. A thread that causes one sleeps until it is read, so there are about as many as
/// threads.
const ENTRIES: usize = 1 << 14;
const WORDS: usize = 4;

/// What was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The mappings have gone.
    Unmap(CpuSpan),
    /// The mappings, and what they hold, are elsewhere.
    Remap { from: CpuSpan, to: CpuVa },
    /// The contents are going.
    Remove(CpuSpan),
    /// A thread waits at this page.
    Wait(CpuVa),
    /// Dealt with.
    Struck,
}

impl Change {
    /// The mappings that it changes; `None` for an event that changes none.
    pub(super) fn span(self) -> Option<CpuSpan> {
        match self {
            Self::Unmap(span) | Self::Remove(span) | Self::Remap { from: span, .. } => Some(span),
            Self::Wait(_) | Self::Struck => None,
        }
    }

    /// Whether what is mapped in `span` is other than before: something there has changed, or has
    /// come there.
    pub(super) fn touches(self, span: CpuSpan) -> bool {
        let came = match self {
            Self::Remap { from, to } => CpuSpan::new(to, from.bytes()).is_some_and(|came| came.overlaps(span)),
            _ => false,
        };
        came || self.span().is_some_and(|s| s.overlaps(span))
    }

    fn words(self) -> [u64; WORDS] {
        match self {
            Self::Struck => [0; WORDS],
            Self::Unmap(span) => [1, span.start().0, span.end().0, 0],
            Self::Remap { from, to } => [2, from.start().0, from.end().0, to.0],
            Self::Remove(span) => [3, span.start().0, span.end().0, 0],
            Self::Wait(at) => [4, at.0, 0, 0],
        }
    }

    fn of([kind, a, b, c]: [u64; WORDS]) -> Self {
        let span = CpuSpan::between(CpuVa(a), CpuVa(b));
        match kind {
            1 => Self::Unmap(span),
            2 => Self::Remap { from: span, to: CpuVa(c) },
            3 => Self::Remove(span),
            4 => Self::Wait(CpuVa(a)),
            _ => Self::Struck,
        }
    }
}

/// What becomes of a page's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// They go to its place.
    Here,
    /// Nobody wants them any more.
    Discarded,
    /// Its mapping has gone: by the client, before or after it was replaced, or by the worker,
    /// which replaced it.
    Unmapped,
    /// Its mapping is there now, before or after it was replaced.
    Moved(CpuVa),
    /// Its mapping was moved and has gone from there.
    Gone,
}

/// The ring.
pub(super) struct Ring {
    words: Table<AtomicU64>,
    produced: AtomicU64,
    handled: AtomicU64,
    /// The worker is telling the driver of changes that it has struck. Before `handled` changes.
    telling: AtomicBool,
    /// Counts up when there is something for the worker to do.
    bell: AtomicU32,
    /// Counts up when the worker has handled something.
    progress: AtomicU32,
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            words: Table::new(ENTRIES * WORDS)?,
            produced: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            telling: AtomicBool::new(false),
            bell: AtomicU32::new(0),
            progress: AtomicU32::new(0),
        })
    }

    /// Where its memory is.
    pub(super) fn memory(&self) -> CpuSpan {
        let start = CpuVa(self.words.as_ptr().expose_provenance() as u64);
        CpuSpan::between(start, CpuVa(start.0 + size_of_val::<[AtomicU64]>(&self.words) as u64))
    }

    fn slot(&self, position: u64) -> &[AtomicU64] {
        let at = index(position) % ENTRIES * WORDS;
        &self.words[at..at + WORDS]
    }

    /// Appends; the collector only.
    pub(super) fn push(&self, change: Change) {
        let at = self.produced.load(Ordering::Relaxed);
        while at - self.handled.load(Ordering::SeqCst) >= ENTRIES as u64 {
            std::thread::yield_now();
        }
        for (word, value) in self.slot(at).iter().zip(change.words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.produced.store(at + 1, Ordering::SeqCst);
    }

    pub(super) fn produced(&self) -> u64 {
        self.produced.load(Ordering::SeqCst)
    }

    pub(super) fn handled(&self) -> u64 {
        self.handled.load(Ordering::SeqCst)
    }

    pub(super) fn get(&self, position: u64) -> Change {
        let slot = self.slot(position);
        Change::of([0, 1, 2, 3].map(|w| slot[w].load(Ordering::Acquire)))
    }

    /// Marks an entry as dealt with; the worker only.
    pub(super) fn strike(&self, position: u64) {
        self.slot(position)[0].store(0, Ordering::Release);
    }

    /// What is struck from now on, the driver is only being notified of; the worker only.
    pub(super) fn begin_telling(&self) {
        self.telling.store(true, Ordering::SeqCst);
    }

    /// The driver was told; the worker only.
    pub(super) fn end_telling(&self) {
        self.telling.store(false, Ordering::SeqCst);
        self.advance();
    }

    /// Everything below `position` has been handled; the worker only.
    pub(super) fn set_handled(&self, position: u64) {
        self.handled.store(position, Ordering::SeqCst);
        self.advance();
    }

    fn advance(&self) {
        self.progress.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.progress);
    }

    /// The changes of mappings from `since` on that are not dealt with and touch `span`.
    pub(super) fn pending(&self, since: u64, span: CpuSpan) -> impl Iterator<Item = (u64, Change)> + '_ {
        (since..self.produced()).map(|at| (at, self.get(at))).filter(move |(_, change)| change.touches(span))
    }

    /// The fate of the page at `at`, by the pending changes. A page that was unmapped and then
    /// moved nevertheless had been replaced by the worker.
    pub(super) fn fate(&self, at: CpuVa, since: u64) -> Fate {
        let mut now = at;
        let mut unmapped = false;
        for (_, change) in self.pending(since, everything()) {
            match change {
                Change::Remap { from, to } if from.contains(now) => {
                    now = CpuVa(to.0 + from_start(now, from));
                    unmapped = false;
                }
                Change::Unmap(gone) if gone.contains(now) => unmapped = true,
                Change::Remove(gone) if gone.contains(now) => return Fate::Discarded,
                _ => {}
            }
        }
        match (now == at, unmapped) {
            (true, false) => Fate::Here,
            (true, true) => Fate::Unmapped,
            (false, false) => Fate::Moved(now),
            (false, true) => Fate::Gone,
        }
    }

    /// Strikes the changes that the worker itself caused since `since`, when it moved its mapping
    /// at `staged` over `span`. The move unmapped the older mappings there: all at once, or the
    /// parts that the client's earlier changes had left. An unmap by the client looks the same and
    /// counts as the worker's, since the present mapping is the same either way. The worker's
    /// mapping stays, although the client has none any more.
    pub(super) fn strike_own(&self, since: u64, staged: CpuSpan, span: CpuSpan) {
        let entries = since..self.produced();
        let whole = entries.clone().find(|at| self.get(*at) == Change::Unmap(span));
        let is_own = |at| match (self.get(at), whole) {
            (Change::Remap { from, .. } | Change::Unmap(from), _) if from == staged => true,
            (Change::Unmap(_), Some(whole)) => at == whole,
            (Change::Unmap(gone), None) => {
                // Each page went once by the worker.
                let before = |at| matches!(self.get(at), Change::Unmap(other) if other.overlaps(gone));
                gone.start() >= span.start() && gone.end() <= span.end() && !(since..at).any(before)
            }
            _ => false,
        };
        // The last first: each is judged by those before it.
        for at in entries.rev() {
            if is_own(at) {
                self.strike(at);
            }
        }
    }

    /// Rings the bell.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.bell);
    }

    /// The bell's count, for [`Ring::wait`].
    pub(super) fn bell(&self) -> u32 {
        self.bell.load(Ordering::SeqCst)
    }

    /// Waits until the bell has rung since it was `heard`, or `millis` have passed.
    pub(super) fn wait(&self, heard: u32, millis: u32) {
        sys::futex_wait(&self.bell, heard, millis);
    }

    /// Waits until everything that has been read by now was handled.
    pub(super) fn settle(&self) {
        let until = self.produced();
        loop {
            let progress = self.progress.load(Ordering::SeqCst);
            if self.handled() >= until {
                return;
            }
            sys::futex_wait(&self.progress, progress, 100);
        }
    }

    /// Waits until the driver was notified of every change that has been read by now. Others that
    /// come meanwhile are not waited for, nor is an access that waits for its page.
    pub(super) fn settle_told(&self) {
        let until = self.produced();
        loop {
            let progress = self.progress.load(Ordering::SeqCst);
            let handled = self.handled();
            // In this order: a change is struck when the telling has begun.
            let pending = self.pending(handled, everything()).next().is_some_and(|(at, _)| at < until);
            if handled >= until || !pending && !self.telling.load(Ordering::SeqCst) {
                return;
            }
            sys::futex_wait(&self.progress, progress, 100);
        }
    }
}

/// How far `at` is from the start of `span`, in bytes.
pub(super) fn from_start(at: CpuVa, span: CpuSpan) -> u64 {
    at.0 - span.start().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_driver::base::addr::PAGE;

    fn pages(first: u64, count: u64) -> CpuSpan {
        CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE))
    }

    fn ring(changes: &[Change]) -> Ring {
        let ring = Ring::new().unwrap();
        changes.iter().for_each(|change| ring.push(*change));
        ring
    }

    fn remap(from: u64, count: u64, to: u64) -> Change {
        Change::Remap { from: pages(from, count), to: CpuVa(to * PAGE) }
    }

    /// Positions of the changes that are left after the worker's own were struck. Its mapping at
    /// 100 replaced 10..20.
    fn left(changes: &[Change]) -> Vec<u64> {
        let ring = ring(changes);
        ring.strike_own(0, pages(100, 10), pages(10, 10));
        ring.pending(0, everything()).map(|(at, _)| at).collect()
    }

    #[test]
    fn the_worker_knows_its_own() {
        let (moved, gone) = (remap(100, 10, 10), Change::Unmap(pages(100, 10)));
        assert_eq!(left(&[Change::Unmap(pages(10, 10)), moved, gone]), Vec::<u64>::new());
        // The client unmaps a part of the replacement, or all of it.
        assert_eq!(left(&[Change::Unmap(pages(10, 10)), moved, Change::Unmap(pages(12, 2)), gone]), [2]);
        assert_eq!(left(&[Change::Unmap(pages(10, 10)), moved, gone, Change::Unmap(pages(10, 10))]), [3]);
        // More than was replaced.
        assert_eq!(left(&[Change::Unmap(pages(10, 10)), moved, gone, Change::Unmap(pages(10, 20))]), [3]);
    }

    #[test]
    fn what_a_move_just_before_has_cut_is_the_workers_own() {
        // The client has moved page 14 away, then 15: what the replacement unmapped is in pieces.
        let client = [remap(14, 1, 50), Change::Unmap(pages(14, 1)), remap(15, 1, 51), Change::Unmap(pages(15, 1))];
        let own = [
            Change::Unmap(pages(10, 4)),
            Change::Unmap(pages(16, 4)),
            remap(100, 10, 10),
            Change::Unmap(pages(100, 10)),
        ];
        let changes = [client, own].concat();
        assert_eq!(left(&changes), [0, 2]);
        // Nothing that the client still has is taken for unmapped, and what has moved is found.
        let ring = ring(&changes);
        ring.strike_own(0, pages(100, 10), pages(10, 10));
        assert_eq!(ring.fate(CpuVa(13 * PAGE), 0), Fate::Here);
        assert_eq!(ring.fate(CpuVa(16 * PAGE), 0), Fate::Here);
        assert_eq!(ring.fate(CpuVa(14 * PAGE), 0), Fate::Moved(CpuVa(50 * PAGE)));
    }

    #[test]
    fn a_page_is_followed_to_where_it_goes() {
        let at = CpuVa(10 * PAGE);
        let fate = |changes: &[Change]| ring(changes).fate(at, 0);
        assert_eq!(fate(&[]), Fate::Here);
        assert_eq!(fate(&[Change::Wait(at), Change::Unmap(pages(11, 9))]), Fate::Here);
        assert_eq!(fate(&[Change::Unmap(pages(0, 20))]), Fate::Unmapped);
        assert_eq!(fate(&[Change::Remove(pages(10, 1))]), Fate::Discarded);
        let there = remap(8, 4, 30);
        assert_eq!(fate(&[there, Change::Unmap(pages(8, 4))]), Fate::Moved(CpuVa(32 * PAGE)));
        assert_eq!(fate(&[there, Change::Unmap(pages(32, 1))]), Fate::Gone);
        assert_eq!(fate(&[there, Change::Remove(pages(32, 1))]), Fate::Discarded);
        assert_eq!(fate(&[there, remap(32, 1, 10), Change::Unmap(pages(32, 1))]), Fate::Here);
        // Replaced by the worker, then moved by the client.
        assert_eq!(fate(&[Change::Unmap(pages(10, 10)), there]), Fate::Moved(CpuVa(32 * PAGE)));
    }
}
