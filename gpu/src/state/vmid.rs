// SPDX-License-Identifier: GPL-2.0 OR MIT
//! VMIDs and the gate that every access passes.
//!
//! # The access protocol
//!
//! A thread touches memory only within an *access*: it makes its slot's word odd, then reads the
//! gate of its VMID. If the gate is suspended it makes the word even again and parks. Otherwise it
//! translates, touches at most one chunk, and makes the word even. No lock is taken. A thread that
//! runs a kernel keeps its access open over many instructions, and asks all the while whether its
//! slot is *wanted*.
//!
//! [`VmidState::suspend`] and [`VmidState::flush`] change the gate and then want each slot of the
//! VMID whose word is odd, and wait until the word has changed once. All these operations are
//! sequentially consistent, so for each access one of two things holds: it read the new gate, or
//! its odd word was seen and waited for. Either way, when they return, no access is in flight that
//! began with an older gate.
//!
//! Both also count the *changes* of the VMID. A thread reads the count before the gate. While it
//! reads the same count at each begin, no host memory that it has found has gone, since the driver
//! suspends or flushes before it takes memory away. So kernels keep pointers to pages from one
//! access to the next.
//!
//! Both are called from memory reclaim: they take no lock and allocate nothing. They wait for at
//! most one chunk per queue, or until a kernel's thread next looks at its slot. They mark all slots
//! as wanted before they wait for the first, and spin for as long as a running thread needs. Then
//! they sleep on the word, and the thread that ends a wanted access wakes them. Sleeping matters
//! when threads outnumber processors: the scheduler may run a yielding thread again and again
//! before the thread that it waits for.
//!
//! A queue's own thread has a slot of the first [`MAX_QUEUES`]; threads that run kernels for any
//! queue have the others. They move them from one queue to the next between accesses.
//!
//! The mutex of a VMID guards its pending retry faults and orders parking against waking; resuming
//! and answering faults take it, suspending and flushing do not.

use crate::base::futex;
use crate::base::ids::{QueueId, MAX_QUEUES};
use crate::base::lock::lock;
use crate::memory::fabric::{Fabric, FabricAddr};
use crate::memory::gart::Gart;
use crate::memory::pte::PAGE_BYTES;
use crate::memory::walk::{walk, walk_gart, WalkError, Walked};
use crate::state::busy::{Busy, Copying};
use crate::state::gws::Gws;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vkfd_rt::section;

/// Number of threads besides the queues' own that run kernels.
pub(crate) const MAX_WORKERS: usize = 256;

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
    /// Slot of the thread that waits.
    waiter: usize,
    page: u64,
    outcome: Option<FaultOutcome>,
}

const SUSPENDED: u64 = 1;
const EPOCH: u64 = 2;
/// The bits of an epoch from here on are its VMID; the count below never reaches them.
const VMID_SHIFT: u32 = 56;
const NO_ROOT: u64 = u64::MAX;

/// One GPU address space.
pub(crate) struct VmidState {
    /// Flush epoch (steps of [`EPOCH`]) and the [`SUSPENDED`] bit.
    gate: AtomicU64,
    /// How often it was suspended, flushed, or given other tables.
    changes: AtomicU64,
    root: AtomicU64,
    retry_faults: AtomicBool,
    /// There are no tables: the next field translates.
    flat: AtomicBool,
    /// Held only for a copy, and never while flushing waits for another thread.
    gart: Mutex<Option<Gart>>,
    faults: Mutex<Vec<PendingFault>>,
    pub(crate) gws: Gws,
    /// How long it has had kernels on the GPU.
    pub(crate) busy: Busy,
    pub(crate) copying: Copying,
    wake: Condvar,
}

impl VmidState {
    /// Address space number `vmid`. Its number is in its epochs, so that a thread may keep
    /// translations of several.
    pub(crate) fn new(vmid: u8) -> VmidState {
        VmidState {
            gate: AtomicU64::new(u64::from(vmid) << VMID_SHIFT),
            changes: AtomicU64::new(0),
            root: AtomicU64::new(NO_ROOT),
            retry_faults: AtomicBool::new(false),
            flat: AtomicBool::new(false),
            gart: Mutex::new(None),
            // Room for one fault of every thread: nothing is ever allocated under the mutex.
            faults: Mutex::new(Vec::with_capacity(MAX_QUEUES + MAX_WORKERS)),
            wake: Condvar::new(),
            gws: Gws::new(),
            busy: Busy::default(),
            copying: Copying::default(),
        }
    }

    pub(crate) fn set_root(&self, root: Option<FabricAddr>, retry_faults: bool) {
        self.retry_faults.store(retry_faults, SeqCst);
        self.root.store(root.map_or(NO_ROOT, |root| root.0), SeqCst);
        self.changed();
    }

    pub(crate) fn set_gart(&self, gart: Option<Gart>) {
        *lock(&self.gart) = gart;
        self.flat.store(gart.is_some(), SeqCst);
        self.changed();
    }

    /// Translates `va` as the tables have it now.
    #[inline]
    pub(crate) fn walk(&self, fabric: &Fabric, va: u64) -> Result<Walked, WalkError> {
        if self.flat.load(SeqCst) {
            if let Some(gart) = *lock(&self.gart) {
                return walk_gart(fabric, &gart, va);
            }
        }
        walk(fabric, self.root(), va)
    }

    pub(crate) fn root(&self) -> Option<FabricAddr> {
        let root = self.root.load(SeqCst);
        (root != NO_ROOT).then_some(FabricAddr(root))
    }

    pub(crate) fn retry_faults(&self) -> bool {
        self.retry_faults.load(SeqCst)
    }

    /// Counts a change, behind what it is about.
    fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// How often it has changed. To be read within an access and before [`VmidState::open`]: then
    /// what the access finds is not older than this count.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// The epoch if accesses may run, `None` while suspended.
    pub(crate) fn open(&self) -> Option<Epoch> {
        let gate = self.gate.load(SeqCst);
        (gate & SUSPENDED == 0).then_some(Epoch(gate))
    }

    /// Closes the gate, then waits for the accesses that passed it before.
    pub(crate) fn suspend(&self, slots: &Slots, vmid: u32) {
        self.gate.fetch_or(SUSPENDED, SeqCst);
        self.changed();
        slots.drain(vmid);
    }

    /// Opens the gate and wakes the threads that wait for it.
    pub(crate) fn resume(&self) {
        self.gate.fetch_and(!SUSPENDED, SeqCst);
        self.wake_all();
    }

    /// Starts a new epoch, then waits for the accesses that use an older one.
    pub(crate) fn flush(&self, slots: &Slots, vmid: u32) {
        self.gate.fetch_add(EPOCH, SeqCst);
        self.changed();
        slots.drain(vmid);
    }

    /// Wakes all parked threads to look at their conditions again.
    pub(crate) fn wake_all(&self) {
        // Taking the lock orders this after the check of a thread that is about to wait.
        drop(lock(&self.faults));
        self.wake.notify_all();
    }

    /// Parks until `blocked` is false. The thread that makes it false calls [`VmidState::wake_all`]
    /// afterwards.
    pub(crate) fn park_while(&self, blocked: impl Fn() -> bool) {
        self.park_while_within(None, blocked);
    }

    /// The same, but no longer than `patience`. Whether `blocked` is false.
    pub(crate) fn park_while_within(&self, patience: Option<Duration>, blocked: impl Fn() -> bool) -> bool {
        let end = patience.map(|patience| Instant::now() + patience);
        let mut guard = lock(&self.faults);
        while blocked() {
            guard = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return false,
                Some(left) => self.wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        true
    }

    /// Notes that the thread of slot `waiter` is about to report a retry fault at `va`; before the
    /// report, so that an early answer finds it.
    pub(crate) fn begin_fault(&self, waiter: usize, va: u64) {
        lock(&self.faults).push(PendingFault { waiter, page: va & !(PAGE_BYTES - 1), outcome: None });
    }

    /// Waits for the answer to the fault of `waiter`; `None` if `cancelled` first.
    pub(crate) fn wait_fault(&self, waiter: usize, cancelled: impl Fn() -> bool) -> Option<FaultOutcome> {
        let mut faults = lock(&self.faults);
        loop {
            let index = faults.iter().position(|fault| fault.waiter == waiter)?;
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

/// How often a word is looked at before sleeping: some microseconds.
const SPINS: u32 = 100;

/// A thread's mark. Aligned so that two threads do not share a cache line.
#[repr(align(128))]
struct Slot {
    /// Odd while an access is in flight; grows by one at its begin and its end.
    word: AtomicU32,
    /// The access in flight is to end soon. A thread that waits for the end sets it; it may be set
    /// too often, never too rarely.
    wanted: AtomicBool,
    /// Whose accesses these are. Changes only while none is in flight.
    vmid: AtomicU32,
    queue: AtomicU32,
    claimed: AtomicBool,
}

/// The slots of all threads of a GPU; a fixed table, so that waiting needs no lock.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// One past the highest slot ever claimed, of queues and of other threads.
    high: [AtomicUsize; 2],
}

/// A claimed slot; given back when dropped.
pub(crate) struct SlotClaim {
    slots: std::sync::Arc<Slots>,
    index: usize,
}

/// Slots of queues' own threads, and of those that run kernels.
const RANGES: [Range<usize>; 2] = [0..MAX_QUEUES, MAX_QUEUES..MAX_QUEUES + MAX_WORKERS];

impl Slots {
    pub(crate) fn new() -> Slots {
        let slot = || Slot {
            word: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
            vmid: AtomicU32::new(0),
            queue: AtomicU32::new(0),
            claimed: AtomicBool::new(false),
        };
        let high = RANGES.map(|range| AtomicUsize::new(range.start));
        Slots { slots: (0..MAX_QUEUES + MAX_WORKERS).map(|_| slot()).collect(), high }
    }

    /// Claims a slot for the thread of `queue` in `vmid`; `None` if all are taken.
    pub(crate) fn claim(self: &std::sync::Arc<Slots>, vmid: u32, queue: QueueId) -> Option<SlotClaim> {
        let claim = self.claim_in(0)?;
        claim.bind(vmid, queue);
        Some(claim)
    }

    /// Claims a slot for a thread that runs kernels of any queue; `None` if all are taken.
    pub(crate) fn claim_worker(self: &std::sync::Arc<Slots>) -> Option<SlotClaim> {
        self.claim_in(1)
    }

    fn claim_in(self: &std::sync::Arc<Slots>, kind: usize) -> Option<SlotClaim> {
        let free = |index: &usize| {
            let slot = self.slots.get(*index);
            slot.is_some_and(|slot| slot.claimed.compare_exchange(false, true, SeqCst, SeqCst).is_ok())
        };
        let index = RANGES.get(kind)?.clone().find(free)?;
        self.high.get(kind)?.fetch_max(index + 1, SeqCst);
        Some(SlotClaim { slots: self.clone(), index })
    }

    fn in_use(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let used = |(range, high): (&Range<usize>, &AtomicUsize)| range.start..high.load(SeqCst);
        let indices = RANGES.iter().zip(&self.high).flat_map(used);
        indices.filter_map(|index| Some((index, self.slots.get(index)?)))
    }

    /// Waits until every access of `vmid` that is in flight now has ended.
    fn drain(&self, vmid: u32) {
        self.drain_those(|slot| slot.vmid.load(SeqCst) == vmid);
    }

    /// Waits until every access for `queue` that is in flight now has ended.
    pub(crate) fn drain_queue(&self, queue: QueueId) {
        self.drain_those(|slot| slot.queue.load(SeqCst) == queue.0);
    }

    fn drain_those(&self, concerns: impl Fn(&Slot) -> bool) {
        let mut words = [0; MAX_QUEUES + MAX_WORKERS];
        for (index, slot) in self.in_use() {
            if let (Some(word), Some(seen)) = (words.get_mut(index), slot.want(&concerns)) {
                *word = seen;
            }
        }
        for (slot, word) in self.slots.iter().zip(words).filter(|(_, word)| *word != 0) {
            slot.wait(word);
        }
    }

    /// Makes every access for `queue` that is in flight end soon.
    pub(crate) fn want_queue(&self, queue: QueueId) {
        for (_, slot) in self.in_use().filter(|(_, slot)| slot.queue.load(SeqCst) == queue.0) {
            slot.wanted.store(true, SeqCst);
        }
    }
}

impl Slot {
    /// Wants the access in flight, if there is one of those; its word.
    fn want(&self, concerns: impl Fn(&Slot) -> bool) -> Option<u32> {
        let word = self.word.load(SeqCst);
        if word % 2 == 0 || !concerns(self) {
            return None;
        }
        self.wanted.store(true, SeqCst);
        Some(word)
    }

    /// Waits until a wanted access has ended.
    fn wait(&self, word: u32) {
        let mut spins = 0;
        while self.word.load(SeqCst) == word {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                futex::wait(&self.word, word);
            }
        }
    }

    /// Ends the access in flight.
    fn end(&self) {
        self.word.fetch_add(1, SeqCst);
        // A waiting thread sets `wanted` before it looks at the word the last time. Either the mark
        // is seen here, or the new word there.
        if self.wanted.load(SeqCst) {
            futex::wake(&self.word);
        }
    }
}

impl SlotClaim {
    fn slot(&self) -> &Slot {
        // Claims are made only for slots that exist.
        &self.slots.slots[self.index]
    }

    /// Its number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Accesses are those of `queue` in `vmid` from now on. Only for the slot's own thread, outside
    /// of an access.
    pub(crate) fn bind(&self, vmid: u32, queue: QueueId) {
        self.slot().vmid.store(vmid, SeqCst);
        self.slot().queue.store(queue.0, SeqCst);
    }

    /// Marks the begin of an access.
    pub(crate) fn begin(&self) {
        let slot = self.slot();
        // Before the word: a thread that sees the word odd sets the mark afterwards.
        slot.wanted.store(false, Relaxed);
        slot.word.fetch_add(1, SeqCst);
        section::enter("a GPU's access");
    }

    /// Marks the end of an access.
    pub(crate) fn end(&self) {
        self.slot().end();
        section::leave();
    }

    /// Whether the access in flight is to end soon.
    pub(crate) fn wanted(&self) -> bool {
        self.slot().wanted.load(Relaxed)
    }

    /// Ends an access that a panic left open: nobody may wait for it forever. Only for the slot's
    /// own thread.
    pub(crate) fn close(&self) {
        if self.is_open() {
            self.end();
        }
    }

    /// Leaves an access that a panic left open as it is, for a control. The thread goes on outside
    /// of it.
    pub(crate) fn forget_access(&self) {
        if self.is_open() {
            section::leave();
        }
    }

    fn is_open(&self) -> bool {
        self.slot().word.load(SeqCst) % 2 == 1
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        self.close();
        self.slot().claimed.store(false, SeqCst);
    }
}
