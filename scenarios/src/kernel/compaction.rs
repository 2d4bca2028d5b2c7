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

/// Memory whose frames are lower than those of memory that is free again afterwards: compaction moves pages from the lower end of a zone to
/// free ones at its upper end, and what lies there already it leaves alone.
fn low_memory() -> Result<Memory, Stop> {
    const CANDIDATES: usize = 8;
    let mut candidates = Vec::new();
    for _ in 0..CANDIDATES {
        let memory = Memory::anonymous(2 * RANGES * PAGE)?;
        for page in 0..memory.pages() {
            memory.write(page * PAGE, &[1]);
        }
        let frames = pages::frames(&memory)?;
        candidates.push((frames.into_iter().flatten().sum::<u64>(), memory));
    }
    let lowest = candidates.into_iter().min_by_key(|(sum, _)| *sum);
    Ok(lowest.map(|(_, memory)| memory).ok_or_else(|| anyhow::anyhow!("there are no candidates"))?)
}

/// Every other page is registered, the others are given back: the holes are what compaction closes.
pub(super) fn compaction() -> Result<(), Stop> {
    if fs::metadata(COMPACT).is_err() {
        return Err(Stop::Skip(format!("{COMPACT} does not exist: a kernel without CONFIG_COMPACTION?")));
    }
    let memory = low_memory()?;
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
    ensure!(moved >= ENOUGH, "compaction has moved only {moved} registered pages");
    ensure!(pages::vmstat("pgmigrate_success")? >= migrated + moved as u64);
    stage.world.settle()?;
    ensure!(since(&stage.world, &before)?.ranges_restored >= moved as u64);
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    stage.batch.expect_valid(stage.world.gpu(0))
}
