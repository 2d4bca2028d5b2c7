// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Fused operations of mixed precision: each source is a single or a half, the result a single or
//! one half of a register.
//!
//! Steps before the operation make singles of halves. Limits: clamped results are the reference
//! engine's. gfx900's operations do not fuse, and know no denormals, of singles and of halves.
//! `imm` has a bit for each source that was a half.

use super::builder::Builder;
use super::operation::vectors;
use super::prepare::{self, Part};
use super::rest::Lost;
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Step, ROW};
use crate::reference::Kind;
use vkfd_isa::{Inst, Mods, Op};

/// The least half that is not denormal, as a single.
const LEAST_HALF: u32 = 0x3880_0000;
/// The least single that is rounded to it.
const ALMOST_LEAST_HALF: u32 = 0x387f_f000;

/// Where the result goes.
const WORD: u8 = 0;
const LOW: u8 = 1;
const HIGH: u8 = 2;

/// A single, zero with its sign if its magnitude is less than `limit`.
#[inline(always)]
unsafe fn zero_below<S: Simd>(a: S::V, limit: u32) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let less = S::gt(S::splat(limit), S::and(a, S::splat(0x7fff_ffff)));
        S::select(less, a, S::and(a, S::splat(1 << 31)))
    }
}

#[inline(always)]
unsafe fn body<S: Simd, const TO: u8, const FUSED: bool>(step: &Step, cx: &mut Cx) -> Flow {
    if !cx.wide {
        return step.slow(cx);
    }
    let exec = cx.exec();
    // SAFETY: the step's rows exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let mut values = [S::splat(0); 8];
        let mut open = S::splat(0);
        // Denormal singles that MODE or the operation does not keep.
        let lost = if FUSED { Lost::of::<S>(cx.wave.mode) } else { Lost::all::<S>() };
        let vectors = vectors(cx.all);
        for group in 0..vectors {
            let mut sources = [S::splat(0); 3];
            for n in 0..3 {
                sources[n] = lost.source::<S>(S::load(rows[n].add(8 * group)));
                if !FUSED && step.imm >> n & 1 == 1 {
                    sources[n] = zero_below::<S>(sources[n], LEAST_HALF);
                }
            }
            let [a, b, c] = sources;
            let mut here = S::splat(0);
            let sum = if FUSED {
                S::fma(a, b, c)
            } else {
                let (product, least) = lost.result::<S>(S::fmul(a, b));
                here = least;
                S::fadd(product, c)
            };
            let (value, least) = lost.result::<S>(sum);
            here = S::or(here, least);
            open = S::or(open, S::and(here, S::lanes((exec >> (8 * group)) as u8)));
            values[group] = if FUSED || TO == WORD { value } else { zero_below::<S>(value, ALMOST_LEAST_HALF) };
        }
        // What may have been denormal before it was rounded.
        if S::mask(open) != 0 {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for group in 0..vectors {
            let old = S::load(to.add(8 * group));
            let value = match TO {
                WORD => values[group],
                LOW => S::or(S::and(old, S::splat(0xffff_0000)), S::narrow(values[group])),
                _ => S::or(S::and(old, S::splat(0xffff)), S::shl(S::narrow(values[group]), S::splat(16))),
            };
            S::store(to.add(8 * group), S::select(S::lanes((exec >> (8 * group)) as u8), old, value));
        }
    }
    step.done(cx)
}

fn run<const TO: u8, const FUSED: bool>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<const TO: u8, const FUSED: bool>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, TO, FUSED>(step, cx) }
        }
        if avx2 {
            return wide::<TO, FUSED>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<const TO: u8, const FUSED: bool>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, TO, FUSED>(step, cx) }
    }
    narrow::<TO, FUSED>
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let run = match inst.op {
        Op::VFmaMixF32 => run::<WORD, true>(builder.avx2),
        Op::VFmaMixloF16 => run::<LOW, true>(builder.avx2),
        Op::VFmaMixhiF16 => run::<HIGH, true>(builder.avx2),
        Op::VMadMixF32 => run::<WORD, false>(builder.avx2),
        Op::VMadMixloF16 => run::<LOW, false>(builder.avx2),
        Op::VMadMixhiF16 => run::<HIGH, false>(builder.avx2),
        _ => return None,
    };
    let mods = &inst.mods;
    let Mods { op_sel, op_sel_hi, neg, neg_hi, abs, .. } = *mods;
    if *mods != (Mods { op_sel, op_sel_hi, neg, neg_hi, abs, ..Mods::default() }) {
        return None;
    }
    let mut step = place.step(run);
    for index in 0..3 {
        let operand = inst.src[index];
        let chosen = |bits: u8| bits >> index & 1 == 1;
        let (abs, neg) = (chosen(abs | neg_hi), chosen(neg));
        if !chosen(op_sel_hi) {
            step.src[index] = builder.row_source(operand, (abs, neg), index, place, steps)?;
            continue;
        }
        let part = Part {
            from: if chosen(op_sel) { 16 } else { 0 },
            width: 16,
            signed: false,
            keep: if abs { 0x7fff } else { 0xffff },
            turn: if neg { 0x8000 } else { 0 },
        };
        let half = builder.part_source(operand, Kind::Pair16, part, index, place, steps)?;
        let (address, single) = builder.constants.temporary(index);
        let mut widen = place.step(prepare::widen(builder.avx2));
        widen.src[0] = half;
        widen.dst = address;
        steps.push(widen);
        step.src[index] = single;
        step.imm |= 1 << index;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}
