// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of one block: 32 or 16 rows and columns, of halves (CDNA2) and of single precision.
//!
//! A register of C and D has, for each group of lanes, one row of the matrix, so rows are loaded and stored as they lie. A's
//! elements are broadcast, B's rows are vectors.
//!
//! The order of sums is the reference's. Halves: products are exact in single precision, so that the first sum of two of them
//! is one fused operation; then the other two, both sums, and the accumulator. No sum of them is denormal, for all are
//! multiples of 2^-48; so only the accumulator that comes in is flushed, as the halves are. Single precision is a chain of fused
//! operations. With a NaN in the result, the reference engine does it all.

use super::block::{Builder, Place};
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Source, Step, ROW};
use vkfd_isa::{Inst, Mods, Op, Operand, Target};

type Row = [f32; 64];

/// Rows of halves as singles: element `n` of every lane, denormals flushed.
#[inline(always)]
unsafe fn halves<S: Simd>(from: *const u32, n: usize, to: &mut Row) {
    // SAFETY: the rows exist.
    unsafe {
        for i in 0..8 {
            let word = S::load(from.add(64 * (n / 2) + 8 * i));
            let half = if n % 2 == 0 { S::and(word, S::splat(0xffff)) } else { S::shr(word, S::splat(16)) };
            // A half without exponent is zero.
            let zero = S::eq(S::and(half, S::splat(0x7c00)), S::splat(0));
            let half = S::and(half, S::xor(zero, S::splat(u32::MAX)));
            S::store(to.as_mut_ptr().cast::<u32>().add(8 * i), S::widen(half));
        }
    }
}

/// `M` rows and columns, sums of `K`. `HALF`: of halves.
#[inline(always)]
unsafe fn body<S: Simd, const M: usize, const K: usize, const HALF: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let (lanes, results) = (K * M / 64, M * M / 64);
    let groups = 64 / M;
    // SAFETY: the step's rows exist.
    unsafe {
        let sources = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        // Element n of every lane: k is n plus `lanes` times the group of lanes.
        let (mut a, mut b) = ([[0f32; 64]; 4], [[0f32; 64]; 4]);
        for n in 0..lanes {
            if HALF {
                halves::<S>(sources[0], n, &mut a[n]);
                halves::<S>(sources[1], n, &mut b[n]);
            } else {
                a[n] = sources[0].cast::<Row>().add(n).read();
                b[n] = sources[1].cast::<Row>().add(n).read();
            }
        }
        let mut out = [[0u32; 64]; 16];
        let mut bad = S::splat(0);
        for register in 0..results {
            for group in 0..groups {
                let row = if M == 32 { 8 * (register / 4) + 4 * group + register % 4 } else { 4 * group + register };
                for column in 0..M / 8 {
                    let at = M * group + 8 * column;
                    let c = if step.scalar[0] != 0 { step.imm as u32 } else { 0 };
                    let mut sum =
                        if step.scalar[0] != 0 { S::splat(c) } else { S::load(sources[2].add(64 * register + at)) };
                    macro_rules! element {
                        ($k:expr) => {{
                            let (n, lane) = ($k % lanes, M * ($k / lanes));
                            let left = S::splat(a[n][lane + row].to_bits());
                            (left, S::load(b[n].as_ptr().cast::<u32>().add(lane + 8 * column)))
                        }};
                    }
                    if HALF {
                        // Denormals are positive zeros.
                        let none = S::eq(S::and(sum, S::splat(0x7f80_0000)), S::splat(0));
                        let zero = S::eq(S::and(sum, S::splat(0x7fff_ffff)), S::splat(0));
                        let denormal = S::xor(none, zero);
                        sum = S::and(sum, S::xor(denormal, S::splat(u32::MAX)));
                        for k in (0..K).step_by(4) {
                            let [(a0, b0), (a1, b1), (a2, b2), (a3, b3)] =
                                [element!(k), element!(k + 1), element!(k + 2), element!(k + 3)];
                            let first = S::fma(a1, b1, S::fmul(a0, b0));
                            let second = S::fma(a3, b3, S::fmul(a2, b2));
                            sum = S::fadd(sum, S::fadd(first, second));
                        }
                    } else {
                        for k in 0..K {
                            let (left, right) = element!(k);
                            sum = S::fma(left, right, sum);
                        }
                    }
                    bad = S::or(bad, S::unordered(sum, sum));
                    S::store(out[register].as_mut_ptr().add(at), sum);
                }
            }
        }
        if S::mask(bad) != 0 {
            return Flow::Slow;
        }
        let to = cx.row_mut(step.dst).cast::<[u32; 64]>();
        for (index, row) in out.iter().enumerate().take(results) {
            to.add(index).write(*row);
        }
    }
    Flow::Next
}

macro_rules! both {
    ($avx2:expr, $m:literal $k:literal $half:literal) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, $m, $k, $half>(step, cx) }
        }
        unsafe fn narrow(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::simd::Portable, $m, $k, $half>(step, cx) }
        }
        #[cfg(target_arch = "x86_64")]
        let run: Run = if $avx2 { wide } else { narrow };
        #[cfg(not(target_arch = "x86_64"))]
        let run: Run = narrow;
        run
    }};
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if inst.mods != Mods::default() || builder.layout.target != Target::Gfx90a {
        return None;
    }
    // Handler, registers of A and B, and of the result.
    let (run, words, results) = match inst.op {
        Op::VMfmaF32_32x32x8f16 => (both!(builder.avx2, 32 8 true), 2, 16),
        Op::VMfmaF32_16x16x16f16 => (both!(builder.avx2, 16 16 true), 2, 4),
        Op::VMfmaF32_32x32x2f32 => (both!(builder.avx2, 32 2 false), 1, 16),
        Op::VMfmaF32_16x16x4f32 => (both!(builder.avx2, 16 4 false), 1, 4),
        _ => return None,
    };
    let mut step = place.step(run);
    for index in 0..2 {
        step.src[index] = Source::register(builder.layout.row(inst.src[index], words)? * ROW);
    }
    match inst.src[2] {
        Operand::Vgpr(_) | Operand::Agpr(_) => {
            step.src[2] = Source::register(builder.layout.row(inst.src[2], results)? * ROW);
        }
        operand => {
            step.imm = super::block::constant32(operand)?.into();
            step.scalar[0] = 1;
        }
    }
    step.dst = builder.layout.row(inst.dst, results)? * ROW;
    steps.push(step);
    Some(())
}
