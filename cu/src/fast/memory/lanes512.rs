// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The shape of all lanes of an access, on processors with AVX-512: [`super::addresses`] and
//! [`super::addressing`] by sixteen lanes at a time.

use super::shape::{line, Shape};
use std::arch::asm;

/// The numbers of sixteen lanes.
static LANES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// For runs of 4, 8 and 16 lanes: the first lane of each one's run.
static FIRST: [[u32; 16]; 3] =
    [[0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12], [0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8], [0; 16]];

/// Compares sixteen words with those of each shape. zmm16 has the first word. zmm18 has the words
/// of lanes side by side, and zmm19 the distance to the next ones. zmm20 has the first lane of each
/// run, and zmm21 the distances from it.
macro_rules! compare {
    ($at:literal) => {
        concat!(
            "vmovdqu32 zmm22, [{row} + ",
            $at,
            "]\n",
            "vpcmpeqd k1{{k1}}, zmm22, zmm18\n",
            "vpcmpeqd k2{{k2}}, zmm22, zmm16\n",
            "vpermd zmm23, zmm20, zmm22\n",
            "vpaddd zmm23, zmm23, zmm21\n",
            "vpcmpeqd k3{{k3}}, zmm22, zmm23\n",
            "vpaddd zmm18, zmm18, zmm19\n",
        )
    };
}

/// How the words of `lanes` lanes lie, 32 or 64, each of which reaches so many bytes.
///
/// # Safety
/// The words are there, and the processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn shape(row: *const u32, lanes: usize, bytes: u32) -> Shape {
    let (straight, same, runs): (u32, u32, u32);
    let run = line(bytes);
    // SAFETY: the caller's; only the words and constants are read.
    unsafe {
        asm!(
            "vpbroadcastd zmm16, [{row}]",
            "vpbroadcastd zmm17, {bytes:e}",
            "vmovdqu32 zmm22, [{numbers}]",
            "vpmulld zmm18, zmm17, zmm22",
            "vpslld zmm19, zmm17, 4",
            "vmovdqu32 zmm20, [{first}]",
            "vpmulld zmm21, zmm17, zmm20",
            "vpsubd zmm21, zmm18, zmm21",
            "vpaddd zmm18, zmm18, zmm16",
            "kxnorw k1, k1, k1",
            "kxnorw k2, k2, k2",
            "kxnorw k3, k3, k3",
            compare!("0"),
            compare!("64"),
            "cmp {lanes}, 32",
            "je 2f",
            compare!("128"),
            compare!("192"),
            "2:",
            "kmovw {straight:e}, k1",
            "kmovw {same:e}, k2",
            "kmovw {runs:e}, k3",
            row = in(reg) row,
            bytes = in(reg) bytes,
            lanes = in(reg) lanes,
            numbers = in(reg) LANES.as_ptr(),
            first = in(reg) FIRST[run.trailing_zeros() as usize - 2].as_ptr(),
            straight = lateout(reg) straight,
            same = lateout(reg) same,
            runs = lateout(reg) runs,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("k1") _, out("k2") _, out("k3") _,
            options(pure, readonly, nostack)
        );
        // The words must not wrap on the way.
        if straight == 0xffff && *row.add(lanes - 1) >= *row {
            Shape::Line
        } else if same == 0xffff {
            Shape::Same
        } else if runs == 0xffff {
            Shape::Runs(run)
        } else {
            Shape::Anyhow
        }
    }
}

/// Whether all words are the first one.
///
/// # Safety
/// As for [`shape`].
#[inline(always)]
pub(super) unsafe fn are_same(row: *const u32, lanes: usize) -> bool {
    let same: u32;
    // SAFETY: the caller's; only the words are read.
    unsafe {
        asm!(
            "vpbroadcastd zmm16, [{row}]",
            "vpcmpeqd k1, zmm16, [{row}]",
            "vpcmpeqd k1{{k1}}, zmm16, [{row} + 64]",
            "cmp {lanes}, 32",
            "je 2f",
            "vpcmpeqd k1{{k1}}, zmm16, [{row} + 128]",
            "vpcmpeqd k1{{k1}}, zmm16, [{row} + 192]",
            "2:",
            "kmovw {same:e}, k1",
            row = in(reg) row,
            lanes = in(reg) lanes,
            same = lateout(reg) same,
            out("zmm16") _, out("k1") _,
            options(pure, readonly, nostack)
        );
    }
    same == 0xffff
}

/// Adds a number to 64 words, and stores the sums. The lanes whose sums are at most each of two
/// bounds.
///
/// # Safety
/// The words are there, and the processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn sums(from: *const u32, number: u32, bounds: [u32; 2], to: &mut super::Words) -> [u64; 2] {
    /// The sums of sixteen lanes.
    macro_rules! sum {
        ($at:literal) => {
            concat!(
                "vpaddd zmm19, zmm16, [{from} + ",
                $at,
                "]\n",
                "vmovdqu32 [{to} + ",
                $at,
                "], zmm19\n",
                "vpcmpud k1, zmm19, zmm17, 2\n",
                "vpcmpud k2, zmm19, zmm18, 2\n",
                "kmovw {part:e}, k1\n",
                "shl {first}, 16\n",
                "or {first}, {part}\n",
                "kmovw {part:e}, k2\n",
                "shl {second}, 16\n",
                "or {second}, {part}\n",
            )
        };
    }
    let (mut first, mut second) = (0u64, 0u64);
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "vpbroadcastd zmm16, {number:e}",
            "vpbroadcastd zmm17, {first_bound:e}",
            "vpbroadcastd zmm18, {second_bound:e}",
            sum!("192"),
            sum!("128"),
            sum!("64"),
            sum!("0"),
            number = in(reg) number,
            first_bound = in(reg) bounds[0],
            second_bound = in(reg) bounds[1],
            from = in(reg) from,
            to = in(reg) to.as_mut_ptr(),
            part = out(reg) _,
            first = inout(reg) first,
            second = inout(reg) second,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("k1") _, out("k2") _,
            options(nostack)
        );
    }
    [first, second]
}
