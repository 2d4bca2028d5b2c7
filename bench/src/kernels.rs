// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client library's kernels over a registered buffer.
//!
//! All buffers are of one client, and one queue runs all kernels, on one thread of the GPU: what
//! differs is the buffer alone. The contiguous buffer is registered twice and takes two turns in
//! each round. If its two turns differ, or the rounds do, the section is not to be trusted, and the
//! report says so.

use std::time::Instant;

use anyhow::Result;
use vkfd_client::{AllocOptions, GpuSet, GpuVa, Kernel, Strategy};

use crate::plan::{Plan, Shape, MAIN};
use crate::progress::Progress;
use crate::report::{Doubt, Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples, Spread};
use crate::subject::{Operation, Subject, NO_BATCH};
use crate::text;

const SUBJECTS: [Subject; 4] = [Subject::Contiguous, Subject::Multi, Subject::Batch, Subject::ContiguousAgain];
const NAMES: [&str; 6] = ["sum64", "crc32", "fill64", "iota64", "saxpy", "matmul"];
/// Rows and columns of the matrices: small, because a product's time is not that of memory.
const ORDER: u64 = 192;
/// How far the median of a repeat may be from the first median.
const SAME: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let ranges = usize::try_from(plan.kernel_bytes.min(plan.budget / 4) / MAIN.1)?.max(1);
    let shape = Shape::grid((ranges, MAIN.1));
    let arena = shape.arena()?;
    let there = rig.strategies();
    let seat = rig.any_seat()?;
    let mut buffers = Vec::new();
    for subject in SUBJECTS {
        if subject == Subject::Batch && !there.contains(&subject) {
            report.head.leave_out("kernels over a batch", NO_BATCH);
            continue;
        }
        let (strategy, list) = match subject {
            Subject::Multi => (Strategy::PerRange, Seat::list(subject, &arena)),
            Subject::Batch => (Strategy::Auto, Seat::list(subject, &arena)),
            _ => (Strategy::Auto, Seat::list(Subject::Contiguous, &arena)),
        };
        let buffer = seat.register_as(strategy, list)?;
        buffer.map(&GpuSet::All)?;
        let segments = seat.client.alloc(&AllocOptions::gtt(vkfd_client::PAGE))?;
        let list: Vec<u8> = [buffer.gpu_va().0, shape.total].iter().flat_map(|word| word.to_le_bytes()).collect();
        segments.write(0, &list)?;
        buffers.push((subject, buffer, segments));
    }
    let bar = progress.bar("kernels", plan.rounds * NAMES.len());
    let mut tables: Vec<Samples> = NAMES.iter().map(|_| Samples::default()).collect();
    let places: Vec<usize> = (0..buffers.len()).collect();
    // One round more, not counted: the first accesses.
    for round in 0..=plan.rounds {
        for (name, samples) in NAMES.iter().zip(&mut tables) {
            for place in turns(&places, round) {
                let (subject, buffer, segments) = &buffers[place];
                let kernel = kernel(name, buffer.gpu_va(), shape.total, segments.gpu_va(), seat.out());
                let start = Instant::now();
                seat.run(&kernel)?;
                if round > 0 {
                    samples.add(round, *subject, Operation::Kernel, start.elapsed());
                }
            }
            bar.advance();
        }
    }
    drop(buffers);
    for (name, samples) in NAMES.iter().zip(&tables) {
        report.add_as(Section::Kernels, Some(name), &shape, None, samples);
    }
    if let Some(why) = doubt(report) {
        report.doubts.push(Doubt { section: Section::Kernels, why });
    }
    rig.rest(true);
    Ok(())
}

/// What is wrong with the section's samples, if something is.
fn doubt(report: &Report) -> Option<String> {
    let apart = |repeat: Spread| !SAME.contains(&repeat.median) || repeat.disagrees();
    let repeats = report.of(Section::Kernels).filter(|m| m.subject == Subject::ContiguousAgain);
    let found = repeats.filter_map(|m| Some((m.label.as_deref()?, m.relative_to_contiguous?)));
    let list: Vec<_> = found
        .filter(|(_, repeat)| apart(*repeat))
        .map(|(name, repeat)| format!("{name} {}", text::spread(repeat)))
        .collect();
    (!list.is_empty()).then(|| {
        format!(
            "Not to be trusted: the same kernels over the same contiguous memory took other times when they were repeated in the same rounds \
             (relative to the first time: {}).",
            list.join(", ")
        )
    })
}

fn kernel(name: &str, at: GpuVa, bytes: u64, segments: GpuVa, out: GpuVa) -> Kernel {
    let count = bytes / 8;
    match name {
        "crc32" => Kernel::Crc32 { segments, count: 1, out },
        "fill64" => Kernel::Fill64 { dst: at, count, value: 0x3f80_0000_3f80_0000 },
        "iota64" => Kernel::Iota64 { dst: at, count, start: 0 },
        "saxpy" => Kernel::Saxpy { a: 2.0, x: at, y: at.offset(bytes / 2), count: bytes / 8 },
        "matmul" => {
            let matrix = |number| at.offset(number * (bytes / 4).next_multiple_of(8));
            Kernel::Matmul { a: matrix(0), b: matrix(1), c: matrix(2), m: ORDER, n: ORDER, k: ORDER }
        }
        _ => Kernel::Sum64 { src: at, count, out },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn doubt_of(again: [u64; 3]) -> Option<String> {
        let mut samples: Samples = Samples::default();
        for (round, again) in again.into_iter().enumerate() {
            samples.add(round, Subject::Contiguous, Operation::Kernel, Duration::from_millis(100));
            samples.add(round, Subject::ContiguousAgain, Operation::Kernel, Duration::from_millis(again));
        }
        let mut report = Report::sample();
        report.add_as(Section::Kernels, Some("sum64"), &Shape::grid(MAIN), None, &samples);
        doubt(&report)
    }

    #[test]
    fn repeats_that_differ_are_told() {
        assert_eq!(doubt_of([90, 100, 120]), None);
        assert!(doubt_of([300, 310, 320]).is_some_and(|why| why.contains("sum64 3.10")));
        assert!(doubt_of([100, 105, 900]).is_some_and(|why| why.contains("sum64")));
    }
}
