// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations that only the 64-bit encodings have, in the order of the manual.

use super::convert::{self, BF8, FP8};
use super::dot;
use super::float::{Fpu, F32, F64};
use super::kind::{low32, low64, sign_extend, Kind};
use super::multiply::{fma_legacy, mad16, mad32, mul_legacy, signed24, unsigned24};
use super::semantics::{int2, int3, keep, same2, same3, three, two, Env, Semantics};
use super::transcendental::trig_preop;
use vkfd_isa::Op;
use Kind::{B16, B32, B64, B8, F16 as H, F32 as S, F64 as D, I16, I32, I64, U16, U32, U64};

fn median(a: i128, b: i128, c: i128) -> i128 {
    a.max(b).min(a.min(b).max(c))
}

/// The largest of three coordinates: 2 for z, 1 for y, 0 for x; and which they are.
fn cube_axis(e: &Env, x: u64, y: u64, z: u64) -> u32 {
    let f = e.f32();
    let at_least = |a, b| {
        matches!(
            f.compare(F32.magnitude(a), F32.magnitude(b)),
            Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal)
        )
    };
    if at_least(z, x) && at_least(z, y) {
        2
    } else if at_least(y, x) {
        1
    } else {
        0
    }
}

fn below_zero(e: &Env, a: u64) -> bool {
    e.f32().compare(a, 0) == Some(std::cmp::Ordering::Less)
}

fn cube_id(e: &Env, x: u64, y: u64, z: u64) -> u64 {
    let axis = cube_axis(e, x, y, z);
    let major = [x, y, z].get(axis as usize).copied().unwrap_or(0);
    Fpu::exact(F32).of_int(i128::from(2 * axis + u32::from(below_zero(e, major))))
}

fn cube_s(e: &Env, x: u64, y: u64, z: u64) -> u64 {
    let f = e.f32();
    match cube_axis(e, x, y, z) {
        2 if below_zero(e, z) => f.neg(x),
        2 | 1 => x,
        _ if below_zero(e, x) => z,
        _ => f.neg(z),
    }
}

fn cube_t(e: &Env, x: u64, y: u64, z: u64) -> u64 {
    let f = e.f32();
    match cube_axis(e, x, y, z) {
        1 if below_zero(e, y) => f.neg(z),
        1 => z,
        _ => f.neg(y),
    }
}

fn cube_major(e: &Env, x: u64, y: u64, z: u64) -> u64 {
    let axis = cube_axis(e, x, y, z);
    let major = [x, y, z].get(axis as usize).copied().unwrap_or(0);
    e.f32().mul(major, F32.power(1))
}

/// Bytes from `a` to `b`: their distances, those under `skip` left out.
fn distances(a: u64, b: u64, skip_zero: bool) -> i128 {
    (0..4)
        .map(|n| {
            let (a, b) = (i128::from(a >> (8 * n) & 0xff), i128::from(b >> (8 * n) & 0xff));
            if skip_zero && b == 0 {
                0
            } else {
                (a - b).abs()
            }
        })
        .sum()
}

/// Four sums of distances, each with the first source moved on by a byte, saturated if so asked.
fn quad(a: u64, b: u64, c: u64, masked: bool) -> u64 {
    (0..4).fold(0, |all, n| {
        let sum = distances(a >> (8 * n), b, masked) + i128::from(c >> (16 * n) & 0xffff);
        all | U16.wrap(sum, false) << (16 * n)
    })
}

/// `v_mqsad_u32_u8`: four sums of 32 bits.
pub(crate) fn quad32(a: u64, b: u64, c: [u32; 4]) -> [u32; 4] {
    let mut n = 0;
    c.map(|c| {
        let sum = distances(a >> (8 * n), b, true) + i128::from(c);
        n += 1;
        low32(U32.wrap(sum, false))
    })
}

fn lerp(a: u64, b: u64, c: u64) -> u64 {
    (0..4).fold(0, |all, n| {
        let byte = |x: u64| x >> (8 * n) & 0xff;
        all | ((byte(a) + byte(b) + (byte(c) & 1)) >> 1) << (8 * n)
    })
}

fn permute(a: u64, b: u64, select: u64) -> u64 {
    let bytes = a << 32 | b & 0xffff_ffff;
    (0..4).fold(0, |all, n| {
        let sign = |at: u64| if bytes >> (8 * at + 7) & 1 == 1 { 0xff } else { 0 };
        let byte = match select >> (8 * n) & 0xff {
            at @ 0..=7 => bytes >> (8 * at) & 0xff,
            8 => sign(1),
            9 => sign(3),
            10 => sign(5),
            11 => sign(7),
            12 => 0,
            _ => 0xff,
        };
        all | byte << (8 * n)
    })
}

/// What division's last step does with the special cases; `a` is the quotient, `b` the denominator,
/// `c` the numerator.
fn div_fixup(fpu: Fpu, a: u64, b: u64, c: u64) -> u64 {
    let f = fpu.format;
    let (a, b, c) = (fpu.input(a), fpu.input(b), fpu.input(c));
    let negative = f.negative(b) != f.negative(c);
    if f.is_nan(c) {
        return fpu.quiet(c);
    }
    if f.is_nan(b) {
        return fpu.quiet(b);
    }
    if f.is_zero(b) && f.is_zero(c) || f.is_infinite(b) && f.is_infinite(c) {
        return f.invalid();
    }
    if f.is_zero(b) || f.is_infinite(c) {
        return f.signed(f.infinity(), negative);
    }
    if f.is_infinite(b) || f.is_zero(c) {
        return f.signed(0, negative);
    }
    let distance = i64::try_from(f.field(c)).unwrap_or(0) - i64::try_from(f.field(b)).unwrap_or(0);
    let underflow = match f {
        F32 => distance < -150,
        F64 => distance < -1075,
        _ => false,
    };
    if underflow {
        // Half of the least denormal, rounded.
        let least = super::float::Number { negative, sig: 1, exp: -1100 };
        return fpu.round(least);
    }
    if f.is_nan(a) {
        // The iteration has overflowed, which the published text does not tell: so has the
        // quotient.
        let most = super::float::Number { negative, sig: 1, exp: 2000 };
        return fpu.round(most);
    }
    fpu.output(f.signed(f.magnitude(a), negative))
}

/// The power of two that undoes what `v_div_scale` did, of a quotient about `c`: VCC says that it
/// did, and the quotient's size which way.
fn unscale(e: &Env, f: super::float::Format, c: u64, step: i32) -> i32 {
    if !e.vcc {
        0
    } else if i32::try_from(f.field(c)).unwrap_or(0) > f.bias() {
        step
    } else {
        -step
    }
}

fn ones_below(lane: u32) -> u64 {
    (1u64 << (lane & 63)) - 1
}

fn count(a: u64) -> u64 {
    a.count_ones().into()
}

fn bfe_signed(a: u64, from: u64, width: u64) -> u64 {
    let moved = sign_extend(a & 0xffff_ffff, 32) >> (from & 31);
    U32.wrap(sign_extend(moved as u64, u32::try_from(width & 31).unwrap_or(0)).into(), false)
}

fn ldexp(fpu: Fpu, a: u64, n: u64) -> u64 {
    fpu.ldexp(a, i32::try_from(I32.integer(n)).unwrap_or(0))
}

fn min3(fpu: Fpu, e: &Env, a: u64, b: u64, c: u64) -> u64 {
    fpu.min(fpu.min(a, b, e.ieee()), c, e.ieee())
}

fn max3(fpu: Fpu, e: &Env, a: u64, b: u64, c: u64) -> u64 {
    fpu.max(fpu.max(a, b, e.ieee()), c, e.ieee())
}

fn pair(low: u64, high: u64) -> u64 {
    low & 0xffff | high << 16
}

pub(crate) fn semantics(op: Op) -> Option<Semantics> {
    match op {
        Op::VMadLegacyF32 => same3(S, |e, a, b, c| mad32(e).add(mul_legacy(mad32(e), a, b), c)),
        Op::VMadF32 => same3(S, |e, a, b, c| mad32(e).mad(a, b, c)),
        Op::VMadI32I24 => int3(I32, [I32; 3], |a, b, c| signed24(a) * signed24(b) + c),
        Op::VMadU32U24 => int3(U32, [U32; 3], |a, b, c| unsigned24(a) * unsigned24(b) + c),
        Op::VCubeidF32 => same3(S, cube_id),
        Op::VCubescF32 => same3(S, cube_s),
        Op::VCubetcF32 => same3(S, cube_t),
        Op::VCubemaF32 => same3(S, cube_major),
        Op::VBfeU32 => same3(U32, |_, a, b, c| (a >> (b & 31)) & ((1 << (c & 31)) - 1)),
        Op::VBfeI32 => same3(U32, |_, a, b, c| bfe_signed(a, b, c)),
        Op::VBfiB32 => same3(B32, |_, a, b, c| a & b | !a & c),
        Op::VFmaF32 => same3(S, |e, a, b, c| e.f32().fma(a, b, c)),
        Op::VFmaF64 => same3(D, |e, a, b, c| e.f64().fma(a, b, c)),
        Op::VLerpU8 => same3(B32, |_, a, b, c| lerp(a, b, c)),
        Op::VAlignbitB32 => same3(B32, |_, a, b, c| (a << 32 | b) >> (c & 31)),
        Op::VAlignbyteB32 => same3(B32, |_, a, b, c| (a << 32 | b) >> (8 * (c & 3))),
        Op::VMin3F32 => same3(S, |e, a, b, c| min3(e.f32(), e, a, b, c)),
        Op::VMin3I32 => int3(I32, [I32; 3], |a, b, c| a.min(b).min(c)),
        Op::VMin3U32 => int3(U32, [U32; 3], |a, b, c| a.min(b).min(c)),
        Op::VMax3F32 => same3(S, |e, a, b, c| max3(e.f32(), e, a, b, c)),
        Op::VMax3I32 => int3(I32, [I32; 3], |a, b, c| a.max(b).max(c)),
        Op::VMax3U32 => int3(U32, [U32; 3], |a, b, c| a.max(b).max(c)),
        Op::VMed3F32 => same3(S, |e, a, b, c| e.f32().med3(a, b, c, e.ieee())),
        Op::VMed3I32 => int3(I32, [I32; 3], median),
        Op::VMed3U32 => int3(U32, [U32; 3], median),
        Op::VSadU8 => {
            int3(U32, [B32, B32, U32], |a, b, c| distances(low64(a.unsigned_abs()), low64(b.unsigned_abs()), false) + c)
        }
        Op::VSadHiU8 => int3(U32, [B32, B32, U32], |a, b, c| {
            (distances(low64(a.unsigned_abs()), low64(b.unsigned_abs()), false) << 16) + c
        }),
        Op::VSadU16 => int3(U32, [B32, B32, U32], |a, b, c| {
            ((a & 0xffff) - (b & 0xffff)).abs() + ((a >> 16) - (b >> 16)).abs() + c
        }),
        Op::VSadU32 => int3(U32, [U32; 3], |a, b, c| (a - b).abs() + c),
        Op::VCvtPkU8F32 => three(B32, [S, U32, B32], |e, a, b, c| {
            let by = 8 * (b & 3);
            c & !(0xff << by) | convert::to_byte(e.f32(), a) << by
        }),
        Op::VDivFixupF32 => same3(S, |e, a, b, c| div_fixup(e.f32(), a, b, c)),
        Op::VDivFixupF64 => same3(D, |e, a, b, c| div_fixup(e.f64(), a, b, c)),
        Op::VDivFmasF32 => same3(S, |e, a, b, c| e.f32().fma_scaled(a, b, c, unscale(e, F32, c, 64))),
        Op::VDivFmasF64 => same3(D, |e, a, b, c| e.f64().fma_scaled(a, b, c, unscale(e, F64, c, 128))),
        Op::VMsadU8 => {
            int3(U32, [B32, B32, U32], |a, b, c| distances(low64(a.unsigned_abs()), low64(b.unsigned_abs()), true) + c)
        }
        Op::VQsadPkU16U8 => three(B64, [B64, B32, B64], |_, a, b, c| quad(a, b, c, false)),
        Op::VMqsadPkU16U8 => three(B64, [B64, B32, B64], |_, a, b, c| quad(a, b, c, true)),
        Op::VMadLegacyF16 => same3(H, |e, a, b, c| mad16(e).mad(a, b, c)),
        Op::VMadLegacyU16 => int3(U16, [U16; 3], |a, b, c| a * b + c),
        Op::VMadLegacyI16 => int3(I16, [I16; 3], |a, b, c| a * b + c),
        Op::VPermB32 => same3(B32, |_, a, b, c| permute(a, b, c)),
        Op::VFmaLegacyF16 => same3(H, |e, a, b, c| e.f16().fma(a, b, c)),
        Op::VDivFixupLegacyF16 => same3(H, |e, a, b, c| div_fixup(e.f16(), a, b, c)),
        Op::VCvtPkaccumU8F32 => super::semantics::tied(three(B32, [S, U32, B32], |e, a, b, c| {
            let by = 8 * (b & 3);
            c & !(0xff << by) | convert::to_byte(e.f32(), a) << by
        })),
        Op::VMadU32U16 => int3(U32, [U16, U16, U32], |a, b, c| a * b + c),
        Op::VMadI32I16 => int3(I32, [I16, I16, I32], |a, b, c| a * b + c),
        Op::VXadU32 => same3(U32, |_, a, b, c| (a ^ b).wrapping_add(c)),
        Op::VMin3F16 => keep(same3(H, |e, a, b, c| min3(e.f16(), e, a, b, c))),
        Op::VMin3I16 => keep(int3(I16, [I16; 3], |a, b, c| a.min(b).min(c))),
        Op::VMin3U16 => keep(int3(U16, [U16; 3], |a, b, c| a.min(b).min(c))),
        Op::VMax3F16 => keep(same3(H, |e, a, b, c| max3(e.f16(), e, a, b, c))),
        Op::VMax3I16 => keep(int3(I16, [I16; 3], |a, b, c| a.max(b).max(c))),
        Op::VMax3U16 => keep(int3(U16, [U16; 3], |a, b, c| a.max(b).max(c))),
        Op::VMed3F16 => keep(same3(H, |e, a, b, c| e.f16().med3(a, b, c, e.ieee()))),
        Op::VMed3I16 => keep(int3(I16, [I16; 3], median)),
        Op::VMed3U16 => keep(int3(U16, [U16; 3], median)),
        Op::VLshlAddU32 => same3(U32, |_, a, b, c| (a << (b & 31)).wrapping_add(c)),
        Op::VAddLshlU32 => same3(U32, |_, a, b, c| a.wrapping_add(b) << (c & 31)),
        Op::VAdd3U32 => same3(U32, |_, a, b, c| a.wrapping_add(b).wrapping_add(c)),
        Op::VLshlOrB32 => same3(B32, |_, a, b, c| a << (b & 31) | c),
        Op::VAndOrB32 => same3(B32, |_, a, b, c| a & b | c),
        Op::VOr3B32 => same3(B32, |_, a, b, c| a | b | c),
        Op::VMadF16 => keep(same3(H, |e, a, b, c| mad16(e).mad(a, b, c))),
        Op::VMadU16 => keep(int3(U16, [U16; 3], |a, b, c| a * b + c)),
        Op::VMadI16 => keep(int3(I16, [I16; 3], |a, b, c| a * b + c)),
        Op::VFmaF16 => keep(same3(H, |e, a, b, c| e.f16().fma(a, b, c))),
        Op::VDivFixupF16 => keep(same3(H, |e, a, b, c| div_fixup(e.f16(), a, b, c))),
        Op::VLshlAddU64 => three(U64, [U64, U32, U64], |_, a, b, c| (a << (b & 7)).wrapping_add(c)),
        Op::VAddF64 => same2(D, |e, a, b| e.f64().add(a, b)),
        Op::VMulF64 => same2(D, |e, a, b| e.f64().mul(a, b)),
        Op::VMinF64 => same2(D, |e, a, b| e.f64().min(a, b, e.ieee())),
        Op::VMaxF64 => same2(D, |e, a, b| e.f64().max(a, b, e.ieee())),
        Op::VLdexpF64 => two(D, D, I32, |e, a, b| ldexp(e.f64(), a, b)),
        Op::VMulLoU32 => same2(U32, |_, a, b| a.wrapping_mul(b)),
        Op::VMulHiU32 => int2(U32, |a, b| (a * b) >> 32),
        Op::VMulHiI32 => int2(I32, |a, b| (a * b) >> 32),
        Op::VLdexpF32 => two(S, S, I32, |e, a, b| ldexp(e.f32(), a, b)),
        Op::VBcntU32B32 => two(U32, B32, U32, |_, a, b| count(a).wrapping_add(b)),
        Op::VMbcntLoU32B32 => two(U32, B32, U32, |e, a, b| count(a & ones_below(e.lane)).wrapping_add(b)),
        Op::VMbcntHiU32B32 => two(U32, B32, U32, |e, a, b| count(a & ones_below(e.lane) >> 32).wrapping_add(b)),
        Op::VLshlrevB64 => two(B64, B32, B64, |_, a, b| b << (a & 63)),
        Op::VLshrrevB64 => two(B64, B32, B64, |_, a, b| b >> (a & 63)),
        Op::VAshrrevI64 => two(I64, B32, I64, |_, a, b| (b as i64 >> (a & 63)) as u64),
        Op::VTrigPreopF64 => two(D, D, B32, |e, a, b| trig_preop(e.f64(), a, b)),
        Op::VBfmB32 => same2(B32, |_, a, b| ((1 << (a & 31)) - 1) << (b & 31)),
        Op::VCvtPknormI16F32 => {
            two(B32, S, S, |e, a, b| pair(convert::snorm16(e.f32(), a), convert::snorm16(e.f32(), b)))
        }
        Op::VCvtPknormU16F32 => {
            two(B32, S, S, |e, a, b| pair(convert::unorm16(e.f32(), a), convert::unorm16(e.f32(), b)))
        }
        Op::VCvtPkU16U32 => two(B32, U32, U32, |_, a, b| pair(a.min(0xffff), b.min(0xffff))),
        Op::VCvtPkI16I32 => {
            two(B32, I32, I32, |_, a, b| pair(I16.wrap(I32.integer(a), true), I16.wrap(I32.integer(b), true)))
        }
        Op::VCvtPknormI16F16 => {
            two(B32, H, H, |e, a, b| pair(convert::snorm16(e.f16(), a), convert::snorm16(e.f16(), b)))
        }
        Op::VCvtPknormU16F16 => {
            two(B32, H, H, |e, a, b| pair(convert::unorm16(e.f16(), a), convert::unorm16(e.f16(), b)))
        }
        Op::VAddI32 => int2(I32, |a, b| a + b),
        Op::VSubI32 => int2(I32, |a, b| a - b),
        Op::VAddI16 => keep(int2(I16, |a, b| a + b)),
        Op::VSubI16 => keep(int2(I16, |a, b| a - b)),
        Op::VAddNcU16 => keep(int2(U16, |a, b| a + b)),
        Op::VSubNcU16 => keep(int2(U16, |a, b| a - b)),
        Op::VPackB32F16 => two(B32, H, H, |_, a, b| pair(a, b)),
        // Dot products.
        Op::VDot2F32F16 => three(S, [Kind::Pair16, Kind::Pair16, S], dot::f32_f16),
        Op::VDot2I32I16 => int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 16, [true; 2]) + c),
        Op::VDot2U32U16 => int3(U32, [B32, B32, U32], |a, b, c| dot::integers(a, b, 16, [false; 2]) + c),
        Op::VDot4I32I8 => int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 8, [true; 2]) + c),
        Op::VDot4U32U8 => int3(U32, [B32, B32, U32], |a, b, c| dot::integers(a, b, 8, [false; 2]) + c),
        Op::VDot8I32I4 => int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 4, [true; 2]) + c),
        Op::VDot8U32U4 => int3(U32, [B32, B32, U32], |a, b, c| dot::integers(a, b, 4, [false; 2]) + c),
        // gfx10 and later.
        Op::VXor3B32 => same3(B32, |_, a, b, c| a ^ b ^ c),
        Op::VFmaLegacyF32 => same3(S, fma_legacy),
        Op::VMullitF32 => same3(S, mullit),
        // gfx11.
        Op::VMaxminF32 => same3(S, |e, a, b, c| e.f32().min(e.f32().max(a, b, e.ieee()), c, e.ieee())),
        Op::VMinmaxF32 => same3(S, |e, a, b, c| e.f32().max(e.f32().min(a, b, e.ieee()), c, e.ieee())),
        Op::VMaxminF16 => same3(H, |e, a, b, c| e.f16().min(e.f16().max(a, b, e.ieee()), c, e.ieee())),
        Op::VMinmaxF16 => same3(H, |e, a, b, c| e.f16().max(e.f16().min(a, b, e.ieee()), c, e.ieee())),
        Op::VMaxminU32 => int3(U32, [U32; 3], |a, b, c| a.max(b).min(c)),
        Op::VMinmaxU32 => int3(U32, [U32; 3], |a, b, c| a.min(b).max(c)),
        Op::VMaxminI32 => int3(I32, [I32; 3], |a, b, c| a.max(b).min(c)),
        Op::VMinmaxI32 => int3(I32, [I32; 3], |a, b, c| a.min(b).max(c)),
        Op::VCvtPkI16F32 => two(B32, S, S, |e, a, b| {
            let half = |x| I16.wrap(e.f32().to_int(x, crate::wave::Round::Zero, -32768, 32767), false);
            pair(half(a), half(b))
        }),
        Op::VCvtPkU16F32 => two(B32, S, S, |e, a, b| {
            let half = |x| U16.wrap(e.f32().to_int(x, crate::wave::Round::Zero, 0, 65535), false);
            pair(half(a), half(b))
        }),
        // A half of the destination.
        Op::VCvtPkFp8F32 => keep(two(B16, S, S, |e, a, b| FP8.encode_pair(a, b, e.mode.fp16_overflow()))),
        Op::VCvtPkBf8F32 => keep(two(B16, S, S, |e, a, b| BF8.encode_pair(a, b, e.mode.fp16_overflow()))),
        // A byte of it, rounded by random bits.
        Op::VCvtSrFp8F32 => two(B8, S, B32, |e, a, b| FP8.encode_stochastic(a, b, e.mode.fp16_overflow())),
        Op::VCvtSrBf8F32 => two(B8, S, B32, |e, a, b| BF8.encode_stochastic(a, b, e.mode.fp16_overflow())),
        Op::VDot2F16F16 => three(H, [Kind::Pair16, Kind::Pair16, H], dot::f16_f16),
        Op::VDot2Bf16Bf16 => three(B16, [B32, B32, B16], dot::bf16_bf16),
        Op::VDot2F32Bf16 => three(S, [B32, B32, S], dot::f32_bf16),
        _ => None,
    }
}

/// Product for specular lighting: the largest negative number stands for "not lit".
fn mullit(e: &Env, a: u64, b: u64, c: u64) -> u64 {
    let f = e.f32();
    let lowest = F32.signed(F32.largest(), true);
    let greater = |a, b| f.compare(a, b) == Some(std::cmp::Ordering::Greater);
    if b == lowest || F32.is_infinite(b) && F32.negative(b) || F32.is_nan(b) || !greater(c, 0) {
        lowest
    } else {
        f.mul(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_one() {
        for [a, b, c] in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
            assert_eq!(median(a, b, c), 2);
        }
    }

    #[test]
    fn permute_takes_bytes_signs_and_constants() {
        assert_eq!(permute(0x8070_6050, 0x4030_a010, 0x0706_0504), 0x8070_6050);
        assert_eq!(permute(0x8070_6050, 0x4030_a010, 0x0b08_0c0d), 0xffff_00ff);
    }
}
