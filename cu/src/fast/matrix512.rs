// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of 32 or 16 rows on processors with AVX-512: the sums of [`super::matrix`],
//! in its order.
//!
//! A *tile* is four rows of D by all columns, 16 or 32. Its sums stay in registers over all
//! products. A's elements are broadcast, by the instruction that multiplies if there are 16
//! columns. B's are vectors, which serve all four rows. Most singles have larger tiles
//! ([`super::singles512`]).
//!
//! bfloat16 has products and sums that the host has exactly, unless they are denormal. All of them
//! but the last are operands of the next sum, and a denormal operand leaves a flag in MXCSR. So
//! nothing is looked at but that flag and the results.
//!
//! A tile whose results are the reference engine's is not stored, and that engine computes it
//! behind all others. D has no register in common with A and B, and all or none with C.

use super::avx2::Avx2;
use super::elements::{element, BF16, BF16_K, F16, F32, I8};
use super::singles512::{eights, whole};
use super::step::{Cx, Flow, Run, Step, ROW};
use crate::reference::{Dense, Element, MatrixShape};
use std::arch::asm;

/// MXCSR's exception flags.
const FLAGS: u32 = 0x3f;

/// Room for the elements of a source that are not as its rows have them.
type Elements = super::elements::Elements<4>;

/// Takes words of two elements apart, row by row: those of zmm17 are the first ones in zmm17 and
/// the second ones in zmm18 behind `$split`. An element without an exponent becomes zero before.
macro_rules! unpack {
    ($to:ident, $rows:ident, $in_lane:ident, exponent = $exponent:literal, $split:literal) => {
        asm!(
            "vpbroadcastw zmm16, {exponent:e}",
            "2:",
            "vmovdqu32 zmm17, [{from}]",
            "vptestmw k1, zmm17, zmm16",
            "vmovdqu16 zmm17{{k1}}{{z}}, zmm17",
            $split,
            "vmovups [{to}], zmm17",
            "vmovups [{to} + 256], zmm18",
            "add {from}, 64",
            "add {to}, 64",
            // Behind a row of words come the two rows of its second half.
            "test {left:e}, 3",
            "jnz 3f",
            "add {to}, 256",
            "3:",
            "sub {left:e}, 1",
            "jns 2b",
            exponent = in(reg) $exponent,
            from = inout(reg) $rows => _,
            to = inout(reg) $to => _,
            left = inout(reg) 2 * $in_lane as u32 - 1 => _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("k1") _,
            options(nostack)
        )
    };
}

/// The elements of a source: `in_lane` of each lane. Single precision is taken from the rows.
///
/// # Safety
/// The rows exist, and the processor has AVX-512 F and BW.
#[inline(always)]
unsafe fn elements<const KIND: u8>(rows: *const u32, in_lane: usize, room: &mut Elements) -> *const u32 {
    let to = room.rows();
    // SAFETY: the caller's; there is room for four rows.
    unsafe {
        match KIND {
            F32 => return rows,
            I8 => {
                for n in 0..in_lane {
                    element::<Avx2, KIND>(rows, n, to.add(n).cast());
                }
            }
            F16 => unpack!(
                to,
                rows,
                in_lane,
                exponent = 0x7c00,
                "vpsrld zmm18, zmm17, 16\nvpmovdw ymm17, zmm17\nvpmovdw ymm18, zmm18\n\
                 vcvtph2ps zmm17, ymm17\nvcvtph2ps zmm18, ymm18"
            ),
            _ => unpack!(
                to,
                rows,
                in_lane,
                exponent = 0x7f80,
                "vpsrld zmm18, zmm17, 16\nvpslld zmm18, zmm18, 16\nvpslld zmm17, zmm17, 16"
            ),
        }
    }
    to.cast()
}

/// Where a tile begins in memory.
struct Tile {
    /// A's element of the first row, and B's of the first column. The next elements of a lane are a
    /// row further each, and those of the next lanes `lanes` bytes.
    a: *const u32,
    b: *const u32,
    lanes: usize,
    /// How many such lanes have elements of one row.
    groups: usize,
    /// The sum to add to, whose rows are `stride` bytes apart.
    c: *const u32,
    stride: usize,
    d: *mut u32,
}

/// Adds the products of a lane's elements to a row's sum: those of B by those of A, each a vector
/// or a word that the instruction broadcasts.
macro_rules! add {
    // The sum of two products, as two fused operations.
    (@fused $t:literal, $b0:literal, $b1:literal, $a0:expr, $a1:expr) => {
        concat!("vmulps ", $t, ", ", $b0, ", ", $a0, "\n", "vfmadd231ps ", $t, ", ", $b1, ", ", $a1, "\n")
    };
    // The same, each product by itself.
    (@exact $t:literal, $u:literal, $b0:literal, $b1:literal, $a0:expr, $a1:expr) => {
        concat!(
            "vmulps ", $t, ", ", $b0, ", ", $a0, "\n",
            "vmulps ", $u, ", ", $b1, ", ", $a1, "\n",
            "vaddps ", $t, ", ", $t, ", ", $u, "\n",
        )
    };
    (F32, $sum:literal, [$b0:literal $($b:literal)*], [$a0:expr $(, $a:expr)*]) => {
        concat!("vfmadd231ps ", $sum, ", ", $b0, ", ", $a0, "\n")
    };
    (F16, $sum:literal, [$b0:literal $b1:literal $b2:literal $b3:literal], [$a0:expr, $a1:expr, $a2:expr, $a3:expr]) => {
        concat!(
            add!(@fused "zmm4", $b0, $b1, $a0, $a1),
            add!(@fused "zmm5", $b2, $b3, $a2, $a3),
            "vaddps zmm4, zmm4, zmm5\nvaddps ", $sum, ", ", $sum, ", zmm4\n",
        )
    };
    (BF16, $sum:literal, [$b0:literal $b1:literal $($b:literal)*], [$a0:expr, $a1:expr $(, $a:expr)*]) => {
        concat!(add!(@exact "zmm4", "zmm5", $b0, $b1, $a0, $a1), "vaddps ", $sum, ", ", $sum, ", zmm4\n")
    };
    (BF16_K, $sum:literal, [$b0:literal $b1:literal $b2:literal $b3:literal], [$a0:expr, $a1:expr, $a2:expr, $a3:expr]) => {
        concat!(
            add!(@exact "zmm4", "zmm5", $b0, $b1, $a0, $a1),
            add!(@exact "zmm5", "zmm6", $b2, $b3, $a2, $a3),
            "vaddps zmm4, zmm4, zmm5\nvaddps ", $sum, ", ", $sum, ", zmm4\n",
        )
    };
    (I8_2, $sum:literal, [$b0:literal $b1:literal $($b:literal)*], [$a0:expr, $a1:expr $(, $a:expr)*]) => {
        concat!("vpdpwssd ", $sum, ", ", $b0, ", ", $a0, "\nvpdpwssd ", $sum, ", ", $b1, ", ", $a1, "\n")
    };
    (I8_4, $sum:literal, [$b0:literal $b1:literal $b2:literal $b3:literal], [$a0:expr, $a1:expr, $a2:expr, $a3:expr]) => {
        concat!(
            add!(I8_2, $sum, [$b0 $b1], [$a0, $a1]),
            add!(I8_2, $sum, [$b2 $b3], [$a2, $a3]),
        )
    };
}

/// A's element `$k` of a row, as an operand.
macro_rules! element_of_a {
    ($k:literal, $row:literal) => {
        concat!("dword ptr [{a} + 256*", $k, " + 4*", $row, "]{{1to16}}")
    };
}

/// A row of a tile of 16 columns, and one of 32 columns, for which A's elements are broadcast once.
macro_rules! row {
    ($kind:ident, $row:literal, $sum:literal) => {
        add!($kind, $sum, ["zmm24" "zmm25" "zmm26" "zmm27"],
            [element_of_a!(0, $row), element_of_a!(1, $row), element_of_a!(2, $row), element_of_a!(3, $row)])
    };
    ($kind:ident, $row:literal, $sum:literal, $second:literal) => {
        concat!(
            each!($kind, "vbroadcastss zmm0, dword ptr [{a} + 4*", $row),
            each!(@two $kind, "vbroadcastss zmm1, dword ptr [{a} + 256 + 4*", $row),
            each!(@four $kind, "vbroadcastss zmm2, dword ptr [{a} + 512 + 4*", $row),
            each!(@four $kind, "vbroadcastss zmm3, dword ptr [{a} + 768 + 4*", $row),
            add!($kind, $sum, ["zmm24" "zmm25" "zmm26" "zmm27"], ["zmm0", "zmm1", "zmm2", "zmm3"]),
            add!($kind, $second, ["zmm28" "zmm29" "zmm30" "zmm31"], ["zmm0", "zmm1", "zmm2", "zmm3"]),
        )
    };
}

/// An instruction with an address for as many elements as a lane has.
macro_rules! each {
    (@two F32, $text:literal, $at:literal) => {
        ""
    };
    (@two $kind:ident, $text:literal, $at:literal) => {
        concat!($text, $at, "]\n")
    };
    (@four F16, $text:literal, $at:literal) => {
        concat!($text, $at, "]\n")
    };
    (@four BF16_K, $text:literal, $at:literal) => {
        concat!($text, $at, "]\n")
    };
    (@four I8_4, $text:literal, $at:literal) => {
        concat!($text, $at, "]\n")
    };
    (@four $kind:ident, $text:literal, $at:literal) => {
        ""
    };
    ($kind:ident, $text:literal, $at:literal) => {
        concat!($text, $at, "]\n")
    };
}

/// B's vectors: as many as a lane has elements, of the first 16 columns or the next.
macro_rules! vectors {
    ($kind:ident, first) => {
        concat!(
            each!($kind, "vmovups zmm24, [{b} + ", "0"),
            each!(@two $kind, "vmovups zmm25, [{b} + ", "256"),
            each!(@four $kind, "vmovups zmm26, [{b} + ", "512"),
            each!(@four $kind, "vmovups zmm27, [{b} + ", "768"),
        )
    };
    ($kind:ident, second) => {
        concat!(
            each!($kind, "vmovups zmm28, [{b} + 64 + ", "0"),
            each!(@two $kind, "vmovups zmm29, [{b} + 64 + ", "256"),
            each!(@four $kind, "vmovups zmm30, [{b} + 64 + ", "512"),
            each!(@four $kind, "vmovups zmm31, [{b} + 64 + ", "768"),
        )
    };
}

/// A sum that is denormal becomes zero before anything is added, except in products of singles. So
/// does a negative zero: the reference adds a group's products to zero, which is never negative
/// then. Here they may be, but their sum with zero is not.
macro_rules! flush {
    (F32, $sum:literal) => {
        ""
    };
    (I8_2, $sum:literal) => {
        ""
    };
    (I8_4, $sum:literal) => {
        ""
    };
    ($kind:ident, $sum:literal) => {
        concat!("vfpclassps k1, ", $sum, ", 0x24\nvpxord ", $sum, "{{k1}}, ", $sum, ", ", $sum, "\n")
    };
}

/// Looks for results that are the reference engine's: NaNs, and of bfloat16 also denormals, as well
/// as a denormal operand. Of four sums, which are in two pairs.
macro_rules! look {
    (I8_2, $($sum:literal)*) => { "" };
    (I8_4, $($sum:literal)*) => { "" };
    (BF16, $($sum:literal)*) => { concat!($(look!(@ $sum)),*) };
    (BF16_K, $($sum:literal)*) => { concat!($(look!(@ $sum)),*) };
    (@ $sum:literal) => {
        concat!("vfpclassps k1, ", $sum, ", 0xa1\nkorw k2, k2, k1\n")
    };
    (@ $s0:literal $s1:literal) => {
        concat!("vcmpunordps k1, ", $s0, ", ", $s1, "\nkorw k2, k2, k1\n")
    };
    ($kind:ident, $s0:literal $s1:literal $s2:literal $s3:literal) => {
        concat!(look!(@ $s0 $s1), look!(@ $s2 $s3))
    };
}

/// The flag of a denormal operand.
macro_rules! flag {
    (BF16) => { flag!(@) };
    (BF16_K) => { flag!(@) };
    (@) => { "stmxcsr [{word}]\ntest dword ptr [{word}], 2\njnz 3f\n" };
    ($kind:ident) => { "" };
}

/// Sums of a tile's columns: taken, and put.
macro_rules! sums {
    (take $kind:ident, $at:literal, $s0:literal $s1:literal $s2:literal $s3:literal) => {
        concat!(
            "vmovups ",
            $s0,
            ", [{c} + ",
            $at,
            "]\n",
            "vmovups ",
            $s1,
            ", [{c} + {stride} + ",
            $at,
            "]\n",
            "vmovups ",
            $s2,
            ", [{c} + 2*{stride} + ",
            $at,
            "]\n",
            "vmovups ",
            $s3,
            ", [{last} + ",
            $at,
            "]\n",
            flush!($kind, $s0),
            flush!($kind, $s1),
            flush!($kind, $s2),
            flush!($kind, $s3),
        )
    };
    (put $kind:ident, $at:literal, $s0:literal $s1:literal $s2:literal $s3:literal) => {
        concat!(
            "vmovups [{d} + ",
            $at,
            "], ",
            $s0,
            "\n",
            "vmovups [{d} + 256 + ",
            $at,
            "], ",
            $s1,
            "\n",
            "vmovups [{d} + 512 + ",
            $at,
            "], ",
            $s2,
            "\n",
            "vmovups [{d} + 768 + ",
            $at,
            "], ",
            $s3,
            "\n",
        )
    };
}

/// Computes a tile. `$bad` stays 1 if a result is the reference engine's, and nothing is stored.
macro_rules! tile {
    ($tile:ident, $bad:ident, $take:expr, $rows:expr, $look:expr, $put:expr) => {{
        let mut word = 0u32;
        asm!(
            "/* {word}: room for MXCSR, where it is looked at */",
            $take,
            "kxorw k2, k2, k2",
            "2:",
            $rows,
            "add {a}, {lanes}",
            "add {b}, {lanes}",
            "sub {groups}, 1",
            "jnz 2b",
            $look,
            "kortestw k2, k2",
            "jnz 3f",
            $put,
            "xor {bad:e}, {bad:e}",
            "3:",
            a = inout(reg) $tile.a => _,
            b = inout(reg) $tile.b => _,
            c = in(reg) $tile.c,
            last = in(reg) $tile.c.byte_add(3 * $tile.stride),
            stride = in(reg) $tile.stride,
            lanes = in(reg) $tile.lanes,
            groups = inout(reg) $tile.groups => _,
            d = in(reg) $tile.d,
            bad = inout(reg) $bad,
            word = in(reg) &raw mut word,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            out("k1") _, out("k2") _,
            options(nostack)
        )
    }};
}

/// Tiles of a kind.
macro_rules! tiles {
    ($kind:ident, $name:ident) => {
        /// Computes a tile of `M` columns, and says whether a result is the reference engine's.
        ///
        /// # Safety
        /// The processor has AVX-512 F and DQ, and VNNI for bytes. The tile's rows exist.
        #[inline(always)]
        unsafe fn $name<const M: usize>(tile: &Tile) -> bool {
            let mut bad = 1u32;
            // SAFETY: the caller's: it reads the rows that the tile names, and writes `d`'s.
            unsafe {
                if M == 32 {
                    tile!(
                        tile, bad,
                        concat!(
                            sums!(take $kind, "0", "zmm16" "zmm17" "zmm18" "zmm19"),
                            sums!(take $kind, "64", "zmm20" "zmm21" "zmm22" "zmm23"),
                        ),
                        concat!(
                            vectors!($kind, first),
                            vectors!($kind, second),
                            row!($kind, 0, "zmm16", "zmm20"),
                            row!($kind, 1, "zmm17", "zmm21"),
                            row!($kind, 2, "zmm18", "zmm22"),
                            row!($kind, 3, "zmm19", "zmm23"),
                        ),
                        concat!(
                            look!($kind, "zmm16" "zmm17" "zmm18" "zmm19"),
                            look!($kind, "zmm20" "zmm21" "zmm22" "zmm23"),
                            flag!($kind),
                        ),
                        concat!(
                            sums!(put $kind, "0", "zmm16" "zmm17" "zmm18" "zmm19"),
                            sums!(put $kind, "64", "zmm20" "zmm21" "zmm22" "zmm23"),
                        )
                    );
                } else {
                    tile!(
                        tile, bad,
                        sums!(take $kind, "0", "zmm16" "zmm17" "zmm18" "zmm19"),
                        concat!(
                            vectors!($kind, first),
                            row!($kind, 0, "zmm16"), row!($kind, 1, "zmm17"), row!($kind, 2, "zmm18"), row!($kind, 3, "zmm19"),
                        ),
                        concat!(look!($kind, "zmm16" "zmm17" "zmm18" "zmm19"), flag!($kind)),
                        sums!(put $kind, "0", "zmm16" "zmm17" "zmm18" "zmm19")
                    );
                }
            }
            bad != 0
        }
    };
}

tiles!(F32, singles);
tiles!(F16, halves);
tiles!(BF16, brains);
tiles!(BF16_K, brain_fours);
tiles!(I8_2, bytes);
tiles!(I8_4, byte_fours);

/// MXCSR without its flags.
unsafe fn clear_flags() {
    let mut word = 0u32;
    // SAFETY: the word is there; only flags change.
    unsafe {
        asm!(
            "stmxcsr [{at}]",
            "and dword ptr [{at}], {kept}",
            "ldmxcsr [{at}]",
            at = in(reg) &raw mut word,
            kept = const !FLAGS as i32,
            options(nostack)
        );
    }
}

/// `BLOCKS` products of `M` rows and columns, sums of `K`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>(
    step: &Step,
    cx: &mut Cx,
) -> Flow {
    // Of bytes, two elements are one.
    let (depth, in_lane) = if KIND == I8 { (K / 2, K * M * BLOCKS / 128) } else { (K, K * M * BLOCKS / 64) };
    let results = M * M / 64;
    // Tiles that are the reference engine's.
    let mut left = 0u32;
    // SAFETY: the step's rows exist, and the processor has what the handler was chosen for.
    unsafe {
        let sources = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let (mut room_a, mut room_b) = (Elements::uninit(), Elements::uninit());
        let a = elements::<KIND>(sources[0], in_lane, &mut room_a);
        let b = elements::<KIND>(sources[1], in_lane, &mut room_b);
        let to = cx.row_mut(step.dst);
        // Tiles that are stored already.
        let stored = match (M, K, BLOCKS, KIND) {
            _ if step.scalar[0] != 0 => 0,
            (16, 4, 1, F32) => whole(a, b, sources[2], to),
            (32, 2, 1, F32) => eights(a, b, sources[2], to),
            _ => 0,
        };
        let constant = [step.imm as u32; 32];
        if KIND == BF16 || KIND == BF16_K {
            clear_flags();
        }
        for block in 0..BLOCKS {
            for rows in stored..M / 4 {
                // Lanes have columns first, then every other four rows.
                let (result, lane) = if M == 32 { (4 * (rows / 2), 32 * (rows % 2)) } else { (0, 16 * rows) };
                let at = 64 * (results * block + result) + lane;
                let (c, stride) = if step.scalar[0] != 0 { (constant.as_ptr(), 0) } else { (sources[2].add(at), 256) };
                let tile = Tile {
                    a: a.add(M * block + 4 * rows),
                    b: b.add(M * block),
                    lanes: 4 * M * BLOCKS,
                    groups: depth / in_lane,
                    c,
                    stride,
                    d: to.add(at),
                };
                let bad = match KIND {
                    F32 => singles::<M>(&tile),
                    F16 => halves::<M>(&tile),
                    BF16 => brains::<M>(&tile),
                    BF16_K => brain_fours::<M>(&tile),
                    _ if in_lane == 2 => bytes::<M>(&tile),
                    _ => byte_fours::<M>(&tile),
                };
                if bad {
                    left |= 1 << (M / 4 * block + rows);
                    clear_flags();
                }
            }
        }
    }
    if left != 0 {
        refer::<M, K, BLOCKS, KIND>(step, cx, left);
    }
    step.done(cx)
}

/// Has the reference engine compute the tiles whose bits are set.
#[cold]
fn refer<const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>(step: &Step, cx: &mut Cx, tiles: u32) {
    #[cfg(debug_assertions)]
    if step.loses_tiles {
        return;
    }
    let element = match KIND {
        F32 => Element::F32,
        F16 => Element::F16,
        BF16 => Element::Bf16,
        BF16_K => Element::Bf16K,
        _ => Element::I8,
    };
    let shape = MatrixShape { m: M, k: K, blocks: BLOCKS, a: element, b: element, sparse: false };
    let row = |source: usize| step.src[source].in_registers().unwrap_or(0) / ROW;
    let c = if step.scalar[0] != 0 { Err(step.imm as u32) } else { Ok(row(2)) };
    let dense = Dense { shape, a: row(0), b: row(1), c, d: step.dst / ROW };
    dense.part(cx.wave, |row, block| tiles >> (M / 4 * block + row / 4) & 1 != 0);
    cx.refresh();
}

/// The handler of a shape, for processors with AVX-512 F, BW, DQ and VNNI.
pub(super) const fn handler<const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>() -> Option<Run> {
    if M == 4 {
        return None;
    }
    Some(product::<M, K, BLOCKS, KIND>)
}
