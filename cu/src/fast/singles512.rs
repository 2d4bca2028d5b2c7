// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of singles on processors with AVX-512. Their sums stay in 16 registers. With
//! 16 rows all of them are done at once, with 32 rows eight at a time.
//!
//! If a result is NaN, nothing of these rows is stored, and [`super::matrix512`] does the rest.

use std::arch::asm;

/// One operation for each row of D of 16 by 16 singles: `$each` with the row's number, its sum, and
/// where the sum lies.
macro_rules! rows {
    ($each:ident $($more:tt)*) => {
        concat!(
            $each!(0, "zmm16", "0" $($more)*), $each!(1, "zmm17", "256" $($more)*),
            $each!(2, "zmm18", "512" $($more)*), $each!(3, "zmm19", "768" $($more)*),
            $each!(4, "zmm20", "64" $($more)*), $each!(5, "zmm21", "320" $($more)*),
            $each!(6, "zmm22", "576" $($more)*), $each!(7, "zmm23", "832" $($more)*),
            $each!(8, "zmm24", "128" $($more)*), $each!(9, "zmm25", "384" $($more)*),
            $each!(10, "zmm26", "640" $($more)*), $each!(11, "zmm27", "896" $($more)*),
            $each!(12, "zmm28", "192" $($more)*), $each!(13, "zmm29", "448" $($more)*),
            $each!(14, "zmm30", "704" $($more)*), $each!(15, "zmm31", "960" $($more)*),
        )
    };
}

/// Takes a row's sum.
macro_rules! take {
    ($row:literal, $sum:literal, $at:literal) => {
        concat!("vmovups ", $sum, ", [{c} + {at} + ", $at, "]\n")
    };
}

/// Puts a row's sum.
macro_rules! put {
    ($row:literal, $sum:literal, $at:literal) => {
        concat!("vmovups [{d} + {at} + ", $at, "], ", $sum, "\n")
    };
}

/// Adds the products of A's elements and a row of B.
macro_rules! multiply {
    ($row:literal, $sum:literal, $at:literal, $b:literal, $k:literal) => {
        concat!("vfmadd231ps ", $sum, ", ", $b, ", dword ptr [{a} + ", $k, " + 4*", $row, "]{{1to16}}\n")
    };
}

/// Looks for NaNs among all sums.
macro_rules! look {
    () => {
        concat!(
            "kxorw k2, k2, k2\n",
            look!("zmm16", "zmm17"),
            look!("zmm18", "zmm19"),
            look!("zmm20", "zmm21"),
            look!("zmm22", "zmm23"),
            look!("zmm24", "zmm25"),
            look!("zmm26", "zmm27"),
            look!("zmm28", "zmm29"),
            look!("zmm30", "zmm31"),
        )
    };
    ($one:literal, $two:literal) => {
        concat!("vcmpunordps k1, ", $one, ", ", $two, "\nkorw k2, k2, k1\n")
    };
}

/// Takes the sums of a part of C, adds products, and stores them: so many parts of D, one behind
/// the other. A's rows of each part are eight further. Gives the number of parts before one with a
/// NaN, which are stored.
macro_rules! parts {
    ($parts:literal, $a:ident, $b:ident, $c:ident, $d:ident, $products:expr) => {{
        let mut left = $parts as usize;
        asm!(
            "vmovups zmm0, [{b}]",
            "vmovups zmm1, [{b} + 64]",
            "vmovups zmm2, [{b} + 128]",
            "vmovups zmm3, [{b} + 192]",
            "2:",
            rows!(take),
            $products,
            look!(),
            "kortestw k2, k2",
            "jnz 3f",
            rows!(put),
            "add {a}, 32",
            "add {at}, 1024",
            "sub {left}, 1",
            "jnz 2b",
            "3:",
            a = inout(reg) $a => _,
            b = in(reg) $b,
            c = in(reg) $c,
            d = in(reg) $d,
            at = inout(reg) 0usize => _,
            left = inout(reg) left,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            out("k1") _, out("k2") _,
            options(nostack)
        );
        $parts - left
    }};
}

/// The product of singles with 16 rows and columns and sums of four, all of it at once. How many
/// tiles of four rows were stored: all four, unless a result is NaN.
///
/// # Safety
/// The processor has AVX-512 F. The rows exist: one of A and one of B, four of C and D.
#[inline(always)]
pub(super) unsafe fn whole(a: *const u32, b: *const u32, c: *const u32, d: *mut u32) -> usize {
    // SAFETY: the caller's.
    unsafe {
        4 * parts!(
            1,
            a,
            b,
            c,
            d,
            concat!(
                rows!(multiply, "zmm0", "0"),
                rows!(multiply, "zmm1", "64"),
                rows!(multiply, "zmm2", "128"),
                rows!(multiply, "zmm3", "192"),
            )
        )
    }
}

/// A row of 32 by 32 singles with sums of two: the sums of its two vectors.
macro_rules! two_products {
    ($row:literal, $s0:literal, $s1:literal) => {
        concat!(
            "vbroadcastss zmm4, dword ptr [{a} + 4*",
            $row,
            "]\n",
            "vbroadcastss zmm5, dword ptr [{a} + 128 + 4*",
            $row,
            "]\n",
            "vfmadd231ps ",
            $s0,
            ", zmm0, zmm4\nvfmadd231ps ",
            $s1,
            ", zmm1, zmm4\nvfmadd231ps ",
            $s0,
            ", zmm2, zmm5\nvfmadd231ps ",
            $s1,
            ", zmm3, zmm5\n",
        )
    };
}

/// The product of singles with 32 rows and columns and sums of two, eight rows at a time. How many
/// tiles of four rows were stored: all eight, unless a result is NaN.
///
/// # Safety
/// The processor has AVX-512 F. The rows exist: one of A and one of B, 16 of C and D.
#[inline(always)]
pub(super) unsafe fn eights(a: *const u32, b: *const u32, c: *const u32, d: *mut u32) -> usize {
    // SAFETY: the caller's.
    unsafe {
        2 * parts!(
            4,
            a,
            b,
            c,
            d,
            concat!(
                two_products!(0, "zmm16", "zmm20"),
                two_products!(1, "zmm17", "zmm21"),
                two_products!(2, "zmm18", "zmm22"),
                two_products!(3, "zmm19", "zmm23"),
                two_products!(4, "zmm24", "zmm28"),
                two_products!(5, "zmm25", "zmm29"),
                two_products!(6, "zmm26", "zmm30"),
                two_products!(7, "zmm27", "zmm31"),
            )
        )
    }
}
