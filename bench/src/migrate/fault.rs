// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How long a page fault takes, from the start to the end of a kernel that reads one word. The
//! driver has to map the page, or to move memory first. A second measurement is the CPU's first
//! touch of memory that is on the GPU.
//!
//! XNACK is on. Each fault is on memory that no GPU has seen before, so that nothing rests because
//! it went to and fro. One sample is the mean of several faults.

use std::time::{Duration, Instant};

use anyhow::Result;
use vkfd_client::{GpuVa, Kernel, Location, SvmAccess, SvmSet, UserptrRange, PAGE};

use super::cell::{Cell, Memory, Step};
use super::report::{Report, Section};
use super::rig::{Mover, Place, Rig};
use super::Plan;
use crate::arena::{map, Arena};
use crate::progress::Progress;
use crate::spread::Samples;

/// What one fault moves or maps at most.
const HUGE: u64 = 2 << 20;
/// Faults of one sample.
const FAULTS: u64 = 8;
/// Bytes of one sample: what is mapped, what moves by 2 MiB, what moves by pages.
const BYTES: u64 = 3 * FAULTS * HUGE;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    if plan.rounds as u64 * BYTES > plan.budget {
        report.head.leave_out("faults", "more than the memory budget (see --memory)");
        return Ok(());
    }
    let mut samples = Samples::default();
    let bar = progress.bar("faults", plan.rounds * rig.places.len());
    for place in &rig.places {
        if !place.retries()? {
            let what = format!("faults, {}", place.memory.name());
            report.head.leave_out(what, "this driver's GPUs do not retry page faults");
            continue;
        }
        let mut mover = place.mover(true)?;
        // New addresses for each sample: what moves again soon is left in peace.
        let mut arenas = Vec::new();
        for round in 0..plan.rounds {
            let arena = Arena::block(BYTES)?;
            sample(&mut mover, place, &arena, round, &mut samples)?;
            mover.to_system(arena.whole)?;
            arenas.push(arena);
            bar.advance();
        }
    }
    for round in 0..plan.rounds {
        samples.add_to(round, Cell::new(Step::CpuTouch, Memory::System, PAGE), new_memory()?);
    }
    report.add(Section::Fault, 8, &samples, |cell| match cell.step {
        Step::CpuTouch => (cell.memory != Memory::System).then_some(Cell::new(Step::CpuTouch, Memory::System, PAGE)),
        Step::Access => None,
        _ => Some(Cell::new(Step::Access, cell.memory, PAGE)),
    });
    Ok(())
}

fn sample(mover: &mut Mover, place: &Place, arena: &Arena, round: usize, samples: &mut Samples<Cell>) -> Result<()> {
    let third = |i: u64| UserptrRange { start: arena.whole.start + i * FAULTS * HUGE, size: FAULTS * HUGE };
    let gpu = mover.gpu;
    let mut add = |step, granule, took| samples.add_to(round, Cell::new(step, place.memory, granule), took);
    mover.set(third(0), &[SvmSet::Preferred(Location::System), SvmSet::Access(gpu, SvmAccess::InPlace)])?;
    let here = [SvmSet::Preferred(Location::Gpu(gpu)), SvmSet::Access(gpu, SvmAccess::Migrate)];
    mover.set(third(1), &here)?;
    mover.set(third(2), &[here[0], here[1], SvmSet::Granularity(0)])?;
    add(Step::FaultMaps, HUGE, read_by_gpu(mover, third(0))?);
    add(Step::Access, PAGE, read_by_gpu(mover, third(0))?);
    mover.expect_on_gpu(0)?;
    add(Step::FaultMoves, HUGE, read_by_gpu(mover, third(1))?);
    mover.expect_on_gpu(FAULTS * HUGE)?;
    add(Step::FaultMoves, PAGE, read_by_gpu(mover, third(2))?);
    mover.expect_on_gpu(FAULTS * (HUGE + PAGE))?;
    add(Step::CpuTouch, PAGE, read_by_cpu(arena, third(1)));
    Ok(())
}

/// The first words of each 2 MiB.
fn words(memory: UserptrRange) -> impl Iterator<Item = u64> {
    (0..memory.size / HUGE).map(move |i| memory.start + i * HUGE)
}

fn mean(start: Instant) -> Duration {
    start.elapsed() / u32::try_from(FAULTS).unwrap_or(u32::MAX)
}

fn read_by_gpu(mover: &mut Mover, memory: UserptrRange) -> Result<Duration> {
    let out = mover.seat.out();
    let start = Instant::now();
    for word in words(memory) {
        mover.seat.run(&Kernel::Sum64 { src: GpuVa(word), count: 1, out })?;
    }
    Ok(mean(start))
}

fn read_by_cpu(arena: &Arena, memory: UserptrRange) -> Duration {
    let start = Instant::now();
    for word in words(memory) {
        let at = arena.pointer(UserptrRange { start: word, size: 8 }).cast::<u64>();
        // SAFETY: the page is mapped, wherever it is; no references to it exist.
        std::hint::black_box(unsafe { at.read_volatile() });
    }
    mean(start)
}

/// What a first touch of new memory takes.
fn new_memory() -> Result<Duration> {
    let bytes = usize::try_from(FAULTS * HUGE)?;
    let base = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: advice about a new mapping of our own.
    unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
    let start = Instant::now();
    for at in (0..bytes).step_by(usize::try_from(HUGE)?) {
        // SAFETY: inside of the mapping, which nobody refers to.
        unsafe { base.as_ptr().add(at).write_volatile(1) };
    }
    let took = mean(start);
    // SAFETY: the mapping was made above.
    unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
    Ok(took)
}
