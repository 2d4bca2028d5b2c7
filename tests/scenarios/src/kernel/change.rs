// SPDX-License-Identifier: GPL-2.0 OR MIT
//! mprotect and mmap in place on a batch of 4,096 ranges, while the GPU works on the rest of it.

use vkfd_client::uapi::vkfd::{RANGE_DENIED, RANGE_GONE, RANGE_VALID};
use vkfd_client::{ClientError, RegisterOptions, PAGE};

use super::pages;
use super::stage::Stage;
use crate::coherence::batch::FIRST;
use crate::engine::Engine;
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;

const RANGES: u64 = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Of the memory's ranges, which lie one after the other, the second half is changed.
fn stage() -> Result<Stage, Stop> {
    Stage::with(super::world_spec()?, RANGES, 1, Layout::Adjacent, &RegisterOptions::default())
}

/// GPU work on the half that is left alone, which has the pattern of `seed`.
fn on_the_first_half(stage: &Stage, seed: u64) -> impl Fn(&mut Engine, u64) -> Result<(), Stop> + Sync + '_ {
    move |engine, round| {
        const STEP: u64 = 64;
        let first = round * STEP % (RANGES / 2);
        let at = usize::try_from(first)?;
        let seen = engine.read(stage.batch.va(at), STEP * PAGE)?;
        for (range, bytes) in (at..).zip(seen.chunks(usize::try_from(PAGE)?)) {
            stage.batch.compare(range, bytes, seed)?;
        }
        Ok(())
    }
}

fn states(stage: &Stage, expected: u32) -> Result<(), Stop> {
    for (i, range) in (0..).zip(stage.batch.state()?) {
        let expected = if i < RANGES / 2 { RANGE_VALID } else { expected };
        ensure_eq!(range.state, expected, "the state of range {i}");
    }
    Ok(())
}

/// 2,048 ranges are made read-only and writable again. The GPU cannot write to them meanwhile; a
/// registration for reading goes on.
pub(super) fn protect() -> Result<(), Stop> {
    let stage = stage()?;
    let (world, batch, memory) = (&stage.world, &stage.batch, stage.memory());
    let (half, bytes) = (memory.bytes() / 2, memory.bytes() / 2);
    let options = RegisterOptions { writable: false, ..RegisterOptions::default() };
    // SAFETY: no reference to the memory is ever made.
    let for_reading = unsafe { world.client().register_ranges(&[memory.range(half, bytes)], &options)? };
    stage.beside_work(on_the_first_half(&stage, FIRST), |_| {
        memory.protect(half, bytes, libc::PROT_READ)?;
        world.settle()?;
        states(&stage, RANGE_DENIED)?;
        let seen = world.read_gpu(for_reading.gpu_va(), PAGE)?;
        batch.compare(usize::try_from(RANGES / 2)?, &seen, FIRST)
    })?;
    let last = batch.ranges.len() - 1;
    match world.write_gpu(batch.va(last), &[0xee; 64]) {
        Err(ClientError::GpuFault { va, .. }) => ensure_eq!(va, batch.va(last)),
        other => bail!("a write to protected memory should fault, but: {other:?}"),
    }
    stage.cpu_sees(FIRST)?;
    memory.protect(half, bytes, READ_WRITE)?;
    world.settle()?;
    states(&stage, RANGE_VALID)?;
    stage.gpu_sees(FIRST)?;
    stage.exchange(2)
}

/// 2,048 ranges are unmapped and mapped again at the same addresses: other pages, which the GPU
/// sees.
pub(super) fn replace() -> Result<(), Stop> {
    let stage = stage()?;
    let (world, batch, memory) = (&stage.world, &stage.batch, stage.memory());
    let (half, bytes) = (memory.bytes() / 2, memory.bytes() / 2);
    let changed = memory.pages() / 2..memory.pages();
    stage.beside_work(on_the_first_half(&stage, FIRST), |work| {
        memory.unmap(half, bytes)?;
        work.more(1)?;
        world.settle()?;
        states(&stage, RANGE_GONE)?;
        // Somebody else gets the pages.
        let other = Memory::anonymous(bytes)?;
        other.fill(77);
        memory.map_again(half, bytes)?;
        memory.fill_pages(changed.clone(), FIRST);
        batch.map_again()?;
        states(&stage, RANGE_VALID)?;
        stage.gpu_sees(FIRST)?;
        ensure_eq!(other.find_wrong(0..other.pages(), 77), None);
        // In one call, with nothing waited for.
        let frames = pages::frames(memory)?;
        memory.replace(half, bytes)?;
        memory.fill_pages(changed.clone(), FIRST);
        stage.gpu_sees(FIRST)?;
        ensure!(pages::moved(&frames, &pages::frames(memory)?) > 0, "the new pages are the old ones");
        ensure_eq!(other.find_wrong(0..other.pages(), 77), None);
        Ok(())
    })?;
    world.settle()?;
    stage.exchange(2)?;
    batch.expect_valid(world.gpu(0))
}

/// mremap moves 2,048 ranges away; what the GPU writes afterwards does not arrive there.
pub(super) fn remap() -> Result<(), Stop> {
    let stage = stage()?;
    let (world, batch, memory) = (&stage.world, &stage.batch, stage.memory());
    let (half, bytes) = (memory.bytes() / 2, memory.bytes() / 2);
    let changed = memory.pages() / 2..memory.pages();
    let away = stage.beside_work(on_the_first_half(&stage, FIRST), |_| {
        let away = memory.remap(half, bytes)?;
        memory.map_again(half, bytes)?;
        memory.fill_pages(changed.clone(), 2);
        batch.map_again()?;
        Ok(away)
    })?;
    for range in [RANGES / 2, RANGES - 1] {
        let range = usize::try_from(range)?;
        batch.expect(world, range, 2)?;
        batch.write_from_gpu(world, range, 3)?;
    }
    // Page numbers count from 0 there.
    let bytes_away = away.read(0, bytes);
    ensure_eq!(crate::memory::wrong_page(&bytes_away, changed, FIRST), None, "the memory that was moved away");
    stage.exchange(4)
}
