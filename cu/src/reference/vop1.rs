// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations with one source, in the order of the manual.

use super::convert;
use super::float::Fpu;
use super::kind::{low32, Kind};
use super::semantics::{one, Env, Semantics};
use super::transcendental as tr;
use crate::wave::Round;
use vkfd_isa::Op;
use Kind::{B16, B32, B64, F16 as H, F32 as S, F64 as D, I16, I32, U16, U32};

/// Clamped to the integers of 32 bits.
fn to_i32(fpu: Fpu, bits: u64, round: Round) -> u64 {
    I32.wrap(fpu.to_int(bits, round, i32::MIN.into(), i32::MAX.into()), false)
}

fn to_u32(fpu: Fpu, bits: u64, round: Round) -> u64 {
    U32.wrap(fpu.to_int(bits, round, 0, u32::MAX.into()), false)
}

/// A byte of a word as a number.
fn ubyte(e: &Env, a: u64, n: u32) -> u64 {
    e.f32().of_int((a >> (8 * n) & 0xff).into())
}

/// Leading zeros, or -1.
fn ffbh(a: u64) -> u64 {
    let a = low32(a);
    if a == 0 {
        u64::from(u32::MAX)
    } else {
        a.leading_zeros().into()
    }
}

/// Leading bits that equal the sign, or -1 if all do.
fn ffbh_signed(a: u64) -> u64 {
    let a = low32(a);
    ffbh(u64::from(if a >> 31 == 1 { !a } else { a }))
}

fn ffbl(a: u64) -> u64 {
    let a = low32(a);
    if a == 0 {
        u64::from(u32::MAX)
    } else {
        a.trailing_zeros().into()
    }
}

pub(crate) fn semantics(op: Op) -> Option<Semantics> {
    match op {
        Op::VMovB32 => one(B32, B32, |_, a| a),
        Op::VMovB64 => one(B64, B64, |_, a| a),
        Op::VCvtI32F64 => one(I32, D, |e, a| to_i32(e.f64(), a, Round::Zero)),
        Op::VCvtF64I32 => one(D, I32, |e, a| e.f64().of_int(I32.integer(a))),
        Op::VCvtF32I32 => one(S, I32, |e, a| e.f32().of_int(I32.integer(a))),
        Op::VCvtF32U32 => one(S, U32, |e, a| e.f32().of_int(U32.integer(a))),
        Op::VCvtU32F32 => one(U32, S, |e, a| to_u32(e.f32(), a, Round::Zero)),
        Op::VCvtI32F32 => one(I32, S, |e, a| to_i32(e.f32(), a, Round::Zero)),
        Op::VCvtF16F32 => one(H, S, |e, a| e.f16().convert(e.f32(), a)),
        Op::VCvtF32F16 => one(S, H, |e, a| e.f32().convert(e.f16(), a)),
        Op::VCvtRpiI32F32 => one(I32, S, |e, a| convert::rpi(e.f32(), a)),
        Op::VCvtFlrI32F32 => one(I32, S, |e, a| to_i32(e.f32(), a, Round::Down)),
        Op::VCvtOffF32I4 => one(S, B32, |_, a| convert::offset4(a)),
        Op::VCvtF32F64 => one(S, D, |e, a| e.f32().convert(e.f64(), a)),
        Op::VCvtF64F32 => one(D, S, |e, a| e.f64().convert(e.f32(), a)),
        Op::VCvtF32Ubyte0 => one(S, U32, |e, a| ubyte(e, a, 0)),
        Op::VCvtF32Ubyte1 => one(S, U32, |e, a| ubyte(e, a, 1)),
        Op::VCvtF32Ubyte2 => one(S, U32, |e, a| ubyte(e, a, 2)),
        Op::VCvtF32Ubyte3 => one(S, U32, |e, a| ubyte(e, a, 3)),
        Op::VCvtU32F64 => one(U32, D, |e, a| to_u32(e.f64(), a, Round::Zero)),
        Op::VCvtF64U32 => one(D, U32, |e, a| e.f64().of_int(U32.integer(a))),
        Op::VTruncF64 => one(D, D, |e, a| e.f64().integral(a, Round::Zero)),
        Op::VCeilF64 => one(D, D, |e, a| e.f64().integral(a, Round::Up)),
        Op::VRndneF64 => one(D, D, |e, a| e.f64().integral(a, Round::Nearest)),
        Op::VFloorF64 => one(D, D, |e, a| e.f64().integral(a, Round::Down)),
        Op::VFractF32 => one(S, S, |e, a| e.f32().fract(a)),
        Op::VTruncF32 => one(S, S, |e, a| e.f32().integral(a, Round::Zero)),
        Op::VCeilF32 => one(S, S, |e, a| e.f32().integral(a, Round::Up)),
        Op::VRndneF32 => one(S, S, |e, a| e.f32().integral(a, Round::Nearest)),
        Op::VFloorF32 => one(S, S, |e, a| e.f32().integral(a, Round::Down)),
        Op::VExpF32 | Op::VExpLegacyF32 => one(S, S, |e, a| tr::exp2(tr::SINGLE.nans_of(e.mode), a)),
        Op::VLogF32 | Op::VLogLegacyF32 => one(S, S, |e, a| tr::log2(tr::SINGLE.nans_of(e.mode), a)),
        // The reciprocals of single precision know no denormals, whatever MODE says.
        Op::VRcpF32 | Op::VRcpIflagF32 => one(S, S, |e, a| tr::SINGLE.nans_of(e.mode).rcp(a)),
        Op::VRsqF32 => one(S, S, |e, a| tr::SINGLE.nans_of(e.mode).rsq(a)),
        Op::VRcpF64 => one(D, D, |e, a| e.f64().rounding(Round::Nearest).rcp(a)),
        Op::VRsqF64 => one(D, D, |e, a| e.f64().rounding(Round::Nearest).rsq(a)),
        Op::VSqrtF32 => one(S, S, |e, a| e.f32().rounding(Round::Nearest).sqrt(a)),
        Op::VSqrtF64 => one(D, D, |e, a| e.f64().rounding(Round::Nearest).sqrt(a)),
        Op::VSinF32 => one(S, S, |e, a| tr::sin(e.f32(), e.target, a)),
        Op::VCosF32 => one(S, S, |e, a| tr::cos(e.f32(), e.target, a)),
        Op::VNotB32 => one(B32, B32, |_, a| !a),
        Op::VBfrevB32 => one(B32, B32, |_, a| low32(a).reverse_bits().into()),
        Op::VFfbhU32 => one(U32, U32, |_, a| ffbh(a)),
        Op::VFfblB32 => one(U32, B32, |_, a| ffbl(a)),
        Op::VFfbhI32 => one(U32, U32, |_, a| ffbh_signed(a)),
        Op::VFrexpExpI32F64 => one(I32, D, |e, a| I32.wrap(e.f64().exponent(a).into(), false)),
        Op::VFrexpMantF64 => one(D, D, |e, a| e.f64().mantissa(a)),
        Op::VFractF64 => one(D, D, |e, a| e.f64().fract(a)),
        Op::VFrexpExpI32F32 => one(I32, S, |e, a| I32.wrap(e.f32().exponent(a).into(), false)),
        Op::VFrexpMantF32 => one(S, S, |e, a| e.f32().mantissa(a)),
        Op::VCvtF16U16 => one(H, U16, |e, a| e.f16().of_int(U16.integer(a))),
        Op::VCvtF16I16 => one(H, I16, |e, a| e.f16().of_int(I16.integer(a))),
        Op::VCvtU16F16 => one(U16, H, |e, a| U16.wrap(e.f16().to_int(a, Round::Zero, 0, u16::MAX.into()), false)),
        Op::VCvtI16F16 => {
            one(I16, H, |e, a| I16.wrap(e.f16().to_int(a, Round::Zero, i16::MIN.into(), i16::MAX.into()), false))
        }
        Op::VRcpF16 => one(H, H, |e, a| e.f16().rounding(Round::Nearest).rcp(a)),
        Op::VSqrtF16 => one(H, H, |e, a| e.f16().rounding(Round::Nearest).sqrt(a)),
        Op::VRsqF16 => one(H, H, |e, a| e.f16().rounding(Round::Nearest).rsq(a)),
        Op::VLogF16 => one(H, H, |e, a| tr::log2(e.f16(), a)),
        Op::VExpF16 => one(H, H, |e, a| tr::exp2(e.f16(), a)),
        Op::VFrexpMantF16 => one(H, H, |e, a| e.f16().mantissa(a)),
        Op::VFrexpExpI16F16 => one(I16, H, |e, a| I16.wrap(e.f16().exponent(a).into(), false)),
        Op::VFloorF16 => one(H, H, |e, a| e.f16().integral(a, Round::Down)),
        Op::VCeilF16 => one(H, H, |e, a| e.f16().integral(a, Round::Up)),
        Op::VTruncF16 => one(H, H, |e, a| e.f16().integral(a, Round::Zero)),
        Op::VRndneF16 => one(H, H, |e, a| e.f16().integral(a, Round::Nearest)),
        Op::VFractF16 => one(H, H, |e, a| e.f16().fract(a)),
        Op::VSinF16 => one(H, H, |e, a| tr::sin(e.f16(), e.target, a)),
        Op::VCosF16 => one(H, H, |e, a| tr::cos(e.f16(), e.target, a)),
        Op::VCvtNormI16F16 => one(I16, H, |e, a| convert::snorm16(e.f16(), a)),
        Op::VCvtNormU16F16 => one(U16, H, |e, a| convert::unorm16(e.f16(), a)),
        Op::VSatPkU8I16 => one(B16, B32, |_, a| convert::saturate_pair(a)),
        // gfx942.
        Op::VCvtF32Fp8 => one(S, B32, |_, a| convert::FP8.decode(a & 0xff)),
        Op::VCvtF32Bf8 => one(S, B32, |_, a| convert::BF8.decode(a & 0xff)),
        Op::VCvtPkF32Fp8 => one(Kind::B64, B32, |_, a| convert::FP8.decode_pair(a)),
        Op::VCvtPkF32Bf8 => one(Kind::B64, B32, |_, a| convert::BF8.decode_pair(a)),
        // gfx11.
        Op::VMovB16 => one(B16, B16, |_, a| a),
        Op::VNotB16 => one(B16, B16, |_, a| !a),
        Op::VCvtI32I16 => one(I32, I16, |_, a| I32.wrap(I16.integer(a), false)),
        Op::VCvtU32U16 => one(U32, U16, |_, a| a),
        _ => None,
    }
}
