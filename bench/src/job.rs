// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The whole job: register, compute, invalidate 1%, compute, free. One score, contiguous = 100.
//!
//! Every hundredth range is discarded; in the contiguous memory the piece in the same place. The
//! second computation waits for the restore and reads pages that are new.
//!
//! If the driver can pin pages, the job is also done by a batch with pinned pages. They are pinned
//! at registration and released when the batch is freed, as in the first version of the series.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::arena::Arena;
use crate::goal::{Goal, SCORE};
use crate::peer;
use crate::plan::{Plan, Shape, MAIN};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject};

/// Of so many ranges one is discarded.
const ONE_OF: usize = 100;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let shape = Shape::grid(MAIN);
    if shape.memory() > plan.budget {
        report.head.leave_out("the whole job", "more than the memory budget (see --memory)");
        return Ok(());
    }
    let arena = shape.arena()?;
    let mut samples = Samples::default();
    let mut strategies = rig.strategies();
    match rig.any_seat()?.client.measure_pin(&arena.ranges) {
        Ok(_) => strategies.push(Subject::Pin),
        Err(error) => {
            report.head.leave_out("the whole job with pinned pages", peer::not_measured(Subject::Pin, &error))
        }
    }
    let bar = progress.bar("whole job", plan.rounds * strategies.len());
    for round in 0..plan.rounds {
        for subject in turns(&strategies, round) {
            // Pinning comes on top of a batch.
            let seat = if subject == Subject::Pin { Subject::Batch } else { subject };
            let took = job(rig.seat(seat)?, subject, &arena)?;
            samples.add(round, subject, Operation::Job, took);
            // What was discarded has its pages again before the next turn.
            arena.touch(arena.whole);
            arena.ranges.iter().for_each(|range| arena.touch(*range));
            rig.rest(subject.splits_mappings());
            bar.advance();
        }
    }
    for subject in strategies {
        let score = samples.ratio((Subject::Contiguous, Operation::Job), (subject, Operation::Job));
        if let Some(score) = score {
            report.scores.push((subject, score.scaled(100.0)));
        }
    }
    let score = report.scores.iter().find(|(subject, _)| *subject == Subject::Batch).map(|(_, score)| *score);
    report.head.targets.push(Goal::at_least(SCORE, 95.0, score));
    report.add(Section::Job, &shape, &samples);
    Ok(())
}

fn job(seat: &mut Seat, subject: Subject, arena: &Arena) -> Result<Duration> {
    let discarded: Vec<_> = (0..arena.ranges.len())
        .step_by(ONE_OF)
        .map(|i| if subject == Subject::Contiguous { arena.piece(i) } else { arena.ranges[i] })
        .collect();
    let start = Instant::now();
    if subject == Subject::Pin {
        // Pins and lets go, in one call.
        seat.client.measure_pin(&arena.ranges)?;
    }
    let buffer = seat.register_and_map(Seat::list(subject, arena))?;
    seat.sum(&buffer)?;
    for span in discarded {
        arena.discard(span)?;
    }
    seat.sum(&buffer)?;
    buffer.free()?;
    Ok(start.elapsed())
}
