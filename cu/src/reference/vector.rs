// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations, one lane at a time.
//!
//! Sources are read for all lanes, then modified as the encoding says (SDWA, DPP, halves, absolute
//! value, negation). The operation's function computes each active lane. The results are
//! multiplied, clamped, and written. Nothing is written before every lane is computed, so a
//! destination may be a source of any lane, and a refusal leaves the wave as it was.

use super::kind::Kind;
use super::lanes::{env, finish, placed, Pending, Sources};
use super::meaning::semantics;
use super::operand;
use super::semantics::{two, Half, Semantics};
use super::{carry, compare, cross, matrix, packed};
use crate::exit::{Exit, Refusal};
use crate::group::Group;
use crate::wave::{Wave, LANES};
use vkfd_isa::{Format, Inst, Op, Operand};

/// MODE.GPR_IDX_EN: vector registers are M0 further on (gfx9).
const GPR_IDX_EN: u32 = 1 << 27;

/// MODE.VSKIP: vector instructions are not executed (gfx9).
const VSKIP: u32 = 1 << 28;

/// Whether vector instructions are being skipped.
pub(crate) fn skips(wave: &Wave) -> bool {
    wave.target.is_gfx9() && wave.mode.0 & VSKIP != 0
}

/// An operand's register moved on by M0.
fn moved(operand: Operand, by: u16) -> Operand {
    match operand {
        Operand::Vgpr(n) => Operand::Vgpr(n.saturating_add(by)),
        other => other,
    }
}

/// The instruction with its registers where `s_set_gpr_idx_on` puts them.
fn indexed(inst: &Inst, wave: &Wave) -> Option<Inst> {
    if !wave.target.is_gfx9() || wave.mode.0 & GPR_IDX_EN == 0 {
        return None;
    }
    let m0 = wave.scalar.get(usize::from(Operand::M0)).copied().unwrap_or(0);
    let by = u16::try_from(m0 & 0xff).unwrap_or(0);
    let mut inst = *inst;
    for (n, src) in inst.src.iter_mut().enumerate() {
        if m0 >> (12 + n) & 1 == 1 {
            *src = moved(*src, by);
        }
    }
    if m0 >> 15 & 1 == 1 {
        inst.dst = moved(inst.dst, by);
    }
    Some(inst)
}

/// Executes a vector operation.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let indexed = indexed(inst, wave);
    let inst = indexed.as_ref().unwrap_or(inst);
    if inst.format == Format::Vopd {
        return dual(inst, wave, group);
    }
    if let Some(result) = cross::execute(inst, wave, group) {
        return result;
    }
    if let Some(result) = compare::execute(inst, wave, group) {
        return result;
    }
    if let Some(result) = carry::execute(inst, wave, group) {
        return result;
    }
    if let Some(result) = matrix::execute(inst, wave, group) {
        return result;
    }
    if let Some(result) = packed::execute(inst, wave, group) {
        return result;
    }
    let out = compute(inst, semantics(inst.op), wave, group)?;
    out.write(wave);
    Ok(())
}

/// Both halves of a dual instruction read before either writes.
fn dual(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let half = |inst: &Inst| compute(inst, meaning_in_pair(inst.op), wave, group);
    let first = half(inst)?;
    let second = inst.second().as_ref().map(half).transpose()?;
    first.write(wave);
    if let Some(second) = second {
        second.write(wave);
    }
    Ok(())
}

/// The meaning in a dual instruction, where a selection takes its bits from VCC.
fn meaning_in_pair(op: Op) -> Option<Semantics> {
    if op == Op::VCndmaskB32 {
        return two(Kind::B32, Kind::B32, Kind::B32, |env, a, b| if env.vcc { b } else { a });
    }
    semantics(op)
}

/// An operation that is a function of one lane.
fn compute(inst: &Inst, meaning: Option<Semantics>, wave: &Wave, group: &Group) -> Result<Pending, Exit> {
    let Some(meaning) = meaning else {
        return Err(Exit::Refused(Refusal::Unsupported(inst.op)));
    };
    let sources = Sources::read(inst, wave, group, &meaning.src, meaning.sources(), meaning.tied)?;
    let active = wave.exec() & sources.write;
    let vcc = wave.vcc();
    let first = operand::row(wave, inst.dst, meaning.dst.words())?;
    let mut values = [0; LANES];
    for (lane, value) in values.iter_mut().enumerate() {
        if active >> lane & 1 == 0 {
            continue;
        }
        let env = env(wave, lane, vcc);
        let result = meaning.lane(&env, sources.lane(lane), inst.mods.clamp);
        let result = finish(result, meaning.dst, &inst.mods, wave.mode);
        let old = operand::lane(wave, first, lane);
        let clears = meaning.half == Half::Clear;
        *value = placed(inst, wave, meaning.dst, clears, old, result);
    }
    Pending::new(wave, inst.dst, meaning.dst, values, active)
}
