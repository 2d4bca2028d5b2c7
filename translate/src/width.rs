// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many lanes a strip has, and the host's instructions for each width.

use iced_x86::{Code, Register};

/// The vectors that strips are computed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Eight lanes: AVX2, FMA and F16C.
    Avx2,
    /// Sixteen lanes and masks: AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Width {
    /// The widest that the processor has; `None` if it has none.
    #[must_use]
    pub fn detect() -> Option<Width> {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            match (avx2, avx512) {
                (true, true) => Some(Width::Avx512),
                (true, false) => Some(Width::Avx2),
                _ => None,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Whether the processor has it.
    #[must_use]
    pub fn is_there(self) -> bool {
        match (self, Width::detect()) {
            (Width::Avx2, Some(_)) => true,
            (Width::Avx512, there) => there == Some(Width::Avx512),
            (_, None) => false,
        }
    }

    /// Lanes of a strip.
    #[must_use]
    pub const fn lanes(self) -> u8 {
        match self {
            Width::Avx2 => 8,
            Width::Avx512 => 16,
        }
    }

    pub(crate) const fn is_wide(self) -> bool {
        matches!(self, Width::Avx512)
    }

    /// Host vector register number `n`.
    pub(crate) fn vector(self, n: usize) -> Register {
        let first = if self.is_wide() { Register::ZMM0 } else { Register::YMM0 };
        first + u32::try_from(n).unwrap_or(0)
    }

    /// How many vector registers the host has.
    pub(crate) const fn vectors(self) -> usize {
        match self {
            Width::Avx2 => 16,
            Width::Avx512 => 32,
        }
    }
}

/// The same operation of the host in both widths.
#[derive(Clone, Copy)]
pub(crate) struct Both(pub(crate) Code, pub(crate) Code);

impl Both {
    pub(crate) const fn of(self, width: Width) -> Code {
        match width {
            Width::Avx2 => self.0,
            Width::Avx512 => self.1,
        }
    }
}

macro_rules! both {
    ($($name:ident $narrow:ident $wide:ident;)*) => {
        $(pub(crate) const $name: Both = Both(Code::$narrow, Code::$wide);)*
    };
}

both! {
    ADD VEX_Vpaddd_ymm_ymm_ymmm256 EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
    SUB VEX_Vpsubd_ymm_ymm_ymmm256 EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32;
    MUL VEX_Vpmulld_ymm_ymm_ymmm256 EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32;
    MUL_WIDE VEX_Vpmuludq_ymm_ymm_ymmm256 EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64;
    AND VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32;
    OR VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vpord_zmm_k1z_zmm_zmmm512b32;
    XOR VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32;
    SHL VEX_Vpsllvd_ymm_ymm_ymmm256 EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32;
    SHR VEX_Vpsrlvd_ymm_ymm_ymmm256 EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32;
    SAR VEX_Vpsravd_ymm_ymm_ymmm256 EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32;
    SHL_BY VEX_Vpslld_ymm_ymm_imm8 EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
    SHR_BY VEX_Vpsrld_ymm_ymm_imm8 EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8;
    SAR_BY VEX_Vpsrad_ymm_ymm_imm8 EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8;
    SHR64_BY VEX_Vpsrlq_ymm_ymm_imm8 EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8;
    MIN_I VEX_Vpminsd_ymm_ymm_ymmm256 EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32;
    MAX_I VEX_Vpmaxsd_ymm_ymm_ymmm256 EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32;
    MIN_U VEX_Vpminud_ymm_ymm_ymmm256 EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32;
    MAX_U VEX_Vpmaxud_ymm_ymm_ymmm256 EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32;
    FADD VEX_Vaddps_ymm_ymm_ymmm256 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er;
    FSUB VEX_Vsubps_ymm_ymm_ymmm256 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er;
    FMUL VEX_Vmulps_ymm_ymm_ymmm256 EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er;
    FDIV VEX_Vdivps_ymm_ymm_ymmm256 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er;
    FMIN VEX_Vminps_ymm_ymm_ymmm256 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae;
    FMAX VEX_Vmaxps_ymm_ymm_ymmm256 EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae;
    FMA VEX_Vfmadd231ps_ymm_ymm_ymmm256 EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    FMA132 VEX_Vfmadd132ps_ymm_ymm_ymmm256 EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er;
    FMA213 VEX_Vfmadd213ps_ymm_ymm_ymmm256 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    FSQRT VEX_Vsqrtps_ymm_ymmm256 EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er;
    ROUND VEX_Vroundps_ymm_ymmm256_imm8 EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae;
    TO_INT VEX_Vcvttps2dq_ymm_ymmm256 EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae;
    NEAREST_INT VEX_Vcvtps2dq_ymm_ymmm256 EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er;
    FROM_INT VEX_Vcvtdq2ps_ymm_ymmm256 EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er;
    MOVE VEX_Vmovaps_ymm_ymmm256 EVEX_Vmovaps_zmm_k1z_zmmm512;
    LOAD VEX_Vmovups_ymm_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512;
    STORE VEX_Vmovups_ymmm256_ymm EVEX_Vmovups_zmmm512_k1z_zmm;
    STORE_PAST VEX_Vmovntps_m256_ymm EVEX_Vmovntps_m512_zmm;
    SPLAT VEX_Vbroadcastss_ymm_m32 EVEX_Vbroadcastss_zmm_k1z_xmmm32;
    SPLAT64 VEX_Vbroadcastsd_ymm_m64 EVEX_Vbroadcastsd_zmm_k1z_xmmm64;
    DOUBLES VEX_Vcvtps2pd_ymm_xmmm128 EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae;
    SINGLES VEX_Vcvtpd2ps_xmm_ymmm256 EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er;
    HIGH_HALF VEX_Vextractf128_xmmm128_ymm_imm8 EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8;
    JOIN_HALVES VEX_Vinsertf128_ymm_ymm_xmmm128_imm8 EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8;
    UNPACK_LOW VEX_Vunpcklps_ymm_ymm_ymmm256 EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32;
    UNPACK_HIGH VEX_Vunpckhps_ymm_ymm_ymmm256 EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32;
    PICK_WORDS VEX_Vshufps_ymm_ymm_ymmm256_imm8 EVEX_Vshufps_zmm_k1z_zmm_zmmm512b32_imm8;
    DFMA VEX_Vfmadd231pd_ymm_ymm_ymmm256 EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    DADD VEX_Vaddpd_ymm_ymm_ymmm256 EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
    DSUB VEX_Vsubpd_ymm_ymm_ymmm256 EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er;
    DMUL VEX_Vmulpd_ymm_ymm_ymmm256 EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er;
    DFMA213 VEX_Vfmadd213pd_ymm_ymm_ymmm256 EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
    ADD64 VEX_Vpaddq_ymm_ymm_ymmm256 EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64;
    SHL64_BY VEX_Vpsllq_ymm_ymm_imm8 EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8;
    WIDEN_INT VEX_Vpmovsxdq_ymm_xmmm128 EVEX_Vpmovsxdq_zmm_k1z_ymmm256;
    DOUBLES_OF_INT VEX_Vcvtdq2pd_ymm_xmmm128 EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er;
    WIDEN_BYTES VEX_Vpmovzxbd_ymm_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128;
    WIDEN_SIGNED_BYTES VEX_Vpmovsxbd_ymm_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128;
    WIDEN_SHORTS VEX_Vpmovzxwd_ymm_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256;
    WIDEN_SIGNED_SHORTS VEX_Vpmovsxwd_ymm_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256;
    SHL16_BY VEX_Vpsllw_ymm_ymm_imm8 EVEX_Vpsllw_zmm_k1z_zmmm512_imm8;
    SHR16_BY VEX_Vpsrlw_ymm_ymm_imm8 EVEX_Vpsrlw_zmm_k1z_zmmm512_imm8;
    SAR16_BY VEX_Vpsraw_ymm_ymm_imm8 EVEX_Vpsraw_zmm_k1z_zmmm512_imm8;
    ADD16 VEX_Vpaddw_ymm_ymm_ymmm256 EVEX_Vpaddw_zmm_k1z_zmm_zmmm512;
    SUB16 VEX_Vpsubw_ymm_ymm_ymmm256 EVEX_Vpsubw_zmm_k1z_zmm_zmmm512;
    MUL16 VEX_Vpmullw_ymm_ymm_ymmm256 EVEX_Vpmullw_zmm_k1z_zmm_zmmm512;
    MIN_I16 VEX_Vpminsw_ymm_ymm_ymmm256 EVEX_Vpminsw_zmm_k1z_zmm_zmmm512;
    MAX_I16 VEX_Vpmaxsw_ymm_ymm_ymmm256 EVEX_Vpmaxsw_zmm_k1z_zmm_zmmm512;
    MIN_U16 VEX_Vpminuw_ymm_ymm_ymmm256 EVEX_Vpminuw_zmm_k1z_zmm_zmmm512;
    MAX_U16 VEX_Vpmaxuw_ymm_ymm_ymmm256 EVEX_Vpmaxuw_zmm_k1z_zmm_zmmm512;
    DOT_SHORTS VEX_Vpmaddwd_ymm_ymm_ymmm256 EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512;
    PICK_BYTES VEX_Vpshufb_ymm_ymm_ymmm256 EVEX_Vpshufb_zmm_k1z_zmm_zmmm512;
    OF_HALVES VEX_Vcvtph2ps_ymm_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae;
    TO_HALVES VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae;
    DSQRT VEX_Vsqrtpd_ymm_ymmm256 EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er;
    DDIV VEX_Vdivpd_ymm_ymm_ymmm256 EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er;
}
