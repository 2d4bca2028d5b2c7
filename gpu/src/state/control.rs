// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue as its user describes it, and what its thread shares with the GPU's methods.
//!
//! The ring's place is guarded by the mutex in [`Control`]; everything else in there is immutable
//! or atomic.

use crate::base::error::GpuError;
use crate::base::ids::{QueueId, Vmid};
use crate::base::lock::lock;
use crate::base::queue_error::QueueError;
use crate::raw;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};

/// What the packets in a queue are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// SDMA packets. Doorbell and pointers count bytes and only grow.
    Sdma,
    /// AQL packets. The doorbell is the index of the last packet, the pointers are indices and only
    /// grow.
    Aql,
    /// PM4 packets. The doorbell counts 32-bit words and only grows; the read pointer is the place
    /// in the ring, 32 bits.
    Pm4,
}

/// An 8-byte doorbell slot in shared memory.
#[derive(Clone)]
pub struct DoorbellPtr {
    ptr: NonNull<u64>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the slot is only accessed by recoverable word accesses, and the keeper may be dropped
// anywhere.
unsafe impl Send for DoorbellPtr {}
// SAFETY: as above.
unsafe impl Sync for DoorbellPtr {}

impl DoorbellPtr {
    /// A doorbell at `ptr`; `keeper` owns the mapping and is held as long as the doorbell is used.
    ///
    /// # Safety
    /// `ptr` is aligned to 8 bytes and stays a mapping of the doorbell as long as `keeper` lives.
    pub unsafe fn new(ptr: NonNull<u64>, keeper: Arc<dyn Any + Send + Sync>) -> DoorbellPtr {
        DoorbellPtr { ptr, _keeper: keeper }
    }

    pub(crate) fn load(&self) -> Result<u64, QueueError> {
        // SAFETY: by the contract of `new`.
        unsafe { raw::load_u64(self.ptr.as_ptr()) }.map_err(QueueError::DoorbellLost)
    }

    pub(crate) fn store(&self, value: u64) -> Result<(), raw::Faulted> {
        // SAFETY: by the contract of `new`.
        unsafe { raw::store_u64(self.ptr.as_ptr(), value) }
    }
}

/// A queue to be added. Addresses are GPU virtual addresses in the queue's VMID.
#[derive(Clone)]
pub struct QueueConfig {
    /// Address space of the ring, the pointers and everything its packets touch.
    pub vmid: Vmid,
    /// Packet format.
    pub kind: QueueKind,
    /// The ring; aligned to 64 bytes.
    pub ring_va: u64,
    /// Size of the ring in bytes; a power of two, at least 256.
    pub ring_bytes: u64,
    /// Where the read pointer is written, 8 bytes, of PM4 the lower 4; 0 for nowhere.
    pub rptr_va: u64,
    /// Where the client keeps its 8-byte write pointer; 0 for nowhere. Read by AQL queues only,
    /// when the doorbell changes: with several producers the doorbell alone may step back.
    pub wptr_va: u64,
    /// The doorbell. Adding the queue sets it to "nothing submitted": 0, or all ones for AQL.
    pub doorbell: DoorbellPtr,
    /// Whether the queue runs at once; see [`Gpu::update_queue`](crate::Gpu::update_queue).
    pub enabled: bool,
}

/// Where a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) va: u64,
    pub(crate) bytes: u64,
}

impl Ring {
    /// Checks that a ring can be used.
    pub(crate) fn new(va: u64, bytes: u64) -> Result<Ring, GpuError> {
        if va % 64 != 0 || !bytes.is_power_of_two() || bytes < 256 || va.checked_add(bytes).is_none() {
            return Err(GpuError::BadRing { va, bytes });
        }
        Ok(Ring { va, bytes })
    }
}

/// What a queue's thread shares with the GPU's methods.
pub(crate) struct Control {
    pub(crate) id: QueueId,
    pub(crate) vmid: Vmid,
    pub(crate) kind: QueueKind,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) rptr_va: u64,
    pub(crate) wptr_va: u64,
    /// Where the read pointer begins.
    pub(crate) start: u64,
    pub(crate) doorbell: DoorbellPtr,
    pub(crate) enabled: AtomicBool,
    pub(crate) removed: AtomicBool,
    /// Wakes its thread where that dozes (see [`super::bell`]).
    pub(crate) wake: Condvar,
    /// The launch that it has under way. Lock: a leaf.
    pub(crate) launch: Mutex<Option<Arc<dyn HasWaves>>>,
}

/// A launch, as its queue knows it.
pub(crate) trait HasWaves: Send + Sync {
    /// Waves that have begun and not ended.
    fn waves(&self) -> u64;
}

impl Control {
    /// Waves of its launch that have begun and not ended.
    pub(crate) fn waves(&self) -> u64 {
        let launch = lock(&self.launch).clone();
        launch.map_or(0, |launch| launch.waves())
    }

    /// What stands in for a queue where there is none.
    pub(crate) fn nowhere() -> Arc<Control> {
        let slot = Arc::new(AtomicU64::new(0));
        let doorbell = DoorbellPtr { ptr: NonNull::from(&*slot).cast(), _keeper: slot.clone() };
        Arc::new(Control {
            id: QueueId(u32::MAX),
            vmid: Vmid(0),
            kind: QueueKind::Aql,
            ring: Mutex::new(Ring { va: 0, bytes: 256 }),
            rptr_va: 0,
            wptr_va: 0,
            start: 0,
            doorbell,
            enabled: AtomicBool::new(false),
            removed: AtomicBool::new(true),
            wake: Condvar::new(),
            launch: Mutex::default(),
        })
    }

    /// The control of a reader and writer of memory that is no queue.
    pub(crate) fn view(vmid: Vmid) -> Arc<Control> {
        let slot = Arc::new(AtomicU64::new(0));
        let doorbell = DoorbellPtr { ptr: NonNull::from(&*slot).cast(), _keeper: slot.clone() };
        Arc::new(Control {
            id: QueueId(u32::MAX),
            vmid,
            kind: QueueKind::Pm4,
            ring: Mutex::new(Ring { va: 0, bytes: 256 }),
            rptr_va: 0,
            wptr_va: 0,
            start: 0,
            doorbell,
            enabled: AtomicBool::new(true),
            removed: AtomicBool::new(false),
            wake: Condvar::new(),
            launch: Mutex::default(),
        })
    }
}
