// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rows of FMAs one after another: one handler for all of them.
//!
//! Loads limit an FMA here: three vectors for each eight lanes, and the operands' places. In a
//! chain the places are one word for an instruction, [`Operands`], and EXEC and MODE are looked at
//! once. A chain's steps stay what they are by themselves: each begins the chain of those that are
//! left, so that execution can begin in the middle.

use super::simd::Simd;
use super::step::{Chained, Cx, Flow, Operands, Run, Step, ROW};
use vkfd_isa::Op;

/// The operands of a step, if it can be in a chain.
pub(super) fn operands(step: &Step) -> Option<Operands> {
    let chained = step.chained?;
    let row = |offset: usize| u16::try_from(offset / ROW).ok();
    let mut operands = [row(step.dst)?, 0, 0, 0];
    for index in 0..3 {
        operands[index + 1] = if chained.scalar == index as u8 + 1 {
            step.scalar[index].into()
        } else {
            row(step.src[index].in_registers()?)?
        };
    }
    Some(operands)
}

/// The handler of chains of an operation, if its source `kind - 1` is in a scalar register (0: none
/// is).
pub(super) fn handler(op: Op, avx2: bool, kind: u8) -> Option<Chained> {
    if !matches!(op, Op::VFmaF32 | Op::VFmacF32) {
        return None;
    }
    let run = match kind {
        0 => run::<0>(avx2),
        1 => run::<1>(avx2),
        2 => run::<2>(avx2),
        3 => run::<3>(avx2),
        _ => return None,
    };
    Some(Chained { run, scalar: kind })
}

/// All instructions of a chain.
#[inline(always)]
unsafe fn links<S: Simd, const K: u8, const VECTORS: usize>(chain: &[Operands], cx: &Cx) {
    let rows = cx.rows;
    for &[to, a, b, c] in chain {
        // SAFETY: the rows and scalar registers exist.
        unsafe {
            let row = |n: u16| rows.wrapping_add(usize::from(n) * ROW).cast::<u32>();
            let scalar = match K {
                1 => S::splat(cx.scalar(a as u8)),
                2 => S::splat(cx.scalar(b as u8)),
                3 => S::splat(cx.scalar(c as u8)),
                _ => S::splat(0),
            };
            let (a, b, c) = (row(a), row(b), row(c));
            let to = row(to);
            for i in 0..VECTORS {
                let a = if K == 1 { scalar } else { S::load(a.add(8 * i)) };
                let b = if K == 2 { scalar } else { S::load(b.add(8 * i)) };
                let c = if K == 3 { scalar } else { S::load(c.add(8 * i)) };
                S::store(to.add(8 * i), S::fma(a, b, c));
            }
        }
    }
}

#[inline(always)]
unsafe fn body<S: Simd, const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
    if cx.exec() != cx.all || !cx.plain {
        // SAFETY: the step's handler outside of a chain.
        return unsafe { (step.alone)(step, cx) };
    }
    // SAFETY: the block has the chain's operands and steps as long as it runs, and a step after
    // every one of them.
    unsafe {
        let chain = std::slice::from_raw_parts(step.chain, step.links as usize);
        if cx.all == u64::MAX {
            links::<S, K, 8>(chain, cx);
        } else {
            links::<S, K, 4>(chain, cx);
        }
        let next = &*step.behind;
        (next.run)(next, cx)
    }
}

fn run<const K: u8>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { body::<super::avx2::Avx2, K>(step, cx) }
        }
        if avx2 {
            return wide::<K>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<const K: u8>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { body::<super::simd::Portable, K>(step, cx) }
    }
    narrow::<K>
}
