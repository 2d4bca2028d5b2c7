// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sources of 64 bits, and operations on both words of a lane that are two operations of one word.

use super::Source;
use crate::Registers;
use vkfd_isa::{Extension, Format, Inst, Mods, Op, Operand};

/// The register so many behind another.
pub(super) fn behind(operand: Operand, count: u16) -> Option<Operand> {
    Some(match operand {
        Operand::Vgpr(n) => Operand::Vgpr(n.checked_add(count)?),
        Operand::Agpr(n) => Operand::Agpr(n.checked_add(count)?),
        Operand::Scalar(n) => Operand::Scalar(n.checked_add(count.try_into().ok()?)?),
        _ => return None,
    })
}

/// The high word of a source of 64 bits.
pub(super) fn high_source(operand: Operand, registers: &dyn Registers) -> Option<Source> {
    Some(match operand {
        Operand::Vgpr(_) | Operand::Agpr(_) => Source::Row(registers.row(behind(operand, 1)?)?),
        Operand::Scalar(_) => Source::Scalar(registers.scalar(operand, 2)? + 1),
        Operand::Int(value) => Source::Constant(if value < 0 { u32::MAX } else { 0 }),
        _ => return None,
    })
}

/// The low and the high word of a constant in double precision.
pub(super) fn double_constant(operand: Operand) -> Option<[Source; 2]> {
    let Operand::Float(code) = operand else { return None };
    let value = match code {
        240 => 0.5,
        241 => -0.5,
        242 => 1.0,
        243 => -1.0,
        244 => 2.0,
        245 => -2.0,
        246 => 4.0,
        247 => -4.0,
        248 => f64::from_bits(0x3fc4_5f30_6dc9_c882),
        _ => return None,
    };
    let bits = f64::to_bits(value);
    Some([bits as u32, (bits >> 32) as u32].map(Source::Constant))
}

/// A constant as a half.
pub(super) fn half_constant(code: u8) -> Option<u32> {
    Some(match code {
        240 => 0x3800,
        241 => 0xb800,
        242 => 0x3c00,
        243 => 0xbc00,
        244 => 0x4000,
        245 => 0xc000,
        246 => 0x4400,
        247 => 0xc400,
        248 => 0x3118,
        _ => return None,
    })
}

/// Whether an operation is translated as two.
pub(crate) fn is_two(op: Op) -> bool {
    matches!(
        op,
        Op::VPkFmaF32
            | Op::VPkMulF32
            | Op::VPkAddF32
            | Op::VPkMovB32
            | Op::VMovB64
            | Op::VLshlrevB64
            | Op::VLshrrevB64
            | Op::VAshrrevI64
    )
}

/// Operations on both words of a lane that are two of 32 bits: the low one and the high one.
pub(super) fn halves(inst: &Inst) -> Option<[Inst; 2]> {
    let mods = &inst.mods;
    if inst.extension != Extension::None || mods.clamp || mods.omod != 0 {
        return None;
    }
    let pair = |operand| behind(operand, 1);
    let make = |op, dst, src| Inst { op, dst, src, mods: Mods::default(), sdst: Operand::None, ..*inst };
    let none = Operand::None;
    let high_dst = pair(inst.dst)?;
    let plain = (mods.neg, mods.abs, mods.op_sel) == (0, 0, 0);
    let packed = match inst.op {
        Op::VPkFmaF32 => Some(Op::VFmaF32),
        Op::VPkMulF32 => Some(Op::VMulF32),
        Op::VPkAddF32 => Some(Op::VAddF32),
        _ => None,
    };
    if let Some(op) = packed {
        let half = |high: bool| {
            let (choose, neg) = if high { (mods.op_sel_hi, mods.neg_hi) } else { (mods.op_sel, mods.neg) };
            let mut src = inst.src;
            for (index, source) in src.iter_mut().enumerate() {
                if choose >> index & 1 != 0 && *source != none {
                    // A constant is the low word; the high one is zero.
                    *source = pair(*source).unwrap_or(Operand::Int(0));
                }
            }
            let dst = if high { high_dst } else { inst.dst };
            Inst { format: Format::Vop3, mods: Mods { neg, ..Mods::default() }, ..make(op, dst, src) }
        };
        return Some([half(false), half(true)]);
    }
    let by = || match inst.src[0] {
        Operand::Int(value) => u8::try_from(value).ok().filter(|by| (1..32).contains(by)),
        _ => None,
    };
    let number = |by: u8| Some(Operand::Int(by.try_into().ok()?));
    let (low, high) = (inst.src[1], pair(inst.src[1]));
    let vop3 = |inst: Inst| Inst { format: Format::Vop3, ..inst };
    match inst.op {
        // Each word is of a source of its own, and signs are no part of a move.
        Op::VPkMovB32 => {
            let half = |index: usize, dst| {
                let source = inst.src[index];
                let is_high = mods.op_sel >> index & 1 != 0;
                let source = if is_high { pair(source).unwrap_or(Operand::Int(0)) } else { source };
                Inst { format: Format::Vop1, ..make(Op::VMovB32, dst, [source, none, none]) }
            };
            Some([half(0, inst.dst), half(1, high_dst)])
        }
        Op::VMovB64 if plain => {
            let source = inst.src[0];
            let high = match source {
                Operand::Int(value) => Operand::Int(if value < 0 { -1 } else { 0 }),
                _ => pair(source)?,
            };
            Some([make(Op::VMovB32, inst.dst, [source, none, none]), make(Op::VMovB32, high_dst, [high, none, none])])
        }
        Op::VLshlrevB64 if plain => {
            let by = by()?;
            Some([
                vop3(make(Op::VLshlrevB32, inst.dst, [number(by)?, low, none])),
                vop3(make(Op::VAlignbitB32, high_dst, [high?, low, number(32 - by)?])),
            ])
        }
        Op::VLshrrevB64 | Op::VAshrrevI64 if plain => {
            let by = by()?;
            let op = if inst.op == Op::VLshrrevB64 { Op::VLshrrevB32 } else { Op::VAshrrevI32 };
            Some([
                vop3(make(Op::VAlignbitB32, inst.dst, [high?, low, number(by)?])),
                vop3(make(op, high_dst, [number(by)?, high?, none])),
            ])
        }
        _ => None,
    }
}
