// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client library's kernels over a registered buffer.

use std::time::Instant;

use anyhow::Result;
use vkfd_client::{AllocOptions, GpuVa, Kernel};

use crate::plan::{Plan, Shape, MAIN};
use crate::progress::Progress;
use crate::report::{Report, Section};
use crate::rig::{Rig, Seat};
use crate::spread::{turns, Samples};
use crate::subject::{Operation, Subject};

const SUBJECTS: [Subject; 3] = [Subject::Contiguous, Subject::Multi, Subject::Batch];
const NAMES: [&str; 6] = ["sum64", "crc32", "fill64", "iota64", "saxpy", "matmul"];
/// Rows and columns of the matrices: small, because a product's time is not that of memory.
const ORDER: u64 = 192;

/// Runs it.
///
/// # Errors
///
/// What the driver or the system refused.
pub fn run(rig: &mut Rig, plan: &Plan, report: &mut Report, progress: &Progress) -> Result<()> {
    let ranges = usize::try_from(plan.kernel_bytes.min(plan.budget / 4) / MAIN.1)?.max(1);
    let shape = Shape::grid((ranges, MAIN.1));
    let arena = shape.arena()?;
    let mut buffers = Vec::new();
    for subject in SUBJECTS {
        let seat = rig.seat(subject)?;
        let buffer = seat.register_and_map(Seat::list(subject, &arena))?;
        let segments = seat.client.alloc(&AllocOptions::gtt(vkfd_client::PAGE))?;
        let list: Vec<u8> = [buffer.gpu_va().0, shape.total].iter().flat_map(|word| word.to_le_bytes()).collect();
        segments.write(0, &list)?;
        buffers.push((subject, buffer, segments));
    }
    let bar = progress.bar("kernels", plan.rounds * NAMES.len());
    let mut tables: Vec<Samples> = NAMES.iter().map(|_| Samples::default()).collect();
    // One round more, not counted: the first accesses.
    for round in 0..=plan.rounds {
        for (name, samples) in NAMES.iter().zip(&mut tables) {
            for place in turns(&[0, 1, 2], round) {
                let (subject, buffer, segments) = &buffers[place];
                let seat = rig.seat(*subject)?;
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
    rig.rest(true);
    Ok(())
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
