// SPDX-License-Identifier: GPL-2.0 OR MIT
//! VRAM: one GPU's own memory, a memfd mapped shared.
//!
//! The host maps the same file for CPU access, and queue threads of every GPU in the fabric touch
//! it at the same time. So there are no references into it, only copies and word accesses. Every
//! offset is checked against the size. The memfd is sealed against resizing; memory is allocated as
//! it is touched, and a machine that has none left shows as [`VramError::Unbacked`].

use crate::raw::{self, memory_file, Faulted};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Smallest unit in which VRAM is sized, in bytes.
pub const VRAM_GRANULE: u64 = 1 << 21;

/// From so many bytes on, asking where memory is costs less than writing to it.
const LARGE: u64 = 64 << 10;

/// Why VRAM could not be made or accessed.
#[derive(Debug, thiserror::Error)]
pub enum VramError {
    /// The access leaves the VRAM.
    #[error("VRAM access of {len:#x} bytes at offset {offset:#x} leaves the {size:#x} bytes there are")]
    OutOfRange {
        /// First byte.
        offset: u64,
        len: u64,
        /// The VRAM's size in bytes.
        size: u64,
    },
    /// A word access at an offset that is not a multiple of its size.
    #[error("VRAM offset {0:#x} is not aligned")]
    Unaligned(u64),
    /// The host has no memory behind this part of the VRAM.
    #[error("host memory behind the VRAM cannot be touched: {0}")]
    Unbacked(#[from] Faulted),
    /// The size is zero, not a multiple of [`VRAM_GRANULE`], or more than this host can address.
    #[error("VRAM size {0:#x} is not a positive multiple of 2 MiB")]
    Size(u64),
    /// A system call failed.
    #[error("cannot set up VRAM: {0}")]
    Os(#[from] io::Error),
}

/// One GPU's memory. All offsets and sizes are bytes from its start.
#[derive(Debug)]
pub struct Vram {
    fd: OwnedFd,
    /// Where in the file it begins.
    start: libc::off_t,
    base: NonNull<u8>,
    len: usize,
    size: u64,
}

// SAFETY: the mapping lives as long as the value and is only accessed by raw copies and atomic
// words.
unsafe impl Send for Vram {}
// SAFETY: as above.
unsafe impl Sync for Vram {}

impl Vram {
    /// New, zeroed VRAM. Costs address space only; memory follows on first touch.
    ///
    /// # Errors
    /// [`VramError::Size`] or [`VramError::Os`].
    pub fn create(size: u64) -> Result<Vram, VramError> {
        Vram::from_fd(memory_file::sealed(c"vkfd-vram", size)?.into(), size)
    }

    /// VRAM in the first `size` bytes of a shared memory file that exists already.
    ///
    /// # Errors
    /// [`VramError::Size`] or [`VramError::Os`].
    pub fn from_fd(fd: OwnedFd, size: u64) -> Result<Vram, VramError> {
        Vram::from_fd_at(fd, 0, size)
    }

    /// VRAM in `size` bytes of a shared memory file, from byte `start` on (a multiple of the page
    /// size).
    ///
    /// # Errors
    /// [`VramError::Size`] or [`VramError::Os`].
    pub fn from_fd_at(fd: OwnedFd, start: u64, size: u64) -> Result<Vram, VramError> {
        let len = usize::try_from(size).ok().filter(|_| size != 0 && size % VRAM_GRANULE == 0);
        let len = len.ok_or(VramError::Size(size))?;
        let file_offset = libc::off_t::try_from(start).map_err(|_| VramError::Size(start))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let base = vkfd_rt::reserve::map(0, len, protection, flags, fd.as_raw_fd(), file_offset)?;
        let base = NonNull::new(base).ok_or(VramError::Size(size))?;
        Ok(Vram { fd, start: file_offset, base, len, size })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where in its file it begins, in bytes.
    pub fn start(&self) -> u64 {
        // It was made from one.
        u64::try_from(self.start).unwrap_or(0)
    }

    /// Start of the mapping; valid for [`Vram::size`] bytes as long as the value lives. Accesses
    /// must be raw: other threads and processes write here.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Host pointer to `offset` and the number of bytes from there, at most `max`.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`] if `offset` is not in the VRAM.
    pub fn span(&self, offset: u64, max: usize) -> Result<(*mut u8, usize), VramError> {
        match usize::try_from(offset) {
            Ok(start) if start < self.len => Ok((self.base().wrapping_add(start), max.min(self.len - start))),
            _ => Err(VramError::OutOfRange { offset, len: max as u64, size: self.size }),
        }
    }

    fn range(&self, offset: u64, len: usize) -> Result<*mut u8, VramError> {
        let start = usize::try_from(offset).ok();
        match start.and_then(|start| Some((start, start.checked_add(len)?))) {
            Some((start, end)) if end <= self.len => Ok(self.base().wrapping_add(start)),
            _ => Err(VramError::OutOfRange { offset, len: len as u64, size: self.size }),
        }
    }

    fn word(&self, offset: u64, len: usize) -> Result<*mut u64, VramError> {
        if offset % 8 != 0 {
            return Err(VramError::Unaligned(offset));
        }
        Ok(self.range(offset, len)?.cast())
    }

    /// Reads the 8-byte word at `offset` atomically.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unaligned`], [`VramError::Unbacked`].
    pub fn read_u64(&self, offset: u64) -> Result<u64, VramError> {
        let ptr = self.word(offset, 8)?;
        // SAFETY: checked to lie in the mapping and aligned.
        Ok(unsafe { raw::load_u64(ptr) }?)
    }

    /// Writes the 8-byte word at `offset` atomically.
    ///
    /// # Errors
    /// As [`Vram::read_u64`].
    pub fn write_u64(&self, offset: u64, value: u64) -> Result<(), VramError> {
        let ptr = self.word(offset, 8)?;
        // SAFETY: checked to lie in the mapping and aligned.
        Ok(unsafe { raw::store_u64(ptr, value) }?)
    }

    /// Writes `count` page-table entries from `offset` on: `first`, `first + step`, and so on, each
    /// as one word.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unaligned`], [`VramError::Unbacked`].
    pub fn write_entries(&self, offset: u64, first: u64, step: u64, count: u64) -> Result<(), VramError> {
        let outside = VramError::OutOfRange { offset, len: count.saturating_mul(8), size: self.size };
        let Ok(bytes) = usize::try_from(count.saturating_mul(8)) else { return Err(outside) };
        let ptr = self.word(offset, bytes)?;
        // SAFETY: the whole range was checked to lie in the mapping and is aligned.
        Ok(unsafe { raw::store_run(ptr, first, step, bytes / 8) }?)
    }

    /// Sets `len` bytes from `offset` on to `value`.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unbacked`].
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<(), VramError> {
        let bytes = usize::try_from(len).map_err(|_| VramError::OutOfRange { offset, len, size: self.size })?;
        let ptr = self.range(offset, bytes)?;
        // SAFETY: checked to lie in the mapping.
        Ok(unsafe { raw::fill(ptr, value, bytes) }?)
    }

    /// Zeroes `len` bytes from `offset` on. What nobody has touched stays without memory, so this
    /// costs what was used, whatever the length.
    ///
    /// # Errors
    /// As [`Vram::fill`].
    pub fn clear(&self, offset: u64, len: u64) -> Result<(), VramError> {
        if len < LARGE {
            return self.fill(offset, len, 0);
        }
        let end = offset.checked_add(len).filter(|end| *end <= self.size);
        let end = end.ok_or(VramError::OutOfRange { offset, len, size: self.size })?;
        let (start, mut at) = (self.start(), offset);
        loop {
            match memory_file::next_memory(&self.fd, start + at, start + end) {
                Ok(Some((first, last))) => {
                    self.fill(first - start, last - first, 0)?;
                    at = last - start;
                }
                Ok(None) => return Ok(()),
                // The file does not know where it has memory.
                Err(_) => return self.fill(at, end - at, 0),
            }
        }
    }

    /// Zeroes `len` bytes from `offset` on by giving their memory back, which costs little whatever
    /// the size. Both must be multiples of the page size.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unaligned`], [`VramError::Os`] if the file cannot
    /// have holes.
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), VramError> {
        let out_of_range = VramError::OutOfRange { offset, len, size: self.size };
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(out_of_range);
        }
        if (offset | len) % 4096 != 0 {
            return Err(VramError::Unaligned(offset | len));
        }
        let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else {
            return Err(out_of_range);
        };
        if len == 0 {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an owned descriptor; the mapping stays, its pages are zero when they
        // are touched again.
        if unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, self.start + offset, len) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// Copies `src` into the VRAM at `offset`.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unbacked`].
    pub fn copy_in(&self, offset: u64, src: &[u8]) -> Result<(), VramError> {
        let ptr = self.range(offset, src.len())?;
        // SAFETY: the destination was checked to lie in the mapping, to which no reference exists.
        Ok(unsafe { raw::copy(ptr, src.as_ptr(), src.len()) }?)
    }

    /// Copies the VRAM at `offset` into `dst`.
    ///
    /// # Errors
    /// [`VramError::OutOfRange`], [`VramError::Unbacked`].
    pub fn copy_out(&self, offset: u64, dst: &mut [u8]) -> Result<(), VramError> {
        let ptr = self.range(offset, dst.len())?;
        // SAFETY: the source was checked to lie in the mapping, to which no reference exists.
        Ok(unsafe { raw::copy(dst.as_mut_ptr(), ptr, dst.len()) }?)
    }
}

impl AsFd for Vram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Vram {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `from_fd` mapped; the last user is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        vkfd_rt::reserve::forget(self.base.as_ptr().expose_provenance() as u64);
    }
}
