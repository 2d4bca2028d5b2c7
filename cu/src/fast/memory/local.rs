// SPDX-License-Identifier: GPL-2.0 OR MIT
//! LDS loads and stores, one address or two. Accesses that reach beyond the workgroup's LDS are the reference engine's.

use super::{both, merge, Words};
use crate::fast::block::{Builder, Place};
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Flow, Run, Source, Step, ROW};
use vkfd_isa::{Inst, Op};

/// The lanes' addresses with an offset, if `bytes` there are in LDS for every active lane.
#[inline(always)]
unsafe fn addresses(step: &Step, cx: &Cx, exec: u64, offset: u32, bytes: usize) -> Option<Words> {
    // SAFETY: the step's row exists.
    let mut at = unsafe { cx.row(step.src[0]).cast::<Words>().read() };
    let mut most = 0;
    if exec == u64::MAX {
        for at in &mut at {
            *at = at.wrapping_add(offset);
            most = most.max(*at);
        }
    } else {
        // Inactive lanes stay at the begin, where there is something.
        for (lane, at) in at.iter_mut().enumerate() {
            *at = at.wrapping_add(offset) & ((exec >> lane) as u32 & 1).wrapping_neg();
            most = most.max(*at);
        }
    }
    (most as usize + bytes <= cx.group.lds.len()).then_some(at)
}

/// The two offsets of a step, in bytes.
fn offsets(step: &Step) -> [u32; 2] {
    [step.imm as u32, (step.imm >> 32) as u32]
}

/// Loads `N` registers from each of `A` addresses.
#[inline(always)]
unsafe fn load<S: Simd, const N: usize, const A: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let mut data = [[[0u32; N]; 64]; A];
    // SAFETY: the step's rows exist; all addresses are within LDS, which no reference to is held.
    unsafe {
        for (half, data) in data.iter_mut().enumerate() {
            let Some(at) = addresses(step, cx, exec, offsets(step)[half], 4 * N) else { return Flow::Slow };
            let lds = cx.group.lds.as_ptr();
            for lane in 0..64 {
                data[lane] = lds.add(at[lane] as usize).cast::<[u32; N]>().read_unaligned();
            }
        }
        for half in 0..A {
            for word in 0..N {
                let mut row = [0; 64];
                for lane in 0..64 {
                    row[lane] = data[half][lane][word];
                }
                merge::<S>(cx, step.dst + (half * N + word) * ROW, &row, exec);
            }
        }
    }
    Flow::Next
}

/// Loads bytes or halves, extended by zeros (or the sign, if `scalar[1]`).
#[inline(always)]
unsafe fn load_short<S: Simd, const BYTES: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: as in `load`.
    unsafe {
        let Some(at) = addresses(step, cx, exec, offsets(step)[0], BYTES) else { return Flow::Slow };
        let lds = cx.group.lds.as_ptr();
        let mut row = [0u32; 64];
        for lane in 0..64 {
            let from = lds.add(at[lane] as usize);
            row[lane] = match (BYTES, step.scalar[1]) {
                (1, 0) => from.read().into(),
                (1, _) => from.cast::<i8>().read() as u32,
                (_, 0) => from.cast::<u16>().read_unaligned().into(),
                _ => from.cast::<i16>().read_unaligned() as u32,
            };
        }
        merge::<S>(cx, step.dst, &row, exec);
    }
    Flow::Next
}

/// Stores `N` registers to each of `A` addresses.
#[inline(always)]
unsafe fn store<S: Simd, const N: usize, const A: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: as in `load`; what is written is within LDS.
    unsafe {
        let mut at = [[0u32; 64]; A];
        for (half, at) in at.iter_mut().enumerate() {
            let Some(found) = addresses(step, cx, exec, offsets(step)[half], 4 * N) else { return Flow::Slow };
            *at = found;
        }
        let lds = cx.group.lds.as_mut_ptr();
        let rows = [cx.row(step.src[1]).cast::<Words>(), cx.row(step.src[2]).cast::<Words>()];
        for lane in 0..64 {
            if exec >> lane & 1 == 0 {
                continue;
            }
            for half in 0..A {
                let mut value = [0u32; N];
                for word in 0..N {
                    value[word] = (*rows[half].add(word))[lane];
                }
                lds.add(at[half][lane] as usize).cast::<[u32; N]>().write_unaligned(value);
            }
        }
    }
    Flow::Next
}

#[inline(always)]
unsafe fn store_short<S: Simd, const BYTES: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: as in `store`.
    unsafe {
        let Some(at) = addresses(step, cx, exec, offsets(step)[0], BYTES) else { return Flow::Slow };
        let lds = cx.group.lds.as_mut_ptr();
        let row = cx.row(step.src[1]).cast::<Words>();
        for lane in 0..64 {
            if exec >> lane & 1 == 0 {
                continue;
            }
            let (to, value) = (lds.add(at[lane] as usize), (*row)[lane]);
            if BYTES == 1 {
                to.write(value as u8);
            } else {
                to.cast::<u16>().write_unaligned(value as u16);
            }
        }
    }
    Flow::Next
}

/// Makes a step of a load or store.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let memory = &inst.memory;
    if memory.gds {
        return None;
    }
    // Handler, registers at each address, what two offsets count, and whether it is a load.
    let (run, words, unit, is_load): (Run, usize, u32, bool) = match inst.op {
        Op::DsReadB32 => (both!(builder.avx2, load::<1, 1>), 1, 0, true),
        Op::DsReadB64 => (both!(builder.avx2, load::<2, 1>), 2, 0, true),
        Op::DsReadB96 => (both!(builder.avx2, load::<3, 1>), 3, 0, true),
        Op::DsReadB128 => (both!(builder.avx2, load::<4, 1>), 4, 0, true),
        Op::DsRead2B32 => (both!(builder.avx2, load::<1, 2>), 1, 4, true),
        Op::DsRead2B64 => (both!(builder.avx2, load::<2, 2>), 2, 8, true),
        Op::DsRead2st64B32 => (both!(builder.avx2, load::<1, 2>), 1, 256, true),
        Op::DsRead2st64B64 => (both!(builder.avx2, load::<2, 2>), 2, 512, true),
        Op::DsReadU8 | Op::DsReadI8 => (both!(builder.avx2, load_short::<1>), 1, 0, true),
        Op::DsReadU16 | Op::DsReadI16 => (both!(builder.avx2, load_short::<2>), 1, 0, true),
        Op::DsWriteB8 => (both!(builder.avx2, store_short::<1>), 1, 0, false),
        Op::DsWriteB16 => (both!(builder.avx2, store_short::<2>), 1, 0, false),
        Op::DsWriteB32 => (both!(builder.avx2, store::<1, 1>), 1, 0, false),
        Op::DsWriteB64 => (both!(builder.avx2, store::<2, 1>), 2, 0, false),
        Op::DsWriteB96 => (both!(builder.avx2, store::<3, 1>), 3, 0, false),
        Op::DsWriteB128 => (both!(builder.avx2, store::<4, 1>), 4, 0, false),
        Op::DsWrite2B32 => (both!(builder.avx2, store::<1, 2>), 1, 4, false),
        Op::DsWrite2B64 => (both!(builder.avx2, store::<2, 2>), 2, 8, false),
        Op::DsWrite2st64B32 => (both!(builder.avx2, store::<1, 2>), 1, 256, false),
        Op::DsWrite2st64B64 => (both!(builder.avx2, store::<2, 2>), 2, 512, false),
        _ => return None,
    };
    let mut step = place.step(run);
    step.src[0] = Source::register(builder.layout.row(memory.vaddr, 1)? * ROW);
    let offsets =
        if unit == 0 { [memory.offset as u32, 0] } else { memory.offsets.map(|offset| u32::from(offset) * unit) };
    step.imm = (u64::from(offsets[0]) | u64::from(offsets[1]) << 32) as i64;
    step.scalar[1] = u8::from(matches!(inst.op, Op::DsReadI8 | Op::DsReadI16));
    if is_load {
        let all = if unit == 0 { words } else { 2 * words };
        step.dst = builder.layout.row(inst.dst, all)? * ROW;
    } else {
        step.src[1] = Source::register(builder.layout.row(memory.data, words)? * ROW);
        if unit != 0 {
            step.src[2] = Source::register(builder.layout.row(memory.data2, words)? * ROW);
        }
    }
    steps.push(step);
    Some(())
}
