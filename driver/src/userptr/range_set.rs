// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ranges of one userptr object: immutable, validated, indexed in both directions.
//!
//! Array order with prefix sums answers "which range is at this GPU offset" by binary search. A
//! second order, by CPU address, has the highest end of each subtree. It is an implicit interval
//! tree over the sorted array: the middle element is the root of its stretch. It answers "which
//! ranges does this CPU interval touch" in O(log n + hits). Ranges may overlap, repeat and come in
//! any order. 28 bytes per range.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "numbers of ranges that are there; pages and bytes of all together were summed with checks when the list was read"
)]

use crate::base::addr::{CpuSpan, CpuVa, PAGE};
use crate::base::errno::{Errno, Error, RangeAt, Reason, Result};
use crate::collections::order;
use crate::os::Vec;

#[derive(Clone, Copy)]
struct Range {
    cpu: CpuVa,
    /// Pages before it: its place on the GPU. The next one's tells its length.
    first_page: u64,
}

/// The ranges.
pub struct RangeSet {
    ranges: Vec<Range>,
    pages: u64,
    /// Range numbers by CPU start.
    by_cpu: Vec<u32>,
    /// At position m, the root of stretch [lo, hi): the highest end in the stretch.
    highest_end: Vec<u64>,
    hull: CpuSpan,
}

/// Collects ranges in array order; every one is checked as it comes.
pub struct Builder {
    ranges: Vec<Range>,
    pages: u64,
}

impl Builder {
    /// Room for `count` ranges, of which there must be fewer than 2^32 - 1.
    pub fn new(count: usize) -> Result<Self> {
        Ok(Self { ranges: Vec::with_capacity(count)?, pages: 0 })
    }

    /// Adds a range. EINVAL when it is empty, not made of whole pages, or wraps; the error names
    /// it.
    pub fn push(&mut self, start: CpuVa, bytes: u64) -> Result {
        let at = RangeAt { index: self.ranges.len() as u64, start, bytes };
        let refuse = |reason| Err(Error::new(Errno::EINVAL, reason).at(at));
        let Some(span) = CpuSpan::new(start, bytes) else { return refuse(Reason::Wraps) };
        if !span.is_whole_pages() || start.0 == 0 {
            return refuse(Reason::ZeroOrUnaligned);
        }
        // 2^52 pages at most each, so 2^12 full ones could wrap the sum.
        let Some(pages) = self.pages.checked_add(span.pages()).filter(|p| p.checked_mul(PAGE).is_some()) else {
            return refuse(Reason::Wraps);
        };
        self.ranges.push(Range { cpu: start, first_page: self.pages })?;
        self.pages = pages;
        Ok(())
    }

    /// Sum of the sizes so far, in pages.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Sorts and indexes, O(n log n) at most. EINVAL without a range.
    pub fn build(self) -> Result<RangeSet> {
        let Self { ranges, pages } = self;
        let n = ranges.len();
        if n == 0 {
            return Err(Errno::EINVAL.into());
        }
        // Starts are whole pages.
        let by_cpu = order::by_key(n, |number| ranges[number].cpu.0 / PAGE)?;
        let mut set = RangeSet {
            hull: CpuSpan::between(CpuVa(0), CpuVa(0)),
            highest_end: Vec::filled(0, n)?,
            ranges,
            pages,
            by_cpu,
        };
        let end = set.index(0, n);
        set.hull = CpuSpan::between(set.span(set.by_cpu[0] as usize).start(), CpuVa(end));
        Ok(set)
    }
}

impl RangeSet {
    fn index(&mut self, lo: usize, hi: usize) -> u64 {
        if lo >= hi {
            return 0;
        }
        let mid = lo + (hi - lo) / 2;
        let here = self.span(self.by_cpu[mid] as usize).end().0;
        let highest = here.max(self.index(lo, mid)).max(self.index(mid + 1, hi));
        self.highest_end[mid] = highest;
        highest
    }

    /// Makes a prefix sum wrong, on purpose: the second range takes the first one's last page. Only
    /// sabotage asks for it.
    pub(crate) fn skew(&mut self) {
        if self.len() > 1 && self.place(0).1 > 1 {
            self.ranges[1].first_page -= 1;
        }
    }

    /// How many ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Never: a set has a range.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Pages of all ranges together.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// From the lowest to the highest CPU address.
    pub const fn hull(&self) -> CpuSpan {
        self.hull
    }

    /// The first page of range `number` within the object, and its pages.
    pub fn place(&self, number: usize) -> (u64, u64) {
        let first = self.ranges[number].first_page;
        let end = self.ranges.get(number + 1).map_or(self.pages, |next| next.first_page);
        (first, end - first)
    }

    /// The CPU addresses of range `number`.
    pub fn span(&self, number: usize) -> CpuSpan {
        let start = self.ranges[number].cpu;
        CpuSpan::between(start, CpuVa(start.0 + self.place(number).1 * PAGE))
    }

    /// Range `number` as errors name it.
    pub fn at(&self, number: usize) -> RangeAt {
        let span = self.span(number);
        RangeAt { index: number as u64, start: span.start(), bytes: span.bytes() }
    }

    /// The range that page `page` of the object lies in. O(log n).
    pub fn of_page(&self, page: u64) -> Option<usize> {
        if page >= self.pages {
            return None;
        }
        Some(self.ranges.partition_point(|r| r.first_page <= page) - 1)
    }

    /// Ranges in order of their CPU start.
    pub fn by_cpu(&self) -> &[u32] {
        &self.by_cpu
    }

    /// Calls `f` for each range that shares a byte with `span`, until it returns false. O(log n +
    /// hits), allocates nothing.
    pub fn overlapping(&self, span: CpuSpan, f: &mut dyn FnMut(usize) -> bool) {
        self.visit(0, self.len(), span, f);
    }

    fn visit(&self, lo: usize, hi: usize, span: CpuSpan, f: &mut dyn FnMut(usize) -> bool) -> bool {
        if lo >= hi {
            return true;
        }
        let mid = lo + (hi - lo) / 2;
        if self.highest_end[mid] <= span.start().0 {
            return true;
        }
        if !self.visit(lo, mid, span, f) {
            return false;
        }
        let number = self.by_cpu[mid] as usize;
        let here = self.span(number);
        if here.start() >= span.end() {
            return true;
        }
        if here.overlaps(span) && !f(number) {
            return false;
        }
        self.visit(mid + 1, hi, span, f)
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.ranges.memory() + self.by_cpu.memory() + self.highest_end.memory()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec as StdVec;

    fn set(list: &[(u64, u64)]) -> RangeSet {
        let mut b = Builder::new(list.len()).unwrap();
        for (start, pages) in list {
            b.push(CpuVa(start * PAGE), pages * PAGE).unwrap();
        }
        b.build().unwrap()
    }

    fn hits(s: &RangeSet, start: u64, end: u64) -> StdVec<usize> {
        let mut out = StdVec::new();
        s.overlapping(CpuSpan::between(CpuVa(start), CpuVa(end)), &mut |i| {
            out.push(i);
            true
        });
        out.sort_unstable();
        out
    }

    #[test]
    fn prefix_sums_follow_the_array_and_not_the_addresses() {
        let s = set(&[(100, 3), (10, 1), (50, 5)]);
        assert_eq!((s.place(0), s.place(1), s.place(2)), ((0, 3), (3, 1), (4, 5)));
        assert_eq!([0, 2, 3, 4, 8].map(|p| s.of_page(p)), [Some(0), Some(0), Some(1), Some(2), Some(2)]);
        assert_eq!(s.of_page(9), None);
        assert_eq!(s.hull(), CpuSpan::between(CpuVa(10 * PAGE), CpuVa(103 * PAGE)));
    }

    #[test]
    fn the_index_agrees_with_a_scan_also_where_ranges_overlap_and_repeat() {
        let mut x = 99u64;
        let mut next = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 33) % n
        };
        let list: StdVec<(u64, u64)> =
            (0..500).map(|i| if i == 7 { (1, 900) } else { (1 + next(1000), 1 + next(9)) }).collect();
        let s = set(&list);
        for _ in 0..2000 {
            let start = next(1020 * PAGE);
            let end = start + 1 + next(20 * PAGE);
            let expect: StdVec<usize> =
                (0..list.len()).filter(|i| s.span(*i).overlaps(CpuSpan::between(CpuVa(start), CpuVa(end)))).collect();
            assert_eq!(hits(&s, start, end), expect);
        }
        // One byte either side of a range's end.
        let s = set(&[(10, 2)]);
        assert_eq!(hits(&s, 12 * PAGE - 1, 12 * PAGE), [0]);
        assert!(hits(&s, 12 * PAGE, 13 * PAGE).is_empty() && hits(&s, 0, 10 * PAGE).is_empty());
    }

    #[test]
    fn bad_ranges_are_refused_by_name() {
        let mut b = Builder::new(4).unwrap();
        b.push(CpuVa(PAGE), PAGE).unwrap();
        for (start, bytes, reason) in [
            (0, PAGE, Reason::ZeroOrUnaligned),
            (PAGE, 0, Reason::ZeroOrUnaligned),
            (PAGE + 1, PAGE, Reason::ZeroOrUnaligned),
            (PAGE, PAGE - 1, Reason::ZeroOrUnaligned),
            (u64::MAX - PAGE + 1, PAGE, Reason::Wraps),
            (PAGE, u64::MAX - PAGE + 1, Reason::Wraps),
        ] {
            let e = b.push(CpuVa(start), bytes).unwrap_err();
            assert_eq!((e.errno, e.reason), (Errno::EINVAL, reason), "{start:#x} {bytes:#x}");
            assert_eq!(e.at.unwrap().index, 1);
        }
        assert!(Builder::new(0).unwrap().build().is_err());
    }
}
