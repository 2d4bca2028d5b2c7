// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Short encodings with an extension word: what SDWA and DPP do around an operation, written a
//! second time for the test.

use crate::encode::SOURCES;
use crate::value::mask;
use crate::Random;
use vkfd_cu::Wave;

/// How a short operation is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Sdwa,
    Dpp,
}

/// The extension word of one case.
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    form: Form,
    word: u32,
    /// Width of the sources' floating-point format; 0 for integers.
    float: u32,
}

/// What the sources of an operation are, by the last part of its name: a floating-point format's
/// width, integers, or neither, which has no modifiers.
fn kind(name: &str) -> Option<u32> {
    let last = name.rsplit('_').next().unwrap_or("");
    let width = last.get(1..).and_then(|digits| digits.parse().ok());
    match (last.chars().next(), width) {
        (Some('F'), Some(width)) => Some(width),
        (Some('I' | 'U'), Some(_)) => Some(0),
        _ => None,
    }
}

impl Extension {
    pub fn random(form: Form, name: &str, random: &mut Random) -> Extension {
        let kind = kind(name).filter(|_| !name.contains("LDEXP"));
        let float = kind.unwrap_or(0);
        // Modifiers of the second source only where it is of the same kind.
        let second = !name.contains("CLASS");
        let bits = random.word();
        let bit = |n: u32, at: u32| (bits >> n & 1) << at;
        let word = match form {
            Form::Plain => 0,
            Form::Sdwa => {
                let select = |n: u32| (bits >> n) % 7;
                let unused = (bits >> 9) % 3;
                let mut word = SOURCES[0] | select(0) << 8 | unused << 11 | select(3) << 16 | select(6) << 24;
                match kind {
                    Some(0) => word |= bit(20, 19) | bit(21, 27),
                    Some(_) => word |= bit(20, 20) | bit(21, 21) | if second { bit(22, 28) | bit(23, 29) } else { 0 },
                    None => {}
                }
                word
            }
            Form::Dpp => {
                let amount = 1 + bits % 15;
                let control = match bits >> 8 & 7 {
                    0 | 1 => bits >> 12 & 0xff,
                    2 => 0x100 + amount,
                    3 => 0x110 + amount,
                    4 => 0x120 + amount,
                    5 => [0x130, 0x134, 0x138, 0x13c][(bits >> 12 & 3) as usize],
                    6 => 0x140 + (bits >> 12 & 1),
                    _ => 0x142 + (bits >> 12 & 1),
                };
                let banks = if bit(24, 0) == 1 { 15 } else { bits >> 20 & 15 };
                let rows = if bit(25, 0) == 1 { 15 } else { bits >> 16 & 15 };
                let mut word = SOURCES[0] | control << 8 | bit(26, 19) | banks << 24 | rows << 28;
                if float != 0 {
                    word |= bit(27, 20) | bit(28, 21) | if second { bit(29, 22) | bit(30, 23) } else { 0 };
                }
                word
            }
        };
        Extension { form, word, float }
    }

    /// The words with the extension's marker in place of the first source.
    pub fn encode(&self, plain: &[u32]) -> Vec<u32> {
        match self.form {
            Form::Plain => plain.to_vec(),
            Form::Sdwa => vec![plain[0] & !0x1ff | 0xf9, self.word],
            Form::Dpp => vec![plain[0] & !0x1ff | 0xfa, self.word],
        }
    }

    fn bit(&self, at: u32) -> bool {
        self.word >> at & 1 == 1
    }

    fn modified(&self, bits: u128, absolute: u32, negative: u32) -> u128 {
        if self.float == 0 {
            return bits;
        }
        let sign = 1u128 << (self.float - 1);
        let bits = if self.bit(absolute) { bits & !sign } else { bits };
        if self.bit(negative) {
            bits ^ sign
        } else {
            bits
        }
    }

    /// The sources that a lane has; none if the lane is left out.
    pub fn sources(&self, before: &Wave, exec: u64, lane: usize, plain: [u128; 2]) -> Option<[u128; 2]> {
        match self.form {
            Form::Plain => Some(plain),
            Form::Sdwa => {
                let take = |bits: u128, select: u32, extend: u32| {
                    let (from, width) = part(self.word >> select & 7);
                    let bits = bits >> from & mask(width);
                    let negative = bits >> (width - 1) & 1 == 1;
                    if self.float == 0 && self.bit(extend) && negative {
                        bits | mask(32) & !mask(width)
                    } else {
                        bits
                    }
                };
                let [a, b] = plain;
                Some([self.modified(take(a, 16, 19), 21, 20), self.modified(take(b, 24, 27), 29, 28)])
            }
            Form::Dpp => {
                let row = lane / 16;
                let bank = lane % 16 / 4;
                if !self.bit(28 + row as u32) || !self.bit(24 + bank as u32) {
                    return None;
                }
                let from = moved(self.word >> 8 & 0x1ff, lane).filter(|from| exec >> from & 1 == 1);
                let a = match from {
                    Some(from) => {
                        let word = |n: usize| u128::from(before.rows[SOURCES[0] as usize + n].0[from]);
                        word(0) | word(1) << 32
                    }
                    None if self.bit(19) => 0,
                    None => return None,
                };
                let [_, b] = plain;
                Some([self.modified(a, 21, 20), self.modified(b, 23, 22)])
            }
        }
    }

    /// The destination's word after the result is put into it.
    pub fn result(&self, old: u128, value: u128) -> u128 {
        if self.form != Form::Sdwa {
            return value;
        }
        let (from, width) = part(self.word >> 8 & 7);
        let bits = value & mask(width);
        match self.word >> 11 & 3 {
            0 => bits << from,
            1 if bits >> (width - 1) & 1 == 1 => (bits | !mask(width)) << from & mask(32),
            1 => bits << from,
            _ => old & mask(32) & !(mask(width) << from) | bits << from,
        }
    }
}

fn part(select: u32) -> (u32, u32) {
    match select {
        0..=3 => (8 * select, 8),
        4 | 5 => (16 * (select - 4), 16),
        _ => (0, 32),
    }
}

/// The lane that a control names.
fn moved(control: u32, lane: usize) -> Option<usize> {
    let n = (control & 15) as usize;
    let (row, column) = (lane / 16, lane % 16);
    let column = match control {
        0x000..=0x0ff => return Some(lane / 4 * 4 + (control as usize >> (lane % 4 * 2)) % 4),
        0x101..=0x10f => column + n,
        0x111..=0x11f => column.checked_sub(n)?,
        0x121..=0x12f => (16 + column - n) % 16,
        0x130 => return if lane == 63 { None } else { Some(lane + 1) },
        0x134 => return Some((lane + 1) % 64),
        0x138 => return lane.checked_sub(1),
        0x13c => return Some((lane + 63) % 64),
        0x140 => 15 - column,
        0x141 => column / 8 * 8 + 7 - column % 8,
        0x142 => return Some(if row == 0 { lane } else { row * 16 - 1 }),
        _ => return Some(if row < 2 { lane } else { 31 }),
    };
    if column < 16 {
        Some(row * 16 + column)
    } else {
        None
    }
}
