// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar arithmetic and logic: SOP1, SOP2, SOPK and SOPC, as far as they do not touch the program
//! counter or the state of the wave (those are in `flow`).

use super::kind::{low32, sign_extend, Kind};
use super::operand::{self, check_scalar, set_scalar, uniform};
use crate::exit::{Exit, Refusal};
use crate::group::Group;
use crate::wave::Wave;
use vkfd_isa::{Inst, Op, Operand};
use Kind::{B32, B64};

/// What SCC becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Keep,
    Set(bool),
    /// Whether the result is not zero.
    NotZero,
}

/// A scalar operation: kinds of sources and destination, and a function of the sources, the
/// destination's old value and SCC.
pub(crate) struct Meaning {
    pub(crate) src: [Kind; 2],
    pub(crate) dst: Kind,
    pub(crate) eval: fn(Sources) -> (u64, Flag),
}

/// What the function is given.
#[derive(Clone, Copy)]
pub(crate) struct Sources {
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// The destination's former value.
    pub(crate) old: u64,
    pub(crate) scc: bool,
}

fn carry(sum: u64) -> (u64, Flag) {
    (sum & 0xffff_ffff, Flag::Set(sum >> 32 != 0))
}

fn borrow(a: u64, b: u64, c: bool) -> (u64, Flag) {
    (a.wrapping_sub(b).wrapping_sub(c.into()) & 0xffff_ffff, Flag::Set(b + u64::from(c) > a))
}

fn signed(bits: u64) -> i64 {
    sign_extend(bits, 32)
}

/// A signed result, and whether it does not fit.
fn overflowing(value: i64) -> (u64, Flag) {
    let bits = value as u64 & 0xffff_ffff;
    (bits, Flag::Set(signed(bits) != value))
}

fn logic(bits: u64) -> (u64, Flag) {
    (bits, Flag::NotZero)
}

/// Where the least bit that is set is, or -1.
fn first(bits: u64) -> (u64, Flag) {
    (if bits == 0 { 0xffff_ffff } else { bits.trailing_zeros().into() }, Flag::Keep)
}

/// How many zeros are above the highest bit set in `width`, or -1.
fn leading(bits: u64, width: u32) -> (u64, Flag) {
    let zeros = bits.leading_zeros() - (64 - width);
    (if bits == 0 { 0xffff_ffff } else { zeros.into() }, Flag::Keep)
}

/// The same for bits that differ from the sign.
fn leading_signs(bits: u64, width: u32) -> (u64, Flag) {
    let value = sign_extend(bits, width);
    leading(if value < 0 { !value as u64 } else { value as u64 }, width)
}

/// A bit for each four that are not all zero, four times over.
fn whole_quads(bits: u64) -> u64 {
    (0..16).fold(0, |all, n| if bits >> (4 * n) & 15 != 0 { all | 15 << (4 * n) } else { all })
}

fn quad_mask(bits: u64) -> u64 {
    (0..16).fold(0, |all, n| all | u64::from(bits >> (4 * n) & 15 != 0) << n)
}

fn field(value: u64, control: u64, width: u32, sign: bool) -> (u64, Flag) {
    let from = control & u64::from(width - 1);
    let count = u32::try_from(control >> 16 & 127).unwrap_or(0);
    let moved = if sign { (sign_extend(value, width) >> from) as u64 } else { value >> from };
    let kept = if count >= 64 { moved } else { moved & ((1u64 << count) - 1) };
    let result = if sign { sign_extend(kept, count.min(64)) as u64 } else { kept };
    logic(if width == 32 { result & 0xffff_ffff } else { result })
}

fn bitset(old: u64, at: u64, width: u64, to: bool) -> (u64, Flag) {
    let bit = 1u64 << (at & (width - 1));
    (if to { old | bit } else { old & !bit }, Flag::Keep)
}

fn replicate(bits: u64) -> u64 {
    (0..32).fold(0, |all, n| all | ((bits >> n & 1) * 3) << (2 * n))
}

fn half(word: u64, high: bool) -> u64 {
    if high {
        word >> 16 & 0xffff
    } else {
        word & 0xffff
    }
}

fn selected(bits: u64, scc: bool, old: u64) -> (u64, Flag) {
    (if scc { bits } else { old }, Flag::Keep)
}

/// Operations with a result.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(crate) fn meaning(op: Op) -> Option<Meaning> {
    let of = |a, b, dst, eval| Some(Meaning { src: [a, b], dst, eval });
    let w32 = |eval| of(B32, B32, B32, eval);
    let w64 = |eval| of(B64, B64, B64, eval);
    match op {
        // SOP1.
        Op::SMovB32 => w32(|s| (s.a, Flag::Keep)),
        Op::SMovB64 => w64(|s| (s.a, Flag::Keep)),
        Op::SCmovB32 => w32(|s| selected(s.a, s.scc, s.old)),
        Op::SCmovB64 => w64(|s| selected(s.a, s.scc, s.old)),
        Op::SNotB32 => w32(|s| logic(!s.a & 0xffff_ffff)),
        Op::SNotB64 => w64(|s| logic(!s.a)),
        Op::SWqmB32 => w32(|s| logic(whole_quads(s.a))),
        Op::SWqmB64 => w64(|s| logic(whole_quads(s.a))),
        Op::SBrevB32 => w32(|s| (low32(s.a).reverse_bits().into(), Flag::Keep)),
        Op::SBrevB64 => w64(|s| (s.a.reverse_bits(), Flag::Keep)),
        Op::SBcnt0I32B32 => w32(|s| logic(low32(s.a).count_zeros().into())),
        Op::SBcnt0I32B64 => of(B64, B64, B32, |s| logic(s.a.count_zeros().into())),
        Op::SBcnt1I32B32 => w32(|s| logic(s.a.count_ones().into())),
        Op::SBcnt1I32B64 => of(B64, B64, B32, |s| logic(s.a.count_ones().into())),
        Op::SFf0I32B32 => w32(|s| first(!s.a & 0xffff_ffff)),
        Op::SFf0I32B64 => of(B64, B64, B32, |s| first(!s.a)),
        Op::SFf1I32B32 => w32(|s| first(s.a)),
        Op::SFf1I32B64 => of(B64, B64, B32, |s| first(s.a)),
        Op::SFlbitI32B32 => w32(|s| leading(s.a, 32)),
        Op::SFlbitI32B64 => of(B64, B64, B32, |s| leading(s.a, 64)),
        Op::SFlbitI32 => w32(|s| leading_signs(s.a, 32)),
        Op::SFlbitI32I64 => of(Kind::I64, B64, B32, |s| leading_signs(s.a, 64)),
        Op::SSextI32I8 => w32(|s| (sign_extend(s.a, 8) as u64, Flag::Keep)),
        Op::SSextI32I16 => w32(|s| (sign_extend(s.a, 16) as u64, Flag::Keep)),
        Op::SBitset0B32 => w32(|s| bitset(s.old, s.a, 32, false)),
        Op::SBitset0B64 => of(B32, B32, B64, |s| bitset(s.old, s.a, 64, false)),
        Op::SBitset1B32 => w32(|s| bitset(s.old, s.a, 32, true)),
        Op::SBitset1B64 => of(B32, B32, B64, |s| bitset(s.old, s.a, 64, true)),
        Op::SQuadmaskB32 => w32(|s| logic(quad_mask(s.a))),
        Op::SQuadmaskB64 => w64(|s| logic(quad_mask(s.a))),
        Op::SAbsI32 => w32(|s| logic(signed(s.a).unsigned_abs() & 0xffff_ffff)),
        Op::SBitreplicateB64B32 => of(B32, B32, B64, |s| (replicate(s.a), Flag::Keep)),
        // SOP2.
        Op::SAddU32 => w32(|s| carry(s.a + s.b)),
        Op::SSubU32 => w32(|s| borrow(s.a, s.b, false)),
        Op::SAddI32 => w32(|s| overflowing(signed(s.a) + signed(s.b))),
        Op::SSubI32 => w32(|s| overflowing(signed(s.a) - signed(s.b))),
        Op::SAddcU32 => w32(|s| carry(s.a + s.b + u64::from(s.scc))),
        Op::SSubbU32 => w32(|s| borrow(s.a, s.b, s.scc)),
        Op::SMinI32 => w32(|s| choose(s, signed(s.a) < signed(s.b))),
        Op::SMinU32 => w32(|s| choose(s, s.a < s.b)),
        Op::SMaxI32 => w32(|s| choose(s, signed(s.a) >= signed(s.b))),
        Op::SMaxU32 => w32(|s| choose(s, s.a >= s.b)),
        Op::SCselectB32 => w32(|s| selected(s.a, s.scc, s.b)),
        Op::SCselectB64 => w64(|s| selected(s.a, s.scc, s.b)),
        Op::SAndB32 => w32(|s| logic(s.a & s.b)),
        Op::SAndB64 => w64(|s| logic(s.a & s.b)),
        Op::SOrB32 => w32(|s| logic(s.a | s.b)),
        Op::SOrB64 => w64(|s| logic(s.a | s.b)),
        Op::SXorB32 => w32(|s| logic(s.a ^ s.b)),
        Op::SXorB64 => w64(|s| logic(s.a ^ s.b)),
        Op::SAndn2B32 => w32(|s| logic(s.a & !s.b)),
        Op::SAndn2B64 => w64(|s| logic(s.a & !s.b)),
        Op::SOrn2B32 => w32(|s| logic((s.a | !s.b) & 0xffff_ffff)),
        Op::SOrn2B64 => w64(|s| logic(s.a | !s.b)),
        Op::SNandB32 => w32(|s| logic(!(s.a & s.b) & 0xffff_ffff)),
        Op::SNandB64 => w64(|s| logic(!(s.a & s.b))),
        Op::SNorB32 => w32(|s| logic(!(s.a | s.b) & 0xffff_ffff)),
        Op::SNorB64 => w64(|s| logic(!(s.a | s.b))),
        Op::SXnorB32 => w32(|s| logic(!(s.a ^ s.b) & 0xffff_ffff)),
        Op::SXnorB64 => w64(|s| logic(!(s.a ^ s.b))),
        Op::SLshlB32 => w32(|s| logic(s.a << (s.b & 31) & 0xffff_ffff)),
        Op::SLshlB64 => of(B64, B32, B64, |s| logic(s.a << (s.b & 63))),
        Op::SLshrB32 => w32(|s| logic(s.a >> (s.b & 31))),
        Op::SLshrB64 => of(B64, B32, B64, |s| logic(s.a >> (s.b & 63))),
        Op::SAshrI32 => w32(|s| logic((signed(s.a) >> (s.b & 31)) as u64 & 0xffff_ffff)),
        Op::SAshrI64 => of(Kind::I64, B32, B64, |s| logic((s.a as i64 >> (s.b & 63)) as u64)),
        Op::SBfmB32 => w32(|s| (((1 << (s.a & 31)) - 1) << (s.b & 31), Flag::Keep)),
        Op::SBfmB64 => of(B32, B32, B64, |s| (((1 << (s.a & 63)) - 1) << (s.b & 63), Flag::Keep)),
        Op::SMulI32 => w32(|s| (s.a.wrapping_mul(s.b), Flag::Keep)),
        Op::SBfeU32 => w32(|s| field(s.a, s.b, 32, false)),
        Op::SBfeI32 => w32(|s| field(s.a, s.b, 32, true)),
        Op::SBfeU64 => of(B64, B32, B64, |s| field(s.a, s.b, 64, false)),
        Op::SBfeI64 => of(Kind::I64, B32, B64, |s| field(s.a, s.b, 64, true)),
        Op::SAbsdiffI32 => {
            w32(|s| {
                // Wrapped before the sign is looked at, as the manual has it.
                let difference = signed((signed(s.a) - signed(s.b)) as u64);
                logic(difference.unsigned_abs() & 0xffff_ffff)
            })
        }
        Op::SMulHiU32 => w32(|s| ((s.a * s.b) >> 32, Flag::Keep)),
        Op::SMulHiI32 => w32(|s| (((signed(s.a) * signed(s.b)) >> 32) as u64, Flag::Keep)),
        Op::SLshl1AddU32 => w32(|s| carry((s.a << 1) + s.b)),
        Op::SLshl2AddU32 => w32(|s| carry((s.a << 2) + s.b)),
        Op::SLshl3AddU32 => w32(|s| carry((s.a << 3) + s.b)),
        Op::SLshl4AddU32 => w32(|s| carry((s.a << 4) + s.b)),
        Op::SPackLlB32B16 => w32(|s| (half(s.a, false) | half(s.b, false) << 16, Flag::Keep)),
        Op::SPackLhB32B16 => w32(|s| (half(s.a, false) | half(s.b, true) << 16, Flag::Keep)),
        Op::SPackHhB32B16 => w32(|s| (half(s.a, true) | half(s.b, true) << 16, Flag::Keep)),
        Op::SPackHlB32B16 => w32(|s| (half(s.a, true) | half(s.b, false) << 16, Flag::Keep)),
        // SOPK: the immediate is the second source.
        Op::SMovkI32 => w32(|s| (s.b, Flag::Keep)),
        Op::SCmovkI32 => w32(|s| selected(s.b, s.scc, s.old)),
        Op::SAddkI32 => w32(|s| overflowing(signed(s.old) + signed(s.b))),
        Op::SMulkI32 => w32(|s| (s.old.wrapping_mul(s.b), Flag::Keep)),
        _ => None,
    }
}

fn choose(s: Sources, first: bool) -> (u64, Flag) {
    (if first { s.a } else { s.b }, Flag::Set(first))
}

/// Kind of the sources, and the test.
type Comparison = (Kind, fn(u64, u64) -> bool);

/// Comparisons: kinds of the sources, and the answer.
pub(crate) fn comparison(op: Op) -> Option<Comparison> {
    Some(match op {
        Op::SCmpEqI32 | Op::SCmpEqU32 | Op::SCmpkEqI32 | Op::SCmpkEqU32 => (B32, |a, b| a == b),
        Op::SCmpLgI32 | Op::SCmpLgU32 | Op::SCmpkLgI32 | Op::SCmpkLgU32 => (B32, |a, b| a != b),
        Op::SCmpGtI32 | Op::SCmpkGtI32 => (B32, |a, b| signed(a) > signed(b)),
        Op::SCmpGeI32 | Op::SCmpkGeI32 => (B32, |a, b| signed(a) >= signed(b)),
        Op::SCmpLtI32 | Op::SCmpkLtI32 => (B32, |a, b| signed(a) < signed(b)),
        Op::SCmpLeI32 | Op::SCmpkLeI32 => (B32, |a, b| signed(a) <= signed(b)),
        Op::SCmpGtU32 | Op::SCmpkGtU32 => (B32, |a, b| a > b),
        Op::SCmpGeU32 | Op::SCmpkGeU32 => (B32, |a, b| a >= b),
        Op::SCmpLtU32 | Op::SCmpkLtU32 => (B32, |a, b| a < b),
        Op::SCmpLeU32 | Op::SCmpkLeU32 => (B32, |a, b| a <= b),
        Op::SBitcmp0B32 => (B32, |a, b| a >> (b & 31) & 1 == 0),
        Op::SBitcmp1B32 => (B32, |a, b| a >> (b & 31) & 1 == 1),
        Op::SBitcmp0B64 => (B64, |a, b| a >> (b & 63) & 1 == 0),
        Op::SBitcmp1B64 => (B64, |a, b| a >> (b & 63) & 1 == 1),
        Op::SCmpEqU64 => (B64, |a, b| a == b),
        Op::SCmpLgU64 => (B64, |a, b| a != b),
        _ => return None,
    })
}

/// Comparisons with an immediate that is not sign-extended.
fn zero_extends(op: Op) -> bool {
    matches!(op, Op::SCmpkEqU32 | Op::SCmpkLgU32 | Op::SCmpkGtU32 | Op::SCmpkGeU32 | Op::SCmpkLtU32 | Op::SCmpkLeU32)
}

/// Kind, function of source and EXEC, and whether the destination gets the new EXEC.
type ExecFunction = (Kind, fn(u64, u64) -> u64, bool);

/// The operations that exchange EXEC for a function of it and a source: the new EXEC, and whether
/// the destination gets it instead of the old one.
pub(crate) fn exec_function(op: Op) -> Option<ExecFunction> {
    let kind = match op {
        Op::SAndSaveexecB32
        | Op::SOrSaveexecB32
        | Op::SXorSaveexecB32
        | Op::SAndn2SaveexecB32
        | Op::SOrn2SaveexecB32
        | Op::SNandSaveexecB32
        | Op::SNorSaveexecB32
        | Op::SXnorSaveexecB32
        | Op::SAndn1SaveexecB32
        | Op::SOrn1SaveexecB32
        | Op::SAndn1WrexecB32
        | Op::SAndn2WrexecB32 => B32,
        _ => B64,
    };
    let function: fn(u64, u64) -> u64 = match op {
        Op::SAndSaveexecB32 | Op::SAndSaveexecB64 => |s, exec| s & exec,
        Op::SOrSaveexecB32 | Op::SOrSaveexecB64 => |s, exec| s | exec,
        Op::SXorSaveexecB32 | Op::SXorSaveexecB64 => |s, exec| s ^ exec,
        Op::SAndn2SaveexecB32 | Op::SAndn2SaveexecB64 | Op::SAndn2WrexecB32 | Op::SAndn2WrexecB64 => {
            |s, exec| s & !exec
        }
        Op::SOrn2SaveexecB32 | Op::SOrn2SaveexecB64 => |s, exec| s | !exec,
        Op::SNandSaveexecB32 | Op::SNandSaveexecB64 => |s, exec| !(s & exec),
        Op::SNorSaveexecB32 | Op::SNorSaveexecB64 => |s, exec| !(s | exec),
        Op::SXnorSaveexecB32 | Op::SXnorSaveexecB64 => |s, exec| !(s ^ exec),
        Op::SAndn1SaveexecB32 | Op::SAndn1SaveexecB64 | Op::SAndn1WrexecB32 | Op::SAndn1WrexecB64 => {
            |s, exec| !s & exec
        }
        Op::SOrn1SaveexecB32 | Op::SOrn1SaveexecB64 => |s, exec| !s | exec,
        _ => return None,
    };
    let written = matches!(op, Op::SAndn1WrexecB32 | Op::SAndn1WrexecB64 | Op::SAndn2WrexecB32 | Op::SAndn2WrexecB64);
    Some((kind, function, written))
}

/// Operations that move registers found through M0.
pub(crate) fn moves_relative(op: Op) -> bool {
    matches!(op, Op::SMovrelsB32 | Op::SMovrelsB64 | Op::SMovreldB32 | Op::SMovreldB64 | Op::SMovrelsd2B32)
}

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    meaning(op).is_some() || comparison(op).is_some() || exec_function(op).is_some() || moves_relative(op)
}

/// Executes a scalar operation.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [first, second, _] = inst.src;
    if let Some(meaning) = meaning(inst.op) {
        let [kind_a, kind_b] = meaning.src;
        let immediate = inst.format == vkfd_isa::Format::Sopk;
        let a = if immediate { 0 } else { uniform(wave, group, first, kind_a)? };
        let b = if immediate {
            u64::from(low32(i64::from(inst.imm) as u64))
        } else {
            uniform(wave, group, second, kind_b)?
        };
        check_scalar(wave, inst.dst, meaning.dst)?;
        let old = uniform(wave, group, inst.dst, meaning.dst)?;
        let (value, flag) = (meaning.eval)(Sources { a, b, old, scc: wave.scc });
        let value = value & meaning.dst.mask();
        set_scalar(wave, inst.dst, meaning.dst, value)?;
        match flag {
            Flag::Keep => {}
            Flag::Set(scc) => wave.scc = scc,
            Flag::NotZero => wave.scc = value != 0,
        }
        return Ok(());
    }
    if let Some((kind, test)) = comparison(inst.op) {
        let (a, b) = if inst.format == vkfd_isa::Format::Sopk {
            let a = if first == Operand::None { inst.dst } else { first };
            let imm = i64::from(inst.imm) as u64;
            let imm = if zero_extends(inst.op) { imm & 0xffff } else { imm & 0xffff_ffff };
            (uniform(wave, group, a, kind)?, imm)
        } else {
            let is_bit = matches!(inst.op, Op::SBitcmp0B64 | Op::SBitcmp1B64);
            let kind_b = if is_bit { B32 } else { kind };
            (uniform(wave, group, first, kind)?, uniform(wave, group, second, kind_b)?)
        };
        wave.scc = test(a, b);
        return Ok(());
    }
    if let Some((kind, function, written)) = exec_function(inst.op) {
        let source = uniform(wave, group, first, kind)?;
        check_scalar(wave, inst.dst, kind)?;
        let exec = Operand::Scalar(Operand::EXEC);
        let old = uniform(wave, group, exec, kind)?;
        let new = function(source, old) & kind.mask();
        set_scalar(wave, exec, kind, new)?;
        // The destination is written last, also where it is EXEC itself.
        set_scalar(wave, inst.dst, kind, if written { new } else { old })?;
        wave.scc = new != 0;
        return Ok(());
    }
    if moves_relative(inst.op) {
        return move_relative(inst, wave, group);
    }
    Err(Exit::Refused(Refusal::Unsupported(inst.op)))
}

/// A scalar register `by` further on.
fn further(operand: Operand, by: u32) -> Result<Operand, Exit> {
    match operand {
        Operand::Scalar(n) => {
            u8::try_from(u32::from(n).saturating_add(by)).map(Operand::Scalar).map_err(|_| operand::NO_REGISTER)
        }
        other => Ok(other),
    }
}

fn move_relative(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let [src, ..] = inst.src;
    let m0 = wave.scalar.get(usize::from(Operand::M0)).copied().unwrap_or(0);
    let (src_by, dst_by, kind) = match inst.op {
        Op::SMovrelsB32 => (m0, 0, B32),
        Op::SMovrelsB64 => (m0, 0, B64),
        Op::SMovreldB32 => (0, m0, B32),
        Op::SMovreldB64 => (0, m0, B64),
        _ => (m0 & 0x3ff, m0 >> 16 & 0x3ff, B32),
    };
    let value = uniform(wave, group, further(src, src_by)?, kind)?;
    set_scalar(wave, further(inst.dst, dst_by)?, kind, value)
}

#[cfg(test)]
mod tests {
    use super::super::kind::low64;
    use super::*;
    use vkfd_isa::first_literal;

    fn run(op: Op, a: u64, b: u64, old: u64, scc: bool) -> (u64, Flag) {
        (meaning(op).map(|m| m.eval)).map_or((0, Flag::Keep), |eval| eval(Sources { a, b, old, scc }))
    }

    #[test]
    fn the_engines_extend_literals_alike() {
        for op in Op::ALL {
            let Some(Meaning { src: [first, _], .. }) = meaning(op) else { continue };
            let extended = first_literal(op, 0x8000_0000) != 0x8000_0000;
            assert_eq!(extended, first == Kind::I64, "{op:?}");
        }
    }

    #[test]
    fn carries_and_overflows() {
        assert_eq!(run(Op::SAddU32, 0xffff_ffff, 1, 0, false), (0, Flag::Set(true)));
        assert_eq!(run(Op::SAddcU32, 0xffff_fffe, 1, 0, true), (0, Flag::Set(true)));
        assert_eq!(run(Op::SSubbU32, 5, 5, 0, true), (0xffff_ffff, Flag::Set(true)));
        assert_eq!(run(Op::SAddI32, 0x7fff_ffff, 1, 0, false), (0x8000_0000, Flag::Set(true)));
        assert_eq!(run(Op::SSubI32, 0x8000_0000, 1, 0, false), (0x7fff_ffff, Flag::Set(true)));
        assert_eq!(run(Op::SAddI32, 0xffff_ffff, 1, 0, false), (0, Flag::Set(false)));
    }

    #[test]
    fn bit_fields() {
        assert_eq!(run(Op::SBfeU32, 0xabcd_1234, 8 << 16 | 4, 0, false).0, 0x23);
        assert_eq!(run(Op::SBfeI32, 0xabcd_12f4, 4 << 16 | 4, 0, false).0, 0xffff_ffff);
        assert_eq!(run(Op::SBfeU64, 0xff00_0000_0000_0000, 8 << 16 | 56, 0, false).0, 0xff);
        assert_eq!(run(Op::SBfmB32, 8, 4, 0, false).0, 0xff0);
        assert_eq!(run(Op::SFlbitI32, 0xffff_0000, 0, 0, false).0, 16);
        assert_eq!(run(Op::SFlbitI32, 0xffff_ffff, 0, 0, false).0, 0xffff_ffff);
        assert_eq!(run(Op::SWqmB32, 0x0000_0410, 0, 0, false).0, 0x0000_0ff0);
        assert_eq!(run(Op::SQuadmaskB64, 0x1000_0000_0000_0010, 0, 0, false).0, 0x8002);
        assert_eq!(run(Op::SBitreplicateB64B32, 0x8000_0003, 0, 0, false).0, 0xc000_0000_0000_000f);
    }

    #[test]
    fn the_widest_count_is_all_bits() {
        assert_eq!(low64(u128::MAX), run(Op::SBfeU64, u64::MAX, 64 << 16, 0, false).0);
    }
}
