// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `memory`: bounds of allocations, of LDS and of scratch; freed memory; misaligned atomic
//! operations.

use super::map::{Map, Verdict};
use super::note::{Notes, Rule};
use super::scratch::Scratch;
use super::seen::Seen;
use crate::exit::{Exit, Refusal};
use crate::world::{Reach, Spot, Touch};

/// Whether a range of bytes is within LDS, or within one allocation. In scratch it is not said.
pub(super) fn contains(map: &Map, (lds, scratch): (usize, Option<&Scratch>), (spot, bytes): (Spot, u64)) -> bool {
    match spot {
        Spot::Lds(at) => u64::from(at) + bytes <= u64::try_from(lds).unwrap_or(0),
        Spot::Memory(va) => {
            let last = va.saturating_add(bytes.saturating_sub(1));
            let is_scratch = scratch.is_some_and(|scratch| scratch.contains(va) || scratch.contains(last));
            !is_scratch && map.bounds(va).is_some_and(|(start, end)| va >= start && last < end)
        }
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
                let scratch = seen.group.scratch.as_ref().filter(|scratch| scratch.contains(va));
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
