// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packed operations on halves, with the halves of the sources that the instruction chooses and negates.

use super::block::{Builder, Place};
use super::half::pairs;
use super::ops::Shape;
use super::step::{Step, ROW};
use crate::reference::Kind;
use vkfd_isa::{Extension, Inst, Op};

/// Whether halves are numbers, which can be negated and whose inline constants are halves.
fn is_float(op: Op) -> bool {
    matches!(op, Op::VPkAddF16 | Op::VPkMulF16 | Op::VPkMinF16 | Op::VPkMaxF16 | Op::VPkFmaF16)
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (shape, run) = pairs::handler(inst.op, builder.avx2)?;
    if inst.extension != Extension::None || inst.mods.clamp {
        return None;
    }
    let float = is_float(inst.op);
    let kind = if float { Kind::Pair16 } else { Kind::B32 };
    let count = if shape == Shape::Ternary { 3 } else { 2 };
    let mut step = place.step(run);
    for index in 0..count {
        let bit = |mask: u8| mask >> index & 1 == 1;
        let select = [bit(inst.mods.op_sel), bit(inst.mods.op_sel_hi)];
        let sign = |mask: u8, at: u32| if float && bit(mask) { 1 << at } else { 0 };
        let turn = sign(inst.mods.neg, 15) | sign(inst.mods.neg_hi, 31);
        step.src[index] = builder.halves_source(inst.src[index], kind, (select, turn), index, place, steps)?;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}
