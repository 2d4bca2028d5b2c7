// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The order of all locks. A thread takes a lock only when its rank is above every rank it already
//! holds.
//!
//! ```text
//! Open       the Linux host's processes by address space; held over opening one
//! Shown      the Linux host's files about processes; held over making and removing them
//! Listing    the processes and render nodes that monitors are shown
//! Gem        a render file's objects and their mappings
//! Process    handles, GPU address reservations, queues, accounting of one process
//! Sweep      the dropping of SVM ranges whose memory has gone
//! Bo         the reservation of one buffer object: its mappings; held over faulting pages in
//!   [mmap]   the host's address-space lock: taken inside `AddressSpace` calls, so after Bo; a
//!            client's mmap comes in with it, so what that takes is after it
//! Svm        SVM ranges' attributes, and which windows and blocks there are
//! Vm         the page-table tree of one process on one GPU
//! Vram       a GPU's VRAM allocator, its VMIDs
//! Event      a process's events
//! Offset     what a process can map, by mmap offset
//! Notifier   what an invalidation changes: ranges' generations and states, pages. Taken in memory
//!            reclaim: under it nothing is allocated or freed, no page is faulted, nothing sleeps
//! Eviction   whether a process's queues run, which objects wait for a restore. Same rules
//! Smi        who is told of events. Same rules
//! Error      the table of last errors
//! Work       a work item's timer
//! ```
//!
//! Holding `Process` over a fault is avoided (registration would serialise a process on its slowest
//! call): an object is reserved under it, built without it, and published under it. Hosts call
//! [`check`] on each acquisition in debug builds; a violation panics, in a release build nothing is
//! left of it.

/// A lock's place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the module documentation is the table
pub enum Rank {
    Open,
    Shown,
    Listing,
    Gem,
    Process,
    Sweep,
    Bo,
    Svm,
    Vm,
    Vram,
    Event,
    Offset,
    Notifier,
    Eviction,
    Smi,
    Error,
    Work,
}

impl Rank {
    const ALL: [Rank; 17] = [
        Rank::Open,
        Rank::Shown,
        Rank::Listing,
        Rank::Gem,
        Rank::Process,
        Rank::Sweep,
        Rank::Bo,
        Rank::Svm,
        Rank::Vm,
        Rank::Vram,
        Rank::Event,
        Rank::Offset,
        Rank::Notifier,
        Rank::Eviction,
        Rank::Smi,
        Rank::Error,
        Rank::Work,
    ];

    /// Its bit in a set: a thread holds no two locks of a rank.
    #[must_use]
    pub const fn bit(self) -> usize {
        1 << self as u8
    }
}

/// The highest rank of a set.
#[must_use]
pub fn highest(set: usize) -> Option<Rank> {
    Rank::ALL.into_iter().rev().find(|rank| set & rank.bit() != 0)
}

/// From here on a thread may be in memory reclaim: it must neither allocate nor sleep.
pub const RECLAIM: Rank = Rank::Notifier;

/// Panics when `next` may not be taken while `highest` is held.
#[track_caller]
pub fn check(highest: Option<Rank>, next: Rank) {
    if let Some(highest) = highest {
        assert!(highest < next, "lock order: {next:?} taken while {highest:?} is held");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "lock order: Process taken while Notifier is held")]
    fn a_lock_below_the_highest_held_is_refused() {
        check(Some(Rank::Notifier), Rank::Process);
    }

    #[test]
    fn the_documented_order_passes() {
        check(None, Rank::Process);
        check(Some(Rank::Bo), Rank::Vm);
        check(Some(Rank::Notifier), Rank::Eviction);
    }
}
