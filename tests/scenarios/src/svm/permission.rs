// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that may not be written, not be used at all, or that nobody has written: on a GPU it is
//! the same as anywhere.

use vkfd_client::{ClientError, Errno, GpuVa, SvmAccess, UserptrRange, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm};
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_memory_that_nobody_wrote_is_zero_and_read_only_memory_is_read",
        about: "No page, the zero page, and pages behind a read-only mapping, in system memory and prefetched.",
        run: || both(unwritten),
    },
    Scenario {
        name: "svm_memory_without_permission_is_refused_until_there_is_one",
        about: "PROT_NONE under a GPU at work: reads fault, and go on after mprotect.",
        run: without_permission,
    },
    Scenario {
        name: "svm_pages_of_every_permission_side_by_side",
        about:
            "None, a hole, the zero page, read-only, writable, on one GPU, on another: each is what it is for the CPU.",
        run: || both(side_by_side),
    },
    Scenario {
        name: "svm_two_gpus_read_the_same_read_only_memory",
        about: "Before it moves, and after it moved to one of them.",
        run: || both(two_readers),
    },
    Scenario {
        name: "svm_addresses_beyond_a_clients_are_refused",
        about: "GPU accesses and moves up to the last page of all: a fault or an error, and the driver goes on.",
        run: beyond,
    },
];

const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PAGES: u64 = 64;

/// A GPU must see zeroes in pages.
fn expect_zeroes(svm: &Svm, gpu: usize, first: u64, pages: u64) -> Result<(), Stop> {
    let bytes = svm.world.with_engine(gpu, |engine| engine.read(svm.va(first), pages * PAGE))?;
    ensure!(bytes.iter().all(|byte| *byte == 0), "GPU {gpu}: pages from {first} on are not zero");
    Ok(())
}

fn unwritten(kind: Kind) -> Result<(), Stop> {
    for prefetched in [false, true] {
        let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(PAGES * PAGE)?)?;
        svm.world.sees(Seen::Protect)?;
        svm.memory.fill_pages(2..PAGES, 1);
        svm.memory.protect(0, PAGES * PAGE, READ)?;
        // The second page is the zero page, the first is none.
        ensure!(svm.memory.read(PAGE, PAGE).iter().all(|byte| *byte == 0));
        svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
        if prefetched {
            // What a host does not move it leaves where it is.
            svm.prefetch(0, PAGES, Some(0))?;
            let there = svm.in_vram()?;
            ensure!(there == PAGES || there == 0 && svm.world.in_process(), "{there} pages in VRAM");
        }
        expect_zeroes(&svm, 0, 0, 2)?;
        svm.expect(0, 2, PAGES - 2, 1)?;
        for page in [0, 1, 2, PAGES - 1] {
            svm.expect_fault(0, page, true)?;
        }
        svm.cpu_expects(2, PAGES - 2, 1)?;
        ensure!(svm.memory.read(0, 2 * PAGE).iter().all(|byte| *byte == 0), "the CPU: not zero");
        svm.memory.protect(0, PAGES * PAGE, WRITE)?;
        svm.world.told();
        svm.settle()?;
        svm.memory.fill(2);
        svm.set(0, PAGES, &[vkfd_client::SvmSet::Flags(0)])?;
        svm.expect(0, 0, PAGES, 2)?;
        svm.write(0, 0, PAGES, 3)?;
        svm.cpu_expects(0, PAGES, 3)?;
    }
    Ok(())
}

fn without_permission() -> Result<(), Stop> {
    let svm = Svm::new(WorldSpec { xnack: true, ..WorldSpec::default() }, Memory::anonymous(PAGES * PAGE)?)?;
    svm.world.sees(Seen::Protect)?;
    svm.memory.fill(1);
    svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
    svm.expect(0, 0, PAGES, 1)?;
    svm.memory.protect(8 * PAGE, 8 * PAGE, libc::PROT_NONE)?;
    svm.world.told();
    svm.expect(0, 0, 8, 1)?;
    svm.expect_fault(0, 8, false)?;
    svm.expect_fault(0, 15, true)?;
    svm.expect(0, 16, PAGES - 16, 1)?;
    svm.memory.protect(8 * PAGE, 8 * PAGE, READ)?;
    svm.world.told();
    svm.expect(0, 0, PAGES, 1)?;
    svm.expect_fault(0, 8, true)?;
    svm.memory.protect(8 * PAGE, 8 * PAGE, WRITE)?;
    svm.world.told();
    svm.write(0, 0, PAGES, 2)?;
    svm.cpu_expects(0, PAGES, 2)
}

fn side_by_side(kind: Kind) -> Result<(), Stop> {
    const NONE: u64 = 0;
    const HOLE: u64 = 1;
    const ZERO: u64 = 2;
    const READ_ONLY: u64 = 3;
    let spec = WorldSpec { gpus: 2, xnack: true, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(7 * PAGE)?)?;
    svm.world.sees(Seen::Protect)?;
    svm.world.sees(Seen::Unmap)?;
    svm.memory.fill_pages(READ_ONLY..7, 1);
    svm.memory.protect(NONE * PAGE, PAGE, libc::PROT_NONE)?;
    svm.memory.unmap(HOLE * PAGE, PAGE)?;
    svm.memory.protect(ZERO * PAGE, 2 * PAGE, READ)?;
    ensure!(svm.memory.read(ZERO * PAGE, PAGE).iter().all(|byte| *byte == 0));
    svm.world.told();
    // Over the hole, nothing is done.
    ensure!(svm.give(0, 7, &[(0, SvmAccess::Migrate)]).is_err(), "a call over a hole");
    let access = [(0, SvmAccess::Migrate), (1, SvmAccess::Migrate)];
    svm.give(NONE, 1, &access)?;
    svm.give(ZERO, 5, &access)?;
    svm.prefetch(ZERO, 5, Some(1))?;
    let there = svm.in_vram()?;
    ensure!(there == 5 || there == 3 && svm.world.in_process(), "{there} pages in VRAM");
    svm.prefetch(5, 1, Some(0))?;
    for gpu in [0, 1] {
        svm.expect_fault(gpu, NONE, false)?;
        svm.expect_fault(gpu, HOLE, false)?;
        expect_zeroes(&svm, gpu, ZERO, 1)?;
        svm.expect_fault(gpu, ZERO, true)?;
        svm.expect(gpu, READ_ONLY, 1, 1)?;
        svm.expect_fault(gpu, READ_ONLY, true)?;
        svm.expect(gpu, 4, 3, 1 + gpu as u64)?;
        svm.write(gpu, 4, 3, 2 + gpu as u64)?;
    }
    svm.cpu_expects(READ_ONLY, 1, 1)?;
    svm.cpu_expects(4, 3, 3)?;
    // A fault that is still being served may hold a page for a moment, which then stays.
    let back = || svm.prefetch(ZERO, 5, None).is_ok() && svm.in_vram().is_ok_and(|left| left == 0);
    svm.world.until("all of it is back", |_| back())?;
    svm.cpu_expects(READ_ONLY, 1, 1)?;
    svm.cpu_expects(4, 3, 3)?;
    expect_zeroes(&svm, 0, ZERO, 1)
}

fn two_readers(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { gpus: 2, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(PAGES * PAGE)?)?;
    svm.world.sees(Seen::Protect)?;
    svm.memory.fill(1);
    svm.memory.protect(0, PAGES * PAGE, READ)?;
    svm.world.told();
    svm.give(0, PAGES, &[(0, SvmAccess::InPlace), (1, SvmAccess::Migrate)])?;
    for to in [None, Some(1), None] {
        svm.prefetch(0, PAGES, to)?;
        for gpu in [0, 1] {
            svm.expect(gpu, 0, PAGES, 1)?;
            svm.expect_fault(gpu, 7, true)?;
        }
        svm.cpu_expects(0, PAGES, 1)?;
    }
    Ok(())
}

fn beyond() -> Result<(), Stop> {
    let world = World::new(WorldSpec { xnack: true, ..WorldSpec::default() })?;
    for va in [1 << 47, 1 << 48, (1 << 63) - PAGE, u64::MAX << 21, u64::MAX - PAGE + 1] {
        match world.with_engine(0, |engine| engine.read(GpuVa(va), 64)) {
            Err(ClientError::GpuFault { va: at, .. }) => {
                ensure_eq!(at, GpuVa(va), "the address that the fault reports")
            }
            other => bail!("an access to {va:#x} should fault, but: {other:?}"),
        }
        // The end of the last page has no address.
        let range = UserptrRange { start: va - PAGE, size: PAGE };
        let client = world.client();
        for moved in [client.move_to_gpu(range, world.gpu(0)), client.move_to_system(range, world.gpu(0))] {
            match moved {
                Ok(moved) => ensure_eq!(moved.moved, 0),
                Err(error) => {
                    let expected = [Some(Errno::INVAL), Some(Errno::FAULT), Some(Errno::OPNOTSUPP)];
                    ensure!(expected.contains(&error.errno()), "moving {range:?}: {error}");
                }
            }
        }
    }
    // A thread that serves faults and calls is still there.
    let memory = Memory::anonymous(PAGE)?;
    memory.fill(1);
    let seen = world.with_engine(0, |engine| engine.read(GpuVa(memory.whole().start), PAGE))?;
    ensure_eq!(crate::memory::wrong_page(&seen, [0], 1), None);
    Ok(())
}
