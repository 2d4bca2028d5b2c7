// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operands and addresses at random.

use super::Numbers;

/// Registers that operands are in.
pub const REGISTERS: u64 = 12;

/// A source by its encoding.
pub fn source(numbers: &mut Numbers) -> u32 {
    (match numbers.below(10) {
        0 => numbers.below(REGISTERS),
        1 => 128 + numbers.below(81),
        2 => 240 + numbers.below(9),
        3 => 106 + numbers.below(2),
        _ => 256 + numbers.below(REGISTERS),
    }) as u32
}
