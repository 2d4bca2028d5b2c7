// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the collector has read and the worker has not dealt with yet: changes of mappings, and accesses that wait.
//!
//! One producer, one consumer, a fixed place in memory. The worker may look at entries before it handles them, and strike its own ones out.

use crate::sys;
use crate::table::Table;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vkfd_driver::addr::{index, CpuSpan, CpuVa};

/// Entries. Whoever causes one sleeps until it is read, so there are about as many as threads.
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
    /// What of the mappings it is about; `None` for what changes none.
    pub(super) fn span(self) -> Option<CpuSpan> {
        match self {
            Self::Unmap(span) | Self::Remove(span) | Self::Remap { from: span, .. } => Some(span),
            Self::Wait(_) | Self::Struck => None,
        }
    }

    /// Whether what is mapped in `span` is other than before: something there has changed, or has come there.
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

/// The ring.
pub(super) struct Ring {
    words: Table<AtomicU64>,
    produced: AtomicU64,
    handled: AtomicU64,
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
        Change::of([0, 1, 2, 3].map(|w| slot[w].load(Ordering::Relaxed)))
    }

    /// Marks an entry as dealt with; the worker only.
    pub(super) fn strike(&self, position: u64) {
        self.slot(position)[0].store(0, Ordering::Relaxed);
    }

    /// Everything below `position` has been handled; the worker only.
    pub(super) fn set_handled(&self, position: u64) {
        self.handled.store(position, Ordering::SeqCst);
        self.progress.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.progress);
    }

    /// The changes of mappings from `since` on that are not dealt with and touch `span`.
    pub(super) fn pending(&self, since: u64, span: CpuSpan) -> impl Iterator<Item = (u64, Change)> + '_ {
        (since..self.produced()).map(|at| (at, self.get(at))).filter(move |(_, change)| change.touches(span))
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
}
