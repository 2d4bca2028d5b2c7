// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The marked access routines and the signal handler behind [`raw`](super).
//!
//! Each routine returns a value in RAX and a status in RDX. RDX is zero while it runs; the handler
//! sets it when it resumes the routine at the fix-up. Each region has a fix-up. `words` returns at
//! once. `bulk`, `body`, `spill`, `set` and `run` return the rest of the count in RCX, which string
//! instructions keep exact. `small` (eight bytes per step) goes on in `bulk`, which then stops at
//! the exact byte.
//!
//! A long copy loads its first 64 bytes (`head`) before the string instruction (`body`), and stores
//! them after it (`tail`). The string instruction then finds the source's translation in the TLB.
//! Pieces of 16 KiB are about a tenth faster by this. If a head faults, `bulk` does it all; if a
//! tail faults, `spill` finds the exact byte.
//!
//! `past` stores past the caches, 64 bytes per step; what is left, also after a fault, is for
//! `bulk`.

mod lanes;
pub(super) mod made;

pub(super) use lanes::{copy_lines, copy_lines_avx, copy_lines_past, load_each, load_rows, store_each};

use super::Faulted;
use core::arch::global_asm;
use std::ptr::{addr_of, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::Once;

/// Set in every status that reports a fault.
const FAULTED: u64 = 1 << 63;
/// Set in a status whose fault was a write.
const WRITE: u64 = 1 << 62;

#[repr(C)]
struct Answer {
    value: u64,
    status: u64,
}

global_asm!(
    r#"
    .pushsection .text.vkfd_raw,"ax",@progbits
    .hidden vkfd_raw_words
    .hidden vkfd_raw_words_end
    .hidden vkfd_raw_words_fix
    .hidden vkfd_raw_small
    .hidden vkfd_raw_bulk
    .hidden vkfd_raw_bulk_fix
    .hidden vkfd_raw_head
    .hidden vkfd_raw_body
    .hidden vkfd_raw_tail
    .hidden vkfd_raw_tail_fix
    .hidden vkfd_raw_spill
    .hidden vkfd_raw_spill_fix
    .hidden vkfd_raw_head_fix
    .hidden vkfd_raw_past
    .hidden vkfd_raw_past_fix
    .hidden vkfd_raw_set
    .hidden vkfd_raw_set_fix
    .hidden vkfd_raw_run
    .hidden vkfd_raw_run_fix
    .hidden vkfd_raw_store_run
    .hidden vkfd_raw_copy
    .hidden vkfd_raw_copy_nontemporal
    .hidden vkfd_raw_fill
    .hidden vkfd_raw_load32
    .hidden vkfd_raw_load64
    .hidden vkfd_raw_store32
    .hidden vkfd_raw_store64
    .hidden vkfd_raw_add64
    .hidden vkfd_raw_cas32
    .hidden vkfd_raw_cas64
    .hidden vkfd_raw_load8, vkfd_raw_load16, vkfd_raw_store8, vkfd_raw_store16, vkfd_raw_add32, vkfd_raw_swap32, vkfd_raw_swap64
    .globl vkfd_raw_words
    .globl vkfd_raw_words_end
    .globl vkfd_raw_words_fix
    .globl vkfd_raw_small
    .globl vkfd_raw_bulk
    .globl vkfd_raw_bulk_fix
    .globl vkfd_raw_head
    .globl vkfd_raw_body
    .globl vkfd_raw_tail
    .globl vkfd_raw_tail_fix
    .globl vkfd_raw_spill
    .globl vkfd_raw_spill_fix
    .globl vkfd_raw_head_fix
    .globl vkfd_raw_past
    .globl vkfd_raw_past_fix
    .globl vkfd_raw_set
    .globl vkfd_raw_set_fix
    .globl vkfd_raw_run
    .globl vkfd_raw_run_fix
    .globl vkfd_raw_store_run
    .globl vkfd_raw_copy
    .globl vkfd_raw_copy_nontemporal
    .globl vkfd_raw_fill
    .globl vkfd_raw_load32
    .globl vkfd_raw_load64
    .globl vkfd_raw_store32
    .globl vkfd_raw_store64
    .globl vkfd_raw_add64
    .globl vkfd_raw_cas32
    .globl vkfd_raw_cas64
    .globl vkfd_raw_load8, vkfd_raw_load16, vkfd_raw_store8, vkfd_raw_store16, vkfd_raw_add32, vkfd_raw_swap32, vkfd_raw_swap64

    .balign 64
vkfd_raw_words:
vkfd_raw_load32:
    xor edx, edx
    mov eax, dword ptr [rdi]
    ret
vkfd_raw_load64:
    xor edx, edx
    mov rax, qword ptr [rdi]
    ret
vkfd_raw_store32:
    xor edx, edx
    mov dword ptr [rdi], esi
    ret
vkfd_raw_store64:
    xor edx, edx
    mov qword ptr [rdi], rsi
    ret
vkfd_raw_add64:
    xor edx, edx
    mov rax, rsi
    lock xadd qword ptr [rdi], rax
    ret
vkfd_raw_cas32:
    mov ecx, edx
    xor edx, edx
    mov eax, esi
    lock cmpxchg dword ptr [rdi], ecx
    ret
vkfd_raw_cas64:
    mov rcx, rdx
    xor edx, edx
    mov rax, rsi
    lock cmpxchg qword ptr [rdi], rcx
    ret
vkfd_raw_load8:
    xor edx, edx
    movzx eax, byte ptr [rdi]
    ret
vkfd_raw_load16:
    xor edx, edx
    movzx eax, word ptr [rdi]
    ret
vkfd_raw_store8:
    xor edx, edx
    mov byte ptr [rdi], sil
    ret
vkfd_raw_store16:
    xor edx, edx
    mov word ptr [rdi], si
    ret
vkfd_raw_add32:
    xor edx, edx
    mov eax, esi
    lock xadd dword ptr [rdi], eax
    ret
vkfd_raw_swap32:
    xor edx, edx
    mov eax, esi
    xchg dword ptr [rdi], eax
    ret
vkfd_raw_swap64:
    xor edx, edx
    mov rax, rsi
    xchg qword ptr [rdi], rax
    ret
vkfd_raw_words_end:
vkfd_raw_words_fix:
    ret

    .balign 64
vkfd_raw_copy:
    mov rcx, rdx
    cmp rcx, 256
    ja 5f
vkfd_raw_small:
2:  cmp rcx, 8
    jb 3f
    mov rax, qword ptr [rsi]
    mov qword ptr [rdi], rax
    add rsi, 8
    add rdi, 8
    sub rcx, 8
    jmp 2b
3:  test rcx, rcx
    jz 4f
vkfd_raw_bulk:
    xor edx, edx
    rep movsb
vkfd_raw_bulk_fix:
    mov rax, rcx
    ret
4:  xor eax, eax
    xor edx, edx
    ret
5:  mov r8, rdi
    mov r9, rdx
    xor edx, edx
    add rdi, 64
    sub rcx, 64
vkfd_raw_head:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    add rsi, 64
vkfd_raw_body:
    rep movsb
vkfd_raw_tail:
    mov rax, rcx
    movups [r8], xmm0
    movups [r8 + 16], xmm1
    movups [r8 + 32], xmm2
    movups [r8 + 48], xmm3
    ret
vkfd_raw_tail_fix:
    sub rsp, 64
    movups [rsp], xmm0
    movups [rsp + 16], xmm1
    movups [rsp + 32], xmm2
    movups [rsp + 48], xmm3
    mov rsi, rsp
    mov rdi, r8
    mov ecx, 64
vkfd_raw_spill:
    rep movsb
vkfd_raw_spill_fix:
    add rsp, 64
    lea rax, [r9 + rcx - 64]
    ret
vkfd_raw_head_fix:
    mov rdi, r8
    mov rcx, r9
    jmp vkfd_raw_bulk
    .balign 64
vkfd_raw_copy_nontemporal:
    test dil, 15
    jnz vkfd_raw_copy
    mov rcx, rdx
vkfd_raw_past:
6:  cmp rcx, 64
    jb vkfd_raw_past_fix
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movntdq [rdi], xmm0
    movntdq [rdi + 16], xmm1
    movntdq [rdi + 32], xmm2
    movntdq [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    sub rcx, 64
    jmp 6b
vkfd_raw_past_fix:
    sfence
    jmp vkfd_raw_bulk
vkfd_raw_fill:
    mov rcx, rdx
    xor edx, edx
    mov eax, esi
vkfd_raw_set:
    rep stosb
vkfd_raw_set_fix:
    mov rax, rcx
    ret
vkfd_raw_store_run:
    mov r8, rdx
    xor edx, edx
    test rcx, rcx
    jz vkfd_raw_run_fix
vkfd_raw_run:
    mov qword ptr [rdi], rsi
    add rdi, 8
    add rsi, r8
    dec rcx
    jnz vkfd_raw_run
vkfd_raw_run_fix:
    mov rax, rcx
    ret
    .popsection
"#
);

extern "C" {
    static vkfd_raw_words: u8;
    static vkfd_raw_words_end: u8;
    static vkfd_raw_words_fix: u8;
    static vkfd_raw_small: u8;
    static vkfd_raw_bulk: u8;
    static vkfd_raw_bulk_fix: u8;
    static vkfd_raw_past: u8;
    static vkfd_raw_past_fix: u8;
    static vkfd_raw_set: u8;
    static vkfd_raw_set_fix: u8;
    static vkfd_raw_run: u8;
    static vkfd_raw_run_fix: u8;
    static vkfd_raw_head: u8;
    static vkfd_raw_body: u8;
    static vkfd_raw_tail: u8;
    static vkfd_raw_tail_fix: u8;
    static vkfd_raw_spill: u8;
    static vkfd_raw_spill_fix: u8;
    static vkfd_raw_head_fix: u8;
    fn vkfd_raw_copy(dst: *mut u8, src: *const u8, len: usize) -> Answer;
    fn vkfd_raw_copy_nontemporal(dst: *mut u8, src: *const u8, len: usize) -> Answer;
    fn vkfd_raw_fill(dst: *mut u8, value: u32, len: usize) -> Answer;
    fn vkfd_raw_store_run(ptr: *mut u64, first: u64, step: u64, count: usize) -> Answer;
    fn vkfd_raw_load32(ptr: *const u32) -> Answer;
    fn vkfd_raw_load64(ptr: *const u64) -> Answer;
    fn vkfd_raw_store32(ptr: *mut u32, value: u32) -> Answer;
    fn vkfd_raw_store64(ptr: *mut u64, value: u64) -> Answer;
    fn vkfd_raw_add64(ptr: *mut u64, value: u64) -> Answer;
    fn vkfd_raw_cas32(ptr: *mut u32, expected: u32, new: u32) -> Answer;
    fn vkfd_raw_cas64(ptr: *mut u64, expected: u64, new: u64) -> Answer;
    fn vkfd_raw_load8(ptr: *const u8) -> Answer;
    fn vkfd_raw_load16(ptr: *const u16) -> Answer;
    fn vkfd_raw_store8(ptr: *mut u8, value: u32) -> Answer;
    fn vkfd_raw_store16(ptr: *mut u16, value: u32) -> Answer;
    fn vkfd_raw_add32(ptr: *mut u32, value: u32) -> Answer;
    fn vkfd_raw_swap32(ptr: *mut u32, value: u32) -> Answer;
    fn vkfd_raw_swap64(ptr: *mut u64, value: u64) -> Answer;
}

fn fault(status: u64, done: usize) -> Faulted {
    let addr = status & !(FAULTED | WRITE);
    Faulted { done, addr: usize::try_from(addr).unwrap_or(0), write: status & WRITE != 0 }
}

fn bulk(len: usize, answer: &Answer) -> Result<(), Faulted> {
    if answer.status == 0 {
        return Ok(());
    }
    let left = usize::try_from(answer.value).unwrap_or(len);
    Err(fault(answer.status, len.saturating_sub(left)))
}

fn word(answer: &Answer) -> Result<u64, Faulted> {
    if answer.status == 0 {
        Ok(answer.value)
    } else {
        Err(fault(answer.status, 0))
    }
}

fn word32(answer: &Answer) -> Result<u32, Faulted> {
    // The routines leave the upper half of RAX zero.
    word(answer).map(|value| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0))
}

pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: the routine touches only the two regions, and a fault in it resumes at its fix-up.
    bulk(len, &unsafe { vkfd_raw_copy(dst, src, len) })
}

pub(super) unsafe fn copy_nontemporal(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    bulk(len, &unsafe { vkfd_raw_copy_nontemporal(dst, src, len) })
}

pub(super) unsafe fn fill(dst: *mut u8, value: u8, len: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    bulk(len, &unsafe { vkfd_raw_fill(dst, u32::from(value), len) })
}

pub(super) unsafe fn load_u32(ptr: *const u32) -> Result<u32, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word32(&unsafe { vkfd_raw_load32(ptr) })
}

#[inline]
pub(super) unsafe fn load_u64(ptr: *const u64) -> Result<u64, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_load64(ptr) })
}

pub(super) unsafe fn store_u32(ptr: *mut u32, value: u32) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_store32(ptr, value) }).map(|_| ())
}

pub(super) unsafe fn store_u64(ptr: *mut u64, value: u64) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_store64(ptr, value) }).map(|_| ())
}

pub(super) unsafe fn store_run(ptr: *mut u64, first: u64, step: u64, count: usize) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    bulk(count, &unsafe { vkfd_raw_store_run(ptr, first, step, count) }).map_err(|f| Faulted { done: f.done * 8, ..f })
}

pub(super) unsafe fn add_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_add64(ptr, value) })
}

pub(super) unsafe fn compare_exchange_u32(ptr: *mut u32, expected: u32, new: u32) -> Result<u32, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word32(&unsafe { vkfd_raw_cas32(ptr, expected, new) })
}

pub(super) unsafe fn compare_exchange_u64(ptr: *mut u64, expected: u64, new: u64) -> Result<u64, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_cas64(ptr, expected, new) })
}

pub(super) unsafe fn load_u8(ptr: *const u8) -> Result<u8, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_load8(ptr) }).map(|value| u8::try_from(value & 0xff).unwrap_or(0))
}

pub(super) unsafe fn load_u16(ptr: *const u16) -> Result<u16, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_load16(ptr) }).map(|value| u16::try_from(value & 0xffff).unwrap_or(0))
}

pub(super) unsafe fn store_u8(ptr: *mut u8, value: u8) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_store8(ptr, value.into()) }).map(|_| ())
}

pub(super) unsafe fn store_u16(ptr: *mut u16, value: u16) -> Result<(), Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_store16(ptr, value.into()) }).map(|_| ())
}

pub(super) unsafe fn add_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word32(&unsafe { vkfd_raw_add32(ptr, value) })
}

pub(super) unsafe fn swap_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word32(&unsafe { vkfd_raw_swap32(ptr, value) })
}

pub(super) unsafe fn swap_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    install();
    // SAFETY: as in `copy`.
    word(&unsafe { vkfd_raw_swap64(ptr, value) })
}

/// The instruction pointer at which a fault at `rip` resumes, if `rip` lies in a marked routine.
fn fixup(rip: usize) -> Option<usize> {
    let regions = [
        (addr_of!(vkfd_raw_words), addr_of!(vkfd_raw_words_end), addr_of!(vkfd_raw_words_fix)),
        (addr_of!(vkfd_raw_small), addr_of!(vkfd_raw_bulk), addr_of!(vkfd_raw_bulk)),
        (addr_of!(vkfd_raw_bulk), addr_of!(vkfd_raw_bulk_fix), addr_of!(vkfd_raw_bulk_fix)),
        (addr_of!(vkfd_raw_head), addr_of!(vkfd_raw_body), addr_of!(vkfd_raw_head_fix)),
        (addr_of!(vkfd_raw_body), addr_of!(vkfd_raw_tail), addr_of!(vkfd_raw_tail)),
        (addr_of!(vkfd_raw_tail), addr_of!(vkfd_raw_tail_fix), addr_of!(vkfd_raw_tail_fix)),
        (addr_of!(vkfd_raw_spill), addr_of!(vkfd_raw_spill_fix), addr_of!(vkfd_raw_spill_fix)),
        (addr_of!(vkfd_raw_past), addr_of!(vkfd_raw_past_fix), addr_of!(vkfd_raw_past_fix)),
        (addr_of!(vkfd_raw_set), addr_of!(vkfd_raw_set_fix), addr_of!(vkfd_raw_set_fix)),
        (addr_of!(vkfd_raw_run), addr_of!(vkfd_raw_run_fix), addr_of!(vkfd_raw_run_fix)),
        lanes::region(),
    ];
    let hit = regions.iter().find(|(from, to, _)| (from.addr()..to.addr()).contains(&rip));
    hit.map(|(_, _, fix)| fix.addr())
}

/// What gets faults that are not ours: the action that was installed before this handler, or that a
/// program has given since ([`super::chain`]). Set before the handler is. An action that is
/// replaced is not freed: a handler may be reading it.
static NEXT: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn next(signal: libc::c_int) -> &'static AtomicPtr<libc::sigaction> {
    &NEXT[usize::from(signal == libc::SIGBUS)]
}

fn action(signal: libc::c_int) -> Option<&'static libc::sigaction> {
    // SAFETY: null, or a leaked box.
    unsafe { next(signal).load(Ordering::Acquire).as_ref() }
}

pub(super) fn chain(signal: libc::c_int, new: Option<libc::sigaction>) -> Option<libc::sigaction> {
    if !INSTALLED.load(Ordering::Acquire) || !matches!(signal, libc::SIGSEGV | libc::SIGBUS) {
        return None;
    }
    let old = action(signal).copied();
    if let Some(new) = new {
        next(signal).store(Box::into_raw(Box::new(new)), Ordering::Release);
    }
    old
}

pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: sigaction with valid structures; the handler is async-signal-safe, and what
            // it reads (`NEXT`) is set before it can run.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, null(), &mut old);
                next(signal).store(Box::into_raw(Box::new(old)), Ordering::Release);
                let mut new: libc::sigaction = std::mem::zeroed();
                let entry: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handler;
                new.sa_sigaction = entry as libc::sighandler_t;
                new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigemptyset(&mut new.sa_mask);
                libc::sigaction(signal, &new, null_mut());
            }
        }
        INSTALLED.store(true, Ordering::Release);
    });
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t and ucontext_t that live as long as the handler
    // runs.
    let (registers, from_kernel, addr) = unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        (registers, (*info).si_code > 0, (*info).si_addr().addr() as u64)
    };
    let register = |index: libc::c_int| usize::try_from(index).unwrap_or(0);
    let rip = register(libc::REG_RIP);
    if let Some(resume) = usize::try_from(registers[rip]).ok().filter(|_| from_kernel).and_then(fixup) {
        // Page faults (trap 14) tell reads from writes; bit 1 of the error code is set for writes.
        let page_fault = registers[register(libc::REG_TRAPNO)] == 14;
        let write = page_fault && registers[register(libc::REG_ERR)] & 2 != 0;
        let status = FAULTED | if write { WRITE } else { 0 } | (addr & !(FAULTED | WRITE));
        registers[register(libc::REG_RDX)] = status as i64;
        registers[rip] = resume as i64;
        return;
    }
    let rbx = register(libc::REG_RBX);
    let (at, next) = (usize::try_from(registers[rip]).unwrap_or(0), usize::try_from(registers[rbx]).unwrap_or(0));
    if from_kernel && made::resumes(at, next) {
        registers[rip] = registers[rbx];
        return;
    }
    hand_on(signal, info, context, from_kernel);
}

/// Hands a signal that is not ours to the handler that comes next.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, from_kernel: bool) {
    let old = action(signal);
    let action = old.map_or(libc::SIG_DFL, |old| old.sa_sigaction);
    if action == libc::SIG_IGN && !from_kernel {
        return;
    }
    // SAFETY: the previous action is called the way it was installed. After the default action is
    // restored, returning repeats the faulting instruction. It then kills the process as it would
    // have without this handler.
    unsafe {
        if action == libc::SIG_DFL || action == libc::SIG_IGN {
            // From here on this handler is out of the way, also where sigaction is interposed.
            INSTALLED.store(false, Ordering::Release);
            libc::signal(signal, libc::SIG_DFL);
            if !from_kernel {
                libc::raise(signal);
            }
        } else if old.is_some_and(|old| old.sa_flags & libc::SA_SIGINFO != 0) {
            let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(action);
            call(signal, info, context);
        } else {
            let call: extern "C" fn(libc::c_int) = std::mem::transmute(action);
            call(signal);
        }
    }
}
