// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the text is not what is compared with, and why.

/// How an operation is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// With its text, bit for bit (of NaNs, that they are some).
    Text,
    /// With another text, for the reason given.
    Instead(&'static str, &'static str),
    /// With its text, within a number of units in the last place.
    Within(u64),
    /// The same, and denormal numbers are zeros.
    WithinFlushed(u64),
    /// With its text, on numbers that keep away from denormals: the text does not know what they
    /// become.
    Tame,
    /// With its text, a part of it replaced, for the reason given.
    Replace(&'static str, &'static str, &'static str),
    /// With another operation's text, which has the types that this one's lacks.
    As(&'static str),
    /// With another text, on such numbers.
    TameInstead(&'static str, &'static str),
    /// Not here, for this reason.
    Skip(&'static str),
}

/// The rule for an operation, by its name without its encoding.
pub fn rule(name: &str) -> Rule {
    const IDEAL: &str = "the text adds one half, which rounds";
    const RANGE: &str = "the text's power of two is beyond the format's range";
    match name {
        "V_RNDNE_F16" => Rule::Instead(IDEAL, "D0.f16 = rint(S0.f16)"),
        "V_RNDNE_F32" | "S_RNDNE_F32" => Rule::Instead(IDEAL, "D0.f32 = rint(S0.f32)"),
        "V_RNDNE_F64" => Rule::Instead(IDEAL, "D0.f64 = rint(S0.f64)"),
        "V_LDEXP_F16" => Rule::Instead(RANGE, "D0.f16 = ldexp(S0.f16, S1.i16)"),
        "V_LDEXP_F32" => Rule::Instead(RANGE, "D0.f32 = ldexp(S0.f32, S1.i32)"),
        "V_LDEXP_F64" => Rule::Instead(RANGE, "D0.f64 = ldexp(S0.f64, S1.i32)"),
        "V_FRACT_F16" => Rule::Instead(BELOW, "tmp = S0.f16 + -floor(S0.f16);\nD0.f16 = tmp.f16 == 16'1.0 ? 16'0.99951171875 : tmp.f16"),
        "V_FRACT_F32" => Rule::Instead(BELOW, "tmp = S0.f32 + -floor(S0.f32);\nD0.f32 = tmp.f32 == 1.0F ? 0.999999940395355224609375F : tmp.f32"),
        "V_FRACT_F64" => Rule::Instead(BELOW, "tmp = S0.f64 + -floor(S0.f64);\nD0.f64 = tmp.f64 == 1.0 ? 0.99999999999999988897769753748434595763683319091796875 : tmp.f64"),
        "V_FREXP_EXP_I16_F16" => Rule::Instead(SMALL, "if ((S0.f16 == 16'0.0) || (abs(S0.f16) == INF.f16) || isNAN(S0.f16)) then\nD0.i16 = 16'0\nelse\nD0.i16 = 16'I(unbounded(S0.f16) - 15 + 1)\nendif"),
        "V_FREXP_EXP_I32_F32" => Rule::Instead(SMALL, "if ((S0.f32 == 0.0F) || (abs(S0.f32) == INF.f32) || isNAN(S0.f32)) then\nD0.i32 = 0\nelse\nD0.i32 = unbounded(S0.f32) - 127 + 1\nendif"),
        "V_FREXP_EXP_I32_F64" => Rule::Instead(SMALL, "if ((S0.f64 == 0.0) || (abs(S0.f64) == INF.f64) || isNAN(S0.f64)) then\nD0.i32 = 0\nelse\nD0.i32 = unbounded(S0.f64) - 1023 + 1\nendif"),
        "V_DIV_FMAS_F32" => Rule::TameInstead(UNSCALE, "tmp = fma(S0.f32, S1.f32, S2.f32);\nif VCC.u64[laneId] then\nD0.f32 = ldexp(tmp.f32, exponent(S2.f32) > 127 ? 64 : -64)\nelse\nD0.f32 = tmp.f32\nendif"),
        "V_DIV_FMAS_F64" => Rule::TameInstead(UNSCALE, "tmp = fma(S0.f64, S1.f64, S2.f64);\nif VCC.u64[laneId] then\nD0.f64 = ldexp(tmp.f64, exponent(S2.f64) > 1023 ? 128 : -128)\nelse\nD0.f64 = tmp.f64\nendif"),
        "V_DIV_FIXUP_F32" => Rule::Replace(
            OVERFLOWN,
            "else\nD0.f32 = sign_out ? -abs(S0.f32)",
            "elsif isNAN(S0.f32) then\nD0.f32 = sign_out ? -OVERFLOW_F32 : OVERFLOW_F32\nelse\nD0.f32 = sign_out ? -abs(S0.f32)",
        ),
        "V_DIV_FIXUP_F64" => Rule::Replace(
            OVERFLOWN,
            "else\nD0.f64 = sign_out ? -abs(S0.f64)",
            "elsif isNAN(S0.f64) then\nD0.f64 = sign_out ? -OVERFLOW_F64 : OVERFLOW_F64\nelse\nD0.f64 = sign_out ? -abs(S0.f64)",
        ),
        "V_DIV_FIXUP_F16" => Rule::Replace(
            OVERFLOWN,
            "else\nD0.f16 = sign_out ? -abs(S0.f16)",
            "elsif isNAN(S0.f16) then\nD0.f16 = sign_out ? -INF.f16 : +INF.f16\nelse\nD0.f16 = sign_out ? -abs(S0.f16)",
        ),
        "V_DIV_FIXUP_LEGACY_F16" => Rule::As("V_DIV_FIXUP_F16"),
        "V_FMAC_DX9_ZERO_F32" => Rule::Instead(
            "the text adds the third source, which there is none",
            "if ((64'F(S0.f32) == 0.0) || (64'F(S1.f32) == 0.0)) then\nD0.f32 = D0.f32\nelse\nD0.f32 = fma(S0.f32, S1.f32, D0.f32)\nendif",
        ),
        "V_RCP_F32" | "V_RCP_IFLAG_F32" => Rule::WithinFlushed(0),
        "V_RSQ_F32" | "V_EXP_F32" | "V_LOG_F32" => Rule::WithinFlushed(1),
        "V_RSQ_F64" | "V_RSQ_F16" | "V_EXP_F16" | "V_LOG_F16" => Rule::Within(1),
        "V_MAD_F16" | "V_MAC_F16" | "V_MADMK_F16" | "V_MADAK_F16" | "V_MAD_LEGACY_F16" | "V_MAD_MIX_F32"
        | "V_MAD_MIXLO_F16" | "V_MAD_MIXHI_F16" | "V_DOT2_F32_F16" | "V_DOT2C_F32_F16" | "V_DOT2_F32_BF16"
        | "V_DOT2ACC_F32_F16" | "V_DOT2_F16_F16" => Rule::Tame,
        "V_DOT2_BF16_BF16" => Rule::Skip("the text's sums are not rounded"),
        "V_SIN_F16" | "V_SIN_F32" | "V_COS_F16" | "V_COS_F32" => {
            Rule::Skip("the text rounds the argument in radians; compared with an own reduction")
        }
        "V_TRIG_PREOP_F64" => Rule::Skip("needs 1201 bits; compared with an own 2/pi"),
        "V_DIV_SCALE_F32" | "V_DIV_SCALE_F64" => Rule::Skip("the text is known to be wrong; whole divisions are tested"),
        "V_CVT_OFF_F32_I4" => Rule::Skip("its table is not in the text"),
        "S_SETVSKIP" | "S_SET_GPR_IDX_ON" | "S_SET_GPR_IDX_IDX" => Rule::Skip("state of the wave"),
        "V_SWAP_B32" | "V_SWAP_B16" | "V_READFIRSTLANE_B32" => Rule::Skip("more than one lane or destination"),
        "V_CVT_SR_FP8_F32" | "V_CVT_SR_BF8_F32" | "V_CVT_PK_FP8_F32" | "V_CVT_PK_BF8_F32" | "V_CVT_F32_FP8"
        | "V_CVT_F32_BF8" | "V_CVT_PK_F32_FP8" | "V_CVT_PK_F32_BF8" => {
            Rule::Skip("the text's own functions are not in it")
        }
        _ => Rule::Text,
    }
}

const BELOW: &str = "a fraction is less than one: compilers rely on it";
const OVERFLOWN: &str = "an iteration that has overflowed leaves a NaN, where the quotient is beyond the range";
const SMALL: &str = "the text reads the exponent's field, which denormal numbers and zero do not have";
const UNSCALE: &str = "the text's factor undoes neither of the two scalings; the quotient's size says which it was";
