// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU address space, reserved in the CPU's.
//!
//! Mechanism: the GPU's aperture covers the CPU's user addresses. So a range that `mmap` reserves
//! here (no access, no memory) is free on the GPU too, and no other allocator of the process hands
//! it out. VRAM or GTT can be CPU-mapped at its GPU address, as libhsakmt does. Reservations merge
//! in the kernel, so they hardly count towards `vm.max_map_count`.
//!
//! Limits: CPU and GPU pages are 4 KiB. A GPU whose aperture does not cover the addresses that
//! `mmap` gives is refused.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use crate::address::{index, CpuVa, GpuVa, PAGE};
use crate::error::{ClientError, Errno, Result};

/// Buffers of at least this size are aligned to it, so that huge page-table entries fit.
pub const HUGE: u64 = 2 << 20;

/// The GPU addresses that all GPUs of a process can use: `base..=limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aperture {
    /// First address.
    pub base: GpuVa,
    /// Last address.
    pub limit: GpuVa,
}

impl Aperture {
    fn contains(&self, start: u64, bytes: u64) -> bool {
        start >= self.base.0 && start.checked_add(bytes - 1).is_some_and(|last| last <= self.limit.0)
    }
}

/// A reserved range; dropping it gives the addresses back, with whatever was mapped over them. Or
/// one that the caller chose and manages itself, which is left alone.
#[derive(Debug)]
pub struct Reservation {
    start: NonNull<c_void>,
    bytes: u64,
    owned: bool,
}

// SAFETY: the reservation owns its addresses; it makes no reference to the memory there.
unsafe impl Send for Reservation {}
// SAFETY: as above; all methods that take `&self` only read the two fields.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes` (rounded up to pages), aligned to [`HUGE`] when that large, within
    /// `aperture`.
    ///
    /// # Errors
    ///
    /// As [`Reservation::placed`].
    pub fn new(bytes: u64, aperture: &Aperture) -> Result<Self> {
        Self::placed(bytes, if bytes >= HUGE { Some(0) } else { None }, aperture)
    }

    /// Reserves `bytes` (rounded up to pages) within `aperture`, beginning at `offset` (whole
    /// pages) from a multiple of [`HUGE`], if given.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] for 0 or too many bytes, `mmap`'s error,
    /// [`ClientError::Unsupported`] when the addresses that `mmap` gives are outside of the
    /// aperture.
    pub fn placed(bytes: u64, offset: Option<u64>, aperture: &Aperture) -> Result<Self> {
        let bytes = match bytes.checked_next_multiple_of(PAGE) {
            Some(bytes) if (1..1 << 47).contains(&bytes) => bytes,
            _ => return Err(ClientError::Invalid(format!("cannot reserve {bytes:#x} bytes of GPU address space"))),
        };
        let (align, offset) = offset.map_or((PAGE, 0), |offset| (HUGE, offset % HUGE));
        let whole = bytes + align - PAGE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                index(whole),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(ClientError::Call { call: "mmap (reserving GPU address space)", errno: Errno::last() });
        }
        let address = CpuVa::of(at).0;
        // From `address` up to the next one that lies right.
        let head = offset.wrapping_sub(address) % align;
        let tail = whole - head - bytes;
        let start = at.wrapping_byte_add(index(head));
        release(at, head);
        release(start.wrapping_byte_add(index(bytes)), tail);
        let Some(start) = NonNull::new(start) else {
            return Err(ClientError::Invalid("mmap gave the null page".into()));
        };
        Self { start, bytes, owned: true }.check(aperture)
    }

    /// The range of `bytes` (whole pages) at `va`, where the caller manages GPU addresses. Nothing
    /// is reserved.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] when `va` is no page's address, [`ClientError::Unsupported`] when
    /// it is outside of the aperture.
    pub fn of_caller(va: GpuVa, bytes: u64, aperture: &Aperture) -> Result<Self> {
        let start = NonNull::new(ptr::with_exposed_provenance_mut(index(va.0)));
        match start {
            Some(start) if va.0 % PAGE == 0 && bytes > 0 => Self { start, bytes, owned: false }.check(aperture),
            _ => Err(ClientError::Invalid(format!("{bytes:#x} bytes at GPU address {va} are not whole pages"))),
        }
    }

    /// A mapping over all of it failed. The kernel may have unmapped the reservation, and the
    /// addresses may be another thread's by now. They are reserved again, or, if anything is mapped
    /// there, left alone for good.
    pub(crate) fn doubt(&mut self) {
        if !self.owned {
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        let at = unsafe { libc::mmap(self.start.as_ptr(), index(self.bytes), libc::PROT_NONE, flags, -1, 0) };
        self.owned = at == self.start.as_ptr();
    }

    fn check(self, aperture: &Aperture) -> Result<Self> {
        let Aperture { base, limit } = aperture;
        if aperture.contains(self.gpu_va().0, self.bytes) {
            return Ok(self);
        }
        let va = self.gpu_va();
        Err(ClientError::Unsupported(format!("the GPU's aperture {base}..={limit} does not cover the address {va}")))
    }

    /// Its first address as the GPU's.
    #[must_use]
    pub fn gpu_va(&self) -> GpuVa {
        GpuVa(CpuVa::of(self.start.as_ptr()).0)
    }

    /// Its first address as the CPU's.
    #[must_use]
    pub fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Its size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.owned {
            release(self.start.as_ptr(), self.bytes);
        }
    }
}

fn release(at: *mut c_void, bytes: u64) {
    if bytes > 0 {
        // SAFETY: the caller owns these pages (a part of its own reservation that no other
        // code knows, or the whole of it at the end of its life).
        let failed = unsafe { libc::munmap(at, index(bytes)) } != 0;
        if failed {
            tracing::warn!("munmap of {bytes:#x} reserved bytes at {at:p}: {}", Errno::last());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Aperture = Aperture { base: GpuVa(0x1000), limit: GpuVa((1 << 47) - 1) };

    fn mapped(va: u64) -> bool {
        // msync of a page that is not mapped fails with ENOMEM.
        let at = ptr::with_exposed_provenance_mut::<c_void>(index(va));
        // SAFETY: MS_ASYNC writes nothing and the call checks the address itself.
        unsafe { libc::msync(at, index(PAGE), libc::MS_ASYNC) == 0 }
    }

    #[test]
    fn large_ones_are_aligned_and_only_their_own() {
        let huge = Reservation::new(HUGE + 1, &WHOLE).unwrap();
        assert_eq!(huge.gpu_va().0 % HUGE, 0);
        assert_eq!(huge.bytes(), HUGE + PAGE);
        assert!(mapped(huge.gpu_va().0) && mapped(huge.gpu_va().0 + HUGE));
        for offset in [0, PAGE, HUGE - PAGE, HUGE + 3 * PAGE] {
            let placed = Reservation::placed(5 * PAGE, Some(offset), &WHOLE).unwrap();
            assert_eq!((placed.gpu_va().0 % HUGE, placed.bytes()), (offset % HUGE, 5 * PAGE));
            assert!(mapped(placed.gpu_va().0) && mapped(placed.gpu_va().0 + 4 * PAGE));
        }
        let small = Reservation::new(1, &WHOLE).unwrap();
        assert_eq!((small.bytes(), small.gpu_va().0 % PAGE), (PAGE, 0));
    }

    #[test]
    fn refuses_what_the_gpu_cannot_address() {
        let low = Aperture { base: GpuVa(0x1000), limit: GpuVa(0xffff_ffff) };
        let error = Reservation::new(PAGE, &low).unwrap_err();
        assert!(matches!(error, ClientError::Unsupported(_)), "{error}");
        assert!(matches!(Reservation::new(0, &WHOLE), Err(ClientError::Invalid(_))));
        assert!(matches!(Reservation::new(u64::MAX, &WHOLE), Err(ClientError::Invalid(_))));
    }

    #[test]
    fn reservations_do_not_overlap() {
        let all: Vec<_> = (1..20).map(|n| Reservation::new(n * 0x7_f000, &WHOLE).unwrap()).collect();
        let mut spans: Vec<_> = all.iter().map(|r| (r.gpu_va().0, r.gpu_va().0 + r.bytes())).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "{spans:x?}");
    }
}
