// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a walk over code knows of a wave's registers, by those that it began with ([`Known`]).
//!
//! A scalar register is known if it has what another one had at the begin, plus a constant. A row
//! is known if each lane has what it had there, after an exclusive or and a sum with constants.
//! SCC is known as a comparison of two such numbers. Nothing here depends on a wave, so that one
//! walk serves all of them.

use super::super::layout::{constant32, Layout};
use crate::reference::scalar::comparison;
use crate::reference::Kind;
use vkfd_isa::{Extension, Inst, Mods, Op, Operand};
use vkfd_lint::live::{Code, Registers, VECTOR};

/// Registers of each kind that are followed after a change.
const FOLLOWED: usize = 8;

/// A number: that of a scalar register at the begin, if there is one, plus another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    register: Option<u8>,
    plus: u32,
}

impl Number {
    const fn constant(plus: u32) -> Number {
        Number { register: None, plus }
    }

    fn add(self, other: Number) -> Option<Number> {
        let register = match (self.register, other.register) {
            (Some(_), Some(_)) => return None,
            (one, other) => one.or(other),
        };
        Some(Number { register, plus: self.plus.wrapping_add(other.plus) })
    }

    fn negative(self) -> Option<Number> {
        self.register.is_none().then_some(Number::constant(self.plus.wrapping_neg()))
    }

    /// With the scalar registers of the begin.
    fn of(self, scalars: &[u32; 128]) -> u32 {
        self.register.map_or(0, |n| scalars[usize::from(n) % 128]).wrapping_add(self.plus)
    }
}

/// What has become of each lane of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    flips: u32,
    plus: u32,
}

impl Change {
    /// Of a lane's number at the begin.
    #[inline(always)]
    pub(super) fn of(self, lane: u32) -> u32 {
        (lane ^ self.flips).wrapping_add(self.plus)
    }
}

/// SCC, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// That of the begin.
    Begin,
    Compares(Op, Number, Number),
    Unknown,
}

impl Flag {
    /// With the registers of the begin, if it is known.
    pub(super) fn of(self, scalars: &[u32; 128], begin: bool) -> Option<bool> {
        match self {
            Flag::Begin => Some(begin),
            Flag::Compares(op, one, other) => {
                let (_, test) = comparison(op)?;
                Some(test(one.of(scalars).into(), other.of(scalars).into()))
            }
            Flag::Unknown => None,
        }
    }
}

/// The registers of a wave, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    changed: Registers,
    numbers: [Option<(u8, Number)>; FOLLOWED],
    rows: [Option<(u16, Change)>; FOLLOWED],
    pub(super) flag: Flag,
    /// Nothing is known, or rows have been written by other lanes than those of the begin.
    nothing: bool,
    other_lanes: bool,
}

impl Known {
    pub(super) const BEGIN: Known = Known {
        changed: Registers::NONE,
        numbers: [None; FOLLOWED],
        rows: [None; FOLLOWED],
        flag: Flag::Begin,
        nothing: false,
        other_lanes: false,
    };
    pub(super) const NOTHING: Known = Known { flag: Flag::Unknown, nothing: true, other_lanes: true, ..Known::BEGIN };

    /// A scalar register, or a constant.
    fn number(&self, layout: Layout, operand: Operand) -> Option<Number> {
        if let Some(constant) = constant32(operand) {
            return Some(Number::constant(constant));
        }
        let n = layout.scalar(operand, 1)?;
        match self.numbers.iter().flatten().find(|(register, _)| *register == n) {
            Some((_, number)) => Some(*number),
            None if self.nothing || self.changed.has(n.into()) => None,
            None => Some(Number { register: Some(n), plus: 0 }),
        }
    }

    /// What has become of a row.
    pub(super) fn row(&self, row: u16) -> Option<Change> {
        match self.rows.iter().flatten().find(|(other, _)| *other == row) {
            Some((_, change)) => Some(*change),
            None if self.nothing || self.changed.has(VECTOR + row) => None,
            None => Some(Change::default()),
        }
    }

    /// An instruction is done.
    pub(super) fn step(&mut self, layout: Layout, inst: &Inst) {
        // Registers that an index chooses.
        if inst.op.name().contains("rel") {
            *self = Known::NOTHING;
            return;
        }
        let (number, row) = (self.scalar_result(layout, inst), self.row_result(layout, inst));
        let flag = self.flag_result(layout, inst);
        let results = Code::new(layout.target, layout.lanes, 0, &[], inst).changed();
        let stay = |register: u16| !results.has(register);
        self.numbers.iter_mut().for_each(|slot| *slot = slot.filter(|(n, _)| stay((*n).into())));
        self.rows.iter_mut().for_each(|slot| *slot = slot.filter(|(row, _)| stay(VECTOR + row)));
        self.changed.join(&results);
        // Those lanes that have not been active keep what they had.
        if !stay(Operand::EXEC.into()) || !stay(u16::from(Operand::EXEC) + 1) {
            self.rows = [None; FOLLOWED];
            self.other_lanes = true;
        }
        self.flag = flag;
        if let (Some(number), Some(slot)) = (number, self.numbers.iter_mut().find(|slot| slot.is_none())) {
            *slot = Some(number);
        }
        if let (Some(row), Some(slot)) = (row, self.rows.iter_mut().find(|slot| slot.is_none())) {
            *slot = Some(row);
        }
    }

    fn scalar_result(&self, layout: Layout, inst: &Inst) -> Option<(u8, Number)> {
        let source = |n: usize| self.number(layout, inst.src[n]);
        let imm = Number::constant(inst.imm as u32);
        let number = match inst.op {
            Op::SMovB32 => source(0)?,
            Op::SMovkI32 => imm,
            Op::SAddU32 | Op::SAddI32 => source(0)?.add(source(1)?)?,
            Op::SSubU32 | Op::SSubI32 => source(0)?.add(source(1)?.negative()?)?,
            Op::SAddkI32 => self.number(layout, inst.dst)?.add(imm)?,
            _ => return None,
        };
        Some((layout.scalar(inst.dst, 1)?, number))
    }

    fn row_result(&self, layout: Layout, inst: &Inst) -> Option<(u16, Change)> {
        if self.other_lanes || inst.extension != Extension::None || inst.mods != Mods::default() {
            return None;
        }
        let row = |operand: Operand| match operand {
            Operand::Vgpr(n) => Some(n),
            _ => None,
        };
        let (one, other) = (inst.src[0], inst.src[1]);
        let (changed, by) = match (row(one), row(other)) {
            (Some(changed), None) => (changed, constant32(other)?),
            (None, Some(changed)) => (changed, constant32(one)?),
            _ => return None,
        };
        let change = self.row(changed)?;
        let change = match inst.op {
            Op::VXorB32 if change.plus == 0 => Change { flips: change.flips ^ by, ..change },
            Op::VAddU32 | Op::VAddCoU32 => Change { plus: change.plus.wrapping_add(by), ..change },
            _ => return None,
        };
        layout.row(inst.dst, 1)?;
        Some((row(inst.dst)?, change))
    }

    fn flag_result(&self, layout: Layout, inst: &Inst) -> Flag {
        use vkfd_isa::Format::{Sop1, Sop2, Sopc, Sopk};
        match inst.format {
            Sop1 | Sop2 | Sopk | Sopc => {}
            _ => return self.flag,
        }
        if matches!(inst.op, Op::SMovB32 | Op::SMovB64 | Op::SMovkI32) {
            return self.flag;
        }
        let compared = || {
            let (Kind::B32, _) = comparison(inst.op)? else { return None };
            let (one, other) = match inst.format {
                // Some of these immediates have a sign, and some have none.
                Sopk if inst.imm >= 0 => (inst.dst, Number::constant(inst.imm as u32)),
                Sopc => (inst.src[0], self.number(layout, inst.src[1])?),
                _ => return None,
            };
            Some(Flag::Compares(inst.op, self.number(layout, one)?, other))
        };
        compared().unwrap_or(Flag::Unknown)
    }
}
