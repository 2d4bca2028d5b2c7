// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From a vector instruction to steps: its sources as the handler wants them, the handler, and the
//! result where it belongs.
//!
//! The kinds of the operands are the reference engine's. A handler of 32 bits takes rows, and one
//! scalar register; one of 16 bits takes the low halves, and gives a result with zeros above.

use super::builder::{Builder, Given};
use super::prepare::{self, Lanes, Part};
use super::step::{Place, Source, Step, ROW};
use super::{chain, function, half, memo, operation, ops, saturate, scalar, special, sum, unfused, vector};
use crate::reference::{self, Kind};
use vkfd_isa::{Dpp, DppKind, Extension, Format, Inst, Op, Operand, SdwaSelect, SdwaUnused};

/// First bit and width of a part of a register.
fn bits(select: SdwaSelect) -> (u8, u8) {
    match select {
        SdwaSelect::Byte0 => (0, 8),
        SdwaSelect::Byte1 => (8, 8),
        SdwaSelect::Byte2 => (16, 8),
        SdwaSelect::Byte3 => (24, 8),
        SdwaSelect::Word0 => (0, 16),
        SdwaSelect::Word1 => (16, 16),
        SdwaSelect::Dword => (0, 32),
    }
}

/// What is taken of source `n`, and its modifiers.
fn part(inst: &Inst, n: usize, kind: Kind) -> Part {
    let mut part = Part::ALL;
    match &inst.extension {
        Extension::Sdwa(sdwa) if n < 2 => {
            (part.from, part.width) = bits(sdwa.src[n]);
            part.signed = sdwa.sext[n] && part.width < 32;
        }
        Extension::Sdwa(_) => {}
        _ if kind.bits() == 16 && inst.mods.op_sel >> n & 1 == 1 => (part.from, part.width) = (16, 16),
        _ => {}
    }
    if let Kind::F16 | Kind::F32 = kind {
        let (low, sign) = if kind == Kind::F16 { (0xffff, 1 << 15) } else { (u32::MAX, 1 << 31) };
        if inst.mods.abs >> n & 1 == 1 {
            part.keep = low & !sign;
        }
        if inst.mods.neg >> n & 1 == 1 {
            part.turn = sign;
        }
    }
    part
}

/// The first source as DPP has it.
fn permuted(builder: &mut Builder, dpp: &Dpp, source: &Given, place: Place, steps: &mut Vec<Step>) -> Option<Given> {
    let Given::Row(row) = source else { return None };
    let lanes = usize::from(builder.layout.lanes);
    let mut table = Lanes {
        from: [0; 64],
        valid: 0,
        open: 0,
        zero: dpp.bound_ctrl || matches!(dpp.kind, DppKind::Lanes8(_)),
        inactive: dpp.fetch_inactive,
    };
    for lane in 0..lanes {
        if let Some(from) = reference::dpp_source(dpp.kind, lane, lanes) {
            table.from[lane] = from as u8;
            table.valid |= 1 << lane;
        }
        let masked = matches!(dpp.kind, DppKind::Ctrl(_))
            && (dpp.row_mask >> (lane / 16) & 1 == 0 || dpp.bank_mask >> (lane / 4 % 4) & 1 == 0);
        table.open |= u64::from(!masked) << lane;
    }
    let (address, temporary) = builder.constants.temporary(0);
    let mut step = place.step(prepare::permute(builder.avx2));
    step.src[0] = *row;
    step.src[1] = builder.constants.lanes(table);
    step.dst = address;
    steps.push(step);
    Some(Given::Row(temporary))
}

/// The step behind an operation that puts its result where it belongs, if there is something to
/// do. What it needs of the destination before is kept by a step that is made now.
fn placed(
    builder: &mut Builder,
    inst: &Inst,
    kinds: &reference::Kinds,
    place: Place,
    steps: &mut Vec<Step>,
) -> Option<Option<Step>> {
    let short = kinds.dst.bits() == 16;
    let (mut from, mut width, mut rest) = (0, 32, prepare::PAD);
    match &inst.extension {
        Extension::Sdwa(sdwa) => {
            (from, width) = bits(sdwa.dst);
            rest = match sdwa.unused {
                SdwaUnused::Pad => prepare::PAD,
                SdwaUnused::Sext => prepare::SEXT,
                SdwaUnused::Preserve => prepare::PRESERVE,
            };
            if width == 32 {
                rest = prepare::PAD;
            }
        }
        _ if kinds.dst == Kind::B8 => (from, width, rest) = (8 * (inst.mods.op_sel >> 2 & 3), 8, prepare::PRESERVE),
        _ if short && inst.mods.op_sel & 8 != 0 => (from, width, rest) = (16, 16, prepare::PRESERVE),
        _ if short && !(kinds.clears && builder.layout.target.is_gfx9()) => (width, rest) = (16, prepare::PRESERVE),
        _ => {}
    }
    let clamp = match (inst.mods.clamp, kinds.dst) {
        (false, _) => 0,
        (true, Kind::F32) => prepare::CLAMP32,
        (true, Kind::F16) => prepare::CLAMP16,
        // By the operation itbuilder.
        (true, Kind::I16 | Kind::U16 | Kind::I32 | Kind::U32) => 0,
        (true, _) => return None,
    };
    if clamp == 0 && (from, width) == (0, 32) {
        return Some(None);
    }
    let row = builder.layout.row(inst.dst, 1)?;
    let mut step = place.step(prepare::place(builder.avx2));
    step.dst = row * ROW;
    step.scalar = [clamp, from, width, rest];
    if rest == prepare::PRESERVE {
        let (address, temporary) = builder.constants.temporary(4);
        let mut keep = place.step(prepare::keep(builder.avx2));
        keep.src[0] = Source::register(row * ROW);
        keep.dst = address;
        steps.push(keep);
        step.src[0] = temporary;
    }
    Some(Some(step))
}

/// Operations of 32 and of 16 bits that have vectors.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    with(builder, inst, place, steps, false)
}

/// Those that have none: by the reference engine's function of a lane.
pub(super) fn by_lane(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    with(builder, inst, place, steps, true)
}

fn with(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>, by_lane: bool) -> Option<()> {
    let (avx2, op) = (builder.avx2, inst.op);
    let choose = matches!(op, Op::VCndmaskB32 | Op::VCndmaskB16);
    // The reference engine does the output multiplier, and saturating operations without a
    // table of their own.
    if inst.mods.omod != 0 {
        return None;
    }
    let target = builder.layout.target;
    let sdwa = matches!(inst.extension, Extension::Sdwa(_));
    let kinds = reference::kinds(op).or_else(|| ops::moves(op))?;
    // They choose halves, see `packed`.
    let packed = inst.format == Format::Vop3p;
    if matches!(op, Op::VDot2I32I16 | Op::VDot2U32U16) && packed {
        return None;
    }
    let saturates = inst.mods.clamp && matches!(kinds.dst, Kind::I16 | Kind::U16 | Kind::I32 | Kind::U32);
    let with_vectors = |kind| {
        if saturates {
            return saturate::handler(op, avx2, kind);
        }
        ops::handler(op, avx2, kind)
            .or_else(|| half::handler(op, avx2, kind))
            .or_else(|| unfused::handler(op, avx2, kind))
            .or_else(|| special::handler(op, avx2, kind, sdwa))
            .or_else(|| memo::handler(op, target, avx2, kind))
    };
    if by_lane != (!choose && with_vectors(operation::ROWS).is_none()) || by_lane && packed {
        return None;
    }
    let handler = |kind| if by_lane { function::handler(op, kind) } else { with_vectors(kind) };
    let (shape, _) =
        if choose { (ops::Shape::Binary, vector::Handler::alone(scalar::slow)) } else { handler(operation::ROWS)? };
    let compare = matches!(shape, ops::Shape::Compare { .. });
    let count = match shape {
        ops::Shape::Unary => 1,
        ops::Shape::Ternary => 3,
        _ => 2,
    };
    if kinds.src.iter().take(count).any(|kind| kind.bits() == 64) {
        return None;
    }
    let dpp = match &inst.extension {
        Extension::Dpp(dpp) => Some(dpp),
        _ => None,
    };
    // The answer would be lost when EXEC is restored.
    let to_exec = [inst.dst, inst.sdst].iter().any(|to| matches!(to, Operand::Scalar(Operand::EXEC..)));
    if dpp.is_some() && (to_exec || matches!(shape, ops::Shape::Compare { exec: true })) {
        return None;
    }
    let finish = if compare { None } else { placed(builder, inst, &kinds, place, steps)? };
    let mut kind = operation::ROWS;
    let mut step = place.step(scalar::slow);
    if by_lane {
        step.imm = function::immediate(op, inst.mods.clamp);
    }
    for index in 0..count {
        let operand = if kinds.tied && index == 2 { inst.dst } else { inst.src[index] };
        let mut source = builder.source(operand, kinds.src[index])?;
        if let (Some(dpp), 0) = (dpp, index) {
            source = permuted(builder, dpp, &source, place, steps)?;
        }
        let part = part(inst, index, kinds.src[index]);
        match source {
            Given::Scalar(n) if part == Part::ALL && kind == operation::ROWS => {
                kind = index as u8 + 1;
                step.scalar[index] = n;
            }
            source => step.src[index] = builder.part_step(&source, part, index, place, steps),
        }
    }
    match shape {
        ops::Shape::Compare { exec } => {
            step.scalar[3] = builder.layout.answer(inst.dst, exec)?;
            step.imm = exec.into();
        }
        ops::Shape::Carry { inward } => {
            step.dst = builder.layout.row(inst.dst, 1)? * ROW;
            step.scalar[3] = builder.layout.mask(inst.sdst)?;
            if inward {
                step.scalar[2] = builder.layout.mask(inst.src[2])?;
            }
        }
        _ => step.dst = builder.layout.row(inst.dst, kinds.dst.words().into())? * ROW,
    }
    let handler = if choose {
        // The half of a dual instruction has VCC.
        let vcc = Operand::Scalar(Operand::VCC);
        step.scalar[2] = builder.layout.mask(if inst.format == Format::Vopd { vcc } else { inst.src[2] })?;
        vector::choose_run::<operation::ByMask>(avx2, kind)?
    } else {
        handler(kind)?.1
    };
    handler.give(&mut step, op);
    step.chained = chain::handler(op, avx2, kind);
    step.half = sum::half(op, avx2, kind).filter(|_| !saturates);
    steps.push(step);
    steps.extend(finish);
    if dpp.is_some() {
        steps.push(place.step(prepare::restore));
    }
    Some(())
}
