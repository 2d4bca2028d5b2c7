// SPDX-License-Identifier: GPL-2.0 OR MIT
//! More than there is room for on the GPU. A buffer object takes all VRAM but a small room, so that
//! it is the same on every GPU.
//!
//! *Eviction:* the room is full of SVM memory, and a buffer object of half its size is allocated;
//! the same with the room free is the yardstick. XNACK is off. *Oversubscription:* XNACK is on, and
//! kernels read a working set of twice the room, by page faults. The yardstick is a working set
//! that fits. The driver's counters report the bytes that moved, and those that stayed because they
//! had bounced.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vkfd_client::{AllocOptions, Buffer, GpuVa, Kernel, UserptrRange, PAGE};

use super::cell::{Cell, Memory, Step};
use super::report::{Oversubscription, Report, Section};
use super::rig::{Mover, Place, Rig};
use super::Plan;
use crate::arena::Arena;
use crate::progress::Progress;
use crate::spread::Samples;

/// Bytes of VRAM that are left.
const ROOM: u64 = 64 << 20;
/// Bytes that page tables and queues take beside the memory, generously.
const BESIDE: u64 = 4 << 20;
/// Bytes that a buffer object's allocation makes way for.
const EVICTED: u64 = ROOM / 2;
const GRANULE: u64 = 2 << 20;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    if 3 * ROOM > plan.budget {
        report.head.leave_out("pressure", "more than the memory budget (see --memory)");
        return Ok(());
    }
    let (mut evictions, mut sets) = (Samples::default(), Samples::default());
    let bar = progress.bar("pressure", plan.rounds * rig.places.len() * 2);
    for place in &rig.places {
        let mover = place.mover(false)?;
        if mover.vram < 2 * ROOM {
            report.head.leave_out("pressure", "the GPU's memory is too small");
            return Ok(());
        }
        let rest = fill(&mover)?;
        for round in 0..plan.rounds {
            evict(&mover, place.memory, round, &mut evictions)?;
            bar.advance();
        }
        drop(rest);
        drop(mover);
        if place.retries()? {
            let found = working_sets(place, plan.rounds, &mut sets, || bar.advance())?;
            report.oversubscription.push(found);
        }
    }
    report.add(Section::Pressure, EVICTED, &evictions, |cell| {
        (cell.step == Step::Evict).then_some(Cell { step: Step::Allocate, ..cell })
    });
    report.add(Section::Pressure, ROOM, &sets, |cell| {
        (cell.step == Step::Twice).then_some(Cell { step: Step::Fits, ..cell })
    });
    Ok(())
}

/// Takes all VRAM but the room.
fn fill(mover: &Mover) -> Result<Buffer> {
    let bytes = mover.seat.client.available_vram(mover.gpu)?.saturating_sub(ROOM) >> 21 << 21;
    let options = AllocOptions { cpu_map: false, ..AllocOptions::vram(mover.gpu, bytes) };
    mover.seat.client.alloc(&options).context("cannot take the GPU's memory but a part")
}

fn evict(mover: &Mover, memory: Memory, round: usize, samples: &mut Samples<Cell>) -> Result<()> {
    // Fresh memory: what it held before does not count.
    let arena = Arena::block(ROOM - BESIDE)?;
    mover.give(arena.whole)?;
    for step in [Step::Allocate, Step::Evict] {
        if step == Step::Evict {
            mover.to_gpu(arena.whole)?;
            mover.expect_on_gpu(arena.total())?;
        }
        let before = mover.seat.client.svm()?.pages_out;
        let options = AllocOptions { cpu_map: false, ..AllocOptions::vram(mover.gpu, EVICTED) };
        let start = Instant::now();
        let buffer = mover.seat.client.alloc(&options)?;
        let took = start.elapsed();
        let moved = (mover.seat.client.svm()?.pages_out - before) * PAGE;
        anyhow::ensure!((step == Step::Evict) == (moved > 0), "{moved:#x} bytes were evicted: {step:?}");
        // A little more or less than asked for has to go: a time for as much as the buffer has.
        let scale = if moved == 0 { 1.0 } else { EVICTED as f64 / moved as f64 };
        samples.add_to(round, Cell::new(step, memory, EVICTED), took.mul_f64(scale));
        drop(buffer);
    }
    mover.to_system(arena.whole)
}

fn working_sets(
    place: &Place,
    rounds: usize,
    samples: &mut Samples<Cell>,
    advance: impl Fn(),
) -> Result<Oversubscription> {
    let mut mover = place.mover(true)?;
    let rest = fill(&mover)?;
    let arena = Arena::block(2 * ROOM)?;
    mover.give(arena.whole)?;
    let small = UserptrRange { start: arena.whole.start, size: ROOM / 2 };
    pass(&mut mover, small)?;
    for round in 0..rounds {
        let took = pass(&mut mover, small)? * 2;
        samples.add_to(round, Cell::new(Step::Fits, place.memory, GRANULE), took);
    }
    let before = mover.seat.client.svm()?;
    for round in 0..rounds {
        // Twice, so that also a short run goes to and fro often enough to be damped.
        let took = (pass(&mut mover, arena.whole)? + pass(&mut mover, arena.whole)?) / 4;
        samples.add_to(round, Cell::new(Step::Twice, place.memory, GRANULE), took);
        advance();
    }
    let after = mover.seat.client.svm()?;
    drop(rest);
    Ok(Oversubscription {
        memory: place.memory,
        passes: 2 * rounds as u64,
        bytes: arena.total(),
        evictions: after.evictions - before.evictions,
        pages_in: after.pages_in - before.pages_in,
        pages_out: after.pages_out - before.pages_out,
        bounces: after.bounces - before.bounces,
        damped: after.damped - before.damped,
    })
}

/// The GPU reads all of it, once.
fn pass(mover: &mut Mover, memory: UserptrRange) -> Result<Duration> {
    let out = mover.seat.out();
    let start = Instant::now();
    mover.seat.run(&Kernel::Sum64 { src: GpuVa(memory.start), count: memory.size / 8, out })?;
    Ok(start.elapsed())
}
