// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open render node, with the memory objects of DRM's calls.

use crate::address_space::ProcessMemory;
use crate::devices::Devices;
use crate::kfd_file::KfdFile;
use crate::mapping::map;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::drm;
use vkfd_driver::seams::address_space::AddressSpace;

/// An open render node, with DRM's objects. Dropping it ends them, with their mappings on GPUs.
pub struct RenderFile {
    pub(crate) file: ManuallyDrop<drm::RenderFile>,
    pub(crate) devices: Arc<Devices>,
}

/// The caller of a render node: this process.
struct Caller(ProcessMemory);

impl drm::Caller for Caller {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> vkfd_driver::base::errno::Result {
        self.0.read(from, to)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> vkfd_driver::base::errno::Result {
        self.0.write(to, from)
    }
}

impl RenderFile {
    /// An ioctl; `bound` is the file that ACQUIRE_VM was called on with this one.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for [`KfdFile::ioctl`].
    pub unsafe fn ioctl(&self, bound: Option<&KfdFile>, command: u32, argument: *mut c_void) -> Result<(), i32> {
        if !self.devices.mm.is_current() {
            return Err(libc::EBADF);
        }
        let caller = Caller(ProcessMemory::new(self.devices.mm));
        let at = CpuVa(argument.expose_provenance() as u64);
        self.file.ioctl(&caller, bound.map(KfdFile::process), command, at).map_err(|e| e.errno.0)
    }

    /// Maps an object of this file, as [`KfdFile::mmap`] does; `None` if none is at the offset.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for [`KfdFile::mmap`].
    pub unsafe fn mmap(
        &self,
        hint: *mut c_void,
        bytes: usize,
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Option<Result<*mut c_void, i32>> {
        let bytes = (bytes as u64).checked_next_multiple_of(PAGE)?;
        let mapped = match self.file.mmap(offset, bytes)? {
            Ok(mapped) => mapped,
            Err(error) => return Some(Err(error.errno.0)),
        };
        // SAFETY: forwarded to the caller.
        Some(unsafe { map(&self.devices, &mapped, hint, bytes, prot, flags) })
    }
}

impl Drop for RenderFile {
    fn drop(&mut self) {
        if !self.devices.keep_in_child() {
            // SAFETY: here alone, and never used again.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}
