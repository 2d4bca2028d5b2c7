// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waves whose registers lie in the order of their numbers.

#![allow(dead_code, reason = "not every test uses all of it")]

pub mod memory;

use vkfd_isa::{Op, Operand};
use vkfd_translate::Registers;

/// Waves of 64 lanes that have so many rows.
pub struct Waves<const ROWS: u16>;

impl<const ROWS: u16> Registers for Waves<ROWS> {
    fn lanes(&self) -> u8 {
        64
    }
    fn row(&self, operand: Operand) -> Option<u16> {
        match operand {
            Operand::Vgpr(n) if n < ROWS => Some(n),
            _ => None,
        }
    }
    fn scalar(&self, operand: Operand, words: u8) -> Option<u8> {
        match operand {
            Operand::Scalar(n) if n + words <= 128 => Some(n),
            _ => None,
        }
    }
    fn clears_half(&self, _: Op) -> bool {
        true
    }
    fn mask(&self, operand: Operand) -> Option<u8> {
        self.scalar(operand, 2)
    }
}
