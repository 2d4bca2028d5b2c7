// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of gfx11, on processors with AVX2 or AVX-512: D = A * B + C of 16 by 16.
//!
//! Eight lanes of D are eight columns of a row. A's elements are broadcast, B's rows are vectors.
//! Where elements lie, and the order of sums, is the reference engine's `wmma`: a chain of fused
//! operations over k. What has a NaN in the result is the reference engine's, and so are negations.

use super::builder::Builder;
use super::half::single;
use super::matrix::sum_source;
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Source, Step, ROW};
#[cfg(target_arch = "x86_64")]
use super::wmma512;
use crate::reference::Kind;
use std::mem::MaybeUninit;
use vkfd_isa::{Inst, Op};

const F16: u8 = 0;
const BF16: u8 = 1;
const I8: u8 = 2;
const I4: u8 = 3;

/// Rows and columns.
const SIZE: usize = 16;
/// D has no more rows than this in a register's half, or words.
const GROUP: usize = 4;

/// Elements of a matrix by k, then row or column.
type Elements = [[u32; SIZE]; SIZE];
/// The sums: vectors of D's rows, two for each.
type Sums = [[u32; 8]; 32];

/// Takes all elements out of the registers: numbers as single precision, integers as words.
/// `signed`: those have a sign.
#[inline(always)]
unsafe fn elements<S: Simd, const KIND: u8>(rows: *const u32, signed: bool, all: *mut Elements) {
    let in_word = match KIND {
        F16 | BF16 => 2,
        I8 => 4,
        _ => 8,
    };
    let bits = 32 / in_word as u32;
    // SAFETY: the rows exist.
    unsafe {
        for k in 0..SIZE {
            for i in 0..2 {
                let word = S::load(rows.add(64 * (k / in_word) + 8 * i));
                let at = bits * (k % in_word) as u32;
                let value = match KIND {
                    F16 => single::<S>(S::shr(word, S::splat(at))),
                    BF16 if at == 0 => S::shl(word, S::splat(16)),
                    BF16 => S::and(word, S::splat(0xffff_0000)),
                    _ => {
                        let up = S::shl(word, S::splat(32 - bits - at));
                        if signed {
                            S::sar(up, S::splat(32 - bits))
                        } else {
                            S::shr(up, S::splat(32 - bits))
                        }
                    }
                };
                S::store(all.cast::<u32>().add(SIZE * k + 8 * i), value);
            }
        }
    }
}

/// A number of single precision as bfloat16, to the nearest; it is no NaN.
#[inline(always)]
unsafe fn to_brain<S: Simd>(value: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let even = S::and(S::shr(value, S::splat(16)), S::splat(1));
        S::shr(S::add(S::add(value, S::splat(0x7fff)), even), S::splat(16))
    }
}

/// All elements of A or B. They are not cleared before, which would take an eighth of the time.
#[inline(always)]
unsafe fn source<S: Simd, const KIND: u8, const WIDE: bool>(
    rows: *const u32,
    signed: bool,
    room: &mut MaybeUninit<Elements>,
) -> &Elements {
    let all = room.as_mut_ptr();
    // SAFETY: the caller's; all elements are written.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match (WIDE, KIND) {
            (false, _) => elements::<S, KIND>(rows, signed, all),
            (true, F16) => wmma512::elements::<false>(rows, all),
            (true, _) => wmma512::elements::<true>(rows, all),
        }
        #[cfg(not(target_arch = "x86_64"))]
        elements::<S, KIND>(rows, signed, all);
        room.assume_init_ref()
    }
}

/// Adds all products to the sums.
#[inline(always)]
unsafe fn products<S: Simd, const KIND: u8>(a: &Elements, b: &Elements, sums: &mut Sums) {
    // SAFETY: the caller's.
    unsafe {
        for j in 0..2 {
            for first in (0..SIZE).step_by(GROUP) {
                let mut group = [S::splat(0); GROUP];
                for (n, sum) in group.iter_mut().enumerate() {
                    *sum = S::load(sums[2 * (first + n) + j].as_ptr());
                }
                for k in 0..SIZE {
                    let right = S::load(b[k].as_ptr().add(8 * j));
                    for (n, sum) in group.iter_mut().enumerate() {
                        let left = S::splat(a[k][first + n]);
                        let is_float = KIND == F16 || KIND == BF16;
                        *sum = if is_float { S::fma(left, right, *sum) } else { S::add(S::mul(left, right), *sum) };
                    }
                }
                for (n, &sum) in group.iter().enumerate() {
                    S::store(sums[2 * (first + n) + j].as_mut_ptr(), sum);
                }
            }
        }
    }
}

/// `NARROW`: C and D have 16 bits, in the half that `scalar[1]` says. `scalar[0]`: C is a constant,
/// `imm`. `scalar[2]`: which of A and B have signs. `WIDE`: by AVX-512, numbers only.
#[inline(always)]
unsafe fn body<S: Simd, const KIND: u8, const NARROW: bool, const WIDE: bool>(step: &Step, cx: &mut Cx) -> Flow {
    // Vectors of a register.
    let vectors = cx.all.count_ones() as usize / 8;
    let at = |vector: usize| 64 * (vector / vectors) + 8 * (vector % vectors);
    // SAFETY: the step's rows exist. D is written when A, B and C have been read.
    unsafe {
        let mut rooms = [MaybeUninit::uninit(); 2];
        let [a, b] = &mut rooms;
        let a = source::<S, KIND, WIDE>(cx.row(step.src[0]), step.scalar[2] & 1 != 0, a);
        let b = source::<S, KIND, WIDE>(cx.row(step.src[1]), step.scalar[2] & 2 != 0, b);
        let (c, to) = (cx.row(step.src[2]), cx.row_mut(step.dst));
        let (half, up) = (S::splat(if step.scalar[1] != 0 { 16 } else { 0 }), step.scalar[1] != 0);
        let mut room = MaybeUninit::<Sums>::uninit();
        for vector in 0..32 {
            let word = if step.scalar[0] != 0 { S::splat(step.imm as u32) } else { S::load(c.add(at(vector))) };
            let value = match KIND {
                F16 if NARROW => single::<S>(S::shr(word, half)),
                BF16 if NARROW => S::shl(S::shr(word, half), S::splat(16)),
                _ => word,
            };
            S::store(room.as_mut_ptr().cast::<u32>().add(8 * vector), value);
        }
        let sums = room.assume_init_mut();
        #[cfg(target_arch = "x86_64")]
        if WIDE {
            wmma512::products(a, b, sums);
        }
        if !WIDE {
            products::<S, KIND>(a, b, sums);
        }
        let mut bad = S::splat(0);
        for (vector, row) in sums.iter_mut().enumerate() {
            let sum = S::load(row.as_ptr());
            if KIND == F16 || KIND == BF16 {
                bad = S::or(bad, S::unordered(sum, sum));
            }
            if NARROW {
                let short = if KIND == F16 { S::narrow(sum) } else { to_brain::<S>(sum) };
                let old = S::load(to.add(at(vector)));
                let keep = S::and(old, S::splat(if up { 0xffff } else { 0xffff_0000 }));
                S::store(row.as_mut_ptr(), S::or(keep, S::shl(short, half)));
            }
        }
        if S::mask(bad) != 0 {
            return step.slow(cx);
        }
        for (vector, row) in sums.iter().enumerate() {
            S::store(to.add(at(vector)), S::load(row.as_ptr()));
        }
    }
    step.done(cx)
}

/// The handler: `wide` if the processor has AVX-512 and there is one for it.
fn run<const KIND: u8, const NARROW: bool>(avx2: bool, wide: bool) -> Option<Run> {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn with<const KIND: u8, const NARROW: bool, const WIDE: bool>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, KIND, NARROW, WIDE>(step, cx) }
        }
        let is_wide = wide && (KIND == F16 || KIND == BF16);
        avx2.then_some(if is_wide { with::<KIND, NARROW, true> as Run } else { with::<KIND, NARROW, false> as Run })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _: Run = body::<super::simd::Portable, KIND, NARROW, false>;
        let _ = (avx2, wide);
        None
    }
}

/// Makes a step of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (avx2, wide) = (builder.avx2, builder.avx512);
    let (handler, words, floats) = match inst.op {
        Op::VWmmaF32_16x16x16F16 => (run::<F16, false>(avx2, wide)?, 8, true),
        Op::VWmmaF32_16x16x16Bf16 => (run::<BF16, false>(avx2, wide)?, 8, true),
        Op::VWmmaF16_16x16x16F16 => (run::<F16, true>(avx2, wide)?, 8, true),
        Op::VWmmaBf16_16x16x16Bf16 => (run::<BF16, true>(avx2, wide)?, 8, true),
        Op::VWmmaI32_16x16x16Iu8 => (run::<I8, false>(avx2, wide)?, 4, false),
        Op::VWmmaI32_16x16x16Iu4 => (run::<I4, false>(avx2, wide)?, 2, false),
        _ => return None,
    };
    if inst.mods.clamp || inst.mods.abs != 0 || floats && (inst.mods.neg != 0 || inst.mods.neg_hi != 0) {
        return None;
    }
    let layout = builder.layout;
    let results = 256 / usize::from(layout.lanes);
    let mut step = place.step(handler);
    for index in 0..2 {
        step.src[index] = Source::register(layout.row(inst.src[index], words)? * ROW);
    }
    sum_source(builder, inst.src[2], results, Kind::F32, &mut step)?;
    step.scalar[1] = inst.mods.op_sel & 4;
    step.scalar[2] = inst.mods.neg;
    step.dst = layout.row(inst.dst, results)? * ROW;
    steps.push(step);
    Some(())
}
