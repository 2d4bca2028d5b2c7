// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MUBUF and MTBUF: buffers with a descriptor.

use super::descriptor::{Buffer, Offsets};
use super::format::DataFormat;
use super::kind::{kept, Half};
use super::plan::{Lane, Place, Plan};
use super::{kind, lanes, rows, scalar, set_word, transfer, unsupported, word, Kind, REGISTER};
use crate::exit::Exit;
use crate::few::Few;
use crate::group::Group;
use crate::wave::Wave;
use crate::world::{Access, Reach, Touch, World};
use vkfd_isa::{Format, Inst, Operand};

/// Executes a buffer instruction.
pub(super) fn execute<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    let kind = kind(inst.op).ok_or_else(|| unsupported(inst))?;
    if kind == Kind::Nothing {
        return Ok(());
    }
    let buffer = Buffer::load(wave, inst.memory.base).ok_or(REGISTER)?;
    match kind {
        Kind::Format { store, channels, half } => {
            let encoded = if inst.format == Format::Mtbuf { inst.memory.format } else { buffer.format };
            let format = DataFormat::decode(wave.target, encoded);
            let select = if inst.format == Format::Mtbuf || store { [4, 5, 6, 7] } else { buffer.select };
            if store {
                store_format(inst, wave, group, world, &buffer, (format, channels, half))
            } else {
                load_format(inst, wave, group, world, &buffer, (format, channels, half, select))
            }
        }
        Kind::FromLds => {
            let lanes = places(inst, wave, &buffer, 4)?;
            let base = (scalar(wave, Operand::Scalar(Operand::M0))? & 0xffff).wrapping_add(inst.memory.offset as u32);
            let data: Few<[u8; 16]> = lanes
                .iter()
                .map(|lane| {
                    let at = base.wrapping_add(4 * lane.lane as u32);
                    Place::Lds(at).reached(world, usize::from(Reach::SCALAR), (0, 4), Touch::Read);
                    let at = at as usize;
                    std::array::from_fn(|byte| group.lds.get(at + byte).copied().filter(|_| byte < 4).unwrap_or(0))
                })
                .collect();
            Plan::new(world, &lanes, 4, Access::Write)?.write(group, &data)
        }
        Kind::Load { bytes, .. } | Kind::Store { bytes, .. } | Kind::ToLds { bytes, .. } => {
            let lanes = places(inst, wave, &buffer, u32::from(bytes).min(4))?;
            transfer(kind, inst, wave, group, world, &lanes)
        }
        Kind::Atomic { wide, .. } => {
            let lanes = places(inst, wave, &buffer, if wide { 8 } else { 4 })?;
            transfer(kind, inst, wave, group, world, &lanes)
        }
        Kind::Nothing => Ok(()),
    }
}

/// The places of each lane's bytes, in range by units.
fn places(inst: &Inst, wave: &Wave, buffer: &Buffer, unit: u32) -> Result<Few<Lane>, Exit> {
    let memory = &inst.memory;
    let count = usize::from(memory.idxen) + usize::from(memory.offen);
    let row = if count == 0 { 0 } else { rows(wave, memory.vaddr, count)? };
    let scalar = scalar(wave, memory.soffset)?;
    let immediate = memory.offset as u32;
    let place = |lane| {
        let index = memory.idxen.then(|| word(wave, row, lane));
        let vector = if memory.offen { word(wave, row + usize::from(memory.idxen), lane) } else { 0 };
        buffer.places(lane, Offsets { index, offset: vector.wrapping_add(immediate), scalar }, unit)
    };
    Ok(lanes(wave.exec()).map(place).collect())
}

/// Registers that hold `channels`.
fn registers(channels: u8, half: Half) -> usize {
    match half {
        Half::No => channels.into(),
        Half::Low => usize::from(channels).div_ceil(2),
        Half::High => 1,
    }
}

fn load_format<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &Group,
    world: &mut W,
    buffer: &Buffer,
    (format, channels, half, select): (Option<DataFormat>, u8, Half, [u8; 4]),
) -> Result<(), Exit> {
    let status = usize::from(inst.memory.tfe);
    let row = rows(wave, inst.dst, registers(channels, half) + status)?;
    // An invalid format reads as zeros.
    let bytes = format.map_or(0, |format| format.bytes_of(channels));
    let lanes = places(inst, wave, buffer, (bytes as u32).max(1))?;
    let data = Plan::new(world, &lanes, bytes, Access::Read)?.read(group, lanes.len())?;
    let kept = kept(wave.target);
    for (lane, data) in lanes.iter().zip(data.iter()) {
        let inside = bytes != 0 && lane.places[0] != Place::Nowhere;
        let values = format.filter(|_| inside).map_or([0; 4], |format| format.unpack(data, select));
        for channel in 0..usize::from(channels) {
            let value = values.get(channel).copied().unwrap_or(0);
            let short = format.map_or(0, |format| format.shorten(value));
            let (row, value) = match half {
                Half::No => (row + channel, value),
                Half::Low => {
                    let row = row + channel / 2;
                    let old = word(wave, row, lane.lane);
                    let low = kept & old & 0xffff_0000 | short;
                    (row, if channel % 2 == 0 { low } else { old & 0xffff | short << 16 })
                }
                Half::High => (row, kept & word(wave, row, lane.lane) & 0xffff | short << 16),
            };
            set_word(wave, row, lane.lane, value);
        }
        if inst.memory.tfe {
            set_word(wave, row + registers(channels, half), lane.lane, 0);
        }
    }
    Ok(())
}

fn store_format<W: World>(
    inst: &Inst,
    wave: &Wave,
    group: &mut Group,
    world: &mut W,
    buffer: &Buffer,
    (format, channels, half): (Option<DataFormat>, u8, Half),
) -> Result<(), Exit> {
    let row = rows(wave, inst.memory.data, registers(channels, half))?;
    let Some(format) = format else { return Ok(()) };
    let bytes = format.bytes_of(4);
    let lanes = places(inst, wave, buffer, bytes as u32)?;
    let data: Few<[u8; 16]> = lanes
        .iter()
        .map(|lane| {
            let mut values = [0; 4];
            for (channel, slot) in values.iter_mut().enumerate().take(channels.into()) {
                *slot = match half {
                    Half::No => word(wave, row + channel, lane.lane),
                    Half::Low => format.lengthen(word(wave, row + channel / 2, lane.lane) >> (channel % 2 * 16)),
                    Half::High => format.lengthen(word(wave, row, lane.lane) >> 16),
                };
            }
            format.pack(values)
        })
        .collect();
    Plan::new(world, &lanes, bytes, Access::Write)?.write(group, &data)
}
