// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Accesses of many lanes at once: what a vector instruction does, in one routine. Same mechanism
//! as in the parent module: each region's fix-up returns what is left of the count.

use super::{bulk, install, Answer};
use crate::Faulted;
use core::arch::global_asm;
use std::ptr::addr_of;

macro_rules! each {
    ($name:literal, $load:literal, $keep:literal, $step:literal) => {
        concat!(
            ".hidden vkfd_raw_",
            $name,
            "\n.globl vkfd_raw_",
            $name,
            "\n.balign 32\nvkfd_raw_",
            $name,
            ":\n",
            "mov rcx, rdx\nxor edx, edx\ntest rcx, rcx\njz vkfd_raw_lanes_fix\n",
            "2: mov r8, qword ptr [rsi]\n",
            $load,
            "\n",
            $keep,
            "\n",
            "add rsi, 8\nadd rdi, ",
            $step,
            "\ndec rcx\njnz 2b\njmp vkfd_raw_lanes_fix\n",
        )
    };
}

global_asm!(
    ".pushsection .text.vkfd_raw,\"ax\",@progbits",
    ".hidden vkfd_raw_lanes, vkfd_raw_lanes_fix, vkfd_raw_vectors, vkfd_raw_wide, vkfd_raw_wide_past",
    ".globl vkfd_raw_lanes, vkfd_raw_lanes_fix, vkfd_raw_vectors, vkfd_raw_wide, vkfd_raw_wide_past",
    ".hidden vkfd_raw_load_rows1, vkfd_raw_load_rows2, vkfd_raw_load_rows4",
    ".globl vkfd_raw_load_rows1, vkfd_raw_load_rows2, vkfd_raw_load_rows4",
    ".balign 64",
    "vkfd_raw_lanes:",
    each!("load_each8", "movzx eax, byte ptr [r8]", "mov dword ptr [rdi], eax", "4"),
    each!("load_each16", "movzx eax, word ptr [r8]", "mov dword ptr [rdi], eax", "4"),
    each!("load_each32", "mov eax, dword ptr [r8]", "mov dword ptr [rdi], eax", "4"),
    each!("load_each64", "mov rax, qword ptr [r8]", "mov qword ptr [rdi], rax", "8"),
    each!("load_each128", "movups xmm0, [r8]", "movups [rdi], xmm0", "16"),
    each!("store_each8", "mov eax, dword ptr [rdi]", "mov byte ptr [r8], al", "4"),
    each!("store_each16", "mov eax, dword ptr [rdi]", "mov word ptr [r8], ax", "4"),
    each!("store_each32", "mov eax, dword ptr [rdi]", "mov dword ptr [r8], eax", "4"),
    each!("store_each64", "mov rax, qword ptr [rdi]", "mov qword ptr [r8], rax", "8"),
    each!("store_each128", "movups xmm0, [rdi]", "movups [r8], xmm0", "16"),
    // Pieces of 64 bytes.
    "vkfd_raw_vectors:",
    "mov rcx, rdx",
    "xor edx, edx",
    "test rcx, rcx",
    "jz vkfd_raw_lanes_fix",
    "3: movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 3b",
    "jmp vkfd_raw_lanes_fix",
    // The same by larger vectors. After a fault the upper halves stay as they are, which costs time
    // only.
    "vkfd_raw_wide:",
    "mov rcx, rdx",
    "xor edx, edx",
    "test rcx, rcx",
    "jz vkfd_raw_lanes_fix",
    "4: vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 4b",
    "vzeroupper",
    "jmp vkfd_raw_lanes_fix",
    // Words of sixteen lanes from as many lines as a lane has words. No lower register is touched,
    // so nothing is to be cleared.
    "vkfd_raw_load_rows1:",
    "mov rcx, rdx",
    "xor edx, edx",
    "6: mov r8, qword ptr [rsi]",
    "vmovdqu64 zmm16, [r8]",
    "vmovdqu64 [rdi], zmm16",
    "add rsi, 8",
    "add rdi, 64",
    "dec rcx",
    "jnz 6b",
    "jmp vkfd_raw_lanes_fix",
    "vkfd_raw_load_rows2:",
    "mov rcx, rdx",
    "xor edx, edx",
    "vmovdqu64 zmm20, [rip + vkfd_raw_even]",
    "vmovdqu64 zmm21, [rip + vkfd_raw_odd]",
    "7: mov r8, qword ptr [rsi]",
    "mov r9, qword ptr [rsi + 8]",
    "vmovdqu64 zmm16, [r8]",
    "vmovdqu64 zmm17, [r9]",
    "vmovdqa64 zmm18, zmm16",
    "vpermt2d zmm16, zmm20, zmm17",
    "vpermt2d zmm18, zmm21, zmm17",
    "vmovdqu64 [rdi], zmm16",
    "vmovdqu64 [rdi + 256], zmm18",
    "add rsi, 16",
    "add rdi, 64",
    "dec rcx",
    "jnz 7b",
    "jmp vkfd_raw_lanes_fix",
    "vkfd_raw_load_rows4:",
    "mov rcx, rdx",
    "xor edx, edx",
    "vmovdqu64 zmm20, [rip + vkfd_raw_first_two]",
    "vmovdqu64 zmm21, [rip + vkfd_raw_last_two]",
    "8: mov r8, qword ptr [rsi]",
    "mov r9, qword ptr [rsi + 8]",
    "mov r10, qword ptr [rsi + 16]",
    "mov r11, qword ptr [rsi + 24]",
    "vmovdqu64 zmm16, [r8]",
    "vmovdqu64 zmm17, [r9]",
    "vmovdqu64 zmm18, [r10]",
    "vmovdqu64 zmm19, [r11]",
    // Of eight lanes the first words and the second ones, and the third and the fourth ones.
    "vmovdqa64 zmm22, zmm16",
    "vmovdqa64 zmm23, zmm18",
    "vpermt2d zmm16, zmm20, zmm17",
    "vpermt2d zmm22, zmm21, zmm17",
    "vpermt2d zmm18, zmm20, zmm19",
    "vpermt2d zmm23, zmm21, zmm19",
    "vshufi64x2 zmm17, zmm16, zmm18, 0x44",
    "vshufi64x2 zmm16, zmm16, zmm18, 0xee",
    "vshufi64x2 zmm19, zmm22, zmm23, 0x44",
    "vshufi64x2 zmm22, zmm22, zmm23, 0xee",
    "vmovdqu64 [rdi], zmm17",
    "vmovdqu64 [rdi + 256], zmm16",
    "vmovdqu64 [rdi + 512], zmm19",
    "vmovdqu64 [rdi + 768], zmm22",
    "add rsi, 32",
    "add rdi, 64",
    "dec rcx",
    "jnz 8b",
    "jmp vkfd_raw_lanes_fix",
    // As `vkfd_raw_wide`, past the caches.
    "vkfd_raw_wide_past:",
    "mov rcx, rdx",
    "xor edx, edx",
    "test rcx, rcx",
    "jz vkfd_raw_lanes_fix",
    "5: vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovntps [rdi], ymm0",
    "vmovntps [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 5b",
    "vzeroupper",
    "vkfd_raw_lanes_fix:",
    "mov rax, rcx",
    "ret",
    ".balign 64",
    "vkfd_raw_even: .long 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30",
    "vkfd_raw_odd: .long 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31",
    "vkfd_raw_first_two: .long 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29",
    "vkfd_raw_last_two: .long 2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31",
    ".popsection",
);

extern "C" {
    static vkfd_raw_lanes: u8;
    static vkfd_raw_lanes_fix: u8;
    fn vkfd_raw_load_each8(dst: *mut u8, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_each16(dst: *mut u8, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_each32(dst: *mut u8, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_each64(dst: *mut u8, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_each128(dst: *mut u8, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_store_each8(src: *const u8, to: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_store_each16(src: *const u8, to: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_store_each32(src: *const u8, to: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_store_each64(src: *const u8, to: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_store_each128(src: *const u8, to: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_vectors(dst: *mut u8, src: *const u8, count: usize) -> Answer;
    fn vkfd_raw_wide(dst: *mut u8, src: *const u8, count: usize) -> Answer;
    fn vkfd_raw_wide_past(dst: *mut u8, src: *const u8, count: usize) -> Answer;
    fn vkfd_raw_load_rows1(dst: *mut u32, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_rows2(dst: *mut u32, from: *const *mut u8, count: usize) -> Answer;
    fn vkfd_raw_load_rows4(dst: *mut u32, from: *const *mut u8, count: usize) -> Answer;
}

/// The region and its fix-up.
pub(super) fn region() -> (*const u8, *const u8, *const u8) {
    (addr_of!(vkfd_raw_lanes), addr_of!(vkfd_raw_lanes_fix), addr_of!(vkfd_raw_lanes_fix))
}

pub(crate) unsafe fn load_each(dst: *mut u8, from: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    install();
    let (ptr, count) = (from.as_ptr(), from.len());
    // SAFETY: the routine reads the pointers and what they point to, and writes as many words; a
    // fault resumes at its fix-up.
    let answer = unsafe {
        match bytes {
            1 => vkfd_raw_load_each8(dst, ptr, count),
            2 => vkfd_raw_load_each16(dst, ptr, count),
            4 => vkfd_raw_load_each32(dst, ptr, count),
            16 => vkfd_raw_load_each128(dst, ptr, count),
            _ => vkfd_raw_load_each64(dst, ptr, count),
        }
    };
    bulk(count, &answer)
}

pub(crate) unsafe fn store_each(src: *const u8, to: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    install();
    let (ptr, count) = (to.as_ptr(), to.len());
    // SAFETY: as in `load_each`, the other way.
    let answer = unsafe {
        match bytes {
            1 => vkfd_raw_store_each8(src, ptr, count),
            2 => vkfd_raw_store_each16(src, ptr, count),
            4 => vkfd_raw_store_each32(src, ptr, count),
            16 => vkfd_raw_store_each128(src, ptr, count),
            _ => vkfd_raw_store_each64(src, ptr, count),
        }
    };
    bulk(count, &answer)
}

pub(crate) unsafe fn copy_lines(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: the routine touches only the two regions, and a fault in it resumes at its fix-up.
    bulk(lines, &unsafe { vkfd_raw_vectors(dst, src, lines) }).map_err(|f| Faulted { done: f.done * 64, ..f })
}

pub(crate) unsafe fn copy_lines_avx(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy_lines`; the processor has AVX.
    bulk(lines, &unsafe { vkfd_raw_wide(dst, src, lines) }).map_err(|f| Faulted { done: f.done * 64, ..f })
}

pub(crate) unsafe fn copy_lines_past(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy_lines`; the processor has AVX.
    bulk(lines, &unsafe { vkfd_raw_wide_past(dst, src, lines) }).map_err(|f| Faulted { done: f.done * 64, ..f })
}

pub(crate) unsafe fn load_rows(dst: *mut u32, from: &[*mut u8], words: usize) -> Result<(), Faulted> {
    install();
    let (ptr, count) = (from.as_ptr(), from.len() / words);
    if count == 0 {
        return Ok(());
    }
    // SAFETY: as in `load_each`; the processor has AVX-512.
    let answer = unsafe {
        match words {
            1 => vkfd_raw_load_rows1(dst, ptr, count),
            2 => vkfd_raw_load_rows2(dst, ptr, count),
            _ => vkfd_raw_load_rows4(dst, ptr, count),
        }
    };
    bulk(count, &answer).map_err(|f| Faulted { done: f.done * 64 * words, ..f })
}
