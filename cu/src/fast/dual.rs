// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Dual instructions of gfx11 (VOPD), which waves of 32 have: two operations, both of which read
//! before either writes.
//!
//! They are the steps of one half and those of the other. The first half's destination is copied
//! before, if the second half reads it or may give up. In the latter case the copy is put back
//! ([`Undo`]), because the reference engine executes both halves. A step in front of two FMAs does
//! both in the ordinary case, and keeps the results in registers until both can be stored.

use super::builder::Builder;
use super::operation::LOW;
use super::prepare;
use super::simd::Simd;
use super::step::{Cx, Flow, Place, Run, Source, Step, Undo, ROW};
use super::vop;
use vkfd_isa::{Inst, Op, Operand};

/// The temporary row that has the first destination as it was.
const COPY: usize = 5;

/// Whether an operation is an FMA; some have the destination or a literal as the third source.
fn is_fma(op: Op) -> bool {
    matches!(op, Op::VFmacF32 | Op::VFmaakF32 | Op::VFmamkF32)
}

/// Whether an operation's handler never gives up.
fn is_sure(op: Op) -> bool {
    matches!(op, Op::VMovB32 | Op::VCndmaskB32 | Op::VAddU32 | Op::VLshlrevB32 | Op::VAndB32)
}

/// Does two FMAs, whose steps follow: behind the copy, if `imm` is 1. `X`, `Y`: the first source of
/// the first, of the second, is in a scalar register. Leaves what is not ordinary to them.
#[inline(always)]
unsafe fn both_fmas<S: Simd, const X: bool, const Y: bool>(step: &Step, cx: &mut Cx) -> Flow {
    if cx.exec() != LOW || !cx.plain {
        // SAFETY: the block has a step after this one.
        return unsafe { step.go_on(cx) };
    }
    // SAFETY: the block has the steps that were made with this one; their rows and registers exist.
    unsafe {
        let first = if step.imm == 0 { &*step.next } else { &*(*step.next).next };
        let second = &*first.next;
        let (x, y) = (first.src.map(|source| cx.row(source)), second.src.map(|source| cx.row(source)));
        let scalars = [
            S::splat(if X { cx.scalar(first.scalar[0]) } else { 0 }),
            S::splat(if Y { cx.scalar(second.scalar[0]) } else { 0 }),
        ];
        let mut values = [[S::splat(0); 4]; 2];
        for i in 0..4 {
            let a = if X { scalars[0] } else { S::load(x[0].add(8 * i)) };
            values[0][i] = S::fma(a, S::load(x[1].add(8 * i)), S::load(x[2].add(8 * i)));
            let a = if Y { scalars[1] } else { S::load(y[0].add(8 * i)) };
            values[1][i] = S::fma(a, S::load(y[1].add(8 * i)), S::load(y[2].add(8 * i)));
        }
        let to = [cx.row_mut(first.dst), cx.row_mut(second.dst)];
        for i in 0..4 {
            S::store(to[0].add(8 * i), values[0][i]);
            S::store(to[1].add(8 * i), values[1][i]);
        }
        let behind = &*second.next;
        (behind.run)(behind, cx)
    }
}

fn both<const X: bool, const Y: bool>(avx2: bool) -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide<const X: bool, const Y: bool>(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { both_fmas::<super::avx2::Avx2, X, Y>(step, cx) }
        }
        if avx2 {
            return wide::<X, Y>;
        }
    }
    let _ = avx2;
    unsafe fn narrow<const X: bool, const Y: bool>(step: &Step, cx: &mut Cx) -> Flow {
        // SAFETY: the caller's.
        unsafe { both_fmas::<super::simd::Portable, X, Y>(step, cx) }
    }
    narrow::<X, Y>
}

/// The step in front of two FMAs.
fn together(avx2: bool, first: &Inst, second: &Inst, place: Place) -> Step {
    let scalar = |inst: &Inst| matches!(inst.src[0], Operand::Scalar(_));
    place.step(match (scalar(first), scalar(second)) {
        (false, false) => both::<false, false>(avx2),
        (true, false) => both::<true, false>(avx2),
        (false, true) => both::<false, true>(avx2),
        (true, true) => both::<true, true>(avx2),
    })
}

/// Makes steps of both halves.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let pair = &inst.second()?;
    if builder.layout.lanes != 32 {
        return None;
    }
    let reads = |inst: &Inst, other: &Inst| inst.src.contains(&other.dst);
    // What is sure comes last, if it may.
    let (first, second) =
        if !is_sure(pair.op) && is_sure(inst.op) && !reads(inst, pair) { (pair, inst) } else { (inst, pair) };
    let row = builder.layout.row(first.dst, 1)? * ROW;
    let conflict = reads(second, first);
    let keeps = conflict || !is_sure(second.op);
    let (mut one, mut two) = (Vec::new(), Vec::new());
    vop::translate(builder, first, place, &mut one)?;
    vop::translate(builder, second, place, &mut two)?;
    let (copy, kept) = builder.constants.temporary(COPY);
    for step in &mut two {
        if keeps {
            step.undo = Some(Undo { row, copy });
        }
        for source in step.src.iter_mut().filter(|source| conflict && source.in_registers() == Some(row)) {
            *source = kept;
        }
    }
    for step in one.iter_mut().chain(&mut two) {
        (step.chained, step.half) = (None, None);
    }
    let fused = is_fma(first.op) && is_fma(second.op) && one.len() == 1 && two.len() == 1;
    let front = fused.then(|| together(builder.avx2, first, second, place));
    let keep = keeps.then(|| {
        let mut step = place.step(prepare::keep(builder.avx2));
        step.src[0] = Source::register(row);
        step.dst = copy;
        step
    });
    if conflict {
        steps.extend(keep);
        steps.extend(front);
    } else {
        // The copy is for the steps behind it alone.
        let imm = i64::from(keep.is_some());
        steps.extend(front.map(|step| Step { imm, ..step }));
        steps.extend(keep);
    }
    steps.extend(one);
    steps.extend(two);
    Some(())
}
