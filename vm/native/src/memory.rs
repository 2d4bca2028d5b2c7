// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of this program, with contents that show what is wrong with them.

use std::ffi::c_void;
use std::ptr::NonNull;

use anyhow::{ensure, Result};

/// Anonymous memory; unmapped when dropped.
pub struct Buffer {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the memory is accessed by raw copies only.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Of whole pages, not touched.
    pub fn new(bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        ensure!(at != libc::MAP_FAILED, "{bytes} bytes: {}", std::io::Error::last_os_error());
        NonNull::new(at).map(|at| Self { at, bytes }).ok_or_else(|| anyhow::anyhow!("mmap gave the null page"))
    }

    /// The same, of large pages as far as the kernel has some: neighbours where they are used as
    /// they are (userptr).
    pub fn of_large_pages(bytes: u64) -> Result<Self> {
        let buffer = Self::new(bytes)?;
        // A kernel without large pages refuses; then they are as they come.
        // SAFETY: the whole of a mapping that nobody has touched.
        unsafe { libc::madvise(buffer.at.as_ptr(), buffer.bytes, libc::MADV_HUGEPAGE) };
        Ok(buffer)
    }

    /// Its first address.
    pub fn at(&self) -> NonNull<c_void> {
        self.at
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Fills it with words that depend on their place and on `seed`.
    pub fn fill(&self, seed: u64) {
        for place in 0..self.bytes / 8 {
            // SAFETY: inside of the mapping, aligned; the GPU does not work on it now.
            unsafe { self.at.cast::<u64>().add(place).write_volatile(word(seed, place)) };
        }
    }

    /// The first word that is not what [`Buffer::fill`] has put, and how many are not.
    pub fn wrong(&self, seed: u64) -> Option<(usize, usize)> {
        let mut wrong = None;
        for place in 0..self.bytes / 8 {
            // SAFETY: as in `fill`.
            if unsafe { self.at.cast::<u64>().add(place).read_volatile() } != word(seed, place) {
                let (_, count) = wrong.get_or_insert((place, 0));
                *count += 1;
            }
        }
        wrong
    }

    /// CRC-32 of all of it.
    pub fn crc(&self) -> u32 {
        crc(self.at.cast(), self.bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping, and what was mapped over it, belong to this object.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}

/// CRC-32 of mapped memory that nobody writes now.
pub fn crc(at: NonNull<u8>, bytes: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut part = vec![0; 1 << 16];
    for start in (0..bytes).step_by(part.len()) {
        let length = part.len().min(bytes - start);
        // SAFETY: inside the caller's mapping.
        unsafe { std::ptr::copy_nonoverlapping(at.add(start).as_ptr(), part.as_mut_ptr(), length) };
        hasher.update(&part[..length]);
    }
    hasher.finalize()
}

fn word(seed: u64, place: usize) -> u64 {
    let mut x = seed ^ (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}
