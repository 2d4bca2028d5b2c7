// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's RAM, and the GPU's bus on it.
//!
//! QEMU keeps the RAM in a file that it shares (`memory-backend-file` or `-memfd` with `share=on`).
//! Guest-physical addresses begin at the start of the file. Below 4 GiB a PC leaves room for its
//! devices, so RAM that does not fit under that hole goes on at 4 GiB.
//!
//! Every address in RAM resolves: there is no such thing as a stale frame here. A stale page-table
//! entry touches whatever the guest uses the page for by now, as with hardware.

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};
use vkfd_gpu::{raw, Bus, BusError, HostSpan, PhysAddr};

const GIB4: u64 = 4 << 30;

/// Why the guest's RAM cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// The file cannot be opened or mapped.
    #[error("{path}: {error}; give QEMU memory-backend-file,mem-path={path},share=on for its RAM")]
    File { path: String, error: io::Error },
    /// There is nothing in the file.
    #[error("{0} is empty: QEMU has not sized its RAM yet")]
    Empty(String),
}

/// How much RAM a QEMU machine puts below 4 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BelowFourGib {
    /// `-machine pc`: all of it up to 3.5 GiB, otherwise 3 GiB.
    Pc,
    /// `-machine q35`: all of it up to 2.75 GiB, otherwise 2 GiB.
    Q35,
    /// This many bytes at most.
    Bytes(u64),
}

impl BelowFourGib {
    /// Bytes of `ram` below the hole.
    pub fn of(self, ram: u64) -> u64 {
        match self {
            Self::Pc if ram < 0xe000_0000 => ram,
            Self::Pc => 0xc000_0000,
            Self::Q35 if ram < 0xb000_0000 => ram,
            Self::Q35 => 0x8000_0000,
            Self::Bytes(most) => ram.min(most).min(GIB4),
        }
    }
}

struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    below: u64,
}

// SAFETY: the mapping lives as long as the value and is only accessed by raw copies and word
// accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `GuestRam::open` mapped; doorbells and queues keep the owner alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The guest's RAM. It is opened when a driver attaches: QEMU makes the file after it has connected
/// to the server.
pub struct GuestRam {
    path: PathBuf,
    below: BelowFourGib,
    mapping: OnceLock<Mapping>,
    opening: Mutex<()>,
}

impl GuestRam {
    /// RAM in the file at `path`, which is not touched yet.
    pub fn new(path: PathBuf, below: BelowFourGib) -> Self {
        Self { path, below, mapping: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// Opens and maps the file, unless that has been done.
    ///
    /// # Errors
    /// [`RamError`].
    pub fn open(&self) -> Result<(), RamError> {
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.mapping.get().is_some() {
            return Ok(());
        }
        let failed = |error| RamError::File { path: self.path.display().to_string(), error };
        let file = File::options().read(true).write(true).open(&self.path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        if size == 0 {
            return Err(RamError::Empty(self.path.display().to_string()));
        }
        let bytes = usize::try_from(size).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0) };
        let base = NonNull::new(base.map_err(|e| failed(e.into()))?.cast());
        let base = base.ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        let below = self.below.of(size);
        tracing::info!(file = %self.path.display(), bytes = size, below_4g = below, "guest RAM");
        // Only set here, under the lock.
        let _ = self.mapping.set(Mapping { base, bytes, below });
        Ok(())
    }

    /// The file, and where in it `bytes` of RAM at guest-physical `pa` are. `None` if not all of
    /// them are in RAM, or before [`GuestRam::open`].
    ///
    /// # Errors
    /// [`RamError::File`] if it cannot be opened once more.
    pub fn part(&self, pa: PhysAddr, bytes: u64) -> Result<Option<(OwnedFd, u64)>, RamError> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let span = self.span(pa, wanted).filter(|span| span.len == wanted);
        let Some((span, mapping)) = span.zip(self.mapping.get()) else { return Ok(None) };
        let failed = |error| RamError::File { path: self.path.display().to_string(), error };
        let file = File::options().read(true).write(true).open(&self.path).map_err(failed)?;
        let offset = span.ptr.addr() - mapping.base.as_ptr().addr();
        Ok(Some((file.into(), offset as u64)))
    }

    /// Host pointer to guest-physical `pa`, and how many bytes follow there, at most `max`. `None`
    /// outside RAM, or before [`GuestRam::open`].
    pub fn span(&self, pa: PhysAddr, max: usize) -> Option<HostSpan> {
        let mapping = self.mapping.get()?;
        let size = mapping.bytes as u64;
        let (offset, end) = if pa.0 < GIB4 { (pa.0, mapping.below) } else { (pa.0 - GIB4 + mapping.below, size) };
        let left = end.checked_sub(offset).filter(|left| *left != 0)?;
        let len = usize::try_from(left).map_or(max, |left| left.min(max));
        // Below `size`, which is a usize.
        let offset = usize::try_from(offset).ok()?;
        Some(HostSpan { ptr: mapping.base.as_ptr().wrapping_add(offset), len })
    }

    /// Reads the word at `pa`; `None` if it is not in RAM, or not aligned to 8.
    pub fn read(&self, pa: PhysAddr) -> Option<u64> {
        let word = self.word(pa)?;
        // SAFETY: an aligned word inside the mapping, which lives as long as `self`; no references
        // to it exist.
        unsafe { raw::load_u64(word.as_ptr()) }.ok()
    }

    /// The aligned word at `pa`. Mapped as long as `self`.
    pub fn word(&self, pa: PhysAddr) -> Option<NonNull<u64>> {
        let span = self.span(pa, 8).filter(|span| span.len == 8 && pa.0 % 8 == 0)?;
        NonNull::new(span.ptr.cast())
    }
}

impl Bus for GuestRam {
    fn resolve(&self, pa: PhysAddr, max: usize, _write: bool) -> Result<HostSpan, BusError> {
        self.span(pa, max).ok_or(BusError::NoMemory)
    }

    fn lost(&self, pa: PhysAddr, _write: bool) {
        // The file was truncated, or the host has no memory: waiting would not help.
        tracing::warn!(%pa, "guest RAM cannot be touched");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_leave_their_holes() {
        const GIB: u64 = 1 << 30;
        for (rule, ram, below) in [
            (BelowFourGib::Pc, GIB, GIB),
            (BelowFourGib::Pc, 0xe000_0000 - 1, 0xe000_0000 - 1),
            (BelowFourGib::Pc, 0xe000_0000, 3 * GIB),
            (BelowFourGib::Pc, 64 * GIB, 3 * GIB),
            (BelowFourGib::Q35, 2 * GIB, 2 * GIB),
            (BelowFourGib::Q35, 0xb000_0000, 2 * GIB),
            (BelowFourGib::Bytes(GIB), 3 * GIB, GIB),
            (BelowFourGib::Bytes(9 * GIB), 8 * GIB, 4 * GIB),
        ] {
            assert_eq!(rule.of(ram), below, "{rule:?} with {ram:#x}");
        }
    }

    #[test]
    fn addresses_resolve_on_both_sides_of_the_hole_and_nowhere_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ram = GuestRam::new(file.path().into(), BelowFourGib::Bytes(8192));
        assert!(matches!(ram.open(), Err(RamError::Empty(_))));
        file.as_file().set_len(5 * 4096).unwrap();
        assert!(ram.span(PhysAddr(0), 1).is_none(), "not open yet");
        ram.open().unwrap();
        let start = ram.span(PhysAddr(0), usize::MAX).unwrap();
        assert_eq!(start.len, 8192);
        let above = ram.span(PhysAddr(GIB4 + 16), 64).unwrap();
        assert_eq!((above.ptr.addr() - start.ptr.addr(), above.len), (8192 + 16, 64));
        assert_eq!(ram.span(PhysAddr(GIB4 + 3 * 4096 - 4), 64).unwrap().len, 4);
        for nowhere in [8192, GIB4 - 1, GIB4 + 3 * 4096, 1 << 47, u64::MAX] {
            assert!(ram.span(PhysAddr(nowhere), 1).is_none(), "{nowhere:#x}");
        }
        assert_eq!(ram.part(PhysAddr(4096), 4096).unwrap().unwrap().1, 4096);
        assert_eq!(ram.part(PhysAddr(GIB4), 3 * 4096).unwrap().unwrap().1, 8192);
        for (nowhere, bytes) in [(4096, 8192), (8192, 1), (GIB4, 4 * 4096)] {
            assert!(ram.part(PhysAddr(nowhere), bytes).unwrap().is_none(), "{nowhere:#x}");
        }
        assert!(ram.word(PhysAddr(4)).is_none() && ram.word(PhysAddr(8192 - 8)).is_some());
        assert_eq!(ram.read(PhysAddr(0)), Some(0));
    }
}
