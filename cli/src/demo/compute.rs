// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Step 2: kernels and copies over the one GPU range.

use std::time::Instant;

use anyhow::Result;
use vkfd_client::{Kernel, PAGE};

use super::scene::{on_gpu, Scene};
use crate::engine::Segment;
use crate::format::{bytes, count, counted, rate};
use crate::guest::PAGE_BYTES;
use crate::report::{Report, Title};

/// The factor of saxpy.
const FACTOR: f32 = 2.0;

/// Runs them.
pub fn run(scene: &mut Scene<'_>, report: &mut Report<'_>) -> Result<()> {
    let total = scene.guest.bytes;
    let all: Vec<usize> = (0..scene.guest.ranges.len()).collect();
    let no_kernels = "this program's kernels are built into vkfd's GPU";
    if scene.engines.iter().all(|engine| engine.has_kernels()) {
        report.step("sum64", "Sum of all 64-bit words", |step| {
            step.did(format!("One kernel added the whole range up, {} words of 64 bits", count(total / 8)));
            let whole = Segment { va: scene.buffer()?.gpu_va(), bytes: total };
            let mut cpu = 0_u64;
            each_page(scene, |_, page| {
                for word in page.chunks_exact(8) {
                    cpu = cpu.wrapping_add(u64::from_le_bytes(word.try_into().unwrap_or_default()));
                }
            });
            for engine in &mut scene.engines {
                let start = Instant::now();
                let gpu = engine.sum(whole)?;
                step.note(format!("sum {gpu:#x}, {}", rate(total, start.elapsed()))).took("gpu", start.elapsed());
                step.number("sum", format!("{gpu:#x}"));
                step.check(
                    on_gpu("the CPU's sum over its scattered ranges is the same", engine, scene.session),
                    gpu == cpu,
                    || format!("CPU {cpu:#x}, GPU {gpu:#x}"),
                );
            }
            Ok(())
        })?;
    } else {
        report.skip("sum64", "Sum of all 64-bit words by a kernel", no_kernels)?;
    }
    report.step("crc32", "Checksum of each range", |step| {
        step.did(format!("One kernel computed the CRC-32 of each of {}", counted(all.len() as u64, "range")));
        let start = Instant::now();
        scene.verify(step, &all, "all checksums are those that the CPU computes")?;
        step.took("both", start.elapsed());
        Ok(())
    })?;
    report.step("copy", "Copy of the whole range", |step| {
        step.did(format!("The GPU's copy engine (SDMA) copied {} from the range to other memory", bytes(total)));
        let whole = Segment { va: scene.buffer()?.gpu_va(), bytes: total };
        let mut expected = vec![0; 1 << 20];
        for engine in &mut scene.engines {
            let (mut same, mut compared) = (true, 0_u64);
            engine.copy_out(whole, |at, copied| {
                for (offset, piece) in (0..).zip(copied.chunks(expected.len())) {
                    let here = &mut expected[..piece.len()];
                    scene.guest.read(at + offset * (1 << 20), here);
                    same &= here == piece;
                    compared += piece.len() as u64;
                }
            })?;
            step.number("bytes", compared);
            step.check(
                on_gpu("the copy is byte for byte the CPU's buffer", engine, scene.session),
                same && compared == total,
                || format!("it differs ({} compared)", bytes(compared)),
            );
        }
        Ok(())
    })?;
    saxpy(scene, report, no_kernels)
}

/// Lets the GPU write to the scattered memory.
fn saxpy(scene: &mut Scene<'_>, report: &mut Report<'_>, no_kernels: &str) -> Result<()> {
    let title = "One kernel wrote y = 2x + y (32-bit floats) to the second half of the range, x being the first half";
    let half = scene.guest.bytes / PAGE / 2;
    if !scene.engines[0].has_kernels() {
        return report.skip("saxpy", title, no_kernels);
    }
    if half == 0 {
        return report.skip("saxpy", title, "the buffer is a single page");
    }
    report
        .step("saxpy", Title::new("Computing y = 2x + y", title), |step| {
            let x = scene.buffer()?.gpu_va();
            let y = x.offset(half * PAGE);
            let count = half * PAGE / 4;
            scene.engines[0].run(&Kernel::Saxpy { a: FACTOR, x, y, count })?;
            // What the pattern was is known, so both halves can be checked without a copy of them.
            let float = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap_or_default());
            let mut wrong = 0_u64;
            each_page(scene, |number, page| {
                let pattern = scene.guest.pattern(number, 0);
                let x = number.checked_sub(half).filter(|x| *x < half).map(|x| scene.guest.pattern(x, 0));
                for (i, four) in page.chunks_exact(4).enumerate() {
                    let before = float(&pattern[4 * i..4 * i + 4]);
                    let want = x.as_ref().map_or(before, |x| FACTOR * float(&x[4 * i..4 * i + 4]) + before);
                    wrong += u64::from(float(four).to_bits() != want.to_bits());
                }
            });
            step.number("elements", count).number("wrong", wrong);
            step.check(
                "the CPU finds the results in its scattered ranges, and the first half unchanged",
                wrong == 0,
                || counted(wrong, "wrong element"),
            );
            Ok(())
        })
        .map(drop)
}

/// Shows each page of the buffer, as the CPU sees it, in the buffer's order.
fn each_page(scene: &Scene<'_>, mut show: impl FnMut(u64, &[u8; PAGE_BYTES])) {
    let mut page = [0; PAGE_BYTES];
    for number in 0..scene.guest.bytes / PAGE {
        scene.guest.read(number * PAGE, &mut page);
        show(number, &page);
    }
}
