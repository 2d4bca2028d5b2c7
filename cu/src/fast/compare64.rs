// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Comparisons of integers of 64 bits, by their halves: vectors of the low words and of the high
//! ones.

use super::simd::Simd;
use super::step::{Cx, Flow, Run, Step, CONSTANT, IN_ROWS, TO_EXEC};
use vkfd_isa::{Op, Operand};

/// A comparison.
trait Order: 'static {
    const SIGNED: bool;
    /// Compares whether the first is less than the second, rather than whether they are equal.
    const LESS: bool;
    /// The second is compared with the first.
    const TURNED: bool;
    /// The answer is the opposite.
    const NOT: bool;
    /// There is nothing to compare.
    const NEVER: bool;
}

/// A source: rows, or the same in all lanes.
#[derive(Clone, Copy)]
struct Pair<S: Simd> {
    rows: *const u32,
    same: [S::V; 2],
}

impl<S: Simd> Pair<S> {
    #[inline(always)]
    unsafe fn of(step: &Step, cx: &Cx, index: usize) -> Pair<S> {
        // SAFETY: the step's rows and registers exist.
        unsafe {
            let (rows, value) = match step.scalar[index] {
                IN_ROWS => (cx.row(step.src[index]), 0),
                CONSTANT => (std::ptr::null(), cx.row(step.src[index]).cast::<u64>().read_unaligned()),
                n => (std::ptr::null(), cx.pair(n)),
            };
            Pair { rows, same: [S::splat(value as u32), S::splat((value >> 32) as u32)] }
        }
    }

    /// The low words and the high ones of a group of lanes.
    #[inline(always)]
    unsafe fn words(self, group: usize) -> [S::V; 2] {
        if self.rows.is_null() {
            return self.same;
        }
        // SAFETY: there are two rows.
        unsafe { [S::load(self.rows.add(8 * group)), S::load(self.rows.add(64 + 8 * group))] }
    }
}

/// All ones where `a < b`.
#[inline(always)]
unsafe fn below<S: Simd>(a: S::V, b: S::V, signed: bool) -> S::V {
    // SAFETY: the caller's.
    unsafe {
        let turn = S::splat(if signed { 0 } else { 1 << 31 });
        S::gt(S::xor(b, turn), S::xor(a, turn))
    }
}

#[inline(always)]
unsafe fn body<S: Simd, O: Order>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let sources = [Pair::<S>::of(step, cx, 0), Pair::<S>::of(step, cx, 1)];
        let [first, second] = if O::TURNED { [sources[1], sources[0]] } else { sources };
        let mut mask = 0;
        for group in 0..8 {
            let ([a, a_high], [b, b_high]) = (first.words(group), second.words(group));
            let same = S::eq(a_high, b_high);
            let answer = if O::LESS {
                S::or(below::<S>(a_high, b_high, O::SIGNED), S::and(same, below::<S>(a, b, false)))
            } else {
                S::and(same, S::eq(a, b))
            };
            mask |= u64::from(S::mask(answer)) << (8 * group);
        }
        if O::NEVER {
            mask = 0;
        }
        if O::NOT {
            mask = !mask;
        }
        mask &= cx.exec();
        cx.set_mask(step.scalar[3], mask);
        if step.scalar[2] & TO_EXEC != 0 {
            cx.set_mask(Operand::EXEC, mask);
        }
        step.go_on(cx)
    }
}

fn run<O: Order>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<O: Order>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, O>(step, cx) }
        }
        if avx2 {
            return wide::<O>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<O: Order>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, O>(step, cx) }
    }
    narrow::<O>
}

macro_rules! orders {
    ($($op:ident $x:ident $signed:literal $less:literal $turned:literal $not:literal $never:literal;)*) => {
        $(
            struct $op;
            impl Order for $op {
                const SIGNED: bool = $signed;
                const LESS: bool = $less;
                const TURNED: bool = $turned;
                const NOT: bool = $not;
                const NEVER: bool = $never;
            }
        )*

        /// The handler of a comparison, and whether it writes EXEC.
        pub(super) fn handler(op: Op, avx2: bool) -> Option<(Run, bool)> {
            Some(match op {
                $(Op::$op => (run::<$op>(avx2), false),)*
                $(Op::$x => (run::<$op>(avx2), true),)*
                _ => return None,
            })
        }
    };
}

orders! {
    VCmpFU64 VCmpxFU64 false false false false true;
    VCmpTU64 VCmpxTU64 false false false true true;
    VCmpFI64 VCmpxFI64 false false false false true;
    VCmpTI64 VCmpxTI64 false false false true true;
    VCmpEqU64 VCmpxEqU64 false false false false false;
    VCmpNeU64 VCmpxNeU64 false false false true false;
    VCmpLtU64 VCmpxLtU64 false true false false false;
    VCmpLeU64 VCmpxLeU64 false true true true false;
    VCmpGtU64 VCmpxGtU64 false true true false false;
    VCmpGeU64 VCmpxGeU64 false true false true false;
    VCmpEqI64 VCmpxEqI64 true false false false false;
    VCmpNeI64 VCmpxNeI64 true false false true false;
    VCmpLtI64 VCmpxLtI64 true true false false false;
    VCmpLeI64 VCmpxLeI64 true true true true false;
    VCmpGtI64 VCmpxGtI64 true true true false false;
    VCmpGeI64 VCmpxGeI64 true true false true false;
}
