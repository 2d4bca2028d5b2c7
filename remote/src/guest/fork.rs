// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registered memory in forked children. It is a shared mapping where the program had private
//! memory, so a child would write its parent's memory, malloc's own words included. Therefore a
//! child makes private copies before it goes on, and its parent's thread waits for that.
//!
//! By fork handlers. What another thread of the parent writes meanwhile may be in the child's copy
//! or not, word by word. Children of vfork and of raw `clone` calls are not seen: the former have
//! their parent's memory anyway.
//!
//! No locks: another thread may have had them when the child was made.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Once;
use vkfd_rt::message;

use super::forward::maps::{self, Mapping};
use super::{size, FileId};

/// Connections of a process that are known here; those before are forgotten.
const FILES: usize = 16;

/// The files of the process's memory: device and inode. Inodes are written last.
static FILE_IDS: [[AtomicU64; 2]; FILES] = [const { [const { AtomicU64::new(0) }; 2] }; FILES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A file has memory of this process from now on.
pub(super) fn add(file: FileId) {
    let place = &FILE_IDS[NEXT.fetch_add(1, Ordering::Relaxed) % FILES];
    place[1].store(0, Ordering::Release);
    place[0].store(file.0, Ordering::Release);
    place[1].store(file.1, Ordering::Release);
}

/// Whether a file has, or had.
pub(super) fn is_known(file: FileId) -> bool {
    FILE_IDS.iter().any(|known| {
        known[1].load(Ordering::Acquire) == file.1 && known[0].load(Ordering::Acquire) == file.0 && file.1 != 0
    })
}

thread_local! {
    /// The pipe that the child closes when it has its copies.
    static PIPE: Cell<Option<[i32; 2]>> = const { Cell::new(None) };
}

extern "C" fn prepare() {
    let mut pipe = [-1; 2];
    // SAFETY: an array of two; a fork without a pipe goes on without waiting.
    let made = unsafe { libc::syscall(libc::SYS_pipe2, pipe.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    PIPE.set(made.then_some(pipe));
}

fn close(fd: i32) {
    // SAFETY: a descriptor that this module made.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

extern "C" fn parent() {
    let Some([from, to]) = PIPE.take() else { return };
    close(to);
    let mut byte = 0_u8;
    // SAFETY: one byte of room. It ends when the child has closed its end, or is gone.
    while unsafe { libc::syscall(libc::SYS_read, from, &raw mut byte, 1) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
    close(from);
}

extern "C" fn child() {
    for mapping in maps::all().unwrap_or_default() {
        if mapping.shared && is_known(mapping.file) {
            // SAFETY: no other thread is there, and the contents stay.
            if unsafe { own(&mapping) }.is_none() {
                message::write(format_args!(
                    "vkfd: a forked child shares {:#x} to {:#x} with its parent",
                    mapping.start, mapping.end
                ));
            }
        }
    }
    if let Some([from, to]) = PIPE.take() {
        close(from);
        close(to);
    }
}

/// Replaces a mapping by a private copy.
///
/// # Safety
/// Nobody uses it meanwhile.
unsafe fn own(mapping: &Mapping) -> Option<()> {
    let bytes = size(mapping.end - mapping.start);
    let at: *mut c_void = std::ptr::with_exposed_provenance_mut(size(mapping.start));
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping; what is replaced is the caller's and has the same contents afterwards.
    // By system calls, which are no hooks'.
    unsafe {
        let copy = libc::syscall(libc::SYS_mmap, 0_usize, bytes, both, private, -1, 0_usize);
        let copy: *mut c_void = std::ptr::with_exposed_provenance_mut(usize::try_from(copy).ok()?);
        if mapping.protection & libc::PROT_READ == 0 {
            libc::syscall(libc::SYS_mprotect, at, bytes, libc::PROT_READ);
        }
        vkfd_raw::copy(copy.cast(), at.cast::<u8>(), bytes).ok()?;
        if mapping.protection != both {
            libc::syscall(libc::SYS_mprotect, copy, bytes, mapping.protection);
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        (libc::syscall(libc::SYS_mremap, copy, bytes, bytes, flags, at) >= 0).then_some(())
    }
}

/// Installs the handlers, once.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions for the life of the process.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if refused != 0 {
            message::write(format_args!(
                "vkfd: forked children will share registered memory with their parents (errno {refused})"
            ));
        }
    });
}
