// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registering CPU memory: the ladder from one batch call to one call per range.
//!
//! Mechanism: the list is checked here first, so that errors name the range also on a KFD that does
//! not. Then the best form that the capabilities name is used: the batch command, the batch flag,
//! or an ordinary ALLOC for each range at consecutive addresses of one reserved window. The batch
//! forms are never tried to find out (see [`crate::caps`]).
//!
//! Limits: an ALLOC that finds the memory busy (EAGAIN) is repeated for at most [`BUSY_LIMIT`].

use std::ffi::c_void;
use std::time::{Duration, Instant};

use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_COHERENT, ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_NO_SUBSTITUTE,
    ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_USERPTR_BATCH, ALLOC_MEM_FLAGS_WRITABLE,
};

use crate::address::{CpuVa, GpuId, GpuVa, Handle, PAGE};
use crate::buffer::{flag, Bo, Buffer, BufferKind};
use crate::call::{call_name, name_range, range_error};
use crate::client::{Client, GpuSet};
use crate::error::{ClientError, Errno, RangeError, RangeFault, Result};
use crate::ranges::AsRanges;
use crate::va::{Reservation, HUGE};

/// How long an ALLOC is repeated that finds the memory busy.
pub const BUSY_LIMIT: Duration = Duration::from_secs(1);

/// Which form of registration to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The best that the driver says it has.
    #[default]
    Auto,
    /// The batch command (v2).
    Batch,
    /// The batch flag of ALLOC (v3 and v4); copies the list once to put its header before it.
    BatchFlag,
    /// One ALLOC and one MAP per range; works on every KFD.
    PerRange,
}

/// How memory is registered.
#[derive(Clone, Debug)]
pub struct RegisterOptions {
    /// The GPU may write. Without it read-only memory can be registered, if the driver can do that.
    pub writable: bool,
    /// The GPU may execute.
    pub executable: bool,
    /// Fine-grained coherence with the CPU.
    pub coherent: bool,
    /// GPUs to map it on, the first of which the BO is made for.
    pub gpus: GpuSet,
    /// Which form to use.
    pub strategy: Strategy,
    /// Map it at once; otherwise [`Buffer::map`] does.
    pub map: bool,
    /// The GPU address, for programs that manage GPU addresses themselves (a VMM whose guest
    /// chooses them). It need not be free on the CPU. `None` takes one that is reserved in the
    /// CPU's address space too.
    pub at: Option<GpuVa>,
}

impl Default for RegisterOptions {
    fn default() -> Self {
        Self {
            writable: true,
            executable: false,
            coherent: false,
            gpus: GpuSet::All,
            strategy: Strategy::Auto,
            map: true,
            at: None,
        }
    }
}

impl Client {
    /// Registers one piece of CPU memory, whole pages.
    ///
    /// # Errors
    ///
    /// As [`Client::register_ranges`].
    ///
    /// # Safety
    ///
    /// As [`Client::register_ranges`].
    pub unsafe fn register(&self, ptr: *mut c_void, len: u64, options: &RegisterOptions) -> Result<Buffer> {
        let range = [UserptrRange { start: CpuVa::of(ptr).0, size: len }];
        // SAFETY: the caller promises for the one range what the list's caller promises for each.
        unsafe { self.register_ranges(&range, options) }
    }

    /// Registers CPU ranges, whole pages each, as one contiguous GPU range in the order of the
    /// list. Pages are not pinned: the CPU may move, swap or unmap them, and the driver follows.
    /// Ranges may overlap. Linear in the number of ranges.
    ///
    /// # Errors
    ///
    /// [`ClientError::Range`] names the range at fault; nothing is left behind.
    ///
    /// # Safety
    ///
    /// Until the buffer is gone, its GPUs may read the memory at any time, and write it unless it
    /// is registered read-only. While submitted work touches the memory, no Rust reference to it
    /// exists. Other threads access it only by atomic or volatile operations or not at all. Memory
    /// that is mapped at the same addresses later counts too.
    pub unsafe fn register_ranges<R: AsRanges + ?Sized>(
        &self,
        ranges: &R,
        options: &RegisterOptions,
    ) -> Result<Buffer> {
        let ranges = ranges.as_ranges();
        let strategy = self.choose(options.strategy)?;
        let gpus = self.resolve(&options.gpus)?;
        let call = match strategy {
            Strategy::Batch => call_name(ALLOC_MEMORY_OF_GPU_BATCH),
            _ => call_name(command::ALLOC_MEMORY_OF_GPU),
        };
        let total = check(ranges).map_err(|range| ClientError::Range { call, range })?;
        self.check_limits(ranges.len(), total, strategy)?;
        let reservation = match options.at {
            Some(va) => Reservation::of_caller(va, total, &self.aperture())?,
            None => Reservation::placed(total, Some(best_offset(ranges)), &self.aperture())?,
        };
        let flags = ALLOC_MEM_FLAGS_USERPTR
            | ALLOC_MEM_FLAGS_NO_SUBSTITUTE
            | flag(options.writable, ALLOC_MEM_FLAGS_WRITABLE)
            | flag(options.executable, ALLOC_MEM_FLAGS_EXECUTABLE)
            | flag(options.coherent, ALLOC_MEM_FLAGS_COHERENT);
        let request = Request { client: self, gpu: gpus[0], flags, va: reservation.gpu_va(), total };
        let buffer = match strategy {
            Strategy::Batch => {
                let bo = request.batch(ranges)?;
                Buffer::new(self, BufferKind::Userptr, total, vec![bo], reservation)
            }
            Strategy::BatchFlag => {
                let bo = request.batch_flag(ranges)?;
                Buffer::new(self, BufferKind::Userptr, total, vec![bo], reservation)
            }
            Strategy::PerRange | Strategy::Auto => request.per_range(ranges, reservation)?,
        }
        .with_ranges(ranges);
        if options.map {
            buffer.map_on(&gpus)?;
        }
        Ok(buffer)
    }

    /// The form to use: never one that the capabilities do not name.
    fn choose(&self, strategy: Strategy) -> Result<Strategy> {
        let caps = self.caps();
        match strategy {
            Strategy::Auto if caps.batch => Ok(Strategy::Batch),
            Strategy::Auto if caps.batch_flag => Ok(Strategy::BatchFlag),
            Strategy::Auto => Ok(Strategy::PerRange),
            Strategy::Batch if !caps.batch => {
                Err(ClientError::Unsupported("this KFD does not say that it has the batch command".into()))
            }
            Strategy::BatchFlag if !caps.batch_flag => {
                Err(ClientError::Unsupported("this KFD does not say that it has the batch flag".into()))
            }
            chosen => Ok(chosen),
        }
    }

    fn check_limits(&self, count: usize, total: u64, strategy: Strategy) -> Result {
        let caps = self.caps();
        let batch = matches!(strategy, Strategy::Batch | Strategy::BatchFlag);
        let over = |limit: u64, n: u64| limit != 0 && n > limit;
        if batch && over(caps.max_ranges, u64::try_from(count).unwrap_or(u64::MAX)) {
            let limit = caps.max_ranges;
            return Err(ClientError::Invalid(format!(
                "{count} ranges are more than the {limit} that one batch may have: split the list"
            )));
        }
        if total >= 1 << 47 {
            return Err(ClientError::Invalid(format!("{total:#x} bytes are more than a GPU address space has")));
        }
        Ok(())
    }
}

/// Where in 2 MiB the GPU range should begin, so that the longest range lies there as its memory
/// does: only then can neighbouring pages be translated as one.
fn best_offset(ranges: &[UserptrRange]) -> u64 {
    let mut at = 0u64;
    let mut best = (0, 0);
    for range in ranges {
        if range.size > best.0 {
            best = (range.size, range.start.wrapping_sub(at) % HUGE);
        }
        at = at.wrapping_add(range.size);
    }
    best.1
}

/// Checks a list and adds its sizes up.
pub(crate) fn check(ranges: &[UserptrRange]) -> std::result::Result<u64, RangeError> {
    let mut total = 0_u64;
    for (i, range) in ranges.iter().enumerate() {
        let unaligned = |n: u64| n == 0 || n % PAGE != 0;
        let fault = if unaligned(range.start) || unaligned(range.size) {
            RangeFault::ZeroOrUnaligned
        } else if let (Some(_), Some(sum)) = (range.start.checked_add(range.size), total.checked_add(range.size)) {
            total = sum;
            continue;
        } else {
            RangeFault::Wraps
        };
        return Err(range_error(i, (CpuVa(range.start), range.size), fault, Errno::INVAL));
    }
    if total == 0 {
        // The list is empty: the position after its end is missing.
        return Err(range_error(0, (CpuVa(0), 0), RangeFault::ZeroOrUnaligned, Errno::INVAL));
    }
    Ok(total)
}

/// What the forms have in common.
struct Request<'a> {
    client: &'a Client,
    gpu: GpuId,
    flags: u32,
    va: GpuVa,
    total: u64,
}

impl Request<'_> {
    fn batch(&self, ranges: &[UserptrRange]) -> Result<Bo> {
        let mut args = AllocMemoryOfGpuBatchArgs {
            va_addr: self.va.0,
            total_size: self.total,
            handle: 0,
            ranges_ptr: CpuVa::of(ranges.as_ptr()).0,
            num_ranges: count(ranges)?,
            gpu_id: self.gpu.0,
            flags: self.flags,
            pad: 0,
        };
        while_busy(|| self.client.ioctl(ALLOC_MEMORY_OF_GPU_BATCH, &mut args))
            .map_err(|errno| self.client.memory_error(ALLOC_MEMORY_OF_GPU_BATCH, errno))?;
        Ok(Bo { handle: Handle(args.handle), range: None })
    }

    fn batch_flag(&self, ranges: &[UserptrRange]) -> Result<Bo> {
        // The header (two u32, the second 0) and the ranges, as 64-bit words.
        let mut list = Vec::with_capacity(1 + 2 * ranges.len());
        list.push(u64::from_ne_bytes({
            let n = count(ranges)?.to_ne_bytes();
            [n[0], n[1], n[2], n[3], 0, 0, 0, 0]
        }));
        list.extend(ranges.iter().flat_map(|range| [range.start, range.size]));
        let mut args = self.alloc_args(0, self.total, CpuVa::of(list.as_ptr()));
        args.flags |= ALLOC_MEM_FLAGS_USERPTR_BATCH;
        while_busy(|| self.client.ioctl(command::ALLOC_MEMORY_OF_GPU, &mut args))
            .map_err(|errno| self.client.memory_error(command::ALLOC_MEMORY_OF_GPU, errno))?;
        Ok(Bo { handle: Handle(args.handle), range: None })
    }

    fn per_range(&self, ranges: &[UserptrRange], reservation: Reservation) -> Result<Buffer> {
        let mut bos: Vec<Bo> = Vec::with_capacity(ranges.len());
        let mut offset = 0;
        for (i, range) in ranges.iter().enumerate() {
            let piece = (CpuVa(range.start), range.size);
            let mut args = self.alloc_args(offset, range.size, piece.0);
            let cpu = args.mmap_offset;
            let allocated = while_busy(|| {
                // A failed call may have overwritten its in-and-out field.
                args.mmap_offset = cpu;
                self.client.ioctl(command::ALLOC_MEMORY_OF_GPU, &mut args)
            });
            if let Err(errno) = allocated {
                let error = self.client.memory_error(command::ALLOC_MEMORY_OF_GPU, errno);
                if !bos.is_empty() {
                    // Frees the BOs made so far, in reverse, and then gives the addresses back.
                    drop(Buffer::new(self.client, BufferKind::Userptr, self.total, bos, reservation));
                }
                return Err(name_range(error, i, Some(piece)));
            }
            bos.push(Bo { handle: Handle(args.handle), range: Some(piece) });
            offset += range.size;
        }
        Ok(Buffer::new(self.client, BufferKind::Userptr, self.total, bos, reservation))
    }

    fn alloc_args(&self, offset: u64, bytes: u64, cpu: CpuVa) -> AllocMemoryOfGpuArgs {
        AllocMemoryOfGpuArgs {
            va_addr: self.va.offset(offset).0,
            size: bytes,
            handle: 0,
            mmap_offset: cpu.0,
            gpu_id: self.gpu.0,
            flags: self.flags,
        }
    }
}

fn count(ranges: &[UserptrRange]) -> Result<u32> {
    u32::try_from(ranges.len()).map_err(|_| ClientError::Invalid("more than 2^32 ranges: split the list".into()))
}

/// Repeats a call that fails with EAGAIN, with growing pauses.
fn while_busy(mut call: impl FnMut() -> std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        match call() {
            Err(Errno::AGAIN) if start.elapsed() + pause < BUSY_LIMIT => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            result => return result,
        }
    }
}
