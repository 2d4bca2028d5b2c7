// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Batch userptr: many CPU ranges become one contiguous GPU range.
//!
//! Mechanism: range i appears at `va_addr` plus the sizes of the ranges before it, in the order of
//! the array. Two forms exist, neither of them upstream:
//!
//! * v2 (January 2026): its own command, [`ALLOC_MEMORY_OF_GPU_BATCH`], with
//!   [`AllocMemoryOfGpuBatchArgs`].
//! * v3 and v4 (February 2026): the ordinary ALLOC with flag USERPTR_BATCH (bit 22) beside USERPTR;
//!   `mmap_offset` points to a [`UserptrRangesHeader`] that the ranges follow.
//!
//! Limits: neither form may be probed by calling it. The v2 number 0x28 is the profiler's in Linux
//! 7.3 ([`super::command::PROFILER`]), and a kernel that does not know bit 22 maps the range list
//! itself as user memory. A client asks [`super::vkfd::QUERY_CAPS`] first, and a driver compares
//! the whole command word.

use super::call::{Forward, Known};
use super::command::TYPE;
use super::ioctl::Command;
use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// One CPU range. On 64-bit systems the layout is also that of `struct iovec` and of
    /// libhsakmt's `HsaMemoryRange`, so a VMM can pass its iovec array as it is.
    pub struct UserptrRange {
        /// CPU address, page aligned and not 0.
        pub start: u64,
        /// Bytes, a multiple of the page size and not 0.
        pub size: u64,
    }
}

pod! {
    /// Argument of `ALLOC_MEMORY_OF_GPU_BATCH` (v2).
    pub struct AllocMemoryOfGpuBatchArgs {
        /// In: first GPU address.
        pub va_addr: u64,
        /// In: bytes; the sum of the ranges' sizes.
        pub total_size: u64,
        /// Out: the BO's handle, for the ordinary MAP, UNMAP and FREE.
        pub handle: u64,
        /// In: user pointer to `num_ranges` [`UserptrRange`].
        pub ranges_ptr: u64,
        /// In: length of that array.
        pub num_ranges: u32,
        /// In: the GPU.
        pub gpu_id: u32,
        /// In: `ALLOC_MEM_FLAGS_*`, with USERPTR.
        pub flags: u32,
        /// Must be 0.
        pub pad: u32,
    }
}

pod! {
    /// What `mmap_offset` points to with flag USERPTR_BATCH (v3, v4); `num_ranges` [`UserptrRange`]
    /// follow it.
    pub struct UserptrRangesHeader {
        /// In: number of ranges.
        pub num_ranges: u32,
        /// Must be 0.
        pub reserved: u32,
    }
}

assert_layout! {
    UserptrRange: 16 { start: 0, size: 8 }
    AllocMemoryOfGpuBatchArgs: 48 {
        total_size: 8, handle: 16, ranges_ptr: 24, num_ranges: 32, gpu_id: 36, flags: 40, pad: 44,
    }
    UserptrRangesHeader: 8 { num_ranges: 0, reserved: 4 }
}

/// Allocate a batch (v2).
pub const ALLOC_MEMORY_OF_GPU_BATCH: Command = Command::iowr::<AllocMemoryOfGpuBatchArgs>(TYPE, 0x28);
const _: () = assert!(ALLOC_MEMORY_OF_GPU_BATCH.0 == 0xc030_4b28);

/// Its row. It is in no table, because its number is the profiler's: only the whole word finds it.
/// A driver in another process gets its ranges as pieces of memory, and not by the pointer.
pub const KNOWN: Known = Known {
    name: "ALLOC_MEMORY_OF_GPU_BATCH",
    command: ALLOC_MEMORY_OF_GPU_BATCH,
    since: 14,
    until: None,
    fields: AllocMemoryOfGpuBatchArgs::FIELDS,
    pointers: &[],
    forward: Forward::Yes,
};

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    #[test]
    fn only_the_whole_word_tells_batch_from_profiler() {
        assert_eq!(ALLOC_MEMORY_OF_GPU_BATCH.number(), command::PROFILER.number());
        assert!(ALLOC_MEMORY_OF_GPU_BATCH.same_call(command::PROFILER));
        assert_ne!(ALLOC_MEMORY_OF_GPU_BATCH, command::PROFILER);
    }
}
