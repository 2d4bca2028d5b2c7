// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The queues that the driver has: whose they are, and of which epoch.
//!
//! A fixed table without a lock: a slot is taken by exchanging its number, which is 0 in a free
//! one.

use crate::layout::MAX_QUEUES;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os::Vec;
use vkfd_driver::seams::gpu::{HwQueue, Vmid};

/// In a slot that is being filled.
const TAKEN: u32 = u32::MAX;

struct Slot {
    number: AtomicU32,
    vmid: AtomicU32,
    /// 0 once its end has been reported.
    epoch: AtomicU64,
}

/// The table.
pub(super) struct Queues {
    slots: Vec<Slot>,
    next: AtomicU32,
}

impl Queues {
    pub(super) fn new() -> Result<Self> {
        let mut slots = Vec::with_capacity(MAX_QUEUES as usize)?;
        for _ in 0..MAX_QUEUES {
            slots.push(Slot { number: AtomicU32::new(0), vmid: AtomicU32::new(0), epoch: AtomicU64::new(0) })?;
        }
        Ok(Self { slots, next: AtomicU32::new(1) })
    }

    /// Enters a queue of `vmid` that will run in `epoch`. ENOSPC when the table is full.
    pub(super) fn add(&self, vmid: Vmid, epoch: u64) -> Result<HwQueue> {
        let free = |slot: &&Slot| slot.number.compare_exchange(0, TAKEN, SeqCst, SeqCst).is_ok();
        let slot = self.slots.iter().find(free).ok_or(Errno::ENOSPC)?;
        let number = loop {
            let number = self.next.fetch_add(1, SeqCst);
            // After 2^32 queues numbers come again; not one that is still in use.
            if number != 0 && number != TAKEN && self.find(HwQueue(number)).is_none() {
                break number;
            }
        };
        slot.vmid.store(vmid.0, SeqCst);
        slot.epoch.store(epoch, SeqCst);
        slot.number.store(number, SeqCst);
        Ok(HwQueue(number))
    }

    fn find(&self, queue: HwQueue) -> Option<&Slot> {
        let numbered = queue.0 != 0 && queue.0 != TAKEN;
        self.slots.iter().find(|slot| numbered && slot.number.load(SeqCst) == queue.0)
    }

    /// The epoch of a queue, 0 if its end was reported.
    pub(super) fn epoch(&self, queue: HwQueue) -> Option<u64> {
        Some(self.find(queue)?.epoch.load(SeqCst))
    }

    /// Forgets a queue.
    pub(super) fn remove(&self, queue: HwQueue) {
        if let Some(slot) = self.find(queue) {
            slot.number.store(0, SeqCst);
        }
    }

    /// Calls `report` once for each queue of `epoch` and earlier ones.
    pub(super) fn end(&self, epoch: u64, mut report: impl FnMut(Vmid, HwQueue)) {
        for slot in self.slots.iter() {
            let number = slot.number.load(SeqCst);
            let of = slot.epoch.load(SeqCst);
            let ended = number != 0 && number != TAKEN && of != 0 && of <= epoch;
            if ended && slot.epoch.compare_exchange(of, 0, SeqCst, SeqCst).is_ok() {
                report(Vmid(slot.vmid.load(SeqCst)), HwQueue(number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_reused_and_ends_are_reported_once() {
        let queues = Queues::new().unwrap();
        let old = queues.add(Vmid(1), 1).unwrap();
        queues.remove(old);
        let first = queues.add(Vmid(2), 1).unwrap();
        let second = queues.add(Vmid(3), 2).unwrap();
        assert_ne!(old, first);
        assert_eq!((queues.epoch(old), queues.epoch(first), queues.epoch(second)), (None, Some(1), Some(2)));
        let mut reported = None;
        queues.end(1, |vmid, queue| assert_eq!(reported.replace((vmid, queue)), None));
        assert_eq!(reported, Some((Vmid(2), first)));
        queues.end(1, |_, _| panic!("reported twice"));
        assert_eq!(queues.epoch(first), Some(0));
        for _ in 2..MAX_QUEUES {
            queues.add(Vmid(1), 2).unwrap();
        }
        assert_eq!(queues.add(Vmid(1), 2).unwrap_err().errno, Errno::ENOSPC);
        queues.remove(first);
        queues.add(Vmid(1), 2).unwrap();
    }
}
