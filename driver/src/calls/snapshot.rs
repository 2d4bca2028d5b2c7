// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's state as its client can read it: counters, objects, ranges, and the entries its GPUs
//! walk.
//!
//! Lists are copied out a step at a time, with no lock held over the copy. Each entry is true at
//! its time, and the list need not be of one moment. O(entries asked for), at most `MAX_ITEMS`,
//! plus finding where to begin; a call looks at signals between steps.

use crate::base::addr::{CpuVa, GpuVa, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::bo::{Backing, Bo};
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::userptr::Status;
use vkfd_uapi::pod::{slice_as_bytes, Pod};
use vkfd_uapi::vkfd as abi;

const STEP: usize = 32;
/// Most records in one call: as many as a batch may have ranges. What comes next can be asked for
/// by the next call.
const MAX_ITEMS: u32 = 1 << 20;

impl Process {
    /// The SNAPSHOT call.
    pub(crate) fn snapshot(self: &Arc<Self>, args: &mut abi::SnapshotArgs) -> Result {
        if args.capacity > MAX_ITEMS {
            return Err(Errno::EINVAL.into());
        }
        match args.op {
            abi::SNAPSHOT_PROCESS => self.copy_out_one(args, &self.info()?),
            abi::SNAPSHOT_BOS => self.snapshot_bos(args),
            abi::SNAPSHOT_RANGES => self.snapshot_ranges(args),
            abi::SNAPSHOT_PAGES => self.snapshot_pages(args),
            abi::SNAPSHOT_QUEUES => self.snapshot_queues(args),
            abi::SNAPSHOT_SVM => self.copy_out_one(args, &self.svm_work().info()?),
            abi::SNAPSHOT_SVM_RANGES => self.svm_work().copy_out_ranges(args),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// The answer of an operation that has one record.
    fn copy_out_one(&self, args: &mut abi::SnapshotArgs, record: &impl Pod) -> Result {
        args.total = 1;
        args.count = 0;
        if args.capacity > 0 {
            self.mm().write(CpuVa(args.buffer), record.as_bytes())?;
            args.count = 1;
        }
        Ok(())
    }

    /// Writes up to `capacity` items from number `first` on, of those that `item` gives until it
    /// gives none.
    pub(crate) fn copy_out<T: Pod>(
        &self,
        args: &mut abi::SnapshotArgs,
        mut item: impl FnMut(u64) -> Result<Option<T>>,
    ) -> Result {
        let bad_pointer = Error::new(Errno::EFAULT, Reason::BadPointer);
        // Not an array: too large for a kernel's stack.
        let mut step = Vec::with_capacity(STEP)?;
        let mut done = 0u64;
        loop {
            os::interrupted()?;
            step.clear();
            while step.len() < STEP {
                let number = done.saturating_add(step.len() as u64);
                if number >= u64::from(args.capacity) {
                    break;
                }
                let Some(value) = item(number)? else { break };
                step.push_reserved(value);
            }
            let offset = done.checked_mul(size_of::<T>() as u64);
            let at = offset.and_then(|offset| args.buffer.checked_add(offset)).ok_or(bad_pointer)?;
            if !step.is_empty() {
                self.mm().write(CpuVa(at), slice_as_bytes(&step))?;
            }
            done = done.saturating_add(step.len() as u64);
            if step.len() < STEP {
                // At most the capacity.
                args.count = u32::try_from(done).unwrap_or(args.capacity);
                return Ok(());
            }
        }
    }

    fn snapshot_bos(&self, args: &mut abi::SnapshotArgs) -> Result {
        args.total = self.lock().bos.len() as u64;
        // The cursor is the table's number, so that a walk does not slow down with earlier entries.
        let mut number = args.index;
        let result = self.copy_out(args, |_| {
            let Some((at, bo)) = self.bo_from(number) else { return Ok(None) };
            number = at.saturating_add(1);
            Ok(Some(bo_info(&bo)))
        });
        args.index = number;
        result
    }

    fn snapshot_queues(&self, args: &mut abi::SnapshotArgs) -> Result {
        args.total = self.lock().queues.len() as u64;
        let mut number = args.index;
        let result = self.copy_out(args, |_| {
            let next = self.lock().queues.info_from(number);
            Ok(next.map(|(at, info)| {
                number = at.saturating_add(1);
                info
            }))
        });
        args.index = number;
        result
    }

    fn snapshot_ranges(&self, args: &mut abi::SnapshotArgs) -> Result {
        let bo = self.bo(args.handle)?;
        let object = bo.userptr().ok_or(Errno::EINVAL)?;
        let ranges = object.ranges();
        args.total = ranges.len() as u64;
        let first = args.index as usize;
        self.copy_out(args, |i| {
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
    fn snapshot_pages(&self, args: &mut abi::SnapshotArgs) -> Result {
        let vm = self.vm(args.index as usize)?;
        let start = args.handle;
        args.total = args.capacity.into();
        self.copy_out(args, |i| {
            let va = i.checked_mul(PAGE).and_then(|o| o.checked_add(start));
            // There is nothing beyond what tables can say.
            Ok(va.filter(|va| *va < VA_END).map(|va| vm.entry_at(GpuVa(va))))
        })
    }

    fn info(&self) -> Result<abi::ProcessInfo> {
        let mut info = abi::ProcessInfo::zeroed();
        let mut number = 0;
        loop {
            os::interrupted()?;
            let Some((at, bo)) = self.bo_from(number) else { break };
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
        let inner = self.lock();
        info.queues = inner.queues.len() as u64;
        for vm in inner.vms.iter().flatten() {
            info.vms = info.vms.saturating_add(1);
            info.page_table_bytes = info.page_table_bytes.saturating_add(vm.table_bytes());
            info.tlb_flushes = info.tlb_flushes.saturating_add(vm.flushes());
        }
        let tables = [inner.bos.memory(), inner.gpu_va.memory(), inner.cpu_hulls.memory()];
        info.driver_bytes = tables.iter().fold(info.driver_bytes, |sum, bytes| sum.saturating_add(*bytes));
        drop(inner);
        info.notifiers = info.notifiers.saturating_add(self.svm().window_count() as u64);
        info.driver_bytes = info.driver_bytes.saturating_add(self.svm().memory());
        info.driver_bytes = info.driver_bytes.saturating_add(self.eviction().memory());
        info.driver_bytes = info.driver_bytes.saturating_add(self.offsets().memory());
        info.events = self.events().len() as u64;
        let counters = self.counters();
        // Under the lock that stops and resumes, so that counters and state are of one moment.
        let eviction = self.eviction().lock();
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
        info.xnack = self.xnack().into();
        Ok(info)
    }
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
