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
    unsafe fn copy_lines(to: *mut u8, from: *const u8, lines: usize) -> Result<(), vkfd_raw::Faulted> {
        // SAFETY: the caller's; the processor has AVX.
        unsafe { vkfd_raw::copy_lines_avx(to, from, lines) }
    }
    #[inline(always)]
    unsafe fn copy_lines_past(to: *mut u8, from: *const u8, lines: usize) -> Result<(), vkfd_raw::Faulted> {
        // SAFETY: the caller's; the processor has AVX.
        unsafe { vkfd_raw::copy_lines_past(to, from, lines) }
    }
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
    #[inline(always)]
    unsafe fn split2(from: *const u32) -> [__m256i; 2] {
        // SAFETY: as above; two vectors are there.
        unsafe {
            let (low, high) = (f(Self::load(from)), f(Self::load(from.add(8))));
            // Even words of both, then odd ones; each half of 128 bits has its own.
            let [even, odd] = [_mm256_shuffle_ps::<0x88>(low, high), _mm256_shuffle_ps::<0xdd>(low, high)];
            [even, odd].map(|value| _mm256_permute4x64_epi64::<0xd8>(i(value)))
        }
    }
    #[inline(always)]
    unsafe fn join2(to: *mut u32, [a, b]: [__m256i; 2]) {
        // SAFETY: as above; there is room for two vectors.
        unsafe {
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            Self::store(to, _mm256_permute2x128_si256::<0x20>(low, high));
            Self::store(to.add(8), _mm256_permute2x128_si256::<0x31>(low, high));
        }
    }
    #[inline(always)]
    unsafe fn split4(from: [*const u32; 8]) -> [__m256i; 4] {
        // SAFETY: as above; each place has four words.
        unsafe {
            let row = |lane: usize| {
                let low = _mm256_castsi128_si256(_mm_loadu_si128(from[lane].cast()));
                _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(from[lane + 4].cast()))
            };
            transpose([row(0), row(1), row(2), row(3)])
        }
    }
    #[inline(always)]
    unsafe fn join4(to: [*mut u32; 8], value: [__m256i; 4]) {
        // SAFETY: as above; each place has room for four words.
        unsafe {
            let rows = transpose(value);
            for lane in 0..4 {
                _mm_storeu_si128(to[lane].cast(), _mm256_castsi256_si128(rows[lane]));
            }
            for lane in 0..4 {
                _mm_storeu_si128(to[lane + 4].cast(), _mm256_extracti128_si256::<1>(rows[lane]));
            }
        }
    }
    #[inline(always)]
    unsafe fn is_zero(value: __m256i) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_testz_si256(value, value) == 1 }
    }
    #[inline(always)]
    unsafe fn steps(by: u32) -> __m256i {
        // SAFETY: as above.
        unsafe { Self::mul(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), Self::splat(by)) }
    }
    #[inline(always)]
    unsafe fn largest(value: __m256i) -> u32 {
        // SAFETY: as above.
        unsafe {
            let half = _mm_max_epu32(_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
            let half = _mm_max_epu32(half, _mm_shuffle_epi32::<0x4e>(half));
            let half = _mm_max_epu32(half, _mm_shuffle_epi32::<0xb1>(half));
            _mm_cvtsi128_si32(half) as u32
        }
    }
}

/// Four rows of four words become four columns, in each half.
#[inline(always)]
unsafe fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller's processor has AVX2.
    unsafe {
        let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}
