// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar loads within a page.

use crate::fast::builder::Builder;
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Flow, Place, Step};
use crate::reference::memory::Buffer;
use vkfd_isa::{Inst, Op, Operand};
use vkfd_raw as raw;

/// No offset in a register.
const NONE: u8 = 255;

unsafe fn load(step: &Step, cx: &mut Cx) -> Flow {
    let bytes = usize::from(step.scalar[2]) * 4;
    // SAFETY: the step's registers exist, and the destination's; the page is a span while the gate
    // is open.
    unsafe {
        let offset = if step.scalar[1] == NONE { 0 } else { u64::from(cx.scalar(step.scalar[1])) };
        let va = cx.address(step.scalar[0]).wrapping_add(offset).wrapping_add(step.imm as u64) & !3;
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

/// Loads from the buffer whose descriptor begins at `scalar[0]`: what is beyond its size is zero.
unsafe fn load_buffer(step: &Step, cx: &mut Cx) -> Flow {
    let count = usize::from(step.scalar[2]);
    // SAFETY: the step's registers exist, and the destination's; the page is a span while the gate
    // is open.
    unsafe {
        let buffer = Buffer::decode(cx.wave.target, cx.descriptor(step.scalar[0]));
        let offset = if step.scalar[1] == NONE { 0 } else { u64::from(cx.scalar(step.scalar[1])) };
        let offset = offset.wrapping_add(step.imm as u64) & !3;
        let va = buffer.base.wrapping_add(offset) & !3;
        let inside = (buffer.scalar_size().saturating_sub(offset) / 4).min(count as u64) as usize;
        let mut words = [0u32; 16];
        if inside != 0 {
            if va % PAGE + 4 * inside as u64 > PAGE {
                return step.slow(cx);
            }
            let Some(ptr) = cx.cache.page(cx.world, va, false) else { return step.slow(cx) };
            if raw::copy(words.as_mut_ptr().cast(), ptr, 4 * inside).is_err() {
                return step.slow(cx);
            }
        }
        for (index, word) in words.into_iter().take(count).enumerate() {
            cx.scalars.add(step.dst + index).write(word);
        }
    }
    step.done(cx)
}

/// Makes a step of a scalar load.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (count, buffer) = match inst.op {
        Op::SLoadDword => (1, false),
        Op::SLoadDwordx2 => (2, false),
        Op::SLoadDwordx4 => (4, false),
        Op::SLoadDwordx8 => (8, false),
        Op::SLoadDwordx16 => (16, false),
        Op::SBufferLoadDword => (1, true),
        Op::SBufferLoadDwordx2 => (2, true),
        Op::SBufferLoadDwordx4 => (4, true),
        Op::SBufferLoadDwordx8 => (8, true),
        Op::SBufferLoadDwordx16 => (16, true),
        _ => return None,
    };
    let mut step = place.step(if buffer { load_buffer } else { load });
    step.scalar[0] = builder.layout.scalar(inst.memory.base, if buffer { 4 } else { 2 })?;
    step.scalar[1] = match inst.memory.soffset {
        Operand::None | Operand::Scalar(Operand::NULL) => NONE,
        operand => builder.layout.scalar(operand, 1)?,
    };
    step.scalar[2] = count;
    step.dst = builder.layout.scalar(inst.dst, count)?.into();
    step.imm = inst.memory.offset.into();
    steps.push(step);
    Some(())
}
