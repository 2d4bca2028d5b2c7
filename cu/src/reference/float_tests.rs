// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The arithmetic beside Berkeley SoftFloat, which has no line in common with it.
//!
//! Operands have exponents and significands from the edges of their format. SoftFloat's NaNs are
//! x86's, so that of a NaN only that it is one is compared.

use super::float::{Format, Fpu, F16, F32, F64};
use crate::wave::Round;
use softfloat_wrapper::{Float, RoundingMode, F16 as Half, F32 as Single, F64 as Double};

const MODES: [(Round, RoundingMode); 4] = [
    (Round::Nearest, RoundingMode::TiesToEven),
    (Round::Up, RoundingMode::TowardPositive),
    (Round::Down, RoundingMode::TowardNegative),
    (Round::Zero, RoundingMode::TowardZero),
];

/// Numbers at the edges of a format: of both signs, with each of these exponents and significands.
fn edges(format: Format, fields: &[i32], significands: &[u64]) -> Vec<u64> {
    let mut all = Vec::new();
    for field in fields {
        // Negative ones count from the largest.
        let largest = format.infinity() >> format.man;
        let field = if *field < 0 { largest + 1 - u64::from(field.unsigned_abs()) } else { *field as u64 };
        for significand in significands {
            let magnitude = field << format.man | significand & ((1 << format.man) - 1);
            all.extend([magnitude, format.signed(magnitude, true)]);
        }
    }
    all
}

fn fields(format: Format) -> Vec<i32> {
    let (bias, man) = (format.bias(), format.man as i32);
    vec![0, 1, 2, bias - man, bias - 1, bias, bias + 1, (bias + man).min(2 * bias), -3, -2, -1]
}

#[track_caller]
fn same(format: Format, what: &str, of: &[u64], ours: u64, theirs: u64) {
    let nans = format.is_nan(ours) && format.is_nan(theirs);
    assert!(nans || ours == theirs, "{format:?} {what} of {of:x?}: {ours:#x}, SoftFloat has {theirs:#x}");
}

fn compared<F: Float + Copy>(format: Format, to: impl Fn(u64) -> F, bits: impl Fn(F) -> u64) {
    let (middle, all) = (1 << (format.man - 1), (1 << format.man) - 1);
    let numbers = edges(format, &fields(format), &[0, 1, 2, middle - 1, middle, middle + 1, all - 1, all]);
    let few = edges(format, &[0, 1, format.bias() - 1, format.bias(), -2, -1], &[0, 1, all]);
    for (round, mode) in MODES {
        let fpu = Fpu::exact(format).rounding(round);
        for &a in &numbers {
            let x = to(a);
            same(format, "sqrt", &[a], fpu.sqrt(a), bits(x.sqrt(mode)));
            same(format, "integral", &[a], fpu.integral(a, round), bits(x.round_to_integral(mode)));
            for &b in &numbers {
                let y = to(b);
                same(format, "add", &[a, b], fpu.add(a, b), bits(x.add(y, mode)));
                same(format, "sub", &[a, b], fpu.sub(a, b), bits(x.sub(y, mode)));
                same(format, "mul", &[a, b], fpu.mul(a, b), bits(x.mul(y, mode)));
                same(format, "div", &[a, b], fpu.div(a, b), bits(x.div(y, mode)));
            }
        }
        for &a in &few {
            for &b in &few {
                for &c in &few {
                    let theirs = to(a).fused_mul_add(to(b), to(c), mode);
                    same(format, "fma", &[a, b, c], fpu.fma(a, b, c), bits(theirs));
                }
            }
        }
    }
    for &a in &numbers {
        for &b in &numbers {
            assert_eq!(Fpu::exact(format).compare(a, b), to(a).compare(to(b)), "{format:?} compare {a:#x} {b:#x}");
        }
    }
}

#[test]
fn halves_are_softfloats() {
    compared(F16, |bits| Half::from_bits(bits as u16), |float| float.to_bits().into());
}

#[test]
fn singles_are_softfloats() {
    compared(F32, |bits| Single::from_bits(bits as u32), |float| float.to_bits().into());
}

#[test]
fn doubles_are_softfloats() {
    compared(F64, Double::from_bits, |float| float.to_bits());
}

#[test]
fn conversions_are_softfloats() {
    let exact = Fpu::exact;
    for (round, mode) in MODES {
        for bits in 0..=u16::MAX {
            let (half, from) = (Half::from_bits(bits), exact(F16));
            let of = [bits.into()];
            same(F32, "a half", &of, exact(F32).convert(from, of[0]), half.to_f32(mode).to_bits().into());
            same(F64, "a half", &of, exact(F64).convert(from, of[0]), half.to_f64(mode).to_bits());
            if !F16.is_nan(of[0]) && !F16.is_infinite(of[0]) {
                let ours = from.to_int(of[0], round, i32::MIN.into(), i32::MAX.into());
                assert_eq!(ours, half.to_i32(mode, false).into(), "the integer of {bits:#x}");
            }
        }
        let (middle, all) = (1 << 51, (1 << 52) - 1);
        let significands = [0, 1, middle, middle + 1, all, 1 << 28, (1 << 28) + 1, 3 << 28, 1 << 41, (1 << 41) + 1];
        let near = |format: Format| F64.bias() - format.bias()..F64.bias() - format.bias() + 3;
        let mut exponents: Vec<i32> = fields(F64);
        for format in [F16, F32] {
            let deep = F64.bias() - format.bias() - format.man as i32;
            exponents.extend(near(format).chain(deep - 2..deep + 3));
            exponents.extend(F64.bias() + format.bias() - 1..F64.bias() + format.bias() + 3);
        }
        for bits in edges(F64, &exponents, &significands) {
            let (double, from) = (Double::from_bits(bits), exact(F64));
            let to = |format: Format| exact(format).rounding(round).convert(from, bits);
            same(F32, "a double", &[bits], to(F32), double.to_f32(mode).to_bits().into());
            same(F16, "a double", &[bits], to(F16), double.to_f16(mode).to_bits().into());
        }
        for value in [0, 1, -1, 0xff_ffff, 0x100_0001, 0x100_0003, i32::MAX, i32::MIN, i32::MIN + 1, 2047, 2049, 65519]
        {
            let of = exact(F32).rounding(round).of_int(value.into());
            same(F32, "an integer", &[value as u64], of, Single::from_i32(value, mode).to_bits().into());
        }
    }
}
