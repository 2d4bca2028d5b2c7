// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A way to a KFD: the device file, the in-process host, or a test's own.

use std::ffi::{c_int, c_void};

use crate::address::GpuId;
use crate::error::{ClientError, Errno};
use crate::topology::Node;

/// The file whose offsets an mmap uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmapFile {
    /// `/dev/kfd`: doorbells and event pages.
    Kfd,
    /// The GPU's DRM render node: VRAM and GTT buffers.
    Render(GpuId),
}

/// What the library needs of a KFD and what surrounds it.
///
/// One value is one KFD process object; dropping it closes the files, which frees what the process
/// still has.
pub trait Transport: Send + Sync {
    /// `ioctl` on the KFD file.
    ///
    /// # Errors
    ///
    /// What the driver returned.
    ///
    /// # Safety
    ///
    /// `arg` points to the argument that `command` declares, and the pointers in it are valid for
    /// the call's accesses.
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno>;

    /// `mmap` on one of the files.
    ///
    /// # Errors
    ///
    /// What the driver returned.
    ///
    /// # Safety
    ///
    /// As for `mmap`: with `MAP_FIXED` in `flags`, what was mapped at `addr` belongs to the caller
    /// and nothing refers to it.
    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno>;

    /// The nodes of the system in order of their numbers, CPUs and GPUs.
    ///
    /// # Errors
    ///
    /// When it cannot be read or parsed.
    fn topology(&self) -> Result<Vec<Node>, ClientError>;

    /// The file number of a GPU's render node, for ACQUIRE_VM.
    ///
    /// # Errors
    ///
    /// When the node cannot be opened.
    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError>;
}
