// SPDX-License-Identifier: GPL-2.0 OR MIT
//! [`Simd`] by AVX2 and FMA.

use super::simd::Simd;
use std::arch::x86_64::*;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

#[inline(always)]
fn f(a: __m256i) -> __m256 {
    // SAFETY: the same bits.
    unsafe { std::mem::transmute(a) }
}

#[inline(always)]
fn i(a: __m256) -> __m256i {
    // SAFETY: the same bits.
    unsafe { std::mem::transmute(a) }
}

impl Simd for Avx2 {
    type V = __m256i;

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m256i {
        // SAFETY: the caller's, as in all of these.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, value: __m256i) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), value) };
    }
    #[inline(always)]
    unsafe fn splat(value: u32) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi32(value as i32) }
    }
    #[inline(always)]
    unsafe fn to_array(value: __m256i) -> [u32; 8] {
        // SAFETY: the same bits.
        unsafe { std::mem::transmute(value) }
    }
    #[inline(always)]
    unsafe fn from_array(value: [u32; 8]) -> __m256i {
        // SAFETY: the same bits.
        unsafe { std::mem::transmute(value) }
    }
    #[inline(always)]
    unsafe fn lanes(mask: u8) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask.into()), bits), bits)
        }
    }
    #[inline(always)]
    unsafe fn mask(value: __m256i) -> u8 {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(f(value)) as u8 }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn min_i(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_min_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn max_i(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_max_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn min_u(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_min_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn max_u(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_max_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn eq(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cmpeq_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn gt(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cmpgt_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m256i, by: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sllv_epi32(a, _mm256_and_si256(by, _mm256_set1_epi32(31))) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m256i, by: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srlv_epi32(a, _mm256_and_si256(by, _mm256_set1_epi32(31))) }
    }
    #[inline(always)]
    unsafe fn sar(a: __m256i, by: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srav_epi32(a, _mm256_and_si256(by, _mm256_set1_epi32(31))) }
    }
    #[inline(always)]
    unsafe fn fadd(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_add_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fsub(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_sub_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fmul(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_mul_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fmin(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_min_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fmax(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_max_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_fmadd_ps(f(a), f(b), f(c))) }
    }
    #[inline(always)]
    unsafe fn unordered(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_cmp_ps::<_CMP_UNORD_Q>(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn flt(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_cmp_ps::<_CMP_LT_OQ>(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fle(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_cmp_ps::<_CMP_LE_OQ>(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn feq(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_cmp_ps::<_CMP_EQ_OQ>(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fsqrt(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_sqrt_ps(f(a))) }
    }
    #[inline(always)]
    unsafe fn floor(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_floor_ps(f(a))) }
    }
    #[inline(always)]
    unsafe fn ceil(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_ceil_ps(f(a))) }
    }
    #[inline(always)]
    unsafe fn trunc(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(f(a))) }
    }
    #[inline(always)]
    unsafe fn round_even(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(f(a))) }
    }
    #[inline(always)]
    unsafe fn from_signed(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_cvtepi32_ps(a)) }
    }
    #[inline(always)]
    unsafe fn fdiv(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_div_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn widen(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let halves = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            i(_mm256_cvtph_ps(halves))
        }
    }
    #[inline(always)]
    unsafe fn narrow(a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cvtepu16_epi32(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(f(a))) }
    }
}
