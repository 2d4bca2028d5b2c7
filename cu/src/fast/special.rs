// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations whose ordinary cases are simple: reciprocals, exponentials, conversions of halves,
//! the steps of a division. What is not ordinary (a result near a tie, a quotient far from one) is
//! the reference engine's function's, lane by lane.

use super::builder::Builder;
use super::operation::{tiny, vectors, Check, Ternary, Unary, LEAST};
use super::ops::Shape;
use super::rest::flushed;
use super::simd::{Simd, INVALID, QUIET};
use super::step::{Cx, Flow, Place, Step, ROW};
use super::vector::{ternary_run, unary_run, Handler};
use crate::reference::{self, Function};
use vkfd_isa::{Inst, Mods, Op};

const EXPONENT: u32 = 0x7f80_0000;
const INFINITY: u32 = 0x7f80_0000;

/// The highest bit where an exponent is not from `low` to `high`.
#[inline(always)]
unsafe fn beyond<S: Simd>(a: S::V, low: u32, high: u32) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let power = S::and(a, S::splat(EXPONENT));
        S::or(S::gt(S::splat(low << 23), power), S::gt(power, S::splat(high << 23)))
    }
}

/// A denormal as zero, with its sign.
#[inline(always)]
unsafe fn flush<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { flushed::<S>(a, S::splat(u32::MAX)) }
}

/// The source where it is NaN, quieted.
#[inline(always)]
unsafe fn or_nan<S: Simd>(value: S::V, a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::select(S::unordered(a, a), value, S::or(a, S::splat(QUIET))) }
}

/// Operations with one source that know no denormals and no MODE: the results, and where they are
/// open.
macro_rules! fixed {
    ($($op:ident |$s:ident, $a:ident| $body:expr;)*) => {
        $(
            struct $op;
            impl $op {
                #[inline(always)]
                unsafe fn both<$s: Simd>($a: $s::V) -> ($s::V, $s::V) {
                    // SAFETY: the caller's.
                    unsafe {
                        let $a = flush::<$s>($a);
                        let (value, open) = $body;
                        (flush::<$s>(value), open)
                    }
                }
            }
            impl Unary for $op {
                const CHECK: Check = Check::Fixed;
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { Self::both::<$s>($a).0 }
                }
                #[inline(always)]
                unsafe fn bad<$s: Simd>($a: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { Self::both::<$s>($a).1 }
                }
            }
        )*
    };
}

fixed! {
    VRsqF32 |S, a| S::rsq(a);
    VExpF32 |S, a| {
        // What is beyond has no other result than these.
        let near = S::fmax(S::fmin(a, S::splat(200f32.to_bits())), S::splat((-200f32).to_bits()));
        let (value, open) = S::exp2(near);
        (or_nan::<S>(value, a), open)
    };
    VLogF32 |S, a| {
        let (value, open) = S::log2(a);
        let zero = S::feq(a, S::splat(0));
        let value = S::select(S::feq(a, S::splat(INFINITY)), value, a);
        let value = S::select(S::flt(a, S::splat(0)), value, S::splat(INVALID));
        let value = S::select(zero, value, S::splat(1 << 31 | INFINITY));
        let ordinary = S::and(S::flt(S::splat(0), a), S::flt(a, S::splat(INFINITY)));
        (or_nan::<S>(value, a), S::and(open, ordinary))
    };
}

struct VRcpF32;

impl Unary for VRcpF32 {
    const CHECK: Check = Check::Quieting;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { flush::<S>(S::fdiv(S::splat(0x3f80_0000), flush::<S>(a))) }
    }
}

/// Sine or cosine of less than 256 turns.
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

/// A half's value.
struct Widen;

impl Unary for Widen {
    const CHECK: Check = Check::Rounded;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::widen(S::and(a, S::splat(0xffff))) }
    }
}

/// A half. What is above it is zero.
struct Narrow;

impl Unary for Narrow {
    const CHECK: Check = Check::Rounded;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::narrow(a) }
    }
}

/// Exponents whose quotient is ordinary.
const LOW: u32 = 80;
const HIGH: u32 = 174;

/// `v_div_scale`. Nothing is scaled where both exponents are ordinary; other lanes are the
/// reference engine's function's. The mask of lanes is `scalar[3]`.
#[inline(always)]
unsafe fn scale_body<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let rows = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let to = cx.row_mut(step.dst);
        let odd = S::splat(if cx.plain { 0 } else { LEAST });
        let mut left = 0;
        for group in 0..vectors(exec) {
            let (a, b) = (S::load(rows[0].add(8 * group)), S::load(rows[1].add(8 * group)));
            let c = S::load(rows[2].add(8 * group));
            let bad = S::or(S::or(beyond::<S>(b, LOW, HIGH), beyond::<S>(c, LOW, HIGH)), tiny::<S>(a, odd));
            let bad = S::mask(bad) & (exec >> (8 * group)) as u8;
            left |= u64::from(bad) << (8 * group);
            let good = S::lanes((exec >> (8 * group)) as u8 & !bad);
            S::store(to.add(8 * group), S::select(good, S::load(to.add(8 * group)), a));
        }
        let mut mask = 0;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let sources = rows.map(|row| row.add(lane).read());
            let (value, bit) = reference::div_scale32(cx.wave.mode, sources);
            to.add(lane).write(value);
            mask |= u64::from(bit) << lane;
        }
        cx.set_mask(step.scalar[3], mask);
    }
    step.done(cx)
}

super::prepare::light!(scale, scale_body);

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
    const CHECK: Check = Check::Singles;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::fma(a, b, c) }
    }
}

/// Of `v_div_fmas`, the lanes whose bit of VCC is set, which are scaled back: behind the plain
/// operation, whose sources as they were are in `src`.
unsafe fn scaled_back(step: &Step, cx: &mut Cx) -> Flow {
    let mut left = cx.wave.vcc() & cx.exec();
    let Some(function) = Function::of(Op::VDivFmasF32) else { return step.slow(cx) };
    // SAFETY: the step's rows exist.
    unsafe {
        let rows = step.src.map(|source| cx.row(source));
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let words = rows.map(|row| row.add(lane).read());
            let value = function.lane(cx.wave, lane, cx.wave.vcc(), words, false);
            cx.row_mut(step.dst).add(lane).write(value as u32);
        }
    }
    step.done(cx)
}

/// The shape and handler of an operation with one source. The source is in a scalar register
/// (`kind` 1) or not (0). With `sdwa` it is a part of a register, which is hardly ever an ordinary
/// single.
pub(super) fn handler(op: Op, avx2: bool, kind: u8, sdwa: bool) -> Option<(Shape, Handler)> {
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
    let Mods { neg, abs, .. } = inst.mods;
    if inst.mods != (Mods { neg, abs, ..Mods::default() }) {
        return None;
    }
    if !matches!(inst.op, Op::VDivScaleF32 | Op::VDivFixupF32 | Op::VDivFmasF32) {
        return None;
    }
    let mut step = place.step(scale(avx2));
    for index in 0..3 {
        let bit = |mask: u8| mask >> index & 1 == 1;
        step.src[index] = builder.row_source(inst.src[index], (bit(abs), bit(neg)), index, place, steps)?;
    }
    step.dst = builder.layout.row(inst.dst, 1)? * ROW;
    match inst.op {
        Op::VDivScaleF32 => step.scalar[3] = builder.layout.mask(inst.sdst)?,
        Op::VDivFixupF32 => ternary_run::<Fixup>(avx2, 0)?.give(&mut step, inst.op),
        _ => {
            // The destination may be a source, and two steps read it.
            for index in 0..3 {
                if step.src[index].in_registers() != Some(step.dst) {
                    continue;
                }
                let mut copy = place.step(super::prepare::keep(avx2));
                copy.src[0] = step.src[index];
                (copy.dst, step.src[index]) = builder.constants.temporary(index);
                steps.push(copy);
            }
            // The operation by itself, which has no function for lanes that are left but the one
            // of FMA.
            ternary_run::<Fma>(avx2, 0)?.give(&mut step, Op::VFmaF32);
            let behind = Step { src: step.src, dst: step.dst, ..place.step(scaled_back) };
            steps.push(step);
            steps.push(behind);
            return Some(());
        }
    }
    steps.push(step);
    Some(())
}
