// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar loads within a page.

use crate::fast::block::{Builder, Place};
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Flow, Step};
use vkfd_isa::{Inst, Op, Operand};
use vkfd_raw as raw;

/// No offset in a register.
const NONE: u8 = 255;

unsafe fn load(step: &Step, cx: &mut Cx) -> Flow {
    let bytes = usize::from(step.scalar[2]) * 4;
    // SAFETY: the step's registers exist, and the destination's; the page is a span while the gate is open.
    unsafe {
        let offset = if step.scalar[1] == NONE { 0 } else { u64::from(cx.scalar(step.scalar[1])) };
        let va = cx.pair(step.scalar[0]).wrapping_add(offset).wrapping_add(step.imm as u64) & !3;
        if va % PAGE + bytes as u64 > PAGE {
            return step.slow(cx);
        }
        let Some(ptr) = cx.cache.page(cx.world, va, false) else { return step.slow(cx) };
        let mut words = [0u32; 16];
        if raw::copy(words.as_mut_ptr().cast(), ptr, bytes).is_err() {
            return step.slow(cx);
        }
        for (index, word) in words.into_iter().take(step.scalar[2].into()).enumerate() {
            cx.scalars.add(step.dst + index).write(word);
        }
    }
    step.done(cx)
}

/// Makes a step of a scalar load.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let count = match inst.op {
        Op::SLoadDword => 1,
        Op::SLoadDwordx2 => 2,
        Op::SLoadDwordx4 => 4,
        Op::SLoadDwordx8 => 8,
        Op::SLoadDwordx16 => 16,
        _ => return None,
    };
    let mut step = place.step(load);
    step.scalar[0] = builder.layout.scalar(inst.memory.base, 2)?;
    step.scalar[1] = match inst.memory.soffset {
        Operand::None => NONE,
        operand => builder.layout.scalar(operand, 1)?,
    };
    step.scalar[2] = count;
    step.dst = builder.layout.scalar(inst.dst, count)?.into();
    step.imm = inst.memory.offset.into();
    steps.push(step);
    Some(())
}
