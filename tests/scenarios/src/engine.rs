// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU at work for a scenario: it copies, and adds up.
//!
//! Mechanism: a copy queue and a GTT buffer through which bytes come and go; a compute queue from
//! the first sum on.

use std::time::Duration;

use vkfd_client::{
    AllocOptions, Buffer, Client, ClientError, ComputeQueue, CopyQueue, GpuId, GpuSet, GpuVa, Kernel, Result,
};

/// Bytes that go through the GTT buffer at once.
const STAGING: u64 = 1 << 20;
/// How long a copy may take before it counts as stuck.
const LIMIT: Duration = Duration::from_secs(300);

/// A GPU's queues for one client.
pub struct Engine {
    client: Client,
    gpu: GpuId,
    copies: CopyQueue,
    compute: Option<ComputeQueue>,
    staging: Buffer,
}

impl Engine {
    /// Makes the copy queue and the buffer.
    ///
    /// # Errors
    ///
    /// What the calls failed with.
    pub fn new(client: &Client, gpu: GpuId) -> Result<Self> {
        let staging = client.alloc(&AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(STAGING) })?;
        let copies = CopyQueue::new(client, gpu)?;
        Ok(Self { client: client.clone(), gpu, copies, compute: None, staging })
    }

    /// Copies by SDMA and waits.
    ///
    /// # Errors
    ///
    /// As [`CopyQueue::copy_now`], [`ClientError::GpuFault`] among them; the engine is of no use
    /// then.
    pub fn copy(&mut self, dst: GpuVa, src: GpuVa, bytes: u64) -> Result {
        self.copies.copy_now(dst, src, bytes, LIMIT)
    }

    /// Reads GPU memory through the GTT buffer.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn read(&mut self, va: GpuVa, bytes: u64) -> Result<Vec<u8>> {
        let mut all = vec![0; usize::try_from(bytes).map_err(|_| too_long())?];
        let mut at = va;
        for piece in all.chunks_mut(usize::try_from(STAGING).map_err(|_| too_long())?) {
            let len = piece.len() as u64;
            self.copy(self.staging.gpu_va(), at, len)?;
            self.staging.read(0, piece)?;
            at = at.offset(len);
        }
        Ok(all)
    }

    /// Writes GPU memory through the GTT buffer.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn write(&mut self, va: GpuVa, bytes: &[u8]) -> Result {
        let mut at = va;
        for piece in bytes.chunks(usize::try_from(STAGING).map_err(|_| too_long())?) {
            let len = piece.len() as u64;
            self.staging.write(0, piece)?;
            self.copy(at, self.staging.gpu_va(), len)?;
            at = at.offset(len);
        }
        Ok(())
    }

    /// Fills GPU memory with a 32-bit value and waits.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn fill(&mut self, va: GpuVa, value: u32, bytes: u64) -> Result {
        self.copies.fill(va, value, bytes)?.submit()?.wait(LIMIT)
    }

    /// Adds 1 atomically to each of a list of 64-bit words, `rounds` times one after the other, and
    /// waits.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn count(&mut self, words: &[GpuVa], rounds: u64) -> Result {
        for _ in 0..rounds {
            for word in words {
                self.copies.add(*word, 1)?;
            }
        }
        self.copies.submit()?.wait(LIMIT)
    }

    /// Adds up 64-bit words, wrapping, with one of the client library's kernels.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn sum64(&mut self, va: GpuVa, bytes: u64) -> Result<u64> {
        let compute = match &mut self.compute {
            Some(compute) => compute,
            none => none.insert(ComputeQueue::new(&self.client, self.gpu)?),
        };
        let out = self.staging.gpu_va();
        compute.launch(&Kernel::Sum64 { src: va, count: bytes / 8, out })?.wait(LIMIT)?;
        let mut sum = [0; 8];
        self.staging.read(0, &mut sum)?;
        Ok(u64::from_le_bytes(sum))
    }
}

fn too_long() -> ClientError {
    ClientError::Invalid("more bytes than this computer can address".into())
}
