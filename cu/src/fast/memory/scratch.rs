// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SCRATCH loads and stores. Where all lanes have one private address, each dword of them is a
//! line. What is not within a dword where it should be is the reference engine's.

use super::transfer::{transfer, Find, Places};
use crate::fast::builder::Builder;
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Place, Source, Step, ROW};
use crate::reference::memory::{kind, private, scratch_base, Kind};
use vkfd_isa::{Inst, Operand};

/// No register: of the base in `scalar[0]`.
const NONE: u8 = 255;

/// Lanes have addresses of their own: a bit of `scalar[1]`.
const OWN: u8 = 1;

/// At a private address.
struct Private;

impl Find for Private {
    #[inline(always)]
    unsafe fn places<const N: usize>(
        step: &Step,
        cx: &mut Cx,
        exec: u64,
        write: bool,
        pointers: &mut [*mut u8; 256],
    ) -> Option<Places> {
        let (bytes, lanes) = (u32::from(step.scalar[3]), cx.wave.lanes);
        let memory = scratch_base(cx.wave);
        // SAFETY: the step's rows and registers exist.
        unsafe {
            let base = if step.scalar[0] == NONE { 0 } else { cx.scalar(step.scalar[0]) };
            let base = base.wrapping_add(step.imm as u32);
            let own = step.scalar[1] & OWN != 0;
            let row = cx.row(step.src[0]);
            let address = |lane: usize| base.wrapping_add(if own { row.add(lane).read() } else { 0 });
            let start = address(exec.trailing_zeros() as usize % 64);
            let mut differ = 0;
            if own {
                for lane in 0..64 {
                    let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
                    differ |= (address(lane) ^ start) & mask;
                }
            }
            if differ == 0 && start % 4 == 0 && bytes >= 4 && (!write || exec == cx.all) {
                let line = |word: usize| private(memory, lanes, 0, start.wrapping_add(4 * word as u32));
                return Some(Places::Lines(std::array::from_fn(line)));
            }
            let mut count = 0;
            let mut rest = exec;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let first = address(lane);
                if first % 4 + bytes.min(4) > 4 {
                    return None;
                }
                for word in 0..N as u32 {
                    let va = private(memory, lanes, lane, first.wrapping_add(4 * word));
                    if va % PAGE + u64::from(bytes.min(4)) > PAGE {
                        return None;
                    }
                    *pointers.get_mut(count)? = cx.cache.page(cx.world, va, write)?;
                    count += 1;
                }
            }
            Some(Places::Words(exec))
        }
    }
}

/// Makes a step of a load or store.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let (memory, layout) = (&inst.memory, builder.layout);
    if memory.lds || memory.tfe {
        return None;
    }
    let kind = kind(inst.op)?;
    let (run, bytes, how) = transfer::<Private>(kind)?;
    let words = usize::from(bytes.div_ceil(4));
    let mut step = place.step(run);
    let has_base = !matches!(memory.base, Operand::None | Operand::Scalar(Operand::NULL));
    step.scalar[0] = if has_base { layout.scalar(memory.base, 1)? } else { NONE };
    step.imm = memory.offset.into();
    if memory.vaddr != Operand::None {
        step.scalar[1] = OWN;
        step.src[0] = Source::register(layout.row(memory.vaddr, 1)? * ROW);
    }
    // Below it is how a buffer's address is formed.
    step.scalar[2] = how << 2;
    step.scalar[3] = bytes;
    match kind {
        Kind::Load { .. } => step.dst = layout.row(inst.dst, words)? * ROW,
        _ => step.src[2] = Source::register(layout.row(memory.data, words)? * ROW),
    }
    steps.push(step);
    Some(())
}
