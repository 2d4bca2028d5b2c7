// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that goes: munmap, mmap over it, mremap, a truncated file.

use vkfd_client::uapi::vkfd::{RANGE_GONE, RANGE_VALID};
use vkfd_client::{ClientError, GpuVa, RegisterOptions, PAGE};

use super::batch::{moved, Batch, FIRST};
use crate::memory::{Backing, Layout, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

/// An access to `va` must fault and be reported with its address.
pub(super) fn expect_fault(world: &World, va: GpuVa) -> Result<(), Stop> {
    let faults = world.client().snapshot()?.gpu_faults;
    match world.read_gpu(va, PAGE) {
        Err(ClientError::GpuFault { va: at, .. }) => ensure_eq!(at, va, "the address that the fault reports"),
        other => bail!("an access to {va} should fault, but: {other:?}"),
    }
    ensure!(world.client().snapshot()?.gpu_faults > faults, "the driver did not count the fault");
    Ok(())
}

/// One range of many is unmapped while all are mapped on the GPU.
pub fn unmap_one_of_many(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Unmap)?;
    const GONE: usize = 17;
    let batch = Batch::new(&world, 64)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let (ranges, entries) = (batch.state()?, batch.all_ptes(world.gpu(0))?);
    batch.memory.unmap(batch.offset(GONE), batch.range_bytes())?;
    world.settle()?;
    batch.expect_all_but(&world, &[GONE], FIRST)?;
    expect_fault(&world, batch.va(GONE))?;

    let now = batch.state()?;
    ensure_eq!(moved(&ranges, &now), [GONE]);
    for (i, range) in now.iter().enumerate() {
        ensure_eq!(range.state, if i == GONE { RANGE_GONE } else { RANGE_VALID }, "the state of range {i}");
    }
    let per_range = usize::try_from(batch.range_bytes() / PAGE)?;
    for (i, (was, is)) in entries.iter().zip(batch.all_ptes(world.gpu(0))?).enumerate() {
        ensure_eq!(is, if i / per_range == GONE { 0 } else { *was }, "the entry of page {i}");
    }
    let bo = world.client().bos()?.into_iter().find(|bo| Some(bo.handle) == batch.handle().ok().map(|h| h.0));
    ensure_eq!(bo.map(|bo| (bo.gone_ranges, bo.invalid_ranges)), Some((1, 0)));

    // The queue has stopped; a new one works, on the same buffer, and the GPU's compute unit too.
    batch.expect_all_but(&world, &[GONE], FIRST)?;
    batch.write_from_gpu(&world, GONE + 1, 9)?;
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes));
        words.fold(0_u64, u64::wrapping_add)
    };
    let expected = sum(&batch.memory.read(batch.offset(3), batch.range_bytes()));
    ensure_eq!(world.sum64(batch.va(3), batch.range_bytes())?, expected);
    Ok(())
}

/// A range is replaced by one call of mmap: the GPU sees what is there now.
pub fn replace_in_place(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Unmap)?;
    const HIT: usize = 5;
    let batch = Batch::new(&world, 32)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    for seed in 2..6 {
        let before = batch.state()?;
        batch.memory.replace(batch.offset(HIT), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(HIT), seed);
        world.told();
        batch.expect(&world, HIT, seed)?;
        world.settle()?;
        batch.expect_all_but(&world, &[HIT], FIRST)?;
        ensure_eq!(moved(&before, &batch.state()?), [HIT]);
        batch.expect_valid(world.gpu(0))?;
        batch.write_from_gpu(&world, HIT, seed + 100)?;
    }
    Ok(())
}

/// As above by munmap and mmap, and with nothing between the two calls.
pub(super) fn unmap_and_map_at_once() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Unmap)?;
    let batch = Batch::new(&world, 32)?;
    for (seed, hit) in (2..).zip([0_usize, 31, 7]) {
        batch.memory.unmap(batch.offset(hit), batch.range_bytes())?;
        batch.memory.map_again(batch.offset(hit), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(hit), seed);
        world.settle()?;
        // The restore may have come between the two calls.
        if batch.state()?[hit].state == RANGE_GONE {
            batch.buffer.revalidate()?;
        }
        batch.expect_valid(world.gpu(0))?;
        batch.expect(&world, hit, seed)?;
        batch.write_from_gpu(&world, hit, seed + 100)?;
    }
    Ok(())
}

/// Memory that comes back after the restore has found it gone is used again from the next MAP on.
pub(super) fn memory_comes_back() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Unmap)?;
    const GONE: usize = 3;
    let batch = Batch::new(&world, 16)?;
    for seed in 2..5 {
        batch.memory.unmap(batch.offset(GONE), batch.range_bytes())?;
        world.settle()?;
        ensure_eq!(batch.state()?[GONE].state, RANGE_GONE);
        ensure_eq!(batch.ptes(world.gpu(0), GONE)?, [0; 4]);
        // Mapping with the memory still gone is no error and changes nothing.
        batch.buffer.revalidate()?;
        ensure_eq!(batch.state()?[GONE].state, RANGE_GONE);
        batch.memory.map_again(batch.offset(GONE), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(GONE), seed);
        batch.buffer.revalidate()?;
        batch.expect_valid(world.gpu(0))?;
        batch.expect(&world, GONE, seed)?;
        batch.expect_all_but(&world, &[GONE], FIRST)?;
        // It is watched again, too.
        batch.memory.discard(batch.offset(GONE), batch.range_bytes())?;
        world.told();
        batch.expect_zero(&world, GONE)?;
        world.settle()?;
    }
    Ok(())
}

/// mremap: the old place is gone, the new one is not the GPU's.
pub(super) fn mremap_away() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Remap)?;
    const MOVED: usize = 9;
    let batch = Batch::new(&world, 24)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let elsewhere = batch.memory.remap(batch.offset(MOVED), batch.range_bytes())?;
    world.settle()?;
    ensure_eq!(batch.state()?[MOVED].state, RANGE_GONE);
    expect_fault(&world, batch.va(MOVED))?;
    match world.write_gpu(batch.va(MOVED), &[0xee; 64]) {
        Err(ClientError::GpuFault { va, .. }) => ensure_eq!(va, batch.va(MOVED)),
        other => bail!("a write to memory that was moved away should fault, but: {other:?}"),
    }
    batch.compare(MOVED, &elsewhere.read(0, batch.range_bytes()), FIRST)?;
    batch.expect_all_but(&world, &[MOVED], FIRST)
}

/// A file becomes shorter than its registered part.
pub(super) fn truncated_file() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    const RANGES: u64 = 8;
    let bytes = RANGES * 4 * PAGE;
    let memory = Memory::new(Backing::Shared, bytes)?;
    memory.fill(FIRST);
    let ranges = memory.scatter(RANGES, 4 * PAGE, Layout::Adjacent);
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let file = batch.memory.file().ok_or_else(|| anyhow::anyhow!("shared memory has a file"))?;
    file.set_len(6 * 4 * PAGE)?;
    for range in [6, 7] {
        expect_fault(&world, batch.va(range))?;
    }
    world.settle()?;
    let states: Vec<u32> = batch.state()?.iter().map(|range| range.state).collect();
    ensure_eq!(states[6], RANGE_GONE);
    for range in 0..6 {
        batch.expect(&world, range, FIRST)?;
    }
    // Longer again: zeroes.
    file.set_len(bytes)?;
    batch.buffer.revalidate()?;
    batch.expect_valid(world.gpu(0))?;
    for range in [6, 7] {
        batch.expect_zero(&world, range)?;
        batch.write_from_gpu(&world, range, 3)?;
    }
    Ok(())
}
