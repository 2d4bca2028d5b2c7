// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A batch under observation, with a mirror of it in VRAM. The GPU must see the CPU's writes, and
//! the CPU the GPU's, byte by byte, whatever the kernel does with the pages meanwhile.
//!
//! Everything is compared a MiB at a time, so that a client whose memory is bounded does not need
//! more than it has registered.

use vkfd_client::{AllocOptions, Buffer, RegisterOptions, UserptrRange, PAGE};

use crate::beside::{repeat, Progress};
use crate::coherence::batch::{Batch, FIRST};
use crate::engine::Engine;
use crate::memory::{pattern, Layout, Memory};
use crate::stir::{stirred, Stirrer};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

/// Bytes compared at a time.
const PIECE: u64 = 1 << 20;

/// How often a launch of the kernel reads and writes each word.
const STEPS: u64 = 4;

/// A world with a batch whose pages all have the pattern of [`FIRST`], and the mirror.
pub(crate) struct Stage {
    // In the order in which they must go.
    pub(crate) batch: Batch,
    mirror: Buffer,
    pub(crate) world: World,
}

impl Stage {
    /// `count` ranges of `pages` pages in no order, writable and mapped.
    pub(crate) fn new(spec: WorldSpec, count: u64, pages: u64) -> Result<Self, Stop> {
        Self::with(spec, count, pages, Layout::Shuffled, &RegisterOptions::default())
    }

    /// As told.
    pub(crate) fn with(
        spec: WorldSpec,
        count: u64,
        pages: u64,
        layout: Layout,
        options: &RegisterOptions,
    ) -> Result<Self, Stop> {
        let spread = if layout == Layout::Gaps { 2 } else { 1 };
        let memory = Memory::anonymous(spread * count * pages * PAGE)?;
        memory.fill(FIRST);
        let ranges = memory.scatter(count, pages * PAGE, layout);
        Self::of(World::new(spec)?, memory, ranges, options)
    }

    /// Registers `ranges` of `memory`.
    pub(crate) fn of(
        world: World,
        memory: Memory,
        ranges: Vec<UserptrRange>,
        options: &RegisterOptions,
    ) -> Result<Self, Stop> {
        let batch = Batch::of(world.client(), memory, ranges, options)?;
        let mirror = world
            .client()
            .alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(world.gpu(0), batch.buffer.len()) })?;
        Ok(Self { batch, mirror, world })
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.batch.memory
    }

    /// The CPU writes the pattern of `seed` to all ranges.
    pub(crate) fn fill(&self, seed: u64) {
        for range in 0..self.batch.ranges.len() {
            self.batch.memory.fill_pages(self.batch.pages(range), seed);
        }
    }

    /// The CPU sees the pattern of `seed` in all ranges.
    pub(crate) fn cpu_sees(&self, seed: u64) -> Result<(), Stop> {
        for range in 0..self.batch.ranges.len() {
            let wrong = self.batch.memory.find_wrong(self.batch.pages(range), seed);
            ensure_eq!(wrong, None, "a page of range {range} that the CPU sees without pattern {seed}");
        }
        Ok(())
    }

    /// The GPU sees the pattern of `seed` in all ranges: it copies them to the mirror, which is
    /// compared.
    pub(crate) fn gpu_sees(&self, seed: u64) -> Result<(), Stop> {
        self.world.copy(self.mirror.gpu_va(), self.batch.buffer.gpu_va(), self.mirror.len())?;
        self.world.with_engine(0, |engine| Ok(self.compare(engine, 0, self.mirror.len(), seed)))?
    }

    /// The mirror has the pattern of `seed` in `bytes` from `first` on.
    fn compare(&self, engine: &mut Engine, first: u64, bytes: u64, seed: u64) -> Result<(), Stop> {
        let step = usize::try_from(self.batch.range_bytes())?;
        let mut range = usize::try_from(first)? / step;
        for at in (first..first + bytes).step_by(usize::try_from(PIECE)?) {
            let piece = engine.read(self.mirror.gpu_va().offset(at), PIECE.min(first + bytes - at))?;
            for bytes in piece.chunks(step) {
                self.batch.compare(range, bytes, seed)?;
                range += 1;
            }
        }
        Ok(())
    }

    /// The GPU sees the CPU's writes, and the CPU the GPU's. All pages have the pattern of `seed`
    /// afterwards. The GPU reads before it writes, and so a wrong entry fails before a page is
    /// written through it.
    pub(crate) fn exchange(&self, seed: u64) -> Result<(), Stop> {
        self.fill(seed);
        self.gpu_sees(seed)?;
        self.fill(seed + 1);
        self.world.copy(self.batch.buffer.gpu_va(), self.mirror.gpu_va(), self.mirror.len())?;
        self.cpu_sees(seed)
    }

    /// A round of GPU work: copies all, and compares a MiB of it with the pattern of `seed`.
    pub(crate) fn round(&self, engine: &mut Engine, round: u64, seed: u64) -> Result<(), Stop> {
        engine.copy(self.mirror.gpu_va(), self.batch.buffer.gpu_va(), self.mirror.len())?;
        let pieces = (self.mirror.len() / PIECE).max(1);
        self.compare(engine, round % pieces * PIECE, PIECE.min(self.mirror.len()), seed)
    }

    /// Does `event` while the GPU works on the batch, whose pages have the pattern of `seed` all
    /// the time.
    pub(crate) fn beside<R>(&self, seed: u64, event: impl FnOnce(&Progress) -> Result<R, Stop>) -> Result<R, Stop> {
        self.beside_work(|engine, round| self.round(engine, round, seed), event)
    }

    /// Does `event` while a kernel reads and writes every word of the batch, which has the pattern
    /// of `seed` before, and afterwards again. Each word must have advanced by the number of
    /// launched steps.
    fn beside_kernel<R>(&self, seed: u64, event: impl FnOnce(&Progress) -> Result<R, Stop>) -> Result<R, Stop> {
        let mut stirrer = Stirrer::new(self.world.client(), self.world.gpu(0))?;
        let (va, words) = (self.batch.buffer.gpu_va(), self.batch.buffer.len() / 4);
        let (result, launches) = repeat(|_| Ok(stirrer.stir(va, words, STEPS)?), event)?;
        self.is_stirred(seed, launches * STEPS)?;
        self.fill(seed);
        Ok(result)
    }

    /// A kernel takes every word of the batch, which has the pattern of `seed`, a step further.
    pub(crate) fn stir(&self, seed: u64) -> Result<(), Stop> {
        let mut stirrer = Stirrer::new(self.world.client(), self.world.gpu(0))?;
        stirrer.stir(self.batch.buffer.gpu_va(), self.batch.buffer.len() / 4, 1)?;
        self.is_stirred(seed, 1)
    }

    /// All words are `steps` steps further than the pattern of `seed`.
    fn is_stirred(&self, seed: u64, steps: u64) -> Result<(), Stop> {
        for page in (0..self.batch.ranges.len()).flat_map(|range| self.batch.pages(range)) {
            let expected = stirred(&pattern(page, seed), steps);
            let right = self.memory().read(page * PAGE, PAGE) == expected;
            ensure!(right, "page {page} is not {steps} steps further");
        }
        Ok(())
    }

    /// Does `event` while the GPU does `work` on the batch, whose pages have the pattern of `seed`.
    pub(crate) fn under<R>(
        &self,
        work: Work,
        seed: u64,
        event: impl FnOnce(&Progress) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        match work {
            Work::Copies => self.beside(seed, event),
            Work::Kernel => self.beside_kernel(seed, event),
        }
    }

    /// Does `event` while `work` is done again and again.
    pub(crate) fn beside_work<R>(
        &self,
        work: impl Fn(&mut Engine, u64) -> Result<(), Stop> + Sync,
        event: impl FnOnce(&Progress) -> Result<R, Stop>,
    ) -> Result<R, Stop> {
        let mut engine = Engine::new(self.world.client(), self.world.gpu(0))?;
        Ok(repeat(|round| work(&mut engine, round), event)?.0)
    }
}

/// What a GPU does beside an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Copies of the batch, by SDMA.
    Copies,
    /// A kernel that reads and writes it.
    Kernel,
}
