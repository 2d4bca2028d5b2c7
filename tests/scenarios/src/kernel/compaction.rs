// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compaction: the kernel moves pages together to make large blocks of free memory.
//!
//! It can move pages only to pages on the zone's own lists of free pages. Pages that were freed one
//! by one first wait on each processor's list, up to an eighth of the zone. Compaction does not
//! look there, so these lists are kept short meanwhile.

use std::fs;

use vkfd_client::{RegisterOptions, PAGE};

use super::pages;
use super::stage::{Stage, Work};
use crate::coherence::batch::{since, FIRST};
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;

/// Writing 1 compacts all of memory.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// What part of a zone the lists of all processors may have; 0 leaves it to the kernel.
const FRACTION: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";
const RANGES: u64 = 4096;
/// Pages, of the registered ones.
const ENOUGH: usize = 256;
/// Of compaction over the same memory: the first moves it, or there is something in the way that
/// the others will not move either.
const PASSES: usize = 4;
/// Each with memory and holes at other places.
const ATTEMPTS: usize = 8;

/// Keeps the processors' lists of free pages as short as they can be, until it is dropped.
struct ShortLists(String);

impl ShortLists {
    fn new() -> Result<Self, Stop> {
        let missing = |e| Stop::Skip(format!("{FRACTION}: {e}"));
        let lists = Self(fs::read_to_string(FRACTION).map_err(missing)?);
        fs::write(FRACTION, i32::MAX.to_string()).map_err(missing)?;
        Ok(lists)
    }
}

impl Drop for ShortLists {
    fn drop(&mut self) {
        let _ = fs::write(FRACTION, self.0.trim());
    }
}

/// Memory, and other memory of the same node that has higher frames, every other of them free.
/// Compaction moves pages from the lower end of a zone to holes at its upper end. It does not break
/// up blocks that are free as a whole. If it has found nothing for a while it looks at every 32nd
/// frame only, so the free frames are the even ones.
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
        for (page, frame) in (0..).zip(pages::frames(memory)?) {
            if frame.is_some_and(|frame| frame % 2 == 0) {
                memory.discard(page * PAGE, PAGE)?;
            }
        }
    }
    Ok((lowest, others))
}

/// Attempts until one has moved enough.
pub(super) fn compaction(work: Work) -> Result<(), Stop> {
    if fs::metadata(COMPACT).is_err() {
        return Err(Stop::Skip(format!("{COMPACT} does not exist: a kernel without CONFIG_COMPACTION?")));
    }
    let _lists = ShortLists::new()?;
    let mut most = 0;
    for _ in 0..ATTEMPTS {
        most = most.max(attempt(work)?);
        if most >= ENOUGH {
            return Ok(());
        }
    }
    bail!("compaction has moved at most {most} registered pages in {ATTEMPTS} attempts");
}

/// Every other page is registered, and the others are freed: compaction closes these holes. Returns
/// the number of registered pages that it moved.
fn attempt(work: Work) -> Result<usize, Stop> {
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
    let moved = stage.under(work, FIRST, |work| {
        let mut moved = 0;
        for _ in 0..PASSES {
            fs::write(COMPACT, "1")?;
            work.more(1)?;
            moved = pages::moved(&frames, &pages::frames(stage.memory())?);
            if moved >= ENOUGH {
                break;
            }
        }
        Ok(moved)
    })?;
    drop(holes);
    ensure!(pages::vmstat("pgmigrate_success")? >= migrated + moved as u64);
    stage.world.settle()?;
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    ensure!(since(&stage.world, &before)?.ranges_restored >= moved as u64);
    stage.batch.expect_valid(stage.world.gpu(0))?;
    Ok(moved)
}
