// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs statements on one lane's state.

use crate::builtins::builtin;
use crate::parse::{Expr, Stmt};
use crate::value::{mask, Class, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Finds the text of another operation that a text calls by name.
pub type Library = HashMap<String, Rc<Vec<Stmt>>>;

/// A lane while a text runs.
pub struct Machine<'a> {
    pub library: &'a Library,
    pub variables: HashMap<String, Value>,
    pub arrays: HashMap<String, Vec<Value>>,
    lambdas: HashMap<String, (Vec<String>, Vec<Stmt>)>,
    depth: u32,
}

/// What a statement leads to.
enum Flow {
    Next,
    Break,
    Return(Value),
}

/// What goes wrong is said in words.
pub type Result<T> = std::result::Result<T, String>;

impl<'a> Machine<'a> {
    pub fn new(library: &'a Library) -> Machine<'a> {
        Machine { library, variables: HashMap::new(), arrays: HashMap::new(), lambdas: HashMap::new(), depth: 0 }
    }

    pub fn set(&mut self, name: &str, value: Value) {
        self.variables.insert(name.into(), value);
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        self.variables.get(name).copied()
    }

    /// Runs a whole text.
    pub fn run(&mut self, statements: &[Stmt]) -> Result<()> {
        self.block(statements).map(|_| ())
    }

    fn block(&mut self, statements: &[Stmt]) -> Result<Flow> {
        for statement in statements {
            match self.statement(statement)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, statement: &Stmt) -> Result<Flow> {
        match statement {
            Stmt::Assign(targets, value) => {
                let value = self.expr(value)?;
                for target in targets.iter().rev() {
                    self.assign(target, value)?;
                }
            }
            Stmt::If(arms, otherwise) => {
                for (condition, body) in arms {
                    if self.expr(condition)?.truth() {
                        return self.block(body);
                    }
                }
                return self.block(otherwise);
            }
            Stmt::For(name, from, to, body) => {
                let (from, to) = (self.expr(from)?.integer(), self.expr(to)?.integer());
                for at in from..=to {
                    self.set(name, Value::int(at, 32, true));
                    match self.block(body)? {
                        Flow::Next => {}
                        Flow::Break => break,
                        Flow::Return(value) => return Ok(Flow::Return(value)),
                    }
                }
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Return(value) => return Ok(Flow::Return(self.expr(value)?)),
            Stmt::Declare(name, width, kind, count) => {
                let zero = Value::new(0, *width, class(kind));
                match count {
                    Some(count) if !self.arrays.contains_key(name) => {
                        self.arrays.insert(name.clone(), vec![zero; *count]);
                    }
                    Some(_) => {}
                    None => self.set(name, zero),
                }
            }
            Stmt::Lambda(name, parameters, body) => {
                self.lambdas.insert(name.clone(), (parameters.clone(), body.clone()));
            }
        }
        Ok(Flow::Next)
    }

    fn assign(&mut self, target: &Expr, value: Value) -> Result<()> {
        match target {
            Expr::Name(name) => {
                // A register keeps its width; a variable takes what it gets.
                let kept = match self.get(name) {
                    Some(old) if is_register(name) => Value::new(
                        old.bits & !mask(value.width) | value.bits,
                        old.width.max(value.width),
                        Class::Unsigned,
                    ),
                    _ => value,
                };
                self.set(name, kept);
                Ok(())
            }
            Expr::As(inner, kind) => {
                let Expr::Name(name) = inner.as_ref() else {
                    let (width, class) = kind_of(kind)?;
                    return self.assign(inner, fit(value, width, class));
                };
                let (width, class) = kind_of(kind)?;
                let value = fit(value, width, class);
                if is_register(name) {
                    let old = self.get(name).unwrap_or(Value::new(0, width, class));
                    let whole = old.bits & !mask(width) | value.bits;
                    self.set(name, Value::new(whole, old.width.max(width), Class::Unsigned));
                } else {
                    self.set(name, value);
                }
                Ok(())
            }
            Expr::Index(inner, at) => {
                if let Expr::Name(name) = inner.as_ref() {
                    if self.arrays.contains_key(name) {
                        let at = usize::try_from(self.expr(at)?.integer()).map_err(|_| "index")?;
                        let slot = self.arrays.get_mut(name).and_then(|array| array.get_mut(at)).ok_or("index")?;
                        *slot = fit(value, slot.width, slot.class);
                        return Ok(());
                    }
                }
                let at = self.expr(at)?.integer();
                self.insert(inner, at, at, value)
            }
            Expr::Slice(inner, high, low) => {
                let (high, low) = (self.expr(high)?.integer(), self.expr(low)?.integer());
                self.insert(inner, high, low, value)
            }
            Expr::Concat(parts) => {
                let mut at = 0;
                for part in parts.iter().rev() {
                    let Expr::As(_, kind) = part else { return Err("width of a part".into()) };
                    let (width, class) = kind_of(kind)?;
                    self.assign(part, Value::new(value.bits >> at, width, class))?;
                    at += width;
                }
                Ok(())
            }
            other => Err(format!("cannot assign to {other:?}")),
        }
    }

    /// Replaces bits of a variable.
    fn insert(&mut self, inner: &Expr, high: i128, low: i128, value: Value) -> Result<()> {
        let name = match inner {
            Expr::Name(name) => name,
            Expr::As(inner, _) => match inner.as_ref() {
                Expr::Name(name) => name,
                other => return Err(format!("bits of {other:?}")),
            },
            other => return Err(format!("bits of {other:?}")),
        };
        let old = self.get(name).unwrap_or(Value::new(0, 128, Class::Unsigned));
        let (high, low) = (u32::try_from(high).map_err(|_| "bit")?, u32::try_from(low).map_err(|_| "bit")?);
        let width = high - low + 1;
        let value = if value.is_float() { value } else { fit(value, width, Class::Unsigned) };
        let bits = old.bits & !(mask(width) << low) | (value.bits & mask(width)) << low;
        self.set(name, Value { bits, width: old.width.max(high + 1), ..old });
        Ok(())
    }

    fn expr(&mut self, expr: &Expr) -> Result<Value> {
        Ok(match expr {
            Expr::Number(text, width) => number(text, *width)?,
            Expr::Name(name) => self.name(name)?,
            Expr::As(inner, kind) => self.typed(inner, kind)?,
            Expr::Index(inner, at) => {
                if let Expr::Name(name) = inner.as_ref() {
                    if let Some(array) = self.arrays.get(name).cloned() {
                        let at = usize::try_from(self.expr(at)?.integer()).map_err(|_| "index")?;
                        return array.get(at).copied().ok_or_else(|| "index".into());
                    }
                }
                let value = self.expr(inner)?;
                let at = u32::try_from(self.expr(at)?.integer()).map_err(|_| "bit")?;
                Value::new(value.bits >> at.min(127), 1, Class::Unsigned)
            }
            Expr::Slice(inner, high, low) => {
                let value = self.expr(inner)?;
                let high = u32::try_from(self.expr(high)?.integer()).map_err(|_| "bit")?;
                let low = u32::try_from(self.expr(low)?.integer()).map_err(|_| "bit")?;
                if high < low {
                    let width = low - high + 1;
                    let bits = (value.bits >> high & mask(width)).reverse_bits() >> (128 - width);
                    return Ok(Value::new(bits, width, Class::Unsigned));
                }
                Value::new(value.bits >> low, high - low + 1, Class::Unsigned)
            }
            Expr::Part(inner, low, count) => {
                let value = self.expr(inner)?;
                let low = u32::try_from(self.expr(low)?.integer()).map_err(|_| "bit")?;
                let count = u32::try_from(self.expr(count)?.integer()).map_err(|_| "bits")?;
                Value::new(value.bits >> low, count, Class::Unsigned)
            }
            Expr::Cast(width, kind, inner) => {
                // Bits that are written as such stay bits.
                let literal = matches!(inner.as_ref(), Expr::Concat(_))
                    || matches!(inner.as_ref(), Expr::Number(text, _) if text.starts_with("0x"));
                let value = self.expr(inner)?;
                let class = class(kind);
                if kind == "B" || literal {
                    Value::new(value.bits, *width, class)
                } else {
                    fit(value, *width, class)
                }
            }
            Expr::Call(name, arguments) => {
                let mut values = Vec::new();
                for argument in arguments {
                    values.push(self.expr(argument)?);
                }
                self.call(name, &values)?
            }
            Expr::Unary(symbol, inner) => unary(symbol, self.expr(inner)?),
            Expr::Binary("&&", left, right) => Value::flag(self.expr(left)?.truth() && self.expr(right)?.truth()),
            Expr::Binary("||", left, right) => Value::flag(self.expr(left)?.truth() || self.expr(right)?.truth()),
            Expr::Binary(symbol, left, right) => binary(symbol, self.expr(left)?, self.expr(right)?)?,
            Expr::Choice(condition, yes, no) => {
                if self.expr(condition)?.truth() {
                    self.expr(yes)?
                } else {
                    self.expr(no)?
                }
            }
            Expr::Concat(parts) => {
                let (mut bits, mut width) = (0, 0);
                for part in parts {
                    let value = self.expr(part)?;
                    bits = bits << value.width | value.bits;
                    width += value.width;
                }
                Value::new(bits, width, Class::Unsigned)
            }
        })
    }

    fn name(&mut self, name: &str) -> Result<Value> {
        if let Some(value) = self.get(name) {
            return Ok(value);
        }
        Ok(match name {
            "INF" | "OVERFLOW_F64" => Value::float(f64::INFINITY, 64),
            "OVERFLOW_F32" => Value::float(f64::INFINITY, 32),
            "UNDERFLOW_F32" => Value { signed_zero: true, ..Value::float(0.0, 32) },
            "UNDERFLOW_F64" => Value { signed_zero: true, ..Value::float(0.0, 64) },
            "MAX_FLOAT_F32" => Value::float(f64::from(f32::MAX), 32),
            "NAN" => Value::float(f64::NAN, 64),
            "PI" => Value::float(std::f64::consts::PI, 64),
            _ => return Err(format!("no {name}")),
        })
    }

    /// `value.type`: the same bits, but constants are converted.
    fn typed(&mut self, inner: &Expr, kind: &str) -> Result<Value> {
        if let Expr::Name(name) = inner {
            if name == "WAVE_MODE" || name == "WAVE_STATUS" {
                return self.get(kind).ok_or_else(|| format!("no {name}.{kind}"));
            }
        }
        let (width, class) = kind_of(kind)?;
        let value = self.expr(inner)?;
        let constant = matches!(inner, Expr::Name(name) if name == "INF" || name == "NAN");
        if constant {
            return Ok(value.to_float(width));
        }
        // A narrower signed value is extended.
        if class == Class::Signed && value.class == Class::Signed && value.width < width {
            return Ok(Value::int(value.integer(), width, true));
        }
        Ok(Value::new(value.bits, width, class))
    }

    fn call(&mut self, name: &str, arguments: &[Value]) -> Result<Value> {
        if let Some((parameters, body)) = self.lambdas.get(name).cloned() {
            let saved: Vec<(String, Option<Value>)> =
                parameters.iter().map(|parameter| (parameter.clone(), self.get(parameter))).collect();
            for (parameter, value) in parameters.iter().zip(arguments) {
                self.set(parameter, *value);
            }
            let flow = self.block(&body)?;
            for (parameter, value) in saved {
                match value {
                    Some(value) => self.set(&parameter, value),
                    None => {
                        self.variables.remove(&parameter);
                    }
                }
            }
            return match flow {
                Flow::Return(value) => Ok(value),
                _ => Err(format!("{name} returns nothing")),
            };
        }
        if let Some(text) = self.library.get(name).cloned() {
            if self.depth > 4 {
                return Err("calls too deep".into());
            }
            let mut inner = Machine::new(self.library);
            inner.depth = self.depth + 1;
            for name in ["IEEE", "laneId"] {
                if let Some(value) = self.get(name) {
                    inner.set(name, value);
                }
            }
            let width = arguments.first().map_or(32, |value| value.width);
            for (at, value) in arguments.iter().enumerate() {
                inner.set(&format!("S{at}"), Value::new(value.bits, value.width.max(32), Class::Unsigned));
            }
            inner.set("D0", Value::new(0, width.max(32), Class::Unsigned));
            inner.run(&text)?;
            let class = arguments.first().map_or(Class::Unsigned, |value| value.class);
            return Ok(Value::new(inner.get("D0").map_or(0, |value| value.bits), width, class));
        }
        let result = builtin(name, arguments)?;
        if name == "f32_to_f16" && self.get("ROUND_MODE").is_some_and(|mode| mode.bits == 3) {
            return Ok(arguments.first().map_or(result, |&source| toward_zero(source, result)));
        }
        Ok(result)
    }
}

/// The half next to zero, if the nearest one is further away than the number.
fn toward_zero(source: Value, nearest: Value) -> Value {
    if nearest.number().abs() > source.number().abs() {
        return Value::new(nearest.bits - 1, nearest.width, nearest.class);
    }
    nearest
}

/// Whether the name keeps its bits when only some of them are written.
fn is_register(name: &str) -> bool {
    matches!(name, "D0" | "D1" | "D" | "VCC" | "EXEC" | "EXEC_LO" | "M0")
}

fn class(kind: &str) -> Class {
    match kind {
        "I" => Class::Signed,
        "F" => Class::Float,
        "BF" => Class::Brain,
        _ => Class::Unsigned,
    }
}

pub fn kind_of(kind: &str) -> Result<(u32, Class)> {
    let digits = kind.trim_start_matches(|c: char| !c.is_ascii_digit());
    let width = digits.parse().map_err(|_| format!("type {kind}"))?;
    Ok((
        width,
        match kind.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "u" | "b" => Class::Unsigned,
            "i" => Class::Signed,
            "f" => Class::Float,
            "bf" => Class::Brain,
            other => return Err(format!("type {other}")),
        },
    ))
}

/// A value of another type.
fn fit(value: Value, width: u32, class: Class) -> Value {
    match (class, value.is_float()) {
        (Class::Float, true) if value.class == Class::Float => {
            if value.width == width {
                value
            } else {
                value.to_float(width)
            }
        }
        (Class::Float, _) => {
            if value.is_float() || value.class == Class::Signed || value.width != width {
                Value::float(value.number(), width)
            } else {
                // Bits of the right width are taken as they are.
                Value::new(value.bits, width, class)
            }
        }
        (Class::Brain, _) => Value::new(value.bits, width, class),
        (_, true) => Value::new(value.bits, width, class),
        _ => Value::new(value.integer() as u128, width, class),
    }
}

fn number(text: &str, width: Option<u32>) -> Result<Value> {
    let bad = |_| format!("number {text}");
    let digits = text.trim_end_matches(['U', 'L']);
    if let Some(hex) = digits.strip_prefix("0x") {
        let bits = u128::from_str_radix(hex, 16).map_err(bad)?;
        let long = text.ends_with("LL") || hex.len() > 8;
        return Ok(Value::new(bits, width.unwrap_or(if long { 64 } else { 32 }), Class::Unsigned));
    }
    if digits.contains('.') || digits.ends_with('F') {
        let single = digits.ends_with('F');
        let number: f64 = digits.trim_end_matches('F').parse().map_err(|_| format!("number {text}"))?;
        return Ok(Value::float(number, width.unwrap_or(if single { 32 } else { 64 })));
    }
    let value: i128 = digits.parse().map_err(|_| format!("number {text}"))?;
    let signed = !text.contains('U');
    Ok(Value::int(value, width.unwrap_or(if text.ends_with("LL") { 64 } else { 32 }), signed))
}

fn unary(symbol: &str, value: Value) -> Value {
    let zero = value.is_float() && value.bits & mask(value.width - 1) == 0;
    match symbol {
        "-" if value.is_float() => Value { bits: value.bits ^ 1 << (value.width - 1), signed_zero: zero, ..value },
        "+" if zero => Value { signed_zero: true, ..value },
        "-" => Value::int(-value.integer(), value.width.max(32), true),
        "~" => Value::new(!value.bits, value.width, value.class),
        "!" => Value::flag(!value.truth()),
        _ => value,
    }
}

/// The class and width that two operands have together.
fn common(a: Value, b: Value) -> (u32, Class) {
    if a.is_float() || b.is_float() {
        let width = |value: Value| if value.is_float() { value.width } else { 0 };
        return (width(a).max(width(b)), Class::Float);
    }
    let width = a.width.max(b.width).max(32);
    let unsigned = |value: Value| value.class == Class::Unsigned && value.width == width;
    (width, if unsigned(a) || unsigned(b) { Class::Unsigned } else { Class::Signed })
}

fn binary(symbol: &str, a: Value, b: Value) -> Result<Value> {
    let (width, class) = common(a, b);
    if class == Class::Float {
        let (x, y) = (a.number(), b.number());
        let comparison = |holds| Ok(Value::flag(holds));
        if (a.signed_zero || b.signed_zero) && x == 0.0 && y == 0.0 {
            let same = x.is_sign_negative() == y.is_sign_negative();
            match symbol {
                "==" => return comparison(same),
                "!=" => return comparison(!same),
                _ => {}
            }
        }
        return match symbol {
            "==" => comparison(x == y),
            "!=" => comparison(x != y),
            // Ordered and different.
            "<>" => comparison(!x.is_nan() && !y.is_nan() && x != y),
            "<" => comparison(x < y),
            ">" => comparison(x > y),
            "<=" => comparison(x <= y),
            ">=" => comparison(x >= y),
            _ => arithmetic(symbol, x, y, width),
        };
    }
    let wrap = |value: i128| Value::int(value, width, class == Class::Signed);
    let (x, y) = (a.integer(), b.integer());
    let shift = u32::try_from(y.clamp(0, 127)).unwrap_or(0);
    Ok(match symbol {
        "==" => Value::flag(x == y),
        "!=" | "<>" => Value::flag(x != y),
        "<" => Value::flag(x < y),
        ">" => Value::flag(x > y),
        "<=" => Value::flag(x <= y),
        ">=" => Value::flag(x >= y),
        "+" => wrap(x.wrapping_add(y)),
        "-" => wrap(x.wrapping_sub(y)),
        "*" => wrap(x.wrapping_mul(y)),
        "&" => Value::int(x & y, width, class == Class::Signed),
        "|" => Value::int(x | y, width, class == Class::Signed),
        "^" => Value::int(x ^ y, width, class == Class::Signed),
        "<<" => Value::new((a.bits) << shift, a.width.max(32), a.class),
        ">>" => Value::int(x >> shift, a.width.max(32), a.class == Class::Signed),
        "**" => Value::float((x as f64).powf(y as f64), 64),
        other => return Err(format!("operator {other} on integers")),
    })
}

/// Each operation is rounded once to its width: exact in double precision before that, for halves
/// and single precision.
fn arithmetic(symbol: &str, x: f64, y: f64, width: u32) -> Result<Value> {
    if width == 32 {
        let (x, y) = (x as f32, y as f32);
        let result = match symbol {
            "+" => x + y,
            "-" => x - y,
            "*" => x * y,
            "/" => x / y,
            "**" => return Ok(Value::float(f64::from(x).powf(f64::from(y)), 64)),
            other => return Err(format!("operator {other} on numbers")),
        };
        return Ok(Value::new(result.to_bits().into(), 32, Class::Float));
    }
    let result = match symbol {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "/" => x / y,
        "**" => x.powf(y),
        other => return Err(format!("operator {other} on numbers")),
    };
    Ok(Value::float(result, width))
}

pub fn saturated(value: Value, low: i128, high: i128, width: u32) -> Value {
    let number = value.number();
    let result = if number.is_nan() { 0 } else { (number.trunc() as i128).clamp(low, high) };
    Value::int(result, width, low < 0)
}

/// A number as a fraction of `scale`.
pub fn normalised(value: Value, scale: f64, low: f64) -> Value {
    let number = value.number();
    let result = if number.is_nan() { 0.0 } else { (number.clamp(low, 1.0) * scale).round_ties_even() };
    Value::int(result as i128, 16, low < 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn run(text: &str, sources: &[u128]) -> u128 {
        let library = Library::new();
        let mut machine = Machine::new(&library);
        for (at, &bits) in sources.iter().enumerate() {
            machine.set(&format!("S{at}"), Value::new(bits, 64, Class::Unsigned));
        }
        machine.set("D0", Value::new(0, 64, Class::Unsigned));
        machine.run(&parse(text).expect("parses")).expect("runs");
        machine.get("D0").map_or(0, |value| value.bits)
    }

    #[test]
    fn the_language() {
        assert_eq!(run("D0.u32 = S0.u32 + 1U", &[0xffff_ffff]), 0);
        assert_eq!(run("D0.u32[31 : 0] = S0.u32[0 : 31]", &[1]), 0x8000_0000);
        assert_eq!(
            run("tmp = 0;\nfor i in 0 : 31 do\ntmp += S0.u32[i] == 1'1U ? 1 : 0\nendfor;\nD0.i32 = tmp", &[0xf0f]),
            8
        );
        assert_eq!(run("D0.f32 = S0.f32 * 2.0F", &[0x3f80_0000]), 0x4000_0000);
        assert_eq!(run("D0[31 : 16].f16 = 16'1.0;\nD0[15 : 0].f16 = -16'1.0", &[]), 0x3c00_bc00);
        assert_eq!(run("D0.u64 = 64'U(S0.u32) * 64'U(S1.u32)", &[0xffff_ffff, 0xffff_ffff]), 0xffff_fffe_0000_0001);
        assert_eq!(run("if S0.f32 == -0.0F then\nD0.u32 = 1U\nelse\nD0.u32 = 2U\nendif", &[0]), 2);
        assert_eq!(run("D0.i32 = 32'I(signext(S0.i16))", &[0x8000]), 0xffff_8000);
    }
}
