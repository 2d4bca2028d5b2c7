// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Invalidating one page while n ranges are registered and mapped: how long the system call takes,
//! as the program sees it.
//!
//! Buffers of all numbers of ranges exist at once; each round discards one page in each of them,
//! and one in memory that is not registered. The restore ends before the next round begins.

use anyhow::{Context, Result};
use vkfd_client::{UserptrRange, PAGE};

use crate::arena::{Arena, Pages, Random};
use crate::goal::{Goal, INVALIDATE};
use crate::plan::{Plan, Shape};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject};

/// Numbers of ranges, and with which strategies: a call or a notifier per range at small numbers
/// only, because registering takes long.
const CASES: [(Subject, usize); 8] = [
    (Subject::Batch, 16),
    (Subject::Batch, 1024),
    (Subject::Batch, 16_384),
    (Subject::Batch, 65_536),
    (Subject::Multi, 16),
    (Subject::Multi, 4096),
    (Subject::BatchPerRange, 16),
    (Subject::BatchPerRange, 4096),
];

struct Case {
    subject: Subject,
    arena: Arena,
    samples: Samples,
}

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let bar = progress.bar("invalidate one page", plan.invalidations);
    let mut cases = vec![Case {
        subject: Subject::Unregistered,
        arena: Arena::scattered(16, PAGE, Pages::Small)?,
        samples: Samples::default(),
    }];
    let mut buffers = Vec::new();
    let strategies = rig.strategies();
    for (subject, ranges) in CASES.into_iter().filter(|(subject, _)| strategies.contains(subject)) {
        let arena = Arena::scattered(ranges, PAGE, Pages::Small)?;
        buffers.push(rig.seat(subject)?.register_and_map(&arena.ranges)?);
        cases.push(Case { subject, arena, samples: Samples::default() });
    }
    let count = |rig: &mut Rig| match rig.counts() {
        true => Ok(Some(rig.seat(Subject::Batch)?.client.snapshot()?)),
        false => anyhow::Ok(None),
    };
    let before = count(rig)?;
    let mut random = Random(7);
    let order: Vec<usize> = (0..cases.len()).collect();
    for round in 0..plan.invalidations {
        for number in turns(&order, round) {
            let case = &mut cases[number];
            let range = case.arena.ranges[random.position(case.arena.ranges.len())];
            let took = match case.subject {
                Subject::Unregistered => case.arena.discard(range)?,
                subject => discard_registered(rig.seat(subject)?, &case.arena, range)?,
            };
            case.arena.touch(range);
            case.samples.add(round, case.subject, Operation::Invalidate, took);
        }
        bar.advance();
    }
    let after = count(rig)?;
    drop(buffers);
    report.ranges_invalidated_per_call = before.zip(after).and_then(|(before, after)| {
        let calls = after.invalidations - before.invalidations;
        let hit = after.ranges_invalidated - before.ranges_invalidated;
        (calls > 0).then(|| hit as f64 / calls as f64)
    });
    let find = |ranges| cases.iter().find(|case| case.subject == Subject::Batch && case.arena.ranges.len() == ranges);
    let cell = (Subject::Batch, Operation::Invalidate);
    let growth = find(16).zip(find(65_536)).and_then(|(few, many)| many.samples.ratio_to(cell, &few.samples, cell));
    report.head.targets.push(Goal::at_most(INVALIDATE, 1.5, growth));
    for case in &cases {
        report.add(Section::Invalidate, &Shape::grid((case.arena.ranges.len(), PAGE)), &case.samples);
    }
    rig.rest(true);
    Ok(())
}

fn discard_registered(seat: &mut Seat, arena: &Arena, range: UserptrRange) -> Result<std::time::Duration> {
    let before = seat.restores()?.context("the queues should run")?;
    let took = arena.discard(range)?;
    seat.restored(before)?;
    Ok(took)
}
