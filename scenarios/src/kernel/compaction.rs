// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compaction: the kernel moves pages together to make large blocks of free memory.

use std::fs;
use std::time::{Duration, Instant};

use vkfd_client::{RegisterOptions, PAGE};

use super::pages;
use super::stage::Stage;
use crate::coherence::batch::{since, FIRST};
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;

/// Writing 1 compacts all of memory.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const RANGES: u64 = 4096;
/// Pages, of the registered ones.
const ENOUGH: usize = 256;
const PATIENCE: Duration = Duration::from_secs(300);

/// Memory, and other memory of the same node whose frames are higher and of which every other page is free: compaction moves pages from
/// the lower end of a zone to holes at its upper end. Blocks of memory that are free as a whole it does not break up.
fn with_holes_above() -> Result<(Memory, Vec<Memory>), Stop> {
    const CANDIDATES: usize = 8;
    let mut candidates = Vec::new();
    for _ in 0..CANDIDATES {
        let memory = Memory::anonymous(2 * RANGES * PAGE)?;
        for page in 0..memory.pages() {
            memory.write(page * PAGE, &[1]);
        }
        let frames: u64 = pages::frames(&memory)?.into_iter().flatten().sum();
        // A kernel without nodes has one.
        let node = pages::nodes(memory.range(0, PAGE), None).ok().and_then(|nodes| nodes.first().copied()).unwrap_or(0);
        candidates.push((node, frames, memory));
    }
    let on = |node| candidates.iter().filter(|(other, ..)| *other == node).count();
    let most = candidates.iter().map(|(node, ..)| *node).max_by_key(|node| on(*node));
    candidates.sort_by_key(|(node, frames, _)| (Some(*node) != most, *frames));
    let mut memories = candidates.into_iter().map(|(.., memory)| memory);
    let lowest = memories.next().ok_or_else(|| anyhow::anyhow!("there are no candidates"))?;
    let others: Vec<Memory> = memories.collect();
    for memory in &others {
        for page in (1..memory.pages()).step_by(2) {
            memory.discard(page * PAGE, PAGE)?;
        }
    }
    Ok((lowest, others))
}

/// Every other page is registered, the others are given back: the holes are what compaction closes.
pub(super) fn compaction() -> Result<(), Stop> {
    if fs::metadata(COMPACT).is_err() {
        return Err(Stop::Skip(format!("{COMPACT} does not exist: a kernel without CONFIG_COMPACTION?")));
    }
    let (memory, holes) = with_holes_above()?;
    memory.fill(FIRST);
    let ranges = memory.scatter(RANGES, PAGE, Layout::Gaps);
    let stage = Stage::of(super::world()?, memory, ranges, &RegisterOptions::default())?;
    for range in 0..stage.batch.ranges.len() {
        stage.memory().discard(stage.batch.offset(range) + PAGE, PAGE)?;
    }
    let before = stage.world.client().snapshot()?;
    let frames = pages::frames(stage.memory())?;
    let migrated = pages::vmstat("pgmigrate_success")?;
    let moved = stage.beside(FIRST, |work| {
        let start = Instant::now();
        loop {
            fs::write(COMPACT, "1")?;
            work.more(1)?;
            let moved = pages::moved(&frames, &pages::frames(stage.memory())?);
            if moved >= ENOUGH || start.elapsed() > PATIENCE {
                return Ok(moved);
            }
        }
    })?;
    drop(holes);
    ensure!(moved >= ENOUGH, "compaction has moved only {moved} registered pages");
    ensure!(pages::vmstat("pgmigrate_success")? >= migrated + moved as u64);
    stage.world.settle()?;
    ensure!(since(&stage.world, &before)?.ranges_restored >= moved as u64);
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    stage.batch.expect_valid(stage.world.gpu(0))
}
