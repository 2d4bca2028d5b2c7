// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Steps between scalar registers and lanes: first and chosen lanes, counts of lanes.

use super::builder::Builder;
use super::step::{Cx, Flow, Place, Source, Step, ROW};
use vkfd_isa::{Inst, Mods, Op, Operand};

/// Spoils a result, in both halves: lane 5 of a row, a scalar register if `imm` is 1, SCC if it is
/// 2.
#[cfg(debug_assertions)]
pub(super) unsafe fn spoil(step: &Step, cx: &mut Cx) -> Flow {
    if step.imm == 2 {
        cx.wave.scc = !cx.wave.scc;
        return step.done(cx);
    }
    // SAFETY: the step's destination exists.
    unsafe {
        let word = if step.imm != 0 { cx.scalars.add(step.dst) } else { cx.row_mut(step.dst).add(5) };
        word.write(word.read() ^ 0x1_0001);
    }
    step.done(cx)
}

unsafe fn read_first(step: &Step, cx: &mut Cx) -> Flow {
    // With no lane active, it is the first one.
    let lane = cx.exec().trailing_zeros() % 64;
    // SAFETY: the step's rows and registers exist.
    unsafe { cx.scalars.add(step.dst).write(cx.row(step.src[0]).add(lane as usize).read()) };
    step.done(cx)
}

unsafe fn read_lane(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let lane = if step.scalar[1] != 0 { cx.scalar(step.scalar[0]) } else { step.imm as u32 };
        let lane = lane as usize % (if cx.all == u64::MAX { 64 } else { 32 });
        cx.scalars.add(step.dst).write(cx.row(step.src[0]).add(lane).read());
    }
    step.done(cx)
}

/// Writes one lane, active or not: of `scalar[0]` if `scalar[1]`, else of the first word of
/// `src[0]`. Which one is in `scalar[2]` if `scalar[3]`, else in `imm`.
unsafe fn write_lane(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let value = if step.scalar[1] != 0 { cx.scalar(step.scalar[0]) } else { cx.row(step.src[0]).read() };
        let lane = if step.scalar[3] != 0 { cx.scalar(step.scalar[2]) } else { step.imm as u32 };
        let lane = lane as usize % (if cx.all == u64::MAX { 64 } else { 32 });
        cx.row_mut(step.dst).add(lane).write(value);
    }
    step.done(cx)
}

/// Exchanges the active lanes of two rows: `dst`, and the one `imm` bytes from the first.
unsafe fn swap(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist; nothing refers to them.
    unsafe {
        let (one, two) = (cx.row_mut(step.dst), cx.row_mut(step.imm as usize));
        for lane in 0..64 {
            let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
            let (a, b) = (one.add(lane).read(), two.add(lane).read());
            one.add(lane).write(a ^ (a ^ b) & mask);
            two.add(lane).write(b ^ (a ^ b) & mask);
        }
    }
    step.done(cx)
}

/// Counts the lanes of a mask below each lane. `imm`: bit 0, it is of the high half; bit 1, each
/// lane has its own mask.
unsafe fn count(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let mask = if step.scalar[1] != 0 { cx.scalar(step.scalar[0]) } else { cx.row(step.src[0]).read() };
        let up = if step.imm & 1 != 0 { 32 } else { 0 };
        let masks = if step.imm & 2 != 0 { cx.row(step.src[0]).cast::<[u32; 64]>().read() } else { [mask; 64] };
        let add = cx.row(step.src[1]).cast::<[u32; 64]>().read();
        let to = cx.row_mut(step.dst);
        let exec = cx.exec();
        for (lane, add) in add.into_iter().enumerate() {
            if exec >> lane & 1 != 0 {
                let below = u64::from(masks[lane]) << up & ((1u64 << lane) - 1);
                to.add(lane).write(add.wrapping_add(below.count_ones()));
            }
        }
    }
    step.done(cx)
}

/// Lanes of a row of 16, or of its neighbour, by selectors of four bits: of `scalar[0..2]`, or
/// constants in `imm`. `scalar[2]`: bit 0, inactive lanes are read, too; bit 1, others read zero;
/// bit 2, of the neighbour.
unsafe fn permute16(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let how = step.scalar[2];
    // SAFETY: the step's rows and registers exist; the source is read before it is written.
    unsafe {
        let half = |index: usize, constant: i64| match step.scalar[index] {
            CONSTANT => u64::from(constant as u32),
            n => cx.scalar(n).into(),
        };
        let selectors = half(0, step.imm) | half(1, step.imm >> 32) << 32;
        let from = cx.row(step.src[0]).cast::<[u32; 64]>().read();
        let to = cx.row_mut(step.dst);
        for lane in 0..cx.all.count_ones() as usize {
            let select = (selectors >> (4 * (lane % 16)) & 15) as usize;
            let other = (lane & !15) ^ if how & 4 != 0 { 16 } else { 0 } | select;
            let read = how & 1 != 0 || exec >> other & 1 != 0;
            if exec >> lane & 1 != 0 && (read || how & 2 != 0) {
                to.add(lane).write(if read { from[other] } else { 0 });
            }
        }
    }
    step.done(cx)
}

/// Exchanges the halves of a wave of 64; a wave of 32 is left as it is.
unsafe fn permute64(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist; the source is read before it is written.
    unsafe {
        let from = cx.row(step.src[0]).cast::<[u32; 64]>().read();
        let to = cx.row_mut(step.dst);
        for lane in (0..64).filter(|lane| cx.all == u64::MAX && exec >> lane & 1 != 0) {
            to.add(lane).write(from[lane ^ 32]);
        }
    }
    step.done(cx)
}

/// A selector that is no register.
const CONSTANT: u8 = 255;

/// Makes a step of `v_permlane16_b32` or `v_permlanex16_b32`.
fn translate_permute(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let mut step = place.step(permute16);
    step.src[0] = Source::register(builder.layout.row(inst.src[0], 1)? * ROW);
    for index in 0..2 {
        let constant = match inst.src[index + 1] {
            operand @ Operand::Scalar(_) => {
                step.scalar[index] = builder.layout.scalar(operand, 1)?;
                continue;
            }
            Operand::Int(value) => i32::from(value) as u32,
            Operand::Literal(value) => value,
            _ => return None,
        };
        step.scalar[index] = CONSTANT;
        step.imm |= i64::from(constant) << (32 * index);
    }
    step.scalar[2] = inst.mods.op_sel & 3 | u8::from(inst.op == Op::VPermlanex16B32) << 2;
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if matches!(inst.op, Op::VPermlane16B32 | Op::VPermlanex16B32) {
        return translate_permute(builder, inst, place, steps);
    }
    if inst.mods != Mods::default() {
        return None;
    }
    // A mark for the hardware's order, and two that clear what is not kept here.
    if matches!(inst.op, Op::VNop | Op::VPipeflush | Op::VClrexcp) {
        return Some(());
    }
    let mut step = place.step(read_first);
    match inst.op {
        Op::VReadfirstlaneB32 | Op::VReadlaneB32 => {
            step.dst = builder.layout.scalar(inst.dst, 1)?.into();
            step.src[0] = super::step::Source::register(builder.layout.row(inst.src[0], 1)? * ROW);
            if inst.op == Op::VReadlaneB32 {
                step.run = read_lane;
                match inst.src[1] {
                    Operand::Scalar(_) => {
                        (step.scalar[0], step.scalar[1]) = (builder.layout.scalar(inst.src[1], 1)?, 1)
                    }
                    Operand::Int(lane) => step.imm = lane.into(),
                    _ => return None,
                }
            }
        }
        Op::VMbcntLoU32B32 | Op::VMbcntHiU32B32 => {
            step.run = count;
            step.dst = builder.layout.row(inst.dst, 1)? * ROW;
            step.imm = i64::from(inst.op == Op::VMbcntHiU32B32);
            match inst.src[0] {
                Operand::Scalar(_) => (step.scalar[0], step.scalar[1]) = (builder.layout.scalar(inst.src[0], 1)?, 1),
                operand => {
                    step.imm |= if matches!(operand, Operand::Vgpr(_)) { 2 } else { 0 };
                    step.src[0] = builder.row_source(operand, (false, false), 0, place, steps)?;
                }
            }
            step.src[1] = builder.row_source(inst.src[1], (false, false), 1, place, steps)?;
        }
        Op::VWritelaneB32 => {
            step.run = write_lane;
            step.dst = builder.layout.row(inst.dst, 1)? * ROW;
            match inst.src[0] {
                Operand::Scalar(_) => (step.scalar[0], step.scalar[1]) = (builder.layout.scalar(inst.src[0], 1)?, 1),
                Operand::Vgpr(_) | Operand::Agpr(_) => return None,
                operand => step.src[0] = builder.row_source(operand, (false, false), 0, place, steps)?,
            }
            match inst.src[1] {
                Operand::Scalar(_) => (step.scalar[2], step.scalar[3]) = (builder.layout.scalar(inst.src[1], 1)?, 1),
                Operand::Int(lane) => step.imm = lane.into(),
                _ => return None,
            }
        }
        Op::VPermlane64B32 => {
            step.run = permute64;
            step.src[0] = Source::register(builder.layout.row(inst.src[0], 1)? * ROW);
            step.dst = builder.layout.row(inst.dst, 1)? * ROW;
        }
        Op::VSwapB32 => {
            step.run = swap;
            step.dst = builder.layout.row(inst.dst, 1)? * ROW;
            step.imm = (builder.layout.row(inst.src[0], 1)? * ROW) as i64;
        }
        _ => return None,
    }
    steps.push(step);
    Some(())
}
