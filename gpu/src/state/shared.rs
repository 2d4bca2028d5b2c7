// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the threads of a GPU share.

use crate::base::counters::CounterCells;
use crate::base::ids::Vmid;
use crate::base::interrupts::Interrupts;
use crate::memory::bus::Bus;
use crate::memory::fabric::Fabric;
use crate::state::bell::Bell;
use crate::state::busy::Busy;
use crate::state::config::Config;
use crate::state::control::Control;
use crate::state::pool::Pool;
use crate::state::vmid::{Slots, VmidState};
use std::sync::Arc;
use vkfd_cu::fast::CodeBudget;
use vkfd_cu::launch::Residency;
use vkfd_sabotage::LiveSwitches;

/// The part of a GPU that its queue threads use.
pub(crate) struct Shared {
    pub(crate) index: usize,
    pub(crate) config: Config,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) irq: Arc<dyn Interrupts>,
    /// Never empty, and every queue's VMID was checked to be below its length.
    pub(crate) vmids: Box<[VmidState]>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) counters: CounterCells,
    pub(crate) busy: Busy,
    pub(crate) bell: Bell,
    pub(crate) pool: Pool,
    /// What launches have taken of the compute units.
    pub(crate) residency: Arc<Residency>,
    /// The bytes of decoded code of all threads' engines.
    pub(crate) code: Arc<CodeBudget>,
    pub(crate) sabotage: LiveSwitches,
}

impl Shared {
    pub(crate) fn vmid(&self, vmid: Vmid) -> Option<&VmidState> {
        self.vmids.get(usize::try_from(vmid.0).ok()?)
    }

    pub(crate) fn vmid_of(&self, control: &Control) -> &VmidState {
        self.vmid(control.vmid).unwrap_or(&self.vmids[0])
    }
}
