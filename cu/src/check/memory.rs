// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `memory`: bounds of allocations, of LDS and of scratch; freed memory; misaligned atomic
//! operations.
//!
//! Scratch is a part of the queue's scratch for each wave, in which the lanes' words are
//! interleaved. A lane's own bytes are as many as its launch asked for. Beyond them is nothing that
//! belongs to it, also where the runtime has rounded the wave's part up.

use super::engine::Seen;
use super::ledger::{Map, Verdict};
use super::note::{Notes, Rule};
use crate::exit::{Exit, Refusal};
use crate::world::{Reach, Spot, Touch};

/// The scratch of a work-group's waves.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    base: u64,
    /// Bytes of all waves.
    bytes: u64,
    wave_bytes: u64,
    /// The part of each wave.
    slots: Vec<u32>,
    /// Bytes of a lane; 0: it is not known.
    pub(super) private: u32,
}

impl Scratch {
    pub(super) fn new(scratch: crate::launch::Scratch, slots: &[u32], private: u32) -> Scratch {
        let wave_bytes = u64::from(scratch.wave_bytes);
        let bytes = wave_bytes * u64::from(scratch.waves);
        Scratch { base: scratch.base, bytes, wave_bytes, slots: slots.to_vec(), private }
    }

    /// Whether an address is in scratch, of any wave.
    pub(super) fn contains(&self, va: u64) -> bool {
        va.wrapping_sub(self.base) < self.bytes
    }

    /// The offset of an address in the part of a wave.
    pub(super) fn offset(&self, wave: u16, va: u64) -> Option<u64> {
        let slot = self.slots.get(usize::from(wave)).copied().unwrap_or(0);
        let start = self.base.wrapping_add(self.wave_bytes * u64::from(slot));
        Some(va.wrapping_sub(start)).filter(|offset| *offset < self.wave_bytes)
    }

    /// Bytes of a wave's part that its lanes asked for.
    pub(super) fn asked(&self, lanes: u8) -> u64 {
        match self.private {
            0 => self.wave_bytes,
            private => (u64::from(private).next_multiple_of(4) * u64::from(lanes)).min(self.wave_bytes),
        }
    }

    fn allows(&self, wave: u16, lanes: u8, va: u64, bytes: u64) -> bool {
        self.offset(wave, va).is_some_and(|offset| offset + bytes <= self.asked(lanes))
    }
}

/// Compares what an instruction has reached with the bounds of it. `result`: how it ended.
pub(super) fn look(seen: &Seen<'_>, map: &Map, reaches: &[Reach], result: &Result<(), Exit>, notes: &mut Notes) {
    // Lanes mostly reach what their neighbours reach.
    let mut bounds = (0, 0);
    let missed = matches!(result, Err(Exit::Miss(miss)) if !miss.lost) && !seen.retries;
    for reach in reaches {
        let bytes = u64::from(reach.len);
        match reach.spot {
            Spot::Lds(at) => {
                if usize::try_from(at).map_or(true, |at| at + usize::from(reach.len) > seen.lds) {
                    notes.add(seen, Rule::Lds, Some(*reach), None);
                }
            }
            Spot::Memory(va) => {
                let scratch = seen.state.scratch.as_ref().filter(|scratch| scratch.contains(va));
                if let Some(scratch) = scratch {
                    if !scratch.allows(seen.wave, seen.lanes, va, bytes) {
                        notes.add(seen, Rule::Scratch, Some(*reach), None);
                    }
                    continue;
                }
                if va >= bounds.0 && va.saturating_add(bytes) <= bounds.1 {
                    continue;
                }
                match map.judge(va, bytes, missed) {
                    Verdict::Fine => bounds = map.bounds(va).unwrap_or(bounds),
                    Verdict::Beyond => notes.add(seen, Rule::Bounds, Some(*reach), None),
                    Verdict::Freed => notes.add(seen, Rule::Freed, Some(*reach), None),
                }
            }
        }
    }
    if let Err(Exit::Refused(Refusal::Aperture { va })) = result {
        let atomic = reaches.iter().rev().find(|reach| reach.touch == Touch::Atomic);
        let spot = atomic.map_or(Spot::Memory(*va), |reach| reach.spot);
        if let Some(reach) = atomic {
            notes.add(seen, Rule::Misaligned, Some(Reach { spot, ..*reach }), None);
        }
    }
}
