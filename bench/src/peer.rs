// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What else the machine has for the same ranges: io_uring's registered buffers, copies into a
//! bounce buffer, and mremap.
//!
//! Limits: io_uring takes 16,384 buffers a ring, and more need more rings. The buffers count
//! against RLIMIT_MEMLOCK, and some containers refuse io_uring. mremap needs two mappings a range,
//! and the kernel allows a process `vm.max_map_count` of them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use vkfd_client::{ClientError, Errno, UserptrRange};

use crate::arena::{map, mappings, Arena};
use crate::subject::Subject;

/// Why the driver did not measure what its host alone takes.
pub fn not_measured(subject: Subject, error: &ClientError) -> String {
    match error.errno() {
        Some(Errno::OPNOTSUPP) if subject == Subject::Pin => "only the kernel module can pin pages".to_owned(),
        Some(Errno::OPNOTSUPP) if subject == Subject::FaultBare => "only a kernel has the call".to_owned(),
        Some(Errno::NOTTY | Errno::PERM) => {
            "this driver does not measure it (vkfd's does, with the module's parameter diagnosis=1)".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Buffers that one ring takes (IORING_MAX_REG_BUFFERS).
const RING_BUFFERS: usize = 1 << 14;
/// Bytes that one buffer may have.
const RING_BUFFER_BYTES: u64 = 1 << 30;
const REGISTER_BUFFERS: u32 = 0;
const UNREGISTER_BUFFERS: u32 = 1;
/// `struct io_uring_params`, of which nothing is asked for.
const PARAMS_BYTES: usize = 120;

/// Rings to register buffers with.
pub struct IoUring(Vec<OwnedFd>);

impl IoUring {
    /// Rings for `ranges` buffers.
    ///
    /// # Errors
    ///
    /// What io_uring_setup failed with.
    pub fn new(ranges: usize) -> io::Result<Self> {
        (0..ranges.div_ceil(RING_BUFFERS)).map(|_| ring()).collect::<io::Result<_>>().map(Self)
    }

    /// Registers all ranges and unregisters them. How long each took.
    ///
    /// # Errors
    ///
    /// What io_uring_register failed with, or that a range is too long.
    pub fn cycle(&self, ranges: &[UserptrRange]) -> io::Result<(Duration, Duration)> {
        if ranges.iter().any(|range| range.size > RING_BUFFER_BYTES) {
            return Err(io::Error::other("a buffer may have 1 GiB at most"));
        }
        let start = Instant::now();
        let mut result = Ok(());
        let mut used = 0;
        for (ring, chunk) in self.0.iter().zip(ranges.chunks(RING_BUFFERS)) {
            // A range has the layout of `struct iovec`.
            result = register(ring, REGISTER_BUFFERS, chunk.as_ptr().cast(), chunk.len());
            if result.is_err() {
                break;
            }
            used += 1;
        }
        let registered = start.elapsed();
        let start = Instant::now();
        for ring in &self.0[..used] {
            register(ring, UNREGISTER_BUFFERS, std::ptr::null(), 0)?;
        }
        result.map(|()| (registered, start.elapsed()))
    }
}

fn ring() -> io::Result<OwnedFd> {
    let mut params = [0_u64; PARAMS_BYTES / 8];
    // SAFETY: the structure has the size of io_uring_params, and zeroes ask for nothing.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn register(ring: &OwnedFd, operation: u32, list: *const libc::c_void, count: usize) -> io::Result<()> {
    // SAFETY: the list is valid for the call, and the kernel keeps the pages, not the addresses.
    let result = unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), operation, list, count) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Copies range by range into the arena's contiguous part, and back. How long each took.
pub fn bounce(arena: &Arena) -> (Duration, Duration) {
    let whole = arena.pointer(arena.whole);
    let copy = |back: bool| {
        let start = Instant::now();
        let mut at = whole;
        for range in &arena.ranges {
            let (bytes, piece) = (usize::try_from(range.size).unwrap_or(0), arena.pointer(*range));
            let (from, to) = if back { (at, piece) } else { (piece, at) };
            // SAFETY: both are inside of the arena and apart from each other; nothing refers to
            // them.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            at = at.wrapping_add(bytes);
        }
        start.elapsed()
    };
    (copy(false), copy(true))
}

/// How many mappings a process may have.
pub fn max_map_count() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}

/// Moves the pages of all ranges into a contiguous window, and back. How long each took, or why it
/// cannot be done: beyond the limit it is not tried, because pages could then not be moved back
/// either.
pub fn linearise(arena: &Arena) -> Result<(Duration, Duration), String> {
    let (limit, now) = (max_map_count(), mappings().count());
    // The window's pieces do not merge, and each range is cut out of its mapping.
    let needed = now + 2 * arena.ranges.len() + 64;
    if needed > limit {
        return Err(format!("it would need {needed} mappings, and vm.max_map_count is {limit}"));
    }
    let bytes = usize::try_from(arena.total()).map_err(|e| e.to_string())?;
    let window = map(bytes, libc::PROT_NONE).map_err(|e| e.to_string())?;
    let start = Instant::now();
    let moved = arena.ranges.iter().try_fold((0, 0), |(done, at), range| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let to = window.as_ptr().wrapping_add(at);
        remap(arena.pointer(*range), to, range.size, flags)
            .map(|bytes| (done + 1, at + bytes))
            .map_err(|error| (done, error))
    });
    let there = start.elapsed();
    let count = match &moved {
        Ok((done, _)) | Err((done, _)) => *done,
    };
    let start = Instant::now();
    let mut at = 0;
    for range in &arena.ranges[..count] {
        let from = window.as_ptr().wrapping_add(at);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        at += remap(from, arena.pointer(*range), range.size, flags)
            .map_err(|error| format!("the pages cannot be moved back: {error}"))?;
    }
    let back = start.elapsed();
    // What was moved back has left its place in the window to the next mapping.
    if at < bytes {
        // SAFETY: nothing was moved from this part, so it is this function's mapping still.
        unsafe { libc::munmap(window.as_ptr().wrapping_add(at).cast(), bytes - at) };
    }
    moved.map(|_| (there, back)).map_err(|(done, error)| format!("range {done} cannot be moved: {error}"))
}

fn remap(from: *mut u8, to: *mut u8, bytes: u64, flags: i32) -> io::Result<usize> {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    // SAFETY: both places are mappings of the caller's own, and nothing refers to their pages.
    let at = unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<libc::c_void>()) };
    if at == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Pages;
    use vkfd_client::PAGE;

    #[test]
    fn what_is_moved_or_copied_there_and_back_is_what_it_was() {
        let arena = Arena::scattered(50, 2 * PAGE, Pages::Small).unwrap();
        let word = |i: usize| arena.pointer(arena.ranges[i]).cast::<u64>();
        for i in 0..50 {
            // SAFETY: mapped memory that nobody else uses.
            unsafe { word(i).write_volatile(i as u64) };
        }
        linearise(&arena).unwrap();
        bounce(&arena);
        for i in 0..50 {
            // SAFETY: as above; `bounce` wrote the contiguous part.
            let (here, copy) = unsafe { (word(i).read_volatile(), arena.pointer(arena.piece(i)).cast::<u64>().read()) };
            assert_eq!((here, copy), (i as u64, i as u64));
        }
        let (start, end) = (arena.whole.start, arena.ranges[arena.by_address[49]].start);
        let left = mappings().filter(|(from, to)| *from < end && *to > start).count();
        assert!(left <= 2, "{left} mappings are left, so the pages are not where they were");
    }

    #[test]
    fn io_uring_registers_or_says_why_not() {
        let arena = Arena::scattered(50, PAGE, Pages::Small).unwrap();
        match IoUring::new(50) {
            Ok(rings) => match rings.cycle(&arena.ranges) {
                Ok((registered, _)) => assert!(!registered.is_zero()),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "only the limit may refuse it"),
            },
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))),
        }
    }
}
