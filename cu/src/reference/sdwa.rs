// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sub-dword addressing: parts of registers as sources and destinations.

use super::kind::{low32, sign_extend};
use vkfd_isa::{SdwaSelect, SdwaUnused};

/// First bit and width of a part.
fn part(select: SdwaSelect) -> (u32, u32) {
    match select {
        SdwaSelect::Byte0 => (0, 8),
        SdwaSelect::Byte1 => (8, 8),
        SdwaSelect::Byte2 => (16, 8),
        SdwaSelect::Byte3 => (24, 8),
        SdwaSelect::Word0 => (0, 16),
        SdwaSelect::Word1 => (16, 16),
        SdwaSelect::Dword => (0, 32),
    }
}

/// Part of a source, extended to 32 bits.
pub(crate) fn select(word: u64, which: SdwaSelect, signed: bool) -> u64 {
    let (from, width) = part(which);
    let bits = (word & 0xffff_ffff) >> from & ((1 << width) - 1);
    if signed {
        low32(sign_extend(bits, width) as u64).into()
    } else {
        bits
    }
}

/// A destination after a part of it is written.
pub(crate) fn insert(old: u32, value: u64, which: SdwaSelect, unused: SdwaUnused) -> u32 {
    let (from, width) = part(which);
    let mask = low32(((1u64 << width) - 1) << from);
    let bits = low32(value << from) & mask;
    match unused {
        SdwaUnused::Pad => bits,
        SdwaUnused::Preserve => old & !mask | bits,
        SdwaUnused::Sext => {
            let sign = bits >> (from + width - 1) & 1 == 1;
            let above = if from + width < 32 && sign { u32::MAX << (from + width) } else { 0 };
            bits | above
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_and_extended() {
        assert_eq!(select(0x8091_a2b3, SdwaSelect::Byte2, false), 0x91);
        assert_eq!(select(0x8091_a2b3, SdwaSelect::Byte2, true), 0xffff_ff91);
        assert_eq!(select(0x8091_a2b3, SdwaSelect::Word0, true), 0xffff_a2b3);
        assert_eq!(select(0x8091_a2b3, SdwaSelect::Dword, true), 0x8091_a2b3);
    }

    #[test]
    fn the_rest_of_a_destination_is_padded_extended_or_kept() {
        let to = |unused| insert(0x1122_3344, 0xfff0_00f5, SdwaSelect::Byte1, unused);
        assert_eq!(to(SdwaUnused::Pad), 0x0000_f500);
        assert_eq!(to(SdwaUnused::Sext), 0xffff_f500);
        assert_eq!(to(SdwaUnused::Preserve), 0x1122_f544);
    }
}
