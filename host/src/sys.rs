// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's own mapping calls, as raw system calls.
//!
//! The libc functions may be interposed ([`crate::interpose`]); they must not report the host's
//! changes of its own memory as invalidations, nor its changes during the delivery of one.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};

/// What a raw system call returned, as a result.
fn result(value: libc::c_long) -> io::Result<u64> {
    u64::try_from(value).map_err(|_| io::Error::last_os_error())
}

/// mmap, any arguments.
///
/// # Safety
/// As for mmap: with `MAP_FIXED`, nothing that Rust relies on may lie in the way.
pub(crate) unsafe fn mmap(at: u64, bytes: u64, prot: i32, flags: i32, fd: i32, offset: i64) -> io::Result<u64> {
    // SAFETY: forwarded to the caller.
    result(unsafe { libc::syscall(libc::SYS_mmap, at, bytes, prot, flags, fd, offset) })
}

/// The address of the host's next own memory. The kernel places no mappings there by itself, and no
/// sanitizer has its shadow there. A program may unmap a part of a mapping, and later all of it:
/// that would destroy memory in the hole.
static OWN: AtomicU64 = AtomicU64::new(0x5000_0000_0000);

/// Fresh zeroed memory, readable and writable.
pub(crate) fn map_anonymous(bytes: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let hint = OWN.fetch_add((bytes as u64).next_multiple_of(PAGE).saturating_add(PAGE), Ordering::Relaxed);
    let at = vkfd_rt::reserve::map(hint, bytes, prot, flags | libc::MAP_ANONYMOUS, -1, 0)?;
    NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// A private anonymous page.
pub(crate) fn map_page() -> io::Result<CpuSpan> {
    let at = map_anonymous(vkfd_driver::base::addr::index(PAGE), libc::MAP_PRIVATE)?;
    let at = CpuVa(at.as_ptr().expose_provenance() as u64);
    Ok(CpuSpan::between(at, CpuVa(at.0 + PAGE)))
}

/// A private anonymous page at an address where nothing is mapped.
pub(crate) fn map_page_at(at: u64) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel replaces no mapping.
    let done = unsafe { libc::syscall(libc::SYS_mmap, at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// munmap. Failing (a split that exceeds the limit of mappings) leaves the memory mapped.
///
/// # Safety
/// Nothing may use the memory any more.
pub(crate) unsafe fn unmap(at: u64, bytes: u64) {
    vkfd_rt::reserve::forget(at);
    // SAFETY: forwarded to the caller.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
}

/// mremap.
///
/// # Safety
/// As for mremap.
pub(crate) unsafe fn mremap(at: u64, old: u64, new: u64, flags: i32, to: u64) -> io::Result<u64> {
    // SAFETY: forwarded to the caller.
    result(unsafe { libc::syscall(libc::SYS_mremap, at, old, new, flags, to) })
}

/// mprotect.
///
/// # Safety
/// As for mprotect.
pub(crate) unsafe fn mprotect(at: u64, bytes: u64, prot: i32) -> io::Result<()> {
    // SAFETY: forwarded to the caller.
    result(unsafe { libc::syscall(libc::SYS_mprotect, at, bytes, prot) }).map(drop)
}

/// madvise with advice that does not change contents.
pub(crate) fn madvise(at: u64, bytes: u64, advice: i32) -> io::Result<()> {
    debug_assert!(matches!(advice, libc::MADV_NOHUGEPAGE | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE));
    // SAFETY: this advice neither unmaps nor changes what the memory holds.
    result(unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) }).map(drop)
}

/// This process. A system call each time: a cached answer would be the parent's after a fork.
pub(crate) fn pid() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// Whether every page of the range has a mapping. An asynchronous msync does nothing else (ENOMEM
/// for a hole).
pub(crate) fn is_mapped(at: u64, bytes: u64) -> bool {
    // SAFETY: MS_ASYNC changes nothing.
    unsafe { libc::syscall(libc::SYS_msync, at, bytes, libc::MS_ASYNC) == 0 }
}

/// `MADV_DONTNEED`.
///
/// # Safety
/// The contents of the memory are nobody's.
pub(crate) unsafe fn discard(at: u64, bytes: u64) {
    // SAFETY: forwarded to the caller.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_DONTNEED) };
}

/// Waits until `word` is not `value` any more, a wake-up, or `millis` have passed. May return for
/// no reason.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32, millis: u32) {
    let timeout = libc::timespec { tv_sec: i64::from(millis / 1000), tv_nsec: i64::from(millis % 1000) * 1_000_000 };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives as long as the reference, and the timeout as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const timeout) };
}

/// Wakes all threads that wait for `word`.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives as long as the reference.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}
