// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Steps between scalar registers and lanes: first and chosen lanes, counts of lanes.

use super::block::{Builder, Place};
use super::step::{Cx, Flow, Step, ROW};
use vkfd_isa::{Inst, Op, Operand};

/// Spoils a result, in both halves: lane 5 of a row, a scalar register if `imm` is 1, SCC if it is 2.
#[cfg(feature = "sabotage")]
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

/// Counts the lanes of a mask below each lane; `imm`: of the high half.
unsafe fn count(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let mask = if step.scalar[1] != 0 { cx.scalar(step.scalar[0]) } else { cx.row(step.src[0]).read() };
        let mask = u64::from(mask) << if step.imm != 0 { 32 } else { 0 };
        let add = cx.row(step.src[1]).cast::<[u32; 64]>().read();
        let to = cx.row_mut(step.dst);
        let exec = cx.exec();
        for (lane, add) in add.into_iter().enumerate() {
            if exec >> lane & 1 != 0 {
                let below = mask & ((1u64 << lane) - 1);
                to.add(lane).write(add.wrapping_add(below.count_ones()));
            }
        }
    }
    step.done(cx)
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    if inst.mods != vkfd_isa::Mods::default() {
        return None;
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
                Operand::Int(_) => step.src[0] = builder.row_source(inst.src[0], (false, false), 0, place, steps)?,
                _ => return None,
            }
            step.src[1] = builder.row_source(inst.src[1], (false, false), 1, place, steps)?;
        }
        _ => return None,
    }
    steps.push(step);
    Some(())
}
