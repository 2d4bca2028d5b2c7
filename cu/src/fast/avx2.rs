// SPDX-License-Identifier: GPL-2.0 OR MIT
//! [`Simd`] by AVX2 and FMA.
//!
//! If two operands are NaN, the processor's result is the one that its instruction names first,
//! quieted. An invalid operation gives the negative quiet NaN. Both are the reference engine's
//! rules. The compiler may exchange the operands of sums and products, so these four instructions
//! are written out. A test compares all combinations of special values.

use super::simd::Simd;
use std::arch::x86_64::*;
use vkfd_translate::series::{EXP2, GUARD, TWO_OVER_LN2};

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

/// An instruction with two operands, in this order. The assembler, too, exchanges those of sums and
/// products where its prefix then has two bytes instead of three: it is told to keep three.
macro_rules! ordered {
    ($name:ident $text:literal) => {
        #[inline]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name(a: __m256, b: __m256) -> __m256 {
            let result;
            // SAFETY: only registers; the processor has AVX.
            unsafe {
                std::arch::asm!(
                    concat!("{{vex3}} ", $text, " {0}, {1}, {2}"),
                    lateout(ymm_reg) result,
                    in(ymm_reg) a,
                    in(ymm_reg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            result
        }
    };
}

ordered!(sum "vaddps");
ordered!(difference "vsubps");
ordered!(product "vmulps");

/// `a * b + c`: of NaNs `a` counts first, then `b`, then `c`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn fused(a: __m256, b: __m256, c: __m256) -> __m256 {
    let mut result = c;
    // SAFETY: only registers; the processor has FMA.
    unsafe {
        std::arch::asm!(
            "vfmadd231ps {0}, {1}, {2}",
            inout(ymm_reg) result,
            in(ymm_reg) a,
            in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    result
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
    unsafe fn shl_out(a: __m256i, by: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sllv_epi32(a, by) }
    }
    #[inline(always)]
    unsafe fn shr_out(a: __m256i, by: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srlv_epi32(a, by) }
    }
    #[inline(always)]
    unsafe fn mul_high(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let even = _mm256_srli_epi64::<32>(_mm256_mul_epu32(a, b));
            let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
            _mm256_blend_epi32::<0xaa>(even, odd)
        }
    }
    #[inline(always)]
    unsafe fn ldexp(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above. The products are exact.
        unsafe {
            let b = _mm256_max_epi32(_mm256_min_epi32(b, _mm256_set1_epi32(400)), _mm256_set1_epi32(-400));
            let powers = [_mm256_castsi256_si128(b), _mm256_extracti128_si256::<1>(b)];
            let mut values = doubles(f(a));
            for n in 0..2 {
                let field = _mm256_add_epi64(_mm256_cvtepi32_epi64(powers[n]), _mm256_set1_epi64x(1023));
                values[n] = _mm256_mul_pd(values[n], _mm256_castsi256_pd(_mm256_slli_epi64::<52>(field)));
            }
            singles(values)
        }
    }
    #[inline(always)]
    unsafe fn bytes(a: __m256i, b: __m256i, select: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let lanes =
                _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
            let from = _mm256_or_si256(_mm256_and_si256(select, _mm256_set1_epi32(0x0303_0303)), lanes);
            let (a, b) = (_mm256_shuffle_epi8(a, from), _mm256_shuffle_epi8(b, from));
            // The third bit of each selector becomes its highest.
            _mm256_blendv_epi8(b, a, _mm256_slli_epi32::<5>(select))
        }
    }
    #[inline(always)]
    unsafe fn dot_halves(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_madd_epi16(a, b) }
    }
    #[inline(always)]
    unsafe fn fadd(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(sum(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fsub(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(difference(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fmul(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(product(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn add_any(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_add_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn mul_any(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_mul_ps(f(a), f(b))) }
    }
    #[inline(always)]
    unsafe fn fma_any(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { i(_mm256_fmadd_ps(f(a), f(b), f(c))) }
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
        unsafe { i(fused(f(a), f(b), f(c))) }
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
    unsafe fn from_unsigned(a: __m256i) -> __m256i {
        // SAFETY: as above. The sum of the high half, which is exact, and the low one rounds once.
        unsafe {
            let low = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)));
            let high = _mm256_cvtepi32_ps(_mm256_srli_epi32::<16>(a));
            i(_mm256_fmadd_ps(high, _mm256_set1_ps(65536.0), low))
        }
    }
    #[inline(always)]
    unsafe fn to_signed(a: __m256i) -> __m256i {
        // SAFETY: as above. What is out of range, and NaN, is converted to the least integer.
        unsafe {
            let a = f(a);
            let high = _mm256_cmp_ps::<_CMP_GE_OQ>(a, _mm256_set1_ps(2147483648.0));
            let number = _mm256_cmp_ps::<_CMP_ORD_Q>(a, a);
            let value = _mm256_xor_si256(_mm256_cvttps_epi32(a), i(high));
            _mm256_and_si256(value, i(number))
        }
    }
    #[inline(always)]
    unsafe fn to_unsigned(a: __m256i) -> __m256i {
        // SAFETY: as above. From 2^31 on the difference to that is converted.
        unsafe {
            let half = _mm256_set1_ps(2147483648.0);
            // NaN is zero: of a pair with one the second counts.
            let a = _mm256_max_ps(f(a), _mm256_setzero_ps());
            let above = _mm256_cmp_ps::<_CMP_GE_OQ>(a, half);
            let beyond = _mm256_cmp_ps::<_CMP_GE_OQ>(a, _mm256_set1_ps(4294967296.0));
            let rest = _mm256_sub_ps(a, _mm256_and_ps(above, half));
            let sign = _mm256_and_si256(i(above), _mm256_set1_epi32(i32::MIN));
            _mm256_or_si256(_mm256_xor_si256(_mm256_cvttps_epi32(rest), sign), i(beyond))
        }
    }
    #[inline(always)]
    unsafe fn rsq(a: __m256i) -> (__m256i, __m256i) {
        // SAFETY: as above.
        unsafe {
            let [low, high] = doubles(f(a));
            let one = _mm256_set1_pd(1.0);
            let (low, high) = (_mm256_div_pd(one, _mm256_sqrt_pd(low)), _mm256_div_pd(one, _mm256_sqrt_pd(high)));
            (singles([low, high]), near_ties([low, high], 8))
        }
    }
    #[inline(always)]
    unsafe fn exp2(a: __m256i) -> (__m256i, __m256i) {
        // SAFETY: as above.
        unsafe {
            let a = f(a);
            let whole = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            // Exact; at most a half.
            let rest = doubles(_mm256_sub_ps(a, whole));
            let power = _mm256_cvtps_epi32(whole);
            let powers = [_mm256_castsi256_si128(power), _mm256_extracti128_si256::<1>(power)];
            let mut values = rest;
            for n in 0..2 {
                let mut sum = _mm256_set1_pd(EXP2[11]);
                for k in (0..11).rev() {
                    sum = _mm256_fmadd_pd(sum, rest[n], _mm256_set1_pd(EXP2[k]));
                }
                let scale = _mm256_slli_epi64::<52>(_mm256_cvtepi32_epi64(powers[n]));
                values[n] = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(sum), scale));
            }
            (singles(values), near_ties(values, GUARD.into()))
        }
    }
    #[inline(always)]
    unsafe fn log2(a: __m256i) -> (__m256i, __m256i) {
        // SAFETY: as above.
        unsafe {
            // From the square root of a half to that of two, and the power of two beside it.
            let power = _mm256_srai_epi32::<23>(_mm256_sub_epi32(a, _mm256_set1_epi32(0x3f35_04f3)));
            let part = doubles(f(_mm256_sub_epi32(a, _mm256_slli_epi32::<23>(power))));
            let powers = [_mm256_castsi256_si128(power), _mm256_extracti128_si256::<1>(power)];
            let one = _mm256_set1_pd(1.0);
            let mut values = part;
            for n in 0..2 {
                let s = _mm256_div_pd(_mm256_sub_pd(part[n], one), _mm256_add_pd(part[n], one));
                let square = _mm256_mul_pd(s, s);
                let mut sum = _mm256_set1_pd(TWO_OVER_LN2 / 21.0);
                for k in (0..10).rev() {
                    sum = _mm256_fmadd_pd(sum, square, _mm256_set1_pd(TWO_OVER_LN2 / (2 * k + 1) as f64));
                }
                values[n] = _mm256_fmadd_pd(sum, s, _mm256_cvtepi32_pd(powers[n]));
            }
            (singles(values), near_ties(values, GUARD.into()))
        }
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
    unsafe fn gather(base: *const u8, places: __m256i) -> __m256i {
        // SAFETY: as above; each place has a word.
        unsafe { _mm256_i32gather_epi32::<1>(base.cast(), places) }
    }
    #[inline(always)]
    unsafe fn gather2(base: *const u8, places: __m256i) -> [__m256i; 2] {
        // SAFETY: as above; each place has two words.
        unsafe {
            let (low, high) = (_mm256_castsi256_si128(places), _mm256_extracti128_si256::<1>(places));
            part([_mm256_i32gather_epi64::<1>(base.cast(), low), _mm256_i32gather_epi64::<1>(base.cast(), high)])
        }
    }
    #[inline(always)]
    unsafe fn split2(from: *const u32) -> [__m256i; 2] {
        // SAFETY: as above; two vectors are there.
        unsafe { part([Self::load(from), Self::load(from.add(8))]) }
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

/// Eight singles as two vectors of doubles.
#[inline(always)]
unsafe fn doubles(a: __m256) -> [__m256d; 2] {
    // SAFETY: the caller's processor has AVX2.
    unsafe { [_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a))] }
}

/// The nearest singles.
#[inline(always)]
unsafe fn singles([low, high]: [__m256d; 2]) -> __m256i {
    // SAFETY: as above.
    unsafe { i(_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low))) }
}

/// All ones where a double is less than `by` units, a power of two, from the middle between two
/// singles.
#[inline(always)]
unsafe fn near_ties(values: [__m256d; 2], by: i64) -> __m256i {
    // SAFETY: as above.
    unsafe {
        // No closure: it would not have its caller's features.
        let mut near = [_mm256_setzero_ps(); 2];
        for n in 0..2 {
            let below = _mm256_and_si256(_mm256_castpd_si256(values[n]), _mm256_set1_epi64x(0x1fff_ffff));
            let from = _mm256_add_epi64(below, _mm256_set1_epi64x(by - (1 << 28)));
            let far = _mm256_and_si256(from, _mm256_set1_epi64x(!(2 * by - 1)));
            near[n] = _mm256_castsi256_ps(_mm256_cmpeq_epi64(far, _mm256_setzero_si256()));
        }
        _mm256_permute4x64_epi64::<0xd8>(i(_mm256_shuffle_ps::<0x88>(near[0], near[1])))
    }
}

/// The even words of both vectors, and the odd ones.
#[inline(always)]
unsafe fn part([low, high]: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: the caller's processor has AVX2.
    unsafe {
        let (low, high) = (f(low), f(high));
        // Each half of 128 bits has its own: the halves are put in order.
        let (even, odd) = (_mm256_shuffle_ps::<0x88>(low, high), _mm256_shuffle_ps::<0xdd>(low, high));
        [_mm256_permute4x64_epi64::<0xd8>(i(even)), _mm256_permute4x64_epi64::<0xd8>(i(odd))]
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
