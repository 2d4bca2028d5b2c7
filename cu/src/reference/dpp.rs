// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Data-parallel primitives: from which lane each lane takes its first source.

use crate::wave::{Wave, LANES};
use vkfd_isa::{Dpp, DppKind};

/// A permutation as it applies to a wave.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    /// The lane that is read; none reads zero.
    pub(crate) from: [Option<usize>; LANES],
    /// Lanes that are written, as far as this is concerned.
    pub(crate) write: u64,
}

/// The lane that `control` names for `lane`; none beyond the row or the wave.
fn source(control: u16, lane: usize, lanes: usize) -> Option<usize> {
    let row = lane & !15;
    let at = lane & 15;
    let amount = usize::from(control & 15);
    let within = |at: usize| (at < 16).then_some(row + at);
    match control {
        0x000..=0x0ff => Some(lane & !3 | usize::from(control >> (2 * (lane & 3)) & 3)),
        // Row shifts.
        0x101..=0x10f => within(at + amount),
        0x111..=0x11f => at.checked_sub(amount).and_then(within),
        0x121..=0x12f => within((at + 16 - amount) & 15),
        // Wave shifts (gfx9).
        0x130 => (lane + 1 < lanes).then_some(lane + 1),
        0x134 => Some((lane + 1) % lanes),
        0x138 => lane.checked_sub(1),
        0x13c => Some((lane + lanes - 1) % lanes),
        0x140 => within(15 - at),
        0x141 => Some(lane & !7 | (7 - (lane & 7))),
        // Broadcasts of a row's last lane to the next row, or of lane 31 to the rest; the first
        // keep their own (gfx9).
        0x142 => Some(if lane > 15 { row - 1 } else { lane }),
        0x143 => Some(if lane > 31 { 31 } else { lane }),
        // Broadcast of one lane in each row (gfx90a and later).
        0x150..=0x15f => within(amount),
        0x160..=0x16f => within(at ^ amount),
        _ => None,
    }
}

/// The lane that `lane` of `lanes` reads, active or not.
pub(crate) fn named(kind: DppKind, lane: usize, lanes: usize) -> Option<usize> {
    match kind {
        DppKind::Ctrl(control) => source(control, lane, lanes),
        DppKind::Lanes8(selectors) => Some(lane & !7 | (selectors >> (3 * (lane & 7)) & 7) as usize),
    }
}

/// What `dpp` does to the wave's lanes.
pub(crate) fn permutation(dpp: &Dpp, wave: &Wave) -> Permutation {
    let lanes = usize::from(wave.lanes).clamp(1, LANES);
    let exec = wave.exec();
    let mut from = [None; LANES];
    let mut write = 0u64;
    for (lane, from) in from.iter_mut().enumerate().take(lanes) {
        let found = named(dpp.kind, lane, lanes);
        let readable = |&source: &usize| dpp.fetch_inactive || exec >> source & 1 == 1;
        // DPP8 reads zero of inactive lanes; DPP16 does with bound_ctrl, else the lane is left out.
        *from = found.filter(readable);
        let zero = dpp.bound_ctrl || matches!(dpp.kind, DppKind::Lanes8(_));
        let masked = match dpp.kind {
            DppKind::Ctrl(_) => dpp.row_mask >> (lane / 16) & 1 == 0 || dpp.bank_mask >> (lane / 4 % 4) & 1 == 0,
            DppKind::Lanes8(_) => false,
        };
        if !masked && (from.is_some() || zero) {
            write |= 1 << lane;
        }
    }
    Permutation { from, write }
}

impl Permutation {
    /// The values that the lanes take.
    pub(crate) fn apply(&self, values: &[u64; LANES]) -> [u64; LANES] {
        self.from.map(|from| from.and_then(|lane| values.get(lane)).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn controls_name_the_lanes_that_the_manual_draws() {
        assert_eq!(source(0b00_01_10_11, 4, 64), Some(7));
        assert_eq!(source(0x101, 15, 64), None);
        assert_eq!(source(0x101, 16, 64), Some(17));
        assert_eq!(source(0x111, 16, 64), None);
        assert_eq!(source(0x121, 16, 64), Some(31));
        assert_eq!(source(0x130, 63, 64), None);
        assert_eq!(source(0x134, 63, 64), Some(0));
        assert_eq!(source(0x13c, 0, 64), Some(63));
        assert_eq!(source(0x140, 17, 64), Some(30));
        assert_eq!(source(0x141, 9, 64), Some(14));
        assert_eq!(source(0x142, 40, 64), Some(31));
        assert_eq!(source(0x143, 40, 64), Some(31));
        assert_eq!(source(0x153, 40, 64), Some(35));
        assert_eq!(source(0x161, 40, 64), Some(41));
    }
}
