// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The product of 16 by 16 matrices in double precision, on processors with AVX2.
//!
//! A row of D is four vectors of four columns, and two rows are computed at a time: A's elements
//! are broadcast, and B's vectors serve both. Words are joined and parted by the instructions that
//! stay within halves of a vector. So the columns of eight are in another order, which is the same
//! for B, C and D.

use super::simd::WIDTH;
use super::step::{Cx, Flow, Step};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows, columns, and products of a sum.
const SIDE: usize = 16;
const DEPTH: usize = 4;
/// Words of a row of registers.
const LANES: usize = 64;
/// Vectors of a row of a matrix.
const VECTORS: usize = 4;

/// Where a row of C or D begins: four rows of a matrix are in two of registers.
const fn place(row: usize) -> usize {
    2 * LANES * (row / 4) + SIDE * (row % 4)
}

/// Doubles of eight lanes, whose low words begin at `low`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn join(low: *const u32) -> [__m256d; 2] {
    // SAFETY: the caller's: eight words are here and in the row behind.
    unsafe {
        let (low, high) = (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(low.add(LANES).cast()));
        let (first, second) = (_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high));
        [_mm256_castsi256_pd(first), _mm256_castsi256_pd(second)]
    }
}

/// The reverse of [`join`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn part(to: *mut u32, [first, second]: [__m256d; 2]) {
    // SAFETY: the caller's: there is room for eight words here and in the row behind.
    unsafe {
        let (first, second) = (_mm256_castpd_ps(first), _mm256_castpd_ps(second));
        _mm256_storeu_ps(to.cast(), _mm256_shuffle_ps::<0x88>(first, second));
        _mm256_storeu_ps(to.add(LANES).cast(), _mm256_shuffle_ps::<0xdd>(first, second));
    }
}

/// Sixteen lanes from one on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn row(low: *const u32) -> [__m256d; VECTORS] {
    // SAFETY: the caller's.
    let ([a, b], [c, d]) = unsafe { (join(low), join(low.add(WIDTH))) };
    [a, b, c, d]
}

/// `v_mfma_f64_16x16x4f64`. What has a NaN in its result is the reference engine's.
///
/// # Safety
/// The step's rows exist, and the processor has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn square(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the caller's. All of `out` is written before it is read.
    unsafe {
        let (left, right) = (cx.row(step.src[0]), cx.row(step.src[1]));
        let mut a = [0; LANES];
        let mut b = [[_mm256_setzero_pd(); VECTORS]; DEPTH];
        for (lane, element) in a.iter_mut().enumerate() {
            *element = u64::from(*left.add(lane)) | u64::from(*left.add(LANES + lane)) << 32;
        }
        for (k, b) in b.iter_mut().enumerate() {
            *b = row(right.add(SIDE * k));
        }
        let mut out = MaybeUninit::<[[__m256d; VECTORS]; SIDE]>::uninit();
        let sums = out.as_mut_ptr().cast::<[__m256d; VECTORS]>();
        let mut bad = _mm256_setzero_pd();
        for first in (0..SIDE).step_by(2) {
            let mut sum = if step.scalar[0] != 0 {
                [[_mm256_set1_pd(f64::from_bits(step.imm as u64)); VECTORS]; 2]
            } else {
                let from = cx.row(step.src[2]).add(place(first));
                [row(from), row(from.add(SIDE))]
            };
            for k in 0..DEPTH {
                for (n, sum) in sum.iter_mut().enumerate() {
                    let element = _mm256_set1_pd(f64::from_bits(a[SIDE * k + first + n]));
                    for column in 0..VECTORS {
                        sum[column] = _mm256_fmadd_pd(element, b[k][column], sum[column]);
                    }
                }
            }
            for (n, sum) in sum.into_iter().enumerate() {
                for pair in [[sum[0], sum[1]], [sum[2], sum[3]]] {
                    bad = _mm256_or_pd(bad, _mm256_cmp_pd::<_CMP_UNORD_Q>(pair[0], pair[1]));
                }
                sums.add(first + n).write(sum);
            }
        }
        if _mm256_movemask_pd(bad) != 0 {
            return step.slow(cx);
        }
        for index in 0..SIDE {
            let to = cx.row_mut(step.dst).add(place(index));
            let sum = *sums.add(index);
            part(to, [sum[0], sum[1]]);
            part(to.add(WIDTH), [sum[2], sum[3]]);
        }
    }
    step.done(cx)
}
