// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page tables as the GPU walks them, and the CPU's own tables.

use vkfd_client::{RegisterOptions, PAGE};

use super::{gpu_sees, pages_of, register};
use crate::memory::{Layout, Memory};
use crate::{maps, Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "page_table_entries_claim_no_more_than_is_contiguous",
        about: "Every fragment and every 2 MiB entry covers pages that are contiguous, aligned and of equal access; no smaller one is used \
                where a larger one would be right.",
        run: fragments,
    },
    Scenario {
        name: "four_thousand_ranges_need_no_more_mappings_of_the_cpu",
        about: "Linearising with mremap takes a VMA a range and runs into vm.max_map_count; a batch takes none.",
        run: vmas,
    },
];

const VALID: u64 = 1;
const SYSTEM: u64 = 2;
const HUGE: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// Pages of a 2 MiB block.
const BLOCK: usize = 512;

/// The log2 of the pages that an entry says it is one of.
fn claimed(entry: u64) -> usize {
    if entry & HUGE != 0 {
        return 9;
    }
    usize::try_from(entry >> 7 & 31).unwrap_or(0)
}

/// Whether `entries` are one contiguous and aligned piece of physical memory with one kind of
/// access.
fn is_piece(entries: &[u64]) -> bool {
    const FRAGMENT: u64 = 31 << 7;
    let first = entries[0] & !FRAGMENT;
    let aligned = first & ADDRESS & (entries.len() as u64 * PAGE - 1) == 0;
    aligned && (0..).zip(entries).all(|(i, entry)| entry & !FRAGMENT == first + i * PAGE)
}

/// Checks the entries of a range that starts at a 2 MiB boundary. Returns how many pages are under
/// 2 MiB entries.
fn check_entries(entries: &[u64]) -> Result<usize, Stop> {
    let mut huge = 0;
    for (i, entry) in entries.iter().enumerate() {
        ensure!(entry & (VALID | SYSTEM) == VALID | SYSTEM, "page {i}: {entry:#x} is no entry of system memory");
        let pages = 1_usize << claimed(*entry);
        ensure!(pages <= BLOCK, "page {i}: {entry:#x} claims {pages} pages");
        let start = i / pages * pages;
        let Some(piece) = entries.get(start..start + pages) else {
            bail!("page {i}: {entry:#x} claims {pages} pages beyond the range's end");
        };
        ensure!(is_piece(piece), "page {i}: {entry:#x} claims {pages} pages that are not one piece");
        huge += usize::from(entry & HUGE != 0);
    }
    for (block, entries) in entries.chunks_exact(BLOCK).enumerate() {
        let best = !is_piece(entries) || entries.iter().all(|entry| claimed(*entry) == 9);
        ensure!(best, "block {block} is one piece of 2 MiB and its entries do not say so: {:#x}", entries[0]);
    }
    Ok(huge)
}

fn fragments() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(16 << 20)?;
    // Whole huge pages, where the kernel has them, show the largest entries.
    let _ = memory.want_huge_pages();
    memory.fill(1);
    let block = 2 << 20;
    let whole = [memory.whole()];
    // Swapped halves of blocks: nothing is contiguous beyond 1 MiB.
    let halves: Vec<_> = [1, 0, 3, 2].map(|i| memory.range(i * block / 2, block / 2)).into();
    let pages = memory.scatter(1024, PAGE, Layout::Shuffled);
    for (ranges, gpu_pages) in [(&whole[..], 4096), (&halves[..], 1024), (&pages[..], 1024)] {
        let buffer = register(&world, ranges, &RegisterOptions::default())?;
        // It lies in 2 MiB as the first of its longest ranges does, or no block could be one piece.
        let lead = buffer.gpu_va().0 % block;
        ensure_eq!(lead, ranges[0].start % block);
        let entries = world.client().ptes(world.gpu(0), buffer.gpu_va(), gpu_pages)?;
        let first_block = usize::try_from((block - lead) % block / PAGE).unwrap_or(0);
        let huge = check_entries(&entries[first_block..])?;
        ensure!(huge == 0 || ranges.len() == 1, "2 MiB entries over scattered memory");
        ensure!(huge == gpu_pages || ranges.len() != 1 || !world.in_process(), "{huge} pages under 2 MiB entries");
        // Nothing before or after it.
        let behind = buffer.gpu_va().offset(gpu_pages as u64 * PAGE);
        ensure_eq!(world.client().ptes(world.gpu(0), behind, 1)?[0] & VALID, 0, "the page behind the buffer");
        gpu_sees(&world, &buffer, &pages_of(&memory, ranges), 1)?;
        let (at, before) = (buffer.gpu_va(), entries.len());
        buffer.free()?;
        ensure_eq!(world.client().ptes(world.gpu(0), at, before)?, vec![0; before], "entries of a freed buffer");
    }
    Ok(())
}

fn vmas() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(8192 * PAGE)?;
    memory.fill(1);
    let ranges = memory.scatter(4096, PAGE, Layout::Gaps);
    // What is made at first use.
    world.read_gpu(register(&world, &ranges[..1], &RegisterOptions::default())?.gpu_va(), PAGE)?;
    let before = maps::count()?;
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    gpu_sees(&world, &buffer, &pages_of(&memory, &ranges), 1)?;
    let during = maps::count()?;
    ensure!(during < before + 32, "{before} mappings before, {during} with 4096 ranges registered");
    buffer.free()?;
    let after = maps::count()?;
    ensure!(after < before + 32, "{before} mappings before, {after} after");
    // The count would have shown it: a gap a page makes a mapping each.
    for page in (0..512).step_by(2) {
        memory.protect(page * PAGE, PAGE, libc::PROT_READ)?;
    }
    let split = maps::count()?;
    ensure!(split > after + 400, "{after} mappings, {split} with 256 pages of another protection");
    Ok(())
}
