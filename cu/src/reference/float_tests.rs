// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The arithmetic beside LLVM's APFloat, which has no line in common with it.
//!
//! Operands have exponents and significands from the edges of their format. Each vendor has NaNs of
//! its own, so of a NaN only that it is one is compared. APFloat has no square roots: a root is
//! right if the squares of its neighbours are on both sides of the operand, in quadruple precision.

use super::float::{Format, Fpu, F16, F32, F64};
use crate::wave::Round;
use rustc_apfloat::ieee::{Double, Half, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round as Rounding};
use std::cmp::Ordering;

const MODES: [(Round, Rounding); 4] = [
    (Round::Nearest, Rounding::NearestTiesToEven),
    (Round::Up, Rounding::TowardPositive),
    (Round::Down, Rounding::TowardNegative),
    (Round::Zero, Rounding::TowardZero),
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
    assert!(nans || ours == theirs, "{format:?} {what} of {of:x?}: {ours:#x}, APFloat has {theirs:#x}");
}

fn bits<F: Float>(float: F) -> u64 {
    float.to_bits() as u64
}

fn converted<F: FloatConvert<T>, T: Float>(float: F, mode: Rounding) -> T {
    float.convert_r(mode, &mut false).value
}

/// How the square of a positive number compares with another number: exactly, for quadruple
/// precision has more than twice the bits of each format.
fn square<F: FloatConvert<Quad>>(root: Quad, of: F) -> Option<Ordering> {
    root.mul_r(root, Rounding::TowardZero).value.partial_cmp(&converted(of, Rounding::TowardZero))
}

/// Whether `ours` is the rounded root of a positive number that is not infinite.
fn is_root<F: FloatConvert<Quad>>(of: u64, ours: u64, round: Round) -> bool {
    let number = |bits: u64| F::from_bits(bits.into());
    let wide = |bits: u64| converted::<F, Quad>(number(bits), Rounding::TowardZero);
    let half = Quad::from_bits(0x3ffe << 112);
    let middle = |low: u64| {
        let sum = wide(low).add_r(wide(low + 1), Rounding::TowardZero).value;
        sum.mul_r(half, Rounding::TowardZero).value
    };
    let against = |root: Quad| square(root, number(of));
    let (below, above) = match round {
        _ if against(wide(ours)) == Some(Ordering::Equal) => return true,
        Round::Nearest => (middle(ours - 1), middle(ours)),
        Round::Up => (wide(ours - 1), wide(ours)),
        Round::Down | Round::Zero => (wide(ours), wide(ours + 1)),
    };
    (against(below), against(above)) == (Some(Ordering::Less), Some(Ordering::Greater))
}

fn compared<F: FloatConvert<Quad>>(format: Format) {
    let (middle, all) = (1 << (format.man - 1), (1 << format.man) - 1);
    let numbers = edges(format, &fields(format), &[0, 1, 2, middle - 1, middle, middle + 1, all - 1, all]);
    let few = edges(format, &[0, 1, format.bias() - 1, format.bias(), -2, -1], &[0, 1, all]);
    let to = |bits: u64| F::from_bits(bits.into());
    for (round, mode) in MODES {
        let fpu = Fpu::exact(format).rounding(round);
        for &a in &numbers {
            let x = to(a);
            let root = fpu.sqrt(a);
            match x {
                _ if x.is_zero() || x.is_nan() || x.is_infinite() && !x.is_negative() => {
                    same(format, "sqrt", &[a], root, a);
                }
                _ if x.is_negative() => assert!(format.is_nan(root), "{format:?} sqrt of {a:#x}: {root:#x}"),
                _ => assert!(is_root::<F>(a, root, round), "{format:?} sqrt of {a:#x} to {round:?}: {root:#x}"),
            }
            same(format, "integral", &[a], fpu.integral(a, round), bits(x.round_to_integral(mode).value));
            for &b in &numbers {
                let y = to(b);
                same(format, "add", &[a, b], fpu.add(a, b), bits(x.add_r(y, mode).value));
                same(format, "sub", &[a, b], fpu.sub(a, b), bits(x.sub_r(y, mode).value));
                same(format, "mul", &[a, b], fpu.mul(a, b), bits(x.mul_r(y, mode).value));
                same(format, "div", &[a, b], fpu.div(a, b), bits(x.div_r(y, mode).value));
            }
        }
        for &a in &few {
            for &b in &few {
                for &c in &few {
                    let theirs = to(a).mul_add_r(to(b), to(c), mode).value;
                    same(format, "fma", &[a, b, c], fpu.fma(a, b, c), bits(theirs));
                }
            }
        }
    }
    for &a in &numbers {
        for &b in &numbers {
            assert_eq!(Fpu::exact(format).compare(a, b), to(a).partial_cmp(&to(b)), "{format:?} compare {a:#x} {b:#x}");
        }
    }
}

#[test]
fn halves_are_apfloats() {
    compared::<Half>(F16);
}

#[test]
fn singles_are_apfloats() {
    compared::<Single>(F32);
}

#[test]
fn doubles_are_apfloats() {
    compared::<Double>(F64);
}

#[test]
fn a_root_beside_the_right_one_is_noticed() {
    for (round, _) in MODES {
        let fpu = Fpu::exact(F32).rounding(round);
        let of = 0x4049_0fdb;
        let root = fpu.sqrt(of);
        assert!(is_root::<Single>(of, root, round));
        assert!(!is_root::<Single>(of, root - 1, round) && !is_root::<Single>(of, root + 1, round));
    }
}

#[test]
fn conversions_are_apfloats() {
    let exact = Fpu::exact;
    for (round, mode) in MODES {
        for bits in 0..=u16::MAX {
            let (half, from) = (Half::from_bits(bits.into()), exact(F16));
            let of = [bits.into()];
            same(F32, "a half", &of, exact(F32).convert(from, of[0]), self::bits(converted::<_, Single>(half, mode)));
            same(F64, "a half", &of, exact(F64).convert(from, of[0]), self::bits(converted::<_, Double>(half, mode)));
            if !F16.is_nan(of[0]) && !F16.is_infinite(of[0]) {
                let ours = from.to_int(of[0], round, i32::MIN.into(), i32::MAX.into());
                let theirs = half.to_i128_r(32, mode, &mut false).value;
                assert_eq!(ours, theirs, "the integer of {bits:#x}");
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
            let (double, from) = (Double::from_bits(bits.into()), exact(F64));
            let to = |format: Format| exact(format).rounding(round).convert(from, bits);
            same(F32, "a double", &[bits], to(F32), self::bits(converted::<_, Single>(double, mode)));
            same(F16, "a double", &[bits], to(F16), self::bits(converted::<_, Half>(double, mode)));
        }
        for value in [0, 1, -1, 0xff_ffff, 0x100_0001, 0x100_0003, i32::MAX, i32::MIN, i32::MIN + 1, 2047, 2049, 65519]
        {
            let of = exact(F32).rounding(round).of_int(value.into());
            same(F32, "an integer", &[value as u64], of, self::bits(Single::from_i128_r(value.into(), mode).value));
        }
    }
}
