// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue of the copy engine.
//!
//! Mechanism: commands are collected as packets; `submit` puts them into the ring, then a fence,
//! then what wakes the waiters. Work of one queue runs in order. A submission larger than the ring
//! is fed in as the GPU reads.

use std::time::Duration;

use crate::address::{GpuId, GpuVa};
use crate::client::Client;
use crate::error::{ClientError, Result};
use crate::fence::{Counting, Fence};
use crate::queue::{Queue, RING_BYTES};
use crate::sdma::{self, Packet};

/// A queue that copies and fills memory, beside whatever compute queues do: for moving data. For
/// computing on it, see [`crate::ComputeQueue`], whose word on queues that have stopped holds here
/// too. GPU addresses are not checked here: a wrong one makes the queue stop with a page fault.
pub struct CopyQueue {
    queue: Queue,
    pending: Vec<Packet>,
    gfx_major: u32,
}

impl CopyQueue {
    /// Makes a queue on a GPU.
    ///
    /// # Errors
    ///
    /// What the calls failed with; [`ClientError::Unsupported`] on a GPU older than gfx9.
    pub fn new(client: &Client, gpu: GpuId) -> Result<Self> {
        Self::with_ring(client, gpu, RING_BYTES)
    }

    /// Makes a queue whose ring has `ring_bytes` bytes, a power of two of at least 1024.
    ///
    /// # Errors
    ///
    /// As [`CopyQueue::new`].
    pub fn with_ring(client: &Client, gpu: GpuId, ring_bytes: u32) -> Result<Self> {
        let gfx_major = client.gpu(gpu)?.gfx_major();
        Ok(Self { queue: Queue::new(client, gpu, Counting::Sdma, ring_bytes)?, pending: Vec::new(), gfx_major })
    }

    /// The GPU it is on.
    #[must_use]
    pub fn gpu(&self) -> GpuId {
        self.queue.timeline.gpu()
    }

    /// Adds a copy.
    pub fn copy(&mut self, dst: GpuVa, src: GpuVa, bytes: u64) -> &mut Self {
        self.pending.extend(sdma::copy(dst, src, bytes));
        self
    }

    /// Adds a fill with a 32-bit value.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] when address or size is not a multiple of 4.
    pub fn fill(&mut self, dst: GpuVa, value: u32, bytes: u64) -> Result<&mut Self> {
        if dst.0 % 4 != 0 || bytes % 4 != 0 {
            return Err(ClientError::Invalid(format!("fill of {bytes:#x} bytes at {dst}: not a multiple of 4")));
        }
        self.pending.extend(sdma::fill(dst, value, bytes));
        Ok(self)
    }

    /// Adds an atomic addition to 64 bits, wrapping.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] when the address is not a multiple of 8.
    pub fn add(&mut self, dst: GpuVa, value: u64) -> Result<&mut Self> {
        if dst.0 % 8 != 0 {
            return Err(ClientError::Invalid(format!("atomic addition at {dst}: not a multiple of 8")));
        }
        self.pending.push(sdma::add(dst, value));
        Ok(self)
    }

    /// Adds a write of the GPU's clock (64 bits) when what was added before is done.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] when the address is not a multiple of 32.
    pub fn timestamp(&mut self, dst: GpuVa) -> Result<&mut Self> {
        if dst.0 % 32 != 0 {
            return Err(ClientError::Invalid(format!("time stamp at {dst}: not a multiple of 32")));
        }
        self.pending.push(sdma::timestamp(dst));
        Ok(self)
    }

    /// Submits what was added.
    ///
    /// # Errors
    ///
    /// When the queue has stopped on an error, or [`ClientError::Timeout`] when the ring stays
    /// full; the added work is dropped then, and may have run in part.
    pub fn submit(&mut self) -> Result<Fence> {
        self.queue.timeline.check()?;
        let pending = std::mem::take(&mut self.pending);
        let caches = self.gfx_major >= 10;
        let number = self.queue.timeline.submit_next();
        if caches {
            self.put(&sdma::cache_control(true))?;
        }
        for packet in &pending {
            self.put(packet)?;
        }
        if caches {
            self.put(&sdma::cache_control(false))?;
        }
        let [a, b, c, d, ..] = number.to_le_bytes();
        let fence = sdma::fence(self.queue.timeline.fence_va(), u32::from_le_bytes([a, b, c, d]), self.gfx_major);
        self.put(&fence)?;
        let (slot, event) = self.queue.timeline.event();
        if let Some(slot) = slot {
            self.put(&sdma::fence(slot, event, self.gfx_major))?;
        }
        self.put(&sdma::trap(event))?;
        publish(&self.queue)?;
        // The room is kept for the next submission.
        self.pending = pending;
        self.pending.clear();
        Ok(Fence::new(&self.queue.timeline, number))
    }

    fn put(&mut self, packet: &Packet) -> Result {
        self.queue.put(packet.words(), |bytes| bytes / 4, publish)
    }

    /// Waits for a fence; the same as [`Fence::wait`].
    ///
    /// # Errors
    ///
    /// As [`Fence::wait`].
    pub fn wait(&self, fence: &Fence, timeout: Duration) -> Result {
        fence.wait(timeout)
    }

    /// Copies and waits.
    ///
    /// # Errors
    ///
    /// As [`CopyQueue::submit`] and [`Fence::wait`].
    pub fn copy_now(&mut self, dst: GpuVa, src: GpuVa, bytes: u64, timeout: Duration) -> Result {
        self.copy(dst, src, bytes).submit()?.wait(timeout)
    }
}

/// SDMA counts bytes, in memory and at the doorbell.
fn publish(queue: &Queue) -> Result {
    let bytes = queue.ring.written() * 4;
    queue.ring_doorbell(bytes, bytes)
}

const _: () = {
    const fn sendable<T: Send>() {}
    sendable::<CopyQueue>();
};
