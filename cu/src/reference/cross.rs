// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations that look at several lanes or name registers in other ways: lane access,
//! permutations, relative registers, exchange, accumulation registers, results of odd shapes.

use super::kind::{low32, Kind};
use super::operand::{self, lane, row, set_lane, set_scalar, uniform, whole};
use super::vop3::quad32;
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Row, Wave, LANES};
use vkfd_isa::{Inst, Op, Operand};

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    handler(op).is_some()
}

type Handler = fn(&Inst, &mut Wave, &Group) -> Result<(), Exit>;

fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::VNop | Op::VPipeflush | Op::VClrexcp => |_, _, _| Ok(()),
        Op::VReadfirstlaneB32 => read_first_lane,
        Op::VReadlaneB32 => read_lane,
        Op::VWritelaneB32 => write_lane,
        Op::VSwapB32 => swap,
        Op::VMovrelsB32 => |inst, wave, group| relative(inst, wave, group, [false, true], false),
        Op::VMovreldB32 => |inst, wave, group| relative(inst, wave, group, [true, false], false),
        Op::VMovrelsdB32 => |inst, wave, group| relative(inst, wave, group, [true, true], false),
        Op::VMovrelsd2B32 => |inst, wave, group| relative(inst, wave, group, [true, true], true),
        Op::VSwaprelB32 => swap_relative,
        Op::VAccvgprReadB32 | Op::VAccvgprWriteB32 | Op::VAccvgprMovB32 => copy,
        Op::VMqsadU32U8 => masked_quad,
        Op::VPermlane16B32 => |inst, wave, group| permute16(inst, wave, group, false),
        Op::VPermlanex16B32 => |inst, wave, group| permute16(inst, wave, group, true),
        Op::VPermlane64B32 => permute64,
        _ => return None,
    })
}

/// Executes one of these; nothing if the operation is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    handler(inst.op).map(|handler| handler(inst, wave, group))
}

fn m0(wave: &Wave) -> u32 {
    wave.scalar.get(usize::from(Operand::M0)).copied().unwrap_or(0)
}

/// One lane of a vector source; other sources are the same in every lane.
fn source_lane(wave: &Wave, group: &Group, src: Operand, at: usize) -> Result<u32, Exit> {
    match src {
        Operand::Vgpr(_) | Operand::Agpr(_) => Ok(lane(wave, row(wave, src, 1)?, at)),
        _ => Ok(low32(uniform(wave, group, src, Kind::B32)?)),
    }
}

fn read_first_lane(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    // With no lane active it is lane 0.
    let exec = wave.exec();
    let first = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
    let value = source_lane(wave, group, src, first)?;
    set_scalar(wave, inst.dst, Kind::B32, value.into())
}

/// The lane that the second source selects.
fn selected(inst: &Inst, wave: &Wave, group: &Group) -> Result<usize, Exit> {
    let [_, select, _] = inst.src;
    let lanes = u64::from(wave.lanes.max(1));
    let select = match select {
        Operand::Vgpr(_) => source_lane(wave, group, select, 0)?.into(),
        _ => uniform(wave, group, select, Kind::B32)?,
    };
    Ok(usize::try_from(select % lanes.next_power_of_two()).unwrap_or(0))
}

fn read_lane(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let value = source_lane(wave, group, src, selected(inst, wave, group)?)?;
    set_scalar(wave, inst.dst, Kind::B32, value.into())
}

fn write_lane(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let value = low32(uniform(wave, group, src, Kind::B32)?);
    let at = selected(inst, wave, group)?;
    let row = row(wave, inst.dst, 1)?;
    set_lane(wave, row, at, value);
    Ok(())
}

/// Replaces the active lanes of a row.
fn merge(wave: &mut Wave, row: usize, values: &Row) {
    let exec = wave.exec();
    for (at, &value) in values.0.iter().enumerate() {
        if exec >> at & 1 == 1 {
            set_lane(wave, row, at, value);
        }
    }
}

fn exchange(wave: &mut Wave, a: usize, b: usize) {
    let (first, second) = (whole(wave, a), whole(wave, b));
    merge(wave, a, &second);
    merge(wave, b, &first);
}

fn swap(inst: &Inst, wave: &mut Wave, _: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let (a, b) = (row(wave, inst.dst, 1)?, row(wave, src, 1)?);
    exchange(wave, a, b);
    Ok(())
}

/// A vector register `by` further on.
fn further(operand: Operand, by: u32) -> Operand {
    let by = u16::try_from(by.min(0x8000)).unwrap_or(0x8000);
    match operand {
        Operand::Vgpr(n) => Operand::Vgpr(n.saturating_add(by)),
        other => other,
    }
}

/// M0's two offsets, of source and destination, if it has two.
fn offsets(wave: &Wave, two: bool) -> [u32; 2] {
    let m0 = m0(wave);
    if two {
        [m0 & 0x3ff, m0 >> 16 & 0x3ff]
    } else {
        [m0; 2]
    }
}

fn relative(
    inst: &Inst,
    wave: &mut Wave,
    group: &Group,
    [dst_moves, src_moves]: [bool; 2],
    two: bool,
) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let [src_by, dst_by] = offsets(wave, two);
    let src = if src_moves { further(src, src_by) } else { src };
    let dst = if dst_moves { further(inst.dst, dst_by) } else { inst.dst };
    let values = operand::source(wave, group, src, Kind::B32)?;
    let row = row(wave, dst, 1)?;
    merge(wave, row, &Row(values.map(low32)));
    Ok(())
}

fn swap_relative(inst: &Inst, wave: &mut Wave, _: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let [src_by, dst_by] = offsets(wave, true);
    let a = row(wave, further(inst.dst, dst_by), 1)?;
    let b = row(wave, further(src, src_by), 1)?;
    exchange(wave, a, b);
    Ok(())
}

fn copy(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let values = operand::source(wave, group, src, Kind::B32)?;
    let row = row(wave, inst.dst, 1)?;
    merge(wave, row, &Row(values.map(low32)));
    Ok(())
}

fn masked_quad(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [a, b, c] = inst.src;
    let a = operand::source(wave, group, a, Kind::B64)?;
    let b = operand::source(wave, group, b, Kind::B32)?;
    let c = row(wave, c, 4)?;
    let dst = row(wave, inst.dst, 4)?;
    let mut rows = [Row::ZERO; 4];
    for (at, (&a, &b)) in a.iter().zip(&b).enumerate() {
        let sums = quad32(a, b, [0, 1, 2, 3].map(|n| lane(wave, c + n, at)));
        for (row, sum) in rows.iter_mut().zip(sums) {
            if let Some(slot) = row.0.get_mut(at) {
                *slot = sum;
            }
        }
    }
    for (n, row) in rows.iter().enumerate() {
        merge(wave, dst + n, row);
    }
    Ok(())
}

/// Lanes of a row of 16 (or of the other one of the pair) by selectors of four bits each.
fn permute16(inst: &Inst, wave: &mut Wave, group: &Group, other: bool) -> Result<(), Exit> {
    let [src, low, high] = inst.src;
    let src = row(wave, src, 1)?;
    let selectors = uniform(wave, group, low, Kind::B32)? | uniform(wave, group, high, Kind::B32)? << 32;
    let dst = row(wave, inst.dst, 1)?;
    let (fetch_inactive, bound_ctrl) = (inst.mods.op_sel & 1 != 0, inst.mods.op_sel & 2 != 0);
    let exec = wave.exec();
    let old = whole(wave, dst);
    let mut values = old;
    for (at, value) in values.0.iter_mut().enumerate().take(usize::from(wave.lanes).min(LANES)) {
        let select = usize::try_from(selectors >> (4 * (at & 15)) & 15).unwrap_or(0);
        let from = (at & !15) ^ if other { 16 } else { 0 } | select;
        if fetch_inactive || exec >> from & 1 == 1 {
            *value = lane(wave, src, from);
        } else if bound_ctrl {
            *value = 0;
        }
    }
    merge(wave, dst, &values);
    Ok(())
}

/// Exchanges the halves of a wave of 64; a wave of 32 is left as it is.
fn permute64(inst: &Inst, wave: &mut Wave, _: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let (src, dst) = (row(wave, src, 1)?, row(wave, inst.dst, 1)?);
    if wave.lanes == 32 {
        return Ok(());
    }
    let mut values = Row::ZERO;
    for (at, value) in values.0.iter_mut().enumerate() {
        *value = lane(wave, src, at ^ 32);
    }
    merge(wave, dst, &values);
    Ok(())
}
