// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open `/dev/kfd`: a process of the driver.
//!
//! In a forked child its calls return EBADF, as KFD's do, and dropping it frees nothing.

use crate::blocks::Blocks;
use crate::devices::Devices;
use crate::dma::SharedMemory;
use crate::mapping::map;
use std::ffi::c_void;
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::process::Process;
use vkfd_driver::seams::gpu::Gpu;

/// An open device file. Dropping it releases the process: queues, objects, VMs.
pub struct KfdFile {
    pub(crate) process: Arc<Process>,
    /// What checks know of its objects.
    pub(crate) blocks: Option<Blocks>,
    pub(crate) devices: Arc<Devices>,
}

impl KfdFile {
    /// An ioctl. `argument` may be any address: what cannot be accessed is EFAULT.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for ioctl: the command may write to `argument` and to the memory behind its pointers. The
    /// GPU may write to registered memory at any later time.
    pub unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), i32> {
        let at = CpuVa(argument.expose_provenance() as u64);
        let freed = self.blocks.as_ref().and_then(|blocks| blocks.before(self.devices.mm, command, at));
        let result = self.process.ioctl(command, at).map_err(|e| e.errno.0);
        if let Some(blocks) = self.blocks.as_ref().filter(|_| result.is_ok()) {
            blocks.after(self.devices.mm, command, at, freed);
        }
        result
    }

    /// Maps VRAM, GTT memory, doorbells, events or registers, as mmap on the device files does.
    /// `bytes` is rounded up to pages.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for mmap: with `MAP_FIXED`, whatever is at `hint` goes.
    pub unsafe fn mmap(
        &self,
        hint: *mut c_void,
        bytes: usize,
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Result<*mut c_void, i32> {
        if !self.devices.mm.is_current() {
            return Err(libc::EBADF);
        }
        let bytes = (bytes as u64).checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        let mapped = self.process.mmap(offset, bytes).map_err(|e| e.errno.0)?;
        // SAFETY: forwarded to the caller.
        unsafe { map(&self.devices, &mapped, hint, bytes, prot, flags) }
    }

    /// Where in the machine's file what [`mmap`](Self::mmap) would map is: places and bytes, in
    /// order.
    ///
    /// # Errors
    /// The errno: mmap's; ENODEV where the machine has no such file.
    pub fn places(&self, offset: u64, bytes: u64) -> Result<Vec<(u64, u64)>, i32> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        match &self.process.mmap(offset, bytes).map_err(|e| e.errno.0)? {
            Mapped::Dma(memory, from) => {
                let memory = memory.as_any().downcast_ref::<SharedMemory>().ok_or(libc::EINVAL)?;
                let start = memory.place().and_then(|at| at.checked_add(*from)).ok_or(libc::ENODEV)?;
                Ok(vec![(start, bytes)])
            }
            Mapped::Vram { gpu_id, pieces, .. } => {
                self.devices.file.as_ref().ok_or(libc::ENODEV)?;
                let gpu = self.devices.gate.0.iter().find(|g| g.properties().gpu_id == *gpu_id).ok_or(libc::ENODEV)?;
                let start = gpu.software().vram().start();
                Ok(pieces.iter().map(|(offset, bytes)| (start + offset.0, *bytes)).collect())
            }
        }
    }

    /// Shows its process in the list of processes, if it is one of this system. Again is no error.
    ///
    /// # Errors
    /// The errno.
    pub fn list(&self) -> Result<(), i32> {
        self.process.list().map_err(|e| e.errno.0)
    }

    /// The driver's process, to inspect it.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

impl Drop for KfdFile {
    fn drop(&mut self) {
        if self.devices.keep_in_child() {
            std::mem::forget(self.process.clone());
        } else {
            self.process.release();
        }
    }
}
