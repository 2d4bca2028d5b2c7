// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Exchanges between lanes that are DS instructions, within 64 lanes on gfx9, within 32 on
//! later targets.

use crate::fast::builder::Builder;
use crate::fast::prepare::Lanes;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::swizzle;
use vkfd_isa::{Inst, Op};

/// Writes the active lanes of a row.
#[inline(always)]
unsafe fn write(step: &Step, cx: &Cx, exec: u64, result: &[u32; 64]) {
    // SAFETY: the step's row exists.
    unsafe {
        let to = cx.row_mut(step.dst);
        for (lane, value) in result.iter().enumerate() {
            let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
            let old = to.add(lane).read();
            to.add(lane).write(old ^ (old ^ value) & mask);
        }
    }
}

/// The lanes' words, zero where they are not active.
#[inline(always)]
unsafe fn words(cx: &Cx, source: Source, exec: u64) -> [u32; 64] {
    // SAFETY: the step's row exists.
    let mut words = unsafe { cx.row(source).cast::<[u32; 64]>().read() };
    if exec != u64::MAX {
        for (lane, word) in words.iter_mut().enumerate() {
            *word &= ((exec >> lane) as u32 & 1).wrapping_neg();
        }
    }
    words
}

/// Each lane takes from the lane that it names.
unsafe fn bpermute(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist.
    unsafe {
        let from = words(cx, step.src[1], exec);
        let address = cx.row(step.src[0]);
        let mut result = [0; 64];
        let within = u32::from(step.scalar[0]) - 1;
        // By words first, which are vectors.
        let mut places = [0u32; 64];
        for (lane, place) in places.iter_mut().enumerate() {
            let index = address.add(lane).read().wrapping_add(step.imm as u32) / 4;
            *place = lane as u32 & !within | index & within;
        }
        for (result, place) in result.iter_mut().zip(places) {
            *result = from[place as usize % 64];
        }
        write(step, cx, exec, &result);
    }
    step.done(cx)
}

/// Each lane gives to the lane that it names.
unsafe fn permute(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist.
    unsafe {
        let (address, from) = (cx.row(step.src[0]), cx.row(step.src[1]));
        let mut result = [0; 64];
        let within = u32::from(step.scalar[0]) - 1;
        for lane in 0..64 {
            if exec >> lane & 1 != 0 {
                let index = address.add(lane).read().wrapping_add(step.imm as u32) / 4;
                let to = lane as u32 & !within | index & within;
                result[to as usize % 64] = from.add(lane).read();
            }
        }
        write(step, cx, exec, &result);
    }
    step.done(cx)
}

/// Each lane takes from the lane in the table at `src[1]`.
unsafe fn fixed(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's row exists; the table is a constant.
    unsafe {
        let table = &*cx.row(step.src[1]).cast::<Lanes>();
        let from = words(cx, step.src[0], exec);
        let mut result = [0; 64];
        for lane in 0..64 {
            result[lane] = from[usize::from(table.from[lane]) % 64];
        }
        write(step, cx, exec, &result);
    }
    step.done(cx)
}

/// Makes a step of an exchange.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let layout = builder.layout;
    let run: Run = match inst.op {
        Op::DsBpermuteB32 => bpermute,
        Op::DsPermuteB32 => permute,
        Op::DsSwizzleB32 => fixed,
        _ => return None,
    };
    if inst.memory.gds {
        return None;
    }
    let mut step = place.step(run);
    // Lanes among which a permute goes.
    step.scalar[0] = if layout.target.is_gfx9() { 64 } else { 32 };
    step.imm = i64::from(inst.memory.offset);
    step.src[0] = Source::register(layout.row(inst.memory.vaddr, 1)? * ROW);
    if inst.op == Op::DsSwizzleB32 {
        let from = std::array::from_fn(|lane| swizzle(inst.memory.offset as u32, lane) as u8);
        let table = Lanes { from, valid: u64::MAX, open: u64::MAX, zero: true, inactive: false };
        step.src[1] = builder.constants.lanes(table);
    } else {
        step.src[1] = Source::register(layout.row(inst.memory.data, 1)? * ROW);
    }
    step.dst = layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}
