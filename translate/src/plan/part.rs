// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Parts of registers: those that SDWA takes and writes, and the halves of mixed precision.

use crate::ops::How;
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

/// What an instruction takes of its sources, and where its result goes if not to a whole register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) sources: [Part; 3],
    /// Sources that are halves, of which singles are made.
    pub(crate) halves: u8,
    pub(crate) placed: Option<Placed>,
}

impl Parts {
    const ALL: Parts = Parts { sources: [Part::ALL; 3], halves: 0, placed: None };

    pub(super) fn of(inst: &Inst, how: How) -> Result<Parts, Why> {
        let mut parts = Parts::ALL;
        if inst.op == Op::VFmaMixF32 {
            parts.halves = inst.mods.op_sel_hi & 7;
            for (index, part) in parts.sources.iter_mut().enumerate() {
                if parts.halves >> index & 1 != 0 {
                    let from = if inst.mods.op_sel >> index & 1 != 0 { 16 } else { 0 };
                    *part = Part { from, width: 16, signed: false };
                }
            }
            return Ok(parts);
        }
        let sdwa = match &inst.extension {
            Extension::None => return Ok(parts),
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
}
