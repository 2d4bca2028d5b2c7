// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Exchanges between lanes that are DS instructions: permute, bpermute, swizzle. No LDS is
//! involved.
//!
//! RDNA exchanges within halves of 32 lanes. Inactive lanes give nothing: a lane that asks them
//! gets zero.

use super::{rows, set_word, word};
use crate::exit::Exit;
use crate::wave::Wave;
use vkfd_isa::{Inst, Op};

/// Executes an exchange.
pub(super) fn execute(inst: &Inst, wave: &mut Wave) -> Result<(), Exit> {
    let offset = inst.memory.offset as u32;
    let exec = wave.exec();
    let active = |lane: usize| exec >> lane & 1 != 0;
    let mut result = [0; 64];
    if inst.op == Op::DsSwizzleB32 {
        // The source is the address register.
        let source = rows(wave, inst.memory.vaddr, 1)?;
        for (lane, slot) in result.iter_mut().enumerate() {
            let from = swizzle(offset, lane);
            if active(from) {
                *slot = word(wave, source, from);
            }
        }
    } else {
        let address = rows(wave, inst.memory.vaddr, 1)?;
        let source = rows(wave, inst.memory.data, 1)?;
        let other = |wave: &Wave, lane: usize| {
            let index = (word(wave, address, lane).wrapping_add(offset) / 4) as usize;
            if wave.target.is_rdna() || wave.lanes == 32 {
                lane / 32 * 32 + index % 32
            } else {
                index % 64
            }
        };
        for lane in 0..64 {
            let other = other(wave, lane);
            if inst.op == Op::DsPermuteB32 {
                if active(lane) {
                    result[other] = word(wave, source, lane);
                }
            } else if active(other) {
                result[lane] = word(wave, source, other);
            }
        }
    }
    let dst = rows(wave, inst.dst, 1)?;
    for (lane, value) in result.iter().enumerate().filter(|(lane, _)| active(*lane)) {
        set_word(wave, dst, lane, *value);
    }
    Ok(())
}

/// The lane that a swizzle reads for `lane`.
pub(crate) fn swizzle(offset: u32, lane: usize) -> usize {
    let (half, within) = (lane & 32, lane as u32 & 31);
    let from = if offset >= 0xe000 {
        // FFT: the bits reversed, but for those under the mask.
        let mask = offset & 0x1f;
        let reversed = within.reverse_bits() >> 27;
        reversed >> mask.count_ones() | within & mask
    } else if offset >= 0xc000 {
        // Rotation, of the bits that the mask does not keep.
        let (mask, by) = (offset & 0x1f, offset >> 5 & 0x1f);
        let turned = if offset >> 10 & 1 == 0 { within.wrapping_add(by) } else { within.wrapping_sub(by) };
        within & mask | turned & 0x1f & !mask
    } else if offset & 0x8000 != 0 {
        within & !3 | offset >> (within % 4 * 2) & 3
    } else {
        (within & offset & 0x1f | offset >> 5 & 0x1f) ^ (offset >> 10 & 0x1f)
    };
    half | (from as usize & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzles() {
        let of = |offset| -> Vec<usize> { (0..64).map(|lane| swizzle(offset, lane)).collect() };
        assert!(of(0x1f).into_iter().eq(0..64), "and with all: nothing moves");
        assert!(of(0x1f | 0x1f << 10).into_iter().eq((0..32).rev().chain((32..64).rev())), "exclusive or: reversed");
        assert_eq!(of(3 << 5)[..4], [3, 3, 3, 3], "broadcast");
        assert_eq!(of(0x8000 | 0b00_01_10_11)[4..8], [7, 6, 5, 4], "quads");
        assert_eq!(of(0xe000)[..4], [0, 16, 8, 24], "FFT, as the manual has it but counted from 0");
        assert_eq!(of(0xe010)[..4], [0, 8, 4, 12]);
        assert!(of(0xe01f).into_iter().eq(0..64), "no swizzle");
        assert_eq!(of(0xc000 | 1 << 5)[30..34], [31, 0, 33, 34], "rotate");
        assert_eq!(of(0xc400 | 1 << 5)[31..34], [30, 63, 32]);
    }
}
