// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the translators of instructions work with: the layout, constants, and the sources of
//! instructions as handlers want them.

use super::constants::Constants;
use super::layout::{constant32, Layout};
use super::prepare::{self, Part};
use super::step::{Place, Source, Step, ROW};
use super::Vectors;
use crate::reference::{self, Kind};
use vkfd_isa::Operand;

/// What a source is.
pub(super) enum Given {
    Row(Source),
    Scalar(u8),
    Constant(u32),
}

/// Makes steps of instructions.
pub(super) struct Builder<'a> {
    pub(super) layout: Layout,
    pub(super) avx2: bool,
    pub(super) avx512: bool,
    pub(super) constants: &'a mut Constants,
}

impl<'a> Builder<'a> {
    pub(super) fn new(layout: Layout, vectors: Vectors, constants: &'a mut Constants) -> Self {
        Builder { layout, avx2: vectors >= Vectors::Avx2, avx512: vectors >= Vectors::Avx512, constants }
    }

    /// A source of a scalar operation. Above a literal are zeros.
    pub(super) fn scalar_source(&mut self, operand: Operand, words: u8) -> Option<Source> {
        match operand {
            Operand::Scalar(_) => Some(Source::register(usize::from(self.layout.scalar(operand, words)?) * 4)),
            Operand::Int(value) => Some(self.constants.word64(i64::from(value) as u64)),
            Operand::Literal(value) => Some(self.constants.word64(value.into())),
            Operand::Float(_) if words == 1 => Some(self.constants.word64(constant32(operand)?.into())),
            _ => None,
        }
    }

    /// What a source is.
    pub(super) fn source(&mut self, operand: Operand, kind: Kind) -> Option<Given> {
        Some(match operand {
            Operand::Vgpr(_) | Operand::Agpr(_) => Given::Row(Source::register(self.layout.row(operand, 1)? * ROW)),
            Operand::Scalar(_) => Given::Scalar(self.layout.scalar(operand, 1)?),
            Operand::Int(value) => Given::Constant(i32::from(value) as u32),
            Operand::Literal(value) => Given::Constant(value),
            Operand::Float(code) => Given::Constant(reference::inline_float(code, kind) as u32),
            _ => return None,
        })
    }

    /// A source that has to be a row, by a step that makes one if it is not, or is not to be as it
    /// is.
    pub(super) fn part_source(
        &mut self,
        operand: Operand,
        kind: Kind,
        part: Part,
        slot: usize,
        place: Place,
        steps: &mut Vec<Step>,
    ) -> Option<Source> {
        let source = self.source(operand, kind)?;
        Some(self.part_step(&source, part, slot, place, steps))
    }

    /// The source that a step gets: itself, or a temporary row of a part of it.
    pub(super) fn part_step(
        &mut self,
        source: &Given,
        part: Part,
        slot: usize,
        place: Place,
        steps: &mut Vec<Step>,
    ) -> Source {
        match source {
            Given::Row(row) if part == Part::ALL => return *row,
            Given::Constant(value) => return self.constants.row(part.of(*value)),
            _ => {}
        }
        let (address, temporary) = self.constants.temporary(slot);
        let mut step = place.step(prepare::part(self.avx2));
        match source {
            Given::Scalar(n) => (step.scalar[0], step.scalar[1]) = (*n, 1),
            Given::Row(row) => step.src[0] = *row,
            Given::Constant(_) => {}
        }
        step.scalar[2] = part.from;
        step.scalar[3] = part.width | u8::from(part.signed) << 7;
        step.imm = (u64::from(part.keep) | u64::from(part.turn) << 32) as i64;
        step.dst = address;
        steps.push(step);
        temporary
    }

    /// A source of single precision or of 32 bits as a row, with its modifiers.
    pub(super) fn row_source(
        &mut self,
        operand: Operand,
        (abs, neg): (bool, bool),
        slot: usize,
        place: Place,
        steps: &mut Vec<Step>,
    ) -> Option<Source> {
        let keep = if abs { 0x7fff_ffff } else { u32::MAX };
        let part = Part { keep, turn: if neg { 1 << 31 } else { 0 }, ..Part::ALL };
        self.part_source(operand, Kind::B32, part, slot, place, steps)
    }

    /// A source of a packed operation: a row of the halves that it takes, those of `turn` turned.
    pub(super) fn halves_source(
        &mut self,
        operand: Operand,
        kind: Kind,
        (select, turn): ([bool; 2], u32),
        slot: usize,
        place: Place,
        steps: &mut Vec<Step>,
    ) -> Option<Source> {
        let [low, high] = select;
        let source = self.source(operand, kind)?;
        if let Given::Constant(value) = source {
            let half = |high: bool| if high { value >> 16 } else { value & 0xffff };
            return Some(self.constants.row((half(low) | half(high) << 16) ^ turn));
        }
        if let (Given::Row(row), [false, true], 0) = (&source, select, turn) {
            return Some(*row);
        }
        let (address, temporary) = self.constants.temporary(slot);
        let mut step = place.step(prepare::halves(self.avx2));
        match source {
            Given::Scalar(n) => (step.scalar[0], step.scalar[1]) = (n, 1),
            Given::Row(row) => step.src[0] = row,
            Given::Constant(_) => {}
        }
        step.scalar[2] = prepare::SWAP.iter().position(|other| *other == select)? as u8;
        step.imm = turn.into();
        step.dst = address;
        steps.push(step);
        Some(temporary)
    }
}
