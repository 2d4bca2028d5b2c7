// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPU: address spaces, queues, and the driver's handles to them.
//!
//! Queue threads use [`Shared`]; the [`Gpu`] owns the threads and ends them when it is dropped. One
//! mutex guards the table of queues. It is never held while a callback runs or a thread is joined.

use crate::base::counters::{count, CounterCells, Counters};
use crate::base::error::GpuError;
use crate::base::ids::{QueueId, Vmid};
use crate::base::interrupts::Interrupts;
use crate::base::lock::lock;
use crate::memory::bus::Bus;
use crate::memory::fabric::{Fabric, FabricAddr};
use crate::memory::gart::Gart;
use crate::memory::vram::Vram;
use crate::memory::walk::{walk, Translation, WalkError};
use crate::queue::Queue;
use crate::raw;
use crate::state::bell::Bell;
use crate::state::busy::{Busy, Work};
use crate::state::config::Config;
use crate::state::control::{Control, QueueConfig, Ring};
use crate::state::pool::Pool;
use crate::state::profile::Profile;
use crate::state::shared::Shared;
use crate::state::view::View;
use crate::state::vmid::{FaultOutcome, Slots, VmidState};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use vkfd_sabotage::{LiveSwitches, Switch};

/// A software GPU.
pub struct Gpu {
    shared: Arc<Shared>,
    queues: Mutex<BTreeMap<QueueId, Queue>>,
    next_queue: AtomicU32,
}

impl Gpu {
    /// Makes GPU `index` of the fabric.
    ///
    /// # Errors
    /// [`GpuError::BadConfig`].
    pub fn new(
        config: Config,
        index: usize,
        fabric: Arc<Fabric>,
        bus: Arc<dyn Bus>,
        irq: Arc<dyn Interrupts>,
    ) -> Result<Arc<Gpu>, GpuError> {
        let vram = fabric.vram(index).ok_or(GpuError::BadConfig("the fabric has no VRAM of this index"))?;
        if vram.size() != config.vram_bytes {
            return Err(GpuError::BadConfig("the VRAM size is not that in the fabric"));
        }
        if config.vmids == 0 || config.vmids > 256 {
            return Err(GpuError::BadConfig("there must be 1 to 256 VMIDs"));
        }
        raw::install();
        tracing::debug!(index, name = config.name, vram = vram.size(), "new GPU");
        let config = config.with_late_loads();
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let shared = Shared {
            index,
            pool: Pool::new(threads),
            residency: Arc::default(),
            code: Arc::default(),
            vmids: (0..config.vmids).map(|vmid| VmidState::new(u8::try_from(vmid).unwrap_or(0))).collect(),
            config,
            fabric,
            bus,
            irq,
            slots: Arc::new(Slots::new()),
            counters: CounterCells::default(),
            busy: Busy::default(),
            bell: Bell::default(),
            sabotage: LiveSwitches::new(),
        };
        Ok(Arc::new(Gpu {
            shared: Arc::new(shared),
            queues: Mutex::new(BTreeMap::new()),
            next_queue: AtomicU32::new(0),
        }))
    }

    /// This GPU's index in the fabric.
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// The fabric this GPU is part of.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.shared.fabric
    }

    /// This GPU's own memory.
    pub fn vram(&self) -> &Vram {
        match self.shared.fabric.vram(self.shared.index) {
            Some(vram) => vram,
            None => unreachable!("checked in Gpu::new; the fabric does not change"),
        }
    }

    /// What is broken of this GPU and its engines.
    pub fn sabotage(&self) -> &LiveSwitches {
        &self.shared.sabotage
    }

    fn vmid(&self, vmid: Vmid) -> Option<&VmidState> {
        let state = self.shared.vmid(vmid);
        if state.is_none() {
            tracing::error!(vmid = vmid.0, "no such VMID");
        }
        state
    }

    /// Sets the page-table root (PDB2) of a VMID, or takes it away, and whether its faults wait for
    /// [`Gpu::fault_done`] (XNACK). Cached translations stay: flush if there may be any. Unknown
    /// VMIDs are logged and ignored, here and below.
    pub fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, retry_faults: bool) {
        if let Some(state) = self.vmid(vmid) {
            let ended = state.root() != root;
            state.set_root(root, retry_faults);
            if ended && !self.shared.sabotage.has(Switch::KeptObjects) {
                self.shared.config.profile.forget((self.shared.index, vmid.0));
            }
        }
    }

    /// Lets a VMID, the driver's own, translate by a flat table instead of by directories. Flush
    /// afterwards.
    pub fn set_gart(&self, vmid: Vmid, gart: Option<Gart>) {
        if let Some(state) = self.vmid(vmid) {
            state.set_gart(gart);
        }
    }

    /// The memory of a VMID for a caller on its own thread: firmware, not a queue.
    ///
    /// # Errors
    /// [`GpuError::BadVmid`], [`GpuError::NoQueue`].
    pub fn view(&self, vmid: Vmid) -> Result<View, GpuError> {
        View::new(&self.shared, vmid)
    }

    /// Forgets all cached translations of a VMID. Returns when no access is in flight that uses an
    /// older one.
    ///
    /// Takes no lock, allocates nothing, and waits at most for each queue of the VMID to touch 256
    /// KiB. Must not be called from [`Bus::resolve`].
    pub fn flush_tlb(&self, vmid: Vmid) {
        if self.shared.sabotage.has(Switch::SkipTlbFlush) {
            return;
        }
        if let Some(state) = self.vmid(vmid) {
            count(&self.shared.counters.flushes, 1);
            state.flush(&self.shared.slots, vmid.0);
        }
    }

    /// Stops all accesses of a VMID: returns when none is in flight, and later ones wait for
    /// [`Gpu::resume`]. Suspending twice is the same as once. The cost and the limits are those of
    /// [`Gpu::flush_tlb`].
    pub fn suspend(&self, vmid: Vmid) {
        if let Some(state) = self.vmid(vmid) {
            count(&self.shared.counters.suspends, 1);
            state.suspend(&self.shared.slots, vmid.0);
        }
    }

    /// Lets the accesses of a VMID go on. Does nothing if they are not suspended.
    pub fn resume(&self, vmid: Vmid) {
        if let Some(state) = self.vmid(vmid) {
            state.resume();
        }
    }

    /// Answers all pending retry faults of a VMID in the page of `va`. An answer may come before
    /// the interrupt call returns.
    pub fn fault_done(&self, vmid: Vmid, va: u64, outcome: FaultOutcome) {
        if let Some(state) = self.vmid(vmid) {
            state.fault_done(va, outcome);
        }
    }

    /// Adds a queue and starts it. Its read pointer starts at 0, and its doorbell is reset. A
    /// driver that evicts a queue keeps it, and disables it with [`Gpu::update_queue`] or suspends
    /// its VMID; the pointer of a removed queue is lost.
    ///
    /// # Errors
    /// [`GpuError`]; nothing has been added then.
    pub fn add_queue(&self, config: QueueConfig) -> Result<QueueId, GpuError> {
        self.add_queue_at(config, 0)
    }

    /// The same with a read pointer that starts at `start`, in the unit of the queue's kind. The
    /// doorbell says then that nothing after it was submitted.
    ///
    /// # Errors
    /// As [`Gpu::add_queue`].
    pub fn add_queue_at(&self, config: QueueConfig, start: u64) -> Result<QueueId, GpuError> {
        if self.shared.vmid(config.vmid).is_none() {
            return Err(GpuError::BadVmid(config.vmid));
        }
        let ring = Ring::new(config.ring_va, config.ring_bytes)?;
        if let Some(&bad) = [config.rptr_va, config.wptr_va].iter().find(|&&va| va % 8 != 0) {
            return Err(GpuError::BadPointer(bad));
        }
        let id = QueueId(self.next_queue.fetch_add(1, SeqCst));
        let slot = self.shared.slots.claim(config.vmid.0, id).ok_or(GpuError::NoQueue)?;
        let control = Control {
            id,
            vmid: config.vmid,
            kind: config.kind,
            ring: Mutex::new(ring),
            rptr_va: config.rptr_va,
            wptr_va: config.wptr_va,
            start,
            doorbell: config.doorbell,
            enabled: AtomicBool::new(config.enabled),
            removed: AtomicBool::new(false),
            wake: Condvar::new(),
            launch: Mutex::default(),
        };
        // Held over the start, so that an interrupt of the new thread finds the queue in the table.
        let mut queues = lock(&self.queues);
        let queue = Queue::start(&self.shared, Arc::new(control), slot)?;
        queues.insert(id, queue);
        Ok(id)
    }

    /// Moves a queue's ring, from the next packet on, and enables or disables the queue. The read
    /// pointer is kept. When disabling returns, no access of the queue is in flight, and none
    /// begins until it is enabled again; it stops in the middle of a packet.
    ///
    /// # Errors
    /// [`GpuError::BadQueue`], [`GpuError::BadRing`].
    pub fn update_queue(&self, id: QueueId, ring_va: u64, ring_bytes: u64, enabled: bool) -> Result<(), GpuError> {
        let ring = Ring::new(ring_va, ring_bytes)?;
        let control = lock(&self.queues).get(&id).map(|queue| queue.control.clone()).ok_or(GpuError::BadQueue(id))?;
        *lock(&control.ring) = ring;
        control.enabled.store(enabled, SeqCst);
        if enabled {
            self.shared.vmid_of(&control).wake_all();
        } else {
            self.shared.slots.drain_queue(id);
        }
        Ok(())
    }

    /// Removes a queue: it stops at the latest when the access in flight ends, also if it waits for
    /// memory, a fault's answer, its VMID or a polled value. Returns when its thread has ended;
    /// called on that thread, from an interrupt, it returns at once.
    ///
    /// # Errors
    /// [`GpuError::BadQueue`].
    pub fn remove_queue(&self, id: QueueId) -> Result<(), GpuError> {
        let queue = lock(&self.queues).remove(&id).ok_or(GpuError::BadQueue(id))?;
        queue.stop(&self.shared);
        Ok(())
    }

    /// Hints that doorbells were written: sleeping queues look at once rather than within a
    /// millisecond.
    pub fn ring(&self) {
        self.shared.bell.ring();
    }

    /// What this GPU has done so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters.snapshot()
    }

    /// For how long kernels have been on it.
    pub fn work(&self) -> Work {
        self.shared.busy.work()
    }

    /// For how long kernels of one VMID have been on it, and nanoseconds that the VMID's SDMA
    /// queues took for their packets. Both are since the GPU was made.
    pub fn work_of(&self, vmid: Vmid) -> (Work, u64) {
        let work = |state: &VmidState| {
            let all = self.shared.sabotage.has(Switch::WorkOfAll);
            (if all { self.shared.busy.work() } else { state.busy.work() }, state.copying.nanoseconds())
        };
        self.vmid(vmid).map_or((Work::default(), 0), work)
    }

    /// How many waves of one VMID's kernels have begun and not ended.
    pub fn waves_of(&self, vmid: Vmid) -> u64 {
        let all = self.shared.sabotage.has(Switch::WorkOfAll);
        let queues = lock(&self.queues);
        let own = queues.values().filter(|queue| all || queue.control.vmid == vmid);
        own.map(|queue| queue.control.waves()).sum()
    }

    /// What its kernels have cost.
    pub fn profile(&self) -> &Profile {
        &self.shared.config.profile
    }

    /// Walks the page tables for inspection; the TLBs are neither used nor changed.
    ///
    /// # Errors
    /// [`WalkError`], which says where the walk ended.
    pub fn translate(&self, vmid: Vmid, va: u64) -> Result<Translation, WalkError> {
        match self.vmid(vmid) {
            Some(state) => state.walk(&self.shared.fabric, va).map(|walked| walked.found),
            None => walk(&self.shared.fabric, None, va).map(|walked| walked.found),
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let queues = std::mem::take(&mut *lock(&self.queues));
        for queue in queues.into_values() {
            queue.stop(&self.shared);
        }
        self.shared.pool.stop();
    }
}
