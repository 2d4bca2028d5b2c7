// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sums of 64 bits: `v_add_co_u32` and `v_addc_co_u32` one after the other, of which every address
//! that compilers compute has one. One handler does both, lane by lane, so the carry needs no way
//! through a mask of lanes.
//!
//! The second step stays what it is; the first one's handler goes on behind it.

use super::operation::vectors;
use super::simd::Simd;
use super::step::{Cx, Flow, Half, Run, Step};
use vkfd_isa::{Op, Operand};

/// What an operation does whose source `kind - 1` is in a scalar register.
pub(super) fn half(op: Op, avx2: bool, kind: u8) -> Option<Half> {
    match op {
        Op::VAddCoU32 => Some(Half { high: false, avx2, kind }),
        Op::VAddcCoU32 => Some(Half { high: true, avx2, kind }),
        _ => None,
    }
}

/// The handler for the first two of these steps, if they are a sum and each is all of its
/// instruction. `before`: the instruction of the step before them.
pub(super) fn handler(before: Option<u32>, steps: &[Step]) -> Option<Run> {
    let [low, high, behind, ..] = steps else { return None };
    let (first, second) = (low.half.filter(|half| !half.high)?, high.half.filter(|half| half.high)?);
    if before == Some(low.inst) || low.inst == high.inst || behind.inst == high.inst {
        return None;
    }
    // One mask for all of it, which is neither EXEC nor the second one's source.
    let mask = low.scalar[3];
    let same = high.scalar[2] == mask && high.scalar[3] == mask;
    let source = second.kind.checked_sub(1).and_then(|index| high.scalar.get(usize::from(index)));
    if !same || mask == Operand::EXEC || source.is_some_and(|&n| n == mask || n == mask + 1) {
        return None;
    }
    let run = match (first.kind, second.kind) {
        (0, 0) => run::<0, 0>,
        (0, 1) => run::<0, 1>,
        (0, 2) => run::<0, 2>,
        (1, 0) => run::<1, 0>,
        (1, 1) => run::<1, 1>,
        (1, 2) => run::<1, 2>,
        (2, 0) => run::<2, 0>,
        (2, 1) => run::<2, 1>,
        (2, 2) => run::<2, 2>,
        _ => return None,
    };
    Some(run(first.avx2))
}

/// The sources of a step.
struct Sources<S: Simd, const K: u8> {
    rows: [*const u32; 2],
    scalar: S::V,
}

impl<S: Simd, const K: u8> Sources<S, K> {
    #[inline(always)]
    unsafe fn of(step: &Step, cx: &Cx) -> Self {
        // SAFETY: the step's rows and registers exist.
        let scalar = unsafe { S::splat(if K == 0 { 0 } else { cx.scalar(step.scalar[usize::from(K) - 1]) }) };
        Sources { rows: [cx.row(step.src[0]), cx.row(step.src[1])], scalar }
    }

    #[inline(always)]
    unsafe fn load(&self, group: usize) -> [S::V; 2] {
        // SAFETY: the rows exist.
        unsafe {
            [
                if K == 1 { self.scalar } else { S::load(self.rows[0].add(8 * group)) },
                if K == 2 { self.scalar } else { S::load(self.rows[1].add(8 * group)) },
            ]
        }
    }
}

/// Stores eight lanes, of which `exec` says the active ones; `ALL`: all of them. No closure: the
/// compiler may leave one out of line, where the vectors' functions would be calls.
#[inline(always)]
unsafe fn put<S: Simd, const ALL: bool>(to: *mut u32, value: S::V, exec: u8) {
    // SAFETY: the caller's.
    unsafe {
        if ALL {
            S::store(to, value);
        } else {
            S::store(to, S::select(S::lanes(exec), S::load(to), value));
        }
    }
}

/// Both sums of all lanes; the carries out. `ALL`: of all lanes there are.
#[inline(always)]
unsafe fn lanes<S: Simd, const K: u8, const L: u8, const ALL: bool>(
    (low, high): (&Step, &Step),
    cx: &Cx,
    exec: u64,
) -> u64 {
    // SAFETY: the steps' rows and registers exist.
    unsafe {
        let (first, second) = (Sources::<S, K>::of(low, cx), Sources::<S, L>::of(high, cx));
        let (to, to_high) = (cx.row_mut(low.dst), cx.row_mut(high.dst));
        let (sign, ones) = (S::splat(1 << 31), S::splat(u32::MAX));
        let mut out = 0;
        for group in 0..vectors(exec) {
            let [a, b] = first.load(group);
            let sum = S::add(a, b);
            // All ones where it has wrapped.
            let carry = S::gt(S::xor(a, sign), S::xor(sum, sign));
            // Before the second sum's sources are loaded, of which it may be one.
            put::<S, ALL>(to.add(8 * group), sum, (exec >> (8 * group)) as u8);
            let [a, b] = second.load(group);
            // All ones are minus one.
            let sum = S::sub(S::add(a, b), carry);
            put::<S, ALL>(to_high.add(8 * group), sum, (exec >> (8 * group)) as u8);
            // The highest bit carries if it is set in both, or in one and not in the sum.
            let carry = S::or(S::and(a, b), S::and(S::or(a, b), S::xor(sum, ones)));
            out |= u64::from(S::mask(carry)) << (8 * group);
        }
        out
    }
}

#[inline(always)]
unsafe fn body<S: Simd, const K: u8, const L: u8>(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the block has a step after this one, and one after that; their rows and registers
    // exist.
    unsafe {
        let high = &*step.next;
        let exec = cx.exec();
        let out = if exec == cx.all {
            lanes::<S, K, L, true>((step, high), cx, exec)
        } else {
            lanes::<S, K, L, false>((step, high), cx, exec)
        };
        cx.set_mask(step.scalar[3], out & exec);
        high.go_on(cx)
    }
}

fn run<const K: u8, const L: u8>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<const K: u8, const L: u8>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, K, L>(step, cx) }
        }
        if avx2 {
            return wide::<K, L>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<const K: u8, const L: u8>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, K, L>(step, cx) }
    }
    narrow::<K, L>
}
