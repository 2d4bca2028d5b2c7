// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Parts of registers: those that SDWA takes and writes, and the halves of mixed precision.

use crate::ops::{self, How};
use crate::Why;
use vkfd_isa::{Extension, Inst, Op, SdwaSelect, SdwaUnused};

/// A part of a source, extended to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) from: u8,
    pub(crate) width: u8,
    /// Its sign goes up; otherwise zeros do.
    pub(crate) signed: bool,
}

impl Part {
    pub(crate) const ALL: Part = Part { from: 0, width: 32, signed: false };

    fn of(select: SdwaSelect, signed: bool) -> Part {
        let (from, width) = match select {
            SdwaSelect::Byte0 => (0, 8),
            SdwaSelect::Byte1 => (8, 8),
            SdwaSelect::Byte2 => (16, 8),
            SdwaSelect::Byte3 => (24, 8),
            SdwaSelect::Word0 => (0, 16),
            SdwaSelect::Word1 => (16, 16),
            SdwaSelect::Dword => (0, 32),
        };
        Part { from, width, signed: signed && width < 32 }
    }
}

/// Where a result goes in its register: the part, and whether the rest stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) part: Part,
    pub(crate) keeps: bool,
}

/// Which half of a source the low result takes, and which one the high result, and the signs that
/// are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) from: [bool; 2],
    pub(crate) signs: u32,
}

/// What an instruction takes of its sources, and where its result goes if not to a whole register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) sources: [Part; 3],
    /// Sources that are halves, of which singles are made.
    pub(crate) halves: u8,
    pub(crate) placed: Option<Placed>,
    /// Of an operation on both halves.
    pub(crate) chosen: Option<[Chosen; 3]>,
}

impl Parts {
    const ALL: Parts = Parts { sources: [Part::ALL; 3], halves: 0, placed: None, chosen: None };
    const LOW: Part = Part { from: 0, width: 16, signed: false };
    const HIGH: Part = Part { from: 16, width: 16, signed: false };

    /// `clears`: a result of 16 bits clears the other half of its register.
    pub(super) fn of(inst: &Inst, how: How, clears: bool) -> Result<Parts, Why> {
        let mut parts = Parts::ALL;
        if inst.op == Op::VFmaMixF32 {
            parts.halves = inst.mods.op_sel_hi & 7;
            for (index, part) in parts.sources.iter_mut().enumerate() {
                if parts.halves >> index & 1 != 0 {
                    *part = if inst.mods.op_sel >> index & 1 != 0 { Parts::HIGH } else { Parts::LOW };
                }
            }
            return Ok(parts);
        }
        let sdwa = match &inst.extension {
            Extension::None => {
                parts.choose(inst, clears);
                return Ok(parts);
            }
            Extension::Sdwa(sdwa) => sdwa,
            Extension::Dpp(_) => return Err(Why::Form),
        };
        for ((part, select), signed) in parts.sources.iter_mut().zip(sdwa.src).zip(sdwa.sext) {
            *part = Part::of(select, signed);
        }
        let part = Part::of(sdwa.dst, sdwa.unused == SdwaUnused::Sext);
        match how {
            How::Compare(_) => {}
            _ if part == Part::ALL => {}
            How::Unary(_) | How::Binary(_) | How::Ternary(_) => {
                parts.placed = Some(Placed { part, keeps: sdwa.unused == SdwaUnused::Preserve });
            }
            _ => return Err(Why::Form),
        }
        Ok(parts)
    }

    /// The halves that `op_sel` chooses.
    fn choose(&mut self, inst: &Inst, clears: bool) {
        let (op, mods) = (inst.op, &inst.mods);
        let is_high = |index: usize| mods.op_sel >> index & 1 != 0;
        if ops::is_packed(op) {
            let bit = |mask: u8, index: usize, at: u32| u32::from(mask >> index & 1) << at;
            self.chosen = Some([0, 1, 2].map(|index| Chosen {
                from: [is_high(index), mods.op_sel_hi >> index & 1 != 0],
                signs: bit(mods.neg, index, 15) | bit(mods.neg_hi, index, 31),
            }));
            return;
        }
        if ops::has_half_sources(op) {
            let high = self.sources.iter_mut().enumerate().filter(|(index, _)| is_high(*index));
            high.for_each(|(_, part)| *part = Parts::HIGH);
        }
        if ops::has_half_result(op) && (is_high(3) || !clears) {
            self.placed = Some(Placed { part: if is_high(3) { Parts::HIGH } else { Parts::LOW }, keeps: true });
        }
    }
}
