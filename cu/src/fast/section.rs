// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads the code between a barrier and the next ones for its accesses ([`Sections`]).
//!
//! Mechanism: a [`walk`] over all ways from an address on, as far as a barrier or the program's
//! end, is kept until the engine decodes anything anew. Each wave asks it with its own registers.
//! They decide branches whose SCC is a comparison of numbers that the code leads back to them: a
//! loop counts and compares before its last branch. They decide branches by EXEC, if it is a mask
//! of that time or lanes that were compared since. They also say which bytes of LDS are read and
//! which are written, if the code leads the addresses back to them. Products of matrices read one
//! half of LDS and fill the other one.
//!
//! A walk may be out of date for one section, where code has changed: it decides an order of waves
//! alone, and each order is allowed. Code whose next address is in a register, or that sleeps or
//! sends messages, is unknown. So is a section of more pieces than a walk has.
//!
//! Limits: a buffer instruction that accesses scratch counts as one that accesses memory.

mod known;
mod mask;
mod number;
mod walk;

use super::layout::{Grain, Layout};
use super::Blocks;
use crate::launch::Section;
use crate::wave::Wave;
use crate::world::World;
use known::Known;
use vkfd_isa::Target;
use walk::{Walk, MOST_PIECES};

/// Walks that are kept: a kernel has few barriers.
const KEPT: usize = 16;

/// Where a section begins: the address, and the number of blocks decoded until then.
type Begin = (u64, u64);

/// No code has been decoded as often as that.
const NOWHERE: Begin = (0, u64::MAX);

/// Sections, each with its begin.
pub(super) struct Sections {
    kept: Vec<(Begin, Walk)>,
    /// The one that is replaced next, and the one that was found last: waves come here together.
    oldest: usize,
    latest: usize,
    /// Room of a walk.
    begins: Vec<(u64, Known)>,
}

impl Sections {
    pub(super) fn new(target: Target) -> Sections {
        vkfd_lint::live::prepare(target);
        let kept = (0..KEPT).map(|_| (NOWHERE, Walk::new())).collect();
        Sections { kept, oldest: 0, latest: 0, begins: Vec::with_capacity(MOST_PIECES) }
    }

    /// What a wave may access before its next barrier. The gate is open. Allocates nothing. As long
    /// as its code, the first time.
    pub(super) fn of(&mut self, wave: &Wave, world: &mut dyn World, blocks: &Blocks) -> Section {
        let begin = (wave.pc, blocks.made);
        if self.kept.get(self.latest).is_none_or(|kept| kept.0 != begin) {
            self.latest = self.kept.iter().position(|kept| kept.0 == begin).unwrap_or_else(|| {
                let place = self.oldest;
                if let Some((key, walk)) = self.kept.get_mut(place) {
                    let layout = Layout::of(wave, Grain::Whole);
                    let is_whole = walk.read(world, layout, wave.pc, &mut self.begins);
                    *key = if is_whole { begin } else { NOWHERE };
                }
                self.oldest = (place + 1) % KEPT;
                place
            });
        }
        self.kept
            .get(self.latest)
            .map_or(Section::UNKNOWN, |(_, walk)| walk.section(wave, blocks.vectors, &blocks.sabotage))
    }
}
