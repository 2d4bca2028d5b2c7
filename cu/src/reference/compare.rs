// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector comparisons: a bit for each lane, in VCC, in scalar registers or in EXEC.
//!
//! Lanes that are not active get zero. `v_cmpx` writes EXEC; up to gfx9 also the destination.

use super::float::{Format, Fpu, F16, F32, F64};
use super::kind::Kind;
use super::lanes::Sources;
use super::operand::{self, check_scalar};
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Mode, Wave};
use std::cmp::Ordering;
use vkfd_isa::{Inst, Op, Operand};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Kind of both sources.
    pub(crate) kind: Kind,
    pub(crate) test: Test,
    /// The answer goes to EXEC.
    pub(crate) exec: bool,
}

/// A relation or a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// By the number in the manual's order of a row of comparisons.
    Relation(usize),
    /// Whether the first source is of one of the classes in the second.
    Class,
}

/// A row of comparisons: their kind, whether EXEC is written, and the operations in the manual's
/// order.
type Line = (Kind, bool, &'static [Op]);

#[rustfmt::skip]
const LINES: [Line; 18] = [
    (Kind::F16, false, &[
        Op::VCmpFF16, Op::VCmpLtF16, Op::VCmpEqF16, Op::VCmpLeF16, Op::VCmpGtF16, Op::VCmpLgF16, Op::VCmpGeF16, Op::VCmpOF16,
        Op::VCmpUF16, Op::VCmpNgeF16, Op::VCmpNlgF16, Op::VCmpNgtF16, Op::VCmpNleF16, Op::VCmpNeqF16, Op::VCmpNltF16, Op::VCmpTruF16,
    ]),
    (Kind::F32, false, &[
        Op::VCmpFF32, Op::VCmpLtF32, Op::VCmpEqF32, Op::VCmpLeF32, Op::VCmpGtF32, Op::VCmpLgF32, Op::VCmpGeF32, Op::VCmpOF32,
        Op::VCmpUF32, Op::VCmpNgeF32, Op::VCmpNlgF32, Op::VCmpNgtF32, Op::VCmpNleF32, Op::VCmpNeqF32, Op::VCmpNltF32, Op::VCmpTruF32,
    ]),
    (Kind::F64, false, &[
        Op::VCmpFF64, Op::VCmpLtF64, Op::VCmpEqF64, Op::VCmpLeF64, Op::VCmpGtF64, Op::VCmpLgF64, Op::VCmpGeF64, Op::VCmpOF64,
        Op::VCmpUF64, Op::VCmpNgeF64, Op::VCmpNlgF64, Op::VCmpNgtF64, Op::VCmpNleF64, Op::VCmpNeqF64, Op::VCmpNltF64, Op::VCmpTruF64,
    ]),
    (Kind::I16, false, &[
        Op::VCmpFI16, Op::VCmpLtI16, Op::VCmpEqI16, Op::VCmpLeI16, Op::VCmpGtI16, Op::VCmpNeI16, Op::VCmpGeI16, Op::VCmpTI16,
    ]),
    (Kind::U16, false, &[
        Op::VCmpFU16, Op::VCmpLtU16, Op::VCmpEqU16, Op::VCmpLeU16, Op::VCmpGtU16, Op::VCmpNeU16, Op::VCmpGeU16, Op::VCmpTU16,
    ]),
    (Kind::I32, false, &[
        Op::VCmpFI32, Op::VCmpLtI32, Op::VCmpEqI32, Op::VCmpLeI32, Op::VCmpGtI32, Op::VCmpNeI32, Op::VCmpGeI32, Op::VCmpTI32,
    ]),
    (Kind::U32, false, &[
        Op::VCmpFU32, Op::VCmpLtU32, Op::VCmpEqU32, Op::VCmpLeU32, Op::VCmpGtU32, Op::VCmpNeU32, Op::VCmpGeU32, Op::VCmpTU32,
    ]),
    (Kind::I64, false, &[
        Op::VCmpFI64, Op::VCmpLtI64, Op::VCmpEqI64, Op::VCmpLeI64, Op::VCmpGtI64, Op::VCmpNeI64, Op::VCmpGeI64, Op::VCmpTI64,
    ]),
    (Kind::U64, false, &[
        Op::VCmpFU64, Op::VCmpLtU64, Op::VCmpEqU64, Op::VCmpLeU64, Op::VCmpGtU64, Op::VCmpNeU64, Op::VCmpGeU64, Op::VCmpTU64,
    ]),
    (Kind::F16, true, &[
        Op::VCmpxFF16, Op::VCmpxLtF16, Op::VCmpxEqF16, Op::VCmpxLeF16, Op::VCmpxGtF16, Op::VCmpxLgF16, Op::VCmpxGeF16, Op::VCmpxOF16,
        Op::VCmpxUF16, Op::VCmpxNgeF16, Op::VCmpxNlgF16, Op::VCmpxNgtF16, Op::VCmpxNleF16, Op::VCmpxNeqF16, Op::VCmpxNltF16, Op::VCmpxTruF16,
    ]),
    (Kind::F32, true, &[
        Op::VCmpxFF32, Op::VCmpxLtF32, Op::VCmpxEqF32, Op::VCmpxLeF32, Op::VCmpxGtF32, Op::VCmpxLgF32, Op::VCmpxGeF32, Op::VCmpxOF32,
        Op::VCmpxUF32, Op::VCmpxNgeF32, Op::VCmpxNlgF32, Op::VCmpxNgtF32, Op::VCmpxNleF32, Op::VCmpxNeqF32, Op::VCmpxNltF32, Op::VCmpxTruF32,
    ]),
    (Kind::F64, true, &[
        Op::VCmpxFF64, Op::VCmpxLtF64, Op::VCmpxEqF64, Op::VCmpxLeF64, Op::VCmpxGtF64, Op::VCmpxLgF64, Op::VCmpxGeF64, Op::VCmpxOF64,
        Op::VCmpxUF64, Op::VCmpxNgeF64, Op::VCmpxNlgF64, Op::VCmpxNgtF64, Op::VCmpxNleF64, Op::VCmpxNeqF64, Op::VCmpxNltF64, Op::VCmpxTruF64,
    ]),
    (Kind::I16, true, &[
        Op::VCmpxFI16, Op::VCmpxLtI16, Op::VCmpxEqI16, Op::VCmpxLeI16, Op::VCmpxGtI16, Op::VCmpxNeI16, Op::VCmpxGeI16, Op::VCmpxTI16,
    ]),
    (Kind::U16, true, &[
        Op::VCmpxFU16, Op::VCmpxLtU16, Op::VCmpxEqU16, Op::VCmpxLeU16, Op::VCmpxGtU16, Op::VCmpxNeU16, Op::VCmpxGeU16, Op::VCmpxTU16,
    ]),
    (Kind::I32, true, &[
        Op::VCmpxFI32, Op::VCmpxLtI32, Op::VCmpxEqI32, Op::VCmpxLeI32, Op::VCmpxGtI32, Op::VCmpxNeI32, Op::VCmpxGeI32, Op::VCmpxTI32,
    ]),
    (Kind::U32, true, &[
        Op::VCmpxFU32, Op::VCmpxLtU32, Op::VCmpxEqU32, Op::VCmpxLeU32, Op::VCmpxGtU32, Op::VCmpxNeU32, Op::VCmpxGeU32, Op::VCmpxTU32,
    ]),
    (Kind::I64, true, &[
        Op::VCmpxFI64, Op::VCmpxLtI64, Op::VCmpxEqI64, Op::VCmpxLeI64, Op::VCmpxGtI64, Op::VCmpxNeI64, Op::VCmpxGeI64, Op::VCmpxTI64,
    ]),
    (Kind::U64, true, &[
        Op::VCmpxFU64, Op::VCmpxLtU64, Op::VCmpxEqU64, Op::VCmpxLeU64, Op::VCmpxGtU64, Op::VCmpxNeU64, Op::VCmpxGeU64, Op::VCmpxTU64,
    ]),
];

/// What a comparison asks.
pub(crate) fn question(op: Op) -> Option<Question> {
    let class = |kind, exec| Some(Question { kind, test: Test::Class, exec });
    match op {
        Op::VCmpClassF16 => return class(Kind::F16, false),
        Op::VCmpClassF32 => return class(Kind::F32, false),
        Op::VCmpClassF64 => return class(Kind::F64, false),
        Op::VCmpxClassF16 => return class(Kind::F16, true),
        Op::VCmpxClassF32 => return class(Kind::F32, true),
        Op::VCmpxClassF64 => return class(Kind::F64, true),
        _ => {}
    }
    LINES.iter().find_map(|&(kind, exec, ops)| {
        let at = ops.iter().position(|&other| other == op)?;
        Some(Question { kind, test: Test::Relation(at), exec })
    })
}

/// Relations of floating-point numbers; without an order there is a NaN.
fn float_relation(at: usize, order: Option<Ordering>) -> bool {
    let (less, equal, greater) =
        (order == Some(Ordering::Less), order == Some(Ordering::Equal), order == Some(Ordering::Greater));
    // The second half of the row is the first half's negation, in reverse.
    let first = |at| match at {
        0 => false,
        1 => less,
        2 => equal,
        3 => less || equal,
        4 => greater,
        5 => less || greater,
        6 => greater || equal,
        _ => order.is_some(),
    };
    match at {
        0..=7 => first(at),
        8 => !first(7),
        9 => !first(6),
        10 => !first(5),
        11 => !first(4),
        12 => !first(3),
        13 => !first(2),
        14 => !first(1),
        _ => true,
    }
}

fn integer_relation(at: usize, a: i128, b: i128) -> bool {
    match at {
        0 => false,
        1 => a < b,
        2 => a == b,
        3 => a <= b,
        4 => a > b,
        5 => a != b,
        6 => a >= b,
        _ => true,
    }
}

/// The bit of a mask of classes that is a number's.
fn class(f: Format, a: u64) -> u32 {
    let signed = |negative: u32, positive: u32| if f.negative(a) { negative } else { positive };
    if f.is_signalling(a) {
        0
    } else if f.is_nan(a) {
        1
    } else if f.is_infinite(a) {
        signed(2, 9)
    } else if f.is_zero(a) {
        signed(5, 6)
    } else if f.is_denormal(a) {
        signed(4, 7)
    } else {
        signed(3, 8)
    }
}

impl Question {
    /// The answer for one lane.
    pub(crate) fn answer(&self, mode: Mode, a: u64, b: u64) -> bool {
        match (self.test, self.kind) {
            (Test::Class, Kind::F16) => b >> class(F16, a) & 1 == 1,
            (Test::Class, Kind::F32) => b >> class(F32, a) & 1 == 1,
            (Test::Class, _) => b >> class(F64, a) & 1 == 1,
            (Test::Relation(at), kind) => match kind.format() {
                Some(format) => float_relation(at, Fpu::new(format, mode).compare(a, b)),
                None => integer_relation(at, kind.integer(a), kind.integer(b)),
            },
        }
    }
}

/// Executes a comparison; nothing if the operation is none.
pub(crate) fn execute(inst: &Inst, wave: &mut Wave, group: &Group) -> Option<Result<(), Exit>> {
    question(inst.op).map(|question| compare(&question, inst, wave, group))
}

fn compare(question: &Question, inst: &Inst, wave: &mut Wave, group: &Group) -> Result<(), Exit> {
    let second = match (question.test, question.kind) {
        (Test::Class, Kind::F16) => Kind::B16,
        (Test::Class, _) => Kind::B32,
        (_, kind) => kind,
    };
    let kinds = [question.kind, second, Kind::B32];
    let sources = Sources::read(inst, wave, group, &kinds, 2, false)?;
    check_scalar(wave, inst.dst, if wave.lanes == 32 { Kind::B32 } else { Kind::B64 })?;
    let active = wave.exec() & sources.write;
    let mut mask = 0;
    for lane in 0..64 {
        let [a, b, _] = sources.lane(lane);
        if active >> lane & 1 == 1 && question.answer(wave.mode, a, b) {
            mask |= 1 << lane;
        }
    }
    if question.exec {
        if wave.target.is_gfx9() {
            operand::set_mask(wave, inst.dst, mask)?;
        }
        return operand::set_mask(wave, Operand::Scalar(Operand::EXEC), mask);
    }
    operand::set_mask(wave, inst.dst, mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_with_a_nan_are_the_negated_ones() {
        let holds: Vec<usize> = (0..16).filter(|&at| float_relation(at, None)).collect();
        assert_eq!(holds, [8, 9, 10, 11, 12, 13, 14, 15]);
        let holds: Vec<usize> = (0..16).filter(|&at| float_relation(at, Some(Ordering::Less))).collect();
        assert_eq!(holds, [1, 3, 5, 7, 9, 11, 13, 15]);
    }

    #[test]
    fn classes_are_told_apart() {
        let class32 = |bits| class(F32, bits);
        assert_eq!(class32(0x7f80_0001), 0);
        assert_eq!(class32(0x7fc0_0000), 1);
        assert_eq!(class32(0xff80_0000), 2);
        assert_eq!(class32(0xbf80_0000), 3);
        assert_eq!(class32(0x8000_0001), 4);
        assert_eq!(class32(0x8000_0000), 5);
        assert_eq!(class32(0), 6);
        assert_eq!(class32(1), 7);
        assert_eq!(class32(0x3f80_0000), 8);
        assert_eq!(class32(0x7f80_0000), 9);
    }
}
