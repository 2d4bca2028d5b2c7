// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Addresses by a buffer's descriptor. Scratch comes this way on gfx9: where all lanes have one
//! private address, each dword of them is a line. Whatever is out of range is the reference
//! engine's.

use super::transfer::{Find, Places};
use super::Words;
use crate::fast::builder::Builder;
use crate::fast::cache::PAGE;
use crate::fast::operation::vectors;
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Source, Step, ROW};
use crate::reference::memory::{Buffer, Offsets};
use vkfd_isa::{Inst, Operand};

/// No scalar offset in a register.
const NONE: u8 = 255;

/// How the address is formed: bits of `scalar[2]`. Above them is how loads extend, or whether
/// stores take high halves.
const INDEX: u8 = 1;
const OFFSET: u8 = 2;

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
    #[inline(always)]
    pub(super) unsafe fn of(step: &Step, cx: &Cx) -> Addressing {
        // SAFETY: the step's rows and registers exist.
        unsafe {
            Addressing {
                buffer: Buffer::decode(cx.wave.target, cx.descriptor(step.scalar[0])),
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

    /// The offsets of all lanes by vectors, and the lanes whose `words` are in range, of a buffer
    /// without elements whose lanes have no index. `None` if it is another one, or if only some of
    /// a lane's words are in range.
    #[inline(always)]
    pub(super) unsafe fn plain<S: Simd>(
        &self,
        (all, exec, avx512): (u64, u64, bool),
        words: u32,
        to: &mut Words,
    ) -> Option<u64> {
        let Buffer { element, add_tid, stride, check, records, .. } = self.buffer;
        let is_by_bytes = match check {
            None | Some(3) => true,
            Some(2) => false,
            Some(_) => stride == 0,
        };
        if element != 0 || add_tid || self.how & INDEX != 0 || !is_by_bytes {
            return None;
        }
        // The last offset that is in range, of the first word and of the last one.
        let bound = |bytes: u32| u64::from(records).checked_sub(u64::from(self.scalar) + u64::from(bytes));
        let Some(last) = bound(4 * words) else { return bound(4).is_none().then_some(0) };
        let (first, last) = (bound(4)? as u32, last as u32);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = avx512;
        #[cfg(target_arch = "x86_64")]
        if avx512 && self.how & OFFSET != 0 {
            // SAFETY: the row exists, and the processor has AVX-512.
            let [some, whole] = unsafe { super::lanes512::sums(self.offset, self.immediate, [first, last], to) };
            return (some & exec == whole & exec).then_some(whole & exec);
        }
        let (mut some, mut whole) = (0, 0);
        // SAFETY: the row exists, and there is room for as many words.
        unsafe {
            let (first, last) = (S::splat(first), S::splat(last));
            for group in 0..vectors(all) {
                let mut offset = S::splat(self.immediate);
                if self.how & OFFSET != 0 {
                    offset = S::add(offset, S::load(self.offset.add(8 * group)));
                }
                S::store(to.as_mut_ptr().add(8 * group), offset);
                let within = |bound| u64::from(S::mask(S::eq(S::min_u(offset, bound), offset))) << (8 * group);
                some |= within(first);
                whole |= within(last);
            }
        }
        (some & exec == whole & exec).then_some(whole & exec)
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
