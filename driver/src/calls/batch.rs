// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The two forms of batch userptr that the series had, decoded into one request.
//!
//! v2 has a command of its own (0xC0304B28); v3 and v4 put a pointer to a list with a header into
//! the ordinary ALLOC's `mmap_offset` and set a flag. Checks come in v2's order; beyond it there
//! are caps, wraparound checks, and reserved fields must be 0.

use super::memory::{Allocated, Request};
use crate::base::addr::{CpuVa, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::sabotage::{FailPoint, Switch};
use crate::userptr::range_set::{Builder, RangeSet};
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, UserptrRangesHeader};
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_USERPTR_BATCH};
use vkfd_uapi::pod::{slice_as_bytes_mut, Pod};

/// Entries copied in at a time.
const STEP: usize = 256;

const fn refuse<T>(errno: Errno, reason: Reason) -> Result<T> {
    Err(Error::new(errno, reason))
}

/// Copies and checks a list of `count` ranges at `array`. O(n log n).
pub(crate) fn range_list(process: &Process, array: u64, count: u32) -> Result<RangeSet> {
    if count > process.kfd().options().max_ranges {
        return refuse(Errno::EINVAL, Reason::TooManyRanges);
    }
    let bad_pointer = Error::new(Errno::EFAULT, Reason::BadPointer);
    let count = count as usize;
    let mut builder = Builder::new(count)?;
    let mut step = Vec::filled(UserptrRange::zeroed(), count.min(STEP))?;
    let mut done = 0;
    while done < count {
        os::interrupted()?;
        let some = count.saturating_sub(done).min(STEP);
        let offset = (done as u64).checked_mul(size_of::<UserptrRange>() as u64).ok_or(bad_pointer)?;
        let at = array.checked_add(offset).ok_or(bad_pointer)?;
        os::failpoint(FailPoint::Copy)?;
        step.truncate(some);
        let bytes = slice_as_bytes_mut(&mut step);
        process.mm().read(CpuVa(at), bytes).map_err(|e| Error { reason: Reason::BadPointer, ..e })?;
        for range in step.iter() {
            builder.push(CpuVa(range.start), range.size)?;
        }
        done = done.saturating_add(some);
    }
    let mut set = builder.build()?;
    if process.sabotage().has(Switch::PrefixSum) {
        set.skew();
    }
    Ok(set)
}

/// A list whose sizes must add up to `total`.
fn range_list_of(process: &Process, array: u64, count: u32, total: u64) -> Result<RangeSet> {
    let set = range_list(process, array, count)?;
    if set.pages().checked_mul(PAGE) != Some(total) {
        return refuse(Errno::EINVAL, Reason::SumMismatch);
    }
    Ok(set)
}

/// v2's command.
pub(crate) fn alloc_batch(process: &Arc<Process>, args: &AllocMemoryOfGpuBatchArgs) -> Result<Allocated> {
    if args.total_size == 0 || args.num_ranges == 0 || args.ranges_ptr == 0 {
        return refuse(Errno::EINVAL, Reason::ZeroOrUnaligned);
    }
    if args.flags & ALLOC_MEM_FLAGS_USERPTR == 0 {
        return refuse(Errno::EOPNOTSUPP, Reason::BadFlags);
    }
    if args.pad != 0 || args.flags & ALLOC_MEM_FLAGS_USERPTR_BATCH != 0 {
        return refuse(Errno::EINVAL, Reason::BadFlags);
    }
    let ranges = range_list_of(process, args.ranges_ptr, args.num_ranges, args.total_size)?;
    super::memory::alloc(
        process,
        Request {
            va: args.va_addr,
            bytes: args.total_size,
            gpu_id: args.gpu_id,
            flags: args.flags,
            ranges: Some(ranges),
        },
    )
}

/// The ordinary ALLOC, with v3's flag or without.
pub(crate) fn alloc_one(process: &Arc<Process>, args: &AllocMemoryOfGpuArgs) -> Result<Allocated> {
    if args.size == 0 {
        return refuse(Errno::EINVAL, Reason::ZeroOrUnaligned);
    }
    let ranges = if args.flags & ALLOC_MEM_FLAGS_USERPTR_BATCH != 0 {
        if args.flags & ALLOC_MEM_FLAGS_USERPTR == 0 {
            return refuse(Errno::EOPNOTSUPP, Reason::BadFlags);
        }
        let mut header = UserptrRangesHeader::zeroed();
        let at = CpuVa(args.mmap_offset);
        process.mm().read(at, header.as_bytes_mut()).map_err(|e| Error { reason: Reason::BadPointer, ..e })?;
        if header.num_ranges == 0 || header.reserved != 0 {
            return refuse(Errno::EINVAL, Reason::BadFlags);
        }
        let list = args.mmap_offset.checked_add(size_of::<UserptrRangesHeader>() as u64);
        let list = list.ok_or(Error::new(Errno::EFAULT, Reason::BadPointer))?;
        Some(range_list_of(process, list, header.num_ranges, args.size)?)
    } else if args.flags & ALLOC_MEM_FLAGS_USERPTR != 0 {
        let start = if process.sabotage().has(Switch::Identity) { args.va_addr } else { args.mmap_offset };
        Some(super::memory::single_range(start, args.size)?)
    } else {
        None
    };
    super::memory::alloc(
        process,
        Request {
            va: args.va_addr,
            bytes: args.size,
            gpu_id: args.gpu_id,
            flags: args.flags & !ALLOC_MEM_FLAGS_USERPTR_BATCH,
            ranges,
        },
    )
}
