// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU page faults. XNACK off: the queue has halted, the fault is reported as a memory exception.
//! XNACK on: a worker restores what the device wants and lets it retry; what cannot be had is
//! reported.

use crate::base::addr::PAGE;
use crate::base::errno::Errno;
use crate::device::smi::Event;
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc};
use crate::process::Process;
use crate::sabotage::Switch;
use crate::seams::gpu::{FaultReason, PageFault};
use vkfd_uapi::event::{MemoryExceptionData, MemoryExceptionFailure, MEM_ERR_NO_RAS};
use vkfd_uapi::memory::ALLOC_MEM_FLAGS_EXECUTABLE;

impl Process {
    /// A GPU of this process faulted.
    pub fn gpu_fault(self: &Arc<Self>, gpu: usize, fault: PageFault) {
        self.counters().gpu_faults.add(1);
        if !fault.retry {
            // Before the event: the woken thread asks which queue it was.
            self.queue_stopped(gpu, fault.queue, Some(fault));
            self.report_fault(gpu, &fault);
            self.tell_gpus(1 << gpu, Event::VmFault, true);
            return;
        }
        if self.faults().push(gpu, fault).is_err() {
            // No memory to remember it, or nobody to serve it: the device must not wait for ever.
            self.answer(gpu, &fault, false);
            return;
        }
        self.schedule_faults();
    }

    /// Serves the faults that have come in.
    pub(crate) fn serve_faults(self: &Arc<Self>) {
        // Invalidations that unmap ask for this worker as well. What could not be dropped is with
        // the next call.
        let _ = self.svm_work().sweep();
        loop {
            let Some((gpu, fault)) = self.faults().pop() else { return };
            let served = self.serve_fault(gpu, &fault);
            self.answer(gpu, &fault, served);
        }
    }

    fn serve_fault(self: &Arc<Self>, gpu: usize, fault: &PageFault) -> bool {
        // Stale means that this driver has missed an invalidation: nothing to retry. A client's
        // program may ask for any address.
        if matches!(fault.reason, FaultReason::Stale) || fault.va.0 >= VA_END {
            return false;
        }
        let found = {
            let inner = self.lock();
            let hit = inner.gpu_va.first_overlap(fault.va.0, fault.va.0.saturating_add(1));
            hit.and_then(|(start, _, number)| Some((start, inner.bos.get(number)?.clone())))
        };
        let deadline = self.deadline();
        let served = match found {
            // No retry would find another entry.
            Some((_, bo)) if fault.executes() && bo.flags() & ALLOC_MEM_FLAGS_EXECUTABLE == 0 => Ok(false),
            Some((start, bo)) => {
                let page = fault.va.0 / PAGE;
                self.tell_gpus(1 << gpu, Event::FaultStart { page, write: fault.write }, true);
                let served = bo.serve_fault(gpu, fault.va.0.saturating_sub(start) / PAGE, fault.write, deadline);
                self.tell_gpus(1 << gpu, Event::FaultEnd { page, migrated: false }, true);
                served
            }
            None => self.svm_work().fault(gpu, fault, deadline),
        };
        match served {
            Ok(served) => served,
            // Memory that would not hold still is not gone: the device asks again, as often as it
            // takes.
            Err(e) if e.errno == Errno::EAGAIN => true,
            // The report that follows knows only that nothing is there.
            Err(e) => {
                let (errno, reason) = (e.errno.name(), e.reason);
                os::warn(format_args!("page fault at {}: it could not be served: {errno} ({reason:?})", fault.va));
                false
            }
        }
    }

    /// A fault that is not served comes in again from the halted queue, as one that is not to be
    /// retried.
    fn answer(&self, gpu: usize, fault: &PageFault, served: bool) {
        if let Some(device) = self.kfd().devices().get(gpu) {
            device.gpu().fault_done(fault.vmid, fault.va, served);
        }
    }

    fn report_fault(&self, gpu: usize, fault: &PageFault) {
        let Some(device) = self.kfd().devices().get(gpu) else { return };
        let denied = fault.reason == FaultReason::Permission;
        let why = match fault.reason {
            FaultReason::NotPresent => "nothing is mapped there",
            FaultReason::Permission => "the mapping does not allow it",
            FaultReason::Stale => "STALE PAGE: an invalidation or a TLB flush was missed",
            FaultReason::NoMemory => "no memory is there",
        };
        let access = match fault.write {
            true => "write",
            false if fault.executes() => "execution",
            false => "read",
        };
        let log = || os::warn(format_args!("gpu {:#x}: page fault: {access} at {}: {why}", device.id(), fault.va));
        let late = self.sabotage().has(Switch::LateMessage);
        // The event wakes a client, which may end the process before another line is written.
        if !late {
            log();
        }
        self.events().memory_exception(MemoryExceptionData {
            failure: MemoryExceptionFailure {
                not_present: u32::from(!denied),
                read_only: u32::from(denied && fault.write),
                no_execute: u32::from(fault.executes()),
                imprecise: 0,
            },
            va: fault.va.0,
            gpu_id: device.id(),
            error_type: MEM_ERR_NO_RAS,
        });
        if late {
            log();
        }
    }
}
