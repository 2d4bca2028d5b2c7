// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Barriers that not all of a work-group come to.
//!
//! Mechanism: hardware releases a barrier when all waves that have not ended wait at any. The first
//! wave that comes to a barrier says which it is, and the others are compared. Of a wave, lanes
//! that were off at a barrier are kept. They have ended, unless they access memory afterwards or
//! come to another barrier. That is the finding: a barrier of a language is for all of them.
//!
//! Limits: waves and lanes that have ended are not missed, as hardware does not wait for them. Code
//! that a compiler has copied would be two barriers; LLVM copies none.

use super::super::note::{Notes, Other, Rule};
use super::super::seen::Seen;
use crate::world::Touch;
use vkfd_sabotage::{process, Switch};

/// A barrier that a wave has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    /// Its number in the group, from 1 on.
    number: u32,
    /// Its instruction, from the kernel's first one.
    offset: u32,
    wave: u16,
}

/// Lanes that were off at a wave's barrier.
#[derive(Clone, Copy, Debug, Default)]
struct Off {
    lanes: u64,
    offset: u32,
}

/// Of a work-group.
#[derive(Clone, Debug)]
pub(super) struct Barriers {
    /// The newest of even and of odd number: a wave is at most one ahead of another.
    met: [Met; 2],
    off: Vec<Off>,
}

impl Barriers {
    /// Of so many waves. One wave alone waits for nobody.
    pub(super) fn new(waves: usize) -> Barriers {
        Barriers { met: [Met::default(); 2], off: vec![Off::default(); if waves > 1 { waves } else { 0 }] }
    }

    /// A wave has come to its barrier `number` with these lanes.
    pub(super) fn arrives(&mut self, seen: &Seen<'_>, number: u32, exec: u64, notes: &mut Notes) {
        self.continues(seen, exec, notes);
        let Some(off) = self.off.get_mut(usize::from(seen.wave)) else { return };
        *off = Off { lanes: !exec, offset: seen.offset() };
        let Some(met) = self.met.get_mut((number % 2) as usize) else { return };
        if met.number != number {
            *met = Met { number, offset: seen.offset(), wave: seen.wave };
        } else if met.offset != seen.offset() && !process().has(Switch::BlindRace) {
            notes.add_at(seen, Rule::Barrier, (None, None), Some(other(met.offset, met.wave)));
        }
    }

    /// Lanes of a wave access memory, or come to a barrier.
    pub(super) fn continues(&mut self, seen: &Seen<'_>, exec: u64, notes: &mut Notes) {
        let Some(Off { lanes, offset }) = self.off.get_mut(usize::from(seen.wave)) else { return };
        let missed = *lanes & exec;
        // Their next accesses say nothing more.
        *lanes &= !missed;
        if missed != 0 && !process().has(Switch::BlindRace) {
            let lane = u8::try_from(missed.trailing_zeros()).ok();
            notes.add_at(seen, Rule::Barrier, (lane, None), Some(other(*offset, seen.wave)));
        }
    }
}

const fn other(offset: u32, wave: u16) -> Other {
    Other { offset, group: None, wave, touch: Touch::Read, launch: None }
}
