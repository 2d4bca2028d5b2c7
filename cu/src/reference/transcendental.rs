// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Exponential, logarithm, sine and cosine.
//!
//! The hardware's results are within about one unit in the last place, its tables are not
//! published. Here the function is computed in double precision and rounded once. This gives the
//! nearest number in all but about one of 2^28 cases. The host's mathematical library is not used,
//! because its results differ by version. Programs expect the host's floating-point modes to be the
//! default ones while this runs.

use super::float::{Fpu, Number, F32, F64};
use crate::wave::Round;
use std::f64::consts::TAU;
use vkfd_isa::Target;

/// Single precision as the transcendental unit has it: to nearest, without denormals.
pub(crate) const SINGLE: Fpu = Fpu::exact(F32).flushing();

fn to_double(fpu: Fpu, bits: u64) -> f64 {
    f64::from_bits(Fpu::exact(F64).convert(fpu, bits))
}

fn from_double(fpu: Fpu, value: f64) -> u64 {
    fpu.rounding(Round::Nearest).convert(Fpu::exact(F64), value.to_bits())
}

/// Two to the power of `a`.
pub(crate) fn exp2(fpu: Fpu, a: u64) -> u64 {
    let f = fpu.format;
    let a = fpu.input(a);
    if f.is_nan(a) {
        return fpu.quiet(a);
    }
    from_double(fpu, libm::exp2(to_double(fpu, a)))
}

/// Logarithm to base two.
pub(crate) fn log2(fpu: Fpu, a: u64) -> u64 {
    let f = fpu.format;
    let a = fpu.input(a);
    if f.is_nan(a) {
        fpu.quiet(a)
    } else if f.is_zero(a) {
        f.signed(f.infinity(), true)
    } else if f.negative(a) {
        f.invalid()
    } else if f.is_infinite(a) {
        a
    } else {
        from_double(fpu, libm::log2(to_double(fpu, a)))
    }
}

/// Quarter of a turn and what is left of it, of a number of turns: exact.
fn quarter(x: f64) -> (i64, f64) {
    let turn = x - libm::rint(x);
    let quarter = libm::rint(turn * 4.0);
    #[allow(clippy::cast_possible_truncation, reason = "-2 to 2")]
    let number = quarter as i64;
    (number & 3, turn - quarter / 4.0)
}

/// Sine of a number of turns, with positive zeros.
pub(crate) fn sine(turns: f64) -> f64 {
    let (number, rest) = quarter(turns);
    let value = match number {
        0 => libm::sin(rest * TAU),
        1 => libm::cos(rest * TAU),
        2 => -libm::sin(rest * TAU),
        _ => -libm::cos(rest * TAU),
    };
    value + 0.0
}

/// Cosine of a number of turns, with positive zeros.
pub(crate) fn cosine(turns: f64) -> f64 {
    let (number, rest) = quarter(turns);
    let value = match number {
        0 => libm::cos(rest * TAU),
        1 => -libm::sin(rest * TAU),
        2 => -libm::cos(rest * TAU),
        _ => libm::sin(rest * TAU),
    };
    value + 0.0
}

/// Where the hardware gives up: it wants arguments of at most 256 turns.
fn beyond(target: Target, x: f64) -> bool {
    target.is_gfx9() && x.abs() > 256.0
}

/// Sine of a number of turns.
pub(crate) fn sin(fpu: Fpu, target: Target, a: u64) -> u64 {
    let f = fpu.format;
    let a = fpu.input(a);
    if f.is_nan(a) {
        return fpu.quiet(a);
    }
    if f.is_infinite(a) {
        return f.invalid();
    }
    let x = to_double(fpu, a);
    if x == 0.0 {
        return a;
    }
    if beyond(target, x) {
        return 0;
    }
    from_double(fpu, sine(x))
}

/// Cosine of a number of turns.
pub(crate) fn cos(fpu: Fpu, target: Target, a: u64) -> u64 {
    let f = fpu.format;
    let a = fpu.input(a);
    if f.is_nan(a) {
        return fpu.quiet(a);
    }
    if f.is_infinite(a) {
        return f.invalid();
    }
    let x = to_double(fpu, a);
    if beyond(target, x) {
        return f.one();
    }
    from_double(fpu, cosine(x))
}

/// What `v_trig_preop_f64` multiplies with: a segment of 2/pi.
pub(crate) fn trig_preop(fpu: Fpu, a: u64, segment: u64) -> u64 {
    let field = i32::try_from(fpu.format.field(a)).unwrap_or(0);
    let segment = i32::try_from(segment & 31).unwrap_or(0);
    let shift = segment * 53 + (field - 1077).max(0);
    // 53 bits of the fraction from bit `shift` on, counted from its most significant one.
    let mut sig = 0;
    for n in 0..53 {
        let at = usize::try_from(shift + n).unwrap_or(0);
        let bit = TWO_OVER_PI.get(at / 32).map_or(0, |word| word >> (31 - at % 32) & 1);
        sig = sig << 1 | u128::from(bit);
    }
    let scale = -53 - shift + if field >= 1968 { 128 } else { 0 };
    fpu.round(Number { negative: false, sig, exp: scale })
}

/// The first 1201 bits of the fraction of 2/pi, which are all that the hardware has.
#[rustfmt::skip]
const TWO_OVER_PI: [u32; 38] = [
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561,
    0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484,
    0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
    0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b,
    0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b0000,
];
