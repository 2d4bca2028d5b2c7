// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Copies out of scattered ranges into a contiguous buffer, and in: by the GPU's copy engine and by
//! memcpy.

use std::time::Instant;

use anyhow::Result;

use crate::arena::{Arena, Pages};
use crate::goal::{Goal, COPY};
use crate::peer;
use crate::plan::{Plan, Shape, COPIES};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::Rig;
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject, NO_BATCH};

const SUBJECTS: [Subject; 5] =
    [Subject::Batch, Subject::Memcpy, Subject::Contiguous, Subject::MemcpyContiguous, Subject::Multi];

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let shape = Shape::grid(COPIES);
    if shape.memory() + 2 * shape.total > plan.budget {
        report.head.leave_out("copies", "more than the memory budget (see --memory)");
        return Ok(());
    }
    let arena = shape.arena()?;
    // Something contiguous to copy from that is not the target.
    let other = Arena::scattered(1, shape.total, Pages::Small)?;
    let mut buffers = Vec::new();
    let there = rig.strategies();
    let is_there = |subject: &Subject| !Subject::STRATEGIES.contains(subject) || there.contains(subject);
    let subjects: Vec<_> = SUBJECTS.into_iter().filter(is_there).collect();
    for (subject, list) in [
        (Subject::Batch, &arena.ranges[..]),
        (Subject::Multi, &arena.ranges[..]),
        (Subject::Contiguous, &other.ranges[..]),
    ] {
        if !is_there(&subject) {
            report.head.leave_out("copies of a batch", NO_BATCH);
            continue;
        }
        let seat = rig.seat(subject)?;
        let target = seat.register_and_map(std::slice::from_ref(&arena.whole))?;
        buffers.push((subject, seat.register_and_map(list)?, target));
    }
    let rounds = plan.rounds * 2 + 1;
    let bar = progress.bar("copies", rounds * subjects.len());
    let mut samples = Samples::default();
    for round in 0..rounds {
        for subject in turns(&subjects, round) {
            let (out, back) = match buffers.iter().find(|(owner, ..)| *owner == subject) {
                Some((_, ranges, target)) => {
                    let seat = rig.seat(subject)?;
                    let start = Instant::now();
                    seat.copy(target.gpu_va(), ranges.gpu_va(), shape.total)?;
                    let middle = Instant::now();
                    seat.copy(ranges.gpu_va(), target.gpu_va(), shape.total)?;
                    (middle - start, middle.elapsed())
                }
                None if subject == Subject::MemcpyContiguous => block(&other, &arena),
                None => peer::bounce(&arena),
            };
            samples.add(round, subject, Operation::CopyOut, out);
            samples.add(round, subject, Operation::CopyIn, back);
            bar.advance();
        }
    }
    drop(buffers);
    let out = |subject| (subject, Operation::CopyOut);
    // Both move the same bytes, so speeds are as times, the other way round.
    report.head.targets.push(Goal::at_least(COPY, 0.8, samples.ratio(out(Subject::Memcpy), out(Subject::Batch))));
    report.add(Section::Copies, &shape, &samples);
    rig.rest(true);
    Ok(())
}

/// One memcpy from block to block, and one back.
fn block(from: &Arena, to: &Arena) -> (std::time::Duration, std::time::Duration) {
    let bytes = usize::try_from(from.total()).unwrap_or(0);
    let copy = |from: *const u8, to: *mut u8| {
        let start = Instant::now();
        // SAFETY: both blocks are as long, apart, and nothing refers to them.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        start.elapsed()
    };
    let (a, b) = (from.pointer(from.ranges[0]), to.pointer(to.whole));
    (copy(a, b), copy(b, a))
}
