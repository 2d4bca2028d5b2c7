// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packed operations: two results from the halves of a word, or from two words; and the
//! mixed-precision ones, whose modifiers say of each source whether it is a half.

use super::float::{F16, F32};
use super::kind::{low32, Kind};
use super::lanes::{env, finish, Pending, Values};
use super::meaning::semantics;
use super::multiply::mad32;
use super::operand;
use super::semantics::Env;
use super::{dot, dpp};
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Wave, LANES};
use vkfd_isa::{Extension, Format, Inst, Mods, Op};
use vkfd_sabotage::{process, Switch};

/// What is done to both halves.
fn halves_of(op: Op) -> Option<Op> {
    Some(match op {
        Op::VPkMadI16 => Op::VMadI16,
        Op::VPkMulLoU16 => Op::VMulLoU16,
        Op::VPkAddI16 => Op::VAddI16,
        Op::VPkSubI16 => Op::VSubI16,
        Op::VPkLshlrevB16 => Op::VLshlrevB16,
        Op::VPkLshrrevB16 => Op::VLshrrevB16,
        Op::VPkAshrrevI16 => Op::VAshrrevI16,
        Op::VPkMaxI16 => Op::VMaxI16,
        Op::VPkMinI16 => Op::VMinI16,
        Op::VPkMadU16 => Op::VMadU16,
        Op::VPkAddU16 => Op::VAddU16,
        Op::VPkSubU16 => Op::VSubU16,
        Op::VPkMaxU16 => Op::VMaxU16,
        Op::VPkMinU16 => Op::VMinU16,
        Op::VPkFmaF16 => Op::VFmaF16,
        Op::VPkAddF16 => Op::VAddF16,
        Op::VPkMulF16 => Op::VMulF16,
        Op::VPkMinF16 => Op::VMinF16,
        Op::VPkMaxF16 => Op::VMaxF16,
        _ => return None,
    })
}

/// Whether the operation does the same to both halves.
pub(crate) fn of_halves(op: Op) -> bool {
    halves_of(op).is_some()
}

/// What is done to both words.
fn words_of(op: Op) -> Option<Op> {
    Some(match op {
        Op::VPkFmaF32 => Op::VFmaF32,
        Op::VPkMulF32 => Op::VMulF32,
        Op::VPkAddF32 => Op::VAddF32,
        _ => return None,
    })
}

/// Where a mixed-precision result goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mix {
    Word,
    Low,
    High,
}

/// Mixed-precision operations, and whether they are fused.
fn mix_of(op: Op) -> Option<(Mix, bool)> {
    Some(match op {
        Op::VMadMixF32 => (Mix::Word, false),
        Op::VMadMixloF16 => (Mix::Low, false),
        Op::VMadMixhiF16 => (Mix::High, false),
        Op::VFmaMixF32 => (Mix::Word, true),
        Op::VFmaMixloF16 => (Mix::Low, true),
        Op::VFmaMixhiF16 => (Mix::High, true),
        _ => return None,
    })
}

/// Dot products whose halves can be chosen and negated.
fn chooses_halves(op: Op) -> bool {
    matches!(op, Op::VDot2F32F16 | Op::VDot2I32I16 | Op::VDot2U32U16 | Op::VDot2F32Bf16)
}

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    halves_of(op).is_some()
        || words_of(op).is_some()
        || mix_of(op).is_some()
        || matches!(op, Op::VPkMovB32 | Op::VDot4I32Iu8 | Op::VDot8I32Iu4)
}

/// Executes one of these; nothing if the operation is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    if let Some(op) = halves_of(inst.op) {
        return Some(two_halves(inst, op, wave, group));
    }
    if let Some(op) = words_of(inst.op) {
        return Some(two_words(inst, op, wave, group));
    }
    if let Some((mix, fused)) = mix_of(inst.op) {
        return Some(mixed(inst, mix, fused, wave, group));
    }
    match inst.op {
        Op::VPkMovB32 => Some(move_words(inst, wave, group)),
        Op::VDot4I32Iu8 => Some(mixed_signs(inst, 8, wave, group)),
        Op::VDot8I32Iu4 => Some(mixed_signs(inst, 4, wave, group)),
        op if chooses_halves(op) && inst.format == Format::Vop3p => Some(dot_halves(inst, wave, group)),
        _ => None,
    }
}

/// Sources without modifiers; the first through DPP.
fn raw(inst: &Inst, wave: &Wave, group: &Group, kinds: [Kind; 3], count: usize) -> Result<([Values; 3], u64), Exit> {
    let mut all = [[0; LANES]; 3];
    for ((values, &src), kind) in all.iter_mut().zip(&inst.src).zip(kinds).take(count) {
        *values = operand::source(wave, group, src, kind)?;
    }
    let mut write = u64::MAX;
    if let Extension::Dpp(dpp) = &inst.extension {
        let permutation = dpp::permutation(dpp, wave);
        if let Some(first) = all.first_mut() {
            *first = permutation.apply(first);
        }
        write = permutation.write;
    }
    Ok((all, write))
}

/// Lane `lane` of all three.
fn lane_of(all: &[Values; 3], lane: usize) -> [u64; 3] {
    let [a, b, c] = all;
    [a, b, c].map(|values| values.get(lane).copied().unwrap_or(0))
}

/// Parts of the sources for the low or the high result, `width` bits each, negated as the
/// instruction says.
fn parts(values: [u64; 3], mods: &Mods, high: bool, width: u32, float: bool) -> [u64; 3] {
    let (select, negate) = if high { (mods.op_sel_hi, mods.neg_hi) } else { (mods.op_sel, mods.neg) };
    let mut n = 0;
    values.map(|value| {
        let part = value >> if select >> n & 1 == 1 { width } else { 0 } & ((1 << width) - 1);
        let sign = if float && negate >> n & 1 == 1 { 1 << (width - 1) } else { 0 };
        n += 1;
        part ^ sign
    })
}

fn two_halves(inst: &Inst, op: Op, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let Some(meaning) = semantics(op) else { return Ok(()) };
    let [kind, ..] = meaning.src;
    let float = kind.format().is_some();
    let word = if float { Kind::Pair16 } else { Kind::B32 };
    let count = meaning.sources();
    each(inst, wave, group, [word; 3], count, Kind::B32, |env, values| {
        let half = |high| {
            let result = meaning.lane(env, parts(values, &inst.mods, high, 16, float), inst.mods.clamp);
            finish(result, meaning.dst, &clamp_only(&inst.mods), env.mode)
        };
        half(false) | half(true) << 16
    })
}

/// Packed operations have no output multiplier.
fn clamp_only(mods: &Mods) -> Mods {
    Mods { clamp: mods.clamp, ..Mods::default() }
}

fn two_words(inst: &Inst, op: Op, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let Some(meaning) = semantics(op) else { return Ok(()) };
    let count = meaning.sources();
    each(inst, wave, group, [Kind::Pair32; 3], count, Kind::Pair32, |env, values| {
        let word = |high| {
            let result = meaning.lane(env, parts(values, &inst.mods, high, 32, true), false);
            finish(result, meaning.dst, &clamp_only(&inst.mods), env.mode)
        };
        word(false) | word(true) << 32
    })
}

/// The low result is a word of the first source, the high one a word of the second.
fn move_words(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    each(inst, wave, group, [Kind::Pair32; 3], 2, Kind::B64, |_, [a, b, _]| {
        let word = |value: u64, n: u32| value >> if inst.mods.op_sel >> n & 1 == 1 { 32 } else { 0 } & 0xffff_ffff;
        word(a, 0) | word(b, 1) << 32
    })
}

fn mixed(inst: &Inst, mix: Mix, fused: bool, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let mods = inst.mods;
    let is_half = |n: usize| mods.op_sel_hi >> n & 1 == 1;
    let kinds = [0, 1, 2].map(|n| if is_half(n) { Kind::Pair16 } else { Kind::F32 });
    let (all, write) = raw(inst, wave, group, kinds, 3)?;
    let active = wave.exec() & write;
    let first = operand::row(wave, inst.dst, 1)?;
    let mut results = [0; LANES];
    for (lane, to) in results.iter_mut().enumerate() {
        let env = env(wave, lane, 0);
        // The unfused ones know no denormal halves, whatever MODE says: Mesa's issue 6178 and
        // LLVM's pull request 224911.
        let f16 = if fused || process().has(Switch::KeptHalves) { env.f16() } else { env.f16().flushing() };
        let mut n = 0;
        let [a, b, c] = lane_of(&all, lane).map(|value| {
            let (format, bits) = if is_half(n) {
                (F16, value >> if mods.op_sel >> n & 1 == 1 { 16 } else { 0 } & 0xffff)
            } else {
                (F32, value)
            };
            // The field that negates high halves elsewhere is the absolute value here.
            let bits = if (mods.abs | mods.neg_hi) >> n & 1 == 1 { format.magnitude(bits) } else { bits };
            let bits = if mods.neg >> n & 1 == 1 { bits ^ format.sign_bit() } else { bits };
            let wide = if is_half(n) { env.f32().convert(f16, bits) } else { bits };
            n += 1;
            wide
        });
        let single = if fused { env.f32().fma(a, b, c) } else { mad32(&env).mad(a, b, c) };
        let old = u64::from(operand::lane(wave, first, lane));
        let clamp = clamp_only(&mods);
        *to = if mix == Mix::Word {
            finish(single, Kind::F32, &clamp, wave.mode)
        } else {
            let half = finish(f16.convert(env.f32(), single), Kind::F16, &clamp, wave.mode);
            if mix == Mix::Low {
                old & 0xffff_0000 | half
            } else {
                old & 0xffff | half << 16
            }
        };
    }
    Pending::new(wave, inst.dst, Kind::B32, results, active)?.write(wave);
    Ok(())
}

/// Dot products of halves, each of which may be either half of its word, negated.
fn dot_halves(inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let Some(meaning) = semantics(inst.op) else { return Ok(()) };
    let float = matches!(inst.op, Op::VDot2F32F16 | Op::VDot2F32Bf16);
    each(inst, wave, group, meaning.src, 3, meaning.dst, |env, values| {
        let [a_low, b_low, _] = parts(values, &inst.mods, false, 16, float);
        let [a_high, b_high, _] = parts(values, &inst.mods, true, 16, float);
        let [.., c] = values;
        // The addend is a whole word; of it, the low modifier negates.
        let sign = if float && inst.mods.neg & 4 != 0 { F32.sign_bit() } else { 0 };
        let words = [a_low | a_high << 16, b_low | b_high << 16, c ^ sign];
        finish(meaning.lane(env, words, inst.mods.clamp), meaning.dst, &clamp_only(&inst.mods), env.mode)
    })
}

/// gfx11: the negation bits say which of the factors are signed.
fn mixed_signs(inst: &Inst, width: u32, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let signed = [inst.mods.neg & 1 != 0, inst.mods.neg & 2 != 0];
    each(inst, wave, group, [Kind::B32, Kind::B32, Kind::I32], 3, Kind::I32, |_, [a, b, c]| {
        let sum = dot::integers(a.into(), b.into(), width, signed) + Kind::I32.integer(c);
        Kind::I32.wrap(sum, inst.mods.clamp)
    })
}

/// Computes a result for each active lane and writes them.
fn each(
    inst: &Inst,
    wave: &mut Wave,
    group: &Group,
    kinds: [Kind; 3],
    count: usize,
    dst: Kind,
    eval: impl Fn(&Env, [u64; 3]) -> u64,
) -> Result<(), Exit> {
    let (all, write) = raw(inst, wave, group, kinds, count)?;
    let active = wave.exec() & write;
    let mut results = [0; LANES];
    for (lane, to) in results.iter_mut().enumerate() {
        if active >> lane & 1 == 1 {
            let result = eval(&env(wave, lane, 0), lane_of(&all, lane));
            *to = if dst.words() == 1 { low32(result).into() } else { result };
        }
    }
    Pending::new(wave, inst.dst, dst, results, active)?.write(wave);
    Ok(())
}
