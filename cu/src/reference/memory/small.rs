// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Short floating-point numbers in memory: 16 bits, bfloat16, and the unsigned ones of 10 and 11
//! bits.

/// The value of a float with `exponent` and `mantissa` bits and, above them, a sign if there is
/// one. Exact.
fn widen(bits: u32, exponent: u32, mantissa: u32) -> f32 {
    let fraction = bits & ((1 << mantissa) - 1);
    let power = bits >> mantissa & ((1 << exponent) - 1);
    let sign = bits >> (mantissa + exponent) & 1;
    let bias = (1 << (exponent - 1)) - 1;
    let magnitude = if power == (1 << exponent) - 1 {
        return f32::from_bits(sign << 31 | 0xff << 23 | fraction << (23 - mantissa));
    } else if power == 0 {
        // A multiple of the smallest number, 2^(1 - bias - mantissa).
        fraction as f32 * f32::from_bits((128 - bias - mantissa) << 23)
    } else {
        f32::from_bits((power + 127 - bias) << 23 | fraction << (23 - mantissa))
    };
    f32::from_bits(sign << 31 | magnitude.to_bits())
}

/// Rounds to nearest even; the sign, if any, is above the rest. NaN becomes a quiet one.
fn narrow(value: f32, exponent: u32, mantissa: u32) -> u32 {
    let bits = value.to_bits();
    let infinity = ((1 << exponent) - 1) << mantissa;
    let sign = bits >> 31 << (exponent + mantissa);
    let (power, fraction) = (bits >> 23 & 0xff, bits & 0x7f_ffff);
    if power == 0xff {
        let payload = if fraction == 0 { 0 } else { 1 << (mantissa - 1) | fraction >> (23 - mantissa) };
        return sign | infinity | payload;
    }
    let bias = (1 << (exponent - 1)) - 1;
    // The exponent in the short format; at most zero if denormal there.
    let short = power as i32 - 127 + bias;
    let shift = 23 - mantissa as i32 + (1 - short).max(0);
    if power == 0 || shift > 25 {
        return sign;
    }
    let full = fraction | 1 << 23;
    let (kept, rest) = (full >> shift, full & ((1 << shift) - 1));
    let half = 1 << (shift - 1);
    let kept = kept + u32::from(rest > half || rest == half && kept & 1 != 0);
    // The implicit bit adds one to the exponent, and so does a carry out of the fraction.
    let result = ((short.max(1) - 1) as u32) << mantissa;
    sign | (result + kept).min(infinity)
}

/// A half's value.
pub(crate) fn from_half(bits: u16) -> f32 {
    widen(bits.into(), 5, 10)
}

/// Rounded to a half.
pub(crate) fn to_half(value: f32) -> u16 {
    narrow(value, 5, 10) as u16
}

/// The value of an unsigned float of five exponent bits and `mantissa` others.
pub(super) fn from_unsigned(bits: u32, mantissa: u32) -> f32 {
    widen(bits & ((1 << (mantissa + 5)) - 1), 5, mantissa)
}

/// Rounded to an unsigned float; negative numbers are zero.
pub(super) fn to_unsigned(value: f32, mantissa: u32) -> u32 {
    if value.is_sign_negative() && !value.is_nan() {
        return 0;
    }
    narrow(f32::from_bits(value.to_bits() & 0x7fff_ffff), 5, mantissa)
}

/// Sum of two floats: a NaN of the operands, quieted, or the positive default one.
pub(super) fn add32(a: f32, b: f32) -> f32 {
    if let Some(nan) = [a, b].into_iter().find(|value| value.is_nan()) {
        return f32::from_bits(nan.to_bits() | 1 << 22);
    }
    let sum = a + b;
    if sum.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        sum
    }
}

/// As [`add32`].
pub(super) fn add64(a: f64, b: f64) -> f64 {
    if let Some(nan) = [a, b].into_iter().find(|value| value.is_nan()) {
        return f64::from_bits(nan.to_bits() | 1 << 51);
    }
    let sum = a + b;
    if sum.is_nan() {
        f64::from_bits(0x7ff8_0000_0000_0000)
    } else {
        sum
    }
}

/// Sum of two halves. The sum of floats is exact enough to be rounded once more.
pub(super) fn add_half(a: u16, b: u16) -> u16 {
    to_half(add32(from_half(a), from_half(b)))
}

/// Sum of two bfloat16s, rounded to nearest even.
pub(super) fn add_bfloat(a: u16, b: u16) -> u16 {
    let sum = add32(f32::from_bits(u32::from(a) << 16), f32::from_bits(u32::from(b) << 16));
    let bits = sum.to_bits();
    if sum.is_nan() {
        return (bits >> 16) as u16 | 1 << 6;
    }
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Zero, with its sign, for a denormal number.
pub(super) fn flush(value: u32) -> u32 {
    if value >> 23 & 0xff == 0 {
        value & 1 << 31
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            let value = from_half(bits);
            if value.is_nan() {
                assert_eq!(to_half(value), bits | 0x200);
            } else {
                assert_eq!(to_half(value), bits, "{value}");
            }
        }
        assert_eq!(from_half(0x3c01), 1.0 + 1.0 / 1024.0);
        assert_eq!(from_half(1), 1.0 / 16_777_216.0);
        assert_eq!(from_half(0xfbff), -65504.0);
    }

    #[test]
    fn halves_are_rounded_to_nearest_even() {
        // Against the definition: no half is nearer, and of two as near the even one is taken.
        let mut state = 1u32;
        for _ in 0..200_000 {
            state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x3c6e_f35f);
            let value = f32::from_bits(state >> 1 & 0x0fff_ffff | 0x3000_0000);
            let bits = to_half(value);
            let (here, low, high) = (from_half(bits), from_half(bits.max(1) - 1), from_half(bits + 1));
            if bits == 0 {
                assert!(value <= 2.980_232_2e-8, "{value}");
                continue;
            }
            if here.is_infinite() {
                assert!(value >= 65520.0, "{value}");
                continue;
            }
            let error = |other: f32| (f64::from(other) - f64::from(value)).abs();
            for other in [low, high].into_iter().filter(|other| other.is_finite()) {
                assert!(error(here) < error(other) || error(here) == error(other) && bits & 1 == 0, "{value}");
            }
        }
        assert_eq!(
            [to_half(65519.996), to_half(65520.0), to_half(1e-8), to_half(2.980_232_5e-8)],
            [0x7bff, 0x7c00, 0, 1]
        );
    }

    #[test]
    fn unsigned_floats() {
        for mantissa in [5, 6] {
            for bits in 0..31 << mantissa {
                assert_eq!(to_unsigned(from_unsigned(bits, mantissa), mantissa), bits);
            }
            assert_eq!(to_unsigned(-1.0, mantissa), 0);
            assert_eq!(to_unsigned(f32::INFINITY, mantissa), 31 << mantissa);
        }
        assert_eq!(from_unsigned(15 << 6 | 1, 6), 1.0 + 1.0 / 64.0);
    }

    #[test]
    fn sums() {
        assert_eq!(add_half(0x3c00, 0x3c00), 0x4000);
        assert_eq!(add_half(0x7c00, 0xfc00), 0x7e00);
        assert_eq!(add_bfloat(0x3f80, 0x3f80), 0x4000);
        assert_eq!(add_bfloat(0x3f80, 0x3b80), 0x3f80, "a tie goes to even");
        assert_eq!(add_bfloat(0x3f81, 0x3b80), 0x3f82);
        assert_eq!(add32(f32::INFINITY, f32::NEG_INFINITY).to_bits(), 0x7fc0_0000);
        assert_eq!(add32(1.0, f32::from_bits(0xff80_0001)).to_bits(), 0xffc0_0001);
        assert_eq!(flush(0x8000_0001), 0x8000_0000);
        assert_eq!(flush(0x0080_0000), 0x0080_0000);
    }
}
