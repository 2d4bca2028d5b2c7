// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the host does itself: the yardsticks. Times are the thread's on a processor, so that other
//! work of the machine, which meets long samples more than short ones, does not decide.

use std::hint::black_box;
use std::time::Duration;

/// The thread's time on a processor.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long this thread is at something.
pub fn timed(f: impl FnOnce()) -> Duration {
    let begin = now();
    f();
    now().saturating_sub(begin)
}

/// Chains of FMAs that run beside each other: enough for the latency.
const CHAINS: usize = 12;

/// Floating-point operations of [`fma`].
pub fn fma_flops(turns: u32) -> f64 {
    f64::from(turns) * CHAINS as f64 * 8.0 * 2.0
}

/// Fused multiplications and additions of eight numbers at once, as fast as one thread can; without
/// AVX2, of one after another.
pub fn fma(turns: u32) -> Duration {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        return timed(|| unsafe { wide(turns) });
    }
    timed(|| {
        let mut sums = black_box([0.5f32; 8 * CHAINS]);
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = *sum * 0.75 + 0.25;
            }
        }
        black_box(sums);
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn wide(turns: u32) {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    let (a, b) = (black_box(_mm256_set1_ps(0.75)), black_box(_mm256_set1_ps(0.25)));
    let mut sums = [_mm256_set1_ps(0.5); CHAINS];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
}

/// The product of square matrices as a beginner writes it.
pub fn matmul(a: &[f32], b: &[f32], c: &mut [f32], order: usize) {
    let (a, b) = (black_box(a), black_box(b));
    assert!(a.len() >= order * order && b.len() >= order * order && c.len() >= order * order);
    for row in 0..order {
        for column in 0..order {
            let mut sum = 0.0;
            for k in 0..order {
                // SAFETY: all are below the square of the order.
                sum += unsafe { a.get_unchecked(row * order + k) * b.get_unchecked(k * order + column) };
            }
            c[row * order + column] = sum;
        }
    }
    black_box(c);
}
