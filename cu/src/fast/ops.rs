// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations of 32 bits, on eight lanes, and which handler an instruction gets.

use super::operation::{Binary, Carry, Check, Compare, Of, Ternary, Unary};
use super::simd::{Simd, QUIET};
use super::vector::{binary_run, carry_run, compare_run, ternary_run, unary_run, Handler};
use crate::reference::{Kind, Kinds};
use vkfd_isa::Op;

/// An operation's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Unary,
    Binary,
    /// Three sources; the third may be the destination or a literal.
    Ternary,
    /// `exec`: EXEC is written, too.
    Compare {
        exec: bool,
    },
    /// `inward`: there is a carry in.
    Carry {
        inward: bool,
    },
}

const SIGN: u32 = 1 << 31;

/// The low 24 bits, with their sign.
#[inline(always)]
unsafe fn signed24<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::sar(S::shl(a, S::splat(8)), S::splat(8)) }
}

/// The high words of the products of words with signs.
#[inline(always)]
unsafe fn signed_high<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let sign = S::splat(31);
        let less = S::add(S::and(S::sar(a, sign), b), S::and(S::sar(b, sign), a));
        S::sub(S::mul_high(a, b), less)
    }
}

/// The smaller number: of zeros, the negative one.
#[inline(always)]
unsafe fn least<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::or(S::fmin(a, b), S::fmin(b, a)) }
}

#[inline(always)]
unsafe fn most<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::and(S::fmax(a, b), S::fmax(b, a)) }
}

/// Halves, rounded towards zero: those that are rounded away from it are taken one back.
#[inline(always)]
unsafe fn toward_zero<S: Simd>(a: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let half = S::narrow(a);
        let magnitude = S::splat(0x7fff_ffff);
        let away = S::flt(S::and(a, magnitude), S::and(S::widen(half), magnitude));
        // All ones are minus one.
        S::add(half, away)
    }
}

/// Bytes of two words, by a word of selectors.
#[inline(always)]
fn permute(a: u32, b: u32, select: u32) -> u32 {
    let bytes = u64::from(a) << 32 | u64::from(b);
    let sign = |at: u32| if bytes >> (8 * at + 7) & 1 == 1 { 0xff } else { 0 };
    (0..4).fold(0, |all, n| {
        let byte = match select >> (8 * n) & 0xff {
            at @ 0..=7 => (bytes >> (8 * at)) as u32 & 0xff,
            at @ 8..=11 => sign(2 * (at - 8) + 1),
            12 => 0,
            _ => 0xff,
        };
        all | byte << (8 * n)
    })
}

#[inline(always)]
fn distances(a: u32, b: u32) -> u32 {
    (0..4).map(|n| (a >> (8 * n) & 0xff).abs_diff(b >> (8 * n) & 0xff)).sum()
}

/// The same without bytes of `b` that are zero.
#[inline(always)]
fn masked_distances(a: u32, b: u32) -> u32 {
    let byte = |word: u32, n: u32| word >> (8 * n) & 0xff;
    (0..4).map(|n| if byte(b, n) == 0 { 0 } else { byte(a, n).abs_diff(byte(b, n)) }).sum()
}

/// The sum of the products of parts of `BITS` bits, with signs in the first word if `A`, in the
/// second if `B`.
#[inline(always)]
pub(super) fn dot<const BITS: u32, const A: bool, const B: bool>(a: u32, b: u32) -> u32 {
    (0..32 / BITS).fold(0u32, |sum, n| {
        let part = |word: u32, signed: bool| {
            let up = word << (32 - BITS - BITS * n);
            if signed {
                (up as i32 >> (32 - BITS)) as u32
            } else {
                up >> (32 - BITS)
            }
        };
        sum.wrapping_add(part(a, A).wrapping_mul(part(b, B)))
    })
}

/// The sum of the products of the four bytes, which in each source may have signs: the even ones
/// and the odd ones as halves.
#[inline(always)]
pub(super) unsafe fn dot4<S: Simd, const A: bool, const B: bool>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let (a, b) = (bytes::<S, A>(a), bytes::<S, B>(b));
        S::add(S::dot_halves(a[0], b[0]), S::dot_halves(a[1], b[1]))
    }
}

/// The even bytes of a word and the odd ones, as halves.
#[inline(always)]
unsafe fn bytes<S: Simd, const SIGNED: bool>(a: S::V) -> [S::V; 2] {
    // SAFETY: the caller's.
    unsafe {
        let mask = S::splat(0xff_00ff);
        let halves = [S::and(a, mask), S::and(S::shr(a, S::splat(8)), mask)];
        if !SIGNED {
            return halves;
        }
        [extended::<S>(halves[0]), extended::<S>(halves[1])]
    }
}

/// Bytes in halves with ones above where their highest bit is set.
#[inline(always)]
unsafe fn extended<S: Simd>(halves: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let bits = S::and(halves, S::splat(0x80_0080));
        S::or(halves, S::sub(S::shl(bits, S::splat(9)), S::shl(bits, S::splat(1))))
    }
}

/// The low word of a pair, shifted right by less than 32.
#[inline(always)]
unsafe fn align<S: Simd>(high: S::V, low: S::V, by: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let up = S::sub(S::splat(32), S::and(by, S::splat(31)));
        S::or(S::shl_out(high, up), S::shr(low, by))
    }
}

/// Operations and the names of their functions.
macro_rules! operations {
    ($(
        $trait:ident $check:ident |$s:ident, $args:tt| { $($op:ident => $body:expr;)* }
    )*) => {
        $($(operations!(@ impl $trait $check $s $args $op $body);)*)*

        /// The shape and handler of an operation whose source `kind - 1` is in a scalar register
        /// (0: none is).
        fn plain(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
            match op {
                $($(Op::$op => Some((Shape::$trait, operations!(@ $trait $op avx2 kind)?)),)*)*
                _ => None,
            }
        }
    };
    (@ impl $trait:ident $check:ident $s:ident ($($arg:ident),+) $op:ident $body:expr) => {
        struct $op;
        impl $trait for $op {
            const CHECK: Check = Check::$check;
            #[inline(always)]
            #[allow(unused_unsafe, reason = "a move does nothing")]
            unsafe fn f<$s: Simd>($($arg: $s::V),+) -> $s::V {
                // SAFETY: the caller's.
                unsafe { $body }
            }
        }
    };
    (@ Unary $op:ident $avx2:ident $kind:ident) => { unary_run::<$op>($avx2, $kind) };
    (@ Binary $op:ident $avx2:ident $kind:ident) => { binary_run::<$op>($avx2, $kind) };
    (@ Ternary $op:ident $avx2:ident $kind:ident) => { ternary_run::<$op>($avx2, $kind) };
}

pub(super) use operations;

operations! {
    Unary Never |S, (a)| {
        VMovB32 => a;
        VNotB32 => S::xor(a, S::splat(u32::MAX));
        VBfrevB32 => S::map(a, u32::reverse_bits);
        VFfbhU32 => S::map(a, |a| if a == 0 { u32::MAX } else { a.leading_zeros() });
        VFfblB32 => S::map(a, |a| if a == 0 { u32::MAX } else { a.trailing_zeros() });
        VAccvgprReadB32 => a;
        VAccvgprWriteB32 => a;
        VAccvgprMovB32 => a;
    }
    Unary Never |S, (a)| {
        VFfbhI32 => S::map(a, |a| match if a >> 31 == 1 { !a } else { a } {
            0 => u32::MAX,
            a => a.leading_zeros(),
        });
    }
    Unary Singles |S, (a)| {
        VFrexpMantF32 => S::map(a, |a| match (a >> 23 & 0xff, a & 0x7f_ffff) {
            (255, 0) | (0, 0) => a,
            (255, _) => a | QUIET,
            (0, part) => a & 1 << 31 | part << (part.leading_zeros() - 8) & 0x7f_ffff | 126 << 23,
            _ => a & 0x807f_ffff | 126 << 23,
        });
        VFloorF32 => S::floor(a);
        VCeilF32 => S::ceil(a);
        VTruncF32 => S::trunc(a);
        VRndneF32 => S::round_even(a);
        VSqrtF32 => S::fsqrt(a);
        VFractF32 => {
            // What the difference rounds up to one is the largest number below it.
            let difference = S::fsub(a, S::floor(a));
            S::select(S::fle(S::splat(0x3f80_0000), difference), difference, S::splat(0x3f7f_ffff))
        };
    }
    Unary Rounded |S, (a)| {
        VCvtF32I32 => S::from_signed(a);
        VCvtF32U32 => S::from_unsigned(a);
        VCvtF32Ubyte0 => S::from_signed(S::and(a, S::splat(0xff)));
        VCvtF32Ubyte1 => S::from_signed(S::and(S::shr(a, S::splat(8)), S::splat(0xff)));
        VCvtF32Ubyte2 => S::from_signed(S::and(S::shr(a, S::splat(16)), S::splat(0xff)));
        VCvtF32Ubyte3 => S::from_signed(S::shr(a, S::splat(24)));
    }
    // A denormal is less than one, whether it is lost or not.
    Unary Never |S, (a)| {
        VCvtU32F32 => S::to_unsigned(a);
        VCvtI32F32 => S::to_signed(a);
    }
    Unary Operands |S, (a)| {
        VCvtFlrI32F32 => S::to_signed(S::floor(a));
        VCvtRpiI32F32 => S::to_signed(S::floor(S::fadd(a, S::splat(0x3f00_0000))));
        VFrexpExpI32F32 => S::map(a, |a| match (a >> 23 & 0xff, a & 0x7f_ffff) {
            (255, _) | (0, 0) => 0,
            (0, part) => (-117 - part.leading_zeros() as i32) as u32,
            (exponent, _) => (exponent as i32 - 126) as u32,
        });
    }
    Binary Never |S, (a, b)| {
        VAndB32 => S::and(a, b);
        VOrB32 => S::or(a, b);
        VXorB32 => S::xor(a, b);
        VXnorB32 => S::xor(S::xor(a, b), S::splat(u32::MAX));
        VAddU32 => S::add(a, b);
        VSubU32 => S::sub(a, b);
        VSubrevU32 => S::sub(b, a);
        VLshlrevB32 => S::shl(b, a);
        VLshrrevB32 => S::shr(b, a);
        VAshrrevI32 => S::sar(b, a);
        VMinI32 => S::min_i(a, b);
        VMaxI32 => S::max_i(a, b);
        VMinU32 => S::min_u(a, b);
        VMaxU32 => S::max_u(a, b);
        VMulLoU32 => S::mul(a, b);
        VMulHiU32 => S::mul_high(a, b);
        VMulHiI32 => signed_high::<S>(a, b);
        VMulU32U24 => S::mul(S::and(a, S::splat(0xff_ffff)), S::and(b, S::splat(0xff_ffff)));
        VMulI32I24 => S::mul(signed24::<S>(a), signed24::<S>(b));
        VMulHiU32U24 => S::mul_high(S::and(a, S::splat(0xff_ffff)), S::and(b, S::splat(0xff_ffff)));
        VMulHiI32I24 => signed_high::<S>(signed24::<S>(a), signed24::<S>(b));
        VBfmB32 => S::map2(a, b, |a, b| ((1u32 << (a & 31)) - 1) << (b & 31));
        VAddI32 => S::add(a, b);
        VSubI32 => S::sub(a, b);
        VCvtPkI16I32 => {
            let short = |a: S::V| S::max_i(S::min_i(a, S::splat(0x7fff)), S::splat(0xffff_8000));
            S::or(S::and(short(a), S::splat(0xffff)), S::shl(short(b), S::splat(16)))
        };
        VCvtPkU16U32 => {
            S::or(S::min_u(a, S::splat(0xffff)), S::shl(S::min_u(b, S::splat(0xffff)), S::splat(16)))
        };
        VBcntU32B32 => S::map2(a, b, |a, b| a.count_ones().wrapping_add(b));
    }
    Binary Singles |S, (a, b)| {
        VAddF32 => S::fadd(a, b);
        VSubF32 => S::fsub(a, b);
        VSubrevF32 => S::fsub(b, a);
        VMulF32 => S::fmul(a, b);
        VMulLegacyF32 => {
            let zero = S::or(S::feq(a, S::splat(0)), S::feq(b, S::splat(0)));
            S::select(zero, S::fmul(a, b), S::splat(0))
        };
    }
    Binary Mixed |S, (a, b)| {
        VLdexpF32 => S::ldexp(a, b);
    }
    // Of zeros, the negative one is the smaller.
    Binary Extreme |S, (a, b)| {
        VMinF32 => least::<S>(a, b);
        VMaxF32 => most::<S>(a, b);
    }
    Binary Operands |S, (a, b)| {
        VCvtPkI16F32 => S::map2(a, b, |a, b| {
            let short = |a: u32| u32::from(f32::from_bits(a) as i16 as u16);
            short(a) | short(b) << 16
        });
        VCvtPkU16F32 => S::map2(a, b, |a, b| {
            let short = |a: u32| u32::from(f32::from_bits(a) as u16);
            short(a) | short(b) << 16
        });
        VCvtPkrtzF16F32 => S::or(toward_zero::<S>(a), S::shl(toward_zero::<S>(b), S::splat(16)));
    }
    Ternary Never |S, (a, b, c)| {
        VAdd3U32 => S::add(S::add(a, b), c);
        VLshlAddU32 => S::add(S::shl(a, b), c);
        VAddLshlU32 => S::shl(S::add(a, b), c);
        VLshlOrB32 => S::or(S::shl(a, b), c);
        VAndOrB32 => S::or(S::and(a, b), c);
        VOr3B32 => S::or(S::or(a, b), c);
        VXor3B32 => S::xor(S::xor(a, b), c);
        VXadU32 => S::add(S::xor(a, b), c);
        VMadU32U24 => S::add(S::mul(S::and(a, S::splat(0xff_ffff)), S::and(b, S::splat(0xff_ffff))), c);
        VMadI32I24 => S::add(S::mul(signed24::<S>(a), signed24::<S>(b)), c);
        VBfiB32 => S::xor(c, S::and(a, S::xor(b, c)));
        VBfeU32 => {
            let above = S::shl(S::splat(u32::MAX), c);
            S::and(S::shr(a, b), S::xor(above, S::splat(u32::MAX)))
        };
        VBfeI32 => {
            // The sign of the field goes up; a field of no bits is zero.
            let up = S::sub(S::splat(32), S::and(c, S::splat(31)));
            let field = S::shl_out(S::sar(a, b), up);
            S::sar(field, S::min_u(up, S::splat(31)))
        };
        VAlignbitB32 => align::<S>(a, b, c);
        VAlignbyteB32 => align::<S>(a, b, S::shl(S::and(c, S::splat(3)), S::splat(3)));
        VMin3I32 => S::min_i(S::min_i(a, b), c);
        VMax3I32 => S::max_i(S::max_i(a, b), c);
        VMin3U32 => S::min_u(S::min_u(a, b), c);
        VMax3U32 => S::max_u(S::max_u(a, b), c);
        VMed3I32 => S::max_i(S::min_i(a, b), S::min_i(S::max_i(a, b), c));
        VMed3U32 => S::max_u(S::min_u(a, b), S::min_u(S::max_u(a, b), c));
        VMaxminI32 => S::min_i(S::max_i(a, b), c);
        VMinmaxI32 => S::max_i(S::min_i(a, b), c);
        VMaxminU32 => S::min_u(S::max_u(a, b), c);
        VMinmaxU32 => S::max_u(S::min_u(a, b), c);
    }
    Ternary Never |S, (a, b, c)| {
        VPermB32 => {
            // Compilers hardly ever ask for signs and constants.
            if S::is_zero(S::and(c, S::splat(0xf8f8_f8f8))) {
                S::bytes(a, b, c)
            } else {
                S::map3(a, b, c, permute)
            }
        };
        VSadU8 => S::map3(a, b, c, |a, b, c| distances(a, b).wrapping_add(c));
        VSadHiU8 => S::map3(a, b, c, |a, b, c| (distances(a, b) << 16).wrapping_add(c));
        VSadU16 => S::map3(a, b, c, |a, b, c| {
            (a & 0xffff).abs_diff(b & 0xffff).wrapping_add((a >> 16).abs_diff(b >> 16)).wrapping_add(c)
        });
        VSadU32 => S::map3(a, b, c, |a, b, c| a.abs_diff(b).wrapping_add(c));
        VMadU32U16 => S::add(S::mul(S::and(a, S::splat(0xffff)), S::and(b, S::splat(0xffff))), c);
        VMadI32I16 => S::map3(a, b, c, |a, b, c| {
            (i32::from(a as i16).wrapping_mul(i32::from(b as i16)) as u32).wrapping_add(c)
        });
        VDot4I32I8 => S::add(dot4::<S, true, true>(a, b), c);
        VDot4U32U8 => S::add(dot4::<S, false, false>(a, b), c);
        VDot8I32I4 => S::map3(a, b, c, |a, b, c| dot::<4, true, true>(a, b).wrapping_add(c));
        VDot8U32U4 => S::map3(a, b, c, |a, b, c| dot::<4, false, false>(a, b).wrapping_add(c));
        VDot2cI32I16 => S::add(S::dot_halves(a, b), c);
        VDot4cI32I8 => S::add(dot4::<S, true, true>(a, b), c);
        VDot8cI32I4 => S::map3(a, b, c, |a, b, c| dot::<4, true, true>(a, b).wrapping_add(c));
        VMsadU8 => S::map3(a, b, c, |a, b, c| masked_distances(a, b).wrapping_add(c));
        VLerpU8 => S::map3(a, b, c, |a, b, c| {
            (0..4).fold(0, |all, n| {
                let byte = |word: u32| word >> (8 * n) & 0xff;
                all | ((byte(a) + byte(b) + (byte(c) & 1)) >> 1) << (8 * n)
            })
        });
    }
    Ternary Extreme |S, (a, b, c)| {
        VMin3F32 => least::<S>(least::<S>(a, b), c);
        VMax3F32 => most::<S>(most::<S>(a, b), c);
        VMaxminF32 => least::<S>(most::<S>(a, b), c);
        VMinmaxF32 => most::<S>(least::<S>(a, b), c);
    }
    // Of denormals that MODE loses, those that are compared are not yet lost.
    Ternary Operands |S, (a, b, c)| {
        VMed3F32 => {
            let max = most::<S>(most::<S>(a, b), c);
            let other = S::select(S::feq(max, b), most::<S>(a, b), most::<S>(a, c));
            S::select(S::feq(max, a), other, most::<S>(b, c))
        };
    }
    Ternary Singles |S, (a, b, c)| {
        VFmaF32 => S::fma(a, b, c);
        VFmacF32 => S::fma(a, b, c);
        VFmamkF32 => S::fma(a, b, c);
        VFmaakF32 => S::fma(a, b, c);
    }
}

#[inline(always)]
pub(super) unsafe fn zero<S: Simd>(_: S::V, _: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::splat(0) }
}

#[inline(always)]
pub(super) unsafe fn one<S: Simd>(_: S::V, _: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::splat(SIGN) }
}

macro_rules! comparisons {
    ($($of:ident |$s:ident, $a:ident, $b:ident| { $($op:ident $x:ident => $body:expr;)* })*) => {
        $($(
            struct $op;
            impl Compare for $op {
                const OF: Of = Of::$of;
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V, $b: $s::V) -> $s::V {
                    // SAFETY: the caller's.
                    unsafe { $body }
                }
            }
        )*)*

        fn compare(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
            Some(match op {
                $($(
                    Op::$op => (Shape::Compare { exec: false }, compare_run::<$op>(avx2, kind)?),
                    Op::$x => (Shape::Compare { exec: true }, compare_run::<$op>(avx2, kind)?),
                )*)*
                _ => return None,
            })
        }
    };
}

pub(super) use comparisons;

comparisons! {
    Bits |S, a, b| {
        VCmpEqU32 VCmpxEqU32 => S::eq(a, b);
        VCmpNeU32 VCmpxNeU32 => S::xor(S::eq(a, b), S::splat(SIGN));
        VCmpLtU32 VCmpxLtU32 => S::gt(S::xor(b, S::splat(SIGN)), S::xor(a, S::splat(SIGN)));
        VCmpGtU32 VCmpxGtU32 => S::gt(S::xor(a, S::splat(SIGN)), S::xor(b, S::splat(SIGN)));
        VCmpLeU32 VCmpxLeU32 => S::eq(S::min_u(a, b), a);
        VCmpGeU32 VCmpxGeU32 => S::eq(S::max_u(a, b), a);
        VCmpEqI32 VCmpxEqI32 => S::eq(a, b);
        VCmpNeI32 VCmpxNeI32 => S::xor(S::eq(a, b), S::splat(SIGN));
        VCmpLtI32 VCmpxLtI32 => S::gt(b, a);
        VCmpGtI32 VCmpxGtI32 => S::gt(a, b);
        VCmpLeI32 VCmpxLeI32 => S::eq(S::min_i(a, b), a);
        VCmpGeI32 VCmpxGeI32 => S::eq(S::max_i(a, b), a);
        VCmpFU32 VCmpxFU32 => zero::<S>(a, b);
        VCmpTU32 VCmpxTU32 => one::<S>(a, b);
        VCmpFI32 VCmpxFI32 => zero::<S>(a, b);
        VCmpTI32 VCmpxTI32 => one::<S>(a, b);
        VCmpFF32 VCmpxFF32 => zero::<S>(a, b);
        VCmpTruF32 VCmpxTruF32 => one::<S>(a, b);
        VCmpClassF32 VCmpxClassF32 => S::map2(a, b, |a, b| b << (31 - class(a)));
    }
    Singles |S, a, b| {
        VCmpLtF32 VCmpxLtF32 => S::flt(a, b);
        VCmpLeF32 VCmpxLeF32 => S::fle(a, b);
        VCmpGtF32 VCmpxGtF32 => S::flt(b, a);
        VCmpGeF32 VCmpxGeF32 => S::fle(b, a);
        VCmpEqF32 VCmpxEqF32 => S::feq(a, b);
        VCmpLgF32 VCmpxLgF32 => S::or(S::flt(a, b), S::flt(b, a));
        VCmpOF32 VCmpxOF32 => S::xor(S::unordered(a, b), S::splat(SIGN));
        VCmpUF32 VCmpxUF32 => S::unordered(a, b);
        VCmpNltF32 VCmpxNltF32 => S::xor(S::flt(a, b), S::splat(SIGN));
        VCmpNleF32 VCmpxNleF32 => S::xor(S::fle(a, b), S::splat(SIGN));
        VCmpNgtF32 VCmpxNgtF32 => S::xor(S::flt(b, a), S::splat(SIGN));
        VCmpNgeF32 VCmpxNgeF32 => S::xor(S::fle(b, a), S::splat(SIGN));
        VCmpNeqF32 VCmpxNeqF32 => S::xor(S::feq(a, b), S::splat(SIGN));
        VCmpNlgF32 VCmpxNlgF32 => S::or(S::feq(a, b), S::unordered(a, b));
    }
}

/// The bit of a mask of classes that a number of single precision is.
#[inline(always)]
fn class(a: u32) -> u32 {
    let (negative, magnitude) = (a >> 31 != 0, a & 0x7fff_ffff);
    let signed = |below: u32, above: u32| if negative { below } else { above };
    match magnitude {
        0 => signed(5, 6),
        1..=0x7f_ffff => signed(4, 7),
        0x80_0000..=0x7f7f_ffff => signed(3, 8),
        0x7f80_0000 => signed(2, 9),
        0x7f80_0001..=0x7fbf_ffff => 0,
        _ => 1,
    }
}

/// Sums and differences with carries.
macro_rules! carries {
    ($($op:ident $inward:literal |$s:ident, $a:ident, $b:ident, $carry:ident| $body:expr;)*) => {
        $(
            struct $op;
            impl Carry for $op {
                const IN: bool = $inward;
                #[inline(always)]
                unsafe fn f<$s: Simd>($a: $s::V, $b: $s::V, $carry: $s::V) -> ($s::V, $s::V) {
                    // SAFETY: the caller's.
                    unsafe { $body }
                }
            }
        )*

        fn carry(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
            Some(match op {
                $(Op::$op => (Shape::Carry { inward: $inward }, carry_run::<$op>(avx2, kind)?),)*
                _ => return None,
            })
        }
    };
}

/// All ones where `a < b`, unsigned.
#[inline(always)]
unsafe fn below<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's.
    unsafe { S::gt(S::xor(b, S::splat(SIGN)), S::xor(a, S::splat(SIGN))) }
}

#[inline(always)]
unsafe fn add<S: Simd>(a: S::V, b: S::V, carry: S::V) -> (S::V, S::V) {
    // SAFETY: the caller's.
    unsafe {
        let sum = S::add(a, b);
        // All ones are minus one.
        let value = S::sub(sum, carry);
        (value, S::or(below::<S>(sum, a), below::<S>(value, sum)))
    }
}

#[inline(always)]
unsafe fn subtract<S: Simd>(a: S::V, b: S::V, borrow: S::V) -> (S::V, S::V) {
    // SAFETY: the caller's.
    unsafe {
        let difference = S::sub(a, b);
        let value = S::add(difference, borrow);
        (value, S::or(below::<S>(a, b), below::<S>(difference, value)))
    }
}

carries! {
    VAddCoU32 false |S, a, b, carry| add::<S>(a, b, carry);
    VSubCoU32 false |S, a, b, carry| subtract::<S>(a, b, carry);
    VSubrevCoU32 false |S, a, b, carry| subtract::<S>(b, a, carry);
    VAddcCoU32 true |S, a, b, carry| add::<S>(a, b, carry);
    VSubbCoU32 true |S, a, b, carry| subtract::<S>(a, b, carry);
    VSubbrevCoU32 true |S, a, b, carry| subtract::<S>(b, a, carry);
}

/// The shape and handler of an operation whose source `kind - 1` is in a scalar register (0: none
/// is).
pub(super) fn handler(op: Op, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
    plain(op, avx2, kind).or_else(|| compare(op, avx2, kind)).or_else(|| carry(op, avx2, kind))
}

struct Dot2<const SIGNED: bool>;

impl<const SIGNED: bool> Ternary for Dot2<SIGNED> {
    const CHECK: Check = Check::Never;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe {
            if SIGNED {
                S::add(S::dot_halves(a, b), c)
            } else {
                S::map3(a, b, c, |a, b, c| dot::<16, false, false>(a, b).wrapping_add(c))
            }
        }
    }
}

/// The shape and handler of the dot products whose halves can be chosen.
pub(super) fn dot2(op: Op, avx2: bool) -> Option<(Shape, Handler)> {
    let run = match op {
        Op::VDot2I32I16 => ternary_run::<Dot2<true>>(avx2, 0),
        Op::VDot2U32U16 => ternary_run::<Dot2<false>>(avx2, 0),
        _ => None,
    };
    Some((Shape::Ternary, run?))
}

/// The kinds of moves that the reference engine has elsewhere.
pub(super) fn moves(op: Op) -> Option<Kinds> {
    let both = Kinds { dst: Kind::B32, src: [Kind::B32; 3], tied: false, clears: false };
    matches!(op, Op::VAccvgprReadB32 | Op::VAccvgprWriteB32 | Op::VAccvgprMovB32).then_some(both)
}
