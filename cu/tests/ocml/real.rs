// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Floating-point formats: values of bits, distances in units in the last place, arguments worth
//! trying.

use crate::support::Numbers;

/// A format that OpenCL has.
#[derive(Clone, Copy)]
pub struct Real {
    /// OpenCL's name.
    pub name: &'static str,
    /// Bits of the fraction.
    fraction: i32,
    /// The largest exponent.
    exponent: i32,
}

pub const HALF: Real = Real { name: "half", fraction: 10, exponent: 15 };
pub const SINGLE: Real = Real { name: "float", fraction: 23, exponent: 127 };
pub const DOUBLE: Real = Real { name: "double", fraction: 52, exponent: 1023 };

impl Real {
    pub fn bits(self) -> usize {
        8 * self.bytes()
    }

    pub fn bytes(self) -> usize {
        match self.fraction {
            10 => 2,
            23 => 4,
            _ => 8,
        }
    }

    /// The least number that is no denormal one.
    pub fn least(self) -> f64 {
        2f64.powi(1 - self.exponent)
    }

    fn most(self) -> f64 {
        (2.0 - 2f64.powi(-self.fraction)) * 2f64.powi(self.exponent)
    }

    pub fn value(self, bits: u64) -> f64 {
        match self.fraction {
            10 => {
                let magnitude = bits & 0x7fff;
                let (field, fraction) = (magnitude >> 10, magnitude & 0x3ff);
                let value = match field {
                    0 => fraction as f64 * 2f64.powi(-24),
                    31 if fraction != 0 => f64::NAN,
                    31 => f64::INFINITY,
                    _ => (1024 + fraction) as f64 * 2f64.powi(field as i32 - 25),
                };
                if bits & 0x8000 != 0 {
                    -value
                } else {
                    value
                }
            }
            23 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        }
    }

    /// How far `got` is from the sum of `value`, in units in the last place of the value.
    pub fn error(self, got: f64, value: [f64; 2]) -> f64 {
        let [high, low] = value;
        if high.is_nan() || got.is_nan() {
            return if high.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
        }
        let most = self.most();
        let unit_of = |x: f64| 2f64.powi(exponent(x) - self.fraction);
        if got.is_infinite() || high.is_infinite() {
            // An overflow: from half a unit beyond the largest number on, infinity is right.
            let far = high.abs() >= most + unit_of(most) / 2.0;
            let same = got.is_sign_negative() == high.is_sign_negative();
            return if got.is_infinite() && far && same { 0.0 } else { f64::INFINITY };
        }
        let places = self.fraction - exponent(high.abs().max(self.least()));
        (scaled(got - high, places) - scaled(low, places)).abs()
    }

    /// Arguments: the edges, then numbers of all magnitudes; of halves all, if so many are wanted.
    pub fn arguments(self, numbers: &mut Numbers, count: usize, two: bool) -> Vec<[u64; 2]> {
        if self.fraction == 10 && count >= 1 << 16 && !two {
            return (0..1 << 16).map(|bits| [bits, 0]).collect();
        }
        let edges = self.edges();
        let mut arguments = Vec::with_capacity(count);
        for n in 0..count {
            let mut pair = [self.any(numbers), self.any(numbers)];
            if two && n < edges.len() * edges.len() && n < count / 2 {
                pair = [edges[n % edges.len()], edges[n / edges.len()]];
            } else if !two && n < edges.len() {
                pair[0] = edges[n];
            }
            arguments.push(pair);
        }
        arguments
    }

    fn edges(self) -> Vec<u64> {
        let sign = 1u64 << (self.bits() - 1);
        let one = self.of(1.0);
        let infinity = self.of(f64::INFINITY);
        let plain = [
            0,
            1,
            (1 << self.fraction) - 1,
            1 << self.fraction,
            one - 1,
            one,
            one + 1,
            self.of(2.0),
            self.of(0.5),
            self.of(3.0),
            self.of(10.0),
            infinity - 1,
            infinity,
            infinity | 1 << (self.fraction - 1),
        ];
        plain.into_iter().flat_map(|bits| [bits, bits | sign]).collect()
    }

    /// The bits of a number, cut off.
    fn of(self, value: f64) -> u64 {
        match self.fraction {
            52 => value.to_bits(),
            23 => (value as f32).to_bits().into(),
            _ => {
                let single = value as f32;
                let bits = single.to_bits();
                let sign = u64::from(bits >> 31) << 15;
                let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
                match exponent {
                    _ if single.is_infinite() => sign | 0x7c00,
                    ..=0 => sign,
                    31.. => sign | 0x7bff,
                    _ => sign | (exponent as u64) << 10 | u64::from(bits >> 13 & 0x3ff),
                }
            }
        }
    }

    fn any(self, numbers: &mut Numbers) -> u64 {
        let mask = if self.bits() == 64 { u64::MAX } else { (1 << self.bits()) - 1 };
        let unit = (numbers.next() >> 11) as f64 * 2f64.powi(-53);
        match numbers.below(6) {
            0 => numbers.next() & mask,
            1 => self.of(unit * 2.0 - 1.0),
            2 => self.of(unit * 20.0 - 10.0),
            3 => self.of((unit * 2.0 - 1.0) * f64::from(self.exponent)),
            // Near multiples of a quarter of pi.
            4 => self.of(std::f64::consts::FRAC_PI_4 * numbers.below(200) as f64) + numbers.below(5),
            _ => {
                let small = self.of(2f64.powf(unit * 60.0 - 30.0));
                small | (numbers.next() & 1) << (self.bits() - 1)
            }
        }
    }
}

/// `x` times two to the power of `places`, which may itself be no number.
fn scaled(x: f64, places: i32) -> f64 {
    x * 2f64.powi(places / 2) * 2f64.powi(places - places / 2)
}

/// The exponent of a number.
fn exponent(x: f64) -> i32 {
    if x == 0.0 {
        return -1074;
    }
    let field = (x.to_bits() >> 52 & 0x7ff) as i32;
    if field == 0 {
        -1011 - x.to_bits().leading_zeros() as i32
    } else {
        field - 1023
    }
}
