// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Barriers that not all of a work-group come to.
//!
//! Mechanism: hardware releases a barrier when all waves that have not ended wait at any. The first
//! wave that comes to a barrier says which it is, and the others are compared. Of a wave, lanes
//! that were off at a barrier are kept. They have ended, unless they access memory afterwards or
//! come to another barrier. That is the finding: a barrier of a language is for all of them.
//!
//! A barrier does not look at EXEC. LLVM may therefore restore EXEC behind it, and lanes that have
//! come seem to be off. So EXEC counts only if an instruction of the lanes, or the beginning of a
//! branch, follows before EXEC changes.
//!
//! Limits: waves and lanes that have ended are not missed, as hardware does not wait for them. A
//! barrier at the end of a branch says nothing of lanes. Code that a compiler has copied would be
//! two barriers; LLVM copies none.

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
#[derive(Clone, Copy, Debug)]
struct Off {
    exec: u64,
    lanes: u64,
    offset: u32,
    /// Whether EXEC at the barrier is known to have counted, or not.
    settled: bool,
}

impl Off {
    const NONE: Off = Off { exec: 0, lanes: 0, offset: 0, settled: true };
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
        Barriers { met: [Met::default(); 2], off: vec![Off::NONE; if waves > 1 { waves } else { 0 }] }
    }

    /// A wave has come to its barrier `number` with these lanes.
    pub(super) fn arrives(&mut self, seen: &Seen<'_>, number: u32, exec: u64, notes: &mut Notes) {
        self.continues(seen, exec, notes);
        let Some(off) = self.off.get_mut(usize::from(seen.wave)) else { return };
        *off = Off { exec, lanes: !exec, offset: seen.offset(), settled: false };
        let Some(met) = self.met.get_mut((number % 2) as usize) else { return };
        if met.number != number {
            *met = Met { number, offset: seen.offset(), wave: seen.wave };
        } else if met.offset != seen.offset() && !process().has(Switch::BlindRace) {
            notes.add_at(seen, Rule::Barrier, (None, None), Some(other(met.offset, met.wave)));
        }
    }

    /// Whether nothing is to be learned of the last barrier from a wave's next instructions.
    pub(super) fn is_settled(&self, wave: u16) -> bool {
        self.off.get(usize::from(wave)).is_none_or(|off| off.settled)
    }

    /// A wave's next instruction is one of its lanes, or of the wave as a whole.
    pub(super) fn goes_on(&mut self, wave: u16, exec: u64, of_lanes: impl FnOnce() -> bool) {
        let Some(off) = self.off.get_mut(usize::from(wave)).filter(|off| !off.settled) else { return };
        if exec != off.exec {
            *off = Off::NONE;
        }
        off.settled = off.settled || of_lanes();
    }

    /// Lanes of a wave access memory, or come to a barrier.
    pub(super) fn continues(&mut self, seen: &Seen<'_>, exec: u64, notes: &mut Notes) {
        let Some(off) = self.off.get_mut(usize::from(seen.wave)).filter(|off| off.settled) else { return };
        let Off { lanes, offset, .. } = off;
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
