// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads and stores of memory and LDS: which of them regions have.

use crate::scalar::bits;
use crate::{Registers, Why};
use vkfd_isa::{Format, Inst, Op, Operand};

/// What an access loads from or stores to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Lds,
    Global,
    Flat,
}

/// A part of a word in memory, of which a load makes a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Narrow {
    /// One or two.
    pub(crate) bytes: u8,
    /// Its sign goes up; otherwise zeros do.
    pub(crate) signed: bool,
}

impl Narrow {
    fn of(op: Op) -> Option<Narrow> {
        let (bytes, signed) = match op {
            Op::GlobalLoadUbyte | Op::FlatLoadUbyte => (1, false),
            Op::GlobalLoadSbyte | Op::FlatLoadSbyte => (1, true),
            Op::GlobalLoadUshort | Op::FlatLoadUshort => (2, false),
            Op::GlobalLoadSshort | Op::FlatLoadSshort => (2, true),
            _ => return None,
        };
        Some(Narrow { bytes, signed })
    }
}

/// A load or a store of all lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// The row of the addresses; without a scalar base, memory has their high words in the next.
    pub(crate) address: u16,
    pub(crate) base: Option<u8>,
    /// What is added to the addresses, of each part.
    pub(crate) offsets: [i32; 2],
    /// One part or two, and the words of each.
    pub(crate) parts: u8,
    pub(crate) words: u8,
    /// The one word is made of less.
    pub(crate) narrow: Option<Narrow>,
    /// The first of the rows that it writes, or that each part of a store has its words in.
    pub(crate) row: u16,
    pub(crate) data: [u16; 2],
    pub(crate) is_store: bool,
    /// Nothing in its block orders it: whole lines may go past the caches.
    pub(crate) past: bool,
    /// The words are added to those of LDS.
    pub(crate) adds: bool,
    /// A load that is done before a store of LDS which comes before it: to other bytes.
    pub(crate) crosses: bool,
    /// The place where the code keeps its page.
    pub(crate) slot: usize,
}

impl Access {
    pub(super) fn of(inst: &Inst, registers: &dyn Registers) -> Result<Access, Why> {
        let memory = &inst.memory;
        let (space, parts, words, unit) = match (inst.format, inst.op) {
            (Format::Ds, Op::DsReadB32) => (Space::Lds, 1, 1, 0),
            (Format::Ds, Op::DsReadB64) => (Space::Lds, 1, 2, 0),
            (Format::Ds, Op::DsReadB96) => (Space::Lds, 1, 3, 0),
            (Format::Ds, Op::DsReadB128) => (Space::Lds, 1, 4, 0),
            (Format::Ds, Op::DsRead2B32) => (Space::Lds, 2, 1, 4),
            (Format::Ds, Op::DsRead2B64) => (Space::Lds, 2, 2, 8),
            (Format::Ds, Op::DsRead2st64B32) => (Space::Lds, 2, 1, 256),
            (Format::Ds, Op::DsRead2st64B64) => (Space::Lds, 2, 2, 512),
            (Format::Ds, Op::DsWriteB32) => (Space::Lds, 1, 1, 0),
            (Format::Ds, Op::DsAddU32) => (Space::Lds, 1, 1, 0),
            (Format::Ds, Op::DsWriteB64) => (Space::Lds, 1, 2, 0),
            (Format::Ds, Op::DsWriteB96) => (Space::Lds, 1, 3, 0),
            (Format::Ds, Op::DsWriteB128) => (Space::Lds, 1, 4, 0),
            (Format::Ds, Op::DsWrite2B32) => (Space::Lds, 2, 1, 4),
            (Format::Ds, Op::DsWrite2B64) => (Space::Lds, 2, 2, 8),
            (Format::Ds, Op::DsWrite2st64B32) => (Space::Lds, 2, 1, 256),
            (Format::Ds, Op::DsWrite2st64B64) => (Space::Lds, 2, 2, 512),
            (Format::Global, Op::GlobalLoadDword | Op::GlobalStoreDword) => (Space::Global, 1, 1, 0),
            (Format::Global, Op::GlobalLoadDwordx2 | Op::GlobalStoreDwordx2) => (Space::Global, 1, 2, 0),
            (Format::Global, Op::GlobalLoadDwordx3 | Op::GlobalStoreDwordx3) => (Space::Global, 1, 3, 0),
            (Format::Global, Op::GlobalLoadDwordx4 | Op::GlobalStoreDwordx4) => (Space::Global, 1, 4, 0),
            (Format::Flat, Op::FlatLoadDword | Op::FlatStoreDword) => (Space::Flat, 1, 1, 0),
            (Format::Flat, Op::FlatLoadDwordx2 | Op::FlatStoreDwordx2) => (Space::Flat, 1, 2, 0),
            (Format::Flat, Op::FlatLoadDwordx3 | Op::FlatStoreDwordx3) => (Space::Flat, 1, 3, 0),
            (Format::Flat, Op::FlatLoadDwordx4 | Op::FlatStoreDwordx4) => (Space::Flat, 1, 4, 0),
            (Format::Global, op) if Narrow::of(op).is_some() => (Space::Global, 1, 1, 0),
            (Format::Flat, op) if Narrow::of(op).is_some() => (Space::Flat, 1, 1, 0),
            _ => return Err(Why::Operation),
        };
        let narrow = Narrow::of(inst.op);
        let (is_store, adds) = (is_store(inst.op), inst.op == Op::DsAddU32);
        if memory.gds || memory.lds || memory.tfe {
            return Err(Why::Form);
        }
        let base = match memory.base {
            Operand::None | Operand::Scalar(Operand::NULL) => None,
            _ if space != Space::Global => None,
            operand => Some(registers.scalar(operand, 2).ok_or(Why::Form)?),
        };
        let offsets = match unit {
            0 => [memory.offset, 0],
            _ => memory.offsets.map(|offset| i32::from(offset) * unit),
        };
        if space == Space::Lds && offsets.into_iter().any(|offset| !(0..0x2_0000).contains(&offset)) {
            return Err(Why::Form);
        }
        let last = |first: Operand, count: u16| {
            let behind = match first {
                Operand::Vgpr(n) => Operand::Vgpr(n + count - 1),
                Operand::Agpr(n) => Operand::Agpr(n + count - 1),
                operand => operand,
            };
            registers.row(behind)
        };
        let count = u16::from(parts) * u16::from(words);
        let wide = space != Space::Lds && base.is_none();
        let address = registers.row(memory.vaddr).ok_or(Why::Form)?;
        last(memory.vaddr, if wide { 2 } else { 1 }).ok_or(Why::Form)?;
        let of = |operand, count| {
            last(operand, count).ok_or(Why::Form)?;
            registers.row(operand).ok_or(Why::Form)
        };
        let mut access = Access {
            space,
            address,
            base,
            offsets,
            parts,
            words,
            narrow,
            row: 0,
            data: [0; 2],
            is_store,
            past: false,
            adds,
            crosses: false,
            slot: 0,
        };
        if is_store {
            for (part, row) in access.data.iter_mut().enumerate().take(parts.into()) {
                *row = of([memory.data, memory.data2][part], words.into())?;
            }
            // Both parts of a lane come before those of the next one: of lanes side by side that is
            // to make no difference.
            let apart = offsets[0].abs_diff(offsets[1]);
            if parts == 2 && apart < 4 * 16 * u32::from(words) {
                return Err(Why::Form);
            }
        } else {
            access.row = of(inst.dst, count)?;
        }
        Ok(access)
    }

    /// Bytes of a lane, of one part.
    pub(crate) fn bytes(&self) -> u32 {
        self.narrow.map_or(4 * u32::from(self.words), |narrow| narrow.bytes.into())
    }

    /// Rows that it reads.
    pub(crate) fn addresses(&self) -> std::ops::Range<u16> {
        let wide = self.space != Space::Lds && self.base.is_none();
        self.address..self.address + if wide { 2 } else { 1 }
    }

    /// Whether another access has the same addresses, as long as nobody writes their rows.
    pub(crate) fn has_addresses_of(&self, other: &Access) -> bool {
        let is_local = |access: &Access| access.space == Space::Lds;
        (self.address, self.base, is_local(self)) == (other.address, other.base, is_local(other))
    }

    /// Rows that a load writes.
    pub(crate) fn rows(&self) -> std::ops::Range<u16> {
        self.row..self.row + u16::from(self.parts) * u16::from(self.words)
    }

    /// What it reaches beyond an address.
    pub(crate) fn end(&self) -> u32 {
        let last = self.offsets.into_iter().take(self.parts.into()).max().unwrap_or(0);
        u32::try_from(last).unwrap_or(0) + 4 * u32::from(self.words)
    }

    /// Rows with the words of a store.
    pub(crate) fn words_of_data(&self) -> impl Iterator<Item = u16> {
        let (data, words) = (self.data, u16::from(self.words));
        (0..usize::from(self.parts)).flat_map(move |part| data[part]..data[part] + words)
    }

    /// Whether it can be done for certain if its addresses are in LDS.
    pub(crate) fn is_certain(&self) -> bool {
        self.space == Space::Lds && !self.adds
    }

    /// The first byte that it reaches behind an address.
    pub(crate) fn begin(&self) -> u32 {
        let first = self.offsets.into_iter().take(self.parts.into()).min().unwrap_or(0);
        u32::try_from(first).unwrap_or(0)
    }

    /// Scalar registers that it reads.
    pub(super) fn numbers(&self) -> u128 {
        self.base.map_or(0, |n| bits(n, 2))
    }
}

/// Whether an operation is a store.
fn is_store(op: Op) -> bool {
    matches!(
        op,
        Op::DsAddU32
            | Op::DsWriteB32
            | Op::DsWriteB64
            | Op::DsWriteB96
            | Op::DsWriteB128
            | Op::DsWrite2B32
            | Op::DsWrite2B64
            | Op::DsWrite2st64B32
            | Op::DsWrite2st64B64
            | Op::GlobalStoreDword
            | Op::GlobalStoreDwordx2
            | Op::GlobalStoreDwordx3
            | Op::GlobalStoreDwordx4
            | Op::FlatStoreDword
            | Op::FlatStoreDwordx2
            | Op::FlatStoreDwordx3
            | Op::FlatStoreDwordx4
    )
}
