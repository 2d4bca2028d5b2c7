// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Fused operations of mixed precision: each source is a single or a half, the result a single or
//! one half of a register.
//!
//! Steps before the operation make singles of halves. Limits: clamped results, and halves that are
//! constants, are the reference engine's. gfx900's operations do not fuse, and know no denormals, of
//! singles and of halves. `imm` has a bit for each source that was a half.

use super::block::{Builder, Place};
use super::prepare::{self, Part};
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step, ROW};
use super::vector::{tiny, LEAST};
use crate::reference::Kind;
use vkfd_isa::{Inst, Mods, Op, Operand};

/// The least half that is not denormal, as a single.
const LEAST_HALF: u32 = 0x3880_0000;

/// Where the result goes.
const WORD: u8 = 0;
const LOW: u8 = 1;
const HIGH: u8 = 2;

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
        let mut bad = S::splat(0);
        // Singles that MODE or the operation may not keep, and halves that the operation does not.
        let limit = S::splat(if FUSED && cx.plain { 0 } else { LEAST });
        let half = S::splat(if FUSED { 0 } else { LEAST_HALF });
        let limits = [0, 1, 2].map(|index| if !FUSED && step.imm >> index & 1 == 1 { half } else { limit });
        let to_limit = if !FUSED && TO != WORD { half } else { limit };
        for group in 0..8 {
            let [a, b, c] = rows.map(|row| S::load(row.add(8 * group)));
            let product = S::fmul(a, b);
            let value = if FUSED { S::fma(a, b, c) } else { S::fadd(product, c) };
            let mut here = S::or(S::unordered(value, value), tiny::<S>(value, to_limit));
            for (single, limit) in [a, b, c].into_iter().zip(limits) {
                here = S::or(here, tiny::<S>(single, limit));
            }
            if !FUSED {
                here = S::or(here, tiny::<S>(product, limit));
            }
            bad = S::or(bad, S::and(here, S::lanes((exec >> (8 * group)) as u8)));
            values[group] = value;
        }
        if S::mask(bad) != 0 {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for group in 0..8 {
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
        if !matches!(operand, Operand::Vgpr(_) | Operand::Scalar(_)) {
            return None;
        }
        let part = Part {
            from: if chosen(op_sel) { 16 } else { 0 },
            width: 16,
            signed: false,
            keep: if abs { 0x7fff } else { 0xffff },
            turn: if neg { 0x8000 } else { 0 },
        };
        let half = builder.part_source(operand, Kind::B32, part, index, place, steps)?;
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
