// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Instructions that reach memory, one lane at a time.
//!
//! Every instruction first finds the place of each byte of each active lane (`plan`), translates
//! all of them, and only then reads or writes. After a miss it runs again from the start. Atomic
//! operations are the host's own on the host's bytes. Finished lanes are noted in [`Wave::done`],
//! so that none is done twice.
//!
//! | module | |
//! |---|---|
//! | `kind` | what an operation does to memory, whatever its address |
//! | `plan` | places of bytes, their translation, reading and writing |
//! | `atomic` | the atomic operations |
//! | `smem`, `ds`, `exchange`, `flat`, `buffer` | the encodings: where the places are |
//! | `gws` | barriers between work-groups |
//! | `descriptor`, `format`, `small` | buffer descriptors, data formats, short floating-point numbers |
//!
//! Limits: caches do nothing, so their control does nothing. GDS, GWS' semaphores and ordered
//! counts are refused by name. No access checks the size of a lane's scratch.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]

mod atomic;
mod buffer;
mod descriptor;
mod ds;
mod exchange;
mod flat;
mod format;
pub(crate) mod gws;
mod kind;
mod plan;
mod small;
mod smem;

pub(crate) use atomic::{changes as atomic_changes, combine32, combine64, memory as atomic_memory};
pub(crate) use descriptor::{Buffer, Offsets};
pub(crate) use ds::two as ds_two;
pub(crate) use exchange::swizzle;
pub(crate) use flat::{private, scratch_base};
pub(crate) use kind::{ds_atomic, ds_kind, kept, kind, AtomicOp, Extend, Kind};
pub(crate) use small::{from_half, to_half};

use crate::exit::{Exit, Refusal};
use crate::few::Few;
use crate::group::Group;
use crate::wave::Wave;
use crate::world::{Access, Reach, Touch, World};
use plan::{Lane, Place, Plan};
use vkfd_isa::{Format, Inst, Op, Operand};

/// Executes a memory instruction; the program counter is the caller's.
///
/// # Errors
/// [`Exit::Miss`] and [`Exit::Refused`]: registers and memory are as before, but for lanes in
/// [`Wave::done`].
pub fn execute<W: World>(inst: &Inst, wave: &mut Wave, group: &mut Group, world: &mut W) -> Result<(), Exit> {
    match inst.format {
        Format::Smem => smem::execute(inst, wave, world),
        Format::Ds if gws::knows(inst.op) => gws::execute(inst, wave, world),
        Format::Ds => ds::execute(inst, wave, group, world),
        Format::Flat | Format::Global | Format::Scratch => flat::execute(inst, wave, group, world),
        Format::Mubuf | Format::Mtbuf => buffer::execute(inst, wave, group, world),
        _ => Err(unsupported(inst)),
    }
}

/// Whether the operation is implemented.
pub(crate) fn knows(op: Op) -> bool {
    kind(op).is_some() || ds::knows(op) || smem::knows(op)
}

fn unsupported(inst: &Inst) -> Exit {
    Exit::Refused(Refusal::Unsupported(inst.op))
}

const REGISTER: Exit = Exit::Refused(Refusal::Register);

/// The lanes of a mask.
fn lanes(mask: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |lane| mask >> lane & 1 != 0)
}

/// The row of a vector register, checked that `count` of them exist.
fn rows(wave: &Wave, operand: Operand, count: usize) -> Result<usize, Exit> {
    let (first, end) = match operand {
        // Of one file, the accumulation registers are the second part.
        Operand::Vgpr(index) if wave.target.is_cdna() => (usize::from(index), usize::from(wave.acc)),
        Operand::Vgpr(index) => (usize::from(index), wave.rows.len()),
        Operand::Agpr(index) => (usize::from(wave.acc) + usize::from(index), wave.rows.len()),
        _ => return Err(REGISTER),
    };
    if first + count > end.min(wave.rows.len()) {
        return Err(REGISTER);
    }
    Ok(first)
}

/// A lane's word of a row; the row exists.
fn word(wave: &Wave, row: usize, lane: usize) -> u32 {
    wave.rows.get(row).and_then(|row| row.0.get(lane)).copied().unwrap_or(0)
}

fn double(wave: &Wave, row: usize, lane: usize) -> u64 {
    u64::from(word(wave, row, lane)) | u64::from(word(wave, row + 1, lane)) << 32
}

fn set_word(wave: &mut Wave, row: usize, lane: usize, value: u32) {
    if let Some(slot) = wave.rows.get_mut(row).and_then(|row| row.0.get_mut(lane)) {
        *slot = value;
    }
}

/// The value of a scalar operand of an address.
fn scalar(wave: &Wave, operand: Operand) -> Result<u32, Exit> {
    match operand {
        Operand::None => Ok(0),
        Operand::Scalar(index) => wave.scalar.get(usize::from(index)).copied().ok_or(REGISTER),
        Operand::Int(value) => Ok(i32::from(value) as u32),
        Operand::Literal(value) => Ok(value),
        _ => Err(REGISTER),
    }
}

/// Two scalar registers.
fn scalar_pair(wave: &Wave, operand: Operand) -> Result<u64, Exit> {
    match operand {
        Operand::None | Operand::Scalar(Operand::NULL) => Ok(0),
        Operand::Scalar(index) if index < 127 => Ok(wave.pair(index)),
        _ => Err(REGISTER),
    }
}

/// How many registers a result of `bytes` takes.
fn words(bytes: u8) -> usize {
    usize::from(bytes).div_ceil(4)
}

/// Loads what lies at the places into the destination.
fn load<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &Group,
    world: &mut W,
    lanes: &[Lane],
    (bytes, extend): (u8, Extend),
) -> Result<(), Exit> {
    let status = usize::from(inst.memory.tfe);
    let row = rows(wave, inst.dst, words(bytes) + status)?;
    let data = Plan::new(world, lanes, usize::from(bytes), Access::Read)?.read(group, lanes.len())?;
    let kept = kind::kept(wave.target);
    for (lane, data) in lanes.iter().zip(data.iter()) {
        for (index, piece) in data.chunks_exact(4).take(words(bytes)).enumerate() {
            let value = u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]);
            let value = extend.apply(value, bytes, kept & word(wave, row + index, lane.lane));
            set_word(wave, row + index, lane.lane, value);
        }
        if inst.memory.tfe {
            // Nothing here is partially resident.
            set_word(wave, row + words(bytes), lane.lane, 0);
        }
    }
    Ok(())
}

/// Stores the data registers to the places.
fn store<W: World>(
    inst: &Inst,
    wave: &Wave,
    group: &mut Group,
    world: &mut W,
    lanes: &[Lane],
    (bytes, high): (u8, bool),
) -> Result<(), Exit> {
    let row = rows(wave, inst.memory.data, words(bytes))?;
    let data: Few<[u8; 16]> = lanes
        .iter()
        .map(|lane| {
            let mut data = [0; 16];
            for (index, piece) in data.chunks_exact_mut(4).take(words(bytes)).enumerate() {
                let value = word(wave, row + index, lane.lane);
                piece.copy_from_slice(&(if high { value >> 16 } else { value }).to_le_bytes());
            }
            data
        })
        .collect();
    Plan::new(world, lanes, usize::from(bytes), Access::Write)?.write(group, &data)
}

/// Loads into LDS: a word for each lane, in the lanes' order, from M0 and the offset on.
fn load_to_lds<W: World>(
    inst: &Inst,
    wave: &Wave,
    group: &mut Group,
    world: &mut W,
    lanes: &[Lane],
    (bytes, extend): (u8, Extend),
) -> Result<(), Exit> {
    let data = Plan::new(world, lanes, usize::from(bytes), Access::Read)?.read(group, lanes.len())?;
    let base = scalar(wave, Operand::Scalar(Operand::M0))? & 0xffff;
    for (lane, data) in lanes.iter().zip(data.iter()) {
        for (index, piece) in data.chunks_exact(4).take(words(bytes)).enumerate() {
            let value = extend.apply(u32::from_le_bytes([piece[0], piece[1], piece[2], piece[3]]), bytes, 0);
            let lane = (lane.lane * words(bytes) + index) as u32 * 4;
            let at = base.wrapping_add(inst.memory.offset as u32).wrapping_add(lane);
            Place::Lds(at).reached(world, usize::from(Reach::SCALAR), (0, 4), Touch::Write);
            let at = at as usize;
            if let Some(slot) = group.lds.get_mut(at..at.saturating_add(4)) {
                slot.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    Ok(())
}

/// The operations that flat and buffer addresses have in common.
fn transfer<W: World>(
    kind: Kind,
    inst: &Inst,
    wave: &mut Wave,
    group: &mut Group,
    world: &mut W,
    lanes: &[Lane],
) -> Result<(), Exit> {
    match kind {
        Kind::Load { bytes, extend } if inst.memory.lds => {
            load_to_lds(inst, wave, group, world, lanes, (bytes, extend))
        }
        Kind::ToLds { bytes, extend } => load_to_lds(inst, wave, group, world, lanes, (bytes, extend)),
        Kind::Load { bytes, extend } => load(inst, wave, group, world, lanes, (bytes, extend)),
        Kind::Store { bytes, high } => store(inst, wave, group, world, lanes, (bytes, high)),
        Kind::Atomic { op, wide } => atomic::execute(inst, wave, group, world, lanes, (op, wide)),
        Kind::Nothing => Ok(()),
        Kind::Format { .. } | Kind::FromLds => Err(unsupported(inst)),
    }
}
