// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of some ranges changes while all are mapped.

use vkfd_client::{ClientError, PAGE};

use super::{batch, expect_same, gap, map_anew, with_gaps, world};
use crate::coherence::batch::{Batch, FIRST};
use crate::{Scenario, Seen, Stop, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "flag_discarded_and_replaced_ranges_are_followed",
        about: "madvise and mmap over a range: the GPU sees what is there now, writes it, and the rest stays (faults a, b).",
        run: discard,
    },
    Scenario {
        name: "flag_moved_memory_is_left_alone",
        about: "mremap takes a range's pages away and other memory comes: the GPU has the new one, never the old.",
        run: moved,
    },
    Scenario {
        name: "flag_protected_memory_does_not_stop_the_queues",
        about: "mprotect to read-only: the rest goes on, where a single range of AMD's driver would wait without end; back, and it is written.",
        run: protect,
    },
    Scenario {
        name: "flag_a_range_without_memory_does_not_take_the_others_with_it",
        about: "munmap of ranges at both ends and inside, also of the first: the others work, mapped anew as well; new memory is taken up; an access \
                to a gone range faults (fault i).",
        run: gone,
    },
    Scenario {
        name: "flag_a_batch_of_which_nothing_is_left",
        about: "All ranges go, one by one, and come back.",
        run: all_gone,
    },
    Scenario {
        name: "flag_changes_in_gaps_are_nobodys",
        about: "Pages beside ranges and between them come and go.",
        run: gaps,
    },
    Scenario {
        name: "flag_unmapped_objects_are_up_to_date_when_mapped",
        about: "Memory changes while no GPU has the object; MAP brings the new pages.",
        run: unmapped,
    },
];

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn discard() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let batch = batch(&world, 64)?;
    expect_same(&world, &batch)?;
    for (seed, hit) in (10..).zip([0, 17, 31, 63]) {
        let (offset, bytes) = (batch.offset(hit), batch.range_bytes());
        for replaced in [false, true] {
            match replaced {
                false => batch.memory.discard(offset, bytes)?,
                true => batch.memory.replace(offset, bytes)?,
            }
            world.told();
            // Nothing was waited for.
            batch.expect_zero(&world, hit)?;
            batch.memory.fill_pages(batch.pages(hit), seed);
            batch.expect(&world, hit, seed)?;
            batch.write_from_gpu(&world, hit, seed + 100)?;
        }
        batch.memory.fill_pages(batch.pages(hit), FIRST);
        batch.expect_all_but(&world, &[], FIRST)?;
    }
    // All at once.
    batch.memory.discard(0, batch.memory.bytes())?;
    world.told();
    batch.memory.fill(5);
    batch.expect_all_but(&world, &[], 5)
}

fn moved() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Remap)?;
    world.sees(Seen::Protect)?;
    const HIT: usize = 9;
    let batch = batch(&world, 32)?;
    expect_same(&world, &batch)?;
    let away = batch.memory.remap(batch.offset(HIT), batch.range_bytes())?;
    batch.memory.map_again(batch.offset(HIT), batch.range_bytes())?;
    // New memory is no invalidation; a change of its pages is one.
    batch.memory.fill_pages(batch.pages(HIT), 2);
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ)?;
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), READ_WRITE)?;
    world.told();
    batch.expect(&world, HIT, 2)?;
    batch.write_from_gpu(&world, HIT, 4)?;
    let old: Vec<u8> = batch.pages(HIT).flat_map(|page| crate::pattern(page, FIRST)).collect();
    ensure!(away.read(0, batch.range_bytes()) == old, "the GPU wrote to memory that was moved away");
    batch.expect_all_but(&world, &[HIT], FIRST)
}

fn protect() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Protect)?;
    const HIT: usize = 2;
    let batch = batch(&world, 16)?;
    expect_same(&world, &batch)?;
    for seed in [3, 4] {
        batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ)?;
        world.told();
        batch.expect_all_but(&world, &[HIT], FIRST)?;
        batch.write_from_gpu(&world, HIT + 1, FIRST)?;
        batch.memory.protect(batch.offset(HIT), batch.range_bytes(), READ_WRITE)?;
        world.told();
        batch.memory.fill_pages(batch.pages(HIT), seed);
        batch.expect(&world, HIT, seed)?;
        batch.write_from_gpu(&world, HIT, seed + 10)?;
    }
    batch.expect_all_but(&world, &[HIT], FIRST)
}

/// Memory where a range has none, and an invalidation of it.
fn come_back(world: &World, batch: &Batch, range: usize, seed: u64) -> Result<(), Stop> {
    let (offset, bytes) = (batch.offset(range), batch.range_bytes());
    batch.memory.map_again(offset, bytes)?;
    // Only pages that are there can be taken away.
    batch.memory.fill_pages(batch.pages(range), seed);
    batch.memory.discard(offset, bytes)?;
    world.told();
    batch.memory.fill_pages(batch.pages(range), seed);
    if world.in_process() {
        // The source of such a driver's notifications does not show changes of new memory.
        map_anew(batch)?;
    }
    Ok(())
}

fn gone() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Unmap)?;
    world.sees(Seen::Discard)?;
    const GONE: [usize; 5] = [0, 20, 21, 40, 63];
    let batch = batch(&world, 64)?;
    expect_same(&world, &batch)?;
    for range in GONE {
        batch.memory.unmap(batch.offset(range), batch.range_bytes())?;
    }
    world.told();
    batch.expect_all_but(&world, &GONE, FIRST)?;
    batch.write_from_gpu(&world, 1, FIRST)?;
    map_anew(&batch)?;
    batch.expect_all_but(&world, &GONE, FIRST)?;
    // A change of another range: the gone ones are looked up again and are still gone.
    batch.memory.discard(batch.offset(5), batch.range_bytes())?;
    world.told();
    batch.expect_zero(&world, 5)?;
    batch.memory.fill_pages(batch.pages(5), FIRST);
    for range in &GONE[..4] {
        come_back(&world, &batch, *range, FIRST)?;
    }
    batch.expect_all_but(&world, &GONE[4..], FIRST)?;
    for range in &GONE[..4] {
        batch.write_from_gpu(&world, *range, FIRST)?;
    }
    match world.read_gpu(batch.va(GONE[4]), PAGE) {
        Err(ClientError::GpuFault { .. }) => Ok(()),
        other => bail!("an access to a range without memory should fault, but: {:?}", other.map(|seen| seen.len())),
    }
}

fn all_gone() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Unmap)?;
    world.sees(Seen::Discard)?;
    let batch = batch(&world, 4)?;
    expect_same(&world, &batch)?;
    for range in 0..4 {
        batch.memory.unmap(batch.offset(range), batch.range_bytes())?;
        world.told();
        let left: Vec<usize> = (0..=range).collect();
        batch.expect_all_but(&world, &left, FIRST)?;
    }
    map_anew(&batch)?;
    for range in 0..4 {
        come_back(&world, &batch, range, 2)?;
        let left: Vec<usize> = (range + 1..4).collect();
        batch.expect_all_but(&world, &left, 2)?;
    }
    expect_same(&world, &batch)
}

fn gaps() -> Result<(), Stop> {
    let world = world()?;
    let batch = with_gaps(&world, 64)?;
    expect_same(&world, &batch)?;
    for range in 0..63 {
        let (offset, bytes) = (gap(&batch, range), batch.range_bytes());
        match range % 3 {
            0 => batch.memory.discard(offset, bytes)?,
            1 => batch.memory.replace(offset, bytes)?,
            _ => batch.memory.unmap(offset, bytes)?,
        }
        world.told();
        batch.expect(&world, range, FIRST)?;
    }
    batch.write_from_gpu(&world, 30, FIRST)?;
    batch.expect_all_but(&world, &[], FIRST)
}

fn unmapped() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    let batch = Batch::with(&world, 32, crate::Layout::Shuffled, &super::options(false))?;
    for seed in [5, 6] {
        batch.memory.discard(batch.offset(7), batch.range_bytes())?;
        world.told();
        batch.memory.fill(seed);
        batch.buffer.map(&vkfd_client::GpuSet::All)?;
        batch.expect_all_but(&world, &[], seed)?;
        batch.write_from_gpu(&world, 7, seed)?;
        batch.buffer.unmap(&vkfd_client::GpuSet::All)?;
    }
    Ok(())
}
