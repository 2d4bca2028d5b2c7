// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whom the GPU interrupts.

use crate::base::fault::PageFault;
use crate::base::ids::{QueueId, Vmid};
use crate::base::queue_error::QueueError;

/// Interrupts to the driver. Called from queue threads, outside any access and with no GPU lock
/// held; any method of the GPU may be called from within.
pub trait Interrupts: Send + Sync {
    /// A queue met an error and is about to halt. This call comes before
    /// [`Interrupts::page_fault`] and [`Interrupts::queue_error`], which wake the client: the
    /// client may end the process at once, and the message is written before that.
    fn queue_stops(&self, vmid: Vmid, queue: QueueId, error: &QueueError) {
        let _ = (vmid, queue, error);
    }
    /// A page fault. Unless `fault.retry`, [`Interrupts::queue_error`] follows.
    fn page_fault(&self, fault: PageFault);
    /// A queue signalled an event.
    fn signal_event(&self, vmid: Vmid, event_id: u32);
    /// The same, with the queue.
    fn queue_event(&self, vmid: Vmid, queue: QueueId, event_id: u32) {
        let _ = queue;
        self.signal_event(vmid, event_id);
    }
    /// A queue met an error and has halted; it stays until it is removed.
    fn queue_error(&self, vmid: Vmid, queue: QueueId, error: QueueError);
}
