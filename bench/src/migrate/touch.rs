// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The CPU reads k percent of a buffer that is on a GPU: it reads coherent memory in place, and
//! private memory is moved back for it. The yardstick is the same read in system memory.
//!
//! Before each sample all of the buffer is on the GPU. Coherent memory has newly moved there, and
//! the CPU's page tables have only the entries that the move makes. A page that is read is read as
//! a whole.

use std::time::{Duration, Instant};

use anyhow::Result;
use vkfd_client::{UserptrRange, PAGE};

use super::cell::{Cell, Memory, Step};
use super::report::{Report, Section};
use super::rig::{Mover, Rig};
use super::Plan;
use crate::arena::Arena;
use crate::goal::{Goal, IN_PLACE};
use crate::progress::Progress;
use crate::spread::{turns, Samples};

/// Bytes of the buffer that the targets are about.
pub const BYTES: u64 = 256 << 20;
const PERCENT: [u64; 4] = [1, 10, 100, 50];
/// Of these a quick run has so many.
const QUICK: usize = 3;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let mut movers = vec![(Memory::System, None)];
    for place in &rig.places {
        movers.push((place.memory, Some(place.mover(false)?)));
    }
    let vram = movers.iter().filter_map(|(_, mover)| Some(mover.as_ref()?.vram)).min().unwrap_or(0);
    // One buffer at a time; VRAM has page tables and queues as well.
    let bytes = BYTES.min(plan.budget / 4).min(vram / 4 * 3) >> 21 << 21;
    if bytes == 0 {
        report.head.leave_out("reading on the GPU", "the GPU or the memory budget is too small (see --memory)");
        return Ok(());
    }
    if bytes < BYTES {
        let why = format!("the GPU's memory or the budget has room for {} only", crate::text::bytes(bytes));
        report.head.leave_out("a buffer of 256 MiB", why);
    }
    let arena = Arena::block(bytes)?;
    let mut samples = Samples::default();
    let percents = if plan.quick { &PERCENT[..QUICK] } else { &PERCENT[..] };
    let bar = progress.bar("CPU reads", plan.rounds * percents.len() * movers.len() * 2);
    let order: Vec<usize> = (0..movers.len()).collect();
    for round in 0..plan.rounds {
        for number in turns(&order, round) {
            let (memory, mover) = &movers[number];
            if let Some(mover) = mover {
                mover.give(arena.whole)?;
            }
            for step in [Step::ReadSpread, Step::ReadStart] {
                for &percent in percents {
                    bar.advance();
                    let pages = pages(&arena, percent, step == Step::ReadSpread);
                    let took = sample(mover.as_ref().map(|mover| (mover, *memory)), &arena, &pages)?;
                    samples.add_to(round, Cell { step, memory: *memory, granule: 0, percent }, took);
                }
            }
            if let Some(mover) = mover {
                mover.to_system(arena.whole)?;
                mover.set(arena.whole, &[vkfd_client::SvmSet::Access(mover.gpu, vkfd_client::SvmAccess::None)])?;
            }
        }
    }
    let both = [Memory::Coherent, Memory::Private].iter().all(|m| rig.places.iter().any(|place| place.memory == *m));
    if both && bytes == BYTES {
        let cell = |memory| Cell { step: Step::ReadSpread, memory, granule: 0, percent: 1 };
        let ratio = samples.ratio(cell(Memory::Private), cell(Memory::Coherent));
        report.head.targets.push(Goal::at_least(IN_PLACE, 10.0, ratio));
    } else if !both {
        report.head.leave_out("coherent against private", "this driver has one of them; load it with the other");
    }
    report.add(Section::Touch, bytes, &samples, |cell| {
        (cell.memory != Memory::System).then_some(Cell { memory: Memory::System, ..cell })
    });
    Ok(())
}

/// Addresses of pages to read.
fn pages(arena: &Arena, percent: u64, spread: bool) -> Vec<u64> {
    let all = arena.total() / PAGE;
    let count = (all * percent).div_ceil(100);
    (0..count).map(|i| arena.whole.start + PAGE * if spread { i * all / count } else { i }).collect()
}

fn sample(mover: Option<(&Mover, Memory)>, arena: &Arena, pages: &[u64]) -> Result<Duration> {
    if let Some((mover, memory)) = mover {
        // Private memory that the CPU has in its page tables is not on the GPU.
        if memory == Memory::Coherent {
            mover.to_system(arena.whole)?;
        }
        mover.to_gpu(arena.whole)?;
        mover.expect_on_gpu(arena.total())?;
    }
    let start = Instant::now();
    pages.iter().for_each(|page| read(arena, *page));
    Ok(start.elapsed())
}

/// Reads a page.
fn read(arena: &Arena, page: u64) {
    let at = arena.pointer(UserptrRange { start: page, size: PAGE }).cast::<u64>();
    let words = usize::try_from(PAGE / 8).unwrap_or(0);
    // SAFETY: the page is mapped, wherever it is; no references to it exist.
    let sum = (0..words).fold(0_u64, |sum, word| sum.wrapping_add(unsafe { at.add(word).read_volatile() }));
    std::hint::black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_is_one_page_of_a_hundred_from_end_to_end() {
        let arena = Arena::block(400 * PAGE).unwrap();
        let spread = pages(&arena, 1, true);
        assert_eq!(spread, [0, 100, 200, 300].map(|page| arena.whole.start + page * PAGE));
        assert_eq!(pages(&arena, 1, false), [0, 1, 2, 3].map(|page| arena.whole.start + page * PAGE));
        assert_eq!(pages(&arena, 100, true), pages(&arena, 100, false));
    }
}
