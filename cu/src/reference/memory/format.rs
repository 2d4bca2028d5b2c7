// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Data formats of buffers: channels in memory, and their values in registers.
//!
//! A format's name lists the channels from the highest bits down: of 2_10_10_10, the first channel
//! (X) is the lowest ten bits. Channels that a format does not have read as 0, 0, 0, 1. Integers
//! are clamped when they are stored; floats are rounded to nearest even. (Neither is documented;
//! hardware may truncate.)

use super::small::{from_half, from_unsigned, to_half, to_unsigned};
use vkfd_isa::Target;

/// How a channel's bits are a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Unorm,
    Snorm,
    Uscaled,
    Sscaled,
    Uint,
    Sint,
    Float,
}

/// A data format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataFormat {
    /// Bits of each channel, X first.
    bits: &'static [u8],
    number: Number,
}

/// Bits of the channels by gfx9's DATA_FORMAT.
const LAYOUTS: [&[u8]; 15] = [
    &[],
    &[8],
    &[16],
    &[8, 8],
    &[32],
    &[16, 16],
    &[11, 11, 10],
    &[10, 11, 11],
    &[2, 10, 10, 10],
    &[10, 10, 10, 2],
    &[8, 8, 8, 8],
    &[32, 32],
    &[16, 16, 16, 16],
    &[32, 32, 32],
    &[32, 32, 32, 32],
];

const INTEGERS: &[Number] =
    &[Number::Unorm, Number::Snorm, Number::Uscaled, Number::Sscaled, Number::Uint, Number::Sint];
const ALL: &[Number] =
    &[Number::Unorm, Number::Snorm, Number::Uscaled, Number::Sscaled, Number::Uint, Number::Sint, Number::Float];
const WORDS: &[Number] = &[Number::Uint, Number::Sint, Number::Float];
const FLOAT: &[Number] = &[Number::Float];
const TENS: &[Number] = &[Number::Unorm, Number::Snorm, Number::Uint, Number::Sint];

/// The unified formats from 1 on: layout and the numbers that follow each other.
const GFX10: [(usize, &[Number]); 14] = [
    (1, INTEGERS),
    (2, ALL),
    (3, INTEGERS),
    (4, WORDS),
    (5, ALL),
    (6, ALL),
    (7, ALL),
    (8, INTEGERS),
    (9, INTEGERS),
    (10, INTEGERS),
    (11, WORDS),
    (12, ALL),
    (13, WORDS),
    (14, WORDS),
];
const GFX11: [(usize, &[Number]); 14] = [
    (1, INTEGERS),
    (2, ALL),
    (3, INTEGERS),
    (4, WORDS),
    (5, ALL),
    (6, FLOAT),
    (7, FLOAT),
    (8, TENS),
    (9, INTEGERS),
    (10, INTEGERS),
    (11, WORDS),
    (12, ALL),
    (13, WORDS),
    (14, WORDS),
];

impl DataFormat {
    /// The format as encoded; none if it is invalid.
    pub(super) fn decode(target: Target, encoded: u8) -> Option<DataFormat> {
        // NEW TARGET: numbers of formats
        let table = match target {
            Target::Gfx1100 => &GFX11,
            Target::Gfx1030 => &GFX10,
            _ => {
                let number =
                    *[ALL.first(), ALL.get(1), ALL.get(2), ALL.get(3), ALL.get(4), ALL.get(5), None, ALL.get(6)]
                        .get(usize::from(encoded >> 4 & 7))?;
                let bits = *LAYOUTS.get(usize::from(encoded & 0xf)).filter(|bits| !bits.is_empty())?;
                let number = *number?;
                // There are no floats of so few bits.
                let possible = number != Number::Float || bits.iter().all(|bits| *bits >= 10);
                return possible.then_some(DataFormat { bits, number });
            }
        };
        let mut index = usize::from(encoded).checked_sub(1)?;
        for (layout, numbers) in table {
            if let Some(number) = numbers.get(index) {
                return Some(DataFormat { bits: LAYOUTS.get(*layout)?, number: *number });
            }
            index -= numbers.len();
        }
        None
    }

    /// Bytes in memory that `channels` need: all, where channels are not whole bytes.
    pub(super) fn bytes_of(self, channels: u8) -> usize {
        let whole = self.bits.iter().all(|bits| bits % 8 == 0);
        let count = if whole { usize::from(channels) } else { self.bits.len() };
        self.bits.iter().take(count).map(|bits| usize::from(*bits)).sum::<usize>() / 8
    }

    fn is_integer(self) -> bool {
        matches!(self.number, Number::Uint | Number::Sint)
    }

    fn one(self) -> u32 {
        if self.is_integer() {
            1
        } else {
            1f32.to_bits()
        }
    }

    /// The registers' values, by the selection of each.
    pub(super) fn unpack(self, data: &[u8; 16], select: [u8; 4]) -> [u32; 4] {
        let data = u128::from_le_bytes(*data);
        let mut values = [0, 0, 0, self.one()];
        let mut shift = 0;
        for (value, bits) in values.iter_mut().zip(self.bits) {
            let mask = (1u64 << bits) - 1;
            *value = self.widen((data >> shift) as u32 & mask as u32, *bits);
            shift += u32::from(*bits);
        }
        select.map(|select| match select {
            1 => self.one(),
            4..=7 => values.get(usize::from(select - 4)).copied().unwrap_or(0),
            _ => 0,
        })
    }

    /// The bytes of four registers' values.
    pub(super) fn pack(self, values: [u32; 4]) -> [u8; 16] {
        let (mut data, mut shift) = (0u128, 0);
        for (value, bits) in values.iter().zip(self.bits) {
            let mask = (1u64 << bits) - 1;
            data |= u128::from(u64::from(self.narrow(*value, *bits)) & mask) << shift;
            shift += u32::from(*bits);
        }
        data.to_le_bytes()
    }

    fn widen(self, raw: u32, bits: u8) -> u32 {
        let bits = u32::from(bits);
        let signed = (raw << (32 - bits)) as i32 >> (32 - bits);
        let most = |bits: u32| ((1u64 << bits) - 1) as f64;
        match self.number {
            Number::Unorm => ((f64::from(raw) / most(bits)) as f32).to_bits(),
            Number::Snorm => ((f64::from(signed) / most(bits - 1)).max(-1.0) as f32).to_bits(),
            Number::Uscaled => (raw as f32).to_bits(),
            Number::Sscaled => (signed as f32).to_bits(),
            Number::Uint => raw,
            Number::Sint => signed as u32,
            Number::Float => match bits {
                32 => raw,
                16 => from_half(raw as u16).to_bits(),
                _ => from_unsigned(raw, bits - 5).to_bits(),
            },
        }
    }

    fn narrow(self, value: u32, bits: u8) -> u32 {
        let bits = u32::from(bits);
        let float = f64::from(f32::from_bits(value));
        let most = |bits: u32| ((1u64 << bits) - 1) as f64;
        let (low, high) = (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1);
        // Conversions of floats saturate, and NaN is zero.
        match self.number {
            Number::Unorm => (float.clamp(0.0, 1.0) * most(bits)).round_ties_even() as u32,
            Number::Snorm => (float.clamp(-1.0, 1.0) * most(bits - 1)).round_ties_even() as i32 as u32,
            Number::Uscaled => float.clamp(0.0, most(bits)) as u32,
            Number::Sscaled => float.clamp(low as f64, high as f64) as i32 as u32,
            Number::Uint => value.min(((1u64 << bits) - 1) as u32),
            Number::Sint => i64::from(value as i32).clamp(low, high) as u32,
            Number::Float => match bits {
                32 => value,
                16 => to_half(f32::from_bits(value)).into(),
                _ => to_unsigned(f32::from_bits(value), bits - 5),
            },
        }
    }

    /// A register's value in 16 bits.
    pub(super) fn shorten(self, value: u32) -> u32 {
        if self.is_integer() {
            value & 0xffff
        } else {
            to_half(f32::from_bits(value)).into()
        }
    }

    /// The value of 16 bits.
    pub(super) fn lengthen(self, short: u32) -> u32 {
        match self.number {
            Number::Uint => short & 0xffff,
            Number::Sint => short as u16 as i16 as i32 as u32,
            _ => from_half(short as u16).to_bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        let gfx9 = |dfmt: u8, nfmt: u8| DataFormat::decode(Target::Gfx900, dfmt | nfmt << 4);
        assert_eq!(gfx9(9, 0), Some(DataFormat { bits: &[10, 10, 10, 2], number: Number::Unorm }));
        assert_eq!(gfx9(14, 7), Some(DataFormat { bits: &[32, 32, 32, 32], number: Number::Float }));
        assert_eq!([gfx9(0, 7), gfx9(15, 0), gfx9(4, 6)], [None; 3]);
        let known = [
            (Target::Gfx1030, 22, &[32][..], Number::Float),
            (Target::Gfx1030, 56, &[8, 8, 8, 8], Number::Unorm),
            (Target::Gfx1030, 77, &[32, 32, 32, 32], Number::Float),
            (Target::Gfx1100, 22, &[32], Number::Float),
            (Target::Gfx1100, 30, &[11, 11, 10], Number::Float),
            (Target::Gfx1100, 42, &[8, 8, 8, 8], Number::Unorm),
            (Target::Gfx1100, 63, &[32, 32, 32, 32], Number::Float),
        ];
        for (target, encoded, bits, number) in known {
            assert_eq!(DataFormat::decode(target, encoded), Some(DataFormat { bits, number }), "{target} {encoded}");
        }
        assert_eq!(DataFormat::decode(Target::Gfx1030, 78), None);
        assert_eq!(DataFormat::decode(Target::Gfx1100, 64), None);
    }

    #[test]
    fn bytes_survive_every_format() {
        let mut state = 7u64;
        for encoded in 0..128 {
            let Some(format) = DataFormat::decode(Target::Gfx900, encoded) else { continue };
            for _ in 0..500 {
                let mut bytes = [0; 16];
                for byte in bytes.iter_mut().take(format.bytes_of(4)) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (state >> 56) as u8;
                }
                let values = format.unpack(&bytes, [4, 5, 6, 7]);
                let again = format.unpack(&format.pack(values), [4, 5, 6, 7]);
                let is_nan = |value: u32| format.number == Number::Float && f32::from_bits(value).is_nan();
                let same = |(a, b): (u32, u32)| a == b || is_nan(a) && is_nan(b);
                // Large integers are rounded when they become floats.
                let exact = !matches!(format.number, Number::Uscaled | Number::Sscaled | Number::Unorm | Number::Snorm);
                if exact || format.bits.iter().all(|bits| *bits <= 16) {
                    assert!(values.into_iter().zip(again).all(same), "{format:?} {bytes:?} {values:?} {again:?}");
                }
            }
        }
    }

    #[test]
    fn missing_channels_and_selection() {
        let format = DataFormat { bits: &[8, 8], number: Number::Unorm };
        let mut data = [0; 16];
        data[0] = 255;
        data[1] = 51;
        assert_eq!(format.unpack(&data, [4, 5, 6, 7]).map(f32::from_bits), [1.0, 0.2, 0.0, 1.0]);
        assert_eq!(format.unpack(&data, [5, 0, 1, 4]).map(f32::from_bits), [0.2, 0.0, 1.0, 1.0]);
        assert_eq!(format.bytes_of(1), 1);
    }
}
