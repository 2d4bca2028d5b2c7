// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Buffer descriptors: address, size, and the part of an access in range.
//!
//! What NUM_RECORDS counts differs. On gfx9, an access with an index register and a stride is
//! checked by its index, any other by its bytes, the scalar offset included. From gfx10 on,
//! OOB_SELECT says: 0 index and offset within the element, 1 index, 2 nothing but an empty buffer,
//! 3 bytes. Scalar accesses count elements if there is a stride.

use super::plan::{Lane, Place};
use crate::wave::Wave;
use vkfd_isa::{Operand, Target};

/// A buffer descriptor, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// First address.
    pub(crate) base: u64,
    /// Bytes of an element.
    pub(crate) stride: u32,
    /// Size, in bytes or elements.
    pub(crate) records: u32,
    /// Swizzled: bytes of an element that stay together; 0 if it is not.
    pub(crate) element: u32,
    /// Swizzled: lanes whose elements are interleaved.
    pub(crate) index_stride: u32,
    /// The lane's number is added to the index.
    pub(crate) add_tid: bool,
    /// OOB_SELECT; none on gfx9.
    pub(crate) check: Option<u8>,
    /// The four DST_SEL fields.
    pub(crate) select: [u8; 4],
    /// The data format (gfx9: `dfmt | nfmt << 4`; later: the unified one).
    pub(crate) format: u8,
}

/// What an instruction adds to a descriptor, for a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offsets {
    /// The lane's index, and whether there is one.
    pub(crate) index: Option<u32>,
    /// Vector and immediate offset.
    pub(crate) offset: u32,
    /// Scalar offset, which is not swizzled.
    pub(crate) scalar: u32,
}

impl Buffer {
    /// The descriptor in four scalar registers.
    pub(crate) fn load(wave: &Wave, operand: Operand) -> Option<Buffer> {
        let Operand::Scalar(first) = operand else { return None };
        let first = usize::from(first);
        match wave.scalar.get(first..first + 4)? {
            &[a, b, c, d] => Some(Buffer::decode(wave.target, [a, b, c, d])),
            _ => None,
        }
    }

    /// The descriptor of four words. Inlined, for a copy of it would wait for its parts.
    #[inline(always)]
    pub(crate) fn decode(target: Target, words: [u32; 4]) -> Buffer {
        let [low, high, records, last] = words;
        let add_tid = last >> 23 & 1 != 0;
        let mut stride = high >> 16 & 0x3fff;
        let swizzle = match target {
            // The size of the elements, which used to be fixed.
            Target::Gfx1100 => [0, 4, 8, 16][(high >> 30) as usize],
            Target::Gfx900 | Target::Gfx90a | Target::Gfx942 | Target::Gfx1030 => high >> 31 << 2,
        };
        if add_tid && target.is_gfx9() {
            // The data format's field has more bits of the stride.
            stride |= (last >> 15 & 0xf) << 14;
        }
        let format = match target {
            Target::Gfx1100 => last >> 12 & 0x3f,
            Target::Gfx1030 => last >> 12 & 0x7f,
            Target::Gfx900 | Target::Gfx90a | Target::Gfx942 => last >> 15 & 0xf | (last >> 12 & 7) << 4,
        };
        Buffer {
            base: u64::from(low) | u64::from(high & 0xffff) << 32,
            stride,
            records,
            element: swizzle,
            index_stride: 8 << (last >> 21 & 3),
            add_tid,
            check: target.is_rdna().then_some((last >> 28 & 3) as u8),
            select: [0, 3, 6, 9].map(|shift| (last >> shift & 7) as u8),
            format: format as u8,
        }
    }

    /// Size in bytes for scalar accesses.
    pub(crate) fn scalar_size(&self) -> u64 {
        u64::from(self.records) * u64::from(self.stride.max(1))
    }

    /// The offset from the base, without the scalar one, of a byte at `offset` in element `index`.
    pub(crate) fn offset(&self, index: u32, offset: u64) -> u64 {
        let (index, stride) = (u64::from(index), u64::from(self.stride));
        if self.element == 0 {
            return index * stride + offset;
        }
        let (element, together) = (u64::from(self.element), u64::from(self.index_stride));
        let (block, lane) = (index / together, index % together);
        // Of a block of elements, the first parts of all, then the second parts of all, and so on.
        (block * stride + offset / element * element) * together + lane * element + offset % element
    }

    /// Whether `len` bytes there are in range.
    pub(crate) fn contains(&self, offsets: Offsets, index: u32, offset: u64, len: u32) -> bool {
        let (records, len) = (u64::from(self.records), u64::from(len));
        let bytes = || self.offset(index, offset) + u64::from(offsets.scalar) + len <= records;
        let element = || u64::from(index) < records;
        match self.check {
            None if offsets.index.is_some() && self.stride != 0 => element(),
            None => bytes(),
            Some(0) if self.stride != 0 => element() && offset + len <= self.stride.into(),
            Some(1) if self.stride != 0 => element(),
            Some(2) => records != 0,
            Some(3) if self.element != 0 && self.stride != 0 => element() && offset + len <= self.stride.into(),
            Some(_) => offset + u64::from(offsets.scalar) + len <= records,
        }
    }

    /// The places of a lane's bytes. Parts of a dword (`unit` bytes at most) are in range or not as
    /// one. The offset of the first byte has 32 bits, and the later bytes' offsets do not wrap to
    /// zero. An offset of all ones is out of range as a whole, and rocBLAS's kernels rely on that.
    pub(super) fn places(&self, lane: usize, offsets: Offsets, unit: u32) -> Lane {
        let tid = if self.add_tid { lane as u32 } else { 0 };
        let index = offsets.index.unwrap_or(0).wrapping_add(tid);
        let base = self.base.wrapping_add(offsets.scalar.into());
        let (first, together) = (u64::from(offsets.offset), u64::from(unit));
        let byte = |byte: usize| {
            let byte = byte as u64;
            let part = first + byte / together * together;
            if !self.contains(offsets, index, part, unit) {
                return Place::Nowhere;
            }
            Place::Memory(base.wrapping_add(self.offset(index, first + byte)))
        };
        Lane { lane, places: std::array::from_fn(byte) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_descriptor_interleaves_dwords() {
        // As ROCR makes it: no stride, swizzled, thread ids added, 64 lanes together.
        let last = 1 << 23 | 3 << 21;
        let buffer = Buffer::decode(Target::Gfx900, [0x1000, 0x8000_0002, 0x10_0000, last]);
        assert_eq!((buffer.base, buffer.element, buffer.index_stride), (0x2_0000_1000, 4, 64));
        let offsets = Offsets { index: None, offset: 6, scalar: 0x400 };
        let lane = buffer.places(5, offsets, 4);
        assert_eq!(lane.places[0], Place::Memory(0x2_0000_1400 + 256 + 20 + 2));
        assert_eq!(lane.places[2], Place::Memory(0x2_0000_1400 + 512 + 20));
    }

    #[test]
    fn strided_and_swizzled() {
        let buffer = Buffer::decode(Target::Gfx900, [0, 0x8000_0000 | 16 << 16, 100, 0]);
        // Elements of 16 bytes, eight together: index 9 is lane 1 of block 1.
        assert_eq!(buffer.offset(9, 4), (16 + 4) * 8 + 4);
        let linear = Buffer::decode(Target::Gfx900, [0, 16 << 16, 100, 0]);
        assert_eq!(linear.offset(9, 4), 9 * 16 + 4);
    }

    #[test]
    fn what_is_out_of_range() {
        let raw = Buffer::decode(Target::Gfx90a, [0, 0, 10, 0]);
        let at = |buffer: &Buffer, index, offset, scalar| {
            buffer.places(0, Offsets { index, offset, scalar }, 4).places.map(|place| place != Place::Nowhere)
        };
        assert_eq!(at(&raw, None, 0, 0)[..12], [[true; 8].as_slice(), &[false; 4]].concat());
        assert!(!at(&raw, None, 0, 8)[0], "the scalar offset counts");
        let large = Buffer::decode(Target::Gfx90a, [0, 0, 0xffff_f000, 0]);
        assert_eq!(at(&large, None, u32::MAX, 0), [false; 16], "bytes beyond the last offset are not the first");
        let strided = Buffer::decode(Target::Gfx90a, [0, 8 << 16, 10, 0]);
        assert!(at(&strided, Some(9), 100, 0)[0], "only the index counts");
        assert!(!at(&strided, Some(10), 0, 0)[0]);
        assert!(!at(&strided, None, 8, 0)[0], "bytes without an index register");

        let select = |select: u32| Buffer::decode(Target::Gfx1030, [0, 8 << 16, 10, select << 28]);
        assert!(
            at(&select(0), Some(9), 4, 0)[0] && !at(&select(0), Some(9), 8, 0)[0] && !at(&select(0), Some(10), 0, 0)[0]
        );
        assert!(at(&select(1), Some(9), 8, 0)[0] && !at(&select(1), Some(10), 0, 0)[0]);
        assert!(at(&select(2), Some(10), 8, 0)[0]);
        assert!(at(&select(3), Some(100), 4, 0)[0] && !at(&select(3), Some(0), 8, 0)[0]);
    }
}
