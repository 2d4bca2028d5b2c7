// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU page faults that wait to be served.
//!
//! Devices call in on their own threads; a lock of rank `Event` guards the list. The process's
//! worker serves them.

use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::os::{Mutex, Vec};
use crate::seams::gpu::PageFault;

/// Faults in the order in which they came, with the number of their GPU. There are no more than
/// queues: each waits for its answer.
struct Waiting {
    list: Vec<(usize, PageFault)>,
    /// Which is next; those before it have been taken.
    next: usize,
    closed: bool,
}

/// Faults that wait for the worker.
pub struct Faults(Mutex<Waiting>);

impl Faults {
    pub fn new() -> Result<Self> {
        Ok(Self(Mutex::new(Rank::Event, Waiting { list: Vec::new(), next: 0, closed: false })?))
    }

    /// Appends one. ENOMEM; ESRCH once the process ends.
    pub(crate) fn push(&self, gpu: usize, fault: PageFault) -> Result {
        let mut waiting = self.0.lock();
        if waiting.closed {
            return Err(Errno::ESRCH.into());
        }
        // Taken ones give way before the list grows, or one that never runs empty would grow for
        // ever.
        if waiting.list.len() == waiting.list.capacity() && waiting.next > 0 {
            let (taken, left) = (waiting.next, waiting.list.len().saturating_sub(waiting.next));
            waiting.list.rotate_left(taken);
            waiting.list.truncate(left);
            waiting.next = 0;
        }
        waiting.list.push((gpu, fault))
    }

    /// Takes the first.
    pub(crate) fn pop(&self) -> Option<(usize, PageFault)> {
        let mut waiting = self.0.lock();
        let first = waiting.list.get(waiting.next).copied();
        waiting.next = waiting.next.saturating_add(1);
        if waiting.next >= waiting.list.len() {
            waiting.list.clear();
            waiting.next = 0;
        }
        first
    }

    /// Forgets all of them, and those to come: their queues end.
    pub(crate) fn close(&self) {
        let mut waiting = self.0.lock();
        waiting.closed = true;
        waiting.list.clear();
        waiting.next = 0;
    }
}
