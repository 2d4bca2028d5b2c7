// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells: the registers by which a queue's write pointer reaches the GPU.
//!
//! Mechanism: CREATE_QUEUE returns an mmap offset. Since gfx9, its low bits are the doorbell's
//! place in the process's two doorbell pages; before, the offset was the pages' alone. The pages
//! are mapped once for each GPU.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::{index, GpuId};
use crate::error::{ClientError, Errno, Result};
use crate::transport::{MmapFile, Transport};

/// Bytes of a process's doorbells on one GPU: 1024 of eight bytes.
const BYTES: u64 = 8192;

/// The mapped doorbell pages of one GPU.
pub(crate) struct Doorbells {
    gpu: GpuId,
    base: u64,
    at: NonNull<c_void>,
}

// SAFETY: the pages stay mapped as long as the value lives, and are only written, by 8-byte atomic
// stores.
unsafe impl Send for Doorbells {}
// SAFETY: as above.
unsafe impl Sync for Doorbells {}

impl Doorbells {
    pub(crate) fn map(transport: &dyn Transport, gpu: GpuId, offset: u64) -> Result<Self> {
        let base = offset & !(BYTES - 1);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe {
            transport.mmap(
                MmapFile::Kfd,
                ptr::null_mut(),
                index(BYTES),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                base,
            )
        };
        let at = at.map_err(ClientError::call("mmap (doorbells)"))?;
        let at = NonNull::new(at).ok_or(ClientError::Call { call: "mmap (doorbells)", errno: Errno::NOMEM })?;
        Ok(Self { gpu, base, at })
    }

    /// Whether the doorbell with this mmap offset is among these.
    pub(crate) fn serves(&self, gpu: GpuId, offset: u64) -> bool {
        self.gpu == gpu && self.base == offset & !(BYTES - 1)
    }

    /// Writes the doorbell with this mmap offset. What was written to memory before is visible to
    /// the GPU that sees the write.
    pub(crate) fn ring(&self, offset: u64, value: u64) {
        let place = index(offset & (BYTES - 1) & !7);
        let doorbell = self.at.as_ptr().wrapping_byte_add(place).cast::<u64>();
        // SAFETY: `place` is an aligned 8 bytes within the pages, which stay mapped as long as
        // `self`; the GPU reads them, so the access is atomic.
        unsafe { AtomicU64::from_ptr(doorbell) }.store(value, Ordering::Release);
    }
}

impl Drop for Doorbells {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping and the last user of it is gone.
        unsafe { libc::munmap(self.at.as_ptr(), index(BYTES)) };
    }
}
