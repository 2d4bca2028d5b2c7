// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers that a walk over code has followed, by the registers that it began with: of scalar
//! registers ([`Number`]), and of the lanes of a row ([`Change`]).

/// A number: that of a scalar register at the begin, if there is one, plus another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    register: Option<u8>,
    plus: u32,
}

impl Number {
    pub(super) const fn constant(plus: u32) -> Number {
        Number { register: None, plus }
    }

    /// What a register had at the begin.
    pub(super) const fn register(n: u8) -> Number {
        Number { register: Some(n), plus: 0 }
    }

    pub(super) fn add(self, other: Number) -> Option<Number> {
        let register = match (self.register, other.register) {
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        Some(Number { register, plus: self.plus.wrapping_add(other.plus) })
    }

    pub(super) fn negative(self) -> Option<Number> {
        self.register.is_none().then_some(Number::constant(self.plus.wrapping_neg()))
    }

    /// With the scalar registers of the begin.
    pub(super) fn of(self, scalars: &[u32; 128]) -> u32 {
        self.register.map_or(0, |n| scalars[usize::from(n) % 128]).wrapping_add(self.plus)
    }
}

/// What has become of each lane of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) flips: u32,
    pub(super) plus: u32,
}

impl Change {
    /// Of a lane's number at the begin.
    #[inline(always)]
    pub(super) fn of(self, lane: u32) -> u32 {
        (lane ^ self.flips).wrapping_add(self.plus)
    }
}
