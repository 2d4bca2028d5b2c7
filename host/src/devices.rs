// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPUs of a machine and their driver: what the machine and its open files share.
//!
//! After a fork the child has the handles but none of the threads. It drops none of them.

use crate::device::HostGpu;
use crate::device_file::DeviceFile;
use crate::mm::{Mm, Pause};
use std::sync::Arc;
use vkfd_driver::machine::kfd::Kfd;
use vkfd_gpu::check::Ledger;

/// All GPUs of a machine, paused together.
pub(crate) struct Gate(pub(crate) Vec<Arc<HostGpu>>);

impl Pause for Gate {
    fn pause(&self) {
        self.0.iter().for_each(|gpu| gpu.pause());
    }

    fn unpause(&self) {
        self.0.iter().for_each(|gpu| gpu.unpause());
    }
}

/// What the machine and its open files share.
pub(crate) struct Devices {
    pub(crate) mm: &'static Mm,
    pub(crate) kfd: Arc<Kfd>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) file: Option<Arc<DeviceFile>>,
    pub(crate) timeline: Option<Arc<vkfd_gpu::Timeline>>,
    /// Allocations that checks know.
    pub(crate) ledger: Option<Arc<Ledger>>,
}

impl Drop for Devices {
    fn drop(&mut self) {
        let gate: Arc<dyn Pause> = self.gate.clone();
        self.mm.remove_gate(&gate);
    }
}

impl Devices {
    /// In a forked child: never drop, because the threads that dropping would wait for are not
    /// there.
    pub(crate) fn keep_in_child(self: &Arc<Self>) -> bool {
        let child = !self.mm.is_current();
        if child {
            std::mem::forget(self.clone());
        }
        child
    }
}
