// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Matrix operations of gfx11 on processors with AVX-512: a row of D is one vector.
//!
//! All sums stay in registers over all products, in the order of [`super::wmma`]. A's elements are
//! broadcast by the instruction that multiplies.

use std::arch::asm;

/// Elements of a matrix by k, then row or column.
type Elements = [[u32; 16]; 16];

/// Takes 16 elements of each k out of eight registers that have two in a word, as `elements` of
/// [`super::wmma`] does: halves, or bfloat16 if `BRAIN`.
///
/// # Safety
/// The rows exist, there is room for the elements, and the processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn elements<const BRAIN: bool>(rows: *const u32, to: *mut Elements) {
    macro_rules! unpack {
        ($($split:literal)*) => {
            asm!(
                "vpbroadcastd zmm18, {upper:e}",
                "2:",
                "vmovdqu32 zmm16, [{from}]",
                $($split,)*
                "vmovups [{to}], zmm17",
                "vmovups [{to} + 64], zmm16",
                "add {from}, 256",
                "add {to}, 128",
                "sub {left:e}, 1",
                "jnz 2b",
                upper = in(reg) 0xffff_0000u32,
                from = inout(reg) rows => _,
                to = inout(reg) to => _,
                left = inout(reg) 8u32 => _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _,
                options(nostack)
            )
        };
    }
    // SAFETY: the caller's; there is room for 16 elements of 16 k.
    unsafe {
        if BRAIN {
            unpack!("vpslld zmm17, zmm16, 16" "vpandd zmm16, zmm16, zmm18")
        } else {
            unpack!(
                "vpmovdw ymm17, zmm16" "vcvtph2ps zmm17, ymm17" "vpsrld zmm16, zmm16, 16"
                "vpmovdw ymm16, zmm16" "vcvtph2ps zmm16, ymm16"
            )
        }
    }
}

/// Adds all products to the sums, whose rows are D's.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn products(a: &Elements, b: &Elements, sums: &mut [[u32; 8]; 32]) {
    macro_rules! with_rows {
        ($($sum:tt $row:tt)*) => {
            asm!(
                $(concat!("vmovups ", $sum, ", [{sums} + 64*", $row, "]"),)*
                "2:",
                "vmovups zmm16, [{b}]",
                $(concat!("vfmadd231ps ", $sum, ", zmm16, dword ptr [{a} + 4*", $row, "]{{1to16}}"),)*
                "add {a}, 64",
                "add {b}, 64",
                "sub {left:e}, 1",
                "jnz 2b",
                $(concat!("vmovups [{sums} + 64*", $row, "], ", $sum),)*
                sums = in(reg) sums.as_mut_ptr(),
                a = inout(reg) a.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                left = inout(reg) 16u32 => _,
                $(out($sum) _,)*
                out("zmm16") _,
                options(nostack)
            )
        };
    }
    // SAFETY: the arrays are read and written within their bounds.
    unsafe {
        with_rows!(
            "zmm0" 0 "zmm1" 1 "zmm2" 2 "zmm3" 3 "zmm4" 4 "zmm5" 5 "zmm6" 6 "zmm7" 7
            "zmm8" 8 "zmm9" 9 "zmm10" 10 "zmm11" 11 "zmm12" 12 "zmm13" 13 "zmm14" 14 "zmm15" 15
        );
    }
}
