// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Transparent huge pages: small pages are collapsed into huge ones, huge ones are split.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use vkfd_client::{RegisterOptions, PAGE};

use super::pages;
use super::stage::{Stage, Work};
use crate::coherence::batch::{since, FIRST};
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;

const HUGE: u64 = 2 << 20;
const BYTES: u64 = 4 * HUGE;
const PATIENCE: Duration = Duration::from_secs(300);
/// The kernel's own means to split what is mapped.
const SPLIT: &str = "/sys/kernel/debug/split_huge_pages";

fn huge_bytes(memory: &Memory) -> Result<u64, Stop> {
    pages::smaps(memory, "AnonHugePages")
}

/// Small pages become huge while the GPU works on them.
pub(super) fn collapse(work: Work) -> Result<(), Stop> {
    let stage = Stage::new(super::world_spec()?, 128, 16)?;
    ensure_eq!((stage.memory().bytes(), huge_bytes(stage.memory())?), (BYTES, 0));
    let before = stage.world.client().snapshot()?;
    let frames = pages::frames(stage.memory())?;
    stage.under(work, FIRST, |_| {
        let collapse = || stage.memory().madvise(0, BYTES, libc::MADV_COLLAPSE);
        let start = Instant::now();
        while let Err(e) = collapse() {
            match e.raw_os_error() {
                Some(libc::EINVAL) => {
                    let why = "a kernel without CONFIG_TRANSPARENT_HUGEPAGE?";
                    return Err(Stop::Skip(format!("MADV_COLLAPSE: {e}: {why}")));
                }
                // A page that somebody looks at just now keeps its neighbours from being collapsed;
                // one that is pinned does so each time.
                Some(libc::EAGAIN | libc::EBUSY) => ensure!(start.elapsed() < PATIENCE, "MADV_COLLAPSE: {e}"),
                _ => bail!("MADV_COLLAPSE: {e}"),
            }
        }
        Ok(())
    })?;
    ensure_eq!(huge_bytes(stage.memory())?, BYTES);
    let moved = pages::moved(&frames, &pages::frames(stage.memory())?);
    ensure_eq!(moved, frames.len(), "pages that have been moved into huge ones");
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    stage.world.settle()?;
    ensure!(since(&stage.world, &before)?.ranges_restored >= 128);
    // Still huge: neither the GPU's accesses nor the restore have split them.
    ensure_eq!(huge_bytes(stage.memory())?, BYTES);
    stage.batch.expect_valid(stage.world.gpu(0))
}

/// Huge pages are split: a page of one discarded, one half paged out, all by the kernel.
pub(super) fn split() -> Result<(), Stop> {
    let world = super::world()?;
    let memory = Memory::anonymous(BYTES)?;
    memory.want_huge_pages()?;
    memory.fill(FIRST);
    if huge_bytes(&memory)? != BYTES {
        return Err(Stop::Skip("the kernel has given no huge pages".into()));
    }
    let ranges = memory.scatter(BYTES / (64 << 10), 64 << 10, Layout::Shuffled);
    let stage = Stage::of(world, memory, ranges, &RegisterOptions::default())?;
    let (world, batch) = (&stage.world, &stage.batch);
    stage.gpu_sees(FIRST)?;

    // One page in the middle of the first.
    let hole = 300 * PAGE;
    batch.memory.discard(hole, PAGE)?;
    ensure_eq!(huge_bytes(&batch.memory)?, BYTES - HUGE, "a huge page with a hole");
    ensure!(page_seen(&stage, hole)?.iter().all(|byte| *byte == 0), "the GPU sees old contents in the hole");
    batch.memory.fill_pages(300..301, FIRST);
    stage.gpu_sees(FIRST)?;

    // Half of the second goes to swap.
    let before = pages::vmstat("pswpout")?;
    // A page that somebody looks at just now stays, and goes the next time.
    repeat_until(
        || batch.memory.page_out(HUGE, HUGE / 2),
        || {
            let swapped = pages::vmstat("pswpout")? - before;
            Ok(swapped >= HUGE / 2 / PAGE)
        },
    )?;
    ensure_eq!(huge_bytes(&batch.memory)?, BYTES - 2 * HUGE);
    stage.gpu_sees(FIRST)?;

    // The rest while the GPU works.
    let whole = batch.memory.whole();
    let order = format!("{},{:#x},{:#x}", std::process::id(), whole.start, whole.start + whole.size);
    let before = world.client().snapshot()?;
    let none_is_huge = || Ok(huge_bytes(&batch.memory)? == 0);
    if fs::metadata(SPLIT).is_ok() {
        stage.beside(FIRST, |_| repeat_until(|| fs::write(SPLIT, &order), none_is_huge))?;
    } else {
        stage.beside(FIRST, |_| repeat_until(|| batch.memory.page_out(2 * HUGE, 2 * HUGE), none_is_huge))?;
    }
    ensure_eq!(huge_bytes(&batch.memory)?, 0);
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)?;
    ensure!(since(world, &before)?.invalidations > 0, "the splitting was not seen");
    world.settle()?;
    batch.expect_valid(world.gpu(0))
}

/// Does what the kernel does as well as it can, until it is done.
fn repeat_until(act: impl Fn() -> io::Result<()>, done: impl Fn() -> Result<bool, Stop>) -> Result<(), Stop> {
    let start = Instant::now();
    loop {
        act()?;
        if done()? {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the kernel pages out or splits less than it was told to");
    }
}

/// What the GPU sees of the page at `offset` of the memory.
fn page_seen(stage: &Stage, offset: u64) -> Result<Vec<u8>, Stop> {
    let page = offset / PAGE;
    let batch = &stage.batch;
    let range = (0..batch.ranges.len()).find(|range| batch.pages(*range).contains(&page));
    let range = range.ok_or_else(|| anyhow::anyhow!("page {page} is in no range"))?;
    Ok(stage.world.read_gpu(batch.va(range).offset((page - batch.pages(range).start) * PAGE), PAGE)?)
}
