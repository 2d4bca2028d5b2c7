// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MUBUF loads and stores without formats. Lanes of a buffer that is not swizzled have offsets from
//! one base, as GLOBAL's have, but for those that are out of range.

use super::addresses::Addresses;
use super::addressing::{address, Addressing, Described};
use super::transfer::{self, transfer};
use super::{are_apart, both, global, Words};
use crate::fast::builder::Builder;
use crate::fast::operation::vectors;
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::{kind, Extend, Kind};
use vkfd_isa::{Format, Inst};

/// What lanes reach: offsets from a base.
struct Reached {
    base: u64,
    /// Lanes that are in range.
    inside: u64,
}

impl Reached {
    /// Of active lanes with `words` each, if a base and offsets of 32 bits say it.
    #[inline(always)]
    unsafe fn of<S: Simd>(step: &Step, cx: &Cx, exec: u64, words: u32, offsets: &mut Words) -> Option<Reached> {
        // SAFETY: the step's rows and registers exist.
        let addressing = unsafe { Addressing::of(step, cx) };
        if addressing.buffer.element != 0 {
            return None;
        }
        let mut reached = Reached { base: addressing.base(), inside: 0 };
        // SAFETY: as above.
        if let Some(inside) = unsafe { addressing.plain::<S>((cx.all, exec, step.avx512), words, offsets) } {
            return Some(Reached { inside, ..reached });
        }
        let (mut rest, mut furthest) = (exec, 0);
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if !addressing.contains(lane, words, 4)? {
                continue;
            }
            let offset = addressing.linear(lane);
            furthest = offset.max(furthest);
            offsets[lane] = offset as u32;
            reached.inside |= 1 << lane;
        }
        (furthest <= u64::from(u32::MAX - 16)).then_some(reached)
    }
}

/// Loads `N` registers of each lane.
#[inline(always)]
unsafe fn load<S: Simd, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    // SAFETY: the caller's; the offsets live until the handler returns.
    unsafe {
        let mut offsets = [0; 64];
        let Some(Reached { base, inside }) = Reached::of::<S>(step, cx, exec, N as u32, &mut offsets) else {
            return transfer::load::<Described, N>(step, cx);
        };
        if inside != 0 {
            let addresses = Addresses::by::<S>(step, &offsets, base, (cx.all, inside), 4 * N as u32);
            let flow = global::load_from::<S, N, false>(step, cx, addresses, inside);
            if flow == Flow::Slow {
                return flow;
            }
        }
        let outside = exec & !inside;
        if outside != 0 {
            for row in 0..N {
                let to = cx.row_mut(step.dst).add(64 * row);
                for group in 0..vectors(cx.all) {
                    let (place, mask) = (to.add(8 * group), S::lanes((outside >> (8 * group)) as u8));
                    S::store(place, S::select(mask, S::load(place), S::splat(0)));
                }
            }
        }
    }
    step.done(cx)
}

/// Stores `N` registers of each lane.
#[inline(always)]
unsafe fn store<S: Simd, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    // SAFETY: the caller's; the offsets live until the handler returns.
    unsafe {
        let mut offsets = [0; 64];
        let Some(Reached { base, inside }) = Reached::of::<S>(step, cx, exec, N as u32, &mut offsets) else {
            return transfer::store::<Described, N>(step, cx);
        };
        if inside == 0 {
            return step.done(cx);
        }
        let addresses = Addresses::by::<S>(step, &offsets, base, (cx.all, inside), 4 * N as u32);
        global::store_to::<S, N, false>(step, cx, addresses, (inside, step.src[2]))
    }
}

/// The handler of a load or store of dwords.
fn handler(kind: Kind, avx2: bool) -> Option<Run> {
    Some(match kind {
        Kind::Load { bytes: 4, extend: Extend::Zero } => both!(avx2, load::<1>),
        Kind::Load { bytes: 8, .. } => both!(avx2, load::<2>),
        Kind::Load { bytes: 12, .. } => both!(avx2, load::<3>),
        Kind::Load { bytes: 16, .. } => both!(avx2, load::<4>),
        Kind::Store { bytes: 4, high: false } => both!(avx2, store::<1>),
        Kind::Store { bytes: 8, .. } => both!(avx2, store::<2>),
        Kind::Store { bytes: 12, .. } => both!(avx2, store::<3>),
        Kind::Store { bytes: 16, .. } => both!(avx2, store::<4>),
        _ => return None,
    })
}

/// Makes a step of a load or store.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let memory = &inst.memory;
    let layout = builder.layout;
    if inst.format != Format::Mubuf || memory.lds || memory.tfe {
        return None;
    }
    let kind = kind(inst.op)?;
    let (mut run, bytes, how) = transfer::<Described>(kind)?;
    // Elements that lie one after the other are as lanes in memory.
    run = handler(kind, builder.avx2).unwrap_or(run);
    let words = usize::from(bytes.div_ceil(4));
    let mut step = place.step(run);
    step.avx512 = builder.avx512;
    address(builder, inst, &mut step)?;
    step.scalar[2] |= how << 2;
    step.scalar[3] = bytes;
    match kind {
        Kind::Load { .. } => {
            let first = layout.row(inst.dst, words)?;
            let count = usize::from(memory.idxen) + usize::from(memory.offen);
            step.dst = first * ROW;
            step.apart = count == 0 || are_apart((first, words), (layout.row(memory.vaddr, count)?, count));
        }
        _ => step.src[2] = Source::register(layout.row(memory.data, words)? * ROW),
    }
    steps.push(step);
    Some(())
}
