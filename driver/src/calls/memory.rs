// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocating, freeing, mapping and unmapping buffer objects: KFD's checks, in KFD's order, with
//! KFD's errors.
//!
//! An allocation first validates everything, then enters the object under the process lock (which
//! also decides conflicts), then builds it without the lock, and makes it visible last. Whatever
//! fails takes all of it back.

use crate::base::addr::{CpuVa, GpuSpan, GpuVa, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::bo::{Backing, Bo, Origin, Spec, VramMemory};
use crate::device::limit::{Charge, ChargedDma, Limit};
use crate::device::Device;
use crate::gpuvm::page_table::VA_END;
use crate::gpuvm::vm::DOORBELL_BYTES;
use crate::machine::kfd::MAX_GPUS;
use crate::os::{self, Arc};
use crate::process::offsets::Shown;
use crate::process::{Inner, Process};
use crate::sabotage::{FailPoint, Switch};
use crate::seams::address_space::Access;
use crate::userptr::range_set::{Builder, RangeSet};
use crate::userptr::window::Windows;
use crate::userptr::Userptr;
use vkfd_uapi::memory as abi;
use vkfd_uapi::pod::slice_as_bytes_mut;

/// What is to be allocated.
pub struct Request {
    /// First GPU address.
    pub va: u64,
    pub bytes: u64,
    /// Which GPU.
    pub gpu_id: u32,
    /// `ALLOC_MEM_FLAGS_*`.
    pub flags: u32,
    /// The caller's memory, for userptr objects.
    pub ranges: Option<RangeSet>,
}

/// What was allocated.
pub struct Allocated {
    /// The handle.
    pub handle: u64,
    /// Where the client can mmap it; 0 where it cannot.
    pub mmap_offset: u64,
}

/// The GPU that a handle has in its upper half.
fn handle_gpu(handle: u64) -> u32 {
    u32::try_from(handle >> 32).unwrap_or(u32::MAX)
}

const fn refuse<T>(errno: Errno, reason: Reason) -> Result<T> {
    Err(Error::new(errno, reason))
}

/// A single range as a set of one: CPU address 0 is EINVAL, as KFD has it.
pub(crate) fn single_range(start: u64, bytes: u64) -> Result<RangeSet> {
    let mut builder = Builder::new(1)?;
    builder.push(CpuVa(start), bytes)?;
    builder.build()
}

pub(crate) fn alloc(process: &Arc<Process>, request: Request) -> Result<Allocated> {
    let Request { va, bytes, gpu_id, flags, ranges } = request;
    let kind = flags & abi::ALLOC_MEM_TYPES;
    let known = flags & !abi::ALLOC_MEM_FLAGS_ALL == 0;
    if !known || !kind.is_power_of_two() || (ranges.is_some() != (kind == abi::ALLOC_MEM_FLAGS_USERPTR)) {
        return refuse(Errno::EINVAL, Reason::BadFlags);
    }
    // Memory comes in pages, and the client gets what it asks for and the rest of the last one.
    let whole = matches!(kind, abi::ALLOC_MEM_FLAGS_VRAM | abi::ALLOC_MEM_FLAGS_GTT) && bytes != 0;
    let rounded = if whole { bytes.checked_next_multiple_of(PAGE) } else { Some(bytes) };
    let Some(span) = rounded.and_then(|bytes| GpuSpan::new(GpuVa(va), bytes)) else {
        return refuse(Errno::EINVAL, Reason::Wraps);
    };
    // Memory of the driver may have no GPU addresses; an import of its file can be mapped.
    if va == 0 && !whole || !span.is_whole_pages() {
        return refuse(Errno::EINVAL, Reason::ZeroOrUnaligned);
    }
    if span.end().0 > VA_END {
        return refuse(Errno::EINVAL, Reason::OutOfAperture);
    }
    process.svm_work().sweep()?;
    check_svm(process, &process.lock(), span, ranges.as_ref())?;
    let device = process.kfd().device(gpu_id)?.clone();
    process.vm(device.index())?;
    if flags & abi::ALLOC_MEM_FLAGS_AQL_QUEUE_MEM != 0 {
        return refuse(Errno::EINVAL, Reason::BadFlags);
    }
    match ranges {
        Some(ranges) => alloc_userptr(process, &device, span, flags, ranges),
        None => alloc_backed(process, &device, span, flags, kind),
    }
}

/// Neither the GPU addresses nor any CPU range may be an SVM range's. O(ranges log SVM ranges)
/// where there are any.
fn check_svm(process: &Process, _: &Inner, span: GpuSpan, ranges: Option<&RangeSet>) -> Result {
    if span.start().0 != 0 && process.svm().conflict(process.mm(), span.start().0, span.end().0) {
        return refuse(Errno::EADDRINUSE, Reason::GpuRangeBusy);
    }
    let Some(ranges) = ranges else { return Ok(()) };
    let hull = ranges.hull();
    if !process.svm().conflict(process.mm(), hull.start().0, hull.end().0) {
        return Ok(());
    }
    for number in 0..ranges.len() {
        let cpu = ranges.span(number);
        if process.svm().conflict(process.mm(), cpu.start().0, cpu.end().0) {
            return Err(Error::new(Errno::EADDRINUSE, Reason::CpuRangeIsSvm).at(ranges.at(number)));
        }
    }
    Ok(())
}

/// Enters an object's addresses. EADDRINUSE where they are taken, ESRCH when the process has
/// ended; a failure enters nothing.
fn enter(process: &Process, bo: &Arc<Bo>) -> Result {
    let mut inner = process.lock();
    let inner = &mut *inner;
    inner.check_open()?;
    let (number, span) = (bo.number(), bo.span());
    check_svm(process, inner, span, bo.userptr().map(|o| o.ranges()))?;
    // One without addresses takes none.
    let (start, end) = if span.start().0 == 0 { (0, 0) } else { (span.start().0, span.end().0) };
    if start < end {
        if inner.gpu_va.first_overlap(start, end).is_some() {
            return refuse(Errno::EADDRINUSE, Reason::GpuRangeBusy);
        }
        inner.gpu_va.insert(start, end, number)?;
    }
    let hull = bo.userptr().map(|o| o.ranges().hull());
    if let Some(hull) = hull {
        if let Err(e) = inner.cpu_hulls.insert(hull.start().0, hull.end().0, number) {
            inner.gpu_va.remove(start, end, &number);
            return Err(e);
        }
    }
    if bo.mmap_offset() != 0 {
        if let Err(e) = process.offsets().show(bo.mmap_offset(), span.bytes(), Shown::Object(bo.clone())) {
            inner.gpu_va.remove(start, end, &number);
            return Err(e);
        }
    }
    inner.bos.fill(number, bo.clone());
    Ok(())
}

pub(crate) fn reserve_number(process: &Process) -> Result<u32> {
    process.lock().bos.reserve()
}

/// Enters and publishes an object that needs nothing more; otherwise its number is free again.
pub(crate) fn publish(process: &Process, number: u32, bo: Result<Arc<Bo>>) -> Result<Arc<Bo>> {
    let entered = bo.and_then(|bo| enter(process, &bo).map(|()| bo));
    if entered.is_err() {
        process.lock().bos.remove(number);
    }
    entered
}

fn alloc_backed(
    process: &Arc<Process>,
    device: &Arc<Device>,
    span: GpuSpan,
    flags: u32,
    kind: u32,
) -> Result<Allocated> {
    let gpus = process.gpu_count();
    let mut mmap_offset = 0;
    let (backing, returned_offset) = match kind {
        abi::ALLOC_MEM_FLAGS_VRAM => {
            // Files that have been closed may have had some.
            if device.vram().available() < span.bytes() {
                process.kfd().files().forget_closed();
            }
            let memory = VramMemory::new(device, span.pages())?;
            mmap_offset = memory.mmap_offset().unwrap_or_else(|| process.offsets().take(span.bytes()));
            (Backing::Vram(memory), mmap_offset)
        }
        abi::ALLOC_MEM_FLAGS_GTT => {
            let charge = charge(process, process.kfd().limit(), span.bytes())?;
            os::failpoint(FailPoint::Dma)?;
            let memory = ChargedDma::charged(device.gpu().alloc_dma(span.bytes())?, charge)?;
            mmap_offset = memory.mmap_offset().unwrap_or_else(|| process.offsets().take(span.bytes()));
            (Backing::Dma(memory), mmap_offset)
        }
        abi::ALLOC_MEM_FLAGS_DOORBELL => {
            if span.bytes() != DOORBELL_BYTES {
                return refuse(Errno::EINVAL, Reason::ZeroOrUnaligned);
            }
            let vm = process.vm(device.index())?;
            (Backing::Dma(vm.doorbells().clone()), vm.doorbells_mmap_offset())
        }
        _ => {
            if span.bytes() != PAGE {
                return refuse(Errno::EINVAL, Reason::ZeroOrUnaligned);
            }
            let vm = process.vm(device.index())?;
            (Backing::Dma(vm.mmio().clone()), vm.mmio_mmap_offset())
        }
    };
    let number = reserve_number(process)?;
    let device = device.clone();
    let origin = Origin::Allocated;
    let bo =
        Bo::new(Spec { number, device, span, flags, mmap_offset, backing, first_page: 0, charge: None, gpus, origin });
    let bo = publish(process, number, bo)?;
    bo.set_ready();
    Ok(Allocated { handle: bo.handle(), mmap_offset: returned_offset })
}

/// Charges `bytes`, also what files that have been closed have had.
fn charge(process: &Process, account: &Arc<Limit>, bytes: u64) -> Result<Charge> {
    account.charge(bytes).or_else(|_| {
        process.kfd().files().forget_closed();
        account.charge(bytes)
    })
}

fn alloc_userptr(
    process: &Arc<Process>,
    device: &Arc<Device>,
    span: GpuSpan,
    flags: u32,
    ranges: RangeSet,
) -> Result<Allocated> {
    let charge = charge(process, process.registered(), span.bytes())?;
    let access = if flags & abi::ALLOC_MEM_FLAGS_WRITABLE != 0 { Access::Write } else { Access::Read };
    let executable = flags & abi::ALLOC_MEM_FLAGS_EXECUTABLE != 0;
    let number = reserve_number(process)?;
    let owner = process.as_userptr_owner();
    let userptr = owner.and_then(|owner| Userptr::new(owner, number, span.start(), access, executable, ranges));
    let bo = userptr.and_then(|object| {
        let backing = Backing::Userptr(object);
        let (device, gpus) = (device.clone(), process.gpu_count());
        let charge = Some(charge);
        let origin = Origin::Allocated;
        Bo::new(Spec { number, device, span, flags, mmap_offset: 0, backing, first_page: 0, charge, gpus, origin })
    });
    let bo = publish(process, number, bo)?;
    match build_userptr(process, &bo) {
        Ok(()) => {
            bo.set_ready();
            Ok(Allocated { handle: bo.handle(), mmap_offset: 0 })
        }
        Err(e) => {
            let _ = bo.free();
            process.forget(&bo);
            Err(e)
        }
    }
}

fn build_userptr(process: &Process, bo: &Arc<Bo>) -> Result {
    let Some(object) = bo.userptr() else { return Ok(()) };
    let objects = process.lock().cpu_hulls.len();
    process.eviction().make_room(objects)?;
    let client: Arc<dyn crate::seams::address_space::Invalidate> = object.clone();
    os::failpoint(FailPoint::Watch)?;
    let windows = Windows::new(process.mm(), object.ranges(), &client, process.window_policy())?;
    bo.register(windows, process.deadline())
}

/// Frees an object. EBUSY while it is mapped, EPERM if it is the signal page, EINVAL for a
/// handle that is none.
pub(crate) fn free(process: &Process, handle: u64) -> Result {
    let bo = process.bo(handle)?;
    if process.lock().signal_page == Some(handle) {
        return Err(Errno::EPERM.into());
    }
    bo.free()?;
    process.forget(&bo);
    Ok(())
}

/// Copies a list of `gpu_id`s in, once, so that it does not change afterwards. EFAULT before
/// anything has happened, EINVAL for more than there can be. Without an allocation, because
/// UNMAP must not fail for want of memory.
fn device_ids(process: &Process, array: u64, count: u32) -> Result<[u32; MAX_GPUS]> {
    let mut ids = [0; MAX_GPUS];
    let wanted = ids.get_mut(..count as usize).ok_or(Errno::EINVAL)?;
    let bad_pointer = |e: Error| Error { reason: Reason::BadPointer, ..e };
    process.mm().read(CpuVa(array), slice_as_bytes_mut(wanted)).map_err(bad_pointer)?;
    Ok(ids)
}

/// Maps or unmaps an object on the listed GPUs from number `done` on, which counts up with each
/// success, so that a call can be resumed. EINVAL for a list that is longer than any machine
/// has GPUs: it would name one twice. EINVAL also for an unmap from a GPU without the object.
pub(crate) fn map(process: &Process, handle: u64, array: u64, count: u32, done: &mut u32, map: bool) -> Result {
    if count == 0 || *done > count {
        return Err(Errno::EINVAL.into());
    }
    let ids = device_ids(process, array, count)?;
    let device = process.kfd().device(handle_gpu(handle))?;
    if map {
        process.vm(device.index())?;
    }
    // Other calls say EINVAL to a number that is none.
    let bo = process.bo(handle).map_err(|error| Error { errno: Errno::ENOMEM, ..error })?;
    for id in ids.iter().take(count as usize).skip(*done as usize) {
        os::interrupted()?;
        let device = process.kfd().device(*id)?;
        if map {
            let vm = process.vm(device.index())?;
            bo.map_with_room(&vm, process.deadline())?;
        } else if !bo.unmap(device.index())? {
            return refuse(Errno::EINVAL, Reason::BadGpu);
        }
        *done = done.saturating_add(1);
    }
    Ok(())
}

/// VRAM that is left on a GPU for buffer objects. To the page; KFD rounds down to 2 MiB. SVM
/// memory gives way to them, so it does not count as used: KFD, too, subtracts only what
/// allocations have reserved (`amdgpu_amdkfd_get_available_memory`), and ranges that migrate
/// reserve nothing.
pub(crate) fn available_memory(process: &Process, gpu_id: u32) -> Result<u64> {
    process.kfd().files().forget_closed();
    let device = process.kfd().device(gpu_id)?;
    if process.sabotage().has(Switch::CountedRanges) {
        return Ok(device.vram().available());
    }
    Ok(device.most_room().saturating_mul(PAGE))
}
