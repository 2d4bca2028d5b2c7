// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations of 32 bits: shapes of handlers, for one, two and three sources, comparisons
//! and carries.
//!
//! An operation is a function of vectors of eight lanes. A shape makes handlers of it: with all
//! sources in rows, or one of them in a scalar register; each with all lanes active or some.
//! Floating-point operations leave to the reference engine whatever the host may do otherwise:
//! another MODE, and NaNs in results (or operands, where the result hides them).

use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step};

/// When a handler gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Never: integers.
    Never,
    /// Another MODE than the usual, or an active lane's result is NaN.
    Result,
    /// Another MODE, or an active lane's operand is NaN.
    Operands,
    /// Another MODE, or an active lane is what the operation's `bad` says.
    Custom,
    /// Another MODE, or the half in an active lane's result is NaN.
    Half,
    /// Another MODE, or one of the halves in an active lane's result is NaN.
    Halves,
    /// Another MODE, or the low half of an active lane's operand is NaN.
    HalfOperands,
    /// Another MODE, or a half in an active lane's operands is NaN.
    HalvesOperands,
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

/// A comparison: the highest bit of each lane is the result.
pub(super) trait Compare: 'static {
    const FLOAT: bool;
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
unsafe fn low_nan<S: Simd>(a: S::V) -> S::V {
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
    /// Whether the operands are halves, which the denormals of singles are nothing to.
    const fn halves(self) -> bool {
        matches!(self, Check::Half | Check::Halves | Check::HalfOperands | Check::HalvesOperands)
    }
}

/// Whether no active lane of a row is denormal.
unsafe fn ordinary_row(row: *const u32, exec: u64) -> bool {
    // SAFETY: the caller's.
    let row = unsafe { row.cast::<[u32; 64]>().read() };
    row.into_iter().enumerate().all(|(lane, word)| exec >> lane & 1 == 0 || !is_denormal(word))
}

fn is_denormal(word: u32) -> bool {
    (word & 0x7fff_ffff).wrapping_sub(1) < LEAST - 1
}

/// Whether MODE does not matter to the `count` operands of a step: it has the usual rounding, and
/// none is denormal. `kind` is the one in a scalar register.
#[cold]
#[inline(never)]
unsafe fn ordinary(step: &Step, cx: &Cx, check: Check, count: usize, kind: u8) -> bool {
    let exec = cx.exec();
    let good = |index: usize| {
        // SAFETY: the step's rows and registers exist.
        unsafe {
            if usize::from(kind) == index + 1 {
                !is_denormal(cx.scalar(step.scalar[index]))
            } else {
                ordinary_row(cx.row(step.src[index]), exec)
            }
        }
    };
    cx.wide && (check.halves() || (0..count).all(good))
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

/// The vectors of a result, in registers until it is known that they can be stored.
type Eight<V> = [V; 8];

/// Stores what a step made, or gives up. A macro, for closures are not always inlined, and vectors
/// are not passed well.
macro_rules! finish {
    ($s:ident, $step:ident, $cx:ident, $to:expr, $check:expr, $count:expr, $kind:expr, |$i:ident| $value:expr) => {{
        let (exec, to) = ($cx.exec(), $to);
        if $check == Check::Never {
            if exec == u64::MAX {
                for $i in 0..8 {
                    $s::store(to.add(8 * $i), $value.0);
                }
            } else if exec == LOW {
                for $i in 0..4 {
                    $s::store(to.add(8 * $i), $value.0);
                }
            } else {
                for $i in 0..vectors(exec) {
                    let mask = $s::lanes((exec >> (8 * $i)) as u8);
                    let value = $value.0;
                    $s::store(to.add(8 * $i), $s::select(mask, $s::load(to.add(8 * $i)), value));
                }
            }
            return $step.go_on($cx);
        }
        let plain = $cx.plain;
        if !plain && !ordinary($step, $cx, $check, $count, $kind) {
            return $step.slow($cx);
        }
        let mut values: Eight<$s::V> = [$s::splat(0); 8];
        let mut bad = $s::splat(0);
        if exec == u64::MAX && plain {
            for $i in 0..8 {
                let (value, here) = $value;
                values[$i] = value;
                if $check != Check::Result {
                    bad = $s::or(bad, here);
                }
            }
            if $check == Check::Result {
                for i in 0..4 {
                    bad = $s::or(bad, $s::unordered(values[2 * i], values[2 * i + 1]));
                }
            }
            if $s::mask(bad) != 0 {
                return $step.slow($cx);
            }
            for i in 0..8 {
                $s::store(to.add(8 * i), values[i]);
            }
        } else if exec == LOW && plain {
            for $i in 0..4 {
                let (value, here) = $value;
                values[$i] = value;
                if $check != Check::Result {
                    bad = $s::or(bad, here);
                }
            }
            if $check == Check::Result {
                for i in 0..2 {
                    bad = $s::or(bad, $s::unordered(values[2 * i], values[2 * i + 1]));
                }
            }
            if $s::mask(bad) != 0 {
                return $step.slow($cx);
            }
            for i in 0..4 {
                $s::store(to.add(8 * i), values[i]);
            }
        } else {
            // Results, too, are not denormal where MODE may not keep them.
            let limit = $s::splat(if plain || $check.halves() { 0 } else { LEAST });
            let vectors = vectors(exec);
            for $i in 0..vectors {
                let (value, here) = $value;
                values[$i] = value;
                let here = if $check == Check::Result { $s::unordered(value, value) } else { here };
                let here = $s::or(here, tiny::<$s>(value, limit));
                bad = $s::or(bad, $s::and(here, $s::lanes((exec >> (8 * $i)) as u8)));
            }
            if $s::mask(bad) != 0 {
                return $step.slow($cx);
            }
            for i in 0..vectors {
                let mask = $s::lanes((exec >> (8 * i)) as u8);
                $s::store(to.add(8 * i), $s::select(mask, $s::load(to.add(8 * i)), values[i]));
            }
        }
        $step.go_on($cx)
    }};
}

#[inline(always)]
unsafe fn unary<S: Simd, O: Unary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let row = cx.row(step.src[0]);
        let scalar = S::splat(if K == 1 { cx.scalar(step.scalar[0]) } else { 0 });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, 1, K, |i| {
            let a = if K == 1 { scalar } else { S::load(row.add(8 * i)) };
            let value = O::f::<S>(a);
            let bad = match O::CHECK {
                Check::Operands => S::unordered(a, a),
                Check::Custom => O::bad::<S>(a),
                Check::Half => low_nan::<S>(value),
                Check::Halves => any_nan::<S>(value),
                Check::HalfOperands => low_nan::<S>(a),
                Check::HalvesOperands => any_nan::<S>(a),
                Check::Never | Check::Result => a,
            };
            (value, bad)
        })
    }
}

#[inline(always)]
unsafe fn binary<S: Simd, O: Binary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, 2, K, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let value = O::f::<S>(a, b);
            let bad = match O::CHECK {
                Check::Operands => S::unordered(a, b),
                Check::Half => low_nan::<S>(value),
                Check::Halves => any_nan::<S>(value),
                Check::HalfOperands => S::or(low_nan::<S>(a), low_nan::<S>(b)),
                Check::HalvesOperands => S::or(any_nan::<S>(a), any_nan::<S>(b)),
                Check::Never | Check::Result | Check::Custom => a,
            };
            (value, bad)
        })
    }
}

#[inline(always)]
unsafe fn ternary<S: Simd, O: Ternary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, 3, K, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let c = if K == 3 { scalar } else { S::load(rows[2].add(8 * i)) };
            let value = O::f::<S>(a, b, c);
            let bad = match O::CHECK {
                Check::Operands => S::or(S::unordered(a, b), S::unordered(c, c)),
                Check::Custom => O::bad::<S>(a, b, c),
                Check::Half => low_nan::<S>(value),
                Check::Halves => any_nan::<S>(value),
                Check::HalfOperands => S::or(low_nan::<S>(a), S::or(low_nan::<S>(b), low_nan::<S>(c))),
                Check::HalvesOperands => S::or(any_nan::<S>(a), S::or(any_nan::<S>(b), any_nan::<S>(c))),
                Check::Never | Check::Result => a,
            };
            (value, bad)
        })
    }
}

/// An operation on both words of pairs of rows.
#[inline(always)]
unsafe fn pair<S: Simd, O: Ternary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist, and those that follow them.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let good = |row: &*const u32| ordinary_row(*row, exec) && ordinary_row(row.add(64), exec);
        if !(cx.plain || cx.wide && rows.iter().all(good)) {
            return step.slow(cx);
        }
        let limit = S::splat(if cx.plain { 0 } else { LEAST });
        let mut values = [S::splat(0); 16];
        let mut bad = S::splat(0);
        for at in 0..16 {
            let value =
                O::f::<S>(S::load(rows[0].add(8 * at)), S::load(rows[1].add(8 * at)), S::load(rows[2].add(8 * at)));
            values[at] = value;
            let here = S::or(S::unordered(value, value), tiny::<S>(value, limit));
            bad = S::or(bad, S::and(here, S::lanes((exec >> (8 * (at % 8))) as u8)));
        }
        if S::mask(bad) != 0 {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for at in 0..16 {
            let mask = S::lanes((exec >> (8 * (at % 8))) as u8);
            S::store(to.add(8 * at), S::select(mask, S::load(to.add(8 * at)), values[at]));
        }
        step.go_on(cx)
    }
}

/// A comparison; `X`: the result goes to EXEC, too.
#[inline(always)]
unsafe fn compare<S: Simd, O: Compare, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        if O::FLOAT && !cx.plain && !ordinary(step, cx, Check::Operands, 2, K) {
            return step.slow(cx);
        }
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        let mut mask = 0;
        let exec = cx.exec();
        let mut ask = |i: usize| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            mask |= u64::from(S::mask(O::f::<S>(a, b))) << (8 * i);
        };
        if exec > LOW {
            for i in 0..8 {
                ask(i);
            }
        } else {
            for i in 0..4 {
                ask(i);
            }
        }
        mask &= exec;
        cx.set_mask(step.scalar[3], mask);
        if step.imm != 0 {
            cx.set_mask(vkfd_isa::Operand::EXEC, mask);
        }
        step.go_on(cx)
    }
}

/// The carry in is a mask in `scalar[2]`, the carry out one in `scalar[3]`.
#[inline(always)]
unsafe fn carry<S: Simd, O: Carry, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        let carry_in = if O::IN { cx.pair(step.scalar[2]) } else { 0 };
        let exec = cx.exec();
        let to = cx.row_mut(step.dst);
        let mut out = 0;
        for i in 0..vectors(exec) {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let carry = if O::IN { S::lanes((carry_in >> (8 * i)) as u8) } else { S::splat(0) };
            let (value, carry) = O::f::<S>(a, b, carry);
            out |= u64::from(S::mask(carry)) << (8 * i);
            if exec == cx.all {
                S::store(to.add(8 * i), value);
            } else {
                let mask = S::lanes((exec >> (8 * i)) as u8);
                S::store(to.add(8 * i), S::select(mask, S::load(to.add(8 * i)), value));
            }
        }
        cx.set_mask(step.scalar[3], out & exec);
        step.go_on(cx)
    }
}

/// `b` in the lanes of a mask (in `scalar[2]`), `a` in the others.
#[inline(always)]
unsafe fn choose<S: Simd, O: Choice, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        let which = cx.pair(step.scalar[2]);
        finish!(S, step, cx, cx.row_mut(step.dst), Check::Never, 2, K, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let value = S::select(S::lanes((which >> (8 * i)) as u8), a, b);
            (value, value)
        })
    }
}

/// A handler for each way to compile it.
macro_rules! shape {
    ($name:ident, $generic:ident, $trait:ident, [$($kind:literal),*]) => {
        /// The handler of an operation, if one of its sources is in a scalar register, or none.
        pub(super) fn $name<O: $trait>(avx2: bool, kind: u8) -> Option<Run> {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn wide<O: $trait, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
                    // SAFETY: the caller's.
                    unsafe { $generic::<super::avx2::Avx2, O, K>(step, cx) }
                }
                if avx2 {
                    return match kind {
                        $($kind => Some(wide::<O, $kind>),)*
                        _ => None,
                    };
                }
            }
            let _ = avx2;
            unsafe fn narrow<O: $trait, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: the caller's.
                unsafe { $generic::<super::simd::Portable, O, K>(step, cx) }
            }
            match kind {
                $($kind => Some(narrow::<O, $kind>),)*
                _ => None,
            }
        }
    };
}

shape!(unary_run, unary, Unary, [0, 1]);
shape!(binary_run, binary, Binary, [0, 1, 2]);
shape!(ternary_run, ternary, Ternary, [0, 1, 2, 3]);
shape!(pair_run, pair, Ternary, [0]);
shape!(compare_run, compare, Compare, [0, 1, 2]);
shape!(carry_run, carry, Carry, [0, 1, 2]);
shape!(choose_run, choose, Choice, [0, 1, 2]);
