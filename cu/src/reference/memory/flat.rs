// SPDX-License-Identifier: GPL-2.0 OR MIT
//! FLAT, GLOBAL and SCRATCH: the places of each lane's bytes.
//!
//! A FLAT address in one of the two apertures is LDS or scratch, lane by lane. The address register
//! decides, without the offset, as on hardware (ROCm's issue 4389). If only the sum with the offset
//! is in an aperture, the access is one of memory that is not there. Scratch is interleaved: the
//! dwords at one private address are beside each other for all lanes of the wave. FLAT_SCRATCH is
//! the start of the wave's scratch.

use super::plan::{Lane, Place};
use super::{double, kind, lanes, rows, scalar, scalar_pair, transfer, unsupported, word};
use crate::exit::Exit;
use crate::few::Few;
use crate::group::Group;
use crate::wave::Wave;
use crate::world::World;
use vkfd_isa::{Format, Inst, Op, Operand, Target};
use vkfd_sabotage::{process, Switch};

/// Where the wave's scratch begins.
pub(crate) fn scratch_base(wave: &Wave) -> u64 {
    match wave.target {
        Target::Gfx900 | Target::Gfx90a => wave.pair(Operand::FLAT_SCRATCH),
        Target::Gfx942 | Target::Gfx1030 | Target::Gfx1100 => wave.flat_scratch,
    }
}

/// The address of a byte of a lane's scratch.
pub(crate) fn private(base: u64, lanes: u8, lane: usize, address: u32) -> u64 {
    let row = u64::from(address / 4) * 4 * u64::from(lanes);
    base.wrapping_add(row + 4 * lane as u64 + u64::from(address % 4))
}

fn scratch_lane(wave: &Wave, lane: usize, address: u32) -> Lane {
    let base = scratch_base(wave);
    let byte = |byte: usize| Place::Memory(private(base, wave.lanes, lane, address.wrapping_add(byte as u32)));
    Lane { lane, places: std::array::from_fn(byte) }
}

/// Executes a flat memory instruction.
pub(super) fn execute<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    let kind = kind(inst.op).ok_or_else(|| unsupported(inst))?;
    let places = match inst.format {
        Format::Scratch => scratch(inst, wave)?,
        Format::Global => global(inst, wave)?,
        _ => flat(inst, wave, group)?,
    };
    transfer(kind, inst, wave, group, world, &places)
}

fn flat(inst: &Inst, wave: &Wave, group: &Group) -> Result<Few<Lane>, Exit> {
    let row = rows(wave, inst.memory.vaddr, 2)?;
    let offset = i64::from(inst.memory.offset) as u64;
    let place = |lane| {
        let address = double(wave, row, lane);
        let va = address.wrapping_add(offset);
        let decides = if process().has(Switch::ApertureOfSum) { va } else { address };
        match (decides >> 32) as u32 {
            high if high == group.apertures.shared => Lane::contiguous(lane, Place::Lds(va as u32)),
            high if high == group.apertures.private => scratch_lane(wave, lane, va as u32),
            _ => Lane::contiguous(lane, Place::Memory(va)),
        }
    };
    Ok(lanes(wave.exec()).map(place).collect())
}

fn has_base(operand: Operand) -> bool {
    !matches!(operand, Operand::None | Operand::Scalar(Operand::NULL))
}

fn global(inst: &Inst, wave: &Wave) -> Result<Few<Lane>, Exit> {
    let offset = i64::from(inst.memory.offset) as u64;
    let start = |lane, va: u64| Lane::contiguous(lane, Place::Memory(va));
    let base = scalar_pair(wave, inst.memory.base)?.wrapping_add(offset);
    let active = lanes(wave.exec());
    if matches!(inst.op, Op::GlobalLoadDwordAddtid | Op::GlobalStoreDwordAddtid) {
        return Ok(active.map(|lane| start(lane, base.wrapping_add(4 * lane as u64))).collect());
    }
    if has_base(inst.memory.base) {
        let row = rows(wave, inst.memory.vaddr, 1)?;
        Ok(active.map(|lane| start(lane, base.wrapping_add(word(wave, row, lane).into()))).collect())
    } else {
        let row = rows(wave, inst.memory.vaddr, 2)?;
        Ok(active.map(|lane| start(lane, double(wave, row, lane).wrapping_add(offset))).collect())
    }
}

fn scratch(inst: &Inst, wave: &Wave) -> Result<Few<Lane>, Exit> {
    let base = if has_base(inst.memory.base) { scalar(wave, inst.memory.base)? } else { 0 };
    let base = base.wrapping_add(inst.memory.offset as u32);
    let row = match inst.memory.vaddr {
        Operand::None => None,
        vaddr => Some(rows(wave, vaddr, 1)?),
    };
    let address = |lane| base.wrapping_add(row.map_or(0, |row| word(wave, row, lane)));
    Ok(lanes(wave.exec()).map(|lane| scratch_lane(wave, lane, address(lane))).collect())
}
