// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's memory for the worker: a file, and its mapping.

use super::vma::FileId;
use crate::device::HostGpu;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, VramOffset};
use vkfd_driver::seams::device_memory::DeviceMemory;
use vkfd_driver::seams::gpu::Gpu;

/// One GPU's memory. Keeps both the software GPU and the driver's object, as long as pages are
/// there.
pub(crate) struct DeviceRam {
    gpu: Arc<HostGpu>,
    device: Arc<dyn DeviceMemory>,
    window: Window,
}

/// What is needed to reach it, by value: usable where nothing on the heap may be touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) fd: RawFd,
    pub(super) file: FileId,
    /// Where in the file it begins: at 0, unless all that a machine's clients map is in one file.
    pub(super) start: u64,
    /// Where the host has all of it mapped.
    pub(super) base: CpuVa,
    pub(super) bytes: u64,
    /// Where it begins for the GPUs.
    pub(super) fabric: FabricAddr,
    pub(super) coherent: bool,
    /// Where the worker has all of it mapped, sealed, see `Mover::stand_vram`.
    pub(super) sealed: Option<CpuVa>,
}

impl Window {
    /// Where `at` is in the memory.
    pub(super) fn offset(&self, at: FabricAddr) -> VramOffset {
        VramOffset(at.0 - self.fabric.0)
    }

    /// Where `at` is in the file.
    pub(super) fn in_file(&self, at: VramOffset) -> u64 {
        self.start + at.0
    }

    /// Where the GPUs have `at`.
    pub(super) fn fabric(&self, at: VramOffset) -> FabricAddr {
        FabricAddr(self.fabric.0 + at.0)
    }

    /// Where the host has `bytes` from `at` mapped.
    pub(super) fn mapped(&self, at: VramOffset, bytes: u64) -> CpuSpan {
        CpuSpan::between(CpuVa(self.base.0 + at.0), CpuVa(self.base.0 + at.0 + bytes))
    }
}

/// Where a driver's object is: as long as it lives no other is there.
pub(super) fn identity(device: &dyn DeviceMemory) -> usize {
    std::ptr::from_ref(device).cast::<()>().addr()
}

impl DeviceRam {
    pub(super) fn new(gpu: Arc<HostGpu>, device: Arc<dyn DeviceMemory>) -> io::Result<Self> {
        let vram = gpu.software().vram();
        let fd = vram.as_fd().as_raw_fd();
        let window = Window {
            fd,
            file: FileId::of(fd)?,
            start: vram.start(),
            base: CpuVa(vram.base().expose_provenance() as u64),
            bytes: vram.size(),
            fabric: gpu.properties().vram_base,
            coherent: device.coherent(),
            sealed: None,
        };
        Ok(Self { gpu, device, window })
    }

    pub(super) fn window(&self) -> Window {
        self.window
    }

    /// Whether it is the same memory of the same driver.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.gpu, &other.gpu) && self.device() == other.device()
    }

    /// The [`identity`] of the driver's object.
    pub(super) fn device(&self) -> usize {
        identity(&*self.device)
    }

    /// Whether `bytes` from `at` are in it.
    pub(crate) fn has(&self, at: VramOffset, bytes: u64) -> bool {
        at.is_page_aligned() && at.0.checked_add(bytes).is_some_and(|end| end <= self.window.bytes)
    }

    pub(super) fn came_back(&self, at: VramOffset, pages: u64) {
        self.device.came_back(at, pages);
    }

    pub(super) fn released(&self, at: VramOffset, pages: u64) {
        self.device.released(at, pages);
    }
}
