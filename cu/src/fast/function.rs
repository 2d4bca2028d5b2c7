// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations that the reference engine's function of a lane does, lane by lane: those that are too
//! rare for vectors of their own.
//!
//! Sources, DPP, SDWA and the place of the result are this engine's, so that such an operation
//! costs its function and no more. The functions look at MODE themselves: none is given up.

use super::ops::Shape;
use super::step::{Cx, Flow, Run, Step};
use super::vector::Handler;
use crate::reference::Function;
use crate::world::Detour;
use vkfd_isa::{Op, Operand};

/// Results are clamped: above the operation's number in `imm`.
const CLAMP: i64 = 1 << 16;

/// What a step's `imm` is for one of these handlers.
pub(super) fn immediate(op: Op, clamp: bool) -> i64 {
    i64::from(op as u16) | if clamp { CLAMP } else { 0 }
}

/// `KIND`: the source that is in a scalar register, counted from one.
unsafe fn each<const KIND: u8>(step: &Step, cx: &mut Cx) -> Flow {
    let Some(&op) = Op::ALL.get((step.imm & (CLAMP - 1)) as usize) else { return step.slow(cx) };
    let Some(function) = Function::of(op) else { return step.slow(cx) };
    cx.world.detour(op, Detour::Lanes);
    let clamp = step.imm & CLAMP != 0;
    let exec = cx.exec();
    let mut sources = [[0; 64]; 3];
    // SAFETY: the step's rows and registers exist; the sources are read before anything is written.
    unsafe {
        for (index, source) in sources.iter_mut().enumerate().take(function.sources()) {
            *source = if usize::from(KIND) == index + 1 {
                [cx.scalar(step.scalar[index]); 64]
            } else {
                cx.row(step.src[index]).cast::<[u32; 64]>().read()
            };
        }
        let vcc = cx.pair(Operand::VCC);
        let mut results = [0; 64];
        for (lane, result) in results.iter_mut().enumerate().filter(|(lane, _)| exec >> lane & 1 != 0) {
            let words = sources.each_ref().map(|source| source[lane]);
            *result = function.lane(cx.wave, lane, vcc, words, clamp);
        }
        for (lane, result) in results.into_iter().enumerate().filter(|(lane, _)| exec >> lane & 1 != 0) {
            let to = cx.row_mut(step.dst).add(lane);
            to.write(result as u32);
            if function.result().bits() == 64 {
                to.add(64).write((result >> 32) as u32);
            }
        }
    }
    step.done(cx)
}

/// The shape and handler of an operation whose source `kind - 1` is in a scalar register (0: none
/// is).
pub(super) fn handler(op: Op, kind: u8) -> Option<(Shape, Handler)> {
    let function = Function::of(op)?;
    let shape = match function.sources() {
        1 => Shape::Unary,
        2 => Shape::Binary,
        _ => Shape::Ternary,
    };
    let run: Run = match kind {
        0 => each::<0>,
        1 => each::<1>,
        2 => each::<2>,
        _ => each::<3>,
    };
    Some((shape, Handler::alone(run)))
}
