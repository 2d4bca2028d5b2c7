// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The encodings of a target as data: their fixed bits and the places of their operands. For
//! generators of code.

use crate::inst::Format;
pub use crate::table::{Field, Kind as FieldKind};
use crate::tables::records::RECORDS;
use crate::tables::shapes::SHAPES;
use crate::{Op, Target};

/// One encoding of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Index of the table's entry.
    pub entry: u16,
    /// The operation.
    pub op: Op,
    /// Its format.
    pub format: Format,
    /// The words that the encoding has without a literal.
    pub words: usize,
    /// Bits that are fixed, and their values.
    pub mask: [u32; 5],
    /// See `mask`.
    pub value: [u32; 5],
    /// The operands' fields.
    pub fields: Vec<BitField>,
}

/// The bits of an operand: runs of bits from the lowest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitField {
    /// Which operand it is.
    pub field: Field,
    /// What its bits mean.
    pub kind: FieldKind,
    /// Registers that it names the first of; 0 if it names none.
    pub dwords: u8,
    /// The lowest bit of each run in the words, its length, and the bit of the operand that it
    /// starts with.
    pub runs: Vec<(usize, u32, u32)>,
}

impl BitField {
    /// The operand's width in bits.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.runs.iter().map(|(_, length, to)| length + to).max().unwrap_or(0)
    }

    /// Writes `value` into `words`.
    pub fn set(&self, words: &mut [u32], value: u32) {
        for (bit, length, to) in &self.runs {
            let mask = u32::MAX >> (32 - length);
            let shift = bit % 32;
            let word = &mut words[bit / 32];
            *word = *word & !(mask << shift) | (value >> to & mask) << shift;
        }
    }
}

/// The encodings of `target`, in the order of their precedence.
pub fn encodings(target: Target) -> impl Iterator<Item = Encoding> {
    let all = (0u16..).zip(RECORDS);
    all.filter(move |(_, record)| record.targets >> target as usize & 1 != 0).map(|(entry, record)| {
        let shape = &SHAPES[usize::from(record.shape)];
        let split = |wide: u64, high: u32| {
            let bytes = wide.to_le_bytes();
            let word = |n: usize| u32::from_le_bytes([bytes[n], bytes[n + 1], bytes[n + 2], bytes[n + 3]]);
            [word(0), word(4), high, 0, 0]
        };
        let fields = shape
            .slots
            .iter()
            .map(|slot| BitField {
                field: slot.field,
                kind: slot.kind,
                dwords: slot.dwords,
                runs: slot
                    .parts
                    .iter()
                    .map(|part| {
                        let bit = usize::from(part.word) * 32 + usize::from(part.bit);
                        (bit, part.width.into(), part.to.into())
                    })
                    .collect(),
            })
            .collect();
        Encoding {
            entry,
            op: record.op,
            format: shape.format,
            words: usize::from(shape.bytes / 4),
            mask: split(record.mask, record.mask_high),
            value: split(record.value, record.value_high),
            fields,
        }
    })
}
