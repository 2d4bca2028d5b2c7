// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plain loads and stores of memory and of LDS: where each lane's bytes are is found here, and the
//! fast engine does them. The reference engine keeps all others: atomic operations, scratch,
//! buffers, scalars, and lanes in different apertures.

use crate::few::Few;
use crate::group::Group;
use crate::reference::memory::{ds_kind, ds_two, kind, Kind};
use crate::reference::operand;
use crate::wave::Wave;
use crate::world::{Reach, Spot, Touch};
use vkfd_isa::{Format, Inst, Op, Operand};

/// Most pieces that an instruction reaches: bytes of 64 lanes, and words of LDS beside them.
pub(super) const MOST: usize = 64 * 20;

/// The pieces that an instruction reaches.
pub(super) type Reaches = Few<Reach, MOST>;

/// A range that has all bytes that a plain load or store of consecutive bytes in LDS, or at a base
/// in scalar registers, will reach. None if it is another instruction.
pub(super) fn range(inst: &Inst, wave: &Wave) -> Option<(Spot, u64)> {
    if wave.done != 0 || wave.mode.0 & 3 << 27 != 0 {
        return None;
    }
    let memory = &inst.memory;
    let (bytes, first, last) = match inst.format {
        Format::Ds => {
            let (bytes, offsets, _) = of_lds(inst)?;
            (bytes, u64::from(offsets[0].min(offsets[1])), u64::from(offsets[0].max(offsets[1])))
        }
        Format::Global => {
            let (bytes, base, _) = of_memory(inst, wave)?;
            (bytes, base?, base?)
        }
        _ => return None,
    };
    let row = &wave.rows.get(operand::row(wave, memory.vaddr, 1).ok()?)?.0;
    let exec = wave.exec();
    // Without branches: a compiler makes vectors of it.
    let (mut least, mut most) = (u32::MAX, 0);
    for (lane, value) in row.iter().enumerate() {
        let mask = if exec >> lane & 1 == 1 { u32::MAX } else { 0 };
        least = least.min(value | !mask);
        most = most.max(value & mask);
    }
    let start = first.checked_add(least.into())?;
    let end = last.checked_add(most.into())?.checked_add(bytes.into())?;
    let spot = match inst.format {
        Format::Ds => Spot::Lds(u32::try_from(start).ok()?),
        _ => Spot::Memory(start),
    };
    (exec != 0).then_some((spot, end.checked_sub(start)?))
}

/// Finds the bytes that an instruction will reach, in the order of the lanes; `false`: it is none
/// of these.
pub(super) fn places(inst: &Inst, wave: &Wave, group: &Group, reaches: &mut Reaches) -> bool {
    reaches.clear();
    if wave.done != 0 || wave.mode.0 & 3 << 27 != 0 {
        return false;
    }
    let found = match inst.format {
        Format::Global | Format::Flat => memory(inst, wave, group, reaches),
        Format::Ds => lds(inst, wave, reaches),
        _ => None,
    };
    if found.is_none() {
        reaches.clear();
    }
    found.is_some()
}

fn moved(kind: Option<Kind>) -> Option<(u8, Touch)> {
    match kind? {
        Kind::Load { bytes, .. } => Some((bytes, Touch::Read)),
        Kind::Store { bytes, .. } => Some((bytes, Touch::Write)),
        _ => None,
    }
}

/// The active lanes.
fn lanes(wave: &Wave) -> impl Iterator<Item = (u8, usize)> {
    let exec = wave.exec();
    (0..64u8).zip(0usize..).filter(move |(lane, _)| exec >> lane & 1 == 1)
}

/// Bytes of a lane, the base and the offset if there is a base, and what is done.
fn of_memory(inst: &Inst, wave: &Wave) -> Option<(u8, Option<u64>, Touch)> {
    let memory = &inst.memory;
    let (bytes, touch) = moved(kind(inst.op))?;
    if memory.lds || memory.tfe || matches!(inst.op, Op::GlobalLoadDwordAddtid | Op::GlobalStoreDwordAddtid) {
        return None;
    }
    let offset = i64::from(memory.offset);
    let base = match memory.base {
        Operand::None | Operand::Scalar(Operand::NULL) => None,
        Operand::Scalar(n) if n < 127 && inst.format == Format::Global => {
            Some(wave.pair(n).wrapping_add_signed(offset))
        }
        _ => return None,
    };
    Some((bytes, base, touch))
}

fn memory(inst: &Inst, wave: &Wave, group: &Group, reaches: &mut Reaches) -> Option<()> {
    let memory = &inst.memory;
    let (bytes, base, touch) = of_memory(inst, wave)?;
    let offset = i64::from(memory.offset);
    let row = operand::row(wave, memory.vaddr, if base.is_some() { 1 } else { 2 }).ok()?;
    let low = &wave.rows.get(row)?.0;
    let high = &wave.rows.get(row + 1).unwrap_or(wave.rows.get(row)?).0;
    for (lane, at) in lanes(wave) {
        let (low, high) = (u64::from(*low.get(at)?), *high.get(at)?);
        let va = match base {
            Some(base) => base.wrapping_add(low),
            None if inst.format == Format::Flat
                && [group.apertures.shared, group.apertures.private].contains(&high) =>
            {
                return None;
            }
            None => (low | u64::from(high) << 32).wrapping_add_signed(offset),
        };
        reaches.push(Reach { lane, at: 0, len: bytes, touch, spot: Spot::Memory(va) });
    }
    Some(())
}

/// Bytes at a place, the offsets of two places, and what is done.
fn of_lds(inst: &Inst) -> Option<(u8, [u32; 2], Touch)> {
    let memory = &inst.memory;
    if memory.gds || matches!(inst.op, Op::DsReadAddtidB32 | Op::DsWriteAddtidB32) {
        return None;
    }
    // One place, or two: the bytes at each, and their offsets.
    Some(match (ds_two(inst.op), ds_kind(inst.op)) {
        (Some(_), _) if inst.op.name().contains("xchg") => return None,
        (Some((bytes, unit)), _) => {
            let is_load = memory.data == Operand::None;
            let offsets = memory.offsets.map(|offset| u32::from(offset) * unit);
            (bytes, [offsets[0], offsets[1]], if is_load { Touch::Read } else { Touch::Write })
        }
        (None, of) => {
            let (bytes, touch) = moved(of)?;
            let offset = u32::try_from(memory.offset).ok()?;
            (bytes, [offset, offset], touch)
        }
    })
}

fn lds(inst: &Inst, wave: &Wave, reaches: &mut Reaches) -> Option<()> {
    let memory = &inst.memory;
    let (bytes, offsets, touch) = of_lds(inst)?;
    let row = operand::row(wave, memory.vaddr, 1).ok()?;
    let address = &wave.rows.get(row)?.0;
    let [first, second] = offsets;
    let is_pair = ds_two(inst.op).is_some();
    // What lies together is one piece.
    let together = is_pair && second == first.wrapping_add(bytes.into());
    for (lane, at) in lanes(wave) {
        let address = *address.get(at)?;
        let len = if together { 2 * bytes } else { bytes };
        let spot = Spot::Lds(address.wrapping_add(first));
        reaches.push(Reach { lane, at: 0, len, touch, spot });
        if is_pair && !together {
            let spot = Spot::Lds(address.wrapping_add(second));
            reaches.push(Reach { lane, at: bytes, len: bytes, touch, spot });
        }
    }
    Some(())
}
