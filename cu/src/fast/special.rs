// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations whose ordinary cases are simple: reciprocals, exponentials, conversions of halves,
//! the steps of a division. What is not ordinary (zeros, infinities, denormals, results near a tie)
//! is the reference engine's.

use super::block::{Builder, Place};
use super::ops::Shape;
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step, ROW};
use super::vector::{pair_run, ternary_run, tiny, unary_run, Check, Ternary, Unary, LEAST};
use crate::reference;
use vkfd_isa::{Inst, Mods, Op};

const EXPONENT: u32 = 0x7f80_0000;

/// The highest bit where an exponent is not from `low` to `high`.
#[inline(always)]
unsafe fn beyond<S: Simd>(a: S::V, low: u32, high: u32) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let power = S::and(a, S::splat(EXPONENT));
        S::or(S::gt(S::splat(low << 23), power), S::gt(power, S::splat(high << 23)))
    }
}

/// Operations with one source: ordinary exponents of the source and the result, whether negative
/// sources are, and the function.
macro_rules! ordinary {
    ($($op:ident $from:literal..=$to:literal $sign:literal |$s:ident, $a:ident| $body:expr;)*) => {
        $(
            struct $op;
            impl Unary for $op {
                const CHECK: Check = Check::Custom;
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { $body }
                }
                #[inline(always)]
                unsafe fn bad<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe {
                        let bad = beyond::<$s>($a, $from, $to);
                        let bad = if $sign { bad } else { $s::or(bad, $a) };
                        $s::or(bad, beyond::<$s>(Self::f::<$s>($a), 1, 254))
                    }
                }
            }
        )*
    };
}

/// One over the square root, to the nearest: NaN if double precision leaves it open which that is.
#[inline(always)]
fn rsq(a: u32) -> u32 {
    let root = 1.0 / f64::from(f32::from_bits(a)).sqrt();
    let below = root.to_bits() & 0x1fff_ffff;
    if below.abs_diff(0x1000_0000) < 8 {
        return u32::MAX;
    }
    (root as f32).to_bits()
}

ordinary! {
    VRsqF32 1..=254 false |S, a| S::map(a, rsq);
}

/// A denormal as zero, with its sign.
#[inline(always)]
unsafe fn flush<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let none = S::eq(S::and(a, S::splat(EXPONENT)), S::splat(0));
        S::select(none, a, S::and(a, S::splat(1 << 31)))
    }
}

/// Operations with one source that know no denormals: the function, and what has no result.
macro_rules! flushing {
    ($($op:ident |$s:ident, $a:ident| $body:expr, $bad:expr;)*) => {
        $(
            struct $op;
            impl Unary for $op {
                const CHECK: Check = Check::Custom;
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe {
                        let $a = flush::<$s>($a);
                        flush::<$s>($body)
                    }
                }
                #[inline(always)]
                unsafe fn bad<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { $s::or($s::unordered($a, $a), $bad) }
                }
            }
        )*
    };
}

flushing! {
    VRcpF32 |S, a| S::fdiv(S::splat(0x3f80_0000), a), S::splat(0);
    VExpF32 |S, a| S::map(a, |a| (libm::exp2(f64::from(f32::from_bits(a))) as f32).to_bits()), S::splat(0);
    VLogF32 |S, a| {
        S::map(a, |a| (libm::log2(f64::from(f32::from_bits(a))) as f32).to_bits())
    }, S::flt(flush::<S>(a), S::splat(0));
}

/// Sine or cosine of what is less than 256 turns.
struct Turns<const COSINE: bool>;

impl<const COSINE: bool> Unary for Turns<COSINE> {
    const CHECK: Check = Check::Custom;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            S::map(a, |a| match f32::from_bits(a) {
                // With its sign.
                turns if turns == 0.0 && !COSINE => a,
                turns if COSINE => (reference::cosine(turns.into()) as f32).to_bits(),
                turns => (reference::sine(turns.into()) as f32).to_bits(),
            })
        }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::or(beyond::<S>(a, 0, 134), tiny::<S>(a, S::splat(LEAST))) }
    }
}

/// A half's value: NaNs are the reference's.
struct Widen;

impl Unary for Widen {
    const CHECK: Check = Check::Custom;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::widen(S::and(a, S::splat(0xffff))) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::gt(S::and(a, S::splat(0x7fff)), S::splat(0x7c00)) }
    }
}

/// A half: NaNs are the reference's. What is above it is zero.
struct Narrow;

impl Unary for Narrow {
    const CHECK: Check = Check::Custom;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::narrow(a) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::unordered(a, a) }
    }
}

/// `v_div_scale` where nothing need be scaled.
struct Scale;

/// Exponents whose quotient is ordinary.
const LOW: u32 = 80;
const HIGH: u32 = 174;

impl Ternary for Scale {
    const CHECK: Check = Check::Custom;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, _: S::V, _: S::V) -> S::V {
        a
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(_: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::or(beyond::<S>(b, LOW, HIGH), beyond::<S>(c, LOW, HIGH)) }
    }
}

/// `v_div_fixup` where the quotient is right, but for its sign.
struct Fixup;

impl Ternary for Fixup {
    const CHECK: Check = Check::Custom;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            let sign = S::splat(1 << 31);
            S::or(S::and(a, S::splat(0x7fff_ffff)), S::and(S::xor(b, c), sign))
        }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            let operands = S::or(beyond::<S>(b, LOW, HIGH), beyond::<S>(c, LOW, HIGH));
            S::or(operands, beyond::<S>(a, 1, 254))
        }
    }
}

/// The plain fused operation.
struct Fma;

impl Ternary for Fma {
    const CHECK: Check = Check::Result;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::fma(a, b, c) }
    }
}

struct Mul;

impl Ternary for Mul {
    const CHECK: Check = Check::Result;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, _: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::fmul(a, b) }
    }
}

struct Add;

impl Ternary for Add {
    const CHECK: Check = Check::Result;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, _: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::fadd(a, b) }
    }
}

/// Gives up if an active lane's VCC is set.
unsafe fn no_vcc(step: &Step, cx: &mut Cx) -> Flow {
    if cx.wave.vcc() & cx.exec() != 0 {
        step.slow(cx)
    } else {
        step.done(cx)
    }
}

/// A mask of no lanes.
unsafe fn no_lanes(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's registers exist.
    unsafe { cx.set_mask(step.scalar[3], 0) };
    step.done(cx)
}

/// The shape and handler of an operation with one source, which is in a scalar register (`kind` 1)
/// or not (0); `sdwa`: or a part of a register, which is hardly ever an ordinary single.
pub(super) fn handler(op: Op, avx2: bool, kind: u8, sdwa: bool) -> Option<(Shape, Run)> {
    let run = match op {
        Op::VCvtF32F16 => unary_run::<Widen>(avx2, kind),
        Op::VCvtF16F32 => unary_run::<Narrow>(avx2, kind),
        _ if sdwa => None,
        Op::VRcpF32 | Op::VRcpIflagF32 => unary_run::<VRcpF32>(avx2, kind),
        Op::VRsqF32 => unary_run::<VRsqF32>(avx2, kind),
        Op::VExpF32 | Op::VExpLegacyF32 => unary_run::<VExpF32>(avx2, kind),
        Op::VLogF32 | Op::VLogLegacyF32 => unary_run::<VLogF32>(avx2, kind),
        Op::VSinF32 => unary_run::<Turns<false>>(avx2, kind),
        Op::VCosF32 => unary_run::<Turns<true>>(avx2, kind),
        _ => None,
    };
    Some((Shape::Unary, run?))
}

/// Makes steps of these operations.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let avx2 = builder.avx2;
    let pair = match inst.op {
        Op::VPkFmaF32 => pair_run::<Fma>(avx2, 0),
        Op::VPkMulF32 => pair_run::<Mul>(avx2, 0),
        Op::VPkAddF32 => pair_run::<Add>(avx2, 0),
        _ => None,
    };
    if let Some(run) = pair {
        return pairs(builder, inst, place, steps, run);
    }
    if inst.mods != Mods::default() {
        return None;
    }
    let (run, count): (Run, usize) = match inst.op {
        Op::VDivScaleF32 => (ternary_run::<Scale>(avx2, 0)?, 3),
        Op::VDivFixupF32 => (ternary_run::<Fixup>(avx2, 0)?, 3),
        Op::VDivFmasF32 => (ternary_run::<Fma>(avx2, 0)?, 3),
        _ => return None,
    };
    if inst.op == Op::VDivFmasF32 {
        steps.push(place.step(no_vcc));
    }
    let mut step = place.step(run);
    for index in 0..count {
        step.src[index] = builder.row_source(inst.src[index], (false, false), index, place, steps)?;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    if inst.op == Op::VDivScaleF32 {
        let mut step = place.step(no_lanes);
        step.scalar[3] = builder.layout.mask(inst.sdst)?;
        steps.push(step);
    }
    Some(())
}

/// Operations on pairs of rows, as they are in the plain encoding: low with low, high with high.
fn pairs(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>, run: Run) -> Option<()> {
    let count = if inst.op == Op::VPkFmaF32 { 3 } else { 2 };
    let all = (1 << count) - 1;
    let plain = Mods { op_sel_hi: inst.mods.op_sel_hi, ..Mods::default() };
    if inst.mods != plain || inst.mods.op_sel_hi & all != all {
        return None;
    }
    let mut step = place.step(run);
    for index in 0..count {
        step.src[index] = super::step::Source::register(builder.layout.row(inst.src[index], 2)? * ROW);
    }
    if count == 2 {
        step.src[2] = step.src[1];
    }
    step.dst = builder.layout.row(inst.dst, 2)? * ROW;
    steps.push(step);
    Some(())
}
