// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A ring of the driver's own: where it is, and how far it has been worked off.

use crate::queues::hqd::HqdId;
use std::fmt;
use vkfd_gpu::Vmid;

/// Which ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RingId {
    /// A hardware queue of the command processor.
    Compute(HqdId),
    /// The ring that a copy engine has for the driver.
    Copy(usize),
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingId::Compute(hqd) => write!(f, "compute ring {hqd}"),
            RingId::Copy(engine) => write!(f, "ring of SDMA{engine}"),
        }
    }
}

/// A buffer that a packet of a ring has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Whose addresses its packets have.
    pub vmid: Vmid,
    pub va: u64,
    /// Words of it.
    pub words: u64,
    /// Words done.
    pub done: u64,
}

/// A ring that was started.
#[derive(Clone, Debug)]
pub struct Ring {
    pub id: RingId,
    /// Whose addresses it has: VMID 0 of its hub.
    pub vmid: Vmid,
    pub va: u64,
    /// Words of it; a power of two.
    pub words: u64,
    /// Words done and words submitted, since the beginning.
    pub rptr: u64,
    pub wptr: u64,
    /// Where the words that are done are reported; 0 for nowhere.
    pub report: u64,
    /// The buffer under way.
    pub buffer: Option<Buffer>,
    /// The first half of a packet that writes and waits is done.
    pub wrote: bool,
    /// Which start it was: a ring that was started anew meanwhile is another one.
    pub generation: u64,
    /// It met an error and stands still.
    pub halted: bool,
}

impl Ring {
    /// Whether there is something to do.
    pub fn is_busy(&self) -> bool {
        !self.halted && (self.buffer.is_some() || self.rptr != self.wptr)
    }

    /// Words that can be read now, of the buffer or the ring.
    pub fn available(&self) -> u64 {
        match self.buffer {
            Some(buffer) => buffer.words - buffer.done,
            None => self.wptr.wrapping_sub(self.rptr),
        }
    }

    /// Whose memory packets address now.
    pub fn space(&self) -> Vmid {
        self.buffer.map_or(self.vmid, |buffer| buffer.vmid)
    }

    /// The address of the word `index` from here, and whose address it is.
    pub fn word(&self, index: u64) -> (Vmid, u64) {
        match self.buffer {
            Some(buffer) => (buffer.vmid, buffer.va.wrapping_add((buffer.done + index).wrapping_mul(4))),
            None => {
                let place = self.rptr.wrapping_add(index) & (self.words - 1);
                (self.vmid, self.va.wrapping_add(place * 4))
            }
        }
    }

    /// `words` are done.
    pub fn advance(&mut self, words: u64) {
        self.wrote = false;
        match &mut self.buffer {
            Some(buffer) => {
                buffer.done += words;
                if buffer.done >= buffer.words {
                    self.buffer = None;
                }
            }
            None => self.rptr = self.rptr.wrapping_add(words),
        }
    }
}
