// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sums, differences and dot products of integers that saturate: what `clamp` makes of them.
//!
//! Limits: products with sums, and sums of distances, are the reference engine's when they
//! saturate.

use super::half::{low, signed};
use super::operation::{Binary, Check, Ternary};
use super::ops::{operations, Shape};
use super::simd::Simd;
use super::vector::{binary_run, ternary_run, Handler};
use vkfd_isa::Op;

/// The sum of the products of parts of `bits` bits.
#[inline(always)]
fn dot(a: u32, b: u32, bits: u32, with_sign: bool) -> i64 {
    let part = |word: u32, n: u32| {
        let up = word << (32 - bits - bits * n);
        if with_sign {
            i64::from(up as i32 >> (32 - bits))
        } else {
            i64::from(up >> (32 - bits))
        }
    };
    (0..32 / bits).map(|n| part(a, n) * part(b, n)).sum()
}

#[inline(always)]
fn signed_sum(sum: i64, c: u32) -> u32 {
    (sum + i64::from(c as i32)).clamp(i32::MIN.into(), i32::MAX.into()) as u32
}

#[inline(always)]
fn unsigned_sum(sum: i64, c: u32) -> u32 {
    (sum + i64::from(c)).clamp(0, u32::MAX.into()) as u32
}

/// What fits into a half with a sign.
#[inline(always)]
unsafe fn short<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's, as in all of these.
    unsafe { S::and(S::max_i(S::min_i(a, S::splat(0x7fff)), S::splat(0xffff_8000)), S::splat(0xffff)) }
}

#[inline(always)]
unsafe fn iadd<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { short::<S>(S::add(signed::<S>(a), signed::<S>(b))) }
}

#[inline(always)]
unsafe fn isub<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { short::<S>(S::sub(signed::<S>(a), signed::<S>(b))) }
}

#[inline(always)]
unsafe fn uadd<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::min_u(S::add(low::<S>(a), low::<S>(b)), S::splat(0xffff)) }
}

#[inline(always)]
unsafe fn usub<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::max_i(S::sub(low::<S>(a), low::<S>(b)), S::splat(0)) }
}

/// A function of both halves.
macro_rules! both {
    ($s:ident, $f:ident, $a:ident, $b:ident) => {{
        let half = $s::splat(16);
        let above = $f::<$s>($s::shr($a, half), $s::shr($b, half));
        $s::or($f::<$s>($a, $b), $s::shl(above, half))
    }};
}

operations! {
    Binary Never |S, (a, b)| {
        VAddU32 => S::map2(a, b, u32::saturating_add);
        VSubU32 => S::map2(a, b, u32::saturating_sub);
        VSubrevU32 => S::map2(b, a, u32::saturating_sub);
        VAddI32 => S::map2(a, b, |a, b| (a as i32).saturating_add(b as i32) as u32);
        VSubI32 => S::map2(a, b, |a, b| (a as i32).saturating_sub(b as i32) as u32);
        VAddU16 => uadd::<S>(a, b);
        VSubU16 => usub::<S>(a, b);
        VSubrevU16 => usub::<S>(b, a);
        VAddI16 => iadd::<S>(a, b);
        VSubI16 => isub::<S>(a, b);
        VAddNcU16 => uadd::<S>(a, b);
        VSubNcU16 => usub::<S>(a, b);
        VPkAddU16 => both!(S, uadd, a, b);
        VPkSubU16 => both!(S, usub, a, b);
        VPkAddI16 => both!(S, iadd, a, b);
        VPkSubI16 => both!(S, isub, a, b);
    }
    Ternary Never |S, (a, b, c)| {
        VDot4I32I8 => S::map3(a, b, c, |a, b, c| signed_sum(dot(a, b, 8, true), c));
        VDot4U32U8 => S::map3(a, b, c, |a, b, c| unsigned_sum(dot(a, b, 8, false), c));
        VDot8I32I4 => S::map3(a, b, c, |a, b, c| signed_sum(dot(a, b, 4, true), c));
        VDot8U32U4 => S::map3(a, b, c, |a, b, c| unsigned_sum(dot(a, b, 4, false), c));
        VDot2I32I16 => S::map3(a, b, c, |a, b, c| signed_sum(dot(a, b, 16, true), c));
        VDot2U32U16 => S::map3(a, b, c, |a, b, c| unsigned_sum(dot(a, b, 16, false), c));
    }
}

/// The shape and handler of an operation that saturates.
pub(super) fn handler(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
    plain(op, avx2, kind)
}
