// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How the meaning of a vector operation is written down: kinds of its operands, and a function of
//! one lane's values.
//!
//! The effects of encodings on operands and results (modifiers, SDWA, DPP, clamp, output
//! multiplier, halves) are in `vector`. MODE's effects inside an operation (rounding, denormals)
//! are here, in the functions.

use super::float::{Fpu, F16, F32, F64};
use super::kind::Kind;
use crate::wave::Mode;
use vkfd_isa::Target;

/// What a lane's function may ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Env {
    pub(crate) mode: Mode,
    pub(crate) target: Target,
    pub(crate) lane: u32,
    /// The lane's bit of VCC.
    pub(crate) vcc: bool,
}

impl Env {
    pub(crate) fn f16(&self) -> Fpu {
        Fpu::new(F16, self.mode)
    }

    pub(crate) fn f32(&self) -> Fpu {
        Fpu::new(F32, self.mode)
    }

    pub(crate) fn f64(&self) -> Fpu {
        Fpu::new(F64, self.mode)
    }

    pub(crate) fn ieee(&self) -> bool {
        self.mode.ieee()
    }
}

/// A function of one lane's sources.
#[derive(Clone, Copy)]
pub(crate) enum Eval {
    One(fn(&Env, u64) -> u64),
    Two(fn(&Env, u64, u64) -> u64),
    Three(fn(&Env, u64, u64, u64) -> u64),
    /// Of integers, exactly: the result is wrapped, or clamped if the instruction says so.
    Int2(fn(i128, i128) -> i128),
    /// Of three integers.
    Int3(fn(i128, i128, i128) -> i128),
}

/// What becomes of the other half of the register under a 16-bit result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// gfx9 clears it, unless it is the low half; later targets keep it.
    Clear,
    /// It is kept.
    Keep,
}

/// The meaning of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Semantics {
    pub(crate) dst: Kind,
    pub(crate) src: [Kind; 3],
    pub(crate) eval: Eval,
    pub(crate) half: Half,
    /// The destination is the third source.
    pub(crate) tied: bool,
}

impl Semantics {
    fn new(dst: Kind, src: [Kind; 3], eval: Eval) -> Option<Semantics> {
        Some(Semantics { dst, src, eval, half: Half::Clear, tied: false })
    }

    /// Sources that the function has.
    pub(crate) fn sources(&self) -> usize {
        match self.eval {
            Eval::One(_) => 1,
            Eval::Two(_) | Eval::Int2(_) => 2,
            Eval::Three(_) | Eval::Int3(_) => 3,
        }
    }

    /// The result of one lane.
    pub(crate) fn lane(&self, env: &Env, [a, b, c]: [u64; 3], clamp: bool) -> u64 {
        let int = |n: usize, bits| self.src.get(n).map_or(0, |kind| kind.integer(bits));
        let result = match self.eval {
            Eval::One(f) => f(env, a),
            Eval::Two(f) => f(env, a, b),
            Eval::Three(f) => f(env, a, b, c),
            Eval::Int2(f) => self.dst.wrap(f(int(0, a), int(1, b)), clamp),
            Eval::Int3(f) => self.dst.wrap(f(int(0, a), int(1, b), int(2, c)), clamp),
        };
        result & self.dst.mask()
    }
}

pub(crate) fn one(dst: Kind, a: Kind, f: fn(&Env, u64) -> u64) -> Option<Semantics> {
    Semantics::new(dst, [a, Kind::B32, Kind::B32], Eval::One(f))
}

pub(crate) fn two(dst: Kind, a: Kind, b: Kind, f: fn(&Env, u64, u64) -> u64) -> Option<Semantics> {
    Semantics::new(dst, [a, b, Kind::B32], Eval::Two(f))
}

pub(crate) fn three(dst: Kind, src: [Kind; 3], f: fn(&Env, u64, u64, u64) -> u64) -> Option<Semantics> {
    Semantics::new(dst, src, Eval::Three(f))
}

/// Three sources and a result of one kind.
pub(crate) fn same3(kind: Kind, f: fn(&Env, u64, u64, u64) -> u64) -> Option<Semantics> {
    three(kind, [kind; 3], f)
}

/// Two sources and a result of one kind.
pub(crate) fn same2(kind: Kind, f: fn(&Env, u64, u64) -> u64) -> Option<Semantics> {
    two(kind, kind, kind, f)
}

pub(crate) fn int2(kind: Kind, f: fn(i128, i128) -> i128) -> Option<Semantics> {
    Semantics::new(kind, [kind, kind, kind], Eval::Int2(f))
}

pub(crate) fn int3(dst: Kind, src: [Kind; 3], f: fn(i128, i128, i128) -> i128) -> Option<Semantics> {
    Semantics::new(dst, src, Eval::Int3(f))
}

/// The third source is the destination.
pub(crate) fn tied(semantics: Option<Semantics>) -> Option<Semantics> {
    semantics.map(|s| Semantics { tied: true, ..s })
}

/// The other half of the destination is kept on every target.
pub(crate) fn keep(semantics: Option<Semantics>) -> Option<Semantics> {
    semantics.map(|s| Semantics { half: Half::Keep, ..s })
}
