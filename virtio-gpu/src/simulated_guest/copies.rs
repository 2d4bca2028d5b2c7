// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue of copies (SDMA): the guest writes its packets and rings it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vkfd_remote::protocol::hsakmt::queue::{answer, kind, Create};
use vkfd_remote::protocol::PAGE;

use super::library::long;
use super::{wait, Guest, Library};

/// Bytes of the ring.
const RING_BYTES: u64 = 1 << 16;

/// A copy queue of the guest.
pub struct Copies {
    ring: u64,
    ring_va: u64,
    fence: u64,
    fence_va: u64,
    pointers: u64,
    doorbell: u64,
    written: u64,
    number: u32,
    /// The resources of the queue and its memory, the queue first.
    pub resources: Vec<u32>,
}

impl Library {
    /// A queue of copies, on the first GPU.
    ///
    /// # Panics
    /// When it is refused.
    pub fn copies(&mut self, guest: &mut Guest) -> Copies {
        let (ring_va, ring, ring_resource) = self.alloc(guest, RING_BYTES);
        let (fence_va, fence, fence_resource) = self.alloc(guest, PAGE);
        let pointers_blob = self.blob();
        let create = Create { pointers_blob, ..self.create(kind::SDMA, ring_va, RING_BYTES) };
        let (mut resources, doorbell, body) = self.queue(guest, create);
        let (pointers_resource, pointers) = guest.host_blob(self.context, pointers_blob, PAGE, true);
        let pointers = pointers + long(&body, answer::WRITE_OFFSET);
        resources.extend([pointers_resource, ring_resource, fence_resource]);
        Copies { ring, ring_va, fence, fence_va, pointers, doorbell, written: 0, number: 0, resources }
    }
}

impl Copies {
    /// Copies up to 1 GiB; whether the GPU has done it in time.
    pub fn copy(&mut self, guest: &Guest, to: u64, from: u64, bytes: u64, limit: Duration) -> bool {
        /// Most bytes of a packet.
        const CHUNK: u64 = 2 << 20;
        let halves = |n: u64| [n & 0xffff_ffff, n >> 32].map(|half| u32::try_from(half).unwrap());
        self.number += 1;
        let mut packets = Vec::new();
        for at in (0..bytes).step_by(usize::try_from(CHUNK).unwrap()) {
            let [from, to] = [from + at, to + at].map(halves);
            let count = u32::try_from((bytes - at).min(CHUNK) - 1).unwrap();
            packets.extend([1, count, 0, from[0], from[1], to[0], to[1]]);
        }
        let fence = halves(self.fence_va);
        packets.extend([5, fence[0], fence[1], self.number]);
        self.send(guest, &packets);
        let fence = guest.window.half(self.fence);
        wait(limit, || fence.load(Ordering::Acquire) == self.number)
    }

    /// Puts words into the ring, whatever they are, and rings.
    pub fn send(&mut self, guest: &Guest, words: &[u32]) {
        for word in words {
            guest.window.half(self.ring + self.written % RING_BYTES).store(*word, Ordering::Relaxed);
            self.written += 4;
        }
        guest.window.word(self.pointers).store(self.written, Ordering::Release);
        guest.window.word(self.doorbell).store(self.written, Ordering::Release);
    }

    /// Where the ring is for the GPU.
    #[must_use]
    pub fn ring_address(&self) -> u64 {
        self.ring_va
    }
}
