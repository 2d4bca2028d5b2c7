// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Masks of lanes, by the registers that a walk over code began with ([`Mask`]).
//!
//! A group's last sum is often that of one wave. The code behind the barrier compares the items'
//! numbers, keeps some lanes, and branches if there are none. So a walk knows which waves go on
//! there.

use super::number::{Change, Number};
use crate::wave::Wave;
use vkfd_isa::Op;

/// What lanes are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Row(u16, Change),
    Number(Number),
}

/// A word of each lane.
type Words = [u32; 64];

impl Side {
    fn of(self, wave: &Wave) -> Words {
        match self {
            Side::Row(row, change) => {
                wave.rows.get(usize::from(row)).map_or([0; 64], |row| row.0.map(|lane| change.of(lane)))
            }
            Side::Number(number) => [number.of(&wave.scalar); 64],
        }
    }
}

/// Lanes, among those that are active at the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    /// Those of a mask in scalar registers, from this one on.
    Register(u8),
    Compared(Op, [Side; 2]),
}

impl Mask {
    /// Whether a wave has one of them.
    pub(super) fn has_any(self, wave: &Wave) -> bool {
        let mask = match self {
            Mask::Register(n) => {
                let [low, high] = [n, n + 1].map(|n| u64::from(wave.scalar[usize::from(n) % 128]));
                low | high << 32
            }
            Mask::Compared(op, [one, other]) => {
                comparison(op).map_or(u64::MAX, |compare| compare(&one.of(wave), &other.of(wave)))
            }
        };
        mask & wave.exec() & wave.all() != 0
    }
}

fn lanes(one: &Words, other: &Words, test: impl Fn(u32, u32) -> bool) -> u64 {
    let tests = one.iter().zip(other).map(|(one, other)| u64::from(test(*one, *other)));
    tests.zip(0..64).fold(0, |all, (bit, lane)| all | bit << lane)
}

const fn signed(word: u32) -> i32 {
    i32::from_ne_bytes(word.to_ne_bytes())
}

/// A bit for each lane that compares so: the comparisons that are followed.
pub(super) fn comparison(op: Op) -> Option<fn(&Words, &Words) -> u64> {
    Some(match op {
        Op::VCmpEqU32 | Op::VCmpEqI32 => |one, other| lanes(one, other, |one, other| one == other),
        Op::VCmpNeU32 | Op::VCmpNeI32 => |one, other| lanes(one, other, |one, other| one != other),
        Op::VCmpLtU32 => |one, other| lanes(one, other, |one, other| one < other),
        Op::VCmpLeU32 => |one, other| lanes(one, other, |one, other| one <= other),
        Op::VCmpGtU32 => |one, other| lanes(one, other, |one, other| one > other),
        Op::VCmpGeU32 => |one, other| lanes(one, other, |one, other| one >= other),
        Op::VCmpLtI32 => |one, other| lanes(one, other, |one, other| signed(one) < signed(other)),
        Op::VCmpLeI32 => |one, other| lanes(one, other, |one, other| signed(one) <= signed(other)),
        Op::VCmpGtI32 => |one, other| lanes(one, other, |one, other| signed(one) > signed(other)),
        Op::VCmpGeI32 => |one, other| lanes(one, other, |one, other| signed(one) >= signed(other)),
        _ => return None,
    })
}
