// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Range i is at the sum of the sizes before it: array order, not address order.

use vkfd_client::{RegisterOptions, Strategy, UserptrRange, PAGE};

use super::{gpu_sees, gpu_writes, pages_of, register, with_strategy};
use crate::memory::{pattern_sum, Layout, Memory};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "one_to_4096_ranges_lie_in_array_order_and_both_sides_write",
        about: "Adjacent, reversed, shuffled and with gaps: GPU reads what the CPU wrote and the CPU what the GPU wrote, page by page.",
        run: layouts,
    },
    Scenario {
        name: "sixty_five_thousand_ranges_in_one_call",
        about: "65,536 shuffled pages are one BO with one handle; every page is checked, in both directions.",
        run: many,
    },
    Scenario {
        name: "duplicate_and_overlapping_ranges_are_aliases",
        about: "What the GPU writes through one alias it reads through the others, and the CPU sees it once.",
        run: aliases,
    },
    Scenario {
        name: "ranges_of_all_sizes_mix",
        about: "4 KiB to 64 MiB in one list, at positions that no size divides.",
        run: sizes,
    },
    Scenario {
        name: "ranges_near_each_other_are_looked_up_one_by_one_where_pages_are_missing",
        about: "Pages that are not there yet, gaps without a mapping or without access: each range has its own pages, and a range that fails is named.",
        run: partly_there,
    },
    Scenario {
        name: "a_range_of_one_gibibyte",
        about: "One range longer than any step of the driver; the GPU adds all of it up.",
        run: gibibyte,
    },
    Scenario {
        name: "all_forms_of_registration_give_the_same_memory",
        about: "The batch command, the batch flag and one ALLOC a range; two BOs can have the same memory at once.",
        run: forms,
    },
];

fn layouts() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    for layout in [Layout::Adjacent, Layout::Reversed, Layout::Shuffled, Layout::Gaps] {
        for (count, pages) in [(1, 1), (2, 3), (1024, 1), (4096, 1)] {
            let memory = Memory::anonymous(2 * count * pages * PAGE)?;
            memory.fill(1);
            let ranges = memory.scatter(count, pages * PAGE, layout);
            let buffer = register(&world, &ranges, &RegisterOptions::default())?;
            ensure_eq!(buffer.handles().len(), 1);
            let order = pages_of(&memory, &ranges);
            gpu_sees(&world, &buffer, &order, 1)?;
            gpu_writes(&world, &buffer, &memory, &order, 2)?;
            // What is not in the list was not written.
            let others = (0..memory.pages()).filter(|page| !order.contains(page)).take(64);
            for page in others {
                ensure_eq!(memory.find_wrong(page..page + 1, 1), None, "{layout:?}: a page outside of the list");
            }
            buffer.free()?;
        }
    }
    Ok(())
}

fn many() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(65_536 * PAGE)?;
    memory.fill(3);
    let ranges = memory.scatter(65_536, PAGE, Layout::Shuffled);
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    ensure_eq!(buffer.handles().len(), 1);
    let info = world.client().snapshot()?;
    ensure_eq!((info.userptr_bos, info.userptr_ranges, info.userptr_bytes), (1, 65_536, 65_536 * PAGE));
    let order = pages_of(&memory, &ranges);
    gpu_sees(&world, &buffer, &order, 3)?;
    gpu_writes(&world, &buffer, &memory, &order, 4)?;
    buffer.free()?;
    Ok(())
}

fn aliases() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(8 * PAGE)?;
    memory.fill(1);
    // Pages 2 3 | 2 3 | 3 4 5 | 0..8 | 2 3: the same page up to five times.
    let list = [(2, 2), (2, 2), (3, 3), (0, 8), (2, 2)];
    let ranges = list.map(|(page, pages)| memory.range(page * PAGE, pages * PAGE));
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    let order = pages_of(&memory, &ranges);
    gpu_sees(&world, &buffer, &order, 1)?;
    // Write memory page 3 through each of its aliases in turn.
    let places = order.iter().enumerate().filter(|(_, page)| **page == 3);
    for (seed, (place, _)) in (10..).zip(places) {
        let at = |place: usize| buffer.gpu_va().offset(place as u64 * PAGE);
        world.write_gpu(at(place), &crate::pattern(3, seed))?;
        ensure_eq!(memory.find_wrong(3..4, seed), None, "seen by the CPU");
        for (other, page) in order.iter().enumerate() {
            let expected = if *page == 3 { crate::pattern(3, seed) } else { crate::pattern(*page, 1) };
            ensure!(world.read_gpu(at(other), PAGE)? == expected, "written at {place}, read at {other}");
        }
    }
    // Four thousand times the same page.
    let same = vec![memory.range(0, PAGE); 4096];
    let wide = register(&world, &same, &RegisterOptions::default())?;
    ensure_eq!(world.sum64(wide.gpu_va(), wide.len())?, pattern_sum(0, 1).wrapping_mul(4096));
    world.write_gpu(wide.gpu_va().offset(4095 * PAGE), &crate::pattern(0, 5))?;
    ensure_eq!(world.sum64(wide.gpu_va(), wide.len())?, pattern_sum(0, 5).wrapping_mul(4096));
    Ok(())
}

fn sizes() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(104 << 20)?;
    memory.fill(1);
    let mut ranges = Vec::new();
    let mut at = memory.bytes();
    for pages in [16384, 1, 512, 2, 513, 16, 8192, 511, 1, 64, 3] {
        at -= pages * PAGE;
        ranges.push(memory.range(at, pages * PAGE));
    }
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    let order = pages_of(&memory, &ranges);
    gpu_sees(&world, &buffer, &order, 1)?;
    gpu_writes(&world, &buffer, &memory, &order, 2)?;
    Ok(())
}

fn partly_there() -> Result<(), Stop> {
    const COUNT: u64 = 300;
    // Three pages of memory, then two that are not registered.
    const EACH: u64 = 5;
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(COUNT * EACH * PAGE)?;
    memory.fill(1);
    let mut missing = Vec::new();
    for number in 0..COUNT {
        let first = number * EACH;
        let gap = (first + 3) * PAGE;
        match number % 7 {
            0 => missing.push(first),
            1 => missing.push(first + 1),
            2 => missing.extend(first..first + 3),
            3 => memory.unmap(gap, 2 * PAGE)?,
            4 => memory.protect(gap, 2 * PAGE, libc::PROT_NONE)?,
            5 => memory.discard(gap, 2 * PAGE)?,
            _ => (),
        }
    }
    for page in &missing {
        memory.discard(page * PAGE, PAGE)?;
    }
    // Neither by address nor against it.
    let list = |pages| -> Vec<UserptrRange> {
        (0..COUNT).map(|i| memory.range(i * 77 % COUNT * EACH * PAGE, pages * PAGE)).collect()
    };
    let ranges = list(3);
    let order = pages_of(&memory, &ranges);
    let buffer = register(&world, &ranges, &RegisterOptions::default())?;
    let read = world.read_gpu(buffer.gpu_va(), buffer.len())?;
    for (page, bytes) in order.iter().zip(read.chunks_exact(usize::try_from(PAGE)?)) {
        let there = !missing.contains(page);
        ensure!(there && bytes == crate::pattern(*page, 1) || !there && bytes.iter().all(|b| *b == 0), "page {page}");
    }
    gpu_writes(&world, &buffer, &memory, &order, 2)?;
    // One page of one range has no mapping, then no permission.
    let (index, page) = (131, order[131 * 3 + 1]);
    let refused = |errno| -> Result<(), Stop> {
        match register(&world, &ranges, &RegisterOptions::default()) {
            Err(vkfd_client::ClientError::Range { range, .. }) => {
                ensure_eq!((range.index, range.errno), (index, errno))
            }
            other => bail!("a list with a bad range: {:?}", other.map(|buffer| buffer.len())),
        }
        ensure_eq!(world.client().snapshot()?.userptr_bos, 1, "what failed has left nothing");
        Ok(())
    };
    memory.protect(page * PAGE, PAGE, libc::PROT_NONE)?;
    refused(vkfd_client::Errno::PERM)?;
    memory.unmap(page * PAGE, PAGE)?;
    refused(vkfd_client::Errno::FAULT)?;
    buffer.free()?;
    Ok(())
}

fn gibibyte() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(1 << 30)?;
    // A page in each 8 MiB and the ends; the rest is zeroes.
    let touched: Vec<u64> = (0..memory.pages()).step_by(2048).chain([memory.pages() - 1]).collect();
    for page in &touched {
        memory.fill_pages(*page..page + 1, 1);
    }
    let buffer = register(&world, &[memory.whole()], &RegisterOptions::default())?;
    let sum = |seed| touched.iter().fold(0_u64, |sum, page| sum.wrapping_add(pattern_sum(*page, seed)));
    ensure_eq!(world.sum64(buffer.gpu_va(), buffer.len())?, sum(1));
    for page in &touched {
        let at = buffer.gpu_va().offset(page * PAGE);
        ensure!(world.read_gpu(at, PAGE)? == crate::pattern(*page, 1), "page {page}");
        world.write_gpu(at, &crate::pattern(*page, 2))?;
        ensure_eq!(memory.find_wrong(*page..page + 1, 2), None);
    }
    Ok(())
}

fn forms() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let memory = Memory::anonymous(400 * PAGE)?;
    memory.fill(1);
    let ranges: Vec<UserptrRange> = memory.scatter(100, 2 * PAGE, Layout::Gaps).into_iter().rev().collect();
    let order = pages_of(&memory, &ranges);
    let mut buffers = Vec::new();
    for (strategy, handles) in [(Strategy::Batch, 1), (Strategy::BatchFlag, 1), (Strategy::PerRange, 100)] {
        let buffer = register(&world, &ranges, &with_strategy(strategy))?;
        ensure_eq!(buffer.handles().len(), handles, "{strategy:?}");
        gpu_sees(&world, &buffer, &order, 1)?;
        buffers.push((strategy, buffer));
    }
    for (seed, (strategy, writer)) in (10..).zip(&buffers) {
        gpu_writes(&world, writer, &memory, &order, seed)?;
        for (other, reader) in &buffers {
            gpu_sees(&world, reader, &order, seed).map_err(|stop| match stop {
                Stop::Fail(error) => Stop::Fail(error.context(format!("written by {strategy:?}, read by {other:?}"))),
                skip @ Stop::Skip(_) => skip,
            })?;
            // The second GPU has the same memory.
            let page = world.with_engine(1, |engine| engine.read(reader.gpu_va().offset(7 * PAGE), PAGE))?;
            ensure!(page == crate::pattern(order[7], seed), "{other:?} on the second GPU");
        }
    }
    Ok(())
}
