// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The functions that texts call.

use crate::eval::{kind_of, normalised, saturated, Result};
use crate::value::{mask, Class, Value};

#[allow(clippy::too_many_lines, reason = "a table")]
pub fn builtin(name: &str, arguments: &[Value]) -> Result<Value> {
    let argument = |at: usize| arguments.get(at).copied().ok_or_else(|| format!("{name}: arguments"));
    let a = argument(0)?;
    let float = |number: f64, width| Ok(Value::float(number, width));
    let int = |value: i128, width, signed| Ok(Value::int(value, width, signed));
    if let Some((from, to)) = name.split_once("_to_") {
        let (_, source) = kind_of(from)?;
        let target = match to {
            "snorm" => return Ok(normalised(a, 32767.0, -1.0)),
            "unorm" => return Ok(normalised(a, 65535.0, 0.0)),
            _ => kind_of(to)?,
        };
        return match (source, target) {
            (Class::Float | Class::Brain, (width, Class::Float)) => {
                if a.class == Class::Brain {
                    Ok(Value::new(a.bits << 16, 32, Class::Float))
                } else {
                    Ok(a.to_float(width))
                }
            }
            (Class::Float, (width, Class::Signed)) => {
                Ok(saturated(a, -(1 << (width - 1)), (1 << (width - 1)) - 1, width))
            }
            (Class::Float, (width, Class::Unsigned)) => Ok(saturated(a, 0, (1 << width) - 1, width)),
            (Class::Signed | Class::Unsigned, (width, Class::Float)) => {
                let (source_width, _) = kind_of(from)?;
                let value = Value::new(a.bits, source_width, source).integer();
                // One rounding: from an integer of at most 64 bits to the format.
                Ok(match width {
                    32 => Value::new(u128::from((value as f32).to_bits()), 32, Class::Float),
                    _ => Value::float(value as f64, width),
                })
            }
            // Between integers: saturation when it gets narrower, else extension.
            (_, (width, class)) => {
                let (source_width, _) = kind_of(from)?;
                let value = Value::new(a.bits, source_width, source).integer();
                let (low, high) = match class {
                    Class::Signed => (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1),
                    _ => (0, (1i128 << width) - 1),
                };
                int(value.clamp(low, high), width, class == Class::Signed)
            }
        };
    }
    match name {
        "signext" => int(Value { class: Class::Signed, ..a }.integer(), 64, true),
        "signext_from_bit" => {
            let width = u32::try_from(argument(1)?.integer()).unwrap_or(0);
            if width == 0 || width >= a.width {
                return int(if width == 0 { 0 } else { a.integer() }, a.width, true);
            }
            int(Value::new(a.bits, width, Class::Signed).integer(), a.width, true)
        }
        "bitCount" => int(a.bits.count_ones().into(), 32, true),
        "s_ff1_i32_b64" | "s_ff1_i32_b32" => {
            int(if a.bits == 0 { -1 } else { a.bits.trailing_zeros().into() }, 32, true)
        }
        "floor" if !a.is_nan() => float(a.number().floor(), a.width),
        "trunc" if !a.is_nan() => float(a.number().trunc(), a.width),
        "rint" if !a.is_nan() => float(a.number().round_ties_even(), a.width),
        "fract" if !a.is_nan() => float(a.number() - a.number().floor(), a.width),
        "floor" | "trunc" | "fract" | "rint" => Ok(a),
        "isEven" => Ok(Value::flag(a.number() % 2.0 == 0.0)),
        "pow" => float(a.number().powf(argument(1)?.number()), a.width.max(argument(1)?.width)),
        "log2" => float(a.number().log2(), a.width),
        "sqrt" => float(a.number().sqrt(), a.width),
        "abs" => Ok(Value::new(a.bits & mask(a.width - 1), a.width, a.class)),
        "sign" => Ok(Value::flag(a.bits >> (a.width - 1) & 1 == 1)),
        "isNAN" => Ok(Value::flag(a.is_nan())),
        "isSignalNAN" => Ok(Value::flag(a.is_nan() && !a.is_quiet())),
        "isQuietNAN" => Ok(Value::flag(a.is_quiet())),
        "cvtToQuietNAN" => Ok(Value::new(a.bits | 1 << (a.significand() - 1), a.width, a.class)),
        "exponent" => int(a.field(), 32, true),
        // The exponent that the field would have without a limit below.
        "unbounded" => {
            let stored = a.bits & mask(a.significand());
            if a.field() == 0 && stored != 0 {
                let missing = a.significand() - (127 - stored.leading_zeros());
                return int(1 - i128::from(missing), 32, true);
            }
            int(a.field(), 32, true)
        }
        "mantissa" => {
            let number = a.number();
            if number == 0.0 {
                return Ok(a);
            }
            // Of any number that is finite, by its own exponent.
            let exponent = exponent_of(number);
            float(number / 2f64.powi(exponent / 2) / 2f64.powi(exponent - exponent / 2) / 2.0, a.width)
        }
        "ldexp" => {
            let by = argument(1)?.integer().clamp(-5000, 5000);
            Ok(scaled(a, i32::try_from(by).unwrap_or(0)))
        }
        "fma" => {
            let (b, c) = (argument(1)?, argument(2)?);
            match a.width {
                16 => float(a.number() * b.number() + c.number(), 16),
                32 => {
                    let (a, b, c) = (a.number() as f32, b.number() as f32, c.number() as f32);
                    Ok(Value::new(a.mul_add(b, c).to_bits().into(), 32, Class::Float))
                }
                _ => float(a.number().mul_add(b.number(), c.number()), 64),
            }
        }
        "LT_NEG_ZERO" | "GT_NEG_ZERO" => {
            let b = argument(1)?;
            let (a, b) = if name == "LT_NEG_ZERO" { (a, b) } else { (b, a) };
            let zeros = a.number() == 0.0 && b.number() == 0.0;
            let negative = |value: Value| value.bits >> (value.width - 1) & 1 == 1;
            Ok(Value::flag(a.number() < b.number() || zeros && negative(a) && !negative(b)))
        }
        other => Err(format!("no function {other}")),
    }
}

fn exponent_of(number: f64) -> i32 {
    let bits = number.abs().to_bits();
    let field = (bits >> 52) as i32;
    if field == 0 {
        11 - bits.leading_zeros() as i32 - 1022
    } else {
        field - 1023
    }
}

/// Times a power of two, rounded once.
fn scaled(a: Value, by: i32) -> Value {
    if a.width < 64 {
        // In double precision nothing is lost before the one rounding, as long as the power is in
        // its range.
        let by = by.clamp(-400, 400);
        return Value::float(a.number() * 2f64.powi(by), a.width);
    }
    let number = a.number();
    if number == 0.0 || !number.is_finite() {
        return a;
    }
    // Up or down to normal numbers exactly, then one step that may round.
    let target = exponent_of(number) + by;
    if target > 1023 {
        return Value::float(f64::INFINITY.copysign(number), 64);
    }
    if target < -1080 {
        return Value::float(0f64.copysign(number), 64);
    }
    let mantissa =
        number / 2f64.powi(exponent_of(number) / 2) / 2f64.powi(exponent_of(number) - exponent_of(number) / 2);
    let result = if target >= -1022 {
        mantissa * 2f64.powi(target)
    } else {
        mantissa * 2f64.powi(-1022) * 2f64.powi(target + 1022)
    };
    Value::float(result, 64)
}
