// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Large mappings that stay empty until they are used, whatever the program has locked.
//!
//! A program may have all of its memory locked (mlockall), what it maps in future as well. The
//! kernel then fills a new mapping at once: gigabytes of a GPU's memory and of tables. So a
//! reservation is mapped without any access, unlocked, and made accessible last: what is not
//! accessible is not filled, and what is not locked is not filled later. Reservations are listed,
//! for the hook of mlockall, which locks the program's mappings and leaves these out.
//!
//! The list is a fixed table of atomic words: it is looked at and changed without a lock.
//!
//! Limits: where the limit of locked memory is smaller than the reservation, the kernel refuses it
//! (EAGAIN), because it counts it before it can be unlocked. Beyond [`LISTED`] reservations, others
//! are not listed.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most reservations that are listed.
const LISTED: usize = 512;

/// First byte and end. An end of 0: free.
static LIST: [[AtomicU64; 2]; LISTED] = [const { [const { AtomicU64::new(0) }; 2] }; LISTED];

/// mmap, of memory that is neither locked nor filled. Not with `MAP_FIXED`.
///
/// # Errors
/// As mmap and mprotect; nothing stays mapped then.
pub fn map(hint: u64, bytes: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> io::Result<*mut u8> {
    debug_assert_eq!(flags & libc::MAP_FIXED, 0);
    let flags = flags & !libc::MAP_FIXED;
    // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { libc::syscall(libc::SYS_mmap, hint, bytes, libc::PROT_NONE, flags, fd, offset) };
    let at = u64::try_from(at).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the mapping is new. Unlocking changes no contents.
    let done = unsafe {
        libc::syscall(libc::SYS_munlock, at, bytes);
        libc::syscall(libc::SYS_mprotect, at, bytes, prot)
    };
    if done != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: the mapping is new, and nobody knows it.
        unsafe { libc::syscall(libc::SYS_munmap, at, bytes) };
        return Err(error);
    }
    note(at..at + bytes as u64);
    Ok(ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0)))
}

/// Puts a mapping on the list.
pub(crate) fn note(span: Range<u64>) {
    for [start, end] in &LIST {
        // Taken first, by an end before any start.
        if end.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            start.store(span.start, Ordering::Release);
            end.store(span.end, Ordering::Release);
            return;
        }
    }
}

/// Takes what is about to be unmapped off the list.
pub fn forget(at: u64) {
    for [start, end] in &LIST {
        if end.load(Ordering::Acquire) > 1 && start.load(Ordering::Acquire) == at {
            start.store(0, Ordering::Release);
            end.store(0, Ordering::Release);
            return;
        }
    }
}

/// Whether an address is in a reservation.
pub fn has(at: u64) -> bool {
    LIST.iter().any(|[start, end]| {
        let end = end.load(Ordering::Acquire);
        end > 1 && (start.load(Ordering::Acquire)..end).contains(&at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 20;

    /// Kilobytes of this process's memory that are there.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn a_reservation_is_listed_until_it_goes() {
        let at = map(0, BYTES, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).unwrap();
        let at = at.expose_provenance() as u64;
        assert!(has(at) && has(at + BYTES as u64 - 1) && !has(at + BYTES as u64) && !has(at - 1));
        forget(at);
        assert!(!has(at));
        // SAFETY: mapped above.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap()), BYTES) };
    }

    /// In a child, because it concerns all of a process.
    #[test]
    fn a_reservation_stays_empty_where_all_future_memory_is_locked() {
        // SAFETY: the child maps memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: system calls on the child's own memory.
            let outcome = unsafe {
                if libc::mlockall(libc::MCL_FUTURE) != 0 {
                    libc::_exit(2);
                }
                let before = resident();
                let reserved = map(0, BYTES, both, flags, -1, 0).is_ok();
                let after = resident();
                // The control.
                let filled = libc::mmap(ptr::null_mut(), BYTES, both, flags, -1, 0) != libc::MAP_FAILED;
                (reserved, after - before < 1024, filled, resident() - after >= 60 << 10)
            };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(outcome != (true, true, true, true))) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        match libc::WEXITSTATUS(status) {
            2 => eprintln!("SKIPPED: this process may not lock its memory"),
            code => assert_eq!(code, 0),
        }
    }
}
