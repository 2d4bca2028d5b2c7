// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Restoring k of n ranges: from the end of the call that discarded k ranges' pages until the
//! queues run again.
//!
//! The k ranges are neighbours by CPU address, so that one call discards them all; on the GPU they
//! are anywhere. The driver's pause of 1 ms before a restore and the faulting in of k new pages are
//! part of the time.

use std::time::Instant;

use anyhow::{Context, Result};
use vkfd_client::{UserptrRange, PAGE};

use crate::arena::{Arena, Pages, Random};
use crate::goal::{Goal, RESTORE_K, RESTORE_N};
use crate::plan::{Plan, Shape};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject, NO_BATCH};

/// Ranges restored where n varies.
const K: usize = 256;
/// Numbers of ranges that K are restored of.
const NS: [usize; 4] = [1024, 4096, 16_384, 65_536];

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    against_k(rig, plan, report, progress)?;
    if rig.strategies().contains(&Subject::Batch) {
        return against_n(rig, plan, report, progress);
    }
    report.head.leave_out("restoring 256 of many ranges", NO_BATCH);
    Ok(())
}

fn against_k(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let n = plan.restore_ranges;
    let one_percent = n.div_ceil(100);
    let mut ks: Vec<usize> = std::iter::successors(Some(1), |k| Some(k * 4)).take_while(|k| *k <= n).collect();
    ks.push(one_percent);
    ks.sort_unstable();
    let arena = Arena::scattered(n, PAGE, Pages::Small)?;
    let there = rig.strategies();
    let subjects: Vec<_> =
        [Subject::Contiguous, Subject::Batch].into_iter().filter(|subject| there.contains(subject)).collect();
    let bar = progress.bar("restore k of n", plan.rounds * ks.len());
    let mut buffers = Vec::new();
    for &subject in &subjects {
        buffers.push(rig.seat(subject)?.register_and_map(Seat::list(subject, &arena))?);
    }
    let mut tables: Vec<(usize, Samples)> = ks.iter().map(|k| (*k, Samples::default())).collect();
    let order: Vec<usize> = (0..tables.len()).collect();
    let mut random = Random(11);
    for round in 0..plan.rounds {
        for number in turns(&order, round) {
            let (k, samples) = &mut tables[number];
            for subject in turns(&subjects, round) {
                let first = random.position(n - *k + 1);
                let span = if subject == Subject::Contiguous {
                    UserptrRange { start: arena.whole.start + first as u64 * PAGE, size: *k as u64 * PAGE }
                } else {
                    hull(&arena, first, *k)
                };
                let took = restore(rig.seat(subject)?, &arena, span)?;
                samples.add(round, subject, Operation::Restore, took);
            }
            bar.advance();
        }
    }
    drop(buffers);
    let shape = Shape::grid((n, PAGE));
    for (k, samples) in &tables {
        report.add_as(Section::Restore, None, &shape, Some(*k), samples);
    }
    let find = |k: usize| tables.iter().find(|(other, _)| *other == k).map(|(_, samples)| samples);
    let cell = (Subject::Batch, Operation::Restore);
    let ratio = find(one_percent).zip(find(n)).and_then(|(some, all)| some.ratio_to(cell, all, cell));
    report.head.targets.push(Goal::at_most(RESTORE_K, 0.2, ratio));
    rig.rest(false);
    Ok(())
}

fn against_n(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let mut cases = Vec::new();
    let mut buffers = Vec::new();
    for n in NS {
        let arena = Arena::scattered(n, PAGE, Pages::Small)?;
        buffers.push(rig.seat(Subject::Batch)?.register_and_map(&arena.ranges)?);
        cases.push((arena, Samples::default()));
    }
    // Short, and a goal rests on them: more of them.
    let rounds = plan.rounds * 3;
    let bar = progress.bar("restore k of many n", rounds);
    let order: Vec<usize> = (0..cases.len()).collect();
    let mut random = Random(13);
    for round in 0..rounds {
        for number in turns(&order, round) {
            let (arena, samples) = &mut cases[number];
            let span = hull(arena, random.position(arena.ranges.len() - K + 1), K);
            let took = restore(rig.seat(Subject::Batch)?, arena, span)?;
            samples.add(round, Subject::Batch, Operation::Restore, took);
        }
        bar.advance();
    }
    drop(buffers);
    for (arena, samples) in &cases {
        let shape = Shape::grid((arena.ranges.len(), PAGE));
        // The other table has this one.
        if shape.ranges != plan.restore_ranges {
            report.add_as(Section::Restore, None, &shape, Some(K), samples);
        }
    }
    let cell = (Subject::Batch, Operation::Restore);
    let ratio = cases.first().zip(cases.last()).and_then(|(few, many)| many.1.ratio_to(cell, &few.1, cell));
    report.head.targets.push(Goal::at_most(RESTORE_N, 1.5, ratio));
    rig.rest(false);
    Ok(())
}

/// From the first to the last of `k` ranges that are neighbours by address.
fn hull(arena: &Arena, first: usize, k: usize) -> UserptrRange {
    let (low, high) = (arena.ranges[arena.by_address[first]], arena.ranges[arena.by_address[first + k - 1]]);
    UserptrRange { start: low.start, size: high.start + high.size - low.start }
}

fn restore(seat: &mut Seat, arena: &Arena, span: UserptrRange) -> Result<std::time::Duration> {
    let before = seat.restores()?.context("the queues should run")?;
    arena.discard(span)?;
    let start = Instant::now();
    Ok(seat.restored(before)?.saturating_duration_since(start))
}
