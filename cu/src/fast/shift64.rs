// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shifts of 64 bits, by vectors of the low words and of the high ones. Every address that a kernel
//! computes from a work-item's id has one.

use super::operation::vectors;
use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step, CONSTANT, IN_ROWS};
use vkfd_isa::Op;

/// A shift by up to 63.
trait Shift: 'static {
    unsafe fn f<S: Simd>(low: S::V, high: S::V, by: S::V) -> [S::V; 2];
}

struct Left;
struct Right;
struct Signed;

impl Shift for Left {
    #[inline(always)]
    unsafe fn f<S: Simd>(low: S::V, high: S::V, by: S::V) -> [S::V; 2] {
        // SAFETY: the caller's, as in all of these. What is shifted by 32 or more is zero.
        unsafe {
            let word = S::splat(32);
            let across = S::or(S::shr_out(low, S::sub(word, by)), S::shl_out(low, S::sub(by, word)));
            [S::shl_out(low, by), S::or(S::shl_out(high, by), across)]
        }
    }
}

impl Shift for Right {
    #[inline(always)]
    unsafe fn f<S: Simd>(low: S::V, high: S::V, by: S::V) -> [S::V; 2] {
        // SAFETY: as above.
        unsafe {
            let word = S::splat(32);
            let across = S::or(S::shl_out(high, S::sub(word, by)), S::shr_out(high, S::sub(by, word)));
            [S::or(S::shr_out(low, by), across), S::shr_out(high, by)]
        }
    }
}

impl Shift for Signed {
    #[inline(always)]
    unsafe fn f<S: Simd>(low: S::V, high: S::V, by: S::V) -> [S::V; 2] {
        // SAFETY: as above.
        unsafe {
            let word = S::splat(32);
            let far = S::gt(by, S::splat(31));
            let near = S::or(S::shr_out(low, by), S::shl_out(high, S::sub(word, by)));
            let sign = S::sar(high, S::splat(31));
            [S::select(far, near, S::sar(high, by)), S::select(far, S::sar(high, by), sign)]
        }
    }
}

/// A source: the rows of its words, or eight equal words for each.
struct Words {
    from: [*const u32; 2],
    stride: usize,
}

#[inline(always)]
unsafe fn body<S: Simd, O: Shift>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let mut same = [[0u32; 8]; 4];
        let mut sources = [const { Words { from: [std::ptr::null(); 2], stride: 8 } }; 2];
        for n in 0..2 {
            // The second word of the shift's amount is not read.
            let value = match step.scalar[n] {
                IN_ROWS => {
                    let row = cx.row(step.src[n]);
                    sources[n].from = [row, row.wrapping_add(64)];
                    continue;
                }
                CONSTANT => cx.row(step.src[n]).cast::<u64>().read_unaligned(),
                register if n == 0 => cx.scalar(register).into(),
                register => cx.pair(register),
            };
            (same[2 * n], same[2 * n + 1]) = ([value as u32; 8], [(value >> 32) as u32; 8]);
            sources[n] = Words { from: [same[2 * n].as_ptr(), same[2 * n + 1].as_ptr()], stride: 0 };
        }
        let [by, value] = sources;
        let to = cx.row_mut(step.dst);
        for group in 0..vectors(exec) {
            let count = S::and(S::load(by.from[0].add(by.stride * group)), S::splat(63));
            let low = S::load(value.from[0].add(value.stride * group));
            let high = S::load(value.from[1].add(value.stride * group));
            let result = O::f::<S>(low, high, count);
            for word in 0..2 {
                let to = to.add(64 * word + 8 * group);
                if exec == cx.all {
                    S::store(to, result[word]);
                } else {
                    let mask = S::lanes((exec >> (8 * group)) as u8);
                    S::store(to, S::select(mask, S::load(to), result[word]));
                }
            }
        }
        step.go_on(cx)
    }
}

fn run<O: Shift>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<O: Shift>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, O>(step, cx) }
        }
        if avx2 {
            return wide::<O>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<O: Shift>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, O>(step, cx) }
    }
    narrow::<O>
}

/// The handler of a shift.
pub(super) fn handler(op: Op, avx2: bool) -> Option<Run> {
    Some(match op {
        Op::VLshlrevB64 => run::<Left>(avx2),
        Op::VLshrrevB64 => run::<Right>(avx2),
        Op::VAshrrevI64 => run::<Signed>(avx2),
        _ => return None,
    })
}
