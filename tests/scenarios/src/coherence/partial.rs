// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an invalidation touches, and what it leaves alone: counted by range.

use vkfd_client::{RegisterOptions, PAGE};

use super::batch::{moved, since, Batch, Happened, FIRST, RANGE_PAGES};
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

/// Only ranges that an invalidation hits are invalidated, restored, and rewritten; one stop of the
/// queues for each.
pub fn only_what_is_hit(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    let batch = Batch::with(&world, 256, Layout::Adjacent, &RegisterOptions::default())?;
    batch.expect_all_but(&world, &[], FIRST)?;
    if spec.per_range_windows {
        ensure_eq!(world.client().snapshot()?.notifiers, 256);
    }
    let entries = batch.all_ptes(world.gpu(0))?;
    let size = batch.range_bytes();
    // From the last page of range 100 to the first of range 103, and then one page in the middle of
    // a range.
    for (from, bytes, hits) in
        [(101 * size - PAGE, 2 * size + 2 * PAGE, 100..104_usize), (7 * size + PAGE, PAGE, 7..8), (0, PAGE, 0..1)]
    {
        let (ranges, before) = (batch.state()?, world.client().snapshot()?);
        batch.memory.discard(from, bytes)?;
        world.settle()?;
        let n = hits.len() as u64;
        let notifiers = if spec.per_range_windows { n } else { 1 };
        ensure_eq!(
            since(&world, &before)?,
            Happened { invalidations: notifiers, evictions: 1, restores: 1, ranges_invalidated: n, ranges_restored: n },
            "counters after {bytes:#x} bytes at {from:#x} were discarded",
        );
        let now = batch.state()?;
        ensure_eq!(moved(&ranges, &now), hits.collect::<Vec<_>>());
        for i in moved(&ranges, &now) {
            ensure_eq!(now[i].generation, ranges[i].generation + 1);
        }
        batch.expect_valid(world.gpu(0))?;
        // The rest of the memory has not changed for the GPU, and the zeroes are at the right
        // places.
        let seen = world.read_gpu(batch.buffer.gpu_va(), batch.buffer.len())?;
        ensure!(seen == batch.memory.read(0, batch.buffer.len()), "GPU and CPU see different memory");
        ensure!(seen[usize::try_from(from)?..usize::try_from(from + bytes)?].iter().all(|byte| *byte == 0));
        batch.memory.fill_pages(from / PAGE..(from + bytes) / PAGE, FIRST);
    }
    // Untouched ranges have the entries that they had.
    let now = batch.all_ptes(world.gpu(0))?;
    let pages = usize::try_from(RANGE_PAGES)?;
    let differ = |range: &usize| entries[range * pages..][..pages] != now[range * pages..][..pages];
    ensure!((0..256).filter(differ).all(|range| [0, 7, 100, 101, 102, 103].contains(&range)));
    batch.expect_all_but(&world, &[], FIRST)
}

/// A change in a gap between ranges, or a page beside one, is nobody's.
pub fn gaps_and_neighbours(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let batch = Batch::with(&world, 64, Layout::Gaps, &RegisterOptions::default())?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let (ranges, before) = (batch.state()?, world.client().snapshot()?);
    ensure!(before.notifiers < 64, "the gaps are in no window: there is nothing to see");
    let size = batch.range_bytes();
    for range in [0, 30, 62] {
        let (first, end) = (batch.offset(range), batch.offset(range) + size);
        batch.memory.discard(end, PAGE)?;
        batch.memory.discard(end, size)?;
        if range > 0 {
            batch.memory.discard(first - PAGE, PAGE)?;
        }
        // A kernel that splits a mapping invalidates the 2 MiB around, whether or not there is a
        // huge page.
        if world.in_process() {
            batch.memory.unmap(end + PAGE, PAGE)?;
            batch.memory.map_again(end + PAGE, PAGE)?;
        }
    }
    world.told();
    ensure_eq!(since(&world, &before)?, Happened::default());
    ensure_eq!(moved(&ranges, &batch.state()?), Vec::<usize>::new());
    // Control: a page further in is a hit, at both ends.
    for range in [0, 30, 62] {
        for offset in [batch.offset(range), batch.offset(range) + size - PAGE] {
            let (ranges, before) = (batch.state()?, world.client().snapshot()?);
            batch.memory.discard(offset, PAGE)?;
            world.settle()?;
            ensure_eq!(moved(&ranges, &batch.state()?), [range]);
            ensure_eq!(since(&world, &before)?.ranges_restored, 1);
            batch.memory.fill_pages(offset / PAGE..offset / PAGE + 1, FIRST);
        }
    }
    batch.expect_all_but(&world, &[], FIRST)
}

/// Invalidations of an object that no GPU has mapped stop nothing; MAP brings it up to date.
pub(super) fn unmapped_object() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    let options = RegisterOptions { map: false, ..RegisterOptions::default() };
    let batch = Batch::with(&world, 64, Layout::Shuffled, &options)?;
    let (ranges, before) = (batch.state()?, world.client().snapshot()?);
    for (seed, hit) in (2..).zip([3_usize, 60]) {
        batch.memory.discard(batch.offset(hit), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(hit), seed);
    }
    world.told();
    let mut hits = moved(&ranges, &batch.state()?);
    hits.sort_unstable();
    ensure_eq!(hits, [3, 60]);
    let happened = since(&world, &before)?;
    ensure_eq!((happened.invalidations, happened.evictions, happened.ranges_restored), (2, 0, 0));
    batch.buffer.map(&vkfd_client::GpuSet::All)?;
    ensure_eq!(since(&world, &before)?.ranges_restored, 2);
    batch.expect_valid(world.gpu(0))?;
    batch.expect(&world, 3, 2)?;
    batch.expect(&world, 60, 3)?;
    batch.expect_all_but(&world, &[3, 60], FIRST)?;
    // Unmapped again: the same.
    batch.buffer.unmap(&vkfd_client::GpuSet::All)?;
    batch.memory.discard(0, batch.memory.bytes())?;
    world.told();
    ensure_eq!(since(&world, &before)?.evictions, 0);
    batch.buffer.revalidate()?;
    batch.buffer.map(&vkfd_client::GpuSet::All)?;
    for range in 0..64 {
        batch.expect_zero(&world, range)?;
    }
    Ok(())
}

/// Memory that was freed is nobody's: the driver hears nothing of it any more.
pub fn freed_memory(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    let Batch { buffer, memory, .. } = Batch::new(&world, 64)?;
    buffer.free()?;
    let before = world.client().snapshot()?;
    ensure_eq!((before.userptr_bos, before.notifiers), (0, 0));
    memory.discard(0, memory.bytes())?;
    memory.replace(0, memory.bytes() / 2)?;
    world.told();
    ensure_eq!(since(&world, &before)?, Happened::default());
    // Registered again it is watched again, once.
    memory.fill(2);
    let ranges = memory.scatter(64, RANGE_PAGES * PAGE, Layout::Reversed);
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    let before = world.client().snapshot()?;
    batch.memory.discard(batch.offset(7), PAGE)?;
    world.settle()?;
    ensure_eq!(
        since(&world, &before)?,
        Happened { invalidations: 1, evictions: 1, restores: 1, ranges_invalidated: 1, ranges_restored: 1 },
    );
    batch.expect_all_but(&world, &[7], 2)
}

/// The same memory several times in one buffer: each place is invalidated and restored.
pub(super) fn aliased_ranges() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    let memory = Memory::anonymous(8 * RANGE_PAGES * PAGE)?;
    memory.fill(FIRST);
    let (size, half) = (RANGE_PAGES * PAGE, RANGE_PAGES / 2 * PAGE);
    // Range 1 twice, and two that overlap it by half.
    let ranges = vec![
        memory.range(size, size),
        memory.range(5 * size, size),
        memory.range(size, size),
        memory.range(size + half, size),
        memory.range(size - half, size),
    ];
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    batch.expect_all_but(&world, &[], FIRST)?;
    for (offset, hits) in
        [(size, vec![0, 2, 4]), (size + half, vec![0, 2, 3]), (2 * size, vec![3]), (5 * size, vec![1])]
    {
        let (before, info) = (batch.state()?, world.client().snapshot()?);
        batch.memory.discard(offset, PAGE)?;
        batch.memory.fill_pages(offset / PAGE..offset / PAGE + 1, 2);
        world.settle()?;
        ensure_eq!(moved(&before, &batch.state()?), hits);
        ensure_eq!(since(&world, &info)?.ranges_restored, hits.len() as u64);
        let seen = world.read_gpu(batch.buffer.gpu_va(), batch.buffer.len())?;
        ensure!(seen == crate::memory::gather(&batch.ranges), "GPU and CPU see different memory");
    }
    batch.write_from_gpu(&world, 0, 9)?;
    batch.expect(&world, 2, 9)
}
