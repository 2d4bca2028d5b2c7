// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What SVM memory asks of the process that it belongs to.

use super::Svm;
use crate::device::smi::{Event, Who};
use crate::os::Arc;
use crate::seams::address_space::AddressSpace;
use crate::userptr::owner::UserptrOwner;

/// The process of SVM memory. SVM is below processes and knows them as this: what a userptr object
/// asks, and what is SVM's alone.
pub trait SvmOwner: UserptrOwner {
    /// Its CPU memory, to keep.
    fn mm_arc(&self) -> &Arc<dyn AddressSpace>;

    /// Its identity, for events.
    fn who(&self) -> Who;

    /// Sends an event to the readers of some GPUs, by GPU number. Allowed in reclaim.
    fn tell_gpus(&self, gpus: u32, event: Event, blockable: bool);

    /// Runs the worker that serves faults and drops what was unmapped. Allowed in reclaim.
    fn schedule_faults(&self);

    /// Its SVM memory.
    fn svm(&self) -> &Svm;
}
