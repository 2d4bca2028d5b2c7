// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SDMA's COPY_LINEAR_SUB_WINDOW: a box within one pitched array to a box within another.
//!
//! Mechanism: row after row, each by a plain copy. Positions, pitches and sizes are in elements of
//! 1, 2, 4, 8 or 16 bytes; pitches and sizes are stored less one.
//!
//! Limits: nothing is swapped. Rows of one copy that overlap are copied in order.

use crate::base::queue_error::Stop;
use crate::packets::stream::{Stream, Words};
use crate::state::access::Port;

/// Of a packet, in 32-bit words.
pub(crate) const WORDS: u64 = 13;

/// The largest element, 16 bytes, as its power of two.
const LARGEST: u32 = 4;

/// A box's place: the address of its first element, and from row to row and slice to slice.
struct Side {
    va: u64,
    pitch: u64,
    slice: u64,
}

impl Side {
    /// From the five words at `at`: address, x and y, z and pitch, pitch of slices.
    fn new(words: &Words, at: usize, element: u32) -> Side {
        let (xy, z) = (words.get(at + 2), words.get(at + 3));
        let pitch = (u64::from(z >> 13) + 1) << element;
        let slice = (u64::from(words.get(at + 4) & 0xfff_ffff) + 1) << element;
        let x = u64::from(xy & 0x3fff) << element;
        let (y, z) = (u64::from(xy >> 16 & 0x3fff) * pitch, u64::from(z & 0x1fff) * slice);
        Side { va: words.wide(at).wrapping_add(x).wrapping_add(y).wrapping_add(z), pitch, slice }
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.va.wrapping_add(y * self.pitch).wrapping_add(z * self.slice)
    }
}

/// Executes the packet: how many bytes it copied.
pub(crate) fn copy(port: &mut Port, stream: &Stream, words: &Words) -> Result<u64, Stop> {
    let element = words.get(0) >> 29;
    if element > LARGEST {
        return Err(stream.bad(format!("COPY_LINEAR_SUB_WINDOW with element size {element}")));
    }
    if words.get(12) & 0x0303_0000 != 0 {
        return Err(stream.bad("COPY_LINEAR_SUB_WINDOW that swaps".into()));
    }
    let (src, dst) = (Side::new(words, 1, element), Side::new(words, 6, element));
    let (xy, z) = (words.get(11), words.get(12));
    let bytes = (u64::from(xy & 0x3fff) + 1) << element;
    let (rows, slices) = (u64::from(xy >> 16 & 0x3fff) + 1, u64::from(z & 0x1fff) + 1);
    for z in 0..slices {
        for y in 0..rows {
            port.check_removed()?;
            port.copy(dst.row(y, z), src.row(y, z), bytes)?;
        }
    }
    Ok(bytes * rows * slices)
}
