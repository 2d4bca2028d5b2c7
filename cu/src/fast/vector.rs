// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations of 32 bits: shapes of handlers, for one, two and three sources, comparisons
//! and carries.
//!
//! An operation is a function of vectors of eight lanes. A shape makes handlers of it: with all
//! sources in rows, or one of them in a scalar register; each with all lanes active or some.
//! Floating-point operations leave to the reference engine whatever the host may do otherwise:
//! another MODE, and NaNs in results (or operands, where the result hides them).

use super::operation::{vectors, Binary, Carry, Check, Choice, Compare, Of, Ternary, Unary, LOW, ROWS};
use super::rest::{self, Lost};
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step};
use vkfd_isa::Op;

/// A handler of an operation, and its second one.
#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub(super) run: Run,
    rest: Run,
    /// The source that is in a scalar register, counted from one; 0: none.
    kind: u8,
}

impl Handler {
    /// One that needs no second.
    pub(super) fn alone(run: Run) -> Handler {
        Handler { run, rest: run, kind: ROWS }
    }

    /// Gives a step this handler. The operation's function of one lane does the remaining lanes.
    pub(super) fn give(self, step: &mut Step, op: Op) {
        (step.run, step.alone, step.rest) = (self.run, self.run, self.rest);
        (step.kind, step.op) = (self.kind, op as u16);
    }
}

/// The vectors of a result, in registers until it is known that they can be stored.
type Eight<V> = [V; 8];

/// Stores what a step made, or leaves it to the second handler. A macro, for closures are not
/// always inlined, and vectors are not passed well.
macro_rules! finish {
    ($s:ident, $step:ident, $cx:ident, $to:expr, $check:expr, |$i:ident| $value:expr) => {{
        let (exec, to) = ($cx.exec(), $to);
        if !$check.suits($cx) {
            return ($step.rest)($step, $cx);
        }
        if $check.sure() {
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
        let mut values: Eight<$s::V> = [$s::splat(0); 8];
        let mut bad = $s::splat(0);
        if exec == u64::MAX {
            for $i in 0..8 {
                let (value, here) = $value;
                values[$i] = value;
                bad = $s::or(bad, here);
            }
            if $s::mask(bad) != 0 {
                return ($step.rest)($step, $cx);
            }
            for i in 0..8 {
                $s::store(to.add(8 * i), values[i]);
            }
        } else if exec == LOW {
            for $i in 0..4 {
                let (value, here) = $value;
                values[$i] = value;
                bad = $s::or(bad, here);
            }
            if $s::mask(bad) != 0 {
                return ($step.rest)($step, $cx);
            }
            for i in 0..4 {
                $s::store(to.add(8 * i), values[i]);
            }
        } else {
            let vectors = vectors(exec);
            for $i in 0..vectors {
                let (value, here) = $value;
                values[$i] = value;
                bad = $s::or(bad, $s::and(here, $s::lanes((exec >> (8 * $i)) as u8)));
            }
            if $s::mask(bad) != 0 {
                return ($step.rest)($step, $cx);
            }
            for i in 0..vectors {
                let mask = $s::lanes((exec >> (8 * i)) as u8);
                $s::store(to.add(8 * i), $s::select(mask, $s::load(to.add(8 * i)), values[i]));
            }
        }
        $step.go_on($cx)
    }};
}

/// A result, and the lanes in which it is not the handler's.
macro_rules! lane {
    ($s:ident, $o:ident, [$($source:ident),*]) => {{
        let value = $o::f::<$s>($($source),*);
        let bad = if $o::CHECK.sure() {
            value
        } else {
            $s::or($o::CHECK.wrong::<$s>(value), $o::CHECK.bad::<$s, { [$(stringify!($source)),*].len() }>([$($source),*]))
        };
        (value, bad)
    }};
}

#[inline(always)]
unsafe fn unary<S: Simd, O: Unary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let row = cx.row(step.src[0]);
        let scalar = S::splat(if K == 1 { cx.scalar(step.scalar[0]) } else { 0 });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, |i| {
            let a = if K == 1 { scalar } else { S::load(row.add(8 * i)) };
            let (value, bad) = lane!(S, O, [a]);
            (value, if O::CHECK.custom() { O::bad::<S>(a) } else { bad })
        })
    }
}

#[inline(always)]
unsafe fn binary<S: Simd, O: Binary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            lane!(S, O, [a, b])
        })
    }
}

#[inline(always)]
unsafe fn ternary<S: Simd, O: Ternary, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        finish!(S, step, cx, cx.row_mut(step.dst), O::CHECK, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let c = if K == 3 { scalar } else { S::load(rows[2].add(8 * i)) };
            let (value, bad) = lane!(S, O, [a, b, c]);
            (value, if O::CHECK.custom() { O::bad::<S>(a, b, c) } else { bad })
        })
    }
}

/// A comparison; `X`: the result goes to EXEC, too.
#[inline(always)]
unsafe fn compare<S: Simd, O: Compare, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        if O::OF == Of::Halves && !cx.wide {
            return step.slow(cx);
        }
        let lost = Lost::of::<S>(cx.wave.mode);
        let keeps = O::OF != Of::Singles || cx.wave.mode.denorm32_in();
        let rows = [cx.row(step.src[0]), cx.row(step.src[1])];
        let scalar = S::splat(if K == ROWS { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) });
        let mut mask = 0;
        let exec = cx.exec();
        // A closure would be a function without the processor's vectors.
        for i in 0..if exec > LOW { 8 } else { 4 } {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let [a, b] = if keeps { [a, b] } else { [lost.source::<S>(a), lost.source::<S>(b)] };
            mask |= u64::from(S::mask(O::f::<S>(a, b))) << (8 * i);
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
        finish!(S, step, cx, cx.row_mut(step.dst), Check::Never, |i| {
            let a = if K == 1 { scalar } else { S::load(rows[0].add(8 * i)) };
            let b = if K == 2 { scalar } else { S::load(rows[1].add(8 * i)) };
            let value = S::select(S::lanes((which >> (8 * i)) as u8), a, b);
            (value, value)
        })
    }
}

/// A handler for each way to compile it.
macro_rules! shape {
    ($name:ident, $generic:ident, $trait:ident, $rest:expr, [$($kind:literal),*]) => {
        /// The handler of an operation, if one of its sources is in a scalar register, or none.
        pub(super) fn $name<O: $trait>(avx2: bool, kind: u8) -> Option<Handler> {
            let rest: Option<Run> = $rest(avx2);
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn wide<O: $trait, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
                    // SAFETY: the caller's.
                    unsafe { $generic::<super::avx2::Avx2, O, K>(step, cx) }
                }
                if avx2 {
                    let run: Run = match kind {
                        $($kind => wide::<O, $kind>,)*
                        _ => return None,
                    };
                    return Some(Handler { run, rest: rest.unwrap_or(run), kind });
                }
            }
            unsafe fn narrow<O: $trait, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
                // SAFETY: the caller's.
                unsafe { $generic::<super::simd::Portable, O, K>(step, cx) }
            }
            let run: Run = match kind {
                $($kind => narrow::<O, $kind>,)*
                _ => return None,
            };
            Some(Handler { run, rest: rest.unwrap_or(run), kind })
        }
    };
}

shape!(unary_run, unary, Unary, |avx2| Some(rest::unary::<O>(avx2)), [0, 1]);
shape!(binary_run, binary, Binary, |avx2| Some(rest::binary::<O>(avx2)), [0, 1, 2]);
shape!(ternary_run, ternary, Ternary, |avx2| Some(rest::ternary::<O>(avx2)), [0, 1, 2, 3]);
shape!(compare_run, compare, Compare, |_| None, [0, 1, 2]);
shape!(carry_run, carry, Carry, |_| None, [0, 1, 2]);
shape!(choose_run, choose, Choice, |_| None, [0, 1, 2]);
