// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MUBUF loads and stores without formats. Scratch comes this way on gfx9: where all lanes have one
//! private address, each dword of them is a line. Whatever is out of range is the reference
//! engine's.

use super::{linear, Words};
use crate::fast::block::{Builder, Place};
use crate::fast::cache::PAGE;
use crate::fast::step::{Cx, Flow, Run, Source, Step, ROW};
use crate::reference::memory::{kept, kind, Buffer, Extend, Kind, Offsets};
use vkfd_isa::{Format, Inst, Operand};
use vkfd_raw as raw;

/// No scalar offset in a register.
const NONE: u8 = 255;

/// How the address is formed: bits of `scalar[2]`. Above them is how loads extend, or whether
/// stores take high halves.
const INDEX: u8 = 1;
const OFFSET: u8 = 2;

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

/// The address that a buffer's descriptor and the instruction make of a lane's offset and index.
pub(super) struct Addressing {
    pub(super) buffer: Buffer,
    index: *const u32,
    offset: *const u32,
    immediate: u32,
    scalar: u32,
    how: u8,
}

impl Addressing {
    pub(super) unsafe fn of(step: &Step, cx: &Cx) -> Addressing {
        // SAFETY: the step's rows and registers exist.
        unsafe {
            let first = cx.scalars.add(step.scalar[0].into());
            let words = std::array::from_fn(|n| first.add(n).read());
            Addressing {
                buffer: Buffer::decode(cx.wave.target, words),
                index: cx.row(step.src[0]),
                offset: cx.row(step.src[1]),
                immediate: step.imm as u32,
                scalar: if step.scalar[1] == NONE { (step.imm >> 32) as u32 } else { cx.scalar(step.scalar[1]) },
                how: step.scalar[2],
            }
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.buffer.base.wrapping_add(self.scalar.into())
    }

    /// A lane's offset.
    #[inline(always)]
    fn vector(&self, lane: usize) -> u32 {
        // SAFETY: the row exists.
        let offset = if self.how & OFFSET != 0 { unsafe { self.offset.add(lane).read() } } else { 0 };
        offset.wrapping_add(self.immediate)
    }

    /// A lane's index, and what is added to it.
    #[inline(always)]
    fn offsets(&self, lane: usize) -> (Offsets, u32) {
        // SAFETY: the row exists.
        let given = if self.how & INDEX != 0 { Some(unsafe { self.index.add(lane).read() }) } else { None };
        let tid = if self.buffer.add_tid { lane as u32 } else { 0 };
        let offsets = Offsets { index: given, offset: self.vector(lane), scalar: self.scalar };
        (offsets, given.unwrap_or(0).wrapping_add(tid))
    }

    /// Whether a lane's `words`, of which `unit` bytes are wanted, are in range; `None` if some of
    /// them are.
    #[inline(always)]
    pub(super) fn contains(&self, lane: usize, words: u32, unit: u32) -> Option<bool> {
        let (offsets, at) = self.offsets(lane);
        let part = u64::from(offsets.offset);
        // What is behind a word that is out of range is out of range, too.
        let first = self.buffer.contains(offsets, at, part, unit);
        let last = words <= 1 || self.buffer.contains(offsets, at, part + u64::from(4 * (words - 1)), unit);
        (!first || last).then_some(first)
    }

    /// The address of a lane's word that is in range, if it is in a page. An unaligned one in
    /// swizzled memory may be in two places.
    #[inline(always)]
    pub(super) fn word(&self, lane: usize, word: u32, unit: u32) -> Option<u64> {
        let (offsets, at) = self.offsets(lane);
        let part = u64::from(offsets.offset) + u64::from(4 * word);
        let va = self.base().wrapping_add(self.buffer.offset(at, part));
        (offsets.offset % unit == 0 && va % PAGE + u64::from(unit) <= PAGE).then_some(va)
    }

    /// A lane's offset from the base, of elements that lie one after the other.
    #[inline(always)]
    pub(super) fn linear(&self, lane: usize) -> u64 {
        let (offsets, at) = self.offsets(lane);
        self.buffer.offset(at, offsets.offset.into())
    }
}

/// By a buffer's descriptor.
pub(super) struct Described;

impl Find for Described {
    #[inline(always)]
    unsafe fn places<const N: usize>(
        step: &Step,
        cx: &mut Cx,
        exec: u64,
        write: bool,
        pointers: &mut [*mut u8; 256],
    ) -> Option<Places> {
        // SAFETY: the step's rows and registers exist.
        let addressing = unsafe { Addressing::of(step, cx) };
        let buffer = &addressing.buffer;
        let bytes = u32::from(step.scalar[3]);
        let unit = bytes.min(4);
        let swizzled = buffer.element != 0;
        // Of scratch: one private address.
        let lanes = cx.all.count_ones();
        let interleaved = swizzled && buffer.add_tid && (buffer.element, buffer.index_stride) == (4, lanes);
        if interleaved && step.scalar[2] & INDEX == 0 && (!write || exec == cx.all) {
            let start = addressing.vector(exec.trailing_zeros() as usize % 64);
            let mut differ = 0;
            if step.scalar[2] & OFFSET != 0 {
                for lane in 0..64 {
                    let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
                    differ |= (addressing.vector(lane) ^ start) & mask;
                }
            }
            if differ == 0 && start % 4 == 0 && bytes >= 4 {
                let mut lines = [0; 4];
                for (word, line) in lines.iter_mut().enumerate().take(N) {
                    let part = u64::from(start) + 4 * word as u64;
                    let offsets = Offsets { index: None, offset: start, scalar: addressing.scalar };
                    let inside = [0, lanes - 1].into_iter().all(|lane| buffer.contains(offsets, lane, part, unit));
                    *line = addressing.base().wrapping_add(buffer.offset(0, part));
                    let end = addressing.base().wrapping_add(buffer.offset(lanes - 1, part));
                    if !inside || end.wrapping_sub(*line) != u64::from(4 * (lanes - 1)) {
                        return None;
                    }
                }
                return Some(Places::Lines(lines));
            }
        }
        let (mut count, mut inside) = (0, 0);
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if !addressing.contains(lane, N as u32, unit)? {
                continue;
            }
            inside |= 1 << lane;
            for word in 0..N as u32 {
                let va = addressing.word(lane, word, unit)?;
                *pointers.get_mut(count)? = cx.cache.page(cx.world, va, write)?;
                count += 1;
            }
        }
        Some(Places::Words(inside))
    }
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

/// The operands of an instruction's address: descriptor, scalar and vector offsets, index.
pub(super) fn address(builder: &Builder, inst: &Inst, step: &mut Step) -> Option<()> {
    let (memory, layout) = (&inst.memory, builder.layout);
    step.scalar[0] = layout.scalar(memory.base, 4)?;
    let mut constant = 0;
    step.scalar[1] = match memory.soffset {
        Operand::None | Operand::Scalar(Operand::NULL) => NONE,
        Operand::Int(value) => {
            constant = i32::from(value) as u32;
            NONE
        }
        Operand::Literal(value) => {
            constant = value;
            NONE
        }
        operand => layout.scalar(operand, 1)?,
    };
    step.imm = (u64::from(memory.offset as u32) | u64::from(constant) << 32) as i64;
    step.scalar[2] = if memory.idxen { INDEX } else { 0 } | if memory.offen { OFFSET } else { 0 };
    let count = usize::from(memory.idxen) + usize::from(memory.offen);
    if count != 0 {
        let row = layout.row(memory.vaddr, count)?;
        step.src[0] = Source::register(row * ROW);
        step.src[1] = Source::register((row + usize::from(memory.idxen && memory.offen)) * ROW);
    }
    Some(())
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
    run = linear::handler(kind, builder.avx2).unwrap_or(run);
    let words = usize::from(bytes.div_ceil(4));
    let mut step = place.step(run);
    address(builder, inst, &mut step)?;
    step.scalar[2] |= how << 2;
    step.scalar[3] = bytes;
    match kind {
        Kind::Load { .. } => step.dst = layout.row(inst.dst, words)? * ROW,
        _ => step.src[2] = Source::register(layout.row(memory.data, words)? * ROW),
    }
    steps.push(step);
    Some(())
}
