// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which results of a segment's vector instructions are used.
//!
//! In a loop whose strips do all rounds, a result that the next round writes over unread is of use
//! in a chunk's last round only. All other rounds leave it out. Behind a region at the end of a
//! wave no row is of use.

use super::{Lanes, Segment, Source, Vector};
use crate::ops::How;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use vkfd_isa::Operand;

/// Which results of a vector instruction are used: its first row, its second one, its mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needed {
    pub(crate) low: bool,
    pub(crate) high: bool,
    pub(crate) out: bool,
}

impl Needed {
    pub(crate) const ALL: Needed = Needed { low: true, high: true, out: true };

    pub(crate) fn nothing(self) -> bool {
        self == Needed { low: false, high: false, out: false }
    }

    /// Whether nothing but the first row is used, of an instruction that makes it without the rest.
    pub(crate) fn is_low(self, vector: &Vector) -> bool {
        !self.high && !self.out && matches!(vector.operation.how, How::Multiply64(_))
    }
}

/// Rows and masks that are read later on.
#[derive(Clone, Default)]
struct Live {
    rows: BTreeSet<u16>,
    masks: BTreeSet<u8>,
}

impl Live {
    /// Steps over an instruction, backwards. `whole`: all of its results are used.
    fn before(&mut self, vector: &Vector, (masks, whole): (bool, bool)) -> Needed {
        let mut rows = vector.rows().map(|row| self.rows.remove(&row));
        let (low, high) = (rows.next().unwrap_or(false), rows.next().unwrap_or(false));
        drop(rows);
        let out = vector.out.is_some_and(|n| self.masks.remove(&n)) || vector.out.is_some() && masks;
        let needed = if whole { Needed::ALL } else { Needed { low, high, out } };
        if needed.nothing() {
            return needed;
        }
        let is_low = needed.is_low(vector);
        let row = |source: &Source| match source {
            Source::Row(row) => Some(*row),
            _ => None,
        };
        self.rows.extend(vector.sources.iter().flatten().filter_map(row));
        self.rows.extend(vector.parts.placed.filter(|placed| placed.keeps).and(vector.row));
        if !is_low {
            self.rows.extend(vector.high.iter().flatten().filter_map(row));
        }
        self.masks.extend(vector.inward);
        needed
    }
}

/// Whether each instruction's mask is used, in the order of [`Segment::lanes`], within a round that
/// does everything: one is not if another instruction makes it anew before somebody reads it.
/// `ignores`: a fault, nobody reads one before that.
pub(crate) fn masks_needed(segment: &Segment, ignores: bool) -> Vec<bool> {
    let mut made: SmallVec<[u8; 4]> = SmallVec::new();
    let mut needed: Vec<bool> = segment.lanes().map(|_| true).collect();
    let lanes: Vec<Lanes<'_>> = segment.lanes().collect();
    for (lanes, needed) in lanes.iter().zip(&mut needed).rev() {
        let Lanes::Vector(vector) = lanes else { continue };
        if let Some(n) = vector.out {
            *needed = n != Operand::NULL && !made.contains(&n);
            made.push(n);
        }
        if let Some(n) = vector.inward.filter(|_| !ignores) {
            made.retain(|other| *other != n);
        }
    }
    needed
}

/// Which results of each instruction are used, in the order of [`Segment::lanes`], if nothing but
/// `rows`, and with `masks` all masks, is read behind the segment. `again`: or in its next round.
pub(crate) fn needed(segment: &Segment, rows: &BTreeSet<u16>, masks: bool, again: bool) -> Vec<Needed> {
    let lanes: Vec<Lanes<'_>> = segment.lanes().collect();
    let mut live = Live { rows: rows.clone(), masks: BTreeSet::new() };
    let mut needed = vec![Needed::ALL; lanes.len()];
    // The last round reads most at its begin, for all is done in it.
    for whole in [true, false].into_iter().skip(usize::from(!again)) {
        for (lanes, needed) in lanes.iter().zip(&mut needed).rev() {
            match lanes {
                Lanes::Vector(vector) => *needed = live.before(vector, (masks, whole)),
                Lanes::Access(access) => {
                    live.rows.retain(|row| !access.rows().contains(row));
                    live.rows.extend(access.addresses());
                }
            }
        }
    }
    needed
}
