// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The calls that make, change and end queues, with KFD's checks.
//!
//! Guarded by the process lock, except that a hardware queue is ended without it: that waits for
//! the queue.
//!
//! A queue's memory must be mapped on its GPU when the queue is made. That is the ring, both
//! pointers, and a compute queue's end-of-pipe buffer and save area. As in KFD, the driver looks
//! for it among the buffer objects first. Then it looks in SVM memory with permanent GPU entries
//! (GPU_ALWAYS_MAPPED), where ROCR has put the save area since 6.1. KFD also wants each to be a
//! whole object, and only the save area in SVM (since 6.12; before, it did not check). Here each
//! may be a part of an object, or in SVM, so that runtimes of both times work. Nothing is saved in
//! the save area, as waves are never saved.

use crate::base::addr::{CpuVa, GpuVa};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::gpuvm::page_table::VA_END;
use crate::gpuvm::vm::DOORBELL_BYTES;
use crate::os::{self, Arc};
use crate::process::Process;
use crate::queues::queue::{Queue, State};
use crate::sabotage::FailPoint;
use crate::seams::gpu::{QueueKind, QueueSpec};
use vkfd_uapi::queue as abi;

/// Bits of a mask of compute units that are looked at.
const MAX_CU_MASK: u32 = 1024;

/// The checks that creating and changing a queue have in common; the ring's size as it will be.
fn check_ring(base: u64, size: u32, percentage: u32, priority: u32) -> Result<u32> {
    // Bits 8 to 15 of the percentage say which die takes PM4.
    if percentage & 0xff > abi::MAX_QUEUE_PERCENTAGE || priority > abi::MAX_QUEUE_PRIORITY {
        return Err(Errno::EINVAL.into());
    }
    check_address(base)?;
    if size != 0 && !size.is_power_of_two() {
        return Err(Errno::EINVAL.into());
    }
    Ok(size.max(abi::MIN_QUEUE_RING_SIZE))
}

/// EFAULT for an address that no user has.
fn check_address(va: u64) -> Result {
    if va >= VA_END {
        return Err(Error::new(Errno::EFAULT, Reason::BadPointer));
    }
    Ok(())
}

const fn misfit<T>() -> Result<T> {
    Err(Error::new(Errno::EINVAL, Reason::NotMapped))
}

/// Creates a queue and fills in its number and doorbell.
pub(crate) fn create_queue(process: &Arc<Process>, args: &mut abi::CreateQueueArgs) -> Result {
    let AddressesOf { pointers, areas } = AddressesOf::new(args);
    args.ring_size = check_ring(args.ring_base_address, args.ring_size, args.queue_percentage, args.queue_priority)?;
    for va in pointers.iter().chain(areas.iter().map(|(va, _)| va)) {
        check_address(*va)?;
    }
    let kind = match args.queue_type {
        abi::QUEUE_TYPE_SDMA | abi::QUEUE_TYPE_SDMA_XGMI | abi::QUEUE_TYPE_SDMA_BY_ENG_ID => QueueKind::Sdma,
        abi::QUEUE_TYPE_COMPUTE_AQL => QueueKind::Aql,
        abi::QUEUE_TYPE_COMPUTE => QueueKind::Pm4,
        // KFD's answer, which is a number of the kernel's own.
        _ => return Err(Errno::ENOTSUPP.into()),
    };
    let device = process.kfd().device(args.gpu_id)?.clone();
    let unbound = |e: Error| Error { errno: Errno::ESRCH, ..e };
    let vm = process.vm(device.index()).map_err(unbound)?;
    if args.ring_base_address % 256 != 0 || pointers.iter().any(|p| p % 8 != 0) {
        return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
    }
    for va in pointers {
        check_mapped(process, device.index(), va, 8)?;
    }
    check_mapped(process, device.index(), args.ring_base_address, args.ring_size.into())?;
    if kind != QueueKind::Sdma {
        for (va, bytes) in areas.into_iter().filter(|(va, _)| *va != 0) {
            check_mapped(process, device.index(), va, bytes.max(1))?;
        }
    }
    let share = device.take_queue(process.user())?;
    let (number, doorbell) = {
        let mut inner = process.lock();
        let doorbell = inner.queues.doorbells.get_mut(device.index()).ok_or(Errno::EINVAL)?.reserve()?;
        let number = inner.queues.queues.reserve();
        if number.is_err() || u64::from(doorbell) * 8 >= DOORBELL_BYTES {
            if let Ok(number) = number {
                inner.queues.queues.remove(number);
            }
            inner.queues.give_doorbell(device.index(), doorbell);
            return Err(number.err().unwrap_or(Error::new(Errno::ENOSPC, Reason::None)));
        }
        (number?, doorbell)
    };
    vm.doorbells().write_u64(u64::from(doorbell) * 8, 0);
    let spec = QueueSpec {
        vmid: vm.vmid(),
        kind,
        ring: GpuVa(args.ring_base_address),
        ring_bytes: args.ring_size.into(),
        rptr: GpuVa(args.read_pointer_address),
        wptr: GpuVa(args.write_pointer_address),
        doorbells: vm.doorbells().clone(),
        doorbell: u64::from(doorbell) * 8,
    };
    let offset = vm.doorbells_mmap_offset();
    let hw = os::failpoint(FailPoint::Queue).and_then(|()| vm.gpu().add_queue(&spec));
    let mut inner = process.lock();
    match hw {
        Ok(hw) => {
            let (kind, ring, ring_bytes) = (args.queue_type, spec.ring, spec.ring_bytes);
            let queue =
                Queue { vm, hw, kind, doorbell, ring, ring_bytes, state: State::Running, gws: false, _share: share };
            inner.queues.queues.fill(number, queue);
            drop(inner);
            process.kfd().listing().queue_changed(process.number(), number);
            args.queue_id = number;
            args.doorbell_offset = offset | spec.doorbell;
            Ok(())
        }
        Err(e) => {
            inner.queues.queues.remove(number);
            inner.queues.give_doorbell(device.index(), doorbell);
            Err(e)
        }
    }
}

/// Whether `bytes` from `va` on are in one object that is mapped on GPU number `gpu`, or in SVM
/// memory that the GPU always has entries for. EINVAL if not.
fn check_mapped(process: &Arc<Process>, gpu: usize, va: u64, bytes: u64) -> Result {
    let end = va.checked_add(bytes).ok_or(Error::new(Errno::EINVAL, Reason::Wraps))?;
    let bo = {
        let inner = process.lock();
        match inner.gpu_va.first_overlap(va, va.saturating_add(1)) {
            Some((_, last, number)) if va != 0 && end <= last => inner.bos.get(number).cloned(),
            _ => None,
        }
    };
    match bo {
        Some(bo) if bo.mapped_gpus() & 1 << gpu != 0 => Ok(()),
        Some(_) => misfit(),
        None if process.svm_work().always_mapped(gpu, va, end)? => Ok(()),
        None => misfit(),
    }
}

/// Ends a queue. EINVAL when there is none.
pub(crate) fn destroy_queue(process: &Process, number: u32) -> Result {
    let queue = process.lock().queues.queues.remove(number).ok_or(Errno::EINVAL)?;
    process.kfd().listing().queue_changed(process.number(), number);
    queue.vm.gpu().remove_queue(queue.hw);
    let mut inner = process.lock();
    if let Some(doorbells) = inner.queues.doorbells.get_mut(queue.vm.gpu_index()) {
        doorbells.remove(queue.doorbell);
    }
    Ok(())
}

/// Changes a queue's ring, or turns it off (percentage or ring 0). EFAULT when there is no such
/// queue, or no ring there.
pub(crate) fn update_queue(process: &Arc<Process>, args: &abi::UpdateQueueArgs) -> Result {
    let base = args.ring_base_address;
    let ring_bytes = check_ring(base, args.ring_size, args.queue_percentage, args.queue_priority)?;
    let enabled = args.queue_percentage & 0xff > 0 && args.ring_size > 0 && base != 0;
    let gpu = {
        let inner = process.lock();
        let queue = inner.queues.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
        queue.vm.gpu_index()
    };
    if base != 0 {
        if base % 256 != 0 {
            return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
        }
        let fault = |e: Error| Error { errno: Errno::EFAULT, ..e };
        check_mapped(process, gpu, base, ring_bytes.into()).map_err(fault)?;
    }
    let (vm, hw, ring) = {
        let mut inner = process.lock();
        let queue = inner.queues.queues.get_mut(args.queue_id).ok_or(Errno::EFAULT)?;
        if enabled {
            queue.ring = GpuVa(base);
            queue.ring_bytes = ring_bytes.into();
        }
        if matches!(queue.state, State::Running | State::Off) {
            queue.state = if enabled { State::Running } else { State::Off };
        }
        (queue.vm.clone(), queue.hw, (queue.ring, queue.ring_bytes))
    };
    vm.gpu().update_queue(hw, ring.0, ring.1, enabled)
}

/// Which compute units a queue may use; there are none to choose from. EFAULT when there is no
/// such queue.
pub(crate) fn set_cu_mask(process: &Process, args: &abi::SetCuMaskArgs) -> Result {
    if args.num_cu_mask == 0 || args.num_cu_mask % 32 != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut mask = [0; MAX_CU_MASK as usize / 8];
    let bits = args.num_cu_mask.min(MAX_CU_MASK);
    let mask = mask.get_mut(..bits as usize / 8).ok_or(Errno::EINVAL)?;
    process.mm().read(CpuVa(args.cu_mask_ptr), mask).map_err(|e| Error { reason: Reason::BadPointer, ..e })?;
    let inner = process.lock();
    let queue = inner.queues.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
    // From gfx10 on compute units come in pairs.
    let pairs = queue.vm.device().properties().gfx_target_version >= 100_000;
    let half = |byte: &u8| (byte ^ byte >> 1) & 0x55 != 0;
    if pairs && mask.iter().any(half) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// What has been saved of a queue's waves. EFAULT when there is no such queue, EINVAL as on a
/// GPU that cannot save waves.
pub(crate) fn wave_state(process: &Process, args: &abi::GetQueueWaveStateArgs) -> Result {
    process.lock().queues.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
    Err(Errno::EINVAL.into())
}

/// Global wave sync for a queue, or no longer. EINVAL when there is no such queue or nothing to
/// give back, EBUSY when a queue of the process has the GPU's already.
pub(crate) fn alloc_gws(process: &Process, args: &mut abi::AllocQueueGwsArgs) -> Result {
    let mut inner = process.lock();
    let gpu = inner.queues.queues.get(args.queue_id).ok_or(Errno::EINVAL)?.vm.device().id();
    let taken = inner.queues.queues.iter().any(|(_, queue)| queue.gws && queue.vm.device().id() == gpu);
    // As in KFD also where the call fails from here on.
    args.first_gws = 0;
    match (args.num_gws, taken) {
        (0, false) => return Err(Errno::EINVAL.into()),
        (1.., true) => return Err(Errno::EBUSY.into()),
        _ => {}
    }
    let queue = inner.queues.queues.get_mut(args.queue_id).ok_or(Errno::EINVAL)?;
    queue.gws = args.num_gws != 0;
    Ok(())
}

/// Addresses in a CREATE_QUEUE, other than the ring.
struct AddressesOf {
    pointers: [u64; 2],
    /// With their sizes; address 0 where there is none.
    areas: [(u64, u64); 2],
}

impl AddressesOf {
    fn new(args: &abi::CreateQueueArgs) -> Self {
        Self {
            pointers: [args.read_pointer_address, args.write_pointer_address],
            areas: [
                (args.eop_buffer_address, args.eop_buffer_size),
                (args.ctx_save_restore_address, args.ctx_save_restore_size.into()),
            ],
        }
    }
}
