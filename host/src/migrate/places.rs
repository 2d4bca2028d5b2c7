// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The CPU pages in each GPU's memory: a sorted array of runs, in memory of its own, of a fixed
//! capacity.
//!
//! Only the worker changes it. Every reader takes its lock, among them the collector. So nothing is
//! allocated under it, and no thread touches memory under it that may wait.

use crate::table::Table;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, FabricAddr, VramOffset, PAGE};

/// The most runs. Each is a mapping (two where it splits one), so this is no less than mappings
/// allow.
pub(super) const CAPACITY: usize = 1 << 15;
const WORDS: usize = 4;
const COHERENT: u64 = 1;
const SEALED: u64 = 2;

/// CPU pages next to each other that are next to each other in a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) span: CpuSpan,
    /// Where the first page is.
    pub(super) at: FabricAddr,
    /// Which memory, as the worker counts them.
    pub(super) memory: u32,
    /// The CPU uses it in place.
    pub(super) coherent: bool,
    /// A thread that touches it without a page-table entry waits.
    pub(super) sealed: bool,
}

impl Run {
    /// The part of it in `span`, if any.
    pub(super) fn cut(&self, span: CpuSpan) -> Option<Self> {
        let part = CpuSpan::between(self.span.start().max(span.start()), self.span.end().min(span.end()));
        (part.bytes() != 0).then(|| Self {
            span: part,
            at: FabricAddr(self.at.0 + (part.start().0 - self.span.start().0)),
            ..*self
        })
    }

    fn continues_in(&self, next: &Self) -> bool {
        self.span.end() == next.span.start()
            && self.at.0 + self.span.bytes() == next.at.0
            && (self.memory, self.coherent, self.sealed) == (next.memory, next.coherent, next.sealed)
    }

    fn words(&self) -> [u64; WORDS] {
        let flags = if self.coherent { COHERENT } else { 0 } | if self.sealed { SEALED } else { 0 };
        [self.span.start().0, self.span.end().0, self.at.0, u64::from(self.memory) << 2 | flags]
    }

    fn of(words: [u64; WORDS]) -> Self {
        let [start, end, at, rest] = words;
        Self {
            span: CpuSpan::between(CpuVa(start), CpuVa(end)),
            at: FabricAddr(at),
            memory: u32::try_from(rest >> 2).unwrap_or(u32::MAX),
            coherent: rest & COHERENT != 0,
            sealed: rest & SEALED != 0,
        }
    }
}

/// The runs.
pub(super) struct Places {
    len: Mutex<usize>,
    words: Table<AtomicU64>,
}

impl Places {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { len: Mutex::new(0), words: Table::new(CAPACITY * WORDS)? })
    }

    /// Where its memory is.
    pub(super) fn memory(&self) -> CpuSpan {
        let start = CpuVa(self.words.as_ptr().expose_provenance() as u64);
        CpuSpan::between(start, CpuVa(start.0 + size_of_val::<[AtomicU64]>(&self.words) as u64))
    }

    pub(super) fn lock(&self) -> Runs<'_> {
        Runs { len: self.len.lock().unwrap_or_else(PoisonError::into_inner), words: &self.words }
    }
}

/// The runs, locked.
pub(super) struct Runs<'a> {
    len: MutexGuard<'a, usize>,
    words: &'a [AtomicU64],
}

impl Runs<'_> {
    pub(super) fn len(&self) -> usize {
        *self.len
    }

    pub(super) fn get(&self, i: usize) -> Option<Run> {
        let words = (i < *self.len).then(|| &self.words[i * WORDS..(i + 1) * WORDS])?;
        Some(Run::of([0, 1, 2, 3].map(|w| words[w].load(Ordering::Relaxed))))
    }

    pub(super) fn set(&mut self, i: usize, run: &Run) {
        for (word, value) in self.words[i * WORDS..(i + 1) * WORDS].iter().zip(run.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The first run that ends above `at`. O(log n).
    pub(super) fn first_from(&self, at: CpuVa) -> usize {
        let (mut low, mut high) = (0, *self.len);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.words[middle * WORDS + 1].load(Ordering::Relaxed) <= at.0 {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The first run, cut to `span`, that has a page in it. O(log n).
    pub(super) fn first_in(&self, span: CpuSpan) -> Option<Run> {
        self.get(self.first_from(span.start()))?.cut(span)
    }

    /// The first addresses from `from` on that are in a row at `places` (ascending) of memory
    /// number `memory`, which begins at `base`. O(runs from there * log places).
    pub(super) fn next_at(&self, from: CpuVa, memory: u32, base: FabricAddr, places: &[VramOffset]) -> Option<CpuSpan> {
        let above = CpuSpan::between(from, CpuVa(u64::MAX));
        (self.first_from(from)..*self.len).find_map(|i| {
            let run = self.get(i).filter(|run| run.memory == memory)?.cut(above)?;
            let start = run.at.0.checked_sub(base.0)?;
            let here = &places[places.partition_point(|place| place.0 < start)..];
            let first = here.first().map(|place| place.0 - start).filter(|first| *first < run.span.bytes())?;
            let row = (start + first..start + run.span.bytes()).step_by(index(PAGE));
            let pages = row.zip(here).take_while(|(at, place)| *at == place.0).count() as u64;
            let start = CpuVa(run.span.start().0 + first);
            Some(CpuSpan::between(start, CpuVa(start.0 + pages * PAGE)))
        })
    }

    /// Makes room for `count` runs before position `i`, or takes -`count` from there.
    fn shift(&mut self, i: usize, count: isize) {
        let old = *self.len;
        let copy = |to: usize, from: usize| {
            for word in 0..WORDS {
                let value = self.words[from * WORDS + word].load(Ordering::Relaxed);
                self.words[to * WORDS + word].store(value, Ordering::Relaxed);
            }
        };
        let by = count.unsigned_abs();
        if count > 0 {
            (i..old).rev().for_each(|n| copy(n + by, n));
            *self.len = old + by;
        } else {
            (i + by..old).for_each(|n| copy(n - by, n));
            *self.len = old - by;
        }
    }

    /// Whether another two runs would fit, the most that one change may take.
    pub(super) fn has_room(&self) -> bool {
        *self.len + 2 <= CAPACITY
    }

    /// Enters a run; nothing else is known of its span, and there is room.
    pub(super) fn insert(&mut self, run: Run) {
        let mut i = self.first_from(run.span.start());
        let mut run = run;
        if let Some(before) = i.checked_sub(1).and_then(|b| self.get(b)).filter(|b| b.continues_in(&run)) {
            run = Run { span: CpuSpan::between(before.span.start(), run.span.end()), ..before };
            i -= 1;
        } else if *self.len < CAPACITY {
            self.shift(i, 1);
        } else {
            debug_assert!(false, "the worker leaves room");
            return;
        }
        if let Some(after) = self.get(i + 1).filter(|a| run.continues_in(a)) {
            run.span = CpuSpan::between(run.span.start(), after.span.end());
            self.shift(i + 1, -1);
        }
        self.set(i, &run);
    }

    /// Takes the first run in `span` out, cut to it; what it has outside stays.
    pub(super) fn take_first(&mut self, span: CpuSpan) -> Option<Run> {
        let i = self.first_from(span.start());
        let whole = self.get(i)?;
        let part = whole.cut(span)?;
        let before = whole.cut(CpuSpan::between(whole.span.start(), part.span.start()));
        let after = whole.cut(CpuSpan::between(part.span.end(), whole.span.end()));
        match (before, after) {
            (None, None) => self.shift(i, -1),
            (Some(rest), None) | (None, Some(rest)) => self.set(i, &rest),
            (Some(before), Some(after)) => {
                if *self.len == CAPACITY {
                    debug_assert!(false, "the worker leaves room");
                    return None;
                }
                self.shift(i, 1);
                self.set(i, &before);
                self.set(i + 1, &after);
            }
        }
        Some(part)
    }

    /// The collector has finished reading what it sealed everything for.
    pub(super) fn end_reading(&self, reading: &AtomicBool) {
        reading.store(false, Ordering::SeqCst);
    }

    /// How many pages are in a GPU's memory. O(runs).
    pub(super) fn pages(&self) -> u64 {
        (0..*self.len).filter_map(|i| self.get(i)).map(|run| run.span.pages()).sum()
    }
}

/// Pages of `span`, whole.
pub(super) fn pages_of(span: CpuSpan) -> usize {
    index(span.pages())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, pages: u64, at: u64) -> Run {
        let span = CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + pages) * PAGE));
        Run { span, at: FabricAddr(at * PAGE), memory: 0, coherent: true, sealed: false }
    }

    fn all(places: &Places) -> Vec<(u64, u64, u64)> {
        let runs = places.lock();
        (0..runs.len())
            .filter_map(|i| runs.get(i))
            .map(|r| (r.span.start().0 / PAGE, r.span.pages(), r.at.0 / PAGE))
            .collect()
    }

    #[test]
    fn neighbours_become_one_run() {
        let places = Places::new().unwrap();
        places.lock().insert(run(10, 5, 100));
        places.lock().insert(run(20, 5, 110));
        places.lock().insert(run(15, 5, 105));
        assert_eq!(all(&places), [(10, 15, 100)]);
        places.lock().insert(run(25, 1, 300));
        places.lock().insert(run(1, 1, 0));
        assert_eq!(all(&places), [(1, 1, 0), (10, 15, 100), (25, 1, 300)]);
    }

    #[test]
    fn memory_is_found_by_its_places() {
        let places = Places::new().unwrap();
        let other = Run { memory: 1, ..run(11, 4, 101) };
        for run in [Run { span: run(5, 4, 0).span, ..other }, run(10, 5, 100), run(20, 5, 203), run(30, 5, 107)] {
            places.lock().insert(run);
        }
        let find = |from: u64, wanted: &[u64]| {
            let wanted: Vec<_> = wanted.iter().map(|at| VramOffset((at - 50) * PAGE)).collect();
            let found = places.lock().next_at(CpuVa(from * PAGE), 0, FabricAddr(50 * PAGE), &wanted);
            found.map(|span| (span.start().0 / PAGE, span.pages()))
        };
        let wanted = [99, 101, 102, 104, 105, 106, 110, 111, 112, 204];
        assert_eq!(find(0, &wanted), Some((11, 2)));
        assert_eq!(find(13, &wanted), Some((14, 1)));
        assert_eq!(find(15, &wanted), Some((21, 1)));
        assert_eq!(find(22, &wanted), Some((33, 2)));
        assert_eq!(find(35, &wanted), None);
        assert_eq!(find(0, &[]), None);
    }

    #[test]
    fn taking_a_part_leaves_the_rest() {
        let places = Places::new().unwrap();
        places.lock().insert(run(10, 10, 100));
        let span = run(13, 4, 0).span;
        assert_eq!(places.lock().first_in(span).map(|r| r.at), Some(FabricAddr(103 * PAGE)));
        assert_eq!(places.lock().take_first(span), Some(run(13, 4, 103)));
        assert_eq!(places.lock().take_first(span), None);
        assert_eq!(all(&places), [(10, 3, 100), (17, 3, 107)]);
        assert_eq!(places.lock().take_first(run(0, 100, 0).span), Some(run(10, 3, 100)));
        assert_eq!(places.lock().take_first(run(17, 1, 0).span), Some(run(17, 1, 107)));
        assert_eq!(all(&places), [(18, 2, 108)]);
        assert_eq!(places.lock().pages(), 2);
    }
}
