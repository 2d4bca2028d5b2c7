// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Atomic operations on memory by GLOBAL, FLAT and MUBUF, and on LDS.
//!
//! All lanes are translated first; then each has its turn, by the reference engine's functions of
//! words. Should memory vanish between two lanes, those that are done are noted in the wave, and
//! the reference engine goes on with the others.

use super::addresses::NO_BASE;
use super::addressing::{address, Addressing};
use super::aperture::is_in_one;
use crate::fast::builder::Builder;
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::{
    atomic_changes as changes, atomic_memory, combine32, combine64, ds_atomic, kind, AtomicOp, Kind,
};
use vkfd_isa::{Format, Inst, Op, Operand};

/// All operations, to be named by a number.
const OPERATIONS: [AtomicOp; 24] = [
    AtomicOp::Swap,
    AtomicOp::Cmpswap,
    AtomicOp::Add,
    AtomicOp::Sub,
    AtomicOp::Rsub,
    AtomicOp::Csub,
    AtomicOp::Smin,
    AtomicOp::Umin,
    AtomicOp::Smax,
    AtomicOp::Umax,
    AtomicOp::And,
    AtomicOp::Or,
    AtomicOp::Xor,
    AtomicOp::Inc,
    AtomicOp::Dec,
    AtomicOp::Fadd,
    AtomicOp::Fmin,
    AtomicOp::Fmax,
    AtomicOp::Fcmpswap,
    AtomicOp::PkAddF16,
    AtomicOp::PkAddBf16,
    AtomicOp::Mskor,
    AtomicOp::Wrap,
    AtomicOp::Condxchg,
];

/// No result.
const NOWHERE: usize = usize::MAX;

/// A lane's value in one row, or two.
#[inline(always)]
unsafe fn value<const WIDE: bool>(cx: &Cx, source: Source, lane: usize) -> u64 {
    // SAFETY: the step's rows exist.
    unsafe {
        let row = cx.row(source).add(lane);
        if WIDE {
            u64::from(row.read()) | u64::from(row.add(64).read()) << 32
        } else {
            row.read().into()
        }
    }
}

/// Gives a lane the old value.
#[inline(always)]
unsafe fn give<const WIDE: bool>(step: &Step, cx: &Cx, lane: usize, old: u64) {
    if step.dst == NOWHERE {
        return;
    }
    // SAFETY: the step's rows exist.
    unsafe {
        let row = cx.row_mut(step.dst).add(lane);
        row.write(old as u32);
        if WIDE {
            row.add(64).write((old >> 32) as u32);
        }
    }
}

/// In memory. `src[0]`: addresses, `src[1]` and `src[2]`: operands; `scalar[0]`: a base;
/// `scalar[1]`: the operation; `scalar[2]`: by FLAT.
unsafe fn global<const WIDE: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let (bytes, op) = (if WIDE { 8 } else { 4 }, OPERATIONS[usize::from(step.scalar[1]) % OPERATIONS.len()]);
    if op.is_float() && cx.world.strict() {
        return step.slow(cx);
    }
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let with_base = step.scalar[0] != NO_BASE;
        let base = if with_base { cx.address(step.scalar[0]) } else { 0 }.wrapping_add(step.imm as u64);
        let mut places = [(std::ptr::null_mut::<u8>(), 0u64); 64];
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let va =
                if with_base { value::<false>(cx, step.src[0], lane) } else { value::<true>(cx, step.src[0], lane) };
            // The aperture is the address register's, whatever the offset.
            let aside = step.scalar[2] != 0 && is_in_one(cx, va);
            let va = base.wrapping_add(va);
            if va % bytes != 0 || aside {
                return step.slow(cx);
            }
            let Some(page) = cx.cache.atomic_page(cx.world, va & !(PAGE - 1)) else { return step.slow(cx) };
            places[lane] = (page.wrapping_add((va % PAGE) as usize), va);
        }
        apply::<WIDE>(step, cx, op, &places, |cx, lane| {
            let b = if op.has_second() { value::<WIDE>(cx, step.src[2], lane) } else { 0 };
            (value::<WIDE>(cx, step.src[1], lane), b)
        })
    }
}

/// Each active lane has its turn at its place, with the operands that `operands` says.
#[inline(always)]
unsafe fn apply<const WIDE: bool>(
    step: &Step,
    cx: &mut Cx,
    op: AtomicOp,
    places: &[(*mut u8, u64); 64],
    operands: impl Fn(&Cx, usize) -> (u64, u64),
) -> Flow {
    let exec = cx.exec();
    let mut rest = exec;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        let (ptr, va) = places[lane];
        let (a, b) = operands(cx, lane);
        // SAFETY: aligned bytes of a span while the gate is open; the step's rows exist.
        unsafe {
            match atomic_memory(cx.wave.target, (op, WIDE), ptr, va, [a, b]) {
                Ok(old) => {
                    cx.cache.wrote |= changes(op, WIDE, old, [a, b]);
                    give::<WIDE>(step, cx, lane, old);
                }
                Err(_) => {
                    cx.wave.done = exec & !rest;
                    return step.slow(cx);
                }
            }
        }
        rest &= rest - 1;
    }
    cx.cache.moved += u64::from(exec.count_ones()) * if WIDE { 8 } else { 4 };
    step.done(cx)
}

/// In a buffer: its address as for loads and stores; `src[2]`: operands, one behind the other;
/// `scalar[3]`: the operation.
unsafe fn buffer<const WIDE: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let (bytes, op) = (if WIDE { 8 } else { 4 }, OPERATIONS[usize::from(step.scalar[3]) % OPERATIONS.len()]);
    if op.is_float() && cx.world.strict() {
        return step.slow(cx);
    }
    // SAFETY: the step's rows and registers exist.
    unsafe {
        let addressing = Addressing::of(step, cx);
        // Two words need not lie together in swizzled memory.
        if WIDE && addressing.buffer.element != 0 {
            return step.slow(cx);
        }
        let mut places = [(std::ptr::null_mut::<u8>(), 0u64); 64];
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let inside = addressing.contains(lane, 1, bytes as u32) == Some(true);
            let Some(va) = addressing.word(lane, 0, bytes as u32).filter(|_| inside) else { return step.slow(cx) };
            if va % bytes != 0 {
                return step.slow(cx);
            }
            let Some(page) = cx.cache.atomic_page(cx.world, va & !(PAGE - 1)) else { return step.slow(cx) };
            places[lane] = (page.wrapping_add((va % PAGE) as usize), va);
        }
        let size = if WIDE { 2 } else { 1 };
        apply::<WIDE>(step, cx, op, &places, |cx, lane| {
            let b = if op.has_second() { value::<WIDE>(cx, step.src[2], lane + 64 * size) } else { 0 };
            (value::<WIDE>(cx, step.src[2], lane), b)
        })
    }
}

/// Makes a step of an atomic operation on a buffer.
pub(super) fn in_buffer(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (memory, layout) = (&inst.memory, builder.layout);
    let Kind::Atomic { op, wide } = kind(inst.op)? else { return None };
    if memory.lds || memory.tfe {
        return None;
    }
    let mut step = place.step(if wide { buffer::<true> } else { buffer::<false> });
    address(builder, inst, &mut step)?;
    let size = if wide { 2 } else { 1 };
    let data = layout.row(memory.data, if op.has_second() { 2 * size } else { size })?;
    step.src[2] = Source::register(data * ROW);
    step.scalar[3] = OPERATIONS.iter().position(|other| *other == op)? as u8;
    step.dst = if memory.glc { data * ROW } else { NOWHERE };
    steps.push(step);
    Some(())
}

/// In LDS.
unsafe fn local<const WIDE: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let (bytes, op) = (if WIDE { 8 } else { 4 }, OPERATIONS[usize::from(step.scalar[1]) % OPERATIONS.len()]);
    let denormals = cx.wave.mode.denorm32_in() && cx.wave.mode.denorm32_out();
    // SAFETY: the step's rows exist; what is reached of LDS is within it, and nothing refers to it.
    unsafe {
        let mut places = [0usize; 64];
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let at = (value::<false>(cx, step.src[0], lane) as u32).wrapping_add(step.imm as u32) as usize;
            if at % bytes != 0 || at + bytes > cx.group.lds.len() {
                return step.slow(cx);
            }
            places[lane] = at;
        }
        let lds = cx.group.lds.as_mut_ptr();
        let mut rest = exec;
        // Histograms: no match for each lane.
        if !WIDE && op == AtomicOp::Add {
            let operands = cx.row(step.src[1]);
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let at = lds.add(places[lane]).cast::<u32>();
                let old = at.read_unaligned();
                at.write_unaligned(old.wrapping_add(operands.add(lane).read()));
                give::<false>(step, cx, lane, old.into());
            }
            return step.done(cx);
        }
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let a = value::<WIDE>(cx, step.src[1], lane);
            let b = if op.has_second() { value::<WIDE>(cx, step.src[2], lane) } else { 0 };
            let at = lds.add(places[lane]);
            let old = if WIDE {
                let old = at.cast::<u64>().read_unaligned();
                at.cast::<u64>().write_unaligned(combine64(op, old, a, b));
                old
            } else {
                let old = at.cast::<u32>().read_unaligned();
                at.cast::<u32>().write_unaligned(combine32(op, old, a as u32, b as u32, denormals));
                old.into()
            };
            give::<WIDE>(step, cx, lane, old);
        }
    }
    step.done(cx)
}

/// Makes a step of an atomic operation.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let memory = &inst.memory;
    let lds = inst.format == Format::Ds;
    let (op, wide) = if lds {
        ds_atomic(inst.op)?
    } else {
        match kind(inst.op)? {
            Kind::Atomic { op, wide } => (op, wide),
            _ => return None,
        }
    };
    if memory.gds || memory.lds || memory.tfe {
        return None;
    }
    let run: Run = match (lds, wide) {
        (false, false) => global::<false>,
        (false, true) => global::<true>,
        (true, false) => local::<false>,
        (true, true) => local::<true>,
    };
    let size = if wide { 2 } else { 1 };
    let mut step = place.step(run);
    step.scalar[1] = OPERATIONS.iter().position(|other| *other == op)? as u8;
    step.dst = NOWHERE;
    if lds {
        step.imm = i64::from(memory.offset);
        step.src[0] = Source::register(builder.layout.row(memory.vaddr, 1)? * ROW);
        let mut operands = [builder.layout.row(memory.data, size)?; 2];
        if op.has_second() {
            operands[1] = builder.layout.row(memory.data2, size)?;
        }
        // cmpst has what it compares with first.
        let swapped = matches!(
            inst.op,
            Op::DsCmpstB32
                | Op::DsCmpstB64
                | Op::DsCmpstF32
                | Op::DsCmpstF64
                | Op::DsCmpstRtnB32
                | Op::DsCmpstRtnB64
                | Op::DsCmpstRtnF32
                | Op::DsCmpstRtnF64
        );
        if swapped {
            operands.swap(0, 1);
        }
        (step.src[1], step.src[2]) = (Source::register(operands[0] * ROW), Source::register(operands[1] * ROW));
        if inst.dst != Operand::None {
            step.dst = builder.layout.row(inst.dst, size)? * ROW;
        }
    } else {
        let flat = inst.format == Format::Flat;
        step.imm = memory.offset.into();
        let has_base = !matches!(memory.base, Operand::None | Operand::Scalar(Operand::NULL));
        step.scalar[0] = if has_base && !flat { builder.layout.scalar(memory.base, 2)? } else { NO_BASE };
        step.scalar[2] = flat.into();
        let address = builder.layout.row(memory.vaddr, if step.scalar[0] == NO_BASE { 2 } else { 1 })?;
        step.src[0] = Source::register(address * ROW);
        let a = builder.layout.row(memory.data, if op.has_second() { 2 * size } else { size })?;
        (step.src[1], step.src[2]) = (Source::register(a * ROW), Source::register((a + size) * ROW));
        if memory.glc {
            let dst = if inst.dst == Operand::None { memory.data } else { inst.dst };
            step.dst = builder.layout.row(dst, size)? * ROW;
        }
    }
    steps.push(step);
    Some(())
}
