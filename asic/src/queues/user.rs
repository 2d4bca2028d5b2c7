// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs' queues, which run on the GPU's queue threads.
//!
//! A queue is *mapped* while a hardware queue has it. When the driver unmaps it (preempts it), the
//! GPU's queue is disabled and *parked* with all that it was about to do. A number in a reserved
//! word of the queue's MQD, its ticket, lets a later mapping find it again. A new queue at the same
//! address has no ticket, because the driver clears a new MQD.
//!
//! A doorbell write goes into a word that belongs to the queue alone, and wakes the GPU. Writes for
//! a queue that is not mapped are ignored, as hardware drops them: the write pointer in memory says
//! what was submitted meanwhile.
//!
//! The device's lock guards all of it. Removing a GPU's queue waits for the queue's thread, which
//! may be in an interrupt and want that lock. So removed queues are handed to the caller
//! ([`Users::take_removed`]), to be removed without it.

use crate::queues::hqd::HqdId;
use crate::registers::Dword;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use vkfd_gpu::{DoorbellPtr, Gpu, GpuError, QueueConfig, QueueId, QueueKind, Vmid};

/// How a queue is known to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// By the address of its MQD: the scheduler has it.
    Mqd(u64),
    /// By a hardware queue of the command processor: the driver has loaded it.
    Hqd(HqdId),
    /// By a hardware queue of a copy engine: the driver has loaded it.
    Copy(usize, u32),
}

/// A queue to be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewQueue {
    pub(crate) key: Key,
    /// VMID without its hub.
    pub(crate) vmid: u8,
    pub(crate) pasid: u16,
    /// The copy engine, if it is one's.
    pub(crate) engine: Option<usize>,
    pub(crate) kind: QueueKind,
    pub(crate) ring_va: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) rptr_va: u64,
    pub(crate) wptr_va: u64,
    /// Read pointer at the start.
    pub(crate) start: u64,
    pub(crate) doorbell: Dword,
}

/// A queue.
pub(crate) struct UserQueue {
    pub(crate) new: NewQueue,
    pub(crate) gpu: QueueId,
    /// What the MQD has; never 0.
    pub(crate) ticket: u32,
    pub(crate) mapped: bool,
    slot: Arc<AtomicU64>,
}

impl NewQueue {
    /// The VMID with its hub.
    pub(crate) fn space(&self) -> Vmid {
        space(self.vmid, self.engine.is_some())
    }

    /// What a doorbell says when `wptr` was submitted.
    fn doorbell_value(&self, wptr: u64) -> u64 {
        wptr.wrapping_sub(u64::from(self.kind == QueueKind::Aql))
    }
}

/// VMIDs of each hub.
pub(crate) const VMIDS: u8 = 16;

/// The GPU's number of a VMID: each hub has tables of its own.
pub(crate) fn space(vmid: u8, mmhub: bool) -> Vmid {
    Vmid(u32::from(vmid % VMIDS) + if mmhub { u32::from(VMIDS) } else { 0 })
}

/// The VMID without its hub, and whether that is the copy engines'.
pub(crate) fn number(vmid: Vmid) -> (u8, bool) {
    (u8::try_from(vmid.0 % u32::from(VMIDS)).unwrap_or(0), vmid.0 >= VMIDS.into())
}

/// All queues.
#[derive(Default)]
pub(crate) struct Users {
    queues: BTreeMap<Key, UserQueue>,
    doorbells: BTreeMap<Dword, Key>,
    removed: Vec<QueueId>,
    tickets: u32,
}

impl Users {
    /// Starts a queue, which takes the place of one with its key.
    pub(crate) fn start(&mut self, gpu: &Gpu, new: NewQueue) -> Result<u32, GpuError> {
        self.remove(new.key);
        let slot = Arc::new(AtomicU64::new(0));
        let Some(word) = NonNull::new(slot.as_ptr()) else { return Err(GpuError::NoQueue) };
        // SAFETY: an aligned word that the Arc keeps in place.
        let doorbell = unsafe { DoorbellPtr::new(word, slot.clone()) };
        let config = QueueConfig {
            vmid: new.space(),
            kind: new.kind,
            ring_va: new.ring_va,
            ring_bytes: new.ring_bytes,
            // The registers have no low bits. A program may give any address, and a queue that
            // cannot be made would stop the driver's own ring.
            rptr_va: new.rptr_va & !7,
            wptr_va: new.wptr_va & !7,
            doorbell,
            enabled: true,
        };
        let id = gpu.add_queue_at(config, new.start)?;
        self.tickets = self.tickets.wrapping_add(1).max(1);
        let queue = UserQueue { new, gpu: id, ticket: self.tickets, mapped: true, slot };
        self.doorbells.insert(new.doorbell, new.key);
        self.queues.insert(new.key, queue);
        Ok(self.tickets)
    }

    /// Lets a parked queue go on, with its ring where `new` has it. Whether there was such a queue.
    pub(crate) fn resume(&mut self, gpu: &Gpu, new: &NewQueue, ticket: u32) -> bool {
        let Some(queue) = self.queues.get_mut(&new.key) else { return false };
        let same = queue.ticket == ticket
            && (queue.new.pasid, queue.new.vmid, queue.new.kind) == (new.pasid, new.vmid, new.kind);
        if !same || gpu.update_queue(queue.gpu, new.ring_va, new.ring_bytes, true).is_err() {
            return false;
        }
        let start = queue.new.start;
        queue.new = NewQueue { start, ..*new };
        queue.mapped = true;
        self.doorbells.insert(new.doorbell, new.key);
        true
    }

    /// Parks a queue: when this returns, it accesses nothing.
    pub(crate) fn park(&mut self, gpu: &Gpu, key: Key) {
        let Some(queue) = self.queues.get_mut(&key).filter(|queue| queue.mapped) else { return };
        queue.mapped = false;
        if let Err(error) = gpu.update_queue(queue.gpu, queue.new.ring_va, queue.new.ring_bytes, false) {
            tracing::warn!(?key, %error, "a queue cannot be parked");
        }
        if self.doorbells.get(&queue.new.doorbell) == Some(&key) {
            self.doorbells.remove(&queue.new.doorbell);
        }
    }

    /// Takes a queue away. It goes on until [`Users::take_removed`]'s caller removes it.
    pub(crate) fn remove(&mut self, key: Key) {
        if let Some(queue) = self.queues.remove(&key) {
            if self.doorbells.get(&queue.new.doorbell) == Some(&key) {
                self.doorbells.remove(&queue.new.doorbell);
            }
            self.removed.push(queue.gpu);
        }
    }

    /// Queues of the GPU to be removed, without the device's lock.
    pub(crate) fn take_removed(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.removed)
    }

    /// So much was submitted to a queue.
    pub(crate) fn submit(&self, gpu: &Gpu, key: Key, wptr: u64) {
        if let Some(queue) = self.queues.get(&key) {
            queue.slot.store(queue.new.doorbell_value(wptr), SeqCst);
            gpu.ring();
        }
    }

    /// A doorbell was written. Whether a mapped queue has it.
    pub(crate) fn doorbell(&self, gpu: &Gpu, at: Dword, value: u64) -> bool {
        let Some(queue) = self.doorbells.get(&at).and_then(|key| self.queues.get(key)) else { return false };
        queue.slot.store(value, SeqCst);
        gpu.ring();
        true
    }

    pub(crate) fn get(&self, key: Key) -> Option<&UserQueue> {
        self.queues.get(&key)
    }

    pub(crate) fn by_id(&self, id: QueueId) -> Option<&UserQueue> {
        self.queues.values().find(|queue| queue.gpu == id)
    }

    /// Keys of the queues that `wanted` names.
    pub(crate) fn keys(&self, wanted: impl Fn(&UserQueue) -> bool) -> Vec<Key> {
        self.queues.iter().filter(|(_, queue)| wanted(queue)).map(|(key, _)| *key).collect()
    }
}
