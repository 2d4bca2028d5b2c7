// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations with a bit of a lane mask as a source or a second result: carries, selection,
//! division's scaling.

use super::float::{Format, Fpu, F32, F64};
use super::kind::Kind;
use super::lanes::{finish, placed, Pending, Sources};
use super::operand::{self, check_scalar};
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Mode, Wave, LANES};
use vkfd_isa::{Inst, Op};

/// What a lane gives: its value, and its bit in the second destination.
type Both = (i128, bool);

/// How an operation with a mask works.
struct Masked {
    dst: Kind,
    src: [Kind; 3],
    count: usize,
    /// Whether the third source is a mask.
    takes: bool,
    eval: fn([i128; 3], bool) -> Both,
}

fn add(a: i128, b: i128, c: bool) -> Both {
    let sum = a + b + i128::from(c);
    (sum, sum > u32::MAX.into())
}

fn sub(a: i128, b: i128, c: bool) -> Both {
    let difference = a - b - i128::from(c);
    (difference, difference < 0)
}

/// The scale that keeps division's iteration in range, as the hardware has it: where the published
/// text tests whether the quotient or the reciprocal would be denormal, exponents are compared.
fn div_scale(f: Format, [value, denominator, numerator]: [i128; 3]) -> Both {
    let bits = |n: i128| super::kind::low64(n.unsigned_abs());
    let (value, denominator, numerator) = (bits(value), bits(denominator), bits(numerator));
    let double = f == F64;
    let (step, apart, tiny, huge) = if double { (128, 768, 53, 2045) } else { (64, 96, 23, 253) };
    let (top, bottom) = (i128::from(f.field(numerator)), i128::from(f.field(denominator)));
    let scaled = |n| i128::from(Fpu::exact(f).ldexp(value, n));
    let is_denominator = f.is_nan(value) || value == denominator;
    let is_numerator = value == numerator;
    let same = i128::from(value);
    if f.is_zero(denominator) || f.is_zero(numerator) {
        return (f.invalid().into(), true);
    }
    if top - bottom >= apart {
        return (if is_denominator { scaled(step) } else { same }, true);
    }
    if top - bottom <= -apart {
        return match bottom >= huge {
            true if is_denominator => (scaled(-step), true),
            false if is_numerator => (scaled(step), true),
            _ => (same, true),
        };
    }
    if bottom >= huge {
        return (scaled(-step), false);
    }
    if bottom == 0 || top <= tiny {
        return (scaled(step), false);
    }
    (same, false)
}

/// A lane of `v_div_scale_f32`: its value and its bit.
pub(crate) fn div_scale32(mode: Mode, sources: [u32; 3]) -> (u32, bool) {
    let fpu = Fpu::new(F32, mode);
    let (value, bit) = div_scale(F32, sources.map(|source| fpu.input(source.into()).into()));
    (super::kind::low32(super::kind::low64(value.unsigned_abs())), bit)
}

/// The same of `v_div_scale_f64`.
pub(crate) fn div_scale64(mode: Mode, sources: [u64; 3]) -> (u64, bool) {
    let fpu = Fpu::new(F64, mode);
    let (value, bit) = div_scale(F64, sources.map(|source| fpu.input(source).into()));
    (super::kind::low64(value.unsigned_abs()), bit)
}

fn masked(op: Op) -> Option<Masked> {
    let carry =
        |takes, eval| Some(Masked { dst: Kind::U32, src: [Kind::U32, Kind::U32, Kind::U32], count: 2, takes, eval });
    match op {
        Op::VAddCoU32 => carry(false, |[a, b, _], _| add(a, b, false)),
        Op::VSubCoU32 => carry(false, |[a, b, _], _| sub(a, b, false)),
        Op::VSubrevCoU32 => carry(false, |[a, b, _], _| sub(b, a, false)),
        Op::VAddcCoU32 => carry(true, |[a, b, _], c| add(a, b, c)),
        Op::VSubbCoU32 => carry(true, |[a, b, _], c| sub(a, b, c)),
        Op::VSubbrevCoU32 => carry(true, |[a, b, _], c| sub(b, a, c)),
        Op::VCndmaskB32 => Some(Masked {
            dst: Kind::B32,
            // Modifiers are those of floating point.
            src: [Kind::F32, Kind::F32, Kind::B32],
            count: 2,
            takes: true,
            eval: |[a, b, _], c| (if c { b } else { a }, false),
        }),
        Op::VCndmaskB16 => Some(Masked {
            dst: Kind::B16,
            src: [Kind::F16, Kind::F16, Kind::B32],
            count: 2,
            takes: true,
            eval: |[a, b, _], c| (if c { b } else { a }, false),
        }),
        Op::VMadU64U32 => Some(Masked {
            dst: Kind::U64,
            src: [Kind::U32, Kind::U32, Kind::U64],
            count: 3,
            takes: false,
            eval: |[a, b, c], _| {
                let sum = a * b + c;
                (sum, sum >> 64 & 1 == 1)
            },
        }),
        Op::VMadI64I32 => Some(Masked {
            dst: Kind::I64,
            src: [Kind::I32, Kind::I32, Kind::I64],
            count: 3,
            takes: false,
            eval: |[a, b, c], _| {
                let sum = a * b + c;
                (sum, sum >> 64 & 1 == 1)
            },
        }),
        Op::VDivScaleF32 => Some(Masked {
            dst: Kind::F32,
            src: [Kind::F32; 3],
            count: 3,
            takes: false,
            eval: |values, _| div_scale(F32, values),
        }),
        Op::VDivScaleF64 => Some(Masked {
            dst: Kind::F64,
            src: [Kind::F64; 3],
            count: 3,
            takes: false,
            eval: |values, _| div_scale(F64, values),
        }),
        _ => None,
    }
}

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    masked(op).is_some()
}

/// Kinds of the destination and the sources.
pub(crate) fn kinds(op: Op) -> Option<(Kind, [Kind; 3])> {
    masked(op).map(|masked| (masked.dst, masked.src))
}

/// Executes an operation with a mask; nothing if it is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    masked(inst.op).map(|masked| run(&masked, inst, wave, group))
}

fn run(masked: &Masked, inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let sources = Sources::read(inst, wave, group, &masked.src, masked.count, false)?;
    let [_, _, selector] = inst.src;
    let taken = if masked.takes { operand::mask(wave, group, selector)? } else { 0 };
    check_scalar(wave, inst.sdst, if wave.lanes == 32 { Kind::B32 } else { Kind::B64 })?;
    let first = operand::row(wave, inst.dst, masked.dst.words())?;
    let active = wave.exec() & sources.write;
    // Division's scaling takes denormals as MODE says: tinygrad's test of hardware wants what a
    // zero denominator gives where they are flushed.
    let fpu = masked.dst.format().map(|format| Fpu::new(format, wave.mode));
    let mut values = [0; LANES];
    let mut given = 0;
    for (lane, value) in values.iter_mut().enumerate() {
        if active >> lane & 1 == 0 {
            continue;
        }
        let mut source = [0; 3];
        for ((to, bits), kind) in source.iter_mut().zip(sources.lane(lane)).zip(masked.src) {
            *to = kind.integer(fpu.map_or(bits, |fpu| fpu.input(bits)));
        }
        let (result, bit) = (masked.eval)(source, taken >> lane & 1 == 1);
        let clamp = inst.mods.clamp && masked.dst.format().is_none();
        let result = masked.dst.wrap(result, clamp);
        let result = finish(result, masked.dst, &inst.mods, wave.mode);
        *value = placed(inst, wave, masked.dst, false, operand::lane(wave, first, lane), result);
        given |= u64::from(bit) << lane;
    }
    let pending = Pending::new(wave, inst.dst, masked.dst, values, active)?;
    operand::set_mask(wave, inst.sdst, given)?;
    pending.write(wave);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::meaning::semantics;
    use super::super::semantics::Env;
    use super::*;
    use vkfd_isa::Target;

    /// The division that compilers make of these operations.
    fn divide(f: Format, numerator: u64, denominator: u64) -> u64 {
        let fpu = Fpu::exact(f);
        let scale = |value: u64| {
            let (bits, flag) = div_scale(f, [value, denominator, numerator].map(i128::from));
            (super::super::kind::low64(bits.unsigned_abs()), flag)
        };
        let (d, _) = scale(denominator);
        let (n, flag) = scale(numerator);
        let minus = fpu.neg(d);
        let mut r = if f == F32 { super::super::transcendental::SINGLE.rcp(d) } else { fpu.rcp(d) };
        for _ in 0..if f == F32 { 1 } else { 2 } {
            r = fpu.fma(fpu.fma(minus, r, f.one()), r, r);
        }
        let mut q = fpu.mul(n, r);
        if f == F32 {
            q = fpu.fma(fpu.fma(minus, q, n), r, q);
        }
        let rest = fpu.fma(minus, q, n);
        let env = Env { mode: Mode::DEFAULT, target: Target::Gfx900, lane: 0, vcc: flag };
        let apply = |op, sources| semantics(op).map_or(0, |meaning| meaning.lane(&env, sources, false));
        let (fmas, fixup) =
            if f == F32 { (Op::VDivFmasF32, Op::VDivFixupF32) } else { (Op::VDivFmasF64, Op::VDivFixupF64) };
        let q = apply(fmas, [rest, r, q]);
        apply(fixup, [q, denominator, numerator])
    }

    fn check(f: Format, a: u64, b: u64) {
        let expected = Fpu::exact(f).div(a, b);
        let got = divide(f, a, b);
        assert!(expected == got || f.is_nan(expected) && f.is_nan(got), "{a:#x} / {b:#x}: {got:#x}, not {expected:#x}");
    }

    #[test]
    fn whole_divisions_are_correctly_rounded() {
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            seed ^ seed >> 31
        };
        for f in [F32, F64] {
            let top = f.infinity() >> f.man;
            let mut edges = vec![0, 1, 2, f.one(), f.infinity(), f.infinity() - 1, f.infinity() + 1];
            for field in
                [1, 2, 22, 23, 24, 30, 53, 54, 64, 96, 97, top / 2, top - 97, top - 96, top - 3, top - 2, top - 1]
            {
                edges.extend([field << f.man, (field << f.man) + 1, ((field + 1) << f.man) - 1]);
            }
            for &a in &edges {
                for &b in &edges {
                    check(f, a, b);
                    check(f, a | f.sign_bit(), b);
                }
            }
            for _ in 0..20_000 {
                let mask = f.sign_bit() | (f.sign_bit() - 1);
                check(f, next() & mask, next() & mask);
            }
        }
    }
}
