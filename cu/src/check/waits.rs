// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `waits`: a register that a wave uses before an `s_waitcnt` has made its load right.
//!
//! The rules and the counters are the static check's ([`vkfd_lint::live`]).

use super::codes::Codes;
use super::note::{Notes, Rule};
use super::seen::Seen;
use crate::fast::Piece;
use vkfd_lint::live::Live;
use vkfd_sabotage::{process, Switch};

/// The late registers of a group's waves.
#[derive(Clone, Debug)]
pub(super) struct Waits(Vec<Live>);

impl Waits {
    pub(super) fn new(waves: u32) -> Waits {
        Waits((0..waves).map(|_| Live::default()).collect())
    }

    /// Whether a piece of code has registers that are late.
    pub(super) fn touches(&self, wave: u16, piece: &Piece) -> bool {
        let late = |live: &Live| live.touches(&piece.reads) || live.touches(&piece.writes);
        !process().has(Switch::BlindWaits) && self.0.get(usize::from(wave)).is_some_and(late)
    }

    /// An instruction has run, with these lanes. `memory`: it reached memory, from which a FLAT
    /// load brings its result when vmcnt says so, whatever lgkmcnt says.
    pub(super) fn look(&mut self, seen: &Seen<'_>, (exec, memory): (u64, bool), codes: &mut Codes, notes: &mut Notes) {
        if process().has(Switch::BlindWaits) {
            return;
        }
        let (Some(live), Some(code)) = (self.0.get_mut(usize::from(seen.wave)), codes.code(seen)) else { return };
        if let Some(early) = live.run(seen.target, code, memory, exec != 0) {
            notes.add_early(seen, Rule::of(early.rule()), early);
        }
    }
}
