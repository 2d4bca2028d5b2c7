// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest's memory: ranges of bus addresses, each in a file that the VMM has sent.
//!
//! A lock for readers and a writer guards the ranges. The GPU resolves addresses with it held for
//! the moment. Memory that it found stays mapped until [`Dma::unmap`]'s caller drops the mapping,
//! after its last use.
//!
//! Files may be shorter than they were said to be, or be cut short later. Accesses go through
//! `vkfd-raw`, which returns an error then.

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vkfd_gpu::{raw, Bus, BusError, HostSpan, PhysAddr};

/// Ranges at a time.
const MAX_RANGES: usize = 4096;

/// Why a range is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum DmaError {
    /// It is empty, or ends beyond all addresses, or lies over another.
    #[error("a range of {bytes:#x} bytes at {start:#x} is none")]
    Range { start: u64, bytes: u64 },
    /// There are as many as there may be.
    #[error("more than {MAX_RANGES} ranges")]
    TooMany,
    /// The kernel does not map the file.
    #[error("cannot map guest memory: {0}")]
    Os(#[from] io::Error),
}

/// Memory of the guest, mapped.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping lives as long as the value and is only accessed by raw copies and word
// accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, offset: u64, bytes: u64) -> Result<Self, DmaError> {
        let wrong = |_| DmaError::Range { start: offset, bytes };
        let length = usize::try_from(bytes).map_err(wrong)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), length, access, flags, fd, offset) };
        let base = NonNull::new(base.map_err(io::Error::from)?.cast());
        Ok(Self { base: base.ok_or(io::ErrorKind::OutOfMemory).map_err(io::Error::from)?, bytes: length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; the caller of `Dma::unmap` has waited for its users.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The guest's memory.
#[derive(Default)]
pub struct Dma(RwLock<BTreeMap<u64, Mapping>>);

impl Dma {
    fn ranges(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Mapping>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ranges_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Mapping>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `bytes` of a file, from `offset` on, at bus address `start`.
    ///
    /// # Errors
    /// [`DmaError`]; nothing is mapped then.
    pub fn map(&self, start: u64, bytes: u64, fd: &OwnedFd, offset: u64) -> Result<(), DmaError> {
        let wrong = DmaError::Range { start, bytes };
        let Some(end) = start.checked_add(bytes).filter(|end| *end != start) else { return Err(wrong) };
        let mut ranges = self.ranges_mut();
        if ranges.len() >= MAX_RANGES {
            return Err(DmaError::TooMany);
        }
        // The nearest one that begins before this one's end.
        let before = ranges.range(..end).next_back();
        if before.is_some_and(|(other, mapping)| other.saturating_add(mapping.bytes as u64) > start) {
            return Err(wrong);
        }
        ranges.insert(start, Mapping::new(fd, offset, bytes)?);
        Ok(())
    }

    /// Takes away all ranges within `bytes` from `start` on. The caller drops them when nobody uses
    /// them any more.
    #[must_use]
    pub fn unmap(&self, start: u64, bytes: u64) -> Vec<Mapping> {
        let mut ranges = self.ranges_mut();
        let end = start.saturating_add(bytes);
        let inside = ranges.range(start..end).filter(|(at, mapping)| at.saturating_add(mapping.bytes as u64) <= end);
        let inside: Vec<u64> = inside.map(|(at, _)| *at).collect();
        inside.iter().filter_map(|at| ranges.remove(at)).collect()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges().len()
    }

    /// Whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.ranges().is_empty()
    }

    /// Writes `bytes` at a bus address. Whether all of them are memory.
    pub fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool {
        let ranges = self.ranges();
        let Some(span) = span(&ranges, pa, bytes.len()).filter(|span| span.len == bytes.len()) else { return false };
        // A driver polls a word: it changes as a whole.
        match <[u8; 4]>::try_from(bytes) {
            Ok(word) if pa.0 % 4 == 0 => {
                // SAFETY: aligned, in a mapping that the lock keeps.
                unsafe { raw::store_u32(span.ptr.cast(), u32::from_le_bytes(word)) }.is_ok()
            }
            // SAFETY: in a mapping that the lock keeps; no reference to it exists.
            _ => unsafe { raw::copy(span.ptr, bytes.as_ptr(), bytes.len()) }.is_ok(),
        }
    }
}

/// Host memory behind a bus address, at most `max` bytes.
fn span(ranges: &BTreeMap<u64, Mapping>, pa: PhysAddr, max: usize) -> Option<HostSpan> {
    let (start, mapping) = ranges.range(..=pa.0).next_back()?;
    let offset = usize::try_from(pa.0 - start).ok().filter(|offset| *offset < mapping.bytes)?;
    Some(HostSpan { ptr: mapping.base.as_ptr().wrapping_add(offset), len: max.min(mapping.bytes - offset) })
}

impl Bus for Dma {
    fn resolve(&self, pa: PhysAddr, max: usize, _write: bool) -> Result<HostSpan, BusError> {
        span(&self.ranges(), pa, max).ok_or(BusError::NoMemory)
    }

    fn lost(&self, pa: PhysAddr, _write: bool) {
        // The file was cut short, or the host has no memory: waiting would not help.
        tracing::warn!(%pa, "guest memory cannot be touched");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> OwnedFd {
        raw::memory_file::sealed(c"vkfd-test", bytes).unwrap().into()
    }

    #[test]
    fn addresses_resolve_in_their_range_alone() {
        let (dma, low, high) = (Dma::default(), file(0x4000), file(0x2000));
        dma.map(0x1000, 0x2000, &low, 0x1000).unwrap();
        dma.map(1 << 32, 0x2000, &high, 0).unwrap();
        let span = |pa| dma.resolve(PhysAddr(pa), 0x10_0000, true).map(|span| span.len).ok();
        assert_eq!((span(0x1000), span(0x2fff), span(1 << 32)), (Some(0x2000), Some(1), Some(0x2000)));
        for nowhere in [0, 0xfff, 0x3000, (1 << 32) - 1, (1 << 32) + 0x2000, u64::MAX] {
            assert_eq!(span(nowhere), None, "{nowhere:#x}");
        }
        assert!(dma.write(PhysAddr(0x1004), &[1, 2, 3, 4]) && !dma.write(PhysAddr(0x2ffe), &[1, 2, 3, 4]));
        drop(dma.unmap(0, 0x10_0000));
        assert_eq!((dma.len(), span(0x1000)), (1, None));
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        let (dma, memory) = (Dma::default(), file(0x4000));
        dma.map(0x1000, 0x2000, &memory, 0).unwrap();
        for (start, bytes) in [(0x1000, 0), (u64::MAX, 2), (0x2000, 0x1000), (0, 0x1001), (0, 0x10_0000)] {
            assert!(matches!(dma.map(start, bytes, &memory, 0), Err(DmaError::Range { .. })), "{start:#x} {bytes:#x}");
        }
        // An offset that no mapping can have; a range beyond the file's end, which faults later.
        assert!(matches!(dma.map(0x8000, 0x1000, &memory, 1), Err(DmaError::Os(_))));
        dma.map(0x1_0000, 0x10_0000, &memory, 0).unwrap();
        assert!(!dma.write(PhysAddr(0x1_8000), &[1, 2, 3, 4]));
    }
}
