// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a device asks of the process that a VMID is of.

use crate::seams::gpu::{HwQueue, PageFault};

/// The process that has a VMID. The device is below processes and knows them as this.
pub trait VmidOwner: Send + Sync {
    /// Which user's it is.
    fn user(&self) -> u32;

    /// Its GPU number `gpu` faulted.
    fn page_fault(&self, gpu: usize, fault: PageFault);

    /// Its GPU signals an event.
    fn signal_event(&self, event_id: u32);

    /// A queue of its GPU number `gpu` has stopped for good, on something that the GPU cannot
    /// execute.
    fn queue_error(&self, gpu: usize, gpu_id: u32, queue: HwQueue);
}
