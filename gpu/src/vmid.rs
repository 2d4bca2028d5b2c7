// SPDX-License-Identifier: GPL-2.0 OR MIT
//! VMIDs and the gate that every access passes.
//!
//! # The access protocol
//!
//! A queue thread touches memory only within an *access*: it makes its slot's word odd, then reads the gate
//! of its VMID. If the gate is suspended it makes the word even again and parks. Otherwise it translates,
//! touches at most one chunk, and makes the word even. No lock is taken.
//!
//! [`VmidState::suspend`] and [`VmidState::flush`] change the gate and then wait for each slot of the VMID
//! whose word is odd until the word has changed once. All these operations are sequentially consistent, so
//! for each access one of two things holds: it read the new gate, or its odd word was seen and waited for.
//! Either way, when they return, no access is in flight that began with an older gate.
//!
//! Both are called from memory reclaim: they take no lock, allocate nothing, and wait for at most one chunk
//! per queue. They spin and yield, as the time is that of a copy of at most 256 KiB.
//!
//! The mutex of a VMID guards its pending retry faults and orders parking against waking; resuming and
//! answering faults take it, suspending and flushing do not.

use crate::fabric::FabricAddr;
use crate::pte::PAGE_BYTES;
use crate::queue::QueueId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of queues a GPU can have at a time.
pub const MAX_QUEUES: usize = 256;

/// Locks a mutex whose data stays consistent even if a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a VMID's TLBs were flushed; a translation is good for one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

/// Answer to a retry fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOutcome {
    /// The cause is gone: translate again.
    Retry,
    /// The address cannot be served: halt the queue.
    Fail,
}

struct PendingFault {
    queue: QueueId,
    page: u64,
    outcome: Option<FaultOutcome>,
}

const SUSPENDED: u64 = 1;
const EPOCH: u64 = 2;
const NO_ROOT: u64 = u64::MAX;

/// One GPU address space.
pub(crate) struct VmidState {
    /// Flush epoch (steps of [`EPOCH`]) and the [`SUSPENDED`] bit.
    gate: AtomicU64,
    root: AtomicU64,
    retry_faults: AtomicBool,
    faults: Mutex<Vec<PendingFault>>,
    wake: Condvar,
}

impl VmidState {
    pub(crate) fn new() -> VmidState {
        VmidState {
            gate: AtomicU64::new(0),
            root: AtomicU64::new(NO_ROOT),
            retry_faults: AtomicBool::new(false),
            // Room for one fault of every queue: nothing is ever allocated under the mutex.
            faults: Mutex::new(Vec::with_capacity(MAX_QUEUES)),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn set_root(&self, root: Option<FabricAddr>, retry_faults: bool) {
        self.retry_faults.store(retry_faults, SeqCst);
        self.root.store(root.map_or(NO_ROOT, |root| root.0), SeqCst);
    }

    pub(crate) fn root(&self) -> Option<FabricAddr> {
        let root = self.root.load(SeqCst);
        (root != NO_ROOT).then_some(FabricAddr(root))
    }

    pub(crate) fn retry_faults(&self) -> bool {
        self.retry_faults.load(SeqCst)
    }

    /// The epoch if accesses may run, `None` while suspended.
    pub(crate) fn open(&self) -> Option<Epoch> {
        let gate = self.gate.load(SeqCst);
        (gate & SUSPENDED == 0).then_some(Epoch(gate))
    }

    /// Closes the gate, then waits for the accesses that passed it before.
    pub(crate) fn suspend(&self, slots: &Slots, vmid: u32) {
        self.gate.fetch_or(SUSPENDED, SeqCst);
        slots.drain(vmid);
    }

    /// Opens the gate and wakes whoever waits for it.
    pub(crate) fn resume(&self) {
        self.gate.fetch_and(!SUSPENDED, SeqCst);
        self.wake_all();
    }

    /// Starts a new epoch, then waits for the accesses that use an older one.
    pub(crate) fn flush(&self, slots: &Slots, vmid: u32) {
        self.gate.fetch_add(EPOCH, SeqCst);
        slots.drain(vmid);
    }

    /// Wakes all parked threads to look at their conditions again.
    pub(crate) fn wake_all(&self) {
        // Taking the lock orders this after the check of a thread that is about to wait.
        drop(lock(&self.faults));
        self.wake.notify_all();
    }

    /// Parks until `blocked` is false. Whoever makes it false calls [`VmidState::wake_all`] afterwards.
    pub(crate) fn park_while(&self, blocked: impl Fn() -> bool) {
        let mut guard = lock(&self.faults);
        while blocked() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that `queue` is about to report a retry fault at `va`; before the report, so that an early
    /// answer finds it.
    pub(crate) fn begin_fault(&self, queue: QueueId, va: u64) {
        lock(&self.faults).push(PendingFault { queue, page: va & !(PAGE_BYTES - 1), outcome: None });
    }

    /// Waits for the answer to `queue`'s fault; `None` if `cancelled` first.
    pub(crate) fn wait_fault(&self, queue: QueueId, cancelled: impl Fn() -> bool) -> Option<FaultOutcome> {
        let mut faults = lock(&self.faults);
        loop {
            let index = faults.iter().position(|fault| fault.queue == queue)?;
            let outcome = faults.get(index).and_then(|fault| fault.outcome);
            if outcome.is_some() || cancelled() {
                faults.swap_remove(index);
                return outcome;
            }
            faults = self.wake.wait(faults).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers all pending faults in the page of `va`.
    pub(crate) fn fault_done(&self, va: u64, outcome: FaultOutcome) {
        let page = va & !(PAGE_BYTES - 1);
        for fault in lock(&self.faults).iter_mut().filter(|fault| fault.page == page) {
            fault.outcome = Some(outcome);
        }
        self.wake.notify_all();
    }
}

/// A queue thread's mark. Aligned so that two threads do not share a cache line.
#[repr(align(128))]
struct Slot {
    /// Odd while an access is in flight; grows by one at its begin and its end.
    word: AtomicU64,
    vmid: AtomicU32,
    claimed: AtomicBool,
}

/// The slots of all queues of a GPU; a fixed table, so that waiting needs no lock.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// One past the highest slot ever claimed.
    high: AtomicUsize,
}

/// A claimed slot; given back when dropped.
pub(crate) struct SlotClaim {
    slots: std::sync::Arc<Slots>,
    index: usize,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        let slot = || Slot { word: AtomicU64::new(0), vmid: AtomicU32::new(0), claimed: AtomicBool::new(false) };
        Slots { slots: (0..MAX_QUEUES).map(|_| slot()).collect(), high: AtomicUsize::new(0) }
    }

    /// Claims a slot for a queue of `vmid`; `None` if all are taken.
    pub(crate) fn claim(self: &std::sync::Arc<Slots>, vmid: u32) -> Option<SlotClaim> {
        let free = |slot: &Slot| slot.claimed.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let index = self.slots.iter().position(free)?;
        let claim = SlotClaim { slots: self.clone(), index };
        claim.slot().vmid.store(vmid, SeqCst);
        self.high.fetch_max(index + 1, SeqCst);
        Some(claim)
    }

    /// Waits until every access of `vmid` that is in flight now has ended.
    fn drain(&self, vmid: u32) {
        for slot in self.slots.iter().take(self.high.load(SeqCst)) {
            slot.wait(|slot| slot.vmid.load(SeqCst) == vmid);
        }
    }
}

impl Slot {
    fn wait(&self, concerns: impl Fn(&Slot) -> bool) {
        let word = self.word.load(SeqCst);
        if word % 2 == 0 || !concerns(self) {
            return;
        }
        let mut spins = 0u32;
        while self.word.load(SeqCst) == word {
            spins += 1;
            if spins % 64 == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl SlotClaim {
    fn slot(&self) -> &Slot {
        // Claims are made only for slots that exist.
        &self.slots.slots[self.index]
    }

    /// Marks the begin of an access.
    pub(crate) fn begin(&self) {
        self.slot().word.fetch_add(1, SeqCst);
    }

    /// Marks the end of an access.
    pub(crate) fn end(&self) {
        self.slot().word.fetch_add(1, SeqCst);
    }

    /// Ends an access that a panic left open: nobody may wait for it forever. Only for the slot's own thread.
    pub(crate) fn close(&self) {
        if self.slot().word.load(SeqCst) % 2 == 1 {
            self.end();
        }
    }

    /// Waits until the access in flight now, if any, has ended.
    pub(crate) fn wait(&self) {
        self.slot().wait(|_| true);
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        self.slot().claimed.store(false, SeqCst);
    }
}
