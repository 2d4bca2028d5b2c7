// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many mappings the process may still have. The kernel's limit (vm.max_map_count) is the
//! process's, so what the host uses is missing to the program, whose own mmap would fail first. A
//! sixteenth of it (4,095 by default) stays for the program: what would take from that is refused
//! here, with a message that says what to do.
//!
//! Mechanism: the mappings there are, as counted, and those that the host has made since. Counting
//! reads `/proc/self/maps`, a line a mapping, so it is done when the estimate is at the limit, and
//! once in [`BELIEVED`] mappings. It allocates nothing and takes no lock.
//!
//! Limit: what the program maps between two counts is not seen; it comes from the reserve.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use vkfd_sabotage::{process, Switch};

/// The kernel's default.
const USUAL: u64 = 65_530;
/// So many mappings are made before the process's are counted again.
const BELIEVED: u64 = 512;

static COUNTED: AtomicU64 = AtomicU64::new(0);
/// Since then; more than [`BELIEVED`] before the first count.
static MADE: AtomicU64 = AtomicU64::new(u64::MAX / 2);

/// Mappings that a process may have.
pub(crate) fn max_map_count() -> Option<u64> {
    let mut text = [0; 32];
    let mut length = 0;
    read(c"/proc/sys/vm/max_map_count", |piece| {
        let taken = piece.len().min(text.len() - length);
        text[length..length + taken].copy_from_slice(&piece[..taken]);
        length += taken;
    })?;
    std::str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}

/// Of these, what the host leaves alone is the difference to this.
pub(crate) fn limit() -> u64 {
    let limit = max_map_count().unwrap_or(USUAL);
    if process().has(Switch::NoReserve) {
        return limit;
    }
    limit - limit / 16
}

/// Mappings that there are; 0 where that cannot be read.
pub(crate) fn count() -> u64 {
    let mut lines = 0;
    let counted = read(c"/proc/self/maps", |piece| lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64);
    counted.map_or(0, |()| lines)
}

/// Whether the host may make `wanted` more; then they are taken to be made.
pub(crate) fn take(wanted: u64) -> bool {
    static LIMIT: AtomicU64 = AtomicU64::new(0);
    let made = MADE.load(Ordering::Relaxed).saturating_add(wanted);
    if made <= BELIEVED && COUNTED.load(Ordering::Relaxed).saturating_add(made) <= LIMIT.load(Ordering::Relaxed) {
        MADE.fetch_add(wanted, Ordering::Relaxed);
        return true;
    }
    let (there, limit) = (count(), limit());
    let fits = there.saturating_add(wanted) <= limit;
    COUNTED.store(there, Ordering::Relaxed);
    LIMIT.store(limit, Ordering::Relaxed);
    MADE.store(if fits { wanted } else { 0 }, Ordering::Relaxed);
    fits
}

/// The contents of a file, piece by piece. By system calls: `/proc` is not the program's.
fn read(path: &CStr, mut piece: impl FnMut(&[u8])) -> Option<()> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return None;
    }
    let mut buffer = [0_u8; 4096];
    let done = loop {
        // SAFETY: reads into this function's own buffer.
        let bytes = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
        match usize::try_from(bytes) {
            Ok(0) => break Some(()),
            Ok(bytes) => piece(&buffer[..bytes]),
            Err(_) => break None,
        }
    };
    // SAFETY: this function's own descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_counted_and_some_are_left() {
        let there = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64;
        assert!(count().abs_diff(there) < 100, "{} and {there}", count());
        let most = max_map_count().unwrap();
        assert!(limit() < most && limit() > most / 2);
        assert!(take(1) && !take(most), "what is not there is not taken");
        assert!(take(1), "and is not remembered as made");
    }
}
