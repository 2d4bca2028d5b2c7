// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where memory is: prefetch, faults, locations; and moves by use, which coherent memory does not
//! have.

use vkfd_client::{Location, SvmAccess, SvmSet, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::memory::{Backing, Memory};
use crate::verdict::Stop;
use crate::world::WorldSpec;
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_prefetch_moves_memory_there_and_back",
        about: "hipMemPrefetchAsync's path: to a GPU, to another, and back; contents stay, counters count.",
        run: || both(prefetch),
    },
    Scenario {
        name: "svm_coherent_memory_on_a_gpu_is_used_by_all_and_does_not_move",
        about: "CPU reads and writes, another GPU, and a third party through the kernel (a pipe): no page moves.",
        run: in_place,
    },
    Scenario {
        name: "svm_private_memory_comes_back_page_by_page_to_the_cpu",
        about: "What coherent memory saves: each page that the CPU touches moves.",
        run: comes_back,
    },
    Scenario {
        name: "svm_a_fault_moves_the_granule_to_the_gpu",
        about: "XNACK on: by granularity, by preferred location, in place.",
        run: || both(fault),
    },
    Scenario {
        name: "svm_prefetches_fail_anywhere_and_lose_nothing",
        about: "To a GPU, to another, and back, each failing at every point it can: some pages are here, some there, each has its contents, \
                and no VRAM is lost.",
        run: || both(failing),
    },
    Scenario {
        name: "svm_memory_of_files_is_used_where_it_is",
        about: "Shared and file memory may not be movable: prefetched or not, everybody sees the same.",
        run: || both(files),
    },
];

fn prefetch(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { gpus: 2, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(4 * GRANULE)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate), (1, SvmAccess::InPlace)])?;
    for (round, to) in (2..).zip([Some(0), Some(1), None, Some(0), None]) {
        svm.prefetch(0, pages, to)?;
        ensure_eq!(svm.in_vram()?, if to.is_some() { pages } else { 0 }, "round {round}");
        svm.expect(0, 0, pages, round - 1)?;
        svm.write(1, 0, pages, round)?;
        svm.expect(0, 0, pages, round)?;
    }
    svm.cpu_expects(0, pages, 6)?;
    let (moved_in, moved_out) = svm.moves()?;
    ensure_eq!((moved_in, moved_out), (3 * pages, 3 * pages));
    // A part, which is not aligned.
    svm.prefetch(100, 700, Some(1))?;
    ensure_eq!(svm.in_vram()?, 700);
    svm.expect(0, 0, pages, 6)?;
    svm.cpu_expects(0, 100, 6)
}

/// Writes memory to a pipe and reads it back by the kernel's hand, as a device would that knows
/// nothing of GPUs.
fn through_the_kernel(memory: &Memory, page: u64) -> Result<Vec<u8>, Stop> {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    ensure_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    let mut bytes = vec![0_u8; usize::try_from(PAGE)?];
    let len = bytes.len();
    // SAFETY: the page is mapped; the pipe has room for it; the descriptors are this function's.
    let done = unsafe {
        let written = libc::write(pipe[1], memory.at(page * PAGE).cast(), len);
        let read = libc::read(pipe[0], bytes.as_mut_ptr().cast(), len);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        (written, read)
    };
    ensure_eq!(done, (isize::try_from(len)?, isize::try_from(len)?), "through a pipe");
    Ok(bytes)
}

fn in_place() -> Result<(), Stop> {
    // A KFD that is not in this process has the GPUs it has; there must be another one.
    let gpus = if std::env::var_os("VKFD_DEVICE").is_some() { 2 } else { 4 };
    let spec = WorldSpec { gpus, ..WorldSpec::default() };
    let svm = Svm::moving(spec, Kind::Coherent, Memory::anonymous(2 * GRANULE)?)?;
    let gpus = svm.world.client().gpus().len().min(4);
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    let access = [SvmAccess::Migrate, SvmAccess::InPlace, SvmAccess::InPlace, SvmAccess::InPlace];
    svm.give(0, pages, &(0..gpus).zip(access).collect::<Vec<_>>())?;
    svm.prefetch(0, pages, Some(0))?;
    ensure_eq!(svm.in_vram()?, pages);
    let before = svm.moves()?;
    for gpu in 0..gpus {
        svm.expect(gpu, 0, pages, 1 + gpu as u64)?;
        svm.write(gpu, 0, pages, 100)?;
        svm.cpu_expects(0, pages, 100)?;
        svm.memory.fill(2 + gpu as u64);
    }
    for page in (0..pages).step_by(61) {
        ensure_eq!(crate::wrong_page(&through_the_kernel(&svm.memory, page)?, [page], 1 + gpus as u64), None);
    }
    ensure_eq!(svm.moves()?, before, "pages that moved although everybody can use them where they are");
    ensure_eq!(svm.in_vram()?, pages);
    Ok(())
}

fn comes_back() -> Result<(), Stop> {
    let svm = Svm::moving(WorldSpec::default(), Kind::Private, Memory::anonymous(GRANULE)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    svm.prefetch(0, pages, Some(0))?;
    ensure_eq!(svm.in_vram()?, pages);
    for page in (0..pages).step_by(8) {
        svm.cpu_expects(page, 1, 1)?;
    }
    svm.settle()?;
    ensure!(svm.in_vram()? <= pages - pages / 8, "what the CPU has touched is on the GPU");
    svm.expect(0, 0, pages, 1)?;
    svm.write(0, 0, pages, 2)?;
    svm.cpu_expects(0, pages, 2)
}

fn fault(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { gpus: 2, xnack: true, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(4 * GRANULE)?)?;
    let granule = GRANULE / PAGE;
    svm.memory.fill(1);
    svm.expect(0, 3, 1, 1)?;
    ensure_eq!(svm.in_vram()?, granule, "the 2 MiB around what was touched");
    svm.set(granule, granule, &[SvmSet::Granularity(4)])?;
    svm.expect(0, granule + 20, 1, 1)?;
    ensure_eq!(svm.in_vram()?, granule + 16);
    let second = svm.world.gpu(1);
    svm.set(2 * granule, granule, &[SvmSet::Preferred(Location::Gpu(second))])?;
    svm.expect(0, 2 * granule, 1, 1)?;
    let ranges = svm.world.client().svm_ranges()?;
    let there = ranges.iter().find(|r| r.start == svm.va(2 * granule).0).map(|r| (r.on_gpus, r.vram_pages));
    ensure_eq!(there, Some((0b10, granule)));
    svm.set(3 * granule, granule, &[SvmSet::Preferred(Location::System)])?;
    svm.write(1, 3 * granule, granule, 2)?;
    let ranges = svm.world.client().svm_ranges()?;
    ensure!(ranges.iter().any(|r| r.start == svm.va(3 * granule).0 && r.vram_pages == 0));
    svm.write(1, 0, granule, 2)?;
    svm.expect(0, 0, granule, 2)?;
    svm.cpu_expects(0, granule, 2)?;
    svm.cpu_expects(granule, 2 * granule, 1)?;
    svm.cpu_expects(3 * granule, granule, 2)
}

/// No call has more points at which it can fail.
const POINTS: u64 = 4000;

fn failing(kind: Kind) -> Result<(), Stop> {
    const PAGES: u64 = 24;
    let spec = WorldSpec { gpus: 2, ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(2 * GRANULE)?)?;
    // In two granules.
    let (first, all) = (GRANULE / PAGE - PAGES / 2, svm.memory.pages());
    svm.give(0, all, &[(0, SvmAccess::Migrate), (1, SvmAccess::InPlace)])?;
    // Queues, page tables, and what the driver and its host keep for next time.
    svm.memory.fill(1);
    for gpu in [0, 1] {
        svm.prefetch(0, all, Some(gpu))?;
        svm.expect(gpu, 0, all, 1)?;
        svm.prefetch(0, all, None)?;
    }
    // The allocator's count: KFD's AVAILABLE_MEMORY leaves SVM memory out.
    let used = || svm.world.client().svm().map(|info| info.vram_used).ok();
    let (before, mut failed) = (used(), 0);
    for (from, to) in [(None, Some(0)), (Some(0), Some(1)), (Some(1), None)] {
        for point in 0..POINTS {
            svm.memory.fill_pages(first..first + PAGES, point);
            svm.prefetch(first, PAGES, from)?;
            svm.settle()?;
            let (result, reached) = svm.world.fail_nth(point, || svm.prefetch(first, PAGES, to))?;
            ensure!(reached || result.is_ok(), "from {from:?} to {to:?}: {result:?}, and nothing was made to fail");
            failed += u64::from(result.is_err());
            svm.settle()?;
            let there = svm.in_vram()?;
            ensure!(there <= PAGES, "from {from:?} to {to:?}, failing at point {point}: {there} pages in VRAM");
            for gpu in [0, 1] {
                svm.expect(gpu, first, PAGES, point)?;
            }
            svm.cpu_expects(first, PAGES, point)?;
            svm.prefetch(0, all, None)?;
            svm.cpu_expects(first, PAGES, point)?;
            // What the CPU has touched the driver may learn of a moment later.
            svm.world.until("all of it is back", |_| svm.in_vram().is_ok_and(|left| left == 0))?;
            if !reached {
                break;
            }
        }
        svm.world.until("all VRAM is free again", |_| used() == before)?;
    }
    ensure!(failed > 0, "no prefetch failed");
    Ok(())
}

fn files(kind: Kind) -> Result<(), Stop> {
    for backing in [Backing::Shared, Backing::FilePrivate, Backing::FileShared] {
        let svm = Svm::moving(WorldSpec::default(), kind, Memory::new(backing, GRANULE)?)?;
        let pages = svm.memory.pages();
        svm.memory.fill_pages(0..pages / 2, 1);
        svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, pages, Some(0))?;
        svm.expect(0, 0, pages / 2, 1)?;
        svm.write(0, 0, pages, 2)?;
        svm.cpu_expects(0, pages, 2)?;
        svm.memory.fill(3);
        svm.expect(0, 0, pages, 3)?;
        svm.prefetch(0, pages, None)?;
        svm.expect(0, 0, pages, 3)?;
        svm.cpu_expects(0, pages, 3)?;
    }
    Ok(())
}
