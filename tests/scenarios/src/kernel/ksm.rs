// SPDX-License-Identifier: GPL-2.0 OR MIT
//! KSM: pages of equal contents become one page, and several again when one is written to.
//!
//! The batch has each page twice. A GPU that writes through an entry from before the merging would
//! change both.

use std::fs;
use std::time::{Duration, Instant};

use vkfd_client::uapi::vkfd::RANGE_VALID;
use vkfd_client::{RegisterOptions, PAGE};

use super::pages;
use crate::coherence::batch::Batch;
use crate::memory::{pattern, wrong_page, Layout, Memory};
use crate::stir::{stirred, Stirrer};
use crate::verdict::Stop;
use crate::world::{World, WorldSpec};

const DIRECTORY: &str = "/sys/kernel/mm/ksm";
/// Page `i` and page `TWINS + i` are equal.
const TWINS: u64 = 256;
const PAGES: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(300);

/// The daemon at work, as fast as it can. Stopped on drop, with all that it has merged unmerged.
struct Daemon(Vec<(&'static str, String)>);

impl Daemon {
    fn start() -> Result<Self, Stop> {
        let mut before = Self(Vec::new());
        for (file, value) in [("pages_to_scan", "100000"), ("sleep_millisecs", "1"), ("smart_scan", "0"), ("run", "1")]
        {
            let path = format!("{DIRECTORY}/{file}");
            let missing = |e| Stop::Skip(format!("{path}: {e}: a kernel without CONFIG_KSM?"));
            before.0.push((file, fs::read_to_string(&path).map_err(missing)?));
            fs::write(&path, value)?;
        }
        Ok(before)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = fs::write(format!("{DIRECTORY}/run"), "2");
        for (file, value) in self.0.iter().rev() {
            let _ = fs::write(format!("{DIRECTORY}/{file}"), value);
        }
    }
}

fn count(file: &str) -> Result<u64, Stop> {
    Ok(fs::read_to_string(format!("{DIRECTORY}/{file}"))?.trim().parse()?)
}

/// How many twins are one page.
fn merged(memory: &Memory) -> Result<u64, Stop> {
    let frames = pages::frames(memory)?;
    let (first, second) = frames.split_at(usize::try_from(TWINS)?);
    Ok(first.iter().zip(second).filter(|(a, b)| a.is_some() && a == b).count() as u64)
}

/// Writes the pattern of page `i` of `seed` to page `i` and its twin.
fn fill(memory: &Memory, seed: u64) {
    for page in 0..TWINS {
        let bytes = pattern(page, seed);
        memory.write(page * PAGE, &bytes);
        memory.write((TWINS + page) * PAGE, &bytes);
    }
}

/// Pages that the CPU and the GPU see in a range, which must be those of `seeds` by page number.
fn expect(world: &World, batch: &Batch, seed_of: impl Fn(u64) -> u64) -> Result<(), Stop> {
    let seen = world.read_gpu(batch.buffer.gpu_va(), batch.buffer.len())?;
    let order = (0..batch.ranges.len()).flat_map(|range| batch.pages(range));
    for (page, bytes) in order.zip(seen.chunks(usize::try_from(PAGE)?)) {
        let seed = seed_of(page);
        ensure_eq!(wrong_page(bytes, [page % TWINS], seed), None, "page {page} as the GPU sees it");
        let bytes = batch.memory.read(page * PAGE, PAGE);
        ensure_eq!(wrong_page(&bytes, [page % TWINS], seed), None, "page {page} as the CPU sees it");
    }
    Ok(())
}

fn twins(world: &World, writable: bool) -> Result<Batch, Stop> {
    let memory = Memory::anonymous(2 * TWINS * PAGE)?;
    fill(&memory, 1);
    let ranges = memory.scatter(2 * TWINS / PAGES, PAGES * PAGE, Layout::Shuffled);
    Batch::of(world.client(), memory, ranges, &RegisterOptions { writable, ..RegisterOptions::default() })
}

fn await_merging(batch: &Batch) -> Result<(), Stop> {
    batch.memory.madvise(0, batch.memory.bytes(), libc::MADV_MERGEABLE)?;
    let start = Instant::now();
    while merged(&batch.memory)? < TWINS {
        ensure!(start.elapsed() < PATIENCE, "{} of {TWINS} twins are one page", merged(&batch.memory)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    ensure!(count("pages_sharing")? >= TWINS, "KSM says that it shares {} pages", count("pages_sharing")?);
    Ok(())
}

/// A read-only registration: the pages stay merged under the GPU, until the CPU writes.
pub(super) fn merge_and_unmerge() -> Result<(), Stop> {
    let world = super::world()?;
    let batch = twins(&world, false)?;
    expect(&world, &batch, |_| 1)?;
    let daemon = Daemon::start()?;
    await_merging(&batch)?;
    world.settle()?;
    expect(&world, &batch, |_| 1)?;
    ensure_eq!(merged(&batch.memory)?, TWINS, "a read-only registration leaves pages as they are");
    // Every eighth page becomes a page of its own; its twin stays as it was.
    let seed_of = |page: u64| if page % 8 == 3 && page < TWINS { 2 } else { 1 };
    for page in (0..TWINS).filter(|page| seed_of(*page) == 2) {
        batch.memory.write(page * PAGE, &pattern(page, 2));
    }
    world.settle()?;
    ensure_eq!(merged(&batch.memory)?, TWINS - TWINS / 8);
    expect(&world, &batch, seed_of)?;
    // All the others, by the kernel itself.
    drop(daemon);
    ensure_eq!((merged(&batch.memory)?, count("pages_sharing")?), (0, 0));
    expect(&world, &batch, seed_of)?;
    // And their twins are not the same memory.
    fill(&batch.memory, 3);
    expect(&world, &batch, |_| 3)?;
    let info = world.client().snapshot()?;
    ensure!(info.ranges_invalidated >= TWINS / PAGES && info.invalidations >= TWINS, "{info:?}");
    Ok(())
}

/// A writable registration with XNACK on, and a kernel that reads and writes every word. Twins stay
/// equal from launch to launch, so each launch begins with pages that are merged, and runs while
/// the daemon merges.
pub(super) fn computing() -> Result<(), Stop> {
    const LAUNCHES: u64 = 4;
    const STEPS: u64 = 3;
    let world = World::new(WorldSpec { xnack: true, ..super::world_spec()? })?;
    let batch = twins(&world, true)?;
    let mut stirrer = Stirrer::new(world.client(), world.gpu(0))?;
    let daemon = Daemon::start()?;
    for launch in 1..=LAUNCHES {
        await_merging(&batch)?;
        stirrer.stir(batch.buffer.gpu_va(), batch.buffer.len() / 4, STEPS)?;
        for page in 0..batch.memory.pages() {
            let expected = stirred(&pattern(page % TWINS, 1), launch * STEPS);
            ensure!(batch.memory.read(page * PAGE, PAGE) == expected, "page {page} after launch {launch}");
        }
    }
    drop(daemon);
    let info = world.client().snapshot()?;
    // A fault brings its range, and what is near it.
    ensure!(info.gpu_faults >= LAUNCHES && info.ranges_restored >= TWINS / PAGES && info.evictions == 0, "{info:?}");
    Ok(())
}

/// A writable registration with XNACK on: the GPU's writes to one twin do not reach the other.
pub(super) fn written_by_the_gpu() -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, ..super::world_spec()? })?;
    let batch = twins(&world, true)?;
    expect(&world, &batch, |_| 1)?;
    let daemon = Daemon::start()?;
    await_merging(&batch)?;
    // Range by range in the order of the batch, half of them, so that no twin is written whose
    // other one was.
    let written: Vec<usize> = (0..batch.ranges.len()).filter(|range| batch.pages(*range).start < TWINS).collect();
    for range in &written {
        let bytes: Vec<u8> = batch.pages(*range).flat_map(|page| pattern(page, 2)).collect();
        world.write_gpu(batch.va(*range), &bytes)?;
    }
    expect(&world, &batch, |page| if page < TWINS { 2 } else { 1 })?;
    ensure_eq!(merged(&batch.memory)?, 0);
    // Once more, from equal pages that are being merged again while the GPU writes.
    fill(&batch.memory, 3);
    for range in &written {
        let bytes: Vec<u8> = batch.pages(*range).flat_map(|page| pattern(page, 4)).collect();
        world.write_gpu(batch.va(*range), &bytes)?;
    }
    expect(&world, &batch, |page| if page < TWINS { 4 } else { 3 })?;
    drop(daemon);
    expect(&world, &batch, |page| if page < TWINS { 4 } else { 3 })?;
    ensure!(batch.state()?.iter().all(|range| range.state == RANGE_VALID));
    Ok(())
}
