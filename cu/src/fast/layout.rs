// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where waves have their registers: what a block is built for.
//!
//! Handlers rely on the registers that a layout has; they are checked when a block is built, and a
//! wave's layout when it enters one.

use crate::wave::Wave;
use vkfd_isa::{Operand, Target};

/// What waves have in common that run the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub(super) target: Target,
    pub(super) lanes: u8,
    pub(super) rows: usize,
    pub(super) acc: u16,
    pub(super) sgprs: u8,
    pub(super) grain: Grain,
}

/// How long blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Grain {
    Whole,
    /// They end with a wait for memory, too.
    Waits,
    /// They end before whatever does more than compute, see [`super::piece`].
    Plain,
}

impl Layout {
    pub(super) fn of(wave: &Wave, grain: Grain) -> Layout {
        let Wave { target, lanes, ref rows, acc, sgprs, .. } = *wave;
        Layout { target, lanes, rows: rows.len(), acc, sgprs, grain }
    }

    /// The first of `count` rows, if the wave has them.
    pub(super) fn row(&self, operand: Operand, count: usize) -> Option<usize> {
        let split = usize::from(self.acc).min(self.rows);
        let (first, end) = match operand {
            Operand::Vgpr(n) if self.target.is_cdna() => (usize::from(n), split),
            Operand::Vgpr(n) => (usize::from(n), self.rows),
            Operand::Agpr(n) => (split + usize::from(n), self.rows),
            _ => return None,
        };
        (first + count <= end).then_some(first)
    }

    /// The first of `count` scalar registers, if the wave has them and they are ordinary.
    pub(super) fn scalar(&self, operand: Operand, count: u8) -> Option<u8> {
        let Operand::Scalar(n) = operand else { return None };
        let end = u16::from(n) + u16::from(count);
        let (general, special) =
            if self.target.is_gfx9() { (102.min(self.sgprs), Operand::FLAT_SCRATCH) } else { (106, 106) };
        let is_null = n <= Operand::NULL && end > u16::from(Operand::NULL);
        (!is_null && (n >= special && end <= 128 || end <= u16::from(general))).then_some(n)
    }

    /// Lanes among which `ds_bpermute_b32` and `ds_permute_b32` exchange.
    pub(super) fn exchange_lanes(&self) -> u8 {
        if self.target.is_gfx9() {
            64
        } else {
            32
        }
    }

    /// The first scalar register of a mask of lanes: of two, or in waves of 32 of one, which may be
    /// NULL. The word behind it can be read in any case.
    pub(super) fn mask(&self, operand: Operand) -> Option<u8> {
        if self.lanes == 64 {
            return self.scalar(operand, 2);
        }
        if operand == Operand::Scalar(Operand::NULL) {
            return Some(Operand::NULL);
        }
        self.scalar(operand, 1).filter(|n| *n < 127)
    }
}

impl Layout {
    /// Where a comparison's answer goes, besides EXEC if it goes there, too: only on gfx9 both.
    pub(super) fn answer(&self, operand: Operand, exec: bool) -> Option<u8> {
        if exec && !self.target.is_gfx9() {
            return Some(Operand::NULL);
        }
        self.mask(operand)
    }
}

/// The bits of a constant in an operation of 32 bits.
pub(super) fn constant32(operand: Operand) -> Option<u32> {
    Some(match operand {
        Operand::Int(value) => i32::from(value) as u32,
        Operand::Literal(value) => value,
        Operand::Float(code) => match code {
            240 => 0x3f00_0000,
            241 => 0xbf00_0000,
            242 => 0x3f80_0000,
            243 => 0xbf80_0000,
            244 => 0x4000_0000,
            245 => 0xc000_0000,
            246 => 0x4080_0000,
            247 => 0xc080_0000,
            248 => 0x3e22_f983,
            _ => return None,
        },
        _ => return None,
    })
}
