// SPDX-License-Identifier: GPL-2.0 OR MIT
//! CPU memory that is registered: mappings that are changed while the GPU uses them.
//!
//! The GPU may read and write it at any time, so it is only ever copied, never referred to. All
//! calls that change mappings go through libc's functions (one, on purpose, past them), because a
//! driver in the same process may learn of them there.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use vkfd_client::CpuVa;

/// Where the next mapping goes: well below the kernel's own choices, each at an address of its own.
/// So no other mapping fills a hole there before this program maps it again. A hint only: where
/// such an address does not exist, the kernel chooses.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);

/// Kept free behind each mapping, and what mappings are aligned to.
const APART: usize = 2 << 20;

/// A mapping; dropping it unmaps it.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: u64,
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn mapped(at: *mut c_void) -> io::Result<NonNull<u8>> {
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Refuses to begin what would be killed for want of memory, by the system or by a control group.
///
/// # Errors
///
/// How much there is.
pub fn require(bytes: u64) -> anyhow::Result<()> {
    if let Some(left) = vkfd_host::memory_left().filter(|left| *left < bytes) {
        let (needed, left) = (crate::format::bytes(bytes), crate::format::bytes(left));
        anyhow::bail!("this takes about {needed} of memory, and {left} is left to this process (by the system, or by a control group's limit)");
    }
    Ok(())
}

impl Mapping {
    /// Private memory. It costs only touched pages, of 4 KiB under any policy for huge pages. So
    /// the untouched gaps of a scattered buffer stay free, and results are comparable.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn anonymous(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let length = size(bytes)?;
        let step = length.checked_next_multiple_of(APART).and_then(|l| l.checked_add(APART));
        let step = step.ok_or(io::ErrorKind::OutOfMemory)?;
        let hint = std::ptr::without_provenance_mut(NEXT.fetch_add(step, Ordering::Relaxed));
        // SAFETY: without MAP_FIXED nothing that exists is touched.
        let base = mapped(unsafe { libc::mmap(hint, length, prot, flags, -1, 0) })?;
        let mapping = Self { base, bytes };
        // SAFETY: advice about a mapping of this object's own; that it fails where the kernel has
        // no huge pages is as well.
        unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        Ok(mapping)
    }

    /// A file's first `bytes`, read-only.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn file(file: &File, bytes: u64) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: without MAP_FIXED nothing that exists is touched.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size(bytes)?, prot, flags, file.as_raw_fd(), 0) };
        Ok(Self { base: mapped(at)?, bytes })
    }

    /// The first address.
    pub fn start(&self) -> CpuVa {
        CpuVa::of(self.base.as_ptr())
    }

    /// The address at `offset`.
    ///
    /// # Panics
    ///
    /// When `bytes` bytes from there on are not inside of the mapping: an error of this program.
    fn at(&self, offset: u64, bytes: u64) -> NonNull<u8> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "{offset:#x}+{bytes:#x} is outside");
        let offset = usize::try_from(offset).expect("addresses have 64 bits");
        // SAFETY: the offset is inside of the mapping (above), which is one allocation.
        unsafe { self.base.add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len() as u64);
        // SAFETY: the span is inside of the mapping; nobody refers to it; holes are not read (see
        // `unmap`).
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// As [`read`](Self::read), of memory that may not be there: a file's whose end has come
    /// nearer. Whether it was.
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> bool {
        let from = self.at(offset, into.len() as u64);
        // SAFETY: the span is inside of the mapping, and nobody refers to it.
        unsafe { vkfd_raw::copy(into.as_mut_ptr(), from.as_ptr(), into.len()) }.is_ok()
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Makes a hole, which must not be read or written until it is filled again.
    ///
    /// # Errors
    ///
    /// What munmap failed with.
    pub fn unmap(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let at = self.at(offset, bytes).as_ptr().cast();
        // SAFETY: the pages are this object's own, and nothing refers to them.
        check(unsafe { libc::munmap(at, size(bytes)?) })
    }

    /// Maps new memory at a hole, or with `over` over the mappings there. Without `over` it fails
    /// if somebody else has mapped something there.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn map_anew(&self, offset: u64, bytes: u64, over: bool) -> io::Result<()> {
        let at = self.at(offset, bytes).as_ptr();
        let fixed = if over { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are this object's own, and nothing refers to them; a hole is not
        // overwritten if it is not one any more.
        let got = mapped(unsafe { libc::mmap(at.cast(), size(bytes)?, prot, flags, -1, 0) })?;
        if got.as_ptr() != at {
            // SAFETY: a kernel older than MAP_FIXED_NOREPLACE has put the mapping elsewhere; nobody
            // knows of it.
            unsafe { libc::munmap(got.as_ptr().cast(), size(bytes)?) };
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // SAFETY: as in `anonymous`.
        unsafe { libc::madvise(at.cast(), size(bytes)?, libc::MADV_NOHUGEPAGE) };
        Ok(())
    }

    /// Moves the whole of another mapping over this one's pages at `offset`.
    ///
    /// # Errors
    ///
    /// What mremap failed with.
    pub fn move_in(&self, offset: u64, other: Mapping) -> io::Result<()> {
        let at = self.at(offset, other.bytes).as_ptr();
        let bytes = size(other.bytes)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both mappings are this program's own, and nothing refers to their pages.
        mapped(unsafe { libc::mremap(other.base.as_ptr().cast(), bytes, bytes, flags, at.cast::<c_void>()) })?;
        // Its pages are here now.
        std::mem::forget(other);
        Ok(())
    }

    /// Gives advice about pages.
    ///
    /// # Errors
    ///
    /// What madvise failed with.
    pub fn advise(&self, offset: u64, bytes: u64, advice: i32) -> io::Result<()> {
        let at = self.at(offset, bytes).as_ptr().cast();
        // SAFETY: the pages are this object's own; what is discarded is not referred to.
        check(unsafe { libc::madvise(at, size(bytes)?, advice) })
    }

    /// Changes what the CPU may do with pages; pages that cannot be read or written must not be.
    ///
    /// # Errors
    ///
    /// What mprotect failed with.
    pub fn protect(&self, offset: u64, bytes: u64, prot: i32) -> io::Result<()> {
        let at = self.at(offset, bytes).as_ptr().cast();
        // SAFETY: the pages are this object's own, and nothing refers to them.
        check(unsafe { libc::mprotect(at, size(bytes)?, prot) })
    }

    /// Discards pages by the bare system call, which code that replaces libc's functions does not
    /// see.
    ///
    /// # Errors
    ///
    /// What the call failed with.
    pub fn discard_past_libc(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let at = self.at(offset, bytes).as_ptr();
        // SAFETY: as in `advise`.
        let result = unsafe { libc::syscall(libc::SYS_madvise, at, size(bytes)?, libc::MADV_DONTNEED) };
        check(i32::try_from(result).unwrap_or(-1))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(bytes) = size(self.bytes) {
            // SAFETY: the mapping is this object's own, and nothing refers to it.
            unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_client::PAGE;

    #[test]
    fn pages_are_read_written_replaced_and_discarded() {
        let memory = Mapping::anonymous(8 * PAGE).unwrap();
        let read = |offset| {
            let mut bytes = [0; 4];
            memory.read(offset, &mut bytes);
            bytes
        };
        memory.write(PAGE, b"here");
        memory.write(2 * PAGE, b"next");
        assert_eq!(read(PAGE), *b"here");
        memory.advise(PAGE, PAGE, libc::MADV_DONTNEED).unwrap();
        assert_eq!((read(PAGE), read(2 * PAGE)), ([0; 4], *b"next"));
        memory.discard_past_libc(2 * PAGE, PAGE).unwrap();
        assert_eq!(read(2 * PAGE), [0; 4]);
        memory.write(PAGE, b"here");
        assert_eq!(memory.map_anew(PAGE, PAGE, false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        memory.map_anew(PAGE, PAGE, true).unwrap();
        assert_eq!(read(PAGE), [0; 4]);
        memory.unmap(PAGE, PAGE).unwrap();
        memory.map_anew(PAGE, PAGE, false).unwrap();
        let other = Mapping::anonymous(PAGE).unwrap();
        other.write(0, b"came");
        memory.move_in(PAGE, other).unwrap();
        assert_eq!(read(PAGE), *b"came");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn nothing_outside_is_touched() {
        Mapping::anonymous(PAGE).unwrap().write(PAGE - 1, b"ab");
    }
}
