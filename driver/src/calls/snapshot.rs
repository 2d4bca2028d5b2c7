// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's state as its client can read it: counters, objects, ranges, and the entries its GPUs
//! walk.
//!
//! Lists are copied out a step at a time, with no lock held over the copy. Each entry is true at
//! its time, and the list need not be of one moment. O(entries asked for), at most `MAX_ITEMS`,
//! plus finding where to begin; a call looks at signals between steps.

use crate::base::addr::{GpuVa, PAGE};
use crate::base::errno::{Errno, Result};
use crate::buffers::bo::{Backing, Bo};
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc};
use crate::process::Process;
use crate::userptr::Status;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd as abi;

/// Most records in one call: as many as a batch may have ranges. What comes next can be asked for
/// by the next call.
const MAX_ITEMS: u32 = 1 << 20;

/// The SNAPSHOT call.
pub(crate) fn snapshot(process: &Arc<Process>, args: &mut abi::SnapshotArgs) -> Result {
    if args.capacity > MAX_ITEMS {
        return Err(Errno::EINVAL.into());
    }
    match args.op {
        abi::SNAPSHOT_PROCESS => process.copy_out_one(args, &info(process)?),
        abi::SNAPSHOT_BOS => snapshot_bos(process, args),
        abi::SNAPSHOT_RANGES => snapshot_ranges(process, args),
        abi::SNAPSHOT_PAGES => snapshot_pages(process, args),
        abi::SNAPSHOT_QUEUES => snapshot_queues(process, args),
        abi::SNAPSHOT_SVM => process.copy_out_one(args, &process.svm_work().info()?),
        abi::SNAPSHOT_SVM_RANGES => process.svm_work().copy_out_ranges(args),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn snapshot_bos(process: &Process, args: &mut abi::SnapshotArgs) -> Result {
    args.total = process.lock().bos.len() as u64;
    // The cursor is the table's number, so that a walk does not slow down with earlier entries.
    let mut number = args.index;
    let result = process.copy_out(args, |_| {
        let Some((at, bo)) = process.bo_from(number) else { return Ok(None) };
        number = at.saturating_add(1);
        Ok(Some(bo_info(&bo)))
    });
    args.index = number;
    result
}

fn snapshot_queues(process: &Process, args: &mut abi::SnapshotArgs) -> Result {
    args.total = process.lock().queues.len() as u64;
    let mut number = args.index;
    let result = process.copy_out(args, |_| {
        let next = process.lock().queues.info_from(number);
        Ok(next.map(|(at, info)| {
            number = at.saturating_add(1);
            info
        }))
    });
    args.index = number;
    result
}

fn snapshot_ranges(process: &Process, args: &mut abi::SnapshotArgs) -> Result {
    let bo = process.bo(args.handle)?;
    let object = bo.userptr().ok_or(Errno::EINVAL)?;
    let ranges = object.ranges();
    args.total = ranges.len() as u64;
    let first = args.index as usize;
    process.copy_out(args, |i| {
        let range = usize::try_from(i).ok().and_then(|i| first.checked_add(i));
        let Some(range) = range.filter(|range| *range < ranges.len()) else {
            return Ok(None);
        };
        let (generation, status) = {
            let state = object.lock();
            (state.range(range).0, state.shown(range))
        };
        let span = ranges.span(range);
        Ok(Some(abi::RangeInfo {
            cpu_start: span.start().0,
            size: span.bytes(),
            gpu_va: ranges.place(range).0.saturating_mul(PAGE).saturating_add(object.va().0),
            generation: generation.into(),
            state: match status {
                Status::Invalid | Status::Filling => abi::RANGE_INVALID,
                Status::Valid => abi::RANGE_VALID,
                Status::Gone => abi::RANGE_GONE,
                Status::Denied => abi::RANGE_DENIED,
            },
            pad: 0,
        }))
    })
}

/// Raw leaf entries as GPU number `index` finds them by walking from its root, one per page
/// from GPU address `handle`.
fn snapshot_pages(process: &Process, args: &mut abi::SnapshotArgs) -> Result {
    let vm = process.vm(args.index as usize)?;
    let start = args.handle;
    args.total = args.capacity.into();
    process.copy_out(args, |i| {
        let va = i.checked_mul(PAGE).and_then(|o| o.checked_add(start));
        // There is nothing beyond what tables can say.
        Ok(va.filter(|va| *va < VA_END).map(|va| vm.entry_at(GpuVa(va))))
    })
}

fn info(process: &Process) -> Result<abi::ProcessInfo> {
    let mut info = abi::ProcessInfo::zeroed();
    let mut number = 0;
    loop {
        os::interrupted()?;
        let Some((at, bo)) = process.bo_from(number) else { break };
        number = at.saturating_add(1);
        let bo = bo_info(&bo);
        info.bos = info.bos.saturating_add(1);
        match bo.kind {
            abi::BO_KIND_VRAM => info.vram_bytes = info.vram_bytes.saturating_add(bo.size),
            abi::BO_KIND_GTT => info.gtt_bytes = info.gtt_bytes.saturating_add(bo.size),
            abi::BO_KIND_USERPTR => {
                info.userptr_bos = info.userptr_bos.saturating_add(1);
                info.userptr_ranges = info.userptr_ranges.saturating_add(bo.ranges);
                info.userptr_bytes = info.userptr_bytes.saturating_add(bo.size);
                info.notifiers = info.notifiers.saturating_add(bo.windows);
            }
            _ => {}
        }
        info.driver_bytes = info.driver_bytes.saturating_add(bo.driver_bytes);
    }
    let inner = process.lock();
    info.queues = inner.queues.len() as u64;
    for vm in inner.vms.iter().flatten() {
        info.vms = info.vms.saturating_add(1);
        info.page_table_bytes = info.page_table_bytes.saturating_add(vm.table_bytes());
        info.tlb_flushes = info.tlb_flushes.saturating_add(vm.flushes());
    }
    let tables = [inner.bos.memory(), inner.gpu_va.memory(), inner.cpu_hulls.memory()];
    info.driver_bytes = tables.iter().fold(info.driver_bytes, |sum, bytes| sum.saturating_add(*bytes));
    drop(inner);
    info.notifiers = info.notifiers.saturating_add(process.svm().window_count() as u64);
    info.driver_bytes = info.driver_bytes.saturating_add(process.svm().memory());
    info.driver_bytes = info.driver_bytes.saturating_add(process.eviction().memory());
    info.driver_bytes = info.driver_bytes.saturating_add(process.offsets().memory());
    info.events = process.events().len() as u64;
    let counters = process.counters();
    // Under the lock that stops and resumes, so that counters and state are of one moment.
    let eviction = process.eviction().lock();
    info.evicted = eviction.evicted().into();
    info.invalidations = counters.invalidations.get();
    info.ranges_invalidated = counters.ranges_invalidated.get();
    info.evictions = counters.evictions.get();
    info.restores = counters.restores.get();
    info.restore_runs = counters.restore_runs.get();
    info.ranges_restored = counters.ranges_restored.get();
    info.register_retries = counters.register_retries.get();
    info.gpu_faults = counters.gpu_faults.get();
    drop(eviction);
    info.xnack = process.xnack().into();
    Ok(info)
}

fn bo_info(bo: &Arc<Bo>) -> abi::BoInfo {
    let mut info = abi::BoInfo {
        handle: bo.handle(),
        gpu_va: bo.span().start().0,
        size: bo.span().bytes(),
        flags: bo.flags(),
        gpu_id: bo.device().id(),
        mapped_gpus: bo.mapped_gpus(),
        driver_bytes: bo.memory(),
        ..abi::BoInfo::zeroed()
    };
    info.kind = match bo.backing() {
        Backing::Vram(_) => abi::BO_KIND_VRAM,
        Backing::Userptr(object) => {
            let (invalid, missing) = object.lock().counts();
            info.ranges = object.ranges().len() as u64;
            info.invalid_ranges = invalid as u64;
            info.gone_ranges = missing as u64;
            info.windows = bo.window_count() as u64;
            abi::BO_KIND_USERPTR
        }
        Backing::Dma(_) if bo.flags() & vkfd_uapi::memory::ALLOC_MEM_FLAGS_GTT != 0 => abi::BO_KIND_GTT,
        Backing::Dma(_) if bo.flags() & vkfd_uapi::memory::ALLOC_MEM_FLAGS_DOORBELL != 0 => abi::BO_KIND_DOORBELL,
        Backing::Dma(_) => abi::BO_KIND_MMIO,
    };
    info
}
