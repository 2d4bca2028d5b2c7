// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations with two sources, in the order of the manual. Those with carries are in
//! `carry`.

use super::dot;
use super::kind::Kind;
use super::multiply::{fma_legacy, mad16, mad32, mul_legacy, signed24, unsigned24};
use super::semantics::{int2, int3, same2, same3, three, tied, two, Env, Semantics};
use crate::wave::Round;
use vkfd_isa::Op;
use Kind::{Pair16, B16, B32, F16 as H, F32 as S, F64 as D, I16, I32, U16, U32};

/// Two numbers as halves, towards zero.
pub(crate) fn pkrtz(e: &Env, a: u64, b: u64) -> u64 {
    let half = |x| e.f16().rounding(Round::Zero).convert(e.f32(), x);
    half(a) | half(b) << 16
}

pub(crate) fn semantics(op: Op) -> Option<Semantics> {
    match op {
        Op::VAddF32 => same2(S, |e, a, b| e.f32().add(a, b)),
        Op::VSubF32 => same2(S, |e, a, b| e.f32().sub(a, b)),
        Op::VSubrevF32 => same2(S, |e, a, b| e.f32().sub(b, a)),
        Op::VMulLegacyF32 => same2(S, |e, a, b| mul_legacy(e.f32(), a, b)),
        Op::VMulF32 => same2(S, |e, a, b| e.f32().mul(a, b)),
        Op::VMulI32I24 => int2(I32, |a, b| signed24(a) * signed24(b)),
        Op::VMulHiI32I24 => int2(I32, |a, b| (signed24(a) * signed24(b)) >> 32),
        Op::VMulU32U24 => int2(U32, |a, b| unsigned24(a) * unsigned24(b)),
        Op::VMulHiU32U24 => int2(U32, |a, b| (unsigned24(a) * unsigned24(b)) >> 32),
        Op::VMinF32 => same2(S, |e, a, b| e.f32().min(a, b, e.ieee())),
        Op::VMaxF32 => same2(S, |e, a, b| e.f32().max(a, b, e.ieee())),
        Op::VMinI32 => int2(I32, |a, b| a.min(b)),
        Op::VMaxI32 => int2(I32, |a, b| a.max(b)),
        Op::VMinU32 => int2(U32, |a, b| a.min(b)),
        Op::VMaxU32 => int2(U32, |a, b| a.max(b)),
        Op::VLshrrevB32 => same2(B32, |_, a, b| b >> (a & 31)),
        Op::VAshrrevI32 => int2(I32, |a, b| b >> (a & 31)),
        Op::VLshlrevB32 => same2(B32, |_, a, b| b << (a & 31)),
        Op::VAndB32 => same2(B32, |_, a, b| a & b),
        Op::VOrB32 => same2(B32, |_, a, b| a | b),
        Op::VXorB32 => same2(B32, |_, a, b| a ^ b),
        Op::VMacF32 => tied(same3(S, |e, a, b, c| mad32(e).mad(a, b, c))),
        Op::VMadmkF32 | Op::VMadakF32 => same3(S, |e, a, b, c| mad32(e).mad(a, b, c)),
        Op::VAddF16 => same2(H, |e, a, b| e.f16().add(a, b)),
        Op::VSubF16 => same2(H, |e, a, b| e.f16().sub(a, b)),
        Op::VSubrevF16 => same2(H, |e, a, b| e.f16().sub(b, a)),
        Op::VMulF16 => same2(H, |e, a, b| e.f16().mul(a, b)),
        Op::VMacF16 => tied(same3(H, |e, a, b, c| mad16(e).mad(a, b, c))),
        Op::VMadmkF16 | Op::VMadakF16 => same3(H, |e, a, b, c| mad16(e).mad(a, b, c)),
        Op::VAddU16 => int2(U16, |a, b| a + b),
        Op::VSubU16 => int2(U16, |a, b| a - b),
        Op::VSubrevU16 => int2(U16, |a, b| b - a),
        Op::VMulLoU16 => int2(U16, |a, b| a * b),
        Op::VLshlrevB16 => same2(B16, |_, a, b| b << (a & 15)),
        Op::VLshrrevB16 => same2(B16, |_, a, b| b >> (a & 15)),
        Op::VAshrrevI16 => int2(I16, |a, b| b >> (a & 15)),
        Op::VMaxF16 => same2(H, |e, a, b| e.f16().max(a, b, e.ieee())),
        Op::VMinF16 => same2(H, |e, a, b| e.f16().min(a, b, e.ieee())),
        Op::VMaxU16 => int2(U16, |a, b| a.max(b)),
        Op::VMaxI16 => int2(I16, |a, b| a.max(b)),
        Op::VMinU16 => int2(U16, |a, b| a.min(b)),
        Op::VMinI16 => int2(I16, |a, b| a.min(b)),
        Op::VLdexpF16 => two(H, H, I16, |e, a, b| e.f16().ldexp(a, i32::try_from(I16.integer(b)).unwrap_or(0))),
        Op::VAddU32 => int2(U32, |a, b| a + b),
        Op::VSubU32 => int2(U32, |a, b| a - b),
        Op::VSubrevU32 => int2(U32, |a, b| b - a),
        Op::VFmacF32 => tied(same3(S, |e, a, b, c| e.f32().fma(a, b, c))),
        Op::VFmacF64 => tied(same3(D, |e, a, b, c| e.f64().fma(a, b, c))),
        Op::VFmacF16 => tied(same3(H, |e, a, b, c| e.f16().fma(a, b, c))),
        Op::VFmamkF32 | Op::VFmaakF32 => same3(S, |e, a, b, c| e.f32().fma(a, b, c)),
        Op::VFmamkF16 | Op::VFmaakF16 => same3(H, |e, a, b, c| e.f16().fma(a, b, c)),
        Op::VFmacLegacyF32 => tied(same3(S, fma_legacy)),
        Op::VPkFmacF16 => tied(three(B32, [Pair16; 3], |e, a, b, c| {
            let half = |by: u32| e.f16().fma(a >> by & 0xffff, b >> by & 0xffff, c >> by & 0xffff);
            half(0) | half(16) << 16
        })),
        Op::VDot2cF32F16 => tied(three(S, [Pair16, Pair16, S], dot::f32_f16)),
        Op::VDot2cI32I16 => tied(int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 16, [true; 2]) + c)),
        Op::VDot4cI32I8 => tied(int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 8, [true; 2]) + c)),
        Op::VDot8cI32I4 => tied(int3(I32, [B32, B32, I32], |a, b, c| dot::integers(a, b, 4, [true; 2]) + c)),
        Op::VXnorB32 => same2(B32, |_, a, b| !(a ^ b)),
        Op::VCvtPkrtzF16F32 => two(B32, S, S, pkrtz),
        // gfx11.
        Op::VAndB16 => same2(B16, |_, a, b| a & b),
        Op::VOrB16 => same2(B16, |_, a, b| a | b),
        Op::VXorB16 => same2(B16, |_, a, b| a ^ b),
        _ => None,
    }
}
