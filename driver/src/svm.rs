// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM ranges: their attributes, and their conflicts with buffer objects and userptr ranges, in both directions.
//!
//! Ranges are kept disjoint and sorted; setting an attribute splits at the ends of the call's span and merges equal
//! neighbours, O(ranges). Guarded by the process lock.
//!
//! Limits: attributes are stored and reported; SVM ranges are not yet mapped to GPUs and do not migrate. A range whose
//! memory was unmapped is found out when it stands in the way of something, not at once.

use crate::addr::{CpuSpan, CpuVa, PAGE};
use crate::address_space::AddressSpace;
use crate::errno::{Errno, Error, Reason, Result};
use crate::os::{Arc, Vec};
use crate::process::Process;
use vkfd_uapi::svm as abi;

/// How a GPU may use a range, as bitmaps by GPU number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attributes {
    preferred: u32,
    prefetch: u32,
    flags: u32,
    granularity: u32,
    access: u32,
    in_place: u32,
}

impl Attributes {
    /// What memory has that nobody set anything for; with XNACK on every GPU may use it.
    fn unset(xnack: bool) -> Self {
        Self {
            preferred: abi::SVM_LOCATION_UNDEFINED,
            prefetch: abi::SVM_LOCATION_UNDEFINED,
            flags: abi::SVM_FLAG_HOST_ACCESS | abi::SVM_FLAG_COHERENT,
            granularity: 9,
            access: if xnack { u32::MAX } else { 0 },
            in_place: 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
    attributes: Attributes,
}

/// A process's SVM ranges.
#[derive(Default)]
pub struct SvmRanges(Vec<Range>);

impl SvmRanges {
    /// None.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn overlapping(&self, start: u64, end: u64) -> core::ops::Range<usize> {
        let first = self.0.partition_point(|r| r.end <= start);
        let after = self.0.partition_point(|r| r.start < end);
        first..after.max(first)
    }

    /// Whether a range shares a byte with `[start, end)`. Ranges whose memory there has gone are dropped first.
    /// O(log ranges) where there is none.
    pub fn conflict(&mut self, mm: &dyn AddressSpace, start: u64, end: u64) -> bool {
        loop {
            let hits = self.overlapping(start, end);
            let Some(at) = hits.into_iter().next() else { return false };
            let range = self.0[at];
            let span = CpuSpan::between(CpuVa(range.start.max(start)), CpuVa(range.end.min(end)));
            if mm.mapped(span) {
                return true;
            }
            // Without memory for the split the conflict stands.
            if self.replace(span.start().0, span.end().0, &mut |_, _, _| None).is_err() {
                return true;
            }
        }
    }

    /// Rebuilds `[start, end)`: `f` gives each piece, set so far or not, its new attributes (none: no range).
    fn replace(
        &mut self,
        start: u64,
        end: u64,
        f: &mut dyn FnMut(u64, u64, Option<Attributes>) -> Option<Attributes>,
    ) -> Result {
        let hits = self.overlapping(start, end);
        // Every hit becomes at most three, and every gap one more.
        let mut next = Vec::with_capacity(self.0.len() + 2 * hits.len() + 3)?;
        let mut add = |start: u64, end: u64, attributes: Option<Attributes>| {
            let Some(attributes) = attributes.filter(|_| start < end) else { return };
            match next.last_mut() {
                Some(Range { end: last, attributes: same, .. }) if *last == start && *same == attributes => *last = end,
                _ => {
                    next.push_reserved(Range { start, end, attributes });
                }
            }
        };
        for range in &self.0[..hits.start] {
            add(range.start, range.end, Some(range.attributes));
        }
        let mut at = start;
        for range in &self.0[hits.clone()] {
            add(range.start, start, Some(range.attributes));
            if at < range.start {
                let gap = f(at, range.start, None);
                add(at, range.start, gap);
            }
            let (from, to) = (range.start.max(start), range.end.min(end));
            let new = f(from, to, Some(range.attributes));
            add(from, to, new);
            at = to;
            if range.end > end {
                add(end, range.end, Some(range.attributes));
            }
        }
        if at < end {
            let gap = f(at, end, None);
            // A last hit that reached beyond has been added already, and then there is no gap.
            add(at, end, gap);
        }
        for range in &self.0[hits.end..] {
            add(range.start, range.end, Some(range.attributes));
        }
        self.0 = next;
        Ok(())
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.0.memory()
    }
}

impl Process {
    fn gpu_bit(&self, gpu_id: u32) -> Result<u32> {
        Ok(1 << self.kfd().device(gpu_id)?.index())
    }

    /// The SVM call. EINVAL zero, unaligned or unknown; EOVERFLOW when the end wraps; EFAULT where there is no mapping;
    /// EADDRINUSE where a buffer object's GPU range or a userptr's CPU range lies.
    pub(crate) fn svm(self: &Arc<Self>, args: &abi::SvmArgs, list: &mut [abi::SvmAttribute]) -> Result {
        let (start, size) = (args.start_addr, args.size);
        if start == 0 || size == 0 || start % PAGE != 0 || size % PAGE != 0 {
            return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
        }
        let span = CpuSpan::new(CpuVa(start), size).ok_or(Error::new(Errno::EOVERFLOW, Reason::Wraps))?;
        match args.op {
            abi::SVM_OP_SET_ATTR => self.svm_set(span, list),
            abi::SVM_OP_GET_ATTR => self.svm_get(span, list),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn check_attribute(&self, item: abi::SvmAttribute) -> Result {
        match item.attr_type {
            abi::SVM_ATTR_PREFERRED_LOC | abi::SVM_ATTR_PREFETCH_LOC => {
                let system = [abi::SVM_LOCATION_SYSMEM, abi::SVM_LOCATION_UNDEFINED].contains(&item.value);
                if !system {
                    self.gpu_bit(item.value)?;
                }
                Ok(())
            }
            abi::SVM_ATTR_ACCESS | abi::SVM_ATTR_ACCESS_IN_PLACE | abi::SVM_ATTR_NO_ACCESS => {
                self.gpu_bit(item.value).map(|_| ())
            }
            abi::SVM_ATTR_SET_FLAGS | abi::SVM_ATTR_CLR_FLAGS if item.value <= 0xff => Ok(()),
            abi::SVM_ATTR_GRANULARITY => Ok(()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn svm_set(&self, span: CpuSpan, list: &[abi::SvmAttribute]) -> Result {
        for item in list {
            self.check_attribute(*item)?;
        }
        if !self.mm().mapped(span) {
            return Err(Error::new(Errno::EFAULT, Reason::NotMapped));
        }
        let (start, end) = (span.start().0, span.end().0);
        let mut inner = self.lock();
        if inner.gpu_va.first_overlap(start, end).is_some() {
            return Err(Error::new(Errno::EADDRINUSE, Reason::GpuRangeBusy));
        }
        let mut taken = false;
        let inner = &mut *inner;
        inner.cpu_hulls.overlapping(start, end, &mut |_, _, number| {
            // The hull may be hit where no range is.
            if let Some(object) = inner.bos.get(*number).and_then(|bo| bo.userptr()) {
                object.ranges().overlapping(span, &mut |_| {
                    taken = true;
                    false
                });
            }
            !taken
        });
        if taken {
            return Err(Error::new(Errno::EADDRINUSE, Reason::CpuRangeIsSvm));
        }
        let unset = Attributes::unset(self.xnack());
        inner.svm.replace(start, end, &mut |_, _, old| {
            let mut a = old.unwrap_or(unset);
            for item in list {
                let bit = self.gpu_bit(item.value).unwrap_or(0);
                match item.attr_type {
                    abi::SVM_ATTR_PREFERRED_LOC => a.preferred = item.value,
                    abi::SVM_ATTR_PREFETCH_LOC => a.prefetch = item.value,
                    abi::SVM_ATTR_ACCESS => (a.access, a.in_place) = (a.access | bit, a.in_place & !bit),
                    abi::SVM_ATTR_ACCESS_IN_PLACE => (a.access, a.in_place) = (a.access & !bit, a.in_place | bit),
                    abi::SVM_ATTR_NO_ACCESS => (a.access, a.in_place) = (a.access & !bit, a.in_place & !bit),
                    abi::SVM_ATTR_SET_FLAGS => a.flags |= item.value,
                    abi::SVM_ATTR_CLR_FLAGS => a.flags &= !item.value,
                    _ => a.granularity = item.value.min(0x3f),
                }
            }
            Some(a)
        })
    }

    /// What holds for all of the span: equal locations or "undefined", flags set or clear everywhere, the least
    /// granularity, the weakest access.
    fn svm_get(&self, span: CpuSpan, list: &mut [abi::SvmAttribute]) -> Result {
        for item in list.iter() {
            let asks_gpu = item.attr_type == abi::SVM_ATTR_ACCESS;
            if item.attr_type > abi::SVM_ATTR_GRANULARITY || (asks_gpu && self.gpu_bit(item.value).is_err()) {
                return Err(Errno::EINVAL.into());
            }
        }
        if !self.mm().mapped(span) {
            return Err(Error::new(Errno::EFAULT, Reason::NotMapped));
        }
        let (start, end) = (span.start().0, span.end().0);
        let unset = Attributes::unset(self.xnack());
        let inner = self.lock();
        let hits = inner.svm.overlapping(start, end);
        let ranges = &inner.svm.0[hits];
        let covered: u64 = ranges.iter().map(|r| r.end.min(end) - r.start.max(start)).sum();
        let gap = (covered < end - start).then_some(unset);
        let mut all = ranges.iter().map(|r| r.attributes).chain(gap);
        let mut sum = all.next().unwrap_or(unset);
        let mut any_flag = sum.flags;
        for a in all {
            let same = |x, y| if x == y { x } else { abi::SVM_LOCATION_UNDEFINED };
            any_flag |= a.flags;
            sum = Attributes {
                preferred: same(sum.preferred, a.preferred),
                prefetch: same(sum.prefetch, a.prefetch),
                flags: sum.flags & a.flags,
                granularity: sum.granularity.min(a.granularity),
                access: sum.access & a.access,
                in_place: (sum.in_place | sum.access) & (a.in_place | a.access) & !(sum.access & a.access),
            };
        }
        for item in list {
            match item.attr_type {
                abi::SVM_ATTR_PREFERRED_LOC => item.value = sum.preferred,
                abi::SVM_ATTR_PREFETCH_LOC => item.value = sum.prefetch,
                abi::SVM_ATTR_SET_FLAGS => item.value = sum.flags,
                abi::SVM_ATTR_CLR_FLAGS => item.value = !any_flag & 0xff,
                abi::SVM_ATTR_GRANULARITY => item.value = sum.granularity,
                _ => {
                    let bit = self.gpu_bit(item.value)?;
                    item.attr_type = match (sum.access & bit != 0, sum.in_place & bit != 0) {
                        (true, _) => abi::SVM_ATTR_ACCESS,
                        (_, true) => abi::SVM_ATTR_ACCESS_IN_PLACE,
                        _ => abi::SVM_ATTR_NO_ACCESS,
                    };
                }
            }
        }
        Ok(())
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
        s.replace(start, end, &mut |_, _, old| {
            Some(Attributes { granularity, ..old.unwrap_or(Attributes::unset(false)) })
        })
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
        s.replace(20, 30, &mut |_, _, _| None).unwrap();
        assert_eq!(state(&s), [(5, 20, 1), (30, 50, 1)]);
    }
}
