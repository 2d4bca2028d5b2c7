// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a userptr object asks of the process that it belongs to.

use crate::base::addr::CpuSpan;
use crate::base::counters::Counters;
use crate::queues::eviction::{self, Eviction};
use crate::sabotage::Switches;
use crate::seams::address_space::AddressSpace;

/// An object's process. Userptr is below processes and knows them as this.
pub trait UserptrOwner: Send + Sync {
    /// Its CPU memory.
    fn mm(&self) -> &dyn AddressSpace;

    /// How many GPUs the machine has.
    fn gpu_count(&self) -> usize;

    /// Whether its GPUs retry page faults.
    fn xnack(&self) -> bool;

    /// Whether its queues run.
    fn eviction(&self) -> &Eviction;

    /// Stops the queues, if they run. Allowed in reclaim.
    fn evict_queues(&self, eviction: &mut eviction::State, trigger: u32, blockable: bool);

    /// Runs the restore worker soon. Allowed in reclaim.
    fn schedule_restore(&self);

    /// Its counters.
    fn counters(&self) -> &Counters;

    /// What is broken on purpose.
    fn sabotage(&self) -> &Switches;

    /// Pages of `span` and what follows were faulted in and are not committed yet: the place for a
    /// test's race. No lock that an invalidation takes is held.
    fn before_commit(&self, span: CpuSpan);
}
