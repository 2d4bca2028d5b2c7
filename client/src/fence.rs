// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waiting for a queue's work.
//!
//! Mechanism: a queue runs in order and counts its finished work in memory (its timeline). An SDMA
//! queue writes the low 32 bits of the submission's number; an AQL queue decrements one signal for
//! each packet. A fence is a number on the timeline. A waiter polls the count for [`SPIN`], then
//! sleeps in WAIT_EVENTS. It waits for the queue's signal event and its events for memory and
//! hardware exceptions. A slice is at most [`SLICE`], because another waiter can take an event that
//! resets itself.
//!
//! Faults: the driver reports a page fault on a GPU to every event of the process, without the
//! queue. vkfd answers which queue has stopped and why. On another driver, a queue counts as
//! stopped when, after a fault, it neither finishes work nor reads packets for [`GRACE`]. A kernel
//! that runs for longer than that beside a faulting queue counts as stopped, too. A stopped queue
//! stays failed.
//!
//! Limits: a dropped queue never finishes what it had not; waiting for that fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vkfd_uapi::event::{EVENT_HW_EXCEPTION, EVENT_MEMORY, EVENT_SIGNAL};
use vkfd_uapi::vkfd::{QUEUE_FAULT_NOT_PRESENT, QUEUE_FAULT_READ_ONLY, QUEUE_STATE_BROKEN, QUEUE_STATE_FAULTED};

use crate::address::{GpuId, GpuVa};
use crate::aql::{Signal, SIGNAL_KIND_USER};
use crate::buffer::{AllocOptions, Buffer};
use crate::client::{Client, GpuSet};
use crate::error::{ClientError, Result};
use crate::event::{wait_any, Event};

/// How long a waiter looks at memory before it sleeps.
pub const SPIN: Duration = Duration::from_micros(50);
/// The longest time that a waiter sleeps without looking.
pub const SLICE: Duration = Duration::from_millis(20);
/// How long a queue may stand still after a page fault on its GPU before it counts as stopped.
pub const GRACE: Duration = Duration::from_millis(250);

/// Offsets in a queue's control page, in bytes.
const READ_POINTER: u64 = 0;
const WRITE_POINTER: u64 = 0x80;
const FENCE: u64 = 0x100;
const SIGNAL: u64 = 0x140;

/// How a queue counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The low 32 bits of the last finished number.
    Sdma,
    /// A signal's value: minus the packets finished.
    Aql,
}

/// What a queue and its fences share.
pub(crate) struct Timeline {
    client: Client,
    gpu: GpuId,
    counting: Counting,
    control: Buffer,
    signal: Event,
    memory: Event,
    hardware: Event,
    submitted: AtomicU64,
    closed: AtomicBool,
    failed: OnceLock<ClientError>,
    suspect: Mutex<Option<Suspect>>,
    /// The queue's number, once it has one.
    queue: OnceLock<u32>,
}

/// A fault that this queue may have stopped on.
struct Suspect {
    error: ClientError,
    /// When it was last seen to make progress, and how far it was.
    since: Instant,
    progress: (u64, u64),
}

impl Timeline {
    pub(crate) fn new(client: &Client, gpu: GpuId, counting: Counting) -> Result<Arc<Self>> {
        let options = AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(4096) };
        let timeline = Self {
            client: client.clone(),
            gpu,
            counting,
            control: client.alloc(&options)?,
            signal: Event::new(client, EVENT_SIGNAL)?,
            memory: Event::new(client, EVENT_MEMORY)?,
            hardware: Event::new(client, EVENT_HW_EXCEPTION)?,
            submitted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
            suspect: Mutex::new(None),
            queue: OnceLock::new(),
        };
        timeline.word(SIGNAL)?.store(SIGNAL_KIND_USER, Ordering::Relaxed);
        let mailbox = timeline.signal.slot().map_or(0, |slot| slot.0);
        let field = |offset: usize| SIGNAL + u64::try_from(offset).unwrap_or(0);
        timeline.word(field(std::mem::offset_of!(Signal, event_mailbox)))?.store(mailbox, Ordering::Relaxed);
        let event_id = u64::from(timeline.signal.id());
        timeline.word(field(std::mem::offset_of!(Signal, event_id)))?.store(event_id, Ordering::Release);
        Ok(Arc::new(timeline))
    }

    /// A 64-bit word of the control page, which GPU and CPU access atomically.
    fn word(&self, at: u64) -> Result<&AtomicU64> {
        const { assert!(SIGNAL % 64 == 0 && WRITE_POINTER % 8 == 0) };
        let base = self.control.cpu_ptr().ok_or_else(|| ClientError::Invalid("no control page".into()))?;
        debug_assert!(at + 8 <= self.control.len() && at % 8 == 0);
        // SAFETY: `at` is an aligned word of the page (the constants above), which stays mapped as
        // long as `self`; all accesses to it are atomic.
        Ok(unsafe { AtomicU64::from_ptr(base.as_ptr().add(crate::address::index(at)).cast()) })
    }

    fn load(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn gpu(&self) -> GpuId {
        self.gpu
    }

    pub(crate) fn read_pointer_va(&self) -> GpuVa {
        self.control.gpu_va().offset(READ_POINTER)
    }

    pub(crate) fn write_pointer_va(&self) -> GpuVa {
        self.control.gpu_va().offset(WRITE_POINTER)
    }

    /// The address to which an SDMA queue writes the number of its last finished submission.
    pub(crate) fn fence_va(&self) -> GpuVa {
        self.control.gpu_va().offset(FENCE)
    }

    /// The signal that an AQL queue decrements.
    pub(crate) fn signal_va(&self) -> GpuVa {
        self.control.gpu_va().offset(SIGNAL)
    }

    /// The slot and the number of the event that wakes the waiters.
    pub(crate) fn event(&self) -> (Option<GpuVa>, u32) {
        (self.signal.slot(), self.signal.id())
    }

    /// How far the GPU has read, in the queue's unit.
    pub(crate) fn read_pointer(&self) -> u64 {
        self.load(READ_POINTER)
    }

    pub(crate) fn set_write_pointer(&self, position: u64) -> Result {
        self.word(WRITE_POINTER)?.store(position, Ordering::Release);
        Ok(())
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    /// Notes that the number before the next one is being submitted, and returns it. Only the queue
    /// calls it.
    pub(crate) fn submit_next(&self) -> u64 {
        self.submitted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the last submission that has finished.
    pub(crate) fn finished(&self) -> u64 {
        let submitted = self.submitted();
        match self.counting {
            Counting::Sdma => {
                let low = |n: u64| {
                    let b = n.to_le_bytes();
                    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
                };
                extend(submitted, low(self.load(FENCE)))
            }
            Counting::Aql => {
                let offset = u64::try_from(std::mem::offset_of!(Signal, value)).unwrap_or(0);
                let value = i64::from_ne_bytes(self.load(SIGNAL + offset).to_ne_bytes());
                u64::try_from(value.saturating_neg()).unwrap_or(0)
            }
        }
    }

    /// The queue exists now.
    pub(crate) fn created(&self, queue: u32) {
        let _ = self.queue.set(queue);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Fails when the queue has stopped on an error.
    pub(crate) fn check(&self) -> Result {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Sleeps until something happens or `limit` has passed, and finds out whether the queue has
    /// stopped.
    pub(crate) fn sleep(&self, limit: Duration) -> Result {
        self.check()?;
        let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX - 1).max(1);
        let ids = [self.signal.id(), self.memory.id(), self.hardware.id()];
        let [_, memory, hardware] = wait_any(&self.client, ids, milliseconds)?;
        let fault = memory.payload.memory_exception();
        if self.client.caps().queues {
            // Whatever GPU it names: an event has the data of the last exception alone, and another
            // GPU's may have come after this one's.
            let has_any = fault.gpu_id != 0 || hardware.payload.hw_exception().gpu_id != 0;
            return if has_any { self.look() } else { Ok(()) };
        }
        if fault.gpu_id == self.gpu.0 {
            self.suspect(ClientError::GpuFault {
                gpu: self.gpu,
                va: GpuVa(fault.va),
                not_present: fault.failure.not_present != 0,
                read_only: fault.failure.read_only != 0,
            });
        }
        // The entry is filled only when the event was signalled; the GPU tells one from the other.
        if hardware.payload.hw_exception().gpu_id == self.gpu.0 {
            self.suspect(ClientError::QueueError { gpu: self.gpu });
        }
        self.judge()
    }

    /// Asks the driver whether the queue has stopped.
    fn look(&self) -> Result {
        let Some(info) = self.queue.get().map_or(Ok(None), |id| self.client.queue(*id))? else { return Ok(()) };
        let error = match info.state {
            QUEUE_STATE_FAULTED => ClientError::GpuFault {
                gpu: self.gpu,
                va: GpuVa(info.fault_va),
                not_present: info.fault & QUEUE_FAULT_NOT_PRESENT != 0,
                read_only: info.fault & QUEUE_FAULT_READ_ONLY != 0,
            },
            QUEUE_STATE_BROKEN => ClientError::QueueError { gpu: self.gpu },
            _ => return Ok(()),
        };
        Err(self.failed.get_or_init(|| error).clone())
    }

    fn progress(&self) -> (u64, u64) {
        (self.finished(), self.read_pointer())
    }

    fn suspect(&self, error: ClientError) {
        let mut suspect = self.suspect.lock().unwrap_or_else(PoisonError::into_inner);
        if suspect.is_none() {
            *suspect = Some(Suspect { error, since: Instant::now(), progress: self.progress() });
        }
    }

    /// Decides whether the queue has stopped on the fault that was seen.
    fn judge(&self) -> Result {
        let mut slot = self.suspect.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suspect) = slot.as_mut() else { return Ok(()) };
        let progress = self.progress();
        if progress.0 >= self.submitted() {
            // Everything is done: the fault was another queue's.
            *slot = None;
        } else if progress != suspect.progress || self.evicted() {
            suspect.progress = progress;
            suspect.since = Instant::now();
        } else if suspect.since.elapsed() >= GRACE {
            let error = suspect.error.clone();
            *slot = None;
            return Err(self.failed.get_or_init(|| error).clone());
        }
        Ok(())
    }

    fn evicted(&self) -> bool {
        self.client.caps().snapshot && self.client.snapshot().is_ok_and(|info| info.evicted != 0)
    }
}

/// The largest number up to `submitted` whose low 32 bits are `low`: at most 2^32 submissions are
/// under way.
fn extend(submitted: u64, low: u32) -> u64 {
    let behind = submitted.wrapping_sub(u64::from(low)) & u64::from(u32::MAX);
    submitted.saturating_sub(behind)
}

/// A point in a queue's work. Clones are of the same point; it stays valid when the queue is gone.
#[derive(Clone)]
pub struct Fence {
    timeline: Arc<Timeline>,
    number: u64,
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fence").field("gpu", &self.timeline.gpu).field("number", &self.number).finish()
    }
}

impl Fence {
    pub(crate) fn new(timeline: &Arc<Timeline>, number: u64) -> Self {
        Self { timeline: timeline.clone(), number }
    }

    /// Its number: 1 is the queue's first submission.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the work up to it is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.timeline.finished() >= self.number
    }

    /// Waits until the work up to it is done. What the GPU wrote is visible to this thread then.
    ///
    /// # Errors
    ///
    /// [`ClientError::GpuFault`] or [`ClientError::QueueError`] when the queue has stopped,
    /// [`ClientError::Timeout`], and [`ClientError::Invalid`] when the queue was dropped before the
    /// work was done.
    pub fn wait(&self, timeout: Duration) -> Result {
        let start = Instant::now();
        loop {
            if self.is_done() {
                return Ok(());
            }
            let elapsed = start.elapsed();
            if self.timeline.closed.load(Ordering::Acquire) {
                self.timeline.check()?;
                return Err(ClientError::Invalid("the queue was dropped before the work was done".into()));
            }
            let Some(left) = timeout.checked_sub(elapsed).filter(|left| !left.is_zero()) else {
                return Err(ClientError::Timeout(timeout));
            };
            if elapsed < SPIN {
                std::hint::spin_loop();
            } else if let Err(error) = self.timeline.sleep(left.min(SLICE)) {
                // What was finished before the failure is done.
                return if self.is_done() { Ok(()) } else { Err(error) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_survives_32_bits() {
        assert_eq!(extend(0, 0), 0);
        assert_eq!(extend(5, 3), 3);
        assert_eq!(extend(0x1_0000_0002, 0xffff_ffff), 0xffff_ffff);
        assert_eq!(extend(0x1_0000_0002, 1), 0x1_0000_0001);
        assert_eq!(extend(0x7_0000_0000, 0), 0x7_0000_0000);
        // Nothing finished yet.
        assert_eq!(extend(9, 0), 0);
    }
}
