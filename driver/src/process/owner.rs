// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process as the rooms below know it: to a device whose VMID it has, to a userptr object, to its
//! SVM memory.

use super::Process;
use crate::base::addr::CpuSpan;
use crate::base::counters::Counters;
use crate::base::errno::Result;
use crate::device::smi::{Event, Who};
use crate::device::vmid_owner::VmidOwner;
use crate::os::{self, Arc};
use crate::queues::eviction::{self, Eviction};
use crate::sabotage::Switches;
use crate::seams::address_space::AddressSpace;
use crate::seams::gpu::{HwQueue, PageFault};
use crate::svm::owner::SvmOwner;
use crate::svm::Svm;
use crate::userptr::owner::UserptrOwner;

/// A process that something keeps: a VMID, a userptr object, a window of SVM memory, a list.
pub(super) struct Owned(pub(super) Arc<Process>);

impl Process {
    /// For a device.
    pub(super) fn as_owner(self: &Arc<Self>) -> Result<Arc<dyn VmidOwner>> {
        Ok(os::arc(Owned(self.clone()))?)
    }

    /// For a userptr object.
    pub(crate) fn as_userptr_owner(self: &Arc<Self>) -> Result<Arc<dyn UserptrOwner>> {
        Ok(os::arc(Owned(self.clone()))?)
    }

    /// For a window of SVM memory.
    pub fn as_svm_owner(self: &Arc<Self>) -> Result<Arc<dyn SvmOwner>> {
        Ok(os::arc(Owned(self.clone()))?)
    }
}

impl VmidOwner for Owned {
    fn user(&self) -> u32 {
        self.0.user()
    }

    fn page_fault(&self, gpu: usize, fault: PageFault) {
        self.0.gpu_fault(gpu, fault);
    }

    fn signal_event(&self, event_id: u32) {
        self.0.events().signal(event_id);
    }

    fn queue_error(&self, gpu: usize, gpu_id: u32, queue: HwQueue) {
        self.0.queue_stopped(gpu, queue, None);
        self.0.events().hw_exception(gpu_id);
    }
}

impl UserptrOwner for Owned {
    fn mm(&self) -> &dyn AddressSpace {
        self.0.mm()
    }

    fn gpu_count(&self) -> usize {
        self.0.gpu_count()
    }

    fn xnack(&self) -> bool {
        self.0.xnack()
    }

    fn eviction(&self) -> &Eviction {
        self.0.eviction()
    }

    fn evict_queues(&self, eviction: &mut eviction::State, trigger: u32, blockable: bool) {
        self.0.evict_queues(eviction, trigger, blockable);
    }

    fn schedule_restore(&self) {
        self.0.schedule_restore();
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }

    fn sabotage(&self) -> &Switches {
        self.0.sabotage()
    }

    fn before_commit(&self, span: CpuSpan) {
        self.0.before_commit(span);
    }
}

impl SvmOwner for Owned {
    fn mm_arc(&self) -> &Arc<dyn AddressSpace> {
        self.0.mm_arc()
    }

    fn who(&self) -> Who {
        self.0.who()
    }

    fn tell_gpus(&self, gpus: u32, event: Event, blockable: bool) {
        self.0.tell_gpus(gpus, event, blockable);
    }

    fn schedule_faults(&self) {
        self.0.schedule_faults();
    }

    fn svm(&self) -> &Svm {
        self.0.svm()
    }
}
