// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Register, map, first access, unmap and free, over numbers and sizes of ranges; and the peers on
//! the same ranges.
//!
//! Mechanism: the memory of a group of shapes exists at once. In a round every subject has one
//! turn, in which it goes through all shapes; then the host tidies up before the next turn. So a
//! subject's work behind the scenes is not measured as another's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vkfd_client::GpuSet;

use crate::arena::Arena;
use crate::goal::{
    Goal, GROWTH, LIFETIME_TO_CONTIGUOUS, MULTI_TO_BATCH, MULTI_TO_BATCH_REGISTER, REGISTER_TO_BARE_FAULT,
    REGISTER_TO_FAULT, REGISTER_TO_IO_URING,
};
use crate::parts;
use crate::peer::{self, IoUring};
use crate::plan::{Plan, Shape, FEW, MAIN, MANY};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject};

/// A shape with its memory and what was measured on it.
struct Place {
    shape: Shape,
    arena: Arena,
    rings: std::io::Result<IoUring>,
    samples: Samples,
    /// The ways that are not asked again.
    out: Vec<Subject>,
}

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let (groups, too_large) = plan.groups();
    for shape in too_large {
        let needed = crate::text::bytes(shape.memory());
        report.head.leave_out(shape.name(), format!("needs {needed} of memory, more than the budget (see --memory)"));
    }
    let subjects: Vec<Subject> = rig.strategies().into_iter().chain(Subject::PEERS).collect();
    let turns_in_all = groups.len() * plan.rounds * subjects.len();
    let bar = progress.bar("cost against ranges", turns_in_all);
    for group in groups {
        let place = |shape: Shape| -> Result<Place> {
            let arena = shape.arena().with_context(|| format!("no memory for {}", shape.name()))?;
            let rings = IoUring::new(shape.ranges);
            Ok(Place { shape, arena, rings, samples: Samples::default(), out: Vec::new() })
        };
        let mut places = group.into_iter().map(place).collect::<Result<Vec<_>>>()?;
        // By size, so that what was slow on few ranges is not tried on many.
        places.sort_by_key(|place| place.shape.ranges);
        for round in 0..plan.rounds {
            for subject in turns(&subjects, round) {
                turn(rig, plan, report, &mut places, round, subject)?;
                bar.advance();
            }
        }
        goals(report, &places, rig.in_kernel());
        for place in &places {
            report.add(Section::Sweep, &place.shape, &place.samples);
        }
    }
    Ok(())
}

fn turn(
    rig: &mut Rig,
    plan: &Plan,
    report: &mut Report,
    places: &mut [Place],
    round: usize,
    subject: Subject,
) -> Result<()> {
    // What one range took the last time, to tell how long more of them will take.
    let mut a_range = 0.0_f64;
    // Mappings that pile up over the shapes until the host tidies up.
    let mut watched = 0;
    for place in places.iter_mut() {
        let ranges = place.shape.ranges;
        let expected = a_range * ranges as f64;
        let name = || format!("{} on {}", subject.name(), place.shape.name());
        if place.out.contains(&subject) {
            continue;
        }
        if expected > 2.0 * plan.slow.as_secs_f64() {
            report.head.leave_out(name(), format!("one sample would take about {expected:.0} s (see --slow)"));
            place.out.push(subject);
            continue;
        }
        if let Some(why) = rig.cannot_watch(subject, ranges) {
            report.head.leave_out(name(), why);
            place.out.push(subject);
            continue;
        }
        watched += ranges;
        if rig.cannot_watch(subject, watched).is_some() {
            rig.rest(true);
            watched = ranges;
        }
        let start = Instant::now();
        match sample(rig, place, subject)? {
            Ok(times) => {
                for (operation, time) in times {
                    place.samples.add(round, subject, operation, time);
                }
            }
            Err(why) => {
                report.head.leave_out(name(), why);
                place.out.push(subject);
                continue;
            }
        }
        let took = start.elapsed();
        if took > plan.slow && round + 1 < plan.rounds {
            let seconds = took.as_secs_f64();
            report.head.leave_out(name(), format!("{} of {} samples: one took {seconds:.1} s", round + 1, plan.rounds));
            place.out.push(subject);
        }
        a_range = if subject == Subject::Multi { took.as_secs_f64() / ranges as f64 } else { 0.0 };
    }
    if Subject::STRATEGIES.contains(&subject) {
        rig.rest(subject.splits_mappings());
    }
    Ok(())
}

type Times = Vec<(Operation, Duration)>;

/// One sample, or why there is none.
fn sample(rig: &mut Rig, place: &Place, subject: Subject) -> Result<Result<Times, String>> {
    let pair = |(there, back)| vec![(Operation::Register, there), (Operation::Free, back)];
    Ok(match subject {
        Subject::IoUring => match &place.rings {
            Err(error) => Err(format!("io_uring: {error}")),
            Ok(rings) => rings.cycle(&place.arena.ranges).map(pair).map_err(|error| format!("io_uring: {error}")),
        },
        Subject::Fault | Subject::FaultContiguous | Subject::FaultBare | Subject::Pin => {
            let client = &rig.any_seat()?.client;
            let ranges = &place.arena.ranges;
            let took = match subject {
                Subject::Pin => client.measure_pin(ranges),
                Subject::FaultBare => client.measure_fault_bare(ranges),
                Subject::FaultContiguous => client.measure_fault(std::slice::from_ref(&place.arena.whole)),
                _ => client.measure_fault(ranges),
            };
            took.map(|time| vec![(Operation::Register, time)]).map_err(|error| peer::not_measured(subject, &error))
        }
        Subject::Memcpy => Ok(pair(peer::bounce(&place.arena))),
        Subject::Mremap => peer::linearise(&place.arena).map(pair),
        strategy => Ok(lifetime(rig.seat(strategy)?, Seat::list(strategy, &place.arena))?),
    })
}

/// Registers memory, uses it, and frees it.
fn lifetime(seat: &mut Seat, ranges: &[vkfd_client::UserptrRange]) -> Result<Times> {
    let mut times = Times::new();
    let mut last = Instant::now();
    let mut lap = |operation, times: &mut Times| {
        let now = Instant::now();
        times.push((operation, now - last));
        last = now;
    };
    let buffer = seat.register(ranges)?;
    lap(Operation::Register, &mut times);
    buffer.map(&GpuSet::All)?;
    lap(Operation::Map, &mut times);
    seat.sum(&buffer)?;
    lap(Operation::FirstAccess, &mut times);
    seat.sum(&buffer)?;
    lap(Operation::Access, &mut times);
    buffer.unmap(&GpuSet::All)?;
    lap(Operation::Unmap, &mut times);
    buffer.free()?;
    lap(Operation::Free, &mut times);
    let access = [Operation::FirstAccess, Operation::Access];
    let all = times.iter().filter(|(operation, _)| !access.contains(operation)).map(|(_, time)| *time).sum();
    times.push((Operation::Lifetime, all));
    Ok(times)
}

/// `kernel`: the driver is in a kernel, where registration is compared with the kernel's own work.
fn goals(report: &mut Report, places: &[Place], kernel: bool) {
    let find = |point| places.iter().find(|place| place.shape == Shape::grid(point));
    if let Some(main) = find(MAIN) {
        report.parts = parts::of(&main.samples);
        let ratio = |operation, a, b| main.samples.ratio((a, operation), (b, operation));
        if kernel {
            let ratio = |a, b| ratio(Operation::Register, a, b);
            report.head.targets.push(Goal::at_least(
                MULTI_TO_BATCH_REGISTER,
                7.0,
                ratio(Subject::Multi, Subject::Batch),
            ));
            for (what, most, peer) in [
                (REGISTER_TO_BARE_FAULT, 1.15, Subject::FaultBare),
                (REGISTER_TO_FAULT, 1.3, Subject::Fault),
                (REGISTER_TO_IO_URING, 0.8, Subject::IoUring),
            ] {
                report.head.targets.push(Goal::at_most(what, most, ratio(Subject::Batch, peer)));
            }
        } else {
            let ratio = |a, b| ratio(Operation::Lifetime, a, b);
            report.head.targets.push(Goal::at_least(MULTI_TO_BATCH, 5.0, ratio(Subject::Multi, Subject::Batch)));
            report.head.targets.push(Goal::at_most(
                LIFETIME_TO_CONTIGUOUS,
                1.3,
                ratio(Subject::Batch, Subject::Contiguous),
            ));
        }
    }
    if let (Some(few), Some(many)) = (find(FEW), find(MANY)) {
        let cell = (Subject::Batch, Operation::Lifetime);
        let ranges = FEW.0 as f64 / MANY.0 as f64;
        let growth = many.samples.ratio_to(cell, &few.samples, cell).map(|spread| spread.scaled(ranges));
        report.head.targets.push(Goal::at_most(GROWTH, 1.5, growth));
    }
}
