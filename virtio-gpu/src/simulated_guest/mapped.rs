// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A file as a guest sees it: its memory, or the window.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vkfd_remote::protocol::PAGE;

/// A mapped file.
pub struct Mapped {
    at: *mut libc::c_void,
    bytes: u64,
}

impl Mapped {
    /// The first `bytes` of a file.
    ///
    /// # Panics
    /// When the system refuses it.
    #[must_use]
    pub fn new(file: &File, bytes: u64) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                usize::try_from(bytes).unwrap(),
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, bytes }
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The 64-bit word at `at`, a multiple of 8.
    #[must_use]
    pub fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= self.bytes);
        // SAFETY: an aligned word of the mapping, accessed atomically.
        unsafe { AtomicU64::from_ptr(self.at.byte_add(usize::try_from(at).unwrap()).cast()) }
    }

    /// madvise of the page at `at`.
    pub fn discard(&self, at: u64, advice: i32) {
        assert!(at % PAGE == 0 && at + PAGE <= self.bytes);
        // SAFETY: a page of the mapping, of which no reference is kept.
        let done = unsafe {
            let at = self.at.byte_add(usize::try_from(at).unwrap());
            libc::madvise(at, usize::try_from(PAGE).unwrap(), advice)
        };
        assert_eq!(done, 0);
    }

    /// The 32-bit word at `at`, a multiple of 4.
    #[must_use]
    pub fn half(&self, at: u64) -> &AtomicU32 {
        assert!(at % 4 == 0 && at + 4 <= self.bytes);
        // SAFETY: an aligned word of the mapping, accessed atomically.
        unsafe { AtomicU32::from_ptr(self.at.byte_add(usize::try_from(at).unwrap()).cast()) }
    }

    /// Puts bytes at `at`, a multiple of 8; the last word is filled up with zeros.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        for (place, part) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(place).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.at, usize::try_from(self.bytes).unwrap()) };
    }
}
