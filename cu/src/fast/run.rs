// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a block: its steps one after the other, and the reference engine for the instructions that
//! have no handler or whose handler gives up.

use super::block::Block;
use super::seam::Seam;
use super::step::{Cx, Flow, Step};
use crate::exit::Exit;
use crate::reference;
use crate::world::Detour;
use vkfd_isa::{Format, Inst};

/// How a block was left. It has no fields: a small store before a larger load of the same bytes
/// waits for all stores before it, at each barrier.
pub(super) enum End {
    /// To the wave's program counter.
    Jump,
    /// There, too, but its last instruction was the reference engine's, and may have changed
    /// anything.
    Slow,
    Barrier,
    Ended,
    /// With [`Cx::exit`].
    Exit,
}

/// Runs a block, and leaves the wave's program counter at the next one. `done` counts its
/// instructions.
pub(super) fn run_block(block: &Block, cx: &mut Cx, done: &mut u64) -> End {
    cx.pc = block.pc;
    let mut step = block.steps.as_ptr();
    // Rounds that a region has done before the one in which something else happens.
    let rounds = |cx: &Cx| block.insts.len() as u64 * u64::from(cx.rounds - 1);
    loop {
        // SAFETY: the block was built for this processor and for waves with as many registers as
        // this one. Its last step jumps, so that there is one after every other.
        let flow = unsafe { ((*step).run)(&*step, cx) };
        if flow == Flow::Jump {
            *done += block.insts.len() as u64 * u64::from(cx.rounds);
            cx.wave.pc = cx.next;
            return End::Jump;
        }
        // SAFETY: a step of the block: handlers that return otherwise have said which.
        let here = unsafe { &*cx.at };
        match flow {
            Flow::Jump => {}
            Flow::SideExit => {
                *done += u64::from(here.inst) + 1;
                cx.wave.pc = cx.next;
                return End::Jump;
            }
            Flow::Next => step = here.next,
            Flow::Slow => {
                if let Some(exec) = cx.saved.take() {
                    cx.wave.set_pair(vkfd_isa::Operand::EXEC, exec);
                }
                if let Some(undo) = here.undo {
                    undo.put_back(cx);
                }
                let Some(inst) = block.insts.get(here.inst as usize) else { return End::Slow };
                cx.wave.pc = block.pc.wrapping_add(here.offset.into());
                #[cfg(debug_assertions)]
                cx.slow.push(inst.op);
                cx.world.detour(inst.op, detour(here, inst, cx));
                let result = reference::execute(inst, cx.wave, cx.group, &mut Seam(cx.world));
                if let Err(exit) = result {
                    *done += rounds(cx)
                        + u64::from(here.inst)
                        + u64::from(!matches!(exit, Exit::Miss(_) | Exit::Refused(_)));
                    cx.exit = exit;
                    return End::Exit;
                }
                if here.inst as usize + 1 == block.insts.len() {
                    *done += rounds(cx) + block.insts.len() as u64;
                    return End::Slow;
                }
                // Some of these take microseconds, and a block may have many.
                if cx.world.wanted() {
                    *done += rounds(cx) + u64::from(here.inst) + 1;
                    return End::Jump;
                }
                cx.refresh();
                // The steps after this instruction's; the last step belongs to none.
                step = cx.at;
                // SAFETY: as above.
                while unsafe { (*step).inst } == here.inst {
                    // SAFETY: as above.
                    step = unsafe { (*step).next };
                }
            }
            Flow::Barrier | Flow::Ended => {
                *done += rounds(cx) + u64::from(here.inst) + 1;
                cx.wave.pc = block.pc.wrapping_add(u64::from(here.offset + here.bytes));
                return if flow == Flow::Barrier { End::Barrier } else { End::Ended };
            }
        }
    }
}

/// Why a step's instruction is the reference engine's.
fn detour(step: &Step, inst: &Inst, cx: &Cx) -> Detour {
    let is_memory = matches!(
        inst.format,
        Format::Smem | Format::Ds | Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Mtbuf
    );
    if step.is_left {
        Detour::NoHandler
    } else if is_memory {
        Detour::Access
    } else if cx.plain {
        Detour::Value
    } else {
        Detour::Mode
    }
}
