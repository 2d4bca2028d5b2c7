// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A batch under observation: scattered test memory, registered, and what the driver says of it.
//!
//! Every CPU page has the pattern of its own number, so that a page in a wrong place is noticed
//! wherever it turns up.

use std::ops::Range;

use vkfd_client::uapi::vkfd::RANGE_VALID;
use vkfd_client::{Buffer, Client, GpuId, GpuVa, Handle, ProcessInfo, RangeInfo, RegisterOptions, UserptrRange, PAGE};

use crate::memory::{pattern, Layout, Memory};
use crate::raw;
use crate::verdict::Stop;
use crate::world::World;

/// Pages of a range, unless a scenario wants others.
pub(crate) const RANGE_PAGES: u64 = 4;
/// The pattern that fresh memory has.
pub(crate) const FIRST: u64 = 1;

/// Equal ranges of one memory, registered as one buffer.
pub(crate) struct Batch {
    // Before the memory: its notifiers go first.
    pub(crate) buffer: Buffer,
    pub(crate) memory: Memory,
    pub(crate) ranges: Vec<UserptrRange>,
    client: Client,
    range_pages: u64,
}

impl Batch {
    /// `n` ranges in anonymous memory, in no order and without gaps, writable and mapped on all
    /// GPUs.
    pub(crate) fn new(world: &World, n: u64) -> Result<Self, Stop> {
        Self::with(world, n, Layout::Shuffled, &RegisterOptions::default())
    }

    /// As told.
    pub(crate) fn with(world: &World, n: u64, layout: Layout, options: &RegisterOptions) -> Result<Self, Stop> {
        let spread = if layout == Layout::Gaps { 2 } else { 1 };
        let memory = Memory::anonymous(spread * n * RANGE_PAGES * PAGE)?;
        memory.fill(FIRST);
        let ranges = memory.scatter(n, RANGE_PAGES * PAGE, layout);
        Self::of(world.client(), memory, ranges, options)
    }

    /// Registers equal ranges of `memory`.
    pub(crate) fn of(
        client: &Client,
        memory: Memory,
        ranges: Vec<UserptrRange>,
        options: &RegisterOptions,
    ) -> Result<Self, Stop> {
        // SAFETY: no reference to the memory is ever made, and a thread that writes it does so by
        // volatile accesses.
        let buffer = unsafe { client.register_ranges(&ranges, options)? };
        let range_pages = ranges.first().map_or(1, |range| range.size / PAGE);
        Ok(Self { buffer, memory, ranges, client: client.clone(), range_pages })
    }

    pub(crate) fn handle(&self) -> Result<Handle, Stop> {
        Ok(self.buffer.handles().next().ok_or_else(|| anyhow::anyhow!("the buffer has no BO"))?)
    }

    /// MAP once more where it is mapped: looks again at ranges that were gone, while the GPU goes
    /// on with the others. The library's `revalidate` unmaps first.
    pub(crate) fn map_again(&self) -> Result<(), Stop> {
        let gpus: Vec<u32> = self.buffer.mapped_on().iter().map(|gpu| gpu.0).collect();
        let (done, result) = raw::map(&self.client, self.handle()?.0, &gpus, 0);
        result?;
        ensure_eq!(usize::try_from(done)?, gpus.len(), "GPUs that it is mapped on");
        Ok(())
    }

    /// GPU address of a range.
    pub(crate) fn va(&self, range: usize) -> GpuVa {
        self.buffer.gpu_va().offset(range as u64 * self.range_bytes())
    }

    pub(crate) fn range_bytes(&self) -> u64 {
        self.range_pages * PAGE
    }

    /// Where a range begins in the memory.
    pub(crate) fn offset(&self, range: usize) -> u64 {
        self.ranges[range].start - self.memory.whole().start
    }

    /// The memory's pages that a range has.
    pub(crate) fn pages(&self, range: usize) -> Range<u64> {
        let first = self.offset(range) / PAGE;
        first..first + self.range_pages
    }

    /// What the driver says of the ranges.
    pub(crate) fn state(&self) -> Result<Vec<RangeInfo>, Stop> {
        Ok(self.client.ranges(self.handle()?)?)
    }

    /// Page-table entries of a range.
    pub(crate) fn ptes(&self, gpu: GpuId, range: usize) -> Result<Vec<u64>, Stop> {
        Ok(self.client.ptes(gpu, self.va(range), usize::try_from(self.range_pages)?)?)
    }

    /// Page-table entries of the buffer.
    pub(crate) fn all_ptes(&self, gpu: GpuId) -> Result<Vec<u64>, Stop> {
        Ok(self.client.ptes(gpu, self.buffer.gpu_va(), usize::try_from(self.buffer.len() / PAGE)?)?)
    }

    /// Has the GPU read a range, which must have the pattern of `seed`.
    pub(crate) fn expect(&self, world: &World, range: usize, seed: u64) -> Result<(), Stop> {
        let seen = world.read_gpu(self.va(range), self.range_bytes())?;
        self.compare(range, &seen, seed)
    }

    /// Has the GPU read a range, which must be zeroes.
    pub(crate) fn expect_zero(&self, world: &World, range: usize) -> Result<(), Stop> {
        let seen = world.read_gpu(self.va(range), self.range_bytes())?;
        ensure!(seen.iter().all(|byte| *byte == 0), "the GPU sees old contents of range {range}");
        Ok(())
    }

    /// Checks what was read of a range.
    pub(crate) fn compare(&self, range: usize, seen: &[u8], seed: u64) -> Result<(), Stop> {
        let expected: Vec<u8> = self.pages(range).flat_map(|page| pattern(page, seed)).collect();
        if let Some(at) = expected.iter().zip(seen).position(|(a, b)| a != b) {
            bail!("byte {at:#x} of range {range} is not that of pattern {seed}");
        }
        ensure_eq!(seen.len(), expected.len());
        Ok(())
    }

    /// Has the GPU read all ranges but some in one go each side of these; all have the pattern of
    /// `seed`.
    pub(crate) fn expect_all_but(&self, world: &World, but: &[usize], seed: u64) -> Result<(), Stop> {
        let all = 0..self.ranges.len();
        let mut first = 0;
        // Stretches between the ranges that are left out.
        for end in all.clone().filter(|i| but.contains(i)).chain([all.end]) {
            if first < end {
                let seen = world.read_gpu(self.va(first), (end - first) as u64 * self.range_bytes())?;
                let step = usize::try_from(self.range_bytes())?;
                for (range, bytes) in (first..end).zip(seen.chunks(step)) {
                    self.compare(range, bytes, seed)?;
                }
            }
            first = end + 1;
        }
        Ok(())
    }

    /// Has the GPU write the pattern of `seed` into a range, and looks at it with the CPU.
    pub(crate) fn write_from_gpu(&self, world: &World, range: usize, seed: u64) -> Result<(), Stop> {
        let bytes: Vec<u8> = self.pages(range).flat_map(|page| pattern(page, seed)).collect();
        world.write_gpu(self.va(range), &bytes)?;
        ensure_eq!(self.memory.find_wrong(self.pages(range), seed), None, "what the GPU wrote to range {range}");
        Ok(())
    }

    /// All ranges are valid and every page has an entry on `gpu`.
    pub(crate) fn expect_valid(&self, gpu: GpuId) -> Result<(), Stop> {
        for (i, range) in self.state()?.iter().enumerate() {
            ensure_eq!(range.state, RANGE_VALID, "the state of range {i}");
        }
        ensure_eq!(self.all_ptes(gpu)?.iter().position(|pte| *pte == 0), None, "a page without an entry");
        Ok(())
    }
}

/// The generations of ranges.
pub(crate) fn generations(state: &[RangeInfo]) -> Vec<u64> {
    state.iter().map(|range| range.generation).collect()
}

/// Which ranges' generations differ.
pub(crate) fn moved(before: &[RangeInfo], after: &[RangeInfo]) -> Vec<usize> {
    let pairs = generations(before).into_iter().zip(generations(after));
    pairs.enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
}

/// What has happened since `before`.
pub(crate) fn since(world: &World, before: &ProcessInfo) -> Result<Happened, Stop> {
    let now = world.client().snapshot()?;
    Ok(Happened {
        invalidations: now.invalidations - before.invalidations,
        evictions: now.evictions - before.evictions,
        restores: now.restores - before.restores,
        ranges_invalidated: now.ranges_invalidated - before.ranges_invalidated,
        ranges_restored: now.ranges_restored - before.ranges_restored,
    })
}

/// Differences of counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) invalidations: u64,
    pub(crate) evictions: u64,
    pub(crate) restores: u64,
    pub(crate) ranges_invalidated: u64,
    pub(crate) ranges_restored: u64,
}
