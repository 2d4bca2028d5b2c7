// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Writers that never stop while their memory moves: to a GPU, from one to another, back, in parts,
//! by a GPU's fault, by eviction. No write is lost.
//!
//! Each page has a word for each writer. The writer first looks whether its last count is there,
//! and counts the word up. Each word is a sequence number, and a single lost write shows with its
//! place. The last pages are a GPU's: it writes a new number with each trip, and the CPU looks for
//! it. Trips bound the run, not time. [`HOUR`] has the trips of a program that moves its data once
//! a second for an hour. Every trip waits until the writers have written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use vkfd_client::uapi::vkfd::SVM_MEMORY_NONE;
use vkfd_client::{AllocOptions, Errno, GpuVa, Location, SvmAccess, SvmSet};
use vkfd_driver::seams::device_memory::Kind;
use vkfd_scenarios::{Memory, World, WorldSpec};

use crate::stress::said;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Bytes that move.
const BYTES: u64 = 4 * MIB;
/// Of these, the GPU's own, at the end.
const GPU_PAGES: u64 = 8;
const VRAM: u64 = 16 * MIB;
/// How long a trip may wait for the writers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Trips of an hour, one per second.
pub const HOUR: u64 = 3600;

/// The length and the kind of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// There and back so often.
    pub trips: u64,
    /// CPU threads that write.
    pub writers: u64,
    /// What memory on a GPU is to the CPU.
    pub kind: Kind,
    /// GPUs retry page faults, and fetch memory by them.
    pub xnack: bool,
    /// Of the choices.
    pub seed: u64,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Trips made.
    pub trips: u64,
    /// Words that writers have written.
    pub written: u64,
    /// Pages that moved to a GPU.
    pub pages_in: u64,
    pub evictions: u64,
    /// Writes that were not there any more, or reads of something else: how many.
    pub lost: u64,
    /// The first of them.
    pub first: Option<String>,
}

/// Runs it. `None` where this host moves no such memory.
///
/// # Errors
///
/// What the driver refused.
pub fn run(plan: Plan) -> Result<Option<Report>> {
    let spec =
        WorldSpec { gpus: 2, vram_bytes: VRAM, xnack: plan.xnack, device_memory: plan.kind, ..WorldSpec::default() };
    let world = World::new(spec).map_err(said)?;
    if world.client().svm()?.memory == SVM_MEMORY_NONE {
        return Ok(None);
    }
    let memory = Memory::anonymous(BYTES)?;
    let access = |gpu| SvmSet::Access(world.gpu(gpu), SvmAccess::Migrate);
    // SAFETY: no reference to the memory is ever made.
    unsafe { world.client().svm_set(memory.whole(), &[access(0), access(1)]) }?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut report = Report::default();
    let mut mover = Mover { world: &world, memory: &memory, random: plan.seed, number: 0, found: Found::default() };
    let moved = std::thread::scope(|scope| {
        let (memory, stop, written) = (&memory, &stop, &written);
        let writers: Vec<_> =
            (0..plan.writers).map(|lane| scope.spawn(move || write(memory, lane, stop, written))).collect();
        let moved = (|| {
            while report.trips < plan.trips {
                let before = written.load(Ordering::Relaxed);
                let start = Instant::now();
                while written.load(Ordering::Relaxed) == before {
                    ensure!(start.elapsed() < PATIENCE, "the writers do not get on");
                    std::thread::yield_now();
                }
                mover.trip()?;
                report.trips += 1;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            let Ok(found) = writer.join() else { bail!("a writer panicked") };
            report.lost += found.lost;
            report.first = report.first.take().or(found.first);
        }
        moved
    });
    moved?;
    report.lost += mover.found.lost;
    report.first = report.first.take().or(mover.found.first);
    let info = world.client().svm()?;
    (report.pages_in, report.evictions) = (info.pages_in, info.evictions);
    report.written = written.load(Ordering::Relaxed);
    Ok(Some(report))
}

#[derive(Default)]
struct Found {
    lost: u64,
    first: Option<String>,
}

impl Found {
    /// Readers must see the written data.
    fn look(&mut self, seen: u64, written: u64, who: impl FnOnce() -> String) {
        if seen != written {
            self.lost += 1;
            self.first.get_or_insert_with(|| format!("{} wrote {written} and {seen} is there", who()));
        }
    }
}

/// Counts up the words of `lane` until told to stop, and looks at each before and, at the end, once
/// more.
fn write(memory: &Memory, lane: u64, stop: &AtomicBool, written: &AtomicU64) -> Found {
    let pages = memory.pages() - GPU_PAGES;
    let word = |page: u64| memory.at(page * PAGE + lane * 8).cast::<u64>();
    let mut found = Found::default();
    let mut count = 0;
    let mut look = |page: u64, count: u64| {
        // SAFETY: the word is this thread's alone, in memory that is mapped; no reference is made.
        let seen = unsafe { word(page).read_volatile() };
        found.look(seen, count, || format!("page {page}: writer {lane}"));
    };
    while !stop.load(Ordering::Relaxed) {
        for page in 0..pages {
            look(page, count);
            // SAFETY: as above.
            unsafe { word(page).write_volatile(count + 1) };
        }
        count += 1;
        written.fetch_add(pages, Ordering::Relaxed);
    }
    (0..pages).for_each(|page| look(page, count));
    found
}

struct Mover<'a> {
    world: &'a World,
    memory: &'a Memory,
    random: u64,
    /// What the GPU has last written to its own pages.
    number: u32,
    found: Found,
}

impl Mover<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn prefetch(&self, first: u64, pages: u64, gpu: Option<usize>) -> Result<()> {
        let to = gpu.map_or(Location::System, |gpu| Location::Gpu(self.world.gpu(gpu)));
        Ok(self.world.client().prefetch(self.memory.range(first * PAGE, pages * PAGE), to)?)
    }

    fn va(&self, page: u64) -> GpuVa {
        GpuVa(self.memory.whole().start + page * PAGE)
    }

    /// There, one way or another, and back.
    fn trip(&mut self) -> Result<()> {
        let all = self.memory.pages();
        match self.below(5) {
            0 => self.prefetch(0, all, Some(0))?,
            1 => {
                self.prefetch(0, all, Some(1))?;
                self.prefetch(0, all, Some(0))?;
            }
            2 => {
                let first = self.below(all);
                let pages = 1 + self.below(all - first);
                self.prefetch(first, pages, Some(1))?;
            }
            // With XNACK this fetches it.
            3 => drop(self.world.with_engine(1, |engine| engine.sum64(self.va(0), BYTES))?),
            _ => self.evict()?,
        }
        self.gpu_writes()?;
        // What the last trip has left on the other GPU comes back, too; now and then a part stays.
        let first = if self.below(4) == 0 { self.below(all) } else { 0 };
        self.prefetch(first, all - first, None)
    }

    /// A buffer object takes the free memory and half of the memory that the SVM ranges use. Both
    /// count as available.
    fn evict(&self) -> Result<()> {
        let (client, gpu) = (self.world.client(), self.world.gpu(0));
        self.prefetch(0, self.memory.pages(), Some(0))?;
        let bytes = client.available_vram(gpu)?.saturating_sub(BYTES / 2) >> 21 << 21;
        match client.alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(gpu, bytes) }) {
            Ok(buffer) => Ok(buffer.free()?),
            // Private memory comes back as fast as the writers touch it: then there is nothing to
            // evict, and not so much.
            Err(error) if error.errno() == Some(Errno::NOMEM) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The GPU's last number is there; it writes the next.
    fn gpu_writes(&mut self) -> Result<()> {
        let first = self.memory.pages() - GPU_PAGES;
        for page in first..self.memory.pages() {
            // SAFETY: the memory is mapped, and the GPU does not write at this time; no reference
            // is made.
            let seen = unsafe { self.memory.at(page * PAGE).cast::<u32>().read_volatile() };
            self.found.look(seen.into(), self.number.into(), || format!("page {page}: the GPU"));
        }
        self.number += 1;
        let (va, number) = (self.va(first), self.number);
        Ok(self.world.with_engine(0, |engine| engine.fill(va, number, GPU_PAGES * PAGE))?)
    }
}
