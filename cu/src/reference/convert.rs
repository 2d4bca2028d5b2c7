// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Conversions that are more than a rounding: normalised integers, packed results, 8-bit floating
//! point.

use super::float::{Fpu, Number, F32};
use super::kind::{sign_extend, Kind};
use crate::wave::Round;

/// `floor(a + 0.5)` as an integer of 32 bits; the sum is rounded first.
pub(crate) fn rpi(fpu: Fpu, a: u64) -> u64 {
    let sum = fpu.rounding(Round::Nearest).add(a, fpu.format.power(-1));
    Kind::I32.wrap(fpu.to_int(sum, Round::Down, i32::MIN.into(), i32::MAX.into()), false)
}

/// A signed number of four bits, in sixteenths.
pub(crate) fn offset4(a: u64) -> u64 {
    let n = Number::of(sign_extend(a & 15, 4).into());
    Fpu::exact(F32).round(n.scaled(-4))
}

/// A number in [-1, 1] as a signed fraction of 16 bits.
pub(crate) fn snorm16(fpu: Fpu, a: u64) -> u64 {
    Kind::I16.wrap(normalised(fpu, a, 32767, -32767), false)
}

/// A number in [0, 1] as an unsigned fraction of 16 bits.
pub(crate) fn unorm16(fpu: Fpu, a: u64) -> u64 {
    Kind::U16.wrap(normalised(fpu, a, 65535, 0), false)
}

fn normalised(fpu: Fpu, a: u64, scale: i128, low: i128) -> i128 {
    let f = fpu.format;
    let a = fpu.input(a);
    if f.is_nan(a) {
        return 0;
    }
    if f.is_infinite(a) {
        return if f.negative(a) { low } else { scale };
    }
    let n = f.number(a);
    let product = Number { sig: n.sig * scale.unsigned_abs(), ..n };
    product.integer(Round::Nearest).0.clamp(low, scale)
}

/// Two signed halves as unsigned bytes.
pub(crate) fn saturate_pair(a: u64) -> u64 {
    let byte = |half: u64| Kind::I16.integer(half).clamp(0, 255).unsigned_abs();
    super::kind::low64(byte(a) | byte(a >> 16) << 8)
}

/// A number as a byte, by truncation.
pub(crate) fn to_byte(fpu: Fpu, a: u64) -> u64 {
    Kind::U32.wrap(fpu.to_int(a, Round::Zero, 0, 255), false)
}

/// Floating point of eight bits with one NaN and no infinity nor negative zero ("fnuz").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    man: u32,
    bias: i32,
}

/// Three bits of significand.
pub(crate) const FP8: Tiny = Tiny { man: 3, bias: 8 };
/// Two bits of significand.
pub(crate) const BF8: Tiny = Tiny { man: 2, bias: 16 };

impl Tiny {
    /// The number; nothing if it is the NaN.
    pub(crate) fn number(self, bits: u64) -> Option<Number> {
        if bits & 0xff == 0x80 {
            return None;
        }
        let field = (bits & 0x7f) >> self.man;
        let stored = bits & ((1 << self.man) - 1);
        let (sig, field) = if field == 0 { (stored, 1) } else { (stored | 1 << self.man, field) };
        let exp = i32::try_from(field).unwrap_or(0) - self.bias - self.man as i32;
        Some(Number { negative: bits & 0x80 != 0, sig: sig.into(), exp })
    }

    /// As single precision.
    pub(crate) fn decode(self, bits: u64) -> u64 {
        self.number(bits).map_or(F32.invalid(), |n| Fpu::exact(F32).round(n))
    }

    /// Two as single precision.
    pub(crate) fn decode_pair(self, bits: u64) -> u64 {
        self.decode(bits & 0xff) | self.decode(bits >> 8 & 0xff) << 32
    }

    /// Two numbers as two bytes, see [`encode`](Self::encode).
    pub(crate) fn encode_pair(self, low: u64, high: u64, finite: bool) -> u64 {
        self.encode(low, finite) | self.encode(high, finite) << 8
    }

    /// From single precision, to nearest. What is too large is the NaN, or the largest number if
    /// `finite`.
    pub(crate) fn encode(self, bits: u64, finite: bool) -> u64 {
        if F32.is_nan(bits) {
            return 0x80;
        }
        let too_large = |negative: bool| match (finite, negative) {
            (false, _) => 0x80,
            (true, false) => 0x7f,
            (true, true) => 0xff,
        };
        if F32.is_infinite(bits) {
            return too_large(F32.negative(bits));
        }
        let n = F32.number(bits);
        if n.sig == 0 {
            return 0;
        }
        let least = 1 - self.bias;
        let top = n.top().max(least);
        let quantum = top - self.man as i32;
        let (steps, _) = Number { negative: false, ..n.scaled(-quantum) }.integer(Round::Nearest);
        let steps = u64::try_from(steps).unwrap_or(0);
        // A carry out of the significand counts up the exponent by itself.
        let field = u64::try_from(top - least).unwrap_or(0) << self.man;
        let magnitude = field + steps;
        if magnitude > 0x7f {
            return too_large(n.negative);
        }
        if magnitude == 0 {
            return 0;
        }
        magnitude | u64::from(n.negative) << 7
    }

    /// From single precision with `random` added below what is kept.
    pub(crate) fn encode_stochastic(self, bits: u64, random: u64, finite: bool) -> u64 {
        if F32.is_nan(bits) || F32.is_infinite(bits) {
            return self.encode(bits, finite);
        }
        let n = F32.number(bits);
        // Random bits lie directly under the significand's last bit that is kept.
        let top = n.top().max(1 - self.bias);
        let quantum = top - self.man as i32;
        let below = quantum - n.exp;
        if n.sig == 0 || below <= 0 {
            return self.encode(bits, finite);
        }
        if below > 64 {
            // Far below the least: the random bits, which end 32 places up, carry nothing into it.
            return 0;
        }
        let width = u32::try_from(below.min(32)).unwrap_or(0);
        let added = u128::from((random & 0xffff_ffff) >> (32 - width)) << (below - below.min(32));
        let sig = (n.sig + added) >> below << below;
        let moved = Number { sig, ..n };
        let wide = Fpu::exact(super::float::F64).round(moved);
        let single = Fpu::exact(F32).convert(Fpu::exact(super::float::F64), wide);
        self.encode(single, finite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_below_the_least_is_zero_whatever_is_added() {
        for tiny in [FP8, BF8] {
            for bits in [1, 0x8000_0001, 0x007f_ffff, 0x0080_0000, 0x1000_0000] {
                for random in [0, 1, 0x8000_0000, u64::MAX] {
                    assert_eq!(tiny.encode_stochastic(bits, random, false), 0, "{bits:#x} {random:#x}");
                }
            }
        }
    }

    #[test]
    fn random_bits_decide_between_neighbours() {
        // A quarter of the way from 1 to the next number.
        let between = |tiny: Tiny| 0x3f80_0000 | 1 << (23 - tiny.man - 2);
        for tiny in [FP8, BF8] {
            let one = tiny.encode(0x3f80_0000, false);
            assert_eq!(tiny.encode_stochastic(between(tiny), 0, false), one);
            assert_eq!(tiny.encode_stochastic(between(tiny), 0xffff_ffff, false), one + 1);
        }
    }
}
