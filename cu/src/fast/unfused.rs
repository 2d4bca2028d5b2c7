// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Products and sums that are rounded one after the other and know no denormals: `v_mac`, `v_mad`,
//! dot products of halves.
//!
//! The host rounds as they do. A lane with a denormal, or what may have been one before it was
//! rounded, is the reference engine's.

use super::half::single;
use super::operation::{tiny, Check, Ternary, LEAST};
use super::ops::Shape;
use super::rest::flushed;
use super::simd::Simd;
use super::vector::{ternary_run, Handler};
use vkfd_isa::Op;

/// The highest bit where the low half is not zero and has a magnitude of at most the least half
/// that is not denormal.
#[inline(always)]
unsafe fn tiny_half<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's, as in all of these.
    unsafe {
        let above = S::sub(S::and(a, S::splat(0x7fff)), S::splat(1));
        S::and(S::gt(S::splat(0x400), above), S::xor(above, S::splat(u32::MAX)))
    }
}

/// The highest bit where a number may have been denormal before it was rounded.
#[inline(always)]
unsafe fn least<S: Simd>(a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::eq(S::and(a, S::splat(0x7fff_ffff)), S::splat(LEAST)) }
}

#[inline(always)]
unsafe fn flush<S: Simd>(a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { flushed::<S>(a, S::splat(u32::MAX)) }
}

/// The product; of legacy operations, zero if a factor is.
#[inline(always)]
unsafe fn product<S: Simd, const LEGACY: bool>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (flush::<S>(a), flush::<S>(b));
        let product = S::fmul(a, b);
        if !LEGACY {
            return product;
        }
        let zero = S::or(S::feq(a, S::splat(0)), S::feq(b, S::splat(0)));
        S::select(zero, product, S::splat(0))
    }
}

/// Of single precision.
struct Single<const LEGACY: bool>;

impl<const LEGACY: bool> Ternary for Single<LEGACY> {
    const CHECK: Check = Check::Flushing;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe { flush::<S>(S::fadd(flush::<S>(product::<S, LEGACY>(a, b)), flush::<S>(c))) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe {
            let product = product::<S, LEGACY>(a, b);
            S::or(least::<S>(product), least::<S>(S::fadd(flush::<S>(product), flush::<S>(c))))
        }
    }
}

/// Of halves.
struct Half;

impl Half {
    /// The product and the sum, as singles before they are rounded, and the half that the product
    /// is.
    #[inline(always)]
    unsafe fn parts<S: Simd>(a: S::V, b: S::V, c: S::V) -> [S::V; 3] {
        // SAFETY: as above.
        unsafe {
            let product = S::fmul(single::<S>(a), single::<S>(b));
            let rounded = S::narrow(product);
            [product, S::fadd(single::<S>(rounded), single::<S>(c)), rounded]
        }
    }
}

impl Ternary for Half {
    const CHECK: Check = Check::Flushing;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe { S::narrow(Half::parts::<S>(a, b, c)[1]) }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe {
            let [product, sum, rounded] = Half::parts::<S>(a, b, c);
            let mut bad = S::unordered(product, sum);
            for half in [a, b, c, rounded, S::narrow(sum)] {
                bad = S::or(bad, tiny_half::<S>(half));
            }
            bad
        }
    }
}

/// Two products of halves, added to a single one after the other.
struct Dot2;

impl Dot2 {
    /// The sum with the first product, and with both.
    #[inline(always)]
    unsafe fn sums<S: Simd>(a: S::V, b: S::V, c: S::V) -> [S::V; 2] {
        // SAFETY: as above.
        unsafe {
            let half = S::splat(16);
            let first = S::fadd(c, S::fmul(single::<S>(a), single::<S>(b)));
            let high = S::fmul(single::<S>(S::shr(a, half)), single::<S>(S::shr(b, half)));
            [first, S::fadd(first, high)]
        }
    }
}

impl Ternary for Dot2 {
    const CHECK: Check = Check::Flushing;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe { Dot2::sums::<S>(a, b, c)[1] }
    }
    #[inline(always)]
    unsafe fn bad<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: as above.
        unsafe {
            let [first, sum] = Dot2::sums::<S>(a, b, c);
            let mut bad = S::unordered(sum, sum);
            for number in [c, first, sum] {
                bad = S::or(bad, tiny::<S>(number, S::splat(LEAST)));
            }
            for halves in [a, b] {
                bad = S::or(bad, S::or(tiny_half::<S>(halves), tiny_half::<S>(S::shr(halves, S::splat(16)))));
            }
            bad
        }
    }
}

/// The shape and handler of an operation whose source `kind - 1` is in a scalar register (0: none
/// is).
pub(super) fn handler(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
    let run = match op {
        Op::VMacF32 | Op::VMadF32 | Op::VMadmkF32 | Op::VMadakF32 => ternary_run::<Single<false>>(avx2, kind),
        Op::VMadLegacyF32 => ternary_run::<Single<true>>(avx2, kind),
        Op::VMacF16 | Op::VMadF16 | Op::VMadLegacyF16 | Op::VMadmkF16 | Op::VMadakF16 => {
            ternary_run::<Half>(avx2, kind)
        }
        Op::VDot2cF32F16 => ternary_run::<Dot2>(avx2, kind),
        _ => None,
    };
    Some((Shape::Ternary, run?))
}

/// The handler of the dot product whose halves can be chosen, with all sources in rows.
pub(super) fn dot2(avx2: bool) -> Option<Handler> {
    ternary_run::<Dot2>(avx2, super::operation::ROWS)
}
