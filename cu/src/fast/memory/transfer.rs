// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads and stores whose lanes have pointers of their own, or reach a line of memory each dword.

use super::Words;
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Flow, Run, Step};
use crate::reference::memory::{kept, Extend, Kind};
use vkfd_raw as raw;

/// What the lanes reach: the words of all of them in lines, or pointers to the words of the active
/// lanes.
pub(super) enum Places {
    Lines([u64; 4]),
    /// One by one: loads and stores of less than a dword, too. These lanes are in range: of others
    /// there are no pointers, they load zeros and store nothing.
    Words(u64),
}

/// How a memory instruction finds what its lanes reach.
pub(super) trait Find {
    /// Pointers to the words of the active lanes, lane by lane; or the addresses of lines.
    unsafe fn places<const N: usize>(
        step: &Step,
        cx: &mut Cx,
        exec: u64,
        write: bool,
        pointers: &mut [*mut u8; 256],
    ) -> Option<Places>;
}

/// A line of memory, which has a word for each lane, and a row.
#[inline(always)]
unsafe fn line(cx: &mut Cx, va: u64, row: *mut u8, write: bool) -> Option<()> {
    let all = 4 * cx.all.count_ones() as usize;
    let here = (PAGE - va % PAGE).min(all as u64) as usize;
    let first = cx.cache.page(cx.world, va, write)?;
    let second = if here < all { cx.cache.page(cx.world, va.wrapping_add(here as u64), write)? } else { first };
    for (host, row, len) in [(first, row, here), (second, row.wrapping_add(here), all - here)] {
        if len != 0 {
            let (to, from) = if write { (host, row.cast_const()) } else { (row, host.cast_const()) };
            // SAFETY: spans of the world while the gate is open, and the caller's row.
            unsafe { raw::copy(to, from, len).ok()? };
        }
    }
    Some(())
}

/// Loads `N` registers of each lane.
pub(super) unsafe fn load<F: Find, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    let mut pointers = [std::ptr::null_mut(); 256];
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        let Some(places) = F::places::<N>(step, cx, exec, false, &mut pointers) else { return step.slow(cx) };
        let to = cx.row_mut(step.dst);
        match places {
            Places::Lines(lines) => {
                let mut rows = [[0u32; 64]; N];
                for (row, va) in rows.iter_mut().zip(lines) {
                    if line(cx, va, row.as_mut_ptr().cast(), false).is_none() {
                        return step.slow(cx);
                    }
                }
                for (word, row) in rows.iter().enumerate() {
                    merge(to.add(64 * word).cast(), row, exec);
                }
            }
            Places::Words(inside) => {
                let mut loaded = [0u32; 256];
                let bytes = usize::from(step.scalar[3]).min(4);
                let count = inside.count_ones() as usize * N;
                if raw::load_each(loaded.as_mut_ptr().cast(), &pointers[..count], bytes).is_err() {
                    return step.slow(cx);
                }
                let extend = EXTENDS[usize::from(step.scalar[2] >> 2) % EXTENDS.len()];
                let kept = kept(cx.wave.target);
                let mut values = loaded.chunks_exact(N);
                let mut rest = exec;
                while rest != 0 {
                    let lane = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    let value = if inside >> lane & 1 != 0 { values.next() } else { None };
                    for (word, value) in value.unwrap_or(&[0; N]).iter().enumerate() {
                        let slot = to.add(64 * word + lane);
                        slot.write(extend.apply(*value, bytes as u8, kept & slot.read()));
                    }
                }
            }
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * u64::from(step.scalar[3]);
    step.done(cx)
}

/// Writes the active lanes of a row.
#[inline(always)]
unsafe fn merge(to: *mut Words, from: &Words, exec: u64) {
    // SAFETY: the row exists.
    unsafe {
        let mut row = to.read();
        for lane in 0..64 {
            let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
            row[lane] ^= (row[lane] ^ from[lane]) & mask;
        }
        to.write(row);
    }
}

/// Stores `N` registers of each lane.
pub(super) unsafe fn store<F: Find, const N: usize>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    let mut pointers = [std::ptr::null_mut(); 256];
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        let Some(places) = F::places::<N>(step, cx, exec, true, &mut pointers) else { return step.slow(cx) };
        let from = cx.row(step.src[2]);
        match places {
            Places::Lines(lines) => {
                for (word, va) in lines.into_iter().enumerate().take(N) {
                    // Lines that are done are done again.
                    if line(cx, va, from.add(64 * word).cast_mut().cast(), true).is_none() {
                        return step.slow(cx);
                    }
                }
            }
            Places::Words(inside) => {
                let mut data = [0u32; 256];
                let mut rest = inside;
                let mut count = 0;
                let down = if step.scalar[2] >> 2 != 0 { 16 } else { 0 };
                while rest != 0 {
                    let lane = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    for word in 0..N {
                        data[count] = from.add(64 * word + lane).read() >> down;
                        count += 1;
                    }
                }
                let bytes = usize::from(step.scalar[3]).min(4);
                if raw::store_each(data.as_ptr().cast(), &pointers[..count], bytes).is_err() {
                    return step.slow(cx);
                }
            }
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * u64::from(step.scalar[3]);
    step.done(cx)
}

const EXTENDS: [Extend; 6] = [Extend::Zero, Extend::Sign, Extend::Low, Extend::LowSign, Extend::High, Extend::HighSign];

/// The handler of a load or store, the bytes of a lane, and what it needs to know of them.
pub(super) fn transfer<F: Find>(kind: Kind) -> Option<(Run, u8, u8)> {
    Some(match kind {
        Kind::Load { bytes, extend } => {
            let how = EXTENDS.iter().position(|other| *other == extend)? as u8;
            let run: Run = match bytes.div_ceil(4) {
                1 => load::<F, 1>,
                2 => load::<F, 2>,
                3 => load::<F, 3>,
                _ => load::<F, 4>,
            };
            (run, bytes, how)
        }
        Kind::Store { bytes, high } => {
            let run: Run = match bytes.div_ceil(4) {
                1 => store::<F, 1>,
                2 => store::<F, 2>,
                3 => store::<F, 3>,
                _ => store::<F, 4>,
            };
            (run, bytes, high.into())
        }
        _ => return None,
    })
}
