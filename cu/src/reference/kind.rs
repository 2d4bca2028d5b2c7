// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What kind of value an operand is: its width, and what modifiers, constants and conversions make
//! of it.

use super::float::{Format, F16, F32, F64};

/// Kind of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A byte of a register, which the instruction chooses.
    B8,
    B16,
    I16,
    U16,
    F16,
    /// Two halves that the operation takes apart itself.
    B32,
    I32,
    U32,
    F32,
    /// Two halves of F16: a word whose inline constants are halves.
    Pair16,
    B64,
    I64,
    U64,
    F64,
    /// Two words of F32.
    Pair32,
}

impl Kind {
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Kind::B8 => 8,
            Kind::B16 | Kind::I16 | Kind::U16 | Kind::F16 => 16,
            Kind::B32 | Kind::I32 | Kind::U32 | Kind::F32 | Kind::Pair16 => 32,
            Kind::B64 | Kind::I64 | Kind::U64 | Kind::F64 | Kind::Pair32 => 64,
        }
    }

    /// Registers that it takes.
    pub(crate) const fn words(self) -> u16 {
        if self.bits() == 64 {
            2
        } else {
            1
        }
    }

    pub(crate) const fn format(self) -> Option<Format> {
        match self {
            Kind::F16 => Some(F16),
            Kind::F32 => Some(F32),
            Kind::F64 => Some(F64),
            _ => None,
        }
    }

    pub(crate) const fn signed(self) -> bool {
        matches!(self, Kind::I16 | Kind::I32 | Kind::I64)
    }

    pub(crate) const fn mask(self) -> u64 {
        match self.bits() {
            8 => 0xff,
            16 => 0xffff,
            32 => 0xffff_ffff,
            _ => u64::MAX,
        }
    }

    /// The value as an integer.
    pub(crate) fn integer(self, bits: u64) -> i128 {
        let bits = bits & self.mask();
        if self.signed() {
            i128::from(sign_extend(bits, self.bits()))
        } else {
            i128::from(bits)
        }
    }

    /// The bits of an integer: wrapped, or the nearest that the kind has.
    pub(crate) fn wrap(self, value: i128, saturate: bool) -> u64 {
        let value = if saturate {
            let (low, high) = match (self.signed(), self.bits()) {
                (true, bits) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                (false, bits) => (0, (1i128 << bits) - 1),
            };
            value.clamp(low, high)
        } else {
            value
        };
        low64(value.unsigned_abs()).wrapping_mul(if value < 0 { u64::MAX } else { 1 }) & self.mask()
    }
}

/// The lower half.
pub(crate) fn low64(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).unwrap_or(0)
}

/// The lower half.
pub(crate) fn low32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

/// `bits` from its `width` lowest bits on, sign-extended.
pub(crate) fn sign_extend(bits: u64, width: u32) -> i64 {
    if width == 0 {
        return 0;
    }
    let up = 64 - width.min(64);
    (bits << up) as i64 >> up
}
