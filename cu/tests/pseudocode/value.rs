// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Values of the pseudo-code: bits with a width, and what they count as. Floating point is the
//! host's, so that nothing of the engine under test is used to test it.

/// What bits count as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Unsigned,
    Signed,
    Float,
    Brain,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub bits: u128,
    pub width: u32,
    pub class: Class,
    /// A zero that was written with its sign: compared by its bits.
    pub signed_zero: bool,
}

pub fn mask(width: u32) -> u128 {
    if width >= 128 {
        u128::MAX
    } else {
        (1 << width) - 1
    }
}

impl Value {
    pub fn new(bits: u128, width: u32, class: Class) -> Value {
        Value { bits: bits & mask(width), width, class, signed_zero: false }
    }

    pub fn int(value: i128, width: u32, signed: bool) -> Value {
        Value::new(value as u128, width, if signed { Class::Signed } else { Class::Unsigned })
    }

    pub fn flag(value: bool) -> Value {
        Value::int(value.into(), 1, false)
    }

    /// A number in the format of `width` bits.
    pub fn float(value: f64, width: u32) -> Value {
        let bits = match width {
            16 => u128::from(half_from(value)),
            32 => u128::from((value as f32).to_bits()),
            _ => u128::from(value.to_bits()),
        };
        Value::new(bits, width, Class::Float)
    }

    pub fn is_float(&self) -> bool {
        matches!(self.class, Class::Float | Class::Brain)
    }

    /// As an integer; a number is cut off.
    pub fn integer(&self) -> i128 {
        match self.class {
            Class::Signed if self.width < 128 && self.bits >> (self.width - 1) & 1 == 1 => {
                self.bits as i128 - (1i128 << self.width)
            }
            Class::Float | Class::Brain => self.number() as i128,
            _ => self.bits as i128,
        }
    }

    /// As a number.
    pub fn number(&self) -> f64 {
        match (self.class, self.width) {
            (Class::Float, 16) => half_to(self.bits as u16),
            (Class::Float, 32) => f64::from(f32::from_bits(self.bits as u32)),
            (Class::Float, _) => f64::from_bits(self.bits as u64),
            (Class::Brain, _) => f64::from(f32::from_bits((self.bits as u32) << 16)),
            _ => self.integer() as f64,
        }
    }

    pub fn truth(&self) -> bool {
        self.bits != 0
    }

    /// Width of the stored significand.
    pub fn significand(&self) -> u32 {
        match (self.class, self.width) {
            (Class::Brain, _) => 7,
            (_, 16) => 10,
            (_, 32) => 23,
            _ => 52,
        }
    }

    pub fn field(&self) -> i128 {
        let magnitude = self.bits & mask(self.width - 1);
        (magnitude >> self.significand()) as i128
    }

    pub fn is_nan(&self) -> bool {
        let magnitude = self.bits & mask(self.width - 1);
        let infinity = mask(self.width - 1) >> self.significand() << self.significand();
        self.is_float() && magnitude > infinity
    }

    pub fn is_quiet(&self) -> bool {
        self.is_nan() && self.bits >> (self.significand() - 1) & 1 == 1
    }

    /// The same number in another format; a signalling NaN stays one.
    pub fn to_float(self, width: u32) -> Value {
        if self.is_nan() {
            let shape = Value::new(0, width, Class::Float);
            let (from, to) = (self.significand(), shape.significand());
            let payload = self.bits & mask(from);
            let payload = if to >= from { payload << (to - from) } else { payload >> (from - to) };
            let payload = if payload == 0 { 1 << (to - 1) } else { payload };
            let infinity = mask(width - 1) >> to << to;
            let sign = (self.bits >> (self.width - 1) & 1) << (width - 1);
            return Value::new(sign | infinity | payload, width, Class::Float);
        }
        let mut value = Value::float(self.number(), width);
        value.signed_zero = self.signed_zero;
        value
    }
}

/// The nearest half, ties to even.
pub fn half_from(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    if value.is_nan() {
        return sign | 0x7e00;
    }
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return sign;
    }
    if magnitude.is_infinite() {
        return sign | 0x7c00;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(-14);
    let steps = (magnitude / 2f64.powi(exponent - 10)).round_ties_even();
    if exponent > 15 {
        return sign | 0x7c00;
    }
    let bits = ((exponent + 14) as f64) * 1024.0 + steps;
    if bits >= 31744.0 {
        return sign | 0x7c00;
    }
    sign | bits as u16
}

/// A half's number.
pub fn half_to(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (field, stored) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    match field {
        0 => sign * stored * 2f64.powi(-24),
        31 if stored == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + stored) * 2f64.powi(field - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_there_and_back() {
        for bits in 0..=0xffffu16 {
            let number = half_to(bits);
            if !number.is_nan() {
                assert_eq!(half_from(number), bits);
            }
        }
        assert_eq!(half_from(65519.9), 0x7bff);
        assert_eq!(half_from(65520.0), 0x7c00);
        assert_eq!(half_from(2f64.powi(-25)), 0);
        assert_eq!(half_from(1.0 + 3.0 * 2f64.powi(-11)), 0x3c02);
    }
}
