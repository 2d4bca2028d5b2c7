// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations of 32 bits: a function of vectors of eight lanes each, and which MODE and lanes an
//! operation leaves to others.
//!
//! `vector` makes handlers of operations, `rest` their second handlers.

use super::simd::Simd;
use super::step::Cx;

/// What a handler does not do itself but leaves to its second one, see [`super::rest`]: which MODE,
/// and which lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing: integers, and what MODE and NaNs do not change.
    Never,
    /// Another MODE than the usual. Sources and result are singles.
    Singles,
    /// Another rounding: sources or results are not singles, or are never denormal.
    Rounded,
    /// Another MODE; some of the sources are integers.
    Mixed,
    /// Another MODE, and NaNs among the sources of a minimum or maximum.
    Extreme,
    /// Another MODE, and NaNs among the sources.
    Operands,
    /// Another MODE, and what the operation's `bad` says.
    Custom,
    /// Another rounding, and what `bad` says. The operation knows no denormals, whatever MODE says.
    Flushing,
    /// A MODE without IEEE.
    Quieting,
    /// The same, and what `bad` says.
    Fixed,
    /// Of a half: another rounding or no denormals of halves, and a result that is NaN.
    Half,
    /// The same, if the second source is the first.
    HalfTurned,
    /// The same of both halves.
    Halves,
    /// Of a half, as above, and NaNs among the sources.
    HalfOperands,
    /// The same of a minimum or maximum.
    HalfExtreme,
    /// The same of both halves.
    HalvesExtreme,
}

/// An operation with one source.
pub(super) trait Unary: 'static {
    const CHECK: Check;
    unsafe fn f<S: Simd>(a: S::V) -> S::V;
    /// The highest bit of a lane that the reference engine is to do.
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V) -> S::V {
        let _ = a;
        // SAFETY: the caller's.
        unsafe { S::splat(0) }
    }
}

/// An operation with two sources.
pub(super) trait Binary: 'static {
    const CHECK: Check;
    unsafe fn f<S: Simd>(a: S::V, b: S::V) -> S::V;
}

/// An operation with three sources.
pub(super) trait Ternary: 'static {
    const CHECK: Check;
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V;
    /// The highest bit of a lane that the reference engine is to do.
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        let _ = (a, b, c);
        // SAFETY: the caller's.
        unsafe { S::splat(0) }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Integers, or classes of numbers.
    Bits,
    /// Singles, whose denormals MODE may lose.
    Singles,
    Halves,
}

/// A comparison: the highest bit of each lane is the result.
pub(super) trait Compare: 'static {
    const OF: Of;
    unsafe fn f<S: Simd>(a: S::V, b: S::V) -> S::V;
}

/// A sum or difference with a carry: from the result and the operands, whether there is a carry
/// out.
pub(super) trait Carry: 'static {
    /// There is a carry in.
    const IN: bool;
    /// Result and carry, given the carry in as all ones.
    unsafe fn f<S: Simd>(a: S::V, b: S::V, carry: S::V) -> (S::V, S::V);
}

/// A choice between two sources by a mask; there is one.
pub(super) trait Choice: 'static {}

/// `v_cndmask`.
pub(super) struct ByMask;

impl Choice for ByMask {}

/// The highest bit where the low half is NaN.
#[inline(always)]
pub(super) unsafe fn low_nan<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::gt(S::and(a, S::splat(0x7fff)), S::splat(0x7c00)) }
}

/// The highest bit where one of the halves is NaN.
#[inline(always)]
unsafe fn any_nan<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::or(low_nan::<S>(a), low_nan::<S>(S::shr(a, S::splat(16)))) }
}

/// The highest bit where a single is not zero, and its magnitude is at most `limit`.
#[inline(always)]
pub(super) unsafe fn tiny<S: Simd>(a: S::V, limit: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        // Of zero, all ones, which are less than any limit.
        let above = S::sub(S::and(a, S::splat(0x7fff_ffff)), S::splat(1));
        S::and(S::gt(limit, above), S::xor(above, S::splat(u32::MAX)))
    }
}

/// The least single that is not denormal, to which one may have been rounded.
pub(super) const LEAST: u32 = 0x80_0000;

impl Check {
    /// No lane has to be looked at.
    pub(super) const fn sure(self) -> bool {
        matches!(self, Check::Never | Check::Singles | Check::Rounded | Check::Mixed | Check::Quieting)
    }

    /// Whether vectors suit MODE, together with the second handler.
    #[inline(always)]
    pub(super) fn by_vectors(self, cx: &Cx) -> bool {
        match self {
            Check::Never => true,
            Check::Quieting | Check::Fixed => cx.quiets,
            _ => cx.wide,
        }
    }

    /// Whether MODE is one that the handler itself is for.
    #[inline(always)]
    pub(super) fn suits(self, cx: &Cx) -> bool {
        match self {
            Check::Never => true,
            Check::Quieting | Check::Fixed => cx.quiets,
            Check::Singles | Check::Mixed | Check::Extreme | Check::Operands | Check::Custom => cx.plain,
            _ => cx.wide,
        }
    }

    /// Sources and results are singles, whose denormals MODE may lose.
    pub(super) const fn flushes(self) -> bool {
        matches!(self, Check::Singles | Check::Extreme)
    }

    /// Some sources or results are no singles, or have to be looked at when MODE loses denormals.
    pub(super) const fn mixed(self) -> bool {
        matches!(self, Check::Mixed | Check::Operands | Check::Custom)
    }

    /// There is a function that says which lanes are left.
    pub(super) const fn custom(self) -> bool {
        matches!(self, Check::Custom | Check::Flushing | Check::Fixed)
    }

    /// The highest bit where the sources are not for the operation.
    #[inline(always)]
    pub(super) unsafe fn bad<S: Simd, const N: usize>(self, sources: [S::V; N]) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            let mut bad = S::splat(0);
            for n in 0..N {
                bad = match self {
                    Check::Extreme | Check::Operands => S::or(bad, S::unordered(sources[n], sources[n])),
                    Check::HalfOperands | Check::HalfExtreme => S::or(bad, low_nan::<S>(sources[n])),
                    Check::HalvesExtreme => S::or(bad, any_nan::<S>(sources[n])),
                    _ => bad,
                };
            }
            bad
        }
    }

    /// The same of a result.
    #[inline(always)]
    pub(super) unsafe fn wrong<S: Simd>(self, value: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Check::Half | Check::HalfTurned => low_nan::<S>(value),
                Check::Halves => any_nan::<S>(value),
                _ => S::splat(0),
            }
        }
    }
}

/// No source is in a scalar register.
pub(super) const ROWS: u8 = 0;

/// The lanes of a wave of 32: all that there are, or all that are active.
pub(super) const LOW: u64 = 0xffff_ffff;

/// Vectors of a row that have an active lane, or may.
#[inline(always)]
pub(super) fn vectors(exec: u64) -> usize {
    if exec > LOW {
        8
    } else {
        4
    }
}
