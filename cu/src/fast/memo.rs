// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Functions of one half: the reference engine's results, each computed when it is first asked for.
//!
//! A half has 65,536 values, so a table of results is small, and the rarer functions need no
//! arithmetic of their own. Entries are words that any thread may fill: all of them would write the
//! same.

use super::operation::{Check, Unary};
use super::ops::Shape;
use super::simd::Simd;
use super::vector::{unary_run, Handler};
use crate::reference;
use std::sync::atomic::{AtomicU32, Ordering};
use vkfd_isa::{Op, Target};

/// The functions with halves as results; of sine and cosine, gfx9's and the later ones.
// NEW TARGET: functions of halves that differ
const NUMBERS: [(Op, Target); 9] = [
    (Op::VRsqF16, Target::Gfx900),
    (Op::VExpF16, Target::Gfx900),
    (Op::VLogF16, Target::Gfx900),
    (Op::VFractF16, Target::Gfx900),
    (Op::VFrexpMantF16, Target::Gfx900),
    (Op::VSinF16, Target::Gfx900),
    (Op::VCosF16, Target::Gfx900),
    (Op::VSinF16, Target::Gfx1030),
    (Op::VCosF16, Target::Gfx1030),
];

/// A function whose result is an integer.
const INTEGER: Op = Op::VFrexpExpI16F16;

type Table = [AtomicU32; 0x1_0000];

static RESULTS: [Table; NUMBERS.len() + 1] = [const { [const { AtomicU32::new(0) }; 0x1_0000] }; NUMBERS.len() + 1];

/// Set in entries that are filled.
const KNOWN: u32 = 1 << 16;

#[inline(always)]
fn result(table: usize, half: u32) -> u32 {
    let entry = &RESULTS[table][half as usize & 0xffff];
    let known = entry.load(Ordering::Relaxed);
    if known == 0 {
        fill(table, half, entry)
    } else {
        known & 0xffff
    }
}

#[cold]
fn fill(table: usize, half: u32, entry: &AtomicU32) -> u32 {
    let (op, target) = NUMBERS.get(table).copied().unwrap_or((INTEGER, Target::Gfx900));
    let result = reference::of_half(op, target, half & 0xffff);
    entry.store(result | KNOWN, Ordering::Relaxed);
    result
}

struct Number<const TABLE: usize>;

impl<const TABLE: usize> Unary for Number<TABLE> {
    const CHECK: Check = Check::Half;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::map(a, |a| result(TABLE, a)) }
    }
}

struct Integer;

impl Unary for Integer {
    const CHECK: Check = Check::HalfOperands;
    #[inline(always)]
    unsafe fn f<S: Simd>(a: S::V) -> S::V {
        // SAFETY: the caller's.
        unsafe { S::map(a, |a| result(NUMBERS.len(), a)) }
    }
}

/// The shape and handler of a function whose source is in a scalar register (`kind` 1) or not (0).
pub(super) fn handler(op: Op, target: Target, avx2: bool, kind: u8) -> Option<(Shape, Handler)> {
    let later = !target.is_gfx9();
    let run = match (op, later) {
        (INTEGER, _) => unary_run::<Integer>(avx2, kind),
        (Op::VRsqF16, _) => unary_run::<Number<0>>(avx2, kind),
        (Op::VExpF16, _) => unary_run::<Number<1>>(avx2, kind),
        (Op::VLogF16, _) => unary_run::<Number<2>>(avx2, kind),
        (Op::VFractF16, _) => unary_run::<Number<3>>(avx2, kind),
        (Op::VFrexpMantF16, _) => unary_run::<Number<4>>(avx2, kind),
        (Op::VSinF16, false) => unary_run::<Number<5>>(avx2, kind),
        (Op::VCosF16, false) => unary_run::<Number<6>>(avx2, kind),
        (Op::VSinF16, true) => unary_run::<Number<7>>(avx2, kind),
        (Op::VCosF16, true) => unary_run::<Number<8>>(avx2, kind),
        _ => None,
    };
    Some((Shape::Unary, run?))
}
