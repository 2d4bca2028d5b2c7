// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's SVM ranges: disjoint, sorted, each with its attributes. A change splits at its ends
//! and merges equal neighbours.
//!
//! Finding is O(log ranges), changing O(ranges). Guarded by [`super::Svm`]'s lock.

use super::attributes::Attributes;
use crate::base::errno::Result;
use crate::os::Vec;

/// A range.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// What was said of it.
    pub attributes: Attributes,
}

/// The ranges.
#[derive(Default)]
pub struct SvmRanges(Vec<Range>);

impl SvmRanges {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// All of them, by address.
    pub fn all(&self) -> &[Range] {
        &self.0
    }

    /// Those that share a byte with `[start, end)`.
    pub fn within(&self, start: u64, end: u64) -> &[Range] {
        self.0.get(self.overlapping(start, end)).unwrap_or_default()
    }

    /// Bytes of all ranges together.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, r| sum.saturating_add(r.end.saturating_sub(r.start)))
    }

    /// Bytes of `[start, end)` that are in no range. O(ranges there).
    pub fn gaps(&self, start: u64, end: u64) -> u64 {
        let taken = self
            .within(start, end)
            .iter()
            .fold(0, |sum: u64, r| sum.saturating_add(r.end.min(end).saturating_sub(r.start.max(start))));
        end.saturating_sub(start).saturating_sub(taken)
    }

    fn overlapping(&self, start: u64, end: u64) -> core::ops::Range<usize> {
        let first = self.0.partition_point(|r| r.end <= start);
        let after = self.0.partition_point(|r| r.start < end);
        first..after.max(first)
    }

    /// Rebuilds `[start, end)`: `f` gives each piece, set so far or not, its new attributes (none:
    /// no range). ENOMEM changes nothing.
    pub fn replace(
        &mut self,
        start: u64,
        end: u64,
        f: &mut dyn FnMut(Option<Attributes>) -> Option<Attributes>,
    ) -> Result {
        let hits = self.overlapping(start, end);
        // Every hit becomes at most three, and every gap one more.
        let mut next = Vec::with_capacity(hits.len().saturating_mul(2).saturating_add(self.0.len()).saturating_add(3))?;
        let mut add = |start: u64, end: u64, attributes: Option<Attributes>| {
            let Some(attributes) = attributes.filter(|_| start < end) else { return };
            match next.last_mut() {
                Some(Range { end: last, attributes: same, .. }) if *last == start && *same == attributes => *last = end,
                _ => {
                    next.push_reserved(Range { start, end, attributes });
                }
            }
        };
        for range in self.0.get(..hits.start).unwrap_or_default() {
            add(range.start, range.end, Some(range.attributes));
        }
        let mut at = start;
        for range in self.0.get(hits.clone()).unwrap_or_default() {
            add(range.start, start, Some(range.attributes));
            if at < range.start {
                add(at, range.start, f(None));
            }
            let (from, to) = (range.start.max(start), range.end.min(end));
            add(from, to, f(Some(range.attributes)));
            at = to;
            if range.end > end {
                add(end, range.end, Some(range.attributes));
            }
        }
        if at < end {
            // A last hit that reached beyond has been added already, and then there is no gap.
            add(at, end, f(None));
        }
        for range in self.0.get(hits.end..).unwrap_or_default() {
            add(range.start, range.end, Some(range.attributes));
        }
        self.0 = next;
        Ok(())
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.0.memory()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec as StdVec;

    fn state(s: &SvmRanges) -> StdVec<(u64, u64, u32)> {
        s.0.iter().map(|r| (r.start, r.end, r.attributes.granularity)).collect()
    }

    fn set(s: &mut SvmRanges, start: u64, end: u64, granularity: u32) {
        s.replace(start, end, &mut |old| Some(Attributes { granularity, ..old.unwrap_or(Attributes::unset(false)) }))
            .unwrap();
    }

    #[test]
    fn ranges_split_fill_gaps_and_merge() {
        let mut s = SvmRanges::new();
        set(&mut s, 10, 20, 1);
        set(&mut s, 30, 40, 1);
        assert_eq!(state(&s), [(10, 20, 1), (30, 40, 1)]);
        set(&mut s, 15, 35, 2);
        assert_eq!(state(&s), [(10, 15, 1), (15, 35, 2), (35, 40, 1)]);
        set(&mut s, 12, 13, 3);
        assert_eq!(state(&s), [(10, 12, 1), (12, 13, 3), (13, 15, 1), (15, 35, 2), (35, 40, 1)]);
        set(&mut s, 5, 50, 1);
        assert_eq!(state(&s), [(5, 50, 1)]);
        s.replace(20, 30, &mut |_| None).unwrap();
        assert_eq!(state(&s), [(5, 20, 1), (30, 50, 1)]);
        assert_eq!((s.bytes(), s.gaps(0, 60), s.gaps(10, 20), s.gaps(19, 31)), (35, 25, 0, 10));
    }
}
