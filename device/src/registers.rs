// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The register part of a BAR, mapped. The guest writes there at any time, so there are no
//! references into it, only word accesses.

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use vkfd_gpu::raw;
use vkfd_wire::layout::REGISTER_BYTES;

/// `REGISTER_BYTES` as this machine counts.
const BYTES: usize = vkfd_driver::base::addr::index(REGISTER_BYTES);

/// The registers.
pub struct Registers {
    base: NonNull<u8>,
}

// SAFETY: the mapping lives as long as the value and is only accessed by word accesses that may run
// anywhere.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// Maps the registers of the BAR whose memory is `bar`.
    ///
    /// # Errors
    /// What mmap says.
    pub fn map(bar: impl AsFd) -> io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel chooses.
        let base =
            unsafe { mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, bar, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base })
    }

    /// The word at byte `at`. Offsets come from [`vkfd_wire::layout`], never from the guest.
    fn word(&self, at: u64) -> *mut u64 {
        assert!(at % 8 == 0 && at < REGISTER_BYTES, "register {at:#x}");
        self.base.as_ptr().wrapping_add(vkfd_driver::base::addr::index(at)).cast()
    }

    /// Reads a register; acquire.
    pub fn read(&self, at: u64) -> u64 {
        // SAFETY: inside the mapping and aligned, see `word`; no references to it exist.
        unsafe { raw::load_u64(self.word(at)) }.unwrap_or_else(|fault| lost(fault))
    }

    /// Writes a register; release.
    pub fn write(&self, at: u64, value: u64) {
        // SAFETY: as in `read`.
        unsafe { raw::store_u64(self.word(at), value) }.unwrap_or_else(|fault| lost(fault));
    }
}

/// The machine has no memory for the registers. The process ends, and with it its epoch; the driver
/// can handle that.
fn lost(fault: raw::Faulted) -> ! {
    tracing::error!(%fault, "registers cannot be accessed: is the host out of memory?");
    std::process::abort()
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` mapped; the last user is gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
