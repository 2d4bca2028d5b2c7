// SPDX-License-Identifier: GPL-2.0 OR MIT
//! LDS loads and stores, one address or two. Accesses that reach beyond the workgroup's LDS are the
//! reference engine's.

use super::{both, merge, Words};
use crate::fast::builder::Builder;
use crate::fast::operation::vectors;
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::{ds_kind, kept, Extend, Kind};
use vkfd_isa::{Inst, Op};

/// The lanes' addresses with an offset, if `bytes` there are in LDS for every active lane. Inactive
/// lanes are at the begin.
#[inline(always)]
unsafe fn addresses<S: Simd>(step: &Step, cx: &Cx, exec: u64, offset: u32, bytes: usize, at: &mut Words) -> bool {
    // SAFETY: the step's row exists.
    unsafe {
        let row = cx.row(step.src[0]);
        let mut most = S::splat(0);
        for group in 0..vectors(cx.all) {
            let mut here = S::add(S::load(row.add(8 * group)), S::splat(offset));
            if exec != cx.all {
                here = S::and(here, S::lanes((exec >> (8 * group)) as u8));
            }
            most = S::max_u(most, here);
            S::store(at.as_mut_ptr().add(8 * group), here);
        }
        S::largest(most) as usize + bytes <= cx.group.lds.len()
    }
}

/// The two offsets of a step, in bytes.
fn offsets(step: &Step) -> [u32; 2] {
    [step.imm as u32, (step.imm >> 32) as u32]
}

/// Loads `N` registers from each of `A` addresses. Eight lanes that lie side by side, or are at one
/// address, are loaded at once.
#[inline(always)]
unsafe fn load<S: Simd, const N: usize, const A: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let mut at = [[0u32; 64]; A];
    // SAFETY: the step's rows exist; all addresses are within LDS, which no reference to is held.
    // Inactive lanes are at its begin, where there are as many bytes.
    unsafe {
        for half in 0..A {
            if !addresses::<S>(step, cx, exec, offsets(step)[half], 4 * N, &mut at[half]) {
                return step.slow(cx);
            }
        }
        let lds = cx.group.lds.as_ptr();
        let to = cx.row_mut(step.dst);
        let together = S::steps(4 * N as u32);
        for half in 0..A {
            let to = to.add(64 * N * half);
            for group in 0..8 {
                let mask = (exec >> (8 * group)) as u8;
                if mask == 0 {
                    continue;
                }
                let places = at[half].as_ptr().add(8 * group);
                let first = *places;
                let from = lds.add(first as usize).cast::<u32>();
                let apart = S::sub(S::load(places), S::splat(first));
                let mut words = [S::splat(0); N];
                if S::is_zero(apart) {
                    for word in 0..N {
                        words[word] = S::splat(from.add(word).read_unaligned());
                    }
                } else if N < 3 && S::is_zero(S::xor(apart, together)) {
                    if N == 1 {
                        words[0] = S::load(from);
                    } else {
                        words[..2].copy_from_slice(&S::split2(from));
                    }
                } else if N == 4 {
                    let from = std::array::from_fn(|lane| lds.add(*places.add(lane) as usize).cast());
                    words[..4].copy_from_slice(&S::split4(from));
                } else if N == 2 {
                    words[..2].copy_from_slice(&S::gather2(lds, S::load(places)));
                } else {
                    for word in 0..N {
                        words[word] = S::gather(lds.add(4 * word), S::load(places));
                    }
                }
                for word in 0..N {
                    let to = to.add(64 * word + 8 * group);
                    let new =
                        if mask == u8::MAX { words[word] } else { S::select(S::lanes(mask), S::load(to), words[word]) };
                    S::store(to, new);
                }
            }
        }
    }
    step.done(cx)
}

/// Loads bytes or halves, extended by zeros (or the sign, if `scalar[1]`).
#[inline(always)]
unsafe fn load_short<S: Simd, const BYTES: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: as in `load`.
    unsafe {
        let mut at = [0; 64];
        if !addresses::<S>(step, cx, exec, offsets(step)[0], BYTES, &mut at) {
            return step.slow(cx);
        }
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
    step.done(cx)
}

/// Loads bytes or halves into one half of the registers: how says `scalar[1]`.
#[inline(always)]
unsafe fn load_half<S: Simd, const BYTES: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let extend = HALVES[usize::from(step.scalar[1]) % HALVES.len()];
    // SAFETY: as in `load`.
    unsafe {
        let mut at = [0; 64];
        if !addresses::<S>(step, cx, exec, offsets(step)[0], BYTES, &mut at) {
            return step.slow(cx);
        }
        let (lds, kept) = (cx.group.lds.as_ptr(), kept(cx.wave.target));
        let mut row = cx.row_mut(step.dst).cast::<Words>().read();
        for lane in 0..64 {
            let from = lds.add(at[lane] as usize);
            let value = if BYTES == 1 { from.read().into() } else { from.cast::<u16>().read_unaligned().into() };
            row[lane] = extend.apply(value, BYTES as u8, kept & row[lane]);
        }
        merge::<S>(cx, step.dst, &row, exec);
    }
    step.done(cx)
}

const HALVES: [Extend; 4] = [Extend::Low, Extend::LowSign, Extend::High, Extend::HighSign];

/// Where `N` registers of eight lanes go, if the lanes are active and lie side by side.
#[inline(always)]
unsafe fn side_by_side<S: Simd, const N: usize>(at: &Words, exec: u64, group: usize) -> Option<usize> {
    if (exec >> (8 * group)) as u8 != u8::MAX || N == 3 {
        return None;
    }
    // SAFETY: the caller's: there are eight lanes from there on.
    unsafe {
        let places = at.as_ptr().add(8 * group);
        let first = *places;
        let apart = S::sub(S::load(places), S::splat(first));
        S::is_zero(S::xor(apart, S::steps(4 * N as u32))).then_some(first as usize)
    }
}

/// Stores `N` registers of eight lanes that lie side by side from `to` on.
#[inline(always)]
unsafe fn store_line<S: Simd, const N: usize>(to: *mut u8, rows: *const Words, group: usize) {
    // SAFETY: the caller's: so many bytes of LDS are there.
    unsafe {
        let (to, from) = (to.cast::<u32>(), rows.cast::<u32>().add(8 * group));
        match N {
            1 => S::store(to, S::load(from)),
            2 => S::join2(to, [S::load(from), S::load(from.add(64))]),
            _ => {
                let words = [0, 1, 2, 3].map(|word| S::load(from.add(64 * word)));
                S::join4(std::array::from_fn(|lane| to.add(4 * lane)), words);
            }
        }
    }
}

/// Stores `N` registers of eight lanes to each of `A` addresses, at once if they lie side by side,
/// else lane by lane. `apart`: both addresses of a lane are so many bytes away.
#[inline(always)]
unsafe fn store_group<S: Simd, const N: usize, const A: usize>(
    lds: *mut u8,
    (at, apart): (&[Words; A], u32),
    rows: [*const Words; 2],
    exec: u64,
    group: usize,
) {
    // SAFETY: the caller's; the addresses of active lanes are within LDS.
    unsafe {
        // Two lines that overlap are stored in the lanes' order.
        if A == 1 || apart as usize >= 32 * N {
            if let Some(first) = side_by_side::<S, N>(&at[0], exec, group) {
                store_line::<S, N>(lds.add(first), rows[0], group);
                if A == 2 {
                    store_line::<S, N>(lds.add(at[A - 1][8 * group] as usize), rows[1], group);
                }
                return;
            }
        }
        let mut rest = (exec >> (8 * group)) as u8;
        while rest != 0 {
            let lane = 8 * group + rest.trailing_zeros() as usize;
            rest &= rest - 1;
            for (at, row) in at.iter().zip(rows) {
                let mut value = [0u32; N];
                for word in 0..N {
                    value[word] = (*row.add(word))[lane];
                }
                lds.add(at[lane] as usize).cast::<[u32; N]>().write_unaligned(value);
            }
        }
    }
}

/// Stores `N` registers to each of `A` addresses.
#[inline(always)]
unsafe fn store<S: Simd, const N: usize, const A: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    let offsets = offsets(step);
    // SAFETY: as in `load`; what is written is within LDS.
    unsafe {
        let mut at = [[0u32; 64]; A];
        for (at, offset) in at.iter_mut().zip(offsets) {
            if !addresses::<S>(step, cx, exec, offset, 4 * N, at) {
                return step.slow(cx);
            }
        }
        let lds = cx.group.lds.as_mut_ptr();
        let rows = [cx.row(step.src[1]).cast::<Words>(), cx.row(step.src[2]).cast::<Words>()];
        for group in 0..8 {
            store_group::<S, N, A>(lds, (&at, offsets[0].abs_diff(offsets[1])), rows, exec, group);
        }
    }
    step.done(cx)
}

/// Stores bytes or halves, from bit `scalar[2]` on.
#[inline(always)]
unsafe fn store_short<S: Simd, const BYTES: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: as in `store`.
    unsafe {
        let mut at = [0; 64];
        if !addresses::<S>(step, cx, exec, offsets(step)[0], BYTES, &mut at) {
            return step.slow(cx);
        }
        let lds = cx.group.lds.as_mut_ptr();
        let row = cx.row(step.src[1]).cast::<Words>();
        for lane in 0..64 {
            if exec >> lane & 1 == 0 {
                continue;
            }
            let (to, value) = (lds.add(at[lane] as usize), (*row)[lane] >> step.scalar[2]);
            if BYTES == 1 {
                to.write(value as u8);
            } else {
                to.cast::<u16>().write_unaligned(value as u16);
            }
        }
    }
    step.done(cx)
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
        Op::DsReadU8D16 | Op::DsReadI8D16 | Op::DsReadU8D16Hi | Op::DsReadI8D16Hi => {
            (both!(builder.avx2, load_half::<1>), 1, 0, true)
        }
        Op::DsReadU16D16 | Op::DsReadU16D16Hi => (both!(builder.avx2, load_half::<2>), 1, 0, true),
        Op::DsWriteB8 | Op::DsWriteB8D16Hi => (both!(builder.avx2, store_short::<1>), 1, 0, false),
        Op::DsWriteB16 | Op::DsWriteB16D16Hi => (both!(builder.avx2, store_short::<2>), 1, 0, false),
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
    #[cfg(target_arch = "x86_64")]
    if let Some(wider) = super::local512::handler(inst.op).filter(|_| builder.avx512) {
        step.run = wider;
        step.alone = wider;
    }
    step.src[0] = Source::register(builder.layout.row(memory.vaddr, 1)? * ROW);
    let offsets =
        if unit == 0 { [memory.offset as u32, 0] } else { memory.offsets.map(|offset| u32::from(offset) * unit) };
    step.imm = (u64::from(offsets[0]) | u64::from(offsets[1]) << 32) as i64;
    step.scalar[1] = u8::from(matches!(inst.op, Op::DsReadI8 | Op::DsReadI16));
    match ds_kind(inst.op) {
        Some(Kind::Load { extend, .. }) => {
            if let Some(how) = HALVES.iter().position(|other| *other == extend) {
                step.scalar[1] = how as u8;
            }
        }
        Some(Kind::Store { high: true, .. }) => step.scalar[2] = 16,
        _ => {}
    }
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
