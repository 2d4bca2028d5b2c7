// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packets of the copy engine (SDMA), gfx9 and later.
//!
//! Mechanism: 32-bit words; the operation is in bits 7:0 of the first and its variant in 15:8.
//! Sources: the kernel's `vega10_sdma_pkt_open.h` and `navi10_sdma_pkt_open.h`, whose names the
//! constants have.
//!
//! Limits: gfx8 and earlier encode byte counts differently and are not supported.

use crate::address::GpuVa;

const OP_COPY: u32 = 1;
const OP_FENCE: u32 = 5;
const OP_TRAP: u32 = 6;
const OP_ATOMIC: u32 = 10;
const OP_CONST_FILL: u32 = 11;
const OP_TIMESTAMP: u32 = 13;
const OP_GCR_REQ: u32 = 17;
const SUBOP_TIMESTAMP_GET_GLOBAL: u32 = 2;
/// The operation of an atomic: adds 64 bits (`TC_OP_ATOMIC_ADD_RTN_64`).
const ATOMIC_ADD_64: u32 = 0x2f << 25;
/// Fill in units of 32 bits.
const FILL_DWORDS: u32 = 2 << 30;
/// Memory type "uncached" of a fence's write; gfx10 and later.
const FENCE_UNCACHED: u32 = 3 << 16;
/// Cache control of gfx10 and later: write L2 and the scalar cache back.
const GCR_WRITE_BACK: u32 = 1 << 31 | 1 << 22;
/// And invalidate L2, L1, the vector and the scalar cache.
const GCR_INVALIDATE: u32 = 1 << 30 | 1 << 25 | 1 << 24 | 1 << 23;

/// Most bytes that one copy or fill packet is given here; the field has 22 bits in gfx9, and whole
/// pages suit the GPU's page walker.
pub const CHUNK: u64 = 2 << 20;

/// The longest packet, in words.
pub const MAX_WORDS: usize = 8;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    words: [u32; MAX_WORDS],
    len: usize,
}

impl Packet {
    fn new<const N: usize>(words: [u32; N]) -> Self {
        const { assert!(N <= MAX_WORDS) };
        let mut packet = Self { words: [0; MAX_WORDS], len: N };
        packet.words[..N].copy_from_slice(&words);
        packet
    }

    /// Its words in memory order.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }
}

/// The low and the high half of a 64-bit number.
fn halves(n: u64) -> [u32; 2] {
    let b = n.to_le_bytes();
    [u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])]
}

/// Splits `bytes` into pieces of at most [`CHUNK`]: offset and size, which fits 32 bits.
fn chunks(bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    (0..bytes.div_ceil(CHUNK)).map(move |i| {
        let at = i * CHUNK;
        (at, halves((bytes - at).min(CHUNK))[0])
    })
}

/// Copies `bytes` from `src` to `dst`: one packet for each [`CHUNK`].
pub fn copy(dst: GpuVa, src: GpuVa, bytes: u64) -> impl Iterator<Item = Packet> {
    chunks(bytes).map(move |(at, bytes)| {
        let [src_lo, src_hi] = halves(src.offset(at).0);
        let [dst_lo, dst_hi] = halves(dst.offset(at).0);
        Packet::new([OP_COPY, bytes - 1, 0, src_lo, src_hi, dst_lo, dst_hi])
    })
}

/// Fills `bytes` (a multiple of 4) at `dst` (4-aligned) with `value`: one packet for each
/// [`CHUNK`].
pub fn fill(dst: GpuVa, value: u32, bytes: u64) -> impl Iterator<Item = Packet> {
    chunks(bytes).map(move |(at, bytes)| {
        let [lo, hi] = halves(dst.offset(at).0);
        Packet::new([OP_CONST_FILL | FILL_DWORDS, lo, hi, value, bytes - 4])
    })
}

/// Adds to the 64 bits at `at` (8-aligned), wrapping, as one access.
#[must_use]
pub fn add(at: GpuVa, value: u64) -> Packet {
    let ([lo, hi], [value_lo, value_hi]) = (halves(at.0), halves(value));
    Packet::new([OP_ATOMIC | ATOMIC_ADD_64, lo, hi, value_lo, value_hi, 0, 0, 0])
}

/// Writes 32 bits after everything before it is done. `gfx_major` is the GPU's generation.
#[must_use]
pub fn fence(at: GpuVa, value: u32, gfx_major: u32) -> Packet {
    let [lo, hi] = halves(at.0);
    let header = if gfx_major >= 10 { OP_FENCE | FENCE_UNCACHED } else { OP_FENCE };
    Packet::new([header, lo, hi, value])
}

/// Raises an interrupt with `context`, an event's number.
#[must_use]
pub fn trap(context: u32) -> Packet {
    Packet::new([OP_TRAP, context])
}

/// Writes the GPU's clock (64 bits) to `at`, 32-aligned.
#[must_use]
pub fn timestamp(at: GpuVa) -> Packet {
    let [lo, hi] = halves(at.0);
    Packet::new([OP_TIMESTAMP | SUBOP_TIMESTAMP_GET_GLOBAL << 8, lo, hi])
}

/// Writes the GPU's caches back, all of memory; with `invalidate` also forgets what they hold.
/// gfx10 and later.
#[must_use]
pub fn cache_control(invalidate: bool) -> Packet {
    let control = GCR_WRITE_BACK | if invalidate { GCR_INVALIDATE } else { 0 };
    Packet::new([OP_GCR_REQ, 0, control, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GpuVa = GpuVa(0x7f12_3456_7000);
    const B: GpuVa = GpuVa(0x1_0000_2004);

    fn words(packets: impl Iterator<Item = Packet>) -> Vec<Vec<u32>> {
        packets.map(|p| p.words().to_vec()).collect()
    }

    #[test]
    fn copy_is_seven_words_with_the_count_less_one() {
        let one = words(copy(A, B, 0x1001));
        assert_eq!(one, [[0x1, 0x1000, 0, 0x2004, 0x1, 0x3456_7000, 0x7f12]]);
    }

    #[test]
    fn long_copies_are_split_without_gap() {
        let parts = words(copy(A, B, 2 * CHUNK + 5));
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[1][1], 0x1f_ffff);
        assert_eq!(parts[1][3], 0x20_2004);
        assert_eq!(parts[2][..4], [0x1, 4, 0, 0x40_2004]);
        assert_eq!(parts[2][5], 0x3456_7000 + 0x40_0000);
        assert_eq!(words(copy(A, B, CHUNK)).len(), 1);
        assert_eq!(words(copy(A, B, 0)).len(), 0);
    }

    #[test]
    fn fill_counts_in_words_less_one() {
        let one = words(fill(A, 0xdead_beef, 64));
        assert_eq!(one, [[0x8000_000b, 0x3456_7000, 0x7f12, 0xdead_beef, 60]]);
    }

    #[test]
    fn fences_and_interrupts() {
        assert_eq!(fence(B, 7, 9).words(), [0x5, 0x2004, 1, 7]);
        assert_eq!(fence(B, 7, 10).words(), [0x3_0005, 0x2004, 1, 7]);
        assert_eq!(trap(3).words(), [0x6, 3]);
        assert_eq!(add(B, 3 << 32 | 5).words(), [0x5e00_000a, 0x2004, 1, 5, 3, 0, 0, 0]);
        assert_eq!(timestamp(A).words(), [0x20d, 0x3456_7000, 0x7f12]);
        assert_eq!(cache_control(false).words(), [0x11, 0, 0x8040_0000, 0, 0]);
        assert_eq!(cache_control(true).words(), [0x11, 0, 0xc3c0_0000, 0, 0]);
    }
}
