// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether a process's queues run, and which of its objects wait for a restore (XNACK off).
//!
//! The first invalidation of mapped memory stops all queues of the process on all its GPUs and
//! schedules the restore. Stopped queues are the barrier; the page tables stay as they are. Each
//! invalidated object is on the waiting list once. The restore worker empties the list, and resumes
//! the queues when it finds the list empty, under the same lock. So either the worker sees an
//! invalidation, or the invalidation stops the queues again.
//!
//! Objects with ranges that had no memory at their restore are on a second list, once each, as long
//! as the driver goes on looking for that memory. Their queues run.
//!
//! Each VM has the time for which its queues were stopped. As in KFD, an eviction counts when it
//! ends.
//!
//! One lock (rank `Eviction`, taken in reclaim) guards everything here; room on both lists is made
//! beforehand.

use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, MutexGuard, Time, Vec};
use crate::sabotage::{Switch, Switches};
use crate::seams::gpu::{Gpu, Vmid};
use core::time::Duration;

/// A VM whose queues stop.
#[derive(Clone)]
pub struct Member {
    gpu: Arc<dyn Gpu>,
    vmid: Vmid,
    /// When its queues were stopped last.
    since: Time,
    /// Nanoseconds for which they were, in evictions that have ended.
    stopped: u64,
}

/// Object numbers that wait, and the VMs whose queues stop.
pub struct State {
    evicted: bool,
    waiting: Vec<u32>,
    lacking: Vec<u32>,
    /// SVM memory waits, too.
    svm: bool,
    vms: Vec<Member>,
    /// Evictions take time.
    timed: bool,
}

/// A process's eviction state.
pub struct Eviction(Mutex<State>);

/// The lock, held.
pub type Guard<'a> = MutexGuard<'a, State>;

impl Eviction {
    /// Running, nothing waits.
    pub fn new(sabotage: &Switches) -> Result<Self> {
        let timed = !sabotage.has(Switch::UntimedEvictions);
        let (waiting, lacking, vms) = (Vec::new(), Vec::new(), Vec::new());
        let state = State { evicted: false, waiting, lacking, svm: false, vms, timed };
        Ok(Self(Mutex::new(Rank::Eviction, state)?))
    }

    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_> {
        self.0.lock()
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        self.0.try_lock()
    }

    /// Makes sure that `objects` can wait, or lack memory, at once.
    pub fn make_room(&self, objects: usize) -> Result {
        // Allocated outside of the lock; the replaced list is freed outside of it, too.
        if self.lock().lacking.capacity() >= objects {
            return Ok(());
        }
        let room = objects.next_power_of_two();
        let (mut waiting, mut lacking) = (Vec::with_capacity(room)?, Vec::with_capacity(room)?);
        let mut state = self.lock();
        move_to(&mut state.waiting, &mut waiting);
        move_to(&mut state.lacking, &mut lacking);
        drop(state);
        Ok(())
    }

    /// Adds a VM; its queues stop at once if the process is evicted.
    pub fn add_vm(&self, gpu: &Arc<dyn Gpu>, vmid: Vmid) -> Result {
        let known = self.lock().vms.len();
        let mut bigger = Vec::with_capacity(known.saturating_add(1))?;
        let mut state = self.lock();
        for vm in state.vms.iter() {
            bigger.push_reserved(vm.clone());
        }
        bigger.push_reserved(Member { gpu: gpu.clone(), vmid, since: os::now(), stopped: 0 });
        core::mem::swap(&mut state.vms, &mut bigger);
        if state.evicted {
            gpu.suspend(vmid);
        }
        drop(state);
        Ok(())
    }

    /// For how long the queues of a GPU were stopped, in evictions that have ended.
    pub fn stopped(&self, gpu_id: u32) -> Duration {
        let state = self.lock();
        let mut vms = state.vms.iter().filter(|vm| vm.gpu.properties().gpu_id == gpu_id);
        Duration::from_nanos(vms.next().map_or(0, |vm| vm.stopped))
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let state = self.lock();
        let lists = state.waiting.memory().saturating_add(state.lacking.memory());
        lists.saturating_add(state.vms.memory())
    }
}

/// Makes `list` the larger of the two, with its contents; the caller frees `other`.
fn move_to(list: &mut Vec<u32>, other: &mut Vec<u32>) {
    if list.capacity() < other.capacity() {
        for number in list.iter() {
            other.push_reserved(*number);
        }
        core::mem::swap(list, other);
    }
}

impl State {
    /// Whether the queues are stopped.
    pub const fn evicted(&self) -> bool {
        self.evicted
    }

    /// Puts an object on the waiting list; the caller knows that it is not on it.
    pub fn wait(&mut self, object: u32) {
        let queued = self.waiting.push_reserved(object);
        debug_assert!(queued, "room was made when the object was");
    }

    /// SVM memory waits for a restore.
    pub fn wait_svm(&mut self) {
        self.svm = true;
    }

    /// Whether SVM memory waited; it is being restored now.
    pub fn take_svm(&mut self) -> bool {
        core::mem::replace(&mut self.svm, false)
    }

    /// Calls `f` with the `gpu_id` of each VM.
    pub fn each_gpu(&self, mut f: impl FnMut(u32)) {
        for vm in self.vms.iter() {
            f(vm.gpu.properties().gpu_id);
        }
    }

    /// Stops the queues. Whether they ran.
    pub fn evict(&mut self) -> bool {
        if self.evicted {
            return false;
        }
        self.evicted = true;
        let now = os::now();
        for vm in self.vms.iter_mut() {
            vm.gpu.suspend(vm.vmid);
            vm.since = now;
        }
        true
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes one that waits.
    pub fn take_waiting(&mut self) -> Option<u32> {
        self.waiting.pop()
    }

    /// Puts an object on the list of those that lack memory; the caller knows that it is not on it.
    pub fn lack(&mut self, object: u32) {
        let queued = self.lacking.push_reserved(object);
        debug_assert!(queued, "room was made when the object was");
    }

    /// How many lack memory.
    pub fn lacking(&self) -> usize {
        self.lacking.len()
    }

    /// Takes one that lacks memory.
    pub fn take_lacking(&mut self) -> Option<u32> {
        self.lacking.pop()
    }

    /// Takes an object off both lists: it is being freed. O(waiting and lacking).
    pub fn forget(&mut self, object: u32) {
        for list in [&mut self.waiting, &mut self.lacking] {
            if let Some(at) = list.iter().position(|number| *number == object) {
                list.swap_remove(at);
            }
        }
    }

    /// Whether nothing waits for the restore, which then lets the queues go on.
    pub fn is_restored(&self) -> bool {
        self.waiting.is_empty() && !self.svm
    }

    /// Lets stopped queues go on. Nothing may wait.
    pub fn resume(&mut self) {
        if self.evicted {
            self.evicted = false;
            let now = os::now();
            for vm in self.vms.iter_mut() {
                let stopped = if self.timed { now.0.saturating_sub(vm.since.0) } else { 0 };
                vm.stopped = vm.stopped.saturating_add(stopped);
                vm.gpu.resume(vm.vmid);
            }
        }
    }

    /// Forgets the VMs: the process ends, and its queues have ended. A VMID that it leaves stopped
    /// would stop the next owner's.
    pub fn take_vms(&mut self) -> Vec<Member> {
        if core::mem::replace(&mut self.evicted, false) {
            for vm in self.vms.iter() {
                vm.gpu.resume(vm.vmid);
            }
        }
        core::mem::take(&mut self.vms)
    }
}
