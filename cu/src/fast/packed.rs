// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packed operations on halves, with the halves of the sources that the instruction chooses and
//! negates.

use super::builder::Builder;
use super::half::pairs;

use super::operation::{Check, Ternary};
use super::ops::{self, Shape};
use super::prepare::Part;
use super::simd::Simd;
use super::step::{Place, Step, ROW};
use super::{function, operation, saturate, unfused, vector};
use crate::reference::{kinds, Kind};
use vkfd_isa::{Extension, Inst, Op};

/// Whether halves are numbers, which can be negated and whose inline constants are halves.
fn is_float(op: Op) -> bool {
    matches!(op, Op::VPkAddF16 | Op::VPkMulF16 | Op::VPkMinF16 | Op::VPkMaxF16 | Op::VPkFmaF16)
}

/// A dot product of integers, of which each source may have a sign.
struct Signs<const BITS: u32, const A: bool, const B: bool>;

impl<const BITS: u32, const A: bool, const B: bool> Ternary for Signs<BITS, A, B> {
    const CHECK: Check = Check::Never;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            if BITS == 8 {
                S::add(ops::dot4::<S, A, B>(a, b), c)
            } else {
                S::map3(a, b, c, |a, b, c| ops::dot::<BITS, A, B>(a, b).wrapping_add(c))
            }
        }
    }
}

/// Makes a step of the dot products whose modifiers say which source has signs.
fn translate_signs(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let avx2 = builder.avx2;
    if inst.mods.clamp || inst.extension != Extension::None {
        return None;
    }
    let eight = inst.op == Op::VDot4I32Iu8;
    let run = match (eight, inst.mods.neg & 3) {
        (true, 0) => vector::ternary_run::<Signs<8, false, false>>(avx2, 0),
        (true, 1) => vector::ternary_run::<Signs<8, true, false>>(avx2, 0),
        (true, 2) => vector::ternary_run::<Signs<8, false, true>>(avx2, 0),
        (true, _) => vector::ternary_run::<Signs<8, true, true>>(avx2, 0),
        (_, 0) => vector::ternary_run::<Signs<4, false, false>>(avx2, 0),
        (_, 1) => vector::ternary_run::<Signs<4, true, false>>(avx2, 0),
        (_, 2) => vector::ternary_run::<Signs<4, false, true>>(avx2, 0),
        _ => vector::ternary_run::<Signs<4, true, true>>(avx2, 0),
    };
    let mut step = place.step(run?.run);
    for index in 0..3 {
        step.src[index] = builder.part_source(inst.src[index], Kind::B32, Part::ALL, index, place, steps)?;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if matches!(inst.op, Op::VDot4I32Iu8 | Op::VDot8I32Iu4) {
        return translate_signs(builder, inst, place, steps);
    }
    let dot = matches!(inst.op, Op::VDot2F32F16 | Op::VDot2F32Bf16 | Op::VDot2I32I16 | Op::VDot2U32U16);
    let (shape, handler) = match inst.op {
        Op::VDot2F32F16 => (Shape::Ternary, unfused::dot2(builder.avx2)?),
        Op::VDot2F32Bf16 => function::handler(inst.op, operation::ROWS)?,
        _ if inst.mods.clamp => saturate::handler(inst.op, builder.avx2, operation::ROWS)?,
        _ if dot => ops::dot2(inst.op, builder.avx2)?,
        _ => pairs::handler(inst.op, builder.avx2)?,
    };
    let float = is_float(inst.op) || matches!(inst.op, Op::VDot2F32F16 | Op::VDot2F32Bf16);
    if inst.extension != Extension::None || inst.mods.clamp && float {
        return None;
    }
    let kind = if float && inst.op != Op::VDot2F32Bf16 { Kind::Pair16 } else { Kind::B32 };
    let count = if shape == Shape::Ternary && !dot { 3 } else { 2 };
    let mut step = place.step(handler.run);
    handler.give(&mut step, inst.op);
    if inst.op == Op::VDot2F32Bf16 {
        step.imm = function::immediate(inst.op, false);
    }
    for index in 0..count {
        let bit = |mask: u8| mask >> index & 1 == 1;
        let select = [bit(inst.mods.op_sel), bit(inst.mods.op_sel_hi)];
        let sign = |mask: u8, at: u32| if float && bit(mask) { 1 << at } else { 0 };
        let turn = sign(inst.mods.neg, 15) | sign(inst.mods.neg_hi, 31);
        step.src[index] = builder.halves_source(inst.src[index], kind, (select, turn), index, place, steps)?;
    }
    if dot {
        // The addend is a whole word, whose sign the low modifier turns.
        let part = Part { turn: if float && inst.mods.neg & 4 != 0 { 1 << 31 } else { 0 }, ..Part::ALL };
        step.src[2] = builder.part_source(inst.src[2], kinds(inst.op)?.src[2], part, 2, place, steps)?;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}
