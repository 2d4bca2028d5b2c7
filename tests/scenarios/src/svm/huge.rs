// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Huge pages, and memory that is unmapped or moved by parts of them, while it is on a GPU.

use vkfd_client::{SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_huge_pages_move_and_come_back",
        about: "MADV_HUGEPAGE memory: whole and in parts.",
        run: || both(huge),
    },
    Scenario {
        name: "svm_huge_pages_that_nobody_wrote_move_as_zeroes",
        about: "No page, and the huge zero page.",
        run: || both(empty),
    },
    Scenario {
        name: "svm_huge_pages_on_a_gpu_are_given_up",
        about:
            "MADV_FREE and MADV_DONTNEED: old data or zeroes, a page at a time, then what is written; VRAM comes back.",
        run: || both(given_up),
    },
    Scenario {
        name: "svm_half_of_a_huge_page_on_a_gpu_is_unmapped",
        about: "The first, the middle, the second half; with huge pages and without: the CPU has the rest.",
        run: || both(half_unmapped),
    },
    Scenario {
        name: "svm_mremap_takes_memory_on_a_gpu_along",
        about: "Before and after it moves, aligned and not, with and without MREMAP_DONTUNMAP and huge pages.",
        run: || both(remapped),
    },
];

/// Memory of whole granules, in huge pages if `huge` says so and the system has them.
fn memory(granules: u64, huge: bool) -> Result<Memory, Stop> {
    let memory = Memory::anonymous(granules * GRANULE)?;
    let wanted = if huge { memory.want_huge_pages() } else { memory.refuse_huge_pages() };
    wanted.map_err(|error| Stop::Skip(format!("MADV_HUGEPAGE: {error}")))?;
    Ok(memory)
}

fn huge(kind: Kind) -> Result<(), Stop> {
    let svm = Svm::moving(WorldSpec::default(), kind, memory(4, true)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    svm.prefetch(0, pages, Some(0))?;
    svm.expect(0, 0, pages, 1)?;
    svm.prefetch(300, 900, None)?;
    svm.expect(0, 0, pages, 1)?;
    svm.write(0, 0, pages, 2)?;
    svm.cpu_expects(0, pages, 2)?;
    svm.prefetch(0, pages, None)?;
    svm.cpu_expects(0, pages, 2)
}

fn empty(kind: Kind) -> Result<(), Stop> {
    let svm = Svm::moving(WorldSpec::default(), kind, memory(2, true)?)?;
    let (pages, granule) = (svm.memory.pages(), GRANULE / PAGE);
    // The second granule is the zero page; the first is nothing.
    ensure!(svm.memory.read(GRANULE, PAGE).iter().all(|byte| *byte == 0));
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    svm.prefetch(0, pages, Some(0))?;
    ensure_eq!(svm.in_vram()?, pages);
    let seen = svm.world.read_gpu(svm.va(0), pages * PAGE)?;
    ensure!(seen.iter().all(|byte| *byte == 0), "the GPU: not zero");
    svm.write(0, granule - 1, 2, 1)?;
    svm.cpu_expects(granule - 1, 2, 1)?;
    ensure!(svm.memory.read(0, GRANULE - PAGE).iter().all(|byte| *byte == 0), "the CPU: not zero");
    ensure!(svm.memory.read(GRANULE + PAGE, GRANULE - PAGE).iter().all(|byte| *byte == 0), "the CPU: not zero");
    svm.memory.fill(2);
    svm.expect(0, 0, pages, 2)
}

fn given_up(kind: Kind) -> Result<(), Stop> {
    for lazily in [false, true] {
        let svm = Svm::moving(WorldSpec::default(), kind, memory(2, true)?)?;
        svm.world.sees(Seen::Discard)?;
        let pages = svm.memory.pages();
        svm.memory.fill(1);
        svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, pages, Some(0))?;
        ensure_eq!(svm.in_vram()?, pages);
        // Not on the border of a huge page at its end.
        let gone = pages - 100;
        match lazily {
            true => svm.memory.madvise(0, gone * PAGE, libc::MADV_FREE)?,
            false => svm.memory.discard(0, gone * PAGE)?,
        }
        svm.world.told();
        if !lazily {
            svm.world.until("the VRAM of discarded memory is free", |_| svm.in_vram().is_ok_and(|left| left == 100))?;
        }
        let seen = svm.world.read_gpu(svm.va(0), gone * PAGE)?;
        for (page, bytes) in (0..gone).zip(seen.chunks_exact(usize::try_from(PAGE)?)) {
            let kept = lazily && crate::wrong_page(bytes, [page], 1).is_none();
            ensure!(kept || bytes.iter().all(|byte| *byte == 0), "page {page} is neither what it was nor zero");
        }
        svm.expect(0, gone, 100, 1)?;
        svm.memory.fill(2);
        svm.expect(0, 0, pages, 2)?;
        svm.prefetch(0, pages, None)?;
        svm.cpu_expects(0, pages, 2)?;
    }
    Ok(())
}

fn half_unmapped(kind: Kind) -> Result<(), Stop> {
    let granule = GRANULE / PAGE;
    for huge in [false, true] {
        for first in [0, granule / 4, granule / 2] {
            let svm = Svm::moving(WorldSpec::default(), kind, memory(1, huge)?)?;
            svm.world.sees(Seen::Unmap)?;
            let gone = first..first + granule / 2;
            svm.memory.fill(1);
            svm.give(0, granule, &[(0, SvmAccess::Migrate)])?;
            svm.prefetch(0, granule, Some(0))?;
            svm.expect(0, 0, granule, 1)?;
            svm.memory.unmap(gone.start * PAGE, granule / 2 * PAGE)?;
            svm.world.told();
            svm.cpu_expects(0, gone.start, 1)?;
            svm.cpu_expects(gone.end, granule - gone.end, 1)?;
            svm.expect_fault(0, gone.start, false)?;
            svm.expect_fault(0, gone.end - 1, true)?;
            for (first, pages) in [(0, gone.start), (gone.end, granule - gone.end)] {
                if pages > 0 {
                    svm.write(0, first, pages, 2)?;
                    svm.cpu_expects(first, pages, 2)?;
                }
            }
        }
    }
    Ok(())
}

fn remapped(kind: Kind) -> Result<(), Stop> {
    for case in 0..24 {
        let (huge, keep, first) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        let shift = [0, GRANULE / 4, GRANULE / 2][case / 8];
        remapped_to(kind, huge, keep, first, shift).map_err(|stop| {
            stop.context(format!("huge {huge}, kept {keep}, before it moves {first}, by {shift:#x}"))
        })?;
    }
    Ok(())
}

/// Memory on a GPU, or (`first`) about to move there, gets other addresses, `shift` bytes behind a
/// huge page's alignment. With `keep` its old mapping stays, empty.
fn remapped_to(kind: Kind, huge: bool, keep: bool, first: bool, shift: u64) -> Result<(), Stop> {
    let granule = GRANULE / PAGE;
    let Svm { world, memory } = Svm::moving(WorldSpec::default(), kind, memory(1, huge)?)?;
    world.sees(Seen::Remap)?;
    memory.fill(1);
    let mut svm = Svm { world, memory };
    let to_gpu = |svm: &Svm| {
        svm.give(0, granule, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, granule, Some(0))?;
        ensure_eq!(svm.in_vram()?, granule);
        svm.expect(0, 0, granule, 1)
    };
    if !first {
        to_gpu(&svm)?;
    }
    let moved = svm.memory.remap_by(shift, keep)?;
    svm.world.told();
    let old = std::mem::replace(&mut svm.memory, moved);
    if first {
        to_gpu(&svm)?;
    } else if kind == Kind::Coherent && !svm.world.in_process() {
        // mremap moves mappings, not pages.
        svm.give(0, granule, &[(0, SvmAccess::Migrate)])?;
        svm.expect(0, 0, granule, 1)?;
    }
    svm.cpu_expects(0, granule, 1)?;
    if keep {
        ensure!(old.read(0, GRANULE).iter().all(|byte| *byte == 0), "the old mapping is not empty");
        old.fill(3);
    }
    svm.memory.fill(2);
    svm.give(0, granule, &[(0, SvmAccess::Migrate)])?;
    svm.expect(0, 0, granule, 2)?;
    if keep {
        ensure_eq!(old.find_wrong(0..granule, 3), None, "the old mapping");
    }
    Ok(())
}
