// SPDX-License-Identifier: GPL-2.0 OR MIT
//! DS: local data share.
//!
//! Addresses wrap at 32 bits; what is beyond the workgroup's LDS reads as zero and is not written,
//! byte by byte. Loads and stores may be unaligned, as KFD sets it; atomic operations may not.

use super::atomic::{local, Registers};
use super::kind::{ds_atomic, ds_kind, ds_source2, AtomicOp};
use super::plan::{Lane, Place, Plan};
use super::{exchange, lanes, rows, scalar, set_word, unsupported, word, Extend, Kind};
use crate::exit::{Exit, Refusal};
use crate::few::Few;
use crate::group::Group;
use crate::wave::Wave;
use crate::world::{Access, Reach, Touch, World};
use vkfd_isa::{Inst, Op, Operand};

/// Two addresses: bytes at each, and what their offsets count.
pub(crate) fn two(op: Op) -> Option<(u8, u32)> {
    Some(match op {
        Op::DsRead2B32 | Op::DsWrite2B32 | Op::DsWrxchg2RtnB32 => (4, 4),
        Op::DsRead2st64B32 | Op::DsWrite2st64B32 | Op::DsWrxchg2st64RtnB32 => (4, 256),
        Op::DsRead2B64 | Op::DsWrite2B64 | Op::DsWrxchg2RtnB64 => (8, 8),
        Op::DsRead2st64B64 | Op::DsWrite2st64B64 | Op::DsWrxchg2st64RtnB64 => (8, 512),
        _ => return None,
    })
}

/// Whether the operation is one of these.
pub(super) fn knows(op: Op) -> bool {
    let others = matches!(
        op,
        Op::DsNop
            | Op::DsSwizzleB32
            | Op::DsPermuteB32
            | Op::DsBpermuteB32
            | Op::DsAppend
            | Op::DsConsume
            | Op::DsReadAddtidB32
            | Op::DsWriteAddtidB32
    );
    let moves = matches!(ds_kind(op), Some(Kind::Load { .. } | Kind::Store { .. }));
    others || moves || two(op).is_some() || ds_source2(op).is_some() || ds_atomic(op).is_some()
}

/// Executes a DS instruction.
pub(super) fn execute<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    if inst.memory.gds {
        return Err(unsupported(inst));
    }
    match inst.op {
        Op::DsNop => return Ok(()),
        Op::DsSwizzleB32 | Op::DsPermuteB32 | Op::DsBpermuteB32 => return exchange::execute(inst, wave),
        Op::DsAppend | Op::DsConsume => return count(inst, wave, group, world),
        Op::DsReadAddtidB32 | Op::DsWriteAddtidB32 => {
            let base = (scalar(wave, Operand::Scalar(Operand::M0))? & 0xffff).wrapping_add(inst.memory.offset as u32);
            let place = |lane| Lane::contiguous(lane, Place::Lds(base.wrapping_add(4 * lane as u32)));
            let places: Few<_> = lanes(wave.exec()).map(place).collect();
            return if inst.op == Op::DsReadAddtidB32 {
                super::load(inst, wave, group, world, &places, (4, Extend::Zero))
            } else {
                super::store(inst, wave, group, world, &places, (4, false))
            };
        }
        _ => {}
    }
    if let Some((bytes, unit)) = two(inst.op) {
        return pair(inst, wave, group, world, (bytes, unit));
    }
    let address = rows(wave, inst.memory.vaddr, 1)?;
    let at = |wave: &Wave, lane| word(wave, address, lane).wrapping_add(inst.memory.offset as u32);
    match ds_kind(inst.op) {
        Some(Kind::Load { bytes, extend }) => {
            let place = |lane| Lane::contiguous(lane, Place::Lds(at(wave, lane)));
            let places: Few<_> = lanes(wave.exec()).map(place).collect();
            return super::load(inst, wave, group, world, &places, (bytes, extend));
        }
        Some(Kind::Store { bytes, high }) => {
            let place = |lane| Lane::contiguous(lane, Place::Lds(at(wave, lane)));
            let places: Few<_> = lanes(wave.exec()).map(place).collect();
            return super::store(inst, wave, group, world, &places, (bytes, high));
        }
        _ => {}
    }
    if let Some((op, wide)) = ds_source2(inst.op) {
        return source2(inst, wave, group, world, address, (op, wide));
    }
    let (op, wide) = ds_atomic(inst.op).ok_or_else(|| unsupported(inst))?;
    let registers = registers(inst, wave, op, wide)?;
    let mask = if wide { 7 } else { 3 };
    let denormals = wave.mode.denorm32_in() && wave.mode.denorm32_out();
    for lane in lanes(wave.exec()) {
        let at = at(wave, lane);
        let at = if op == AtomicOp::Condxchg { at & 0xfff8 } else { at };
        aligned(group, at, mask)?;
    }
    for lane in lanes(wave.exec()) {
        let at = at(wave, lane);
        let at = if op == AtomicOp::Condxchg { at & 0xfff8 } else { at };
        Place::Lds(at).reached(world, lane, (0, if wide { 8 } else { 4 }), Touch::Atomic);
        let (a, b) = registers.operands(wave, lane);
        let old = local(op, wide, group, at, a, b, denormals);
        registers.give(wave, lane, old);
    }
    Ok(())
}

fn aligned(group: &Group, at: u32, mask: u32) -> Result<(), Exit> {
    if at & mask != 0 {
        let va = u64::from(group.apertures.shared) << 32 | u64::from(at);
        return Err(Exit::Refused(Refusal::Aperture { va }));
    }
    Ok(())
}

fn registers(inst: &Inst, wave: &Wave, op: AtomicOp, wide: bool) -> Result<Registers, Exit> {
    let size = if wide { 2 } else { 1 };
    let mut a = rows(wave, inst.memory.data, size)?;
    let mut b = None;
    if op.has_second() {
        let second = rows(wave, inst.memory.data2, size)?;
        // cmpst has what it compares with first; gfx11's cmpstore second, as the others have their
        // second operand.
        let swapped = matches!(
            inst.op,
            Op::DsCmpstB32
                | Op::DsCmpstB64
                | Op::DsCmpstF32
                | Op::DsCmpstF64
                | Op::DsCmpstRtnB32
                | Op::DsCmpstRtnB64
                | Op::DsCmpstRtnF32
                | Op::DsCmpstRtnF64
        );
        (a, b) = if swapped { (second, Some(a)) } else { (a, Some(second)) };
    }
    let dst = match inst.dst {
        Operand::None => None,
        dst => Some(rows(wave, dst, size)?),
    };
    Ok(Registers { a, b, dst, wide })
}

/// Instructions with two addresses.
fn pair<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &mut Group,
    world: &mut W,
    (bytes, unit): (u8, u32),
) -> Result<(), Exit> {
    let address = rows(wave, inst.memory.vaddr, 1)?;
    let offsets = inst.memory.offsets.map(|offset| u32::from(offset) * unit);
    let (size, count) = (usize::from(bytes), usize::from(bytes / 4));
    let place = |lane| {
        let start = word(wave, address, lane);
        let byte = |byte: usize| {
            let (first, rest) = (offsets[usize::from(byte >= size)], if byte >= size { byte - size } else { byte });
            Place::Lds(start.wrapping_add(first)).plus(rest)
        };
        Lane { lane, places: std::array::from_fn(byte) }
    };
    let places: Few<_> = lanes(wave.exec()).map(place).collect();
    let is_read = matches!(inst.op, Op::DsRead2B32 | Op::DsRead2st64B32 | Op::DsRead2B64 | Op::DsRead2st64B64);
    let is_write = matches!(inst.op, Op::DsWrite2B32 | Op::DsWrite2st64B32 | Op::DsWrite2B64 | Op::DsWrite2st64B64);
    if is_read {
        return super::load(inst, wave, group, world, &places, (bytes * 2, Extend::Zero));
    }
    let sources = [rows(wave, inst.memory.data, count)?, rows(wave, inst.memory.data2, count)?];
    let data: Few<[u8; 16]> = places
        .iter()
        .map(|lane| {
            let mut data = [0; 16];
            for (index, piece) in data.chunks_exact_mut(4).take(2 * count).enumerate() {
                let row = sources[usize::from(index >= count)] + index % count;
                piece.copy_from_slice(&word(wave, row, lane.lane).to_le_bytes());
            }
            data
        })
        .collect();
    if is_write {
        return Plan::new(world, &places, 2 * size, Access::Write)?.write(group, &data);
    }
    // Exchanges: lane by lane, for lanes may share words.
    let dst = rows(wave, inst.dst, 2 * count)?;
    for (lane, data) in places.iter().zip(data.iter()) {
        let one = std::slice::from_ref(lane);
        let plan = Plan::new(world, one, 2 * size, Access::Write)?;
        let old = plan.read(group, 1)?;
        plan.write(group, std::slice::from_ref(data))?;
        for (index, piece) in old.iter().flat_map(|old| old.chunks_exact(4)).take(2 * count).enumerate() {
            set_word(wave, dst + index, lane.lane, u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]));
        }
    }
    Ok(())
}

/// Operations of LDS on LDS: the second address is a signed number of dwords away.
fn source2<W: World>(
    inst: &Inst,
    wave: &Wave,
    group: &mut Group,
    world: &mut W,
    address: usize,
    (op, wide): (AtomicOp, bool),
) -> Result<(), Exit> {
    let offset = inst.memory.offset as u32;
    let (mask, sign) = (if wide { 7 } else { 3 }, offset >> 15 & 1);
    let denormals = wave.mode.denorm32_in() && wave.mode.denorm32_out();
    for lane in lanes(wave.exec()) {
        let first = word(wave, address, lane);
        // With the highest bit of the offset, the distance is the upper half of the address.
        let distance = if sign != 0 { first as i32 >> 17 } else { ((offset << 17) as i32) >> 17 };
        let second = first.wrapping_add((distance as u32).wrapping_mul(4));
        aligned(group, first & mask | second & mask, mask)?;
    }
    for lane in lanes(wave.exec()) {
        let first = word(wave, address, lane);
        let distance = if sign != 0 { first as i32 >> 17 } else { ((offset << 17) as i32) >> 17 };
        let second = first.wrapping_add((distance as u32).wrapping_mul(4));
        let bytes = (0, if wide { 8 } else { 4 });
        Place::Lds(second).reached(world, lane, bytes, Touch::Read);
        Place::Lds(first).reached(world, lane, bytes, Touch::Atomic);
        // Adding nothing reads.
        let value = local(AtomicOp::Or, wide, group, second, 0, 0, true);
        local(op, wide, group, first, value, 0, denormals);
    }
    Ok(())
}

/// Append and consume: one counter, moved by the number of active lanes.
fn count<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    let dst = rows(wave, inst.dst, 1)?;
    let base = scalar(wave, Operand::Scalar(Operand::M0))? >> 16;
    let at = base.wrapping_add(inst.memory.offset as u32);
    aligned(group, at, 3)?;
    Place::Lds(at).reached(world, Reach::SCALAR.into(), (0, 4), Touch::Atomic);
    let active = u64::from(wave.exec().count_ones());
    let op = if inst.op == Op::DsAppend { AtomicOp::Add } else { AtomicOp::Sub };
    let old = local(op, false, group, at, active, 0, true);
    for lane in lanes(wave.exec()) {
        set_word(wave, dst, lane, old as u32);
    }
    Ok(())
}
