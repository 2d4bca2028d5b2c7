// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a walk over code knows of a wave's registers, by those that it began with ([`Known`]).
//!
//! A scalar register is known if it has what another one had at the begin, plus a constant. A row
//! is known if each lane has what it had there, after an exclusive or and a sum with constants.
//! SCC is known as a comparison of two such numbers, and EXEC as some of the lanes at the begin.
//! Nothing here depends on a wave, so that one walk serves all of them.

use super::super::layout::{constant32, Layout};
use super::mask::{self, Mask, Side};
use super::number::{Change, Number};
use crate::reference::scalar::comparison;
use crate::reference::Kind;
use crate::wave::Wave;
use vkfd_isa::{Extension, Inst, Mods, Op, Operand};
use vkfd_lint::live::{Code, Registers, VECTOR};

/// Registers of each kind that are followed after a change.
const FOLLOWED: usize = 8;

/// What a branch is decided by, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// SCC of the begin.
    Begin,
    Compares(Op, Number, Number),
    /// No lane of these is active.
    NoLanes(Mask),
    Unknown,
}

impl Flag {
    /// Of a wave at the begin, if it is known.
    pub(super) fn of(self, wave: &Wave) -> Option<bool> {
        match self {
            Flag::Begin => Some(wave.scc),
            Flag::Compares(op, one, other) => {
                let (_, test) = comparison(op)?;
                Some(test(one.of(&wave.scalar).into(), other.of(&wave.scalar).into()))
            }
            Flag::NoLanes(mask) => Some(!mask.has_any(wave)),
            Flag::Unknown => None,
        }
    }
}

/// The active lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Active {
    /// Those of the begin.
    Begin,
    /// Of these, those of a mask.
    Of(Mask),
    Unknown,
}

/// The registers of a wave, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    changed: Registers,
    numbers: [Option<(u8, Number)>; FOLLOWED],
    rows: [Option<(u16, Change)>; FOLLOWED],
    /// The last mask that was compared, by its scalar register.
    mask: Option<(u8, Mask)>,
    active: Active,
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
        mask: None,
        active: Active::Begin,
        flag: Flag::Begin,
        nothing: false,
        other_lanes: false,
    };
    pub(super) const NOTHING: Known =
        Known { flag: Flag::Unknown, active: Active::Unknown, nothing: true, other_lanes: true, ..Known::BEGIN };

    /// Whether there is no active lane.
    pub(super) fn has_no_lanes(&self) -> Flag {
        match self.active {
            Active::Of(mask) => Flag::NoLanes(mask),
            _ => Flag::Unknown,
        }
    }

    /// A scalar register, or a constant.
    fn number(&self, layout: Layout, operand: Operand) -> Option<Number> {
        if let Some(constant) = constant32(operand) {
            return Some(Number::constant(constant));
        }
        let n = layout.scalar(operand, 1)?;
        match self.numbers.iter().flatten().find(|(register, _)| *register == n) {
            Some((_, number)) => Some(*number),
            None if self.nothing || self.changed.has(n.into()) => None,
            None => Some(Number::register(n)),
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
        let (mask, active) = (self.mask_result(layout, inst), self.active_result(layout, inst));
        let results = Code::new(layout.target, layout.lanes, 0, &[], inst).changed();
        let stay = |register: u16| !results.has(register);
        self.numbers.iter_mut().for_each(|slot| *slot = slot.filter(|(n, _)| stay((*n).into())));
        self.rows.iter_mut().for_each(|slot| *slot = slot.filter(|(row, _)| stay(VECTOR + row)));
        self.changed.join(&results);
        // Those lanes that have not been active keep what they had.
        if !stay(Operand::EXEC.into()) || !stay(u16::from(Operand::EXEC) + 1) {
            self.rows = [None; FOLLOWED];
            self.active = active;
            self.other_lanes = true;
        }
        self.flag = flag;
        let stays = |n: u8| stay(n.into()) && stay(u16::from(n) + 1);
        self.mask = mask.or(self.mask.filter(|(n, _)| stays(*n)));
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

    /// A mask that is compared, of the begin's lanes.
    fn mask_result(&self, layout: Layout, inst: &Inst) -> Option<(u8, Mask)> {
        mask::comparison(inst.op)?;
        if self.active != Active::Begin || inst.extension != Extension::None || inst.mods != Mods::default() {
            return None;
        }
        let side = |operand| match operand {
            Operand::Vgpr(row) => Some(Side::Row(row, self.row(row)?)),
            _ => self.number(layout, operand).map(Side::Number),
        };
        let sides = [side(inst.src[0])?, side(inst.src[1])?];
        Some((layout.mask(inst.dst)?, Mask::Compared(inst.op, sides)))
    }

    /// What the active lanes become.
    fn active_result(&self, layout: Layout, inst: &Inst) -> Active {
        let keeps = matches!(inst.op, Op::SAndSaveexecB32 | Op::SAndSaveexecB64) && self.active == Active::Begin;
        let Some(n) = layout.mask(inst.src[0]).filter(|_| keeps) else { return Active::Unknown };
        match self.mask {
            Some((register, mask)) if register == n => Active::Of(mask),
            _ if self.changed.has(n.into()) || self.changed.has(u16::from(n) + 1) => Active::Unknown,
            _ => Active::Of(Mask::Register(n)),
        }
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
