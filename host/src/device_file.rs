// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One file with all memory that clients map: every GPU's VRAM, and all DMA memory (GTT objects,
//! doorbells, events, registers).
//!
//! A program that maps a device file by a raw system call comes past everything that could
//! translate an offset. So the descriptors it has are of this file, and the offsets that the driver
//! gives out are offsets in it: such a mapping shows the right memory.
//!
//! The file is sparse; memory follows where it is touched:
//!
//! | from | what |
//! | --- | --- |
//! | 0 | the driver's own counting offsets, for objects that are not contiguous in the file: mapped by the driver only |
//! | 8 TiB | VRAM, 512 GiB of room a GPU |
//! | 24 TiB | doorbells, each process's on a GPU at a multiple of 4 GiB |
//! | 32 TiB | DMA memory |
//!
//! Older libhsakmt takes the lower 32 bits of a queue's doorbell offset for the doorbell's place,
//! whatever the size of its page. This is the reason for the 4 GiB, which are address space only. A
//! place of doorbells is used again after 2,047 others were. A place of DMA memory is used once.
//! After its release it is a hole, and a mapping that a client still has shows zeroes and never
//! another object. That ends after 32 TiB of allocations, with ENOMEM.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use vkfd_driver::base::addr::PAGE;
use vkfd_gpu::raw::memory_file;

const VRAM_BEGIN: u64 = 8 << 40;
/// Most VRAM of a GPU.
pub const VRAM_ROOM: u64 = 512 << 30;
const DOORBELLS_BEGIN: u64 = 24 << 40;
const DOORBELLS_APART: u64 = 4 << 30;
const DMA_BEGIN: u64 = 32 << 40;
/// KFD's encoded offsets begin here: bits that name a GPU.
const END: u64 = 1 << vkfd_uapi::mmap::MMAP_GPU_ID_SHIFT;

/// What `/proc` shows as the name of such a file, in every process that has it.
pub const SHOWN_NAME: &[u8] = b"/memfd:vkfd (deleted)";

/// The mark of a descriptor that `/proc/PID/fdinfo` shows at this place. None before the end of a
/// file.
pub fn mark_of(place: u64) -> Option<u32> {
    u32::try_from(place.checked_sub(END)?).ok()
}

/// The file.
#[derive(Debug)]
pub struct DeviceFile {
    file: File,
    next: AtomicU64,
    doorbells: AtomicU64,
}

impl DeviceFile {
    /// A new one.
    ///
    /// # Errors
    /// What the system says; [`memory_file::SizeLimit`].
    pub fn new() -> io::Result<Self> {
        let file = memory_file::sealed(c"vkfd", END)?;
        Ok(Self { file, next: AtomicU64::new(DMA_BEGIN), doorbells: AtomicU64::new(0) })
    }

    /// One of a machine in another process, to open and to map; its owner alone gives places out.
    pub fn of_another(file: File) -> Self {
        Self { file, next: AtomicU64::new(END), doorbells: AtomicU64::new(0) }
    }

    /// As a file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Another open file of it, with flags (`O_CLOEXEC`, `O_NONBLOCK`) of its own; a duplicate
    /// where `/proc` is not mounted. `mark` is for other processes, which find it by
    /// [`mark_of`]: its place in the file is so far behind the end.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self, flags: i32, mark: u32) -> io::Result<OwnedFd> {
        let path = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        // Not by the standard library, which closes on exec whatever the caller wants.
        let flags = libc::O_RDWR | flags & (libc::O_CLOEXEC | libc::O_NONBLOCK);
        // SAFETY: a C string.
        let fd = match unsafe { libc::open(path.as_ptr(), flags) } {
            // SAFETY: a call on an owned descriptor.
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::NotFound => unsafe { libc::dup(self.raw()) },
            fd => fd,
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // From the end on there is nothing to read and no room to write: for calls past the hooks
        // that could refuse it. The descriptor is new. SAFETY: a call on a descriptor that is ours.
        unsafe { libc::lseek(fd, i64::try_from(END + u64::from(mark)).unwrap_or(i64::MAX), libc::SEEK_SET) };
        // SAFETY: just made, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The VRAM of GPU number `gpu`, of `bytes`.
    ///
    /// # Errors
    /// [`vkfd_gpu::VramError`]; more than 512 GiB have no room.
    pub fn vram(&self, gpu: u32, bytes: u64) -> Result<vkfd_gpu::Vram, vkfd_gpu::VramError> {
        if bytes > VRAM_ROOM {
            return Err(vkfd_gpu::VramError::Size(bytes));
        }
        let start = VRAM_BEGIN + u64::from(gpu) * VRAM_ROOM;
        vkfd_gpu::Vram::from_fd_at(self.file.try_clone()?.into(), start, bytes)
    }

    /// Room for DMA memory of `bytes` (whole pages), at a multiple of `align`. `None` when all was
    /// used.
    pub(crate) fn take(&self, bytes: u64, align: u64) -> Option<u64> {
        let mut at = self.next.load(Ordering::Relaxed);
        loop {
            let start = at.checked_next_multiple_of(align)?;
            let end = start.checked_add(bytes).filter(|end| *end <= END)?;
            match self.next.compare_exchange_weak(at, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start),
                Err(now) => at = now,
            }
        }
    }

    /// Room for a process's doorbells on a GPU.
    pub(crate) fn take_doorbells(&self) -> u64 {
        let places = (DMA_BEGIN - DOORBELLS_BEGIN) / DOORBELLS_APART;
        DOORBELLS_BEGIN + self.doorbells.fetch_add(1, Ordering::Relaxed) % places * DOORBELLS_APART
    }

    /// Nobody's memory any more.
    pub(crate) fn give(&self, offset: u64, bytes: u64) {
        debug_assert!(offset % PAGE == 0 && bytes % PAGE == 0);
        let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an owned descriptor.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, bytes) } < 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "giving device memory back");
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_aligned_and_never_used_twice() {
        let file = DeviceFile::new().unwrap();
        let first = file.take(PAGE, PAGE).unwrap();
        let second = file.take(2 << 20, 2 << 20).unwrap();
        assert!(second % (2 << 20) == 0 && second >= first + PAGE);
        file.give(second, 2 << 20);
        assert!(file.take(PAGE, PAGE).unwrap() >= second + (2 << 20));
        assert_eq!(file.take(END, PAGE), None);
    }

    #[test]
    fn a_descriptor_is_neither_read_nor_written_by_chance() {
        let file = DeviceFile::new().unwrap();
        let mut other = File::from(file.open(libc::O_CLOEXEC, 7).unwrap());
        let mut bytes = [1; 16];
        assert_eq!(io::Read::read(&mut other, &mut bytes).unwrap(), 0);
        assert_eq!(io::Write::write(&mut other, &bytes).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let place = io::Seek::stream_position(&mut other).unwrap();
        assert_eq!((mark_of(place), mark_of(END - 1)), (Some(7), None));
    }

    #[test]
    fn the_lower_half_of_a_doorbell_offset_is_the_doorbells() {
        let file = DeviceFile::new().unwrap();
        let places: std::collections::BTreeSet<_> = (0..2048).map(|_| file.take_doorbells()).collect();
        assert_eq!(places.len(), 2048);
        assert!(places.iter().all(|at| at % (1 << 32) == 0 && (DOORBELLS_BEGIN..DMA_BEGIN).contains(at)));
    }

    #[test]
    fn a_gpus_vram_has_an_end() {
        let file = DeviceFile::new().unwrap();
        assert!(file.vram(31, 2 << 20).is_ok());
        assert!(file.vram(0, VRAM_ROOM + (2 << 20)).is_err());
    }
}
