// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages in a GPU's memory: the CPU and others use them in place (coherent), or they come back when
//! the CPU touches them (private).

use vkfd_client::PAGE;

use super::device_stage::{count, expect_resident, spec, DeviceStage, Kind};
use super::pages;
use crate::coherence::batch::FIRST;
use crate::memory::{Backing, Memory};
use crate::verdict::Stop;
use crate::world::World;

const RANGES: u64 = 128;
const PAGES: u64 = 4;

/// There, used by both sides in place, and back again.
pub(super) fn in_place() -> Result<(), Stop> {
    let device = DeviceStage::new(spec(Kind::Coherent)?, RANGES, PAGES)?;
    let all = usize::try_from(device.pages())?;
    let in_ram = device.frames()?;
    device.expect_entries(0)?;
    device.move_to_gpu(device.pages())?;
    let there = device.frames()?;
    ensure_eq!(pages::moved(&in_ram, &there), all, "pages with another frame");
    expect_resident(device.world(), device.pages())?;
    device.expect_entries(all)?;
    let before = count(device.world())?;
    device.expect_first()?;
    for round in 1..4 {
        device.stage.exchange(2 * round)?;
    }
    ensure_eq!(device.frames()?, there, "frames after CPU and GPU have read and written everything");
    ensure_eq!(count(device.world())?, before, "what was moved while CPU and GPU have read and written everything");
    device.move_to_system(device.pages())?;
    expect_resident(device.world(), 0)?;
    device.expect_entries(0)?;
    ensure_eq!(pages::moved(&there, &device.frames()?), all, "pages with another frame");
    device.stage.gpu_sees(6)?;
    device.stage.exchange(8)
}

/// The CPU touches one page, and then the rest.
pub(super) fn private() -> Result<(), Stop> {
    let device = DeviceStage::moved(spec(Kind::Private)?, RANGES, PAGES)?;
    let all = device.pages();
    expect_resident(device.world(), all)?;
    device.expect_entries(usize::try_from(all)?)?;
    device.stage.gpu_sees(FIRST)?;
    expect_resident(device.world(), all)?;
    let before = count(device.world())?;
    for (touched, page) in (1..).zip([0, all / 2, all - 1]) {
        ensure_eq!(device.memory().find_wrong(page..page + 1, FIRST), None);
        expect_resident(device.world(), all - touched)?;
        let present = pages::frames(device.memory())?.iter().filter(|frame| frame.is_some()).count();
        ensure_eq!(present as u64, touched, "pages that the CPU has");
        ensure_eq!(count(device.world())?.released, before.released + touched, "pages that came back");
    }
    device.expect_entries(usize::try_from(all - 3)?)?;
    device.expect_first()?;
    expect_resident(device.world(), 0)?;
    for round in 1..3 {
        device.stage.exchange(2 * round)?;
        device.move_to_gpu(all)?;
    }
    device.stage.gpu_sees(4)?;
    device.move_to_system(all)?;
    device.stage.cpu_sees(4)
}

/// Memory that nobody has touched is zeroes there.
pub(super) fn untouched() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        // What is there has been somebody's before.
        for pattern in [None, Some(1), None] {
            let memory = Memory::anonymous(64 * PAGE)?;
            if let Some(pattern) = pattern {
                memory.fill(pattern);
            }
            let moved = world.client().move_to_gpu(memory.whole(), world.gpu(0))?;
            ensure_eq!((moved.moved, moved.resident), (64, 64));
            match pattern {
                Some(pattern) => ensure_eq!(memory.find_wrong(0..64, pattern), None),
                None => ensure!(memory.read(0, 64 * PAGE).iter().all(|byte| *byte == 0), "not zeroes"),
            }
            drop(memory);
            expect_resident(&world, 0)?;
        }
    }
    Ok(())
}

/// Pages of files and of shared memory stay where they are; a process's own copies of a file's
/// pages move.
pub(super) fn of_files() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        let world = World::new(spec(kind)?)?;
        for (backing, moves) in [(Backing::Shared, 0), (Backing::FileShared, 0), (Backing::FilePrivate, 32)] {
            let memory = Memory::new(backing, 64 * PAGE)?;
            memory.fill_pages(0..32, FIRST);
            ensure!(memory.read(32 * PAGE, 32 * PAGE).iter().all(|byte| *byte == 0));
            let moved = world.client().move_to_gpu(memory.whole(), world.gpu(0))?;
            ensure_eq!((moved.moved, moved.resident), (moves, moves), "{backing:?}");
            ensure_eq!(memory.find_wrong(0..32, FIRST), None, "{backing:?}");
            ensure!(memory.read(32 * PAGE, 32 * PAGE).iter().all(|byte| *byte == 0), "{backing:?}: not zeroes");
            memory.fill(2);
            ensure_eq!(memory.find_wrong(0..64, 2), None, "{backing:?}");
            drop(memory);
            expect_resident(&world, 0)?;
        }
    }
    Ok(())
}

/// Unmapping gives back exactly what was unmapped, and moving a mapping takes its pages along.
pub(super) fn unmapped_in_part() -> Result<(), Stop> {
    for kind in [Kind::Coherent, Kind::Private] {
        let world = World::new(spec(kind)?)?;
        expect_resident(&world, 0)?;
        let memory = Memory::anonymous(96 * PAGE)?;
        memory.fill(FIRST);
        ensure_eq!(world.client().move_to_gpu(memory.whole(), world.gpu(0))?.moved, 96);
        memory.unmap(16 * PAGE, 16 * PAGE)?;
        expect_resident(&world, 80)?;
        memory.discard(32 * PAGE, 16 * PAGE)?;
        expect_resident(&world, 64)?;
        ensure!(memory.read(32 * PAGE, 16 * PAGE).iter().all(|byte| *byte == 0), "not zeroes after a discard");
        let elsewhere = memory.remap(48 * PAGE, 16 * PAGE)?;
        expect_resident(&world, 64)?;
        ensure_eq!(memory.find_wrong(0..16, FIRST), None);
        ensure_eq!(memory.find_wrong(64..96, FIRST), None);
        let moved_pages = (48..64).flat_map(|page| crate::memory::pattern(page, FIRST)).collect::<Vec<u8>>();
        ensure!(elsewhere.read(0, 16 * PAGE) == moved_pages, "what was moved by mremap");
        drop((memory, elsewhere));
        expect_resident(&world, 0)?;
    }
    Ok(())
}

/// A huge page is moved, in small ones.
pub(super) fn huge() -> Result<(), Stop> {
    const HUGE: u64 = 2 << 20;
    for kind in [Kind::Coherent, Kind::Private] {
        let world = World::new(spec(kind)?)?;
        let memory = Memory::anonymous(2 * HUGE)?;
        memory.want_huge_pages()?;
        memory.fill(FIRST);
        let huge = pages::smaps(&memory, "AnonHugePages")?;
        if huge != 2 * HUGE {
            return Err(Stop::Skip(format!("only {huge:#x} bytes of {:#x} are in huge pages", 2 * HUGE)));
        }
        let moved = world.client().move_to_gpu(memory.range(HUGE / 2, HUGE), world.gpu(0))?;
        ensure_eq!(moved.moved, HUGE / PAGE);
        ensure_eq!(memory.find_wrong(0..memory.pages(), FIRST), None);
        memory.fill(2);
        world.client().move_to_system(memory.whole(), world.gpu(0))?;
        expect_resident(&world, 0)?;
        ensure_eq!(memory.find_wrong(0..memory.pages(), 2), None);
    }
    Ok(())
}
