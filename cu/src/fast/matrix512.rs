// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of 32 or 16 rows on processors with AVX-512: the sums of [`super::matrix`],
//! in its order.
//!
//! A *tile* is four rows of D by 16 columns. Its sums stay in registers over all products. A's
//! elements are broadcast by the instruction that multiplies; B's are vectors, which serve all four
//! rows.
//!
//! bfloat16 has products and sums that the host has exactly, unless they are denormal. All of them
//! but the last are operands of the next sum, and a denormal operand leaves a flag in MXCSR. So
//! nothing is looked at but that flag and the results.

use super::avx2::Avx2;
use super::elements::{element, Row, BF16, BF16_K, F16, F32, I8};
use super::step::{Cx, Flow, Run, Step};
use std::arch::asm;
use std::mem::MaybeUninit;

/// MXCSR's exception flags, and that of a denormal operand.
const FLAGS: u32 = 0x3f;
const DENORMAL: u32 = 1 << 1;

/// Room for the elements of a source that are not as its rows have them.
type Elements = MaybeUninit<[Row; 4]>;

/// The elements of a source: `in_lane` of each lane. Single precision is taken from the rows.
///
/// # Safety
/// The rows exist, and the processor has AVX-512 F and BW.
#[inline(always)]
unsafe fn elements<const KIND: u8>(rows: *const u32, in_lane: usize, room: &mut Elements) -> *const u32 {
    let to = room.as_mut_ptr().cast::<Row>();
    // SAFETY: the caller's; there is room for four rows.
    unsafe {
        match KIND {
            F32 => return rows,
            I8 => {
                for n in 0..in_lane {
                    element::<Avx2, KIND>(rows, n, &mut *to.add(n));
                }
            }
            // A half without an exponent becomes zero.
            F16 => asm!(
                "vpbroadcastw zmm16, {exponent:e}",
                "2:",
                "vmovdqu32 zmm17, [{from}]",
                "vptestmw k1, zmm17, zmm16",
                "vmovdqu16 zmm17{{k1}}{{z}}, zmm17",
                "vpsrld zmm18, zmm17, 16",
                "vpmovdw ymm17, zmm17",
                "vpmovdw ymm18, zmm18",
                "vcvtph2ps zmm17, ymm17",
                "vcvtph2ps zmm18, ymm18",
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
                exponent = in(reg) 0x7c00,
                from = inout(reg) rows => _,
                to = inout(reg) to => _,
                left = inout(reg) 2 * in_lane as u32 - 1 => _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("k1") _,
                options(nostack)
            ),
            _ => asm!(
                "vpbroadcastw zmm16, {exponent:e}",
                "vpbroadcastd zmm19, {high:e}",
                "2:",
                "vmovdqu32 zmm17, [{from}]",
                "vptestmw k1, zmm17, zmm16",
                "vmovdqu16 zmm17{{k1}}{{z}}, zmm17",
                "vpandd zmm18, zmm17, zmm19",
                "vpslld zmm17, zmm17, 16",
                "vmovups [{to}], zmm17",
                "vmovups [{to} + 256], zmm18",
                "add {from}, 64",
                "add {to}, 64",
                "test {left:e}, 3",
                "jnz 3f",
                "add {to}, 256",
                "3:",
                "sub {left:e}, 1",
                "jns 2b",
                exponent = in(reg) 0x7f80,
                high = in(reg) 0xffff_0000_u32,
                from = inout(reg) rows => _,
                to = inout(reg) to => _,
                left = inout(reg) 2 * in_lane as u32 - 1 => _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("k1") _,
                options(nostack)
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

/// Products of a lane's elements: the text of one row of the tile. `$t` and `$u` are free.
macro_rules! products {
    (F32, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!("vfmadd231ps ", $sum, ", zmm20, dword ptr [{a} + 4*", $row, "]{{1to16}}\n")
    };
    // The sum of two products from an element on, as two fused operations.
    (@fused $at:literal, $row:literal, $b:literal, $b1:literal, $t:literal) => {
        concat!(
            "vmulps ", $t, ", ", $b, ", dword ptr [{a} + 256*", $at, " + 4*", $row, "]{{1to16}}\n",
            "vfmadd231ps ", $t, ", ", $b1, ", dword ptr [{a} + 256*", $at, " + 256 + 4*", $row, "]{{1to16}}\n",
        )
    };
    // The same, each product by itself.
    (@exact $at:literal, $row:literal, $b:literal, $b1:literal, $t:literal, $u:literal) => {
        concat!(
            "vmulps ", $t, ", ", $b, ", dword ptr [{a} + 256*", $at, " + 4*", $row, "]{{1to16}}\n",
            "vmulps ", $u, ", ", $b1, ", dword ptr [{a} + 256*", $at, " + 256 + 4*", $row, "]{{1to16}}\n",
            "vaddps ", $t, ", ", $t, ", ", $u, "\n",
        )
    };
    (F16, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!(
            products!(@fused 0, $row, "zmm20", "zmm21", $t),
            products!(@fused 2, $row, "zmm22", "zmm23", $u),
            "vaddps ", $t, ", ", $t, ", ", $u, "\n",
            "vaddps ", $sum, ", ", $sum, ", ", $t, "\n",
        )
    };
    (BF16, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!(
            products!(@exact 0, $row, "zmm20", "zmm21", $t, $u),
            "vaddps ", $sum, ", ", $sum, ", ", $t, "\n",
        )
    };
    (BF16_K, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!(
            products!(@exact 0, $row, "zmm20", "zmm21", $t, $u),
            products!(@exact 2, $row, "zmm22", "zmm23", $u, "zmm31"),
            "vaddps ", $t, ", ", $t, ", ", $u, "\n",
            "vaddps ", $sum, ", ", $sum, ", ", $t, "\n",
        )
    };
    (I8_2, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!(
            "vpdpwssd ", $sum, ", zmm20, dword ptr [{a} + 4*", $row, "]{{1to16}}\n",
            "vpdpwssd ", $sum, ", zmm21, dword ptr [{a} + 256 + 4*", $row, "]{{1to16}}\n",
        )
    };
    (I8_4, $row:literal, $sum:literal, $t:literal, $u:literal) => {
        concat!(
            products!(I8_2, $row, $sum, $t, $u),
            "vpdpwssd ", $sum, ", zmm22, dword ptr [{a} + 512 + 4*", $row, "]{{1to16}}\n",
            "vpdpwssd ", $sum, ", zmm23, dword ptr [{a} + 768 + 4*", $row, "]{{1to16}}\n",
        )
    };
}

/// B's vectors: as many as a lane has elements.
macro_rules! vectors {
    (F32) => {
        "vmovups zmm20, [{b}]\n"
    };
    (BF16) => {
        concat!(vectors!(F32), "vmovups zmm21, [{b} + 256]\n")
    };
    (I8_2) => {
        vectors!(BF16)
    };
    ($kind:ident) => {
        concat!(vectors!(BF16), "vmovups zmm22, [{b} + 512]\nvmovups zmm23, [{b} + 768]\n")
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

/// Classes of a result that is the reference engine's: NaNs, and with `exact` denormals.
macro_rules! look {
    (I8_2, $sum:literal) => { "" };
    (I8_4, $sum:literal) => { "" };
    (BF16, $sum:literal) => { look!(@ "0xa1", $sum) };
    (BF16_K, $sum:literal) => { look!(@ "0xa1", $sum) };
    (@ $classes:literal, $sum:literal) => {
        concat!("vfpclassps k1, ", $sum, ", ", $classes, "\nkorw k2, k2, k1\n")
    };
    ($kind:ident, $sum:literal) => { look!(@ "0x81", $sum) };
}

/// Computes a tile, and says whether a result is the reference engine's.
macro_rules! tile {
    ($name:ident, $kind:ident) => {
        /// # Safety
        /// The processor has AVX-512 F and DQ, and VNNI for bytes. The tile's rows exist.
        #[inline(always)]
        unsafe fn $name(tile: &Tile) -> bool {
            let bad: u32;
            // SAFETY: the caller's: it reads the rows that the tile names, and writes `d`'s.
            unsafe {
                asm!(
                    "vmovups zmm16, [{c}]",
                    "vmovups zmm17, [{c} + {stride}]",
                    "vmovups zmm18, [{c} + 2*{stride}]",
                    "vmovups zmm19, [{last}]",
                    concat!(flush!($kind, "zmm16"), flush!($kind, "zmm17")),
                    concat!(flush!($kind, "zmm18"), flush!($kind, "zmm19")),
                    "kxorw k2, k2, k2",
                    "2:",
                    vectors!($kind),
                    products!($kind, 0, "zmm16", "zmm24", "zmm25"),
                    products!($kind, 1, "zmm17", "zmm26", "zmm27"),
                    products!($kind, 2, "zmm18", "zmm28", "zmm29"),
                    products!($kind, 3, "zmm19", "zmm30", "zmm25"),
                    "add {a}, {lanes}",
                    "add {b}, {lanes}",
                    "sub {groups}, 1",
                    "jnz 2b",
                    concat!(look!($kind, "zmm16"), look!($kind, "zmm17")),
                    concat!(look!($kind, "zmm18"), look!($kind, "zmm19")),
                    "vmovups [{d}], zmm16",
                    "vmovups [{d} + 256], zmm17",
                    "vmovups [{d} + 512], zmm18",
                    "vmovups [{d} + 768], zmm19",
                    "kmovw {bad:e}, k2",
                    a = inout(reg) tile.a => _,
                    b = inout(reg) tile.b => _,
                    c = in(reg) tile.c,
                    last = in(reg) tile.c.byte_add(3 * tile.stride),
                    stride = in(reg) tile.stride,
                    lanes = in(reg) tile.lanes,
                    groups = inout(reg) tile.groups => _,
                    d = in(reg) tile.d,
                    bad = lateout(reg) bad,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                    out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                    out("k1") _, out("k2") _,
                    options(nostack)
                );
            }
            bad != 0
        }
    };
}

tile!(singles, F32);
tile!(halves, F16);
tile!(brains, BF16);
tile!(brain_fours, BF16_K);
tile!(bytes, I8_2);
tile!(byte_fours, I8_4);

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

/// Whether an operand was denormal since then.
unsafe fn met_denormal() -> bool {
    let mut word = 0u32;
    // SAFETY: the word is there.
    unsafe { asm!("stmxcsr [{at}]", at = in(reg) &raw mut word, options(nostack)) };
    word & DENORMAL != 0
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
    // SAFETY: the step's rows exist, and the processor has what the handler was chosen for. All of
    // `out` is written before it is read: four rows of each tile.
    unsafe {
        let sources = [cx.row(step.src[0]), cx.row(step.src[1]), cx.row(step.src[2])];
        let (mut room_a, mut room_b) = (Elements::uninit(), Elements::uninit());
        let a = elements::<KIND>(sources[0], in_lane, &mut room_a);
        let b = elements::<KIND>(sources[1], in_lane, &mut room_b);
        let constant = [step.imm as u32; 16];
        let mut out = MaybeUninit::<[Row; 32]>::uninit();
        let to = out.as_mut_ptr().cast::<u32>();
        if KIND == BF16 || KIND == BF16_K {
            clear_flags();
        }
        let mut bad = false;
        for block in 0..BLOCKS {
            for column in 0..M / 16 {
                for rows in 0..M / 4 {
                    // Lanes have columns first, then every other four rows.
                    let (result, vector) = if M == 32 { (4 * (rows / 2), 2 * (rows % 2) + column) } else { (0, rows) };
                    let at = 64 * (results * block + result) + 16 * vector;
                    let (c, stride) =
                        if step.scalar[0] != 0 { (constant.as_ptr(), 0) } else { (sources[2].add(at), 256) };
                    let tile = Tile {
                        a: a.add(M * block + 4 * rows),
                        b: b.add(M * block + 16 * column),
                        lanes: 4 * M * BLOCKS,
                        groups: depth / in_lane,
                        c,
                        stride,
                        d: to.add(at),
                    };
                    bad |= match KIND {
                        F32 => singles(&tile),
                        F16 => halves(&tile),
                        BF16 => brains(&tile),
                        BF16_K => brain_fours(&tile),
                        _ if in_lane == 2 => bytes(&tile),
                        _ => byte_fours(&tile),
                    };
                }
            }
        }
        if bad || (KIND == BF16 || KIND == BF16_K) && met_denormal() {
            return step.slow(cx);
        }
        std::ptr::copy_nonoverlapping(to, cx.row_mut(step.dst), 64 * results * BLOCKS);
    }
    step.done(cx)
}

/// The handler of a shape, for processors with AVX-512 F, BW, DQ and VNNI.
pub(super) const fn handler<const M: usize, const K: usize, const BLOCKS: usize, const KIND: u8>() -> Option<Run> {
    if M == 4 {
        return None;
    }
    Some(product::<M, K, BLOCKS, KIND>)
}
