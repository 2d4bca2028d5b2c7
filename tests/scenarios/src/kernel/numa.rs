// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages that move from one NUMA node to the other.

use std::ffi::c_int;
use std::path::Path;
use std::time::{Duration, Instant};

use super::pages;
use super::stage::{Stage, Work};
use crate::coherence::batch::{since, FIRST};
use crate::verdict::Stop;

const PATIENCE: Duration = Duration::from_secs(300);

/// All pages of 4,096 ranges are moved back and forth while the GPU works on them.
pub(super) fn move_pages(work: Work) -> Result<(), Stop> {
    if !Path::new("/sys/devices/system/node/node1").exists() {
        return Err(Stop::Skip("needs two NUMA nodes (numa=fake=2 on the kernel's command line makes them)".into()));
    }
    let stage = Stage::new(super::world_spec()?, 4096, 1)?;
    let whole = stage.memory().whole();
    let before = stage.world.client().snapshot()?;
    let move_to = |node: c_int| -> Result<(), Stop> {
        let frames = pages::frames(stage.memory())?;
        let were = pages::nodes(whole, None)?;
        // A page that somebody looks at just now is busy; one that is pinned would be so each time.
        let start = Instant::now();
        while let Some(stayed) = pages::nodes(whole, Some(node))?.iter().find(|now| **now != node) {
            ensure!(start.elapsed() < PATIENCE, "a page that was to move to node {node} does not: {stayed}");
        }
        ensure!(pages::nodes(whole, None)?.iter().all(|now| *now == node), "move_pages says what is not so");
        let away = were.iter().filter(|was| **was != node).count();
        let moved = pages::moved(&frames, &pages::frames(stage.memory())?);
        ensure!(moved >= away, "{away} pages were on the other node, {moved} have other frames now");
        Ok(())
    };
    move_to(0)?;
    stage.under(work, FIRST, |work| {
        for node in [1, 0, 1] {
            move_to(node)?;
            work.more(2)?;
        }
        Ok(())
    })?;
    stage.world.settle()?;
    let happened = since(&stage.world, &before)?;
    // Each range is one page, and each page was moved three times.
    ensure!(happened.evictions >= 3 && happened.ranges_restored >= 3 * 4096, "{happened:?}");
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    // With nothing waited for between the move and the GPU's access.
    move_to(0)?;
    stage.exchange(4)?;
    stage.batch.expect_valid(stage.world.gpu(0))
}
