// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An instruction, and the work-group of its wave, as the checks see them.

use super::scratch::Scratch;
use crate::wave::Wave;
use crate::world::{Access, World};
use vkfd_isa::{Target, MAX_WORDS};

/// A work-group under way.
#[derive(Clone, Debug)]
pub(super) struct WorkGroup {
    /// Where it is in the grid.
    pub(super) id: [u32; 3],
    /// The kernel's first instruction.
    pub(super) entry: u64,
    /// The grid's first work-group, and how many there are in each dimension.
    pub(super) start: [u32; 3],
    pub(super) groups: [u32; 3],
    pub(super) scratch: Option<Scratch>,
    /// The kernel is one of a runtime's own, which move data for the host.
    pub(super) moves_only: bool,
}

impl WorkGroup {
    /// Where the work-group of a number is in the grid.
    pub(super) fn at(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.groups.map(|count| u64::from(count.max(1)));
        let at = [number % x, number / x % y, number / x / y];
        std::array::from_fn(|axis| self.start[axis].wrapping_add(u32::try_from(at[axis]).unwrap_or(0)))
    }
}

/// An instruction as the checks see it.
pub(super) struct Seen<'a> {
    pub(super) group: &'a WorkGroup,
    pub(super) target: Target,
    pub(super) pc: u64,
    pub(super) words: &'a [u32; MAX_WORDS],
    pub(super) wave: u16,
    pub(super) lanes: u8,
    /// Bytes of LDS.
    pub(super) lds: usize,
    /// A page fault may be repaired.
    pub(super) retries: bool,
}

impl<'a> Seen<'a> {
    /// An instruction of a wave, whose group has so many bytes of LDS. The wave may be behind it.
    pub(super) fn of(
        (group, lds): (&'a WorkGroup, usize),
        wave: &Wave,
        (pc, words): (u64, &'a [u32; MAX_WORDS]),
        retries: bool,
    ) -> Seen<'a> {
        Seen { group, target: wave.target, pc, words, wave: wave.index, lanes: wave.lanes, lds, retries }
    }

    /// The instruction, from the kernel's first one.
    pub(super) fn offset(&self) -> u32 {
        u32::try_from(self.pc.wrapping_sub(self.group.entry)).unwrap_or(u32::MAX)
    }
}

/// The words of an instruction of so many bytes.
pub(super) fn fetch_words<W: World>(bytes: usize, pc: u64, world: &mut W, words: &mut [u32; MAX_WORDS]) {
    let Ok(span) = world.translate(pc, Access::Execute) else { return };
    let bytes = bytes.min(4 * MAX_WORDS).min(span.len);
    let mut code = [0; 4 * MAX_WORDS];
    // SAFETY: the span is the world's, good until the gate is left, and may vanish; the destination
    // is this frame's.
    if unsafe { vkfd_raw::copy(code.as_mut_ptr(), span.ptr, bytes) }.is_ok() {
        for (word, bytes) in words.iter_mut().zip(code.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
}
