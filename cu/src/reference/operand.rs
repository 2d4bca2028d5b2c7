// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operands: what a source is worth, where a destination goes.

use super::kind::{low32, Kind};
use crate::exit::{Exit, Refusal};
use crate::group::Group;
use crate::wave::{Row, Wave, LANES};
use vkfd_isa::{Operand, Special};

/// The wave has no such register.
pub(crate) const NO_REGISTER: Exit = Exit::Refused(Refusal::Register);

/// Row of a vector register; `words` registers from there on exist.
pub(crate) fn row(wave: &Wave, operand: Operand, words: u16) -> Result<usize, Exit> {
    let rows = wave.rows.len();
    let split = usize::from(wave.acc).min(rows);
    let (first, end) = match operand {
        Operand::Vgpr(n) if wave.target.is_cdna() => (usize::from(n), split),
        Operand::Vgpr(n) => (usize::from(n), rows),
        Operand::Agpr(n) => (split + usize::from(n), rows),
        _ => return Err(NO_REGISTER),
    };
    if first + usize::from(words) <= end {
        Ok(first)
    } else {
        Err(NO_REGISTER)
    }
}

/// One lane of a row.
pub(crate) fn lane(wave: &Wave, row: usize, lane: usize) -> u32 {
    wave.rows.get(row).and_then(|row| row.0.get(lane)).copied().unwrap_or(0)
}

/// A whole row.
pub(crate) fn whole(wave: &Wave, row: usize) -> Row {
    wave.rows.get(row).copied().unwrap_or(Row::ZERO)
}

/// Writes one lane of a row.
pub(crate) fn set_lane(wave: &mut Wave, row: usize, lane: usize, value: u32) {
    if let Some(slot) = wave.rows.get_mut(row).and_then(|row| row.0.get_mut(lane)) {
        *slot = value;
    }
}

/// A scalar register's number if the wave has `words` registers from there on.
pub(crate) fn scalar_index(wave: &Wave, n: u8, words: u8) -> Result<u8, Exit> {
    let sgprs = if wave.target.is_gfx9() { 102.min(wave.sgprs) } else { 106 };
    // FLAT_SCRATCH and XNACK_MASK lie between a gfx9 wave's SGPRs and VCC.
    let special = n >= if wave.target.is_gfx9() { Operand::FLAT_SCRATCH } else { 106 };
    if special && u16::from(n) + u16::from(words) <= 128 || u16::from(n) + u16::from(words) <= u16::from(sgprs) {
        Ok(n)
    } else {
        Err(NO_REGISTER)
    }
}

/// An inline floating-point constant as `kind` has it.
pub(crate) fn inline_float(code: u8, kind: Kind) -> u64 {
    // Sign, exponent of two; 1/(2 pi) is a number of its own in each format.
    let (half, single, double): (u64, u64, u64) = match code {
        240 => (0x3800, 0x3f00_0000, 0x3fe0_0000_0000_0000),
        241 => (0xb800, 0xbf00_0000, 0xbfe0_0000_0000_0000),
        242 => (0x3c00, 0x3f80_0000, 0x3ff0_0000_0000_0000),
        243 => (0xbc00, 0xbf80_0000, 0xbff0_0000_0000_0000),
        244 => (0x4000, 0x4000_0000, 0x4000_0000_0000_0000),
        245 => (0xc000, 0xc000_0000, 0xc000_0000_0000_0000),
        246 => (0x4400, 0x4080_0000, 0x4010_0000_0000_0000),
        247 => (0xc400, 0xc080_0000, 0xc010_0000_0000_0000),
        248 => (0x3118, 0x3e22_f983, 0x3fc4_5f30_6dc9_c882),
        _ => (0, 0, 0),
    };
    match kind {
        Kind::F16 | Kind::Pair16 => half,
        Kind::B64 | Kind::I64 | Kind::U64 | Kind::F64 => double,
        _ => single,
    }
}

fn special(wave: &Wave, group: &Group, special: Special) -> Result<u64, Exit> {
    Ok(match special {
        // 64-bit reads take the aperture's whole address; 32-bit reads its high half.
        Special::SharedBase => u64::from(group.apertures.shared) << 32,
        Special::SharedLimit => u64::from(group.apertures.shared) << 32 | 0xffff_ffff,
        Special::PrivateBase => u64::from(group.apertures.private) << 32,
        Special::PrivateLimit => u64::from(group.apertures.private) << 32 | 0xffff_ffff,
        Special::PopsExitingWaveId => 0,
        Special::Vccz => u64::from(wave.vcc() & wave.all() == 0),
        Special::Execz => u64::from(wave.exec() == 0),
        Special::Scc => u64::from(wave.scc),
        Special::LdsDirect => return Err(NO_REGISTER),
    })
}

/// A source that is the same in every lane.
pub(crate) fn uniform(wave: &Wave, group: &Group, operand: Operand, kind: Kind) -> Result<u64, Exit> {
    let wide = kind.bits() == 64;
    Ok(match operand {
        Operand::None => 0,
        Operand::Scalar(Operand::NULL) => 0,
        Operand::Scalar(n) if wide => wave.pair(scalar_index(wave, n, 2)?),
        Operand::Scalar(n) => wave.scalar.get(usize::from(scalar_index(wave, n, 1)?)).copied().map_or(0, u64::from),
        Operand::Int(n) => {
            let value = i64::from(n) as u64;
            match kind {
                Kind::Pair32 => u64::from(low32(value)),
                _ if wide => value,
                _ => u64::from(low32(value)),
            }
        }
        Operand::Float(code) => inline_float(code, kind),
        Operand::Literal(word) => match kind {
            Kind::F64 => u64::from(word) << 32,
            Kind::I64 => i64::from(word as i32) as u64,
            _ => u64::from(word),
        },
        Operand::Special(which) => {
            let value = special(wave, group, which)?;
            let aperture = matches!(
                which,
                Special::SharedBase | Special::SharedLimit | Special::PrivateBase | Special::PrivateLimit
            );
            if aperture && !wide {
                value >> 32
            } else {
                value
            }
        }
        Operand::Vgpr(_) | Operand::Agpr(_) => return Err(NO_REGISTER),
    })
}

/// A source, one value a lane, before modifiers.
pub(crate) fn source(wave: &Wave, group: &Group, operand: Operand, kind: Kind) -> Result<[u64; LANES], Exit> {
    if !matches!(operand, Operand::Vgpr(_) | Operand::Agpr(_)) {
        return Ok([uniform(wave, group, operand, kind)?; LANES]);
    }
    let first = row(wave, operand, kind.words())?;
    let mut values = [0; LANES];
    for (at, value) in values.iter_mut().enumerate() {
        *value = u64::from(lane(wave, first, at));
        if kind.words() > 1 {
            *value |= u64::from(lane(wave, first + 1, at)) << 32;
        }
    }
    Ok(values)
}

/// Writes a scalar destination of 32 or 64 bits.
pub(crate) fn set_scalar(wave: &mut Wave, operand: Operand, kind: Kind, value: u64) -> Result<(), Exit> {
    let Operand::Scalar(n) = operand else {
        return if operand == Operand::None { Ok(()) } else { Err(NO_REGISTER) };
    };
    if n == Operand::NULL {
        return Ok(());
    }
    if kind.bits() == 64 {
        let n = scalar_index(wave, n, 2)?;
        wave.set_pair(n, value);
    } else {
        let n = scalar_index(wave, n, 1)?;
        if let Some(slot) = wave.scalar.get_mut(usize::from(n)) {
            *slot = low32(value);
        }
    }
    Ok(())
}

/// Whether a scalar destination can be written, checked before anything changes.
pub(crate) fn check_scalar(wave: &Wave, operand: Operand, kind: Kind) -> Result<(), Exit> {
    match operand {
        Operand::None | Operand::Scalar(Operand::NULL) => Ok(()),
        Operand::Scalar(n) => scalar_index(wave, n, if kind.bits() == 64 { 2 } else { 1 }).map(|_| ()),
        _ => Err(NO_REGISTER),
    }
}

/// A mask with a bit for each lane, from a scalar register: 32 or 64 bits as the wave has lanes.
pub(crate) fn mask(wave: &Wave, group: &Group, operand: Operand) -> Result<u64, Exit> {
    let kind = if wave.lanes == 32 { Kind::B32 } else { Kind::B64 };
    uniform(wave, group, operand, kind)
}

/// Writes a mask with a bit for each lane.
pub(crate) fn set_mask(wave: &mut Wave, operand: Operand, value: u64) -> Result<(), Exit> {
    let kind = if wave.lanes == 32 { Kind::B32 } else { Kind::B64 };
    set_scalar(wave, operand, kind, value)
}
