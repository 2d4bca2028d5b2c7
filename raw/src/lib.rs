// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Access to memory that may vanish: copies and word accesses that return an error where an
//! ordinary access would raise SIGSEGV or SIGBUS.
//!
//! The memory behind a GPU address belongs to somebody else. They may unmap, protect or truncate it
//! while it is touched, so every access from this crate to system memory and VRAM goes through
//! here.
//!
//! On x86-64 Linux the accesses are a few instructions of assembly between two labels. A handler
//! for SIGSEGV and SIGBUS recognises a fault by its instruction pointer and resumes at a fix-up,
//! which returns the error. All other faults go on to the handler that was installed before.
//! Elsewhere the accesses go through the kernel (`process_vm_readv`), which is slower.
//!
//! [`memory_file`] makes files of memory that nobody can cut short.
//!
//! Limits: code that installs a handler for these signals later must chain to this one. A
//! thread that blocks SIGSEGV or SIGBUS is killed by such a fault. On other architectures atomic
//! operations probe first that the word is readable, and a word that is read-only, or vanishes
//! between probe and operation, still kills.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[cfg(target_os = "linux")]
pub mod memory_file;
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
mod portable;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use portable as arch;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use x86_64 as arch;

/// An access touched memory that is not there, or not with the needed permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of {addr:#x} faulted after {done} bytes", if *.write { "write" } else { "read" })]
pub struct Faulted {
    /// Bytes completed before the fault; exact, counted from the start. 0 for word accesses.
    pub done: usize,
    /// The host address that faulted; 0 if the processor did not say (non-canonical addresses).
    pub addr: usize,
    /// Whether the destination faulted, rather than the source.
    pub write: bool,
}

/// Installs the fault handler, once per process. Every access does this itself; a process that also
/// installs handlers of its own may call it early, to fix the order.
pub fn install() {
    arch::install();
}

/// For a program that interposes sigaction: `new` gets what is no fault of an access, and the fault
/// handler stays. What did before is returned; `None` if the handler is not installed, or not for
/// this signal.
pub fn chain(signal: libc::c_int, new: Option<libc::sigaction>) -> Option<libc::sigaction> {
    arch::chain(signal, new)
}

/// A range of code that was made at run time, in which accesses may fault: see [`made_code`].
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[derive(Debug)]
pub struct MadeCode(usize);

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Drop for MadeCode {
    fn drop(&mut self) {
        arch::made::give(self.0);
    }
}

/// Has faults in made code go on at the address that RBX has, if both are in the range. `None`: a
/// process has too many ranges. The range is good until what this returns is dropped.
///
/// # Safety
/// Code in the range has in RBX no address of the range, or one at which it can go on after a
/// fault of the instruction that is executed.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[must_use]
pub unsafe fn made_code(range: std::ops::Range<usize>) -> Option<MadeCode> {
    arch::made::take(&range).map(MadeCode)
}

/// Copies `len` bytes, in ascending order (a long copy stores its first 64 bytes last); the result
/// is unspecified if the regions overlap with `dst` above `src`.
///
/// # Errors
/// [`Faulted`], with the exact number of bytes copied, when either side cannot be touched.
///
/// # Safety
/// Both regions may be unmapped or change under the copy. No Rust reference may exist to a part of
/// them, other than the caller's: exclusive to `dst`, shared to `src`.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::copy(dst, src, len) }
}

/// As [`copy`], by non-temporal stores, for large data that is not used again soon: nothing is read
/// that is only overwritten, and nothing else has to leave the caches. Ordered before what the
/// thread stores later.
///
/// # Errors
/// As for [`copy`].
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_nontemporal(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::copy_nontemporal(dst, src, len) }
}

/// Asks for the beginning of memory that is to be read soon. A hint: the memory need not be there.
pub fn prefetch(src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len.min(256)).step_by(64) {
        // SAFETY: a prefetch never faults and changes nothing; SSE is part of x86-64.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(src.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (src, len);
}

/// Asks for lines of 64 bytes that are to be read soon, or written. A hint: the memory need not be
/// there.
#[inline(always)]
pub fn prefetch_lines(at: *const u8, lines: usize, write: bool) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines {
        let at = at.wrapping_add(64 * line);
        // SAFETY: a prefetch never faults and changes nothing; the one for writing is nothing on
        // processors without it.
        unsafe {
            if write {
                std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            } else {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, lines, write);
}

/// Sets `len` bytes to `value`.
///
/// # Errors
/// [`Faulted`], with the exact number of bytes set.
///
/// # Safety
/// As for the destination of [`copy`].
pub unsafe fn fill(dst: *mut u8, value: u8, len: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::fill(dst, value, len) }
}

/// Loads a byte with acquire ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be read.
///
/// # Safety
/// As for the source of [`copy`].
pub unsafe fn load_u8(ptr: *const u8) -> Result<u8, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_u8(ptr) }
}

/// Loads a 16-bit word with acquire ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be read.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the source of [`copy`].
pub unsafe fn load_u16(ptr: *const u16) -> Result<u16, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_u16(ptr) }
}

/// Stores a byte with release ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// As for the destination of [`copy`].
pub unsafe fn store_u8(ptr: *mut u8, value: u8) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_u8(ptr, value) }
}

/// Stores a 16-bit word with release ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn store_u16(ptr: *mut u16, value: u16) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_u16(ptr, value) }
}

/// Loads a 32-bit word with acquire ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be read.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the source of [`copy`].
pub unsafe fn load_u32(ptr: *const u32) -> Result<u32, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_u32(ptr) }
}

/// Loads a 64-bit word with acquire ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be read.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the source of [`copy`].
#[inline]
pub unsafe fn load_u64(ptr: *const u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_u64(ptr) }
}

/// Stores a 32-bit word with release ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn store_u32(ptr: *mut u32, value: u32) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_u32(ptr, value) }
}

/// Stores a 64-bit word with release ordering.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn store_u64(ptr: *mut u64, value: u64) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_u64(ptr, value) }
}

/// Stores `count` 64-bit words: `first`, `first + step` and so on (wrapping), each with release
/// ordering.
///
/// # Errors
/// [`Faulted`] when one cannot be written; those before it are.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn store_run(ptr: *mut u64, first: u64, step: u64, count: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_run(ptr, first, step, count) }
}

/// Adds to a 64-bit word atomically (sequentially consistent, wrapping) and returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_add_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::add_u64(ptr, value) }
}

/// Adds to a 32-bit word atomically (sequentially consistent, wrapping) and returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_add_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::add_u32(ptr, value) }
}

/// Replaces a 32-bit word atomically (sequentially consistent) and returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_swap_u32(ptr: *mut u32, value: u32) -> Result<u32, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::swap_u32(ptr, value) }
}

/// Replaces a 64-bit word atomically (sequentially consistent) and returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_swap_u64(ptr: *mut u64, value: u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::swap_u64(ptr, value) }
}

/// Replaces a 32-bit word by `new` if it is `expected`, atomically (sequentially consistent), and
/// returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn compare_exchange_u32(ptr: *mut u32, expected: u32, new: u32) -> Result<u32, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::compare_exchange_u32(ptr, expected, new) }
}

/// Replaces a 64-bit word by `new` if it is `expected`, atomically (sequentially consistent), and
/// returns the old value.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn compare_exchange_u64(ptr: *mut u64, expected: u64, new: u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::compare_exchange_u64(ptr, expected, new) }
}

/// Replaces a 32-bit word by `f(old)` atomically and returns the old value; `f` runs again after a
/// lost race.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_update_u32(ptr: *mut u32, f: impl Fn(u32) -> u32) -> Result<u32, Faulted> {
    // SAFETY: forwarded to the caller.
    let mut old = unsafe { load_u32(ptr) }?;
    loop {
        // SAFETY: forwarded to the caller.
        let seen = unsafe { compare_exchange_u32(ptr, old, f(old)) }?;
        if seen == old {
            return Ok(old);
        }
        old = seen;
    }
}

/// Replaces a 64-bit word by `f(old)` atomically and returns the old value; `f` runs again after a
/// lost race.
///
/// # Errors
/// [`Faulted`] when it cannot be written.
///
/// # Safety
/// `ptr` is aligned; otherwise as for the destination of [`copy`].
pub unsafe fn atomic_update_u64(ptr: *mut u64, f: impl Fn(u64) -> u64) -> Result<u64, Faulted> {
    // SAFETY: forwarded to the caller.
    let mut old = unsafe { load_u64(ptr) }?;
    loop {
        // SAFETY: forwarded to the caller.
        let seen = unsafe { compare_exchange_u64(ptr, old, f(old)) }?;
        if seen == old {
            return Ok(old);
        }
        old = seen;
    }
}

/// Loads a word of 1, 2, 4, 8 or 16 bytes from each address, in order, into consecutive words.
/// These have 4 bytes, zeros above, or 8 or 16 if the loaded ones do. Each access of up to 8 bytes
/// is one, at any alignment.
///
/// # Errors
/// [`Faulted`], with the number of words loaded, when one cannot be read.
///
/// # Safety
/// `dst` has room for them; otherwise as for the source of [`copy`], for each address.
pub unsafe fn load_each(dst: *mut u8, from: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_each(dst, from, bytes) }
}

/// Loads lines of 64 bytes, at any alignment, into rows of 64 words. The lines have `words` words
/// of each lane, 1, 2 or 4, for a multiple of sixteen lanes. Word `n` of a lane goes to its place
/// in row `n`.
///
/// # Errors
/// [`Faulted`], with the number of bytes loaded, when a line cannot be read. Nothing of its sixteen
/// lanes is written.
///
/// # Safety
/// `dst` has room for as many rows as a lane has words. The processor has AVX-512 F. Otherwise as
/// for the source of [`copy`], for each line.
pub unsafe fn load_rows(dst: *mut u32, from: &[*mut u8], words: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::load_rows(dst, from, words) }
}

/// Stores to each address, in their order, the low 1, 2, 4, 8 or 16 bytes of consecutive words of
/// 4 bytes (8 or 16 if it is that).
///
/// # Errors
/// [`Faulted`], with the number of words stored, when one cannot be written.
///
/// # Safety
/// `src` has them; otherwise as for the destination of [`copy`], for each address.
pub unsafe fn store_each(src: *const u8, to: &[*mut u8], bytes: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::store_each(src, to, bytes) }
}

/// Copies lines of 64 bytes, at any alignment, ascending: [`copy`] for short copies of known size.
///
/// # Errors
/// As for [`copy`]; the count is of whole lines.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_lines(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::copy_lines(dst, src, lines) }
}

/// [`copy_lines`] for processors with AVX.
///
/// # Errors
/// As for [`copy_lines`].
///
/// # Safety
/// As for [`copy`]; the processor has AVX.
pub unsafe fn copy_lines_avx(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::copy_lines_avx(dst, src, lines) }
}

/// [`copy_lines_avx`] past the caches, for lines that are not read again soon and are not cached.
/// Later stores may be seen before these lines, until [`fence_stores`] was called.
///
/// # Errors
/// As for [`copy_lines`].
///
/// # Safety
/// As for [`copy_lines_avx`]; `dst` is a multiple of 32.
pub unsafe fn copy_lines_past(dst: *mut u8, src: *const u8, lines: usize) -> Result<(), Faulted> {
    // SAFETY: forwarded to the caller.
    unsafe { arch::copy_lines_past(dst, src, lines) }
}

/// A thread that sees what this thread stores from now on sees what it stored before, past the
/// caches too.
#[inline]
pub fn fence_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no preconditions; every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
