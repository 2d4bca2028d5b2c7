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
    // The same, past the caches.
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
