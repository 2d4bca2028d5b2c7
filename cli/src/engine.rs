// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Work for one GPU, and the comparison of its results with the CPU's.
//!
//! On vkfd checksums are computed by kernels of its GPU. Elsewhere this program has no kernels:
//! there the copy engine copies the memory out, and the copy's checksum counts as the GPU's view.

use anyhow::{bail, Result};
use serde_json::{json, Value};
use vkfd_client::{AllocOptions, Buffer, Client, ComputeQueue, CopyQueue, GpuId, GpuSet, GpuVa, Kernel, PAGE};

use crate::session::PATIENCE;

/// Bytes copied out at a time.
const STAGING: u64 = 16 << 20;
/// Bytes of an entry of the segment table and of a result.
const SEGMENT_BYTES: u64 = 16;
const RESULT_BYTES: u64 = 4;

/// A piece of GPU memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its first address.
    pub va: GpuVa,
    pub bytes: u64,
}

/// One GPU's queues and the memory for results.
pub struct Engine {
    client: Client,
    /// The GPU.
    pub gpu: GpuId,
    compute: Option<ComputeQueue>,
    copy: CopyQueue,
    segments: Buffer,
    results: Buffer,
    staging: Buffer,
}

impl Engine {
    /// Queues on `gpu`, and room for `segments` checksums at a time.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn new(client: &Client, gpu: GpuId, segments: usize) -> Result<Self> {
        let n = (segments as u64).max(1);
        let memory = |bytes: u64| {
            let bytes = bytes.next_multiple_of(PAGE);
            client.alloc(&AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(bytes) })
        };
        Ok(Self {
            client: client.clone(),
            gpu,
            compute: client.caps().vkfd.then(|| ComputeQueue::new(client, gpu)).transpose()?,
            copy: CopyQueue::new(client, gpu)?,
            segments: memory(n * SEGMENT_BYTES)?,
            results: memory(n * RESULT_BYTES)?,
            staging: memory(STAGING)?,
        })
    }

    /// Whether it can run kernels.
    pub fn has_kernels(&self) -> bool {
        self.compute.is_some()
    }

    /// Memory for a result that nobody looks at.
    pub fn scratch(&self) -> GpuVa {
        self.results.gpu_va()
    }

    /// Makes the queues anew. After a page fault every queue of the process is notified of it, and
    /// a long kernel of another queue could be taken for the one that stopped.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn renew(&mut self) -> Result<()> {
        self.copy = CopyQueue::new(&self.client, self.gpu)?;
        if self.compute.is_some() {
            self.compute = Some(ComputeQueue::new(&self.client, self.gpu)?);
        }
        Ok(())
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    ///
    /// What the queue stopped on.
    pub fn run(&mut self, kernel: &Kernel) -> Result<()> {
        let Some(queue) = &mut self.compute else { bail!("this GPU has no kernels that this program can run") };
        queue.launch(kernel)?.wait(PATIENCE)?;
        Ok(())
    }

    /// The sum of all 64-bit words of a segment, by a kernel.
    ///
    /// # Errors
    ///
    /// As [`Engine::run`].
    pub fn sum(&mut self, segment: Segment) -> Result<u64> {
        let out = self.results.gpu_va();
        // What the kernel does not write must not look like a result.
        self.results.write(0, &[0xff; 8])?;
        self.run(&Kernel::Sum64 { src: segment.va, count: segment.bytes / 8, out })?;
        let mut word = [0; 8];
        self.results.read(0, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The CRC-32 of each segment: by one launch of a kernel, where there are kernels.
    ///
    /// # Errors
    ///
    /// As [`Engine::run`]; when there are more segments than there is room for.
    pub fn checksums(&mut self, segments: &[Segment]) -> Result<Vec<u32>> {
        if segments.is_empty() {
            return Ok(Vec::new());
        }
        if !self.has_kernels() {
            return segments.iter().map(|segment| self.checksum_of_copy(*segment)).collect();
        }
        let table: Vec<u8> = segments.iter().flat_map(|s| [s.va.0, s.bytes]).flat_map(u64::to_le_bytes).collect();
        self.segments.write(0, &table)?;
        let mut bytes = vec![0xff; segments.len() * 4];
        self.results.write(0, &bytes)?;
        self.run(&Kernel::Crc32 {
            segments: self.segments.gpu_va(),
            count: segments.len() as u64,
            out: self.results.gpu_va(),
        })?;
        self.results.read(0, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
    }

    fn checksum_of_copy(&mut self, segment: Segment) -> Result<u32> {
        let mut hasher = crc32fast::Hasher::new();
        self.copy_out(segment, |_, bytes| hasher.update(bytes))?;
        Ok(hasher.finalize())
    }

    /// Copies a segment out with the copy engine; `sink` gets it piece by piece, with the offset in
    /// the segment.
    ///
    /// # Errors
    ///
    /// What the queue stopped on.
    pub fn copy_out(&mut self, segment: Segment, mut sink: impl FnMut(u64, &[u8])) -> Result<()> {
        let mut bytes = vec![0; usize::try_from(STAGING.min(segment.bytes))?];
        let mut at = 0;
        while at < segment.bytes {
            let n = STAGING.min(segment.bytes - at);
            self.copy.copy_now(self.staging.gpu_va(), segment.va.offset(at), n, PATIENCE)?;
            let piece = &mut bytes[..usize::try_from(n)?];
            self.staging.read(0, piece)?;
            sink(at, piece);
            at += n;
        }
        Ok(())
    }
}

/// Two lists of results, compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Results of the CPU.
    pub expected: u64,
    /// Results of the GPU that are different, missing, or too many.
    pub different: u64,
    /// The first of them: its place, and the CPU's and the GPU's value there.
    pub first: Option<(u64, Option<u32>, Option<u32>)>,
}

impl Comparison {
    pub fn new(cpu: &[u32], gpu: &[u32]) -> Self {
        let mut found = Self { expected: cpu.len() as u64, different: 0, first: None };
        for i in 0..cpu.len().max(gpu.len()) {
            let (cpu, gpu) = (cpu.get(i).copied(), gpu.get(i).copied());
            if cpu != gpu {
                found.different += 1;
                found.first.get_or_insert((i as u64, cpu, gpu));
            }
        }
        found
    }

    /// Whether nothing differs.
    pub fn same(&self) -> bool {
        self.different == 0
    }

    /// What differs, in words.
    pub fn difference(&self) -> String {
        let show = |value: Option<u32>| value.map_or("nothing".to_owned(), |crc| format!("{crc:#010x}"));
        match self.first {
            None => "nothing differs".to_owned(),
            Some((place, cpu, gpu)) => format!(
                "{} of {} differ, first number {place}: CPU {}, GPU {}",
                self.different,
                self.expected,
                show(cpu),
                show(gpu)
            ),
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({ "compared": self.expected, "different": self.different })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_are_the_same() {
        assert!(Comparison::new(&[1, 2, 3], &[1, 2, 3]).same());
        assert!(Comparison::new(&[], &[]).same());
    }

    #[test]
    fn a_wrong_missing_or_extra_result_is_found() {
        let wrong = Comparison::new(&[1, 2, 3], &[1, 7, 3]);
        assert!(!wrong.same());
        assert_eq!((wrong.different, wrong.first), (1, Some((1, Some(2), Some(7)))));
        assert!(wrong.difference().contains("CPU 0x00000002, GPU 0x00000007"), "{}", wrong.difference());
        let missing = Comparison::new(&[1, 2, 3], &[1, 2]);
        assert_eq!((missing.different, missing.first), (1, Some((2, Some(3), None))));
        assert!(missing.difference().contains("GPU nothing"));
        assert!(!Comparison::new(&[], &[0]).same());
        // One bit is enough.
        assert_eq!(Comparison::new(&[0; 100], &[1 << 31; 100]).different, 100);
    }
}
