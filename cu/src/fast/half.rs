// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations of 16 bits, and on both halves of a word.
//!
//! Halves are computed in single precision and rounded once more: of a sum, difference or product
//! that is the nearest half, for single precision has more than twice the bits. A fused product and
//! sum is first rounded to odd.

use super::operation::{Binary, Check, Compare, Of, Ternary, Unary};
use super::ops::{comparisons, one, operations, zero, Shape};
use super::simd::Simd;
use super::vector::{binary_run, compare_run, ternary_run, unary_run, Handler};
use vkfd_isa::Op;

const LOW: u32 = 0xffff;

/// The low half's value.
#[inline(always)]
pub(super) unsafe fn single<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's, as in all of these.
    unsafe { S::widen(S::and(a, S::splat(LOW))) }
}

#[inline(always)]
unsafe fn add<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::narrow(S::fadd(single::<S>(a), single::<S>(b))) }
}

#[inline(always)]
unsafe fn sub<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::narrow(S::fsub(single::<S>(a), single::<S>(b))) }
}

#[inline(always)]
unsafe fn mul<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::narrow(S::fmul(single::<S>(a), single::<S>(b))) }
}

/// Of zeros, the negative one is the smaller.
#[inline(always)]
unsafe fn min<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (single::<S>(a), single::<S>(b));
        S::narrow(S::or(S::fmin(a, b), S::fmin(b, a)))
    }
}

#[inline(always)]
unsafe fn max<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let (a, b) = (single::<S>(a), single::<S>(b));
        S::narrow(S::and(S::fmax(a, b), S::fmax(b, a)))
    }
}

/// The product is exact in single precision. Of the sum, what is lost tells in which direction the
/// sum lies between two numbers: the odd one of them rounds to a half as the exact sum does.
#[inline(always)]
unsafe fn fma<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let product = S::fmul(single::<S>(a), single::<S>(b));
        let c = single::<S>(c);
        let sum = S::fadd(product, c);
        let part = S::fsub(sum, product);
        let lost = S::fadd(S::fsub(product, S::fsub(sum, part)), S::fsub(c, part));
        let zero = S::splat(0);
        let inexact = S::or(S::flt(lost, zero), S::flt(zero, lost));
        let even = S::eq(S::and(sum, S::splat(1)), zero);
        // Away from zero if what is lost has the sum's sign.
        let by = S::or(S::sar(S::xor(lost, sum), S::splat(31)), S::splat(1));
        S::narrow(S::add(sum, S::and(by, S::and(inexact, even))))
    }
}

/// The low half, sign-extended.
#[inline(always)]
pub(super) unsafe fn signed<S: Simd>(a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::sar(S::shl(a, S::splat(16)), S::splat(16)) }
}

#[inline(always)]
pub(super) unsafe fn low<S: Simd>(a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::and(a, S::splat(LOW)) }
}

/// The shift that the low four bits say.
#[inline(always)]
unsafe fn by<S: Simd>(a: S::V) -> S::V {
    // SAFETY: as above.
    unsafe { S::and(a, S::splat(15)) }
}

/// A function of both halves; of each, what is above it does not count and is not there in the
/// result.
macro_rules! both {
    ($s:ident, $f:ident, $($arg:ident),+) => {{
        let half = $s::splat(16);
        let above = $f::<$s>($($s::shr($arg, half)),+);
        $s::or($f::<$s>($($arg),+), $s::shl(above, half))
    }};
}

macro_rules! short {
    ($($name:ident |$s:ident, $($arg:ident),+| $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name<$s: Simd>($($arg: $s::V),+) -> $s::V {
                // SAFETY: the caller's.
                unsafe { $s::and($body, $s::splat(LOW)) }
            }
        )*
    };
}

short! {
    iadd |S, a, b| S::add(a, b);
    isub |S, a, b| S::sub(a, b);
    imul |S, a, b| S::mul(low::<S>(a), low::<S>(b));
    imad |S, a, b, c| S::add(S::mul(low::<S>(a), low::<S>(b)), c);
    ishl |S, a, b| S::shl(b, by::<S>(a));
    ishr |S, a, b| S::shr(low::<S>(b), by::<S>(a));
    isar |S, a, b| S::sar(signed::<S>(b), by::<S>(a));
    imin |S, a, b| S::min_i(signed::<S>(a), signed::<S>(b));
    imax |S, a, b| S::max_i(signed::<S>(a), signed::<S>(b));
    umin |S, a, b| S::min_u(low::<S>(a), low::<S>(b));
    umax |S, a, b| S::max_u(low::<S>(a), low::<S>(b));
}

/// The middle one by the reference engine's words: of zeros that are equal the first counts.
#[inline(always)]
unsafe fn med3<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
    // SAFETY: as above.
    unsafe {
        let most = single::<S>(max::<S>(max::<S>(a, b), c));
        let other = S::select(S::feq(most, single::<S>(b)), max::<S>(a, b), max::<S>(a, c));
        S::select(S::feq(most, single::<S>(a)), other, max::<S>(b, c))
    }
}

operations! {
    Unary Half |S, (a)| {
        VFloorF16 => S::narrow(S::floor(single::<S>(a)));
        VCeilF16 => S::narrow(S::ceil(single::<S>(a)));
        VTruncF16 => S::narrow(S::trunc(single::<S>(a)));
        VRndneF16 => S::narrow(S::round_even(single::<S>(a)));
        // Roots and quotients, too, have bits enough in single precision.
        VSqrtF16 => S::narrow(S::fsqrt(single::<S>(a)));
        VRcpF16 => S::narrow(S::fdiv(S::splat(0x3f80_0000), single::<S>(a)));
        VCvtF16U16 => S::narrow(S::from_signed(low::<S>(a)));
        VCvtF16I16 => S::narrow(S::from_signed(signed::<S>(a)));
    }
    Unary Never |S, (a)| {
        VMovB16 => low::<S>(a);
        VNotB16 => low::<S>(S::xor(a, S::splat(LOW)));
        VCvtI32I16 => signed::<S>(a);
        VCvtU32U16 => low::<S>(a);
    }
    Unary HalfOperands |S, (a)| {
        VCvtU16F16 => S::map(single::<S>(a), |a| (f32::from_bits(a) as u16).into());
        VCvtI16F16 => S::map(single::<S>(a), |a| u32::from(f32::from_bits(a) as i16 as u16));
    }
    Ternary HalfOperands |S, (a, b, c)| {
        VMin3F16 => min::<S>(min::<S>(a, b), c);
        VMax3F16 => max::<S>(max::<S>(a, b), c);
        VMaxminF16 => min::<S>(max::<S>(a, b), c);
        VMinmaxF16 => max::<S>(min::<S>(a, b), c);
        VMed3F16 => med3::<S>(a, b, c);
    }
    Ternary Never |S, (a, b, c)| {
        VMin3I16 => imin::<S>(imin::<S>(a, b), c);
        VMax3I16 => imax::<S>(imax::<S>(a, b), c);
        VMed3I16 => imax::<S>(imin::<S>(a, b), imin::<S>(imax::<S>(a, b), c));
        VMin3U16 => umin::<S>(umin::<S>(a, b), c);
        VMax3U16 => umax::<S>(umax::<S>(a, b), c);
        VMed3U16 => umax::<S>(umin::<S>(a, b), umin::<S>(umax::<S>(a, b), c));
    }
    Binary Half |S, (a, b)| {
        VAddF16 => add::<S>(a, b);
        VSubF16 => sub::<S>(a, b);
        VMulF16 => mul::<S>(a, b);
        // Exact in single precision, however far it goes.
        VLdexpF16 => S::narrow(S::map2(single::<S>(a), signed::<S>(b), |a, b| {
            let power = f32::from_bits((((b as i32).clamp(-60, 60) + 127) as u32) << 23);
            (f32::from_bits(a) * power).to_bits()
        }));
    }
    Binary HalfTurned |S, (a, b)| {
        VSubrevF16 => sub::<S>(b, a);
    }
    Binary HalfExtreme |S, (a, b)| {
        VMinF16 => min::<S>(a, b);
        VMaxF16 => max::<S>(a, b);
    }
    Binary Never |S, (a, b)| {
        VAddU16 => iadd::<S>(a, b);
        VSubU16 => isub::<S>(a, b);
        VSubrevU16 => isub::<S>(b, a);
        VMulLoU16 => imul::<S>(a, b);
        VLshlrevB16 => ishl::<S>(a, b);
        VLshrrevB16 => ishr::<S>(a, b);
        VAshrrevI16 => isar::<S>(a, b);
        VMinI16 => imin::<S>(a, b);
        VMaxI16 => imax::<S>(a, b);
        VMinU16 => umin::<S>(a, b);
        VMaxU16 => umax::<S>(a, b);
        VAddI16 => iadd::<S>(a, b);
        VSubI16 => isub::<S>(a, b);
        VAddNcU16 => iadd::<S>(a, b);
        VSubNcU16 => isub::<S>(a, b);
        VAndB16 => low::<S>(S::and(a, b));
        VOrB16 => low::<S>(S::or(a, b));
        VXorB16 => low::<S>(S::xor(a, b));
        VPackB32F16 => S::or(low::<S>(a), S::shl(b, S::splat(16)));
    }
    Ternary Half |S, (a, b, c)| {
        VFmaF16 => fma::<S>(a, b, c);
        VFmaLegacyF16 => fma::<S>(a, b, c);
        VFmacF16 => fma::<S>(a, b, c);
        VFmamkF16 => fma::<S>(a, b, c);
        VFmaakF16 => fma::<S>(a, b, c);
    }
    Ternary Never |S, (a, b, c)| {
        VMadU16 => imad::<S>(a, b, c);
        VMadI16 => imad::<S>(a, b, c);
        VMadLegacyU16 => imad::<S>(a, b, c);
        VMadLegacyI16 => imad::<S>(a, b, c);
    }
}

/// The bit of a mask of classes that the low half is.
#[inline(always)]
fn class(a: u32) -> u32 {
    let signed = |below: u32, above: u32| if a >> 15 & 1 != 0 { below } else { above };
    match a & 0x7fff {
        0 => signed(5, 6),
        1..=0x3ff => signed(4, 7),
        0x400..=0x7bff => signed(3, 8),
        0x7c00 => signed(2, 9),
        0x7c01..=0x7dff => 0,
        _ => 1,
    }
}

comparisons! {
    Bits |S, a, b| {
        VCmpFU16 VCmpxFU16 => zero::<S>(a, b);
        VCmpTU16 VCmpxTU16 => one::<S>(a, b);
        VCmpFI16 VCmpxFI16 => zero::<S>(a, b);
        VCmpTI16 VCmpxTI16 => one::<S>(a, b);
        VCmpFF16 VCmpxFF16 => zero::<S>(a, b);
        VCmpTruF16 VCmpxTruF16 => one::<S>(a, b);
        VCmpClassF16 VCmpxClassF16 => S::map2(a, b, |a, b| b << (31 - class(a)));
        VCmpEqU16 VCmpxEqU16 => S::eq(low::<S>(a), low::<S>(b));
        VCmpNeU16 VCmpxNeU16 => S::xor(S::eq(low::<S>(a), low::<S>(b)), S::splat(1 << 31));
        VCmpLtU16 VCmpxLtU16 => S::gt(low::<S>(b), low::<S>(a));
        VCmpGtU16 VCmpxGtU16 => S::gt(low::<S>(a), low::<S>(b));
        VCmpLeU16 VCmpxLeU16 => S::xor(S::gt(low::<S>(a), low::<S>(b)), S::splat(1 << 31));
        VCmpGeU16 VCmpxGeU16 => S::xor(S::gt(low::<S>(b), low::<S>(a)), S::splat(1 << 31));
        VCmpEqI16 VCmpxEqI16 => S::eq(low::<S>(a), low::<S>(b));
        VCmpNeI16 VCmpxNeI16 => S::xor(S::eq(low::<S>(a), low::<S>(b)), S::splat(1 << 31));
        VCmpLtI16 VCmpxLtI16 => S::gt(signed::<S>(b), signed::<S>(a));
        VCmpGtI16 VCmpxGtI16 => S::gt(signed::<S>(a), signed::<S>(b));
        VCmpLeI16 VCmpxLeI16 => S::xor(S::gt(signed::<S>(a), signed::<S>(b)), S::splat(1 << 31));
        VCmpGeI16 VCmpxGeI16 => S::xor(S::gt(signed::<S>(b), signed::<S>(a)), S::splat(1 << 31));
    }
    Halves |S, a, b| {
        VCmpLtF16 VCmpxLtF16 => S::flt(single::<S>(a), single::<S>(b));
        VCmpLeF16 VCmpxLeF16 => S::fle(single::<S>(a), single::<S>(b));
        VCmpGtF16 VCmpxGtF16 => S::flt(single::<S>(b), single::<S>(a));
        VCmpGeF16 VCmpxGeF16 => S::fle(single::<S>(b), single::<S>(a));
        VCmpEqF16 VCmpxEqF16 => S::feq(single::<S>(a), single::<S>(b));
        VCmpLgF16 VCmpxLgF16 => {
            S::or(S::flt(single::<S>(a), single::<S>(b)), S::flt(single::<S>(b), single::<S>(a)))
        };
        VCmpNlgF16 VCmpxNlgF16 => {
            S::or(S::feq(single::<S>(a), single::<S>(b)), S::unordered(single::<S>(a), single::<S>(b)))
        };
        VCmpOF16 VCmpxOF16 => S::xor(S::unordered(single::<S>(a), single::<S>(b)), S::splat(1 << 31));
        VCmpUF16 VCmpxUF16 => S::unordered(single::<S>(a), single::<S>(b));
        VCmpNltF16 VCmpxNltF16 => S::xor(S::flt(single::<S>(a), single::<S>(b)), S::splat(1 << 31));
        VCmpNleF16 VCmpxNleF16 => S::xor(S::fle(single::<S>(a), single::<S>(b)), S::splat(1 << 31));
        VCmpNgtF16 VCmpxNgtF16 => S::xor(S::flt(single::<S>(b), single::<S>(a)), S::splat(1 << 31));
        VCmpNgeF16 VCmpxNgeF16 => S::xor(S::fle(single::<S>(b), single::<S>(a)), S::splat(1 << 31));
        VCmpNeqF16 VCmpxNeqF16 => S::xor(S::feq(single::<S>(a), single::<S>(b)), S::splat(1 << 31));
    }
}

/// Operations on both halves.
pub(super) mod pairs {
    use super::*;

    operations! {
        Binary Halves |S, (a, b)| {
            VPkAddF16 => both!(S, add, a, b);
            VPkMulF16 => both!(S, mul, a, b);
        }
        Binary HalvesExtreme |S, (a, b)| {
            VPkMinF16 => both!(S, min, a, b);
            VPkMaxF16 => both!(S, max, a, b);
        }
        Binary Never |S, (a, b)| {
            VPkAddU16 => both!(S, iadd, a, b);
            VPkAddI16 => both!(S, iadd, a, b);
            VPkSubU16 => both!(S, isub, a, b);
            VPkSubI16 => both!(S, isub, a, b);
            VPkMulLoU16 => both!(S, imul, a, b);
            VPkLshlrevB16 => both!(S, ishl, a, b);
            VPkLshrrevB16 => both!(S, ishr, a, b);
            VPkAshrrevI16 => both!(S, isar, a, b);
            VPkMinI16 => both!(S, imin, a, b);
            VPkMaxI16 => both!(S, imax, a, b);
            VPkMinU16 => both!(S, umin, a, b);
            VPkMaxU16 => both!(S, umax, a, b);
        }
        Ternary Halves |S, (a, b, c)| {
            VPkFmaF16 => both!(S, fma, a, b, c);
            VPkFmacF16 => both!(S, fma, a, b, c);
        }
        Ternary Never |S, (a, b, c)| {
            VPkMadU16 => both!(S, imad, a, b, c);
            VPkMadI16 => both!(S, imad, a, b, c);
        }
    }

    /// The shape and handler of an operation on both halves, with all sources in rows.
    pub(in crate::fast) fn handler(op: Op, avx2: bool) -> Option<(Shape, Handler)> {
        plain(op, avx2, super::super::operation::ROWS)
    }

    /// The same, with source `kind - 1` in a scalar register.
    pub(super) fn operation(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
        plain(op, avx2, kind)
    }
}

/// The shape and handler of an operation of 16 bits whose source `kind - 1` is in a scalar register
/// (0: none is).
pub(super) fn handler(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
    let both = || if op == Op::VPkFmacF16 { pairs::operation(op, avx2, kind) } else { None };
    plain(op, avx2, kind).or_else(|| compare(op, avx2, kind)).or_else(both)
}
