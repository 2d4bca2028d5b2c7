// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compaction: the kernel moves pages together to make large blocks of free memory.

use std::fs;
use std::time::{Duration, Instant};

use vkfd_client::{RegisterOptions, PAGE};

use super::pages;
use super::stage::Stage;
use crate::coherence::batch::{since, FIRST};
use crate::memory::Layout;
use crate::verdict::Stop;

/// Writing 1 compacts all of memory.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
const RANGES: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(300);

/// Every other page is registered, the others are given back: the holes are what compaction closes.
pub(super) fn compaction() -> Result<(), Stop> {
    if fs::metadata(COMPACT).is_err() {
        return Err(Stop::Skip(format!("{COMPACT} does not exist: a kernel without CONFIG_COMPACTION?")));
    }
    let stage = Stage::with(super::world_spec()?, RANGES, 1, Layout::Gaps, &RegisterOptions::default())?;
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
            if moved >= 256 || start.elapsed() > PATIENCE {
                return Ok(moved);
            }
        }
    })?;
    ensure!(moved >= 256, "compaction has moved only {moved} registered pages");
    ensure!(pages::vmstat("pgmigrate_success")? >= migrated + moved as u64);
    stage.world.settle()?;
    ensure!(since(&stage.world, &before)?.ranges_restored >= moved as u64);
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    stage.batch.expect_valid(stage.world.gpu(0))
}
