// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Global wave sync: barriers between the work-groups of a grid.
//!
//! A resource is a counter and a phase, which the world keeps ([`World::gws_init`],
//! [`World::gws_arrive`]). A wave that arrives before the last one notes the awaited phase in
//! [`Wave::done`], and executes the instruction again each time that it runs. Semaphores are
//! refused by name.

use super::{lanes, rows, scalar, unsupported, word, REGISTER};
use crate::exit::Exit;
use crate::wave::Wave;
use crate::world::World;
use vkfd_isa::{Inst, Op, Operand};

/// Executes a GWS instruction. [`Exit::Sleep`] with the program counter as before: not all have
/// come.
pub(super) fn execute<W: World>(inst: &Inst, wave: &mut Wave, world: &mut W) -> Result<(), Exit> {
    let row = rows(wave, inst.memory.data, 1)?;
    let value = word(wave, row, lanes(wave.exec()).next().ok_or(REGISTER)?);
    let base = scalar(wave, Operand::Scalar(Operand::M0))? >> 16;
    let resource = base.wrapping_add(inst.memory.offset as u32) & 0x3f;
    match inst.op {
        Op::DsGwsInit => world.gws_init(resource, value),
        Op::DsGwsBarrier => {
            if wave.done == 0 {
                wave.done = world.gws_arrive(resource, value);
            }
            if wave.done != 0 && !world.gws_passed(resource, wave.done) {
                return Err(Exit::Sleep);
            }
            wave.done = 0;
        }
        _ => return Err(unsupported(inst)),
    }
    Ok(())
}

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    matches!(op, Op::DsGwsInit | Op::DsGwsBarrier)
}
