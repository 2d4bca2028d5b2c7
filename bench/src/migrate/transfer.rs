// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A buffer moves to the GPU and back by requests of several sizes, against memcpy of the same
//! bytes by pieces of the same size.
//!
//! XNACK is off and the GPU has access, so a request to the GPU ends when the GPU can use the
//! memory there. Every buffer has its pages, in system memory, before each sample, and the memory
//! copied to has its own.

use std::time::{Duration, Instant};

use anyhow::Result;
use vkfd_client::UserptrRange;

use super::cell::{Cell, Memory, Step};
use super::report::{Report, Section};
use super::rig::{Mover, Rig};
use super::Plan;
use crate::arena::Arena;
use crate::goal::{Goal, BATCHING, MOVE_BACK, MOVE_TO_GPU};
use crate::progress::Progress;
use crate::spread::{turns, Samples};

/// Bytes of the buffer.
const BYTES: u64 = 64 << 20;
/// What a granule is.
const GRANULE: u64 = 2 << 20;
/// Bytes of a request.
const REQUESTS: [u64; 4] = [BYTES, GRANULE, 64 << 10, 4 << 10];

/// A buffer and its mover; the yardstick has none. Requests of less than a granule
/// have new memory for each sample: in a process they leave it in many mappings, which the next
/// sample would pay for.
struct Case {
    memory: Memory,
    arena: Arena,
    mover: Option<Mover>,
}

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let needed = (3 + rig.places.len() as u64) * BYTES;
    if needed > plan.budget {
        report.head.leave_out("moving", "more than the memory budget (see --memory)");
        return Ok(());
    }
    let target = Arena::block(BYTES)?;
    let mut cases = vec![Case { memory: Memory::System, arena: Arena::block(BYTES)?, mover: None }];
    for place in &rig.places {
        let (arena, mover) = (Arena::block(BYTES)?, place.mover(false)?);
        mover.give(arena.whole)?;
        // The first time is another: VRAM gets its own pages.
        mover.to_gpu(arena.whole)?;
        mover.to_system(arena.whole)?;
        cases.push(Case { memory: place.memory, arena, mover: Some(mover) });
    }
    let mut samples = Samples::default();
    let mut out = Vec::new();
    let order: Vec<usize> = (0..cases.len()).collect();
    let bar = progress.bar("moving", plan.rounds * REQUESTS.len() * cases.len());
    for round in 0..plan.rounds {
        for request in REQUESTS {
            for number in turns(&order, round) {
                bar.advance();
                let case = &cases[number];
                let cell = |step| Cell::new(step, case.memory, request);
                if out.contains(&(case.memory, request)) {
                    continue;
                }
                let took = match &case.mover {
                    None => {
                        let took = copy(&case.arena, &target, request);
                        samples.add_to(round, cell(Step::Copy), took);
                        took
                    }
                    Some(mover) => {
                        let fresh = if request < GRANULE { Some(Arena::block(BYTES)?) } else { None };
                        if let Some(fresh) = &fresh {
                            mover.give(fresh.whole)?;
                        }
                        let (there, back) = to_and_fro(mover, fresh.as_ref().unwrap_or(&case.arena), request)?;
                        samples.add_to(round, cell(Step::ToGpu), there);
                        samples.add_to(round, cell(Step::ToSystem), back);
                        there + back
                    }
                };
                if took > plan.slow && round + 1 < plan.rounds {
                    let what = format!("{}, requests of {}", case.memory.name(), crate::text::bytes(request));
                    let why = format!("{} of {} samples: one took {:.1} s", round + 1, plan.rounds, took.as_secs_f64());
                    report.head.leave_out(what, why);
                    out.push((case.memory, request));
                }
            }
        }
    }
    goals(rig, report, &samples);
    report.add(Section::Transfer, BYTES, &samples, |cell| {
        (cell.step != Step::Copy).then_some(Cell { step: Step::Copy, memory: Memory::System, ..cell })
    });
    Ok(())
}

/// `arena`'s contiguous part in pieces.
fn pieces(arena: &Arena, bytes: u64) -> impl Iterator<Item = UserptrRange> {
    let UserptrRange { start, size } = arena.whole;
    (0..size / bytes).map(move |i| UserptrRange { start: start + i * bytes, size: bytes })
}

fn copy(from: &Arena, to: &Arena, request: u64) -> Duration {
    let bytes = usize::try_from(request).unwrap_or(0);
    let start = Instant::now();
    for (from_piece, to_piece) in pieces(from, request).zip(pieces(to, request)) {
        // SAFETY: both pieces are mapped and as long, apart, and nothing refers to them.
        unsafe { std::ptr::copy_nonoverlapping(from.pointer(from_piece), to.pointer(to_piece), bytes) };
    }
    start.elapsed()
}

fn to_and_fro(mover: &Mover, arena: &Arena, request: u64) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    pieces(arena, request).try_for_each(|piece| mover.to_gpu(piece))?;
    let there = start.elapsed();
    mover.expect_on_gpu(arena.total())?;
    let start = Instant::now();
    pieces(arena, request).try_for_each(|piece| mover.to_system(piece))?;
    let back = start.elapsed();
    mover.expect_on_gpu(0)?;
    Ok((there, back))
}

fn goals(rig: &Rig, report: &mut Report, samples: &Samples<Cell>) {
    let memcpy = |request| Cell::new(Step::Copy, Memory::System, request);
    let memories: Vec<Memory> = rig.places.iter().map(|place| place.memory).collect();
    let wanted = |what: [&'static str; 2], step: Step, report: &mut Report| {
        for memory in &memories {
            // Both move the same bytes, so speeds are as times, the other way round.
            let speed = samples.ratio(memcpy(GRANULE), Cell::new(step, *memory, GRANULE));
            let what = if *memory == Memory::Coherent { what[0] } else { what[1] };
            report.head.targets.push(Goal::at_least(what, 0.5, speed));
        }
    };
    // An emulated device and a memcpy in an emulated guest are not the same kind of work.
    if !rig.in_kernel() {
        wanted(MOVE_TO_GPU, Step::ToGpu, report);
        wanted(MOVE_BACK, Step::ToSystem, report);
    }
    for memory in memories {
        let cell = |request| Cell::new(Step::ToGpu, memory, request);
        let what = if memory == Memory::Coherent { BATCHING[0] } else { BATCHING[1] };
        report.head.targets.push(Goal::at_least(what, 8.0, samples.ratio(cell(4 << 10), cell(BYTES))));
    }
}
