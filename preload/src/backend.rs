// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine behind devices: one in this process ([`crate::machine`]), or another to which calls
//! are forwarded ([`crate::forwarded`]).

use libc::{c_int, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vkfd_host::KfdFile;
use vkfd_remote::guest::FileId;

/// The machine.
pub(crate) trait Backend: Send + Sync {
    /// KFD's open file: as in the kernel, all of a process are one process of the driver.
    fn open(&self) -> Result<Arc<dyn Process>, c_int>;

    /// The render node of GPU number `index`.
    fn open_render(&self, index: usize) -> Result<Arc<dyn Render>, c_int>;

    /// The render node of GPU number `index`, for questions about the machine. What it takes to ask
    /// is kept until [`forget_questions`](Self::forget_questions).
    fn question(&self, index: usize) -> Result<Arc<dyn Render>, c_int>;

    /// No answer came: the next question begins anew.
    fn forget_questions(&self);

    /// A descriptor for a device's open file, with a mark for other processes
    /// ([`vkfd_host::device_file::mark_of`]).
    fn descriptor(&self, flags: c_int, mark: u32) -> io::Result<OwnedFd>;

    /// The file that the descriptors of all programs of a shared machine are of; none of another
    /// machine.
    fn shared_file(&self) -> Option<FileId>;

    /// The number of the GPU with this `gpu_id`.
    fn gpu(&self, gpu_id: u32) -> Option<usize>;

    /// Reads the program's memory. EFAULT for other addresses.
    fn read(&self, from: *const c_void, to: &mut [u8]) -> Result<(), c_int>;
}

/// KFD's open file.
pub(crate) trait Process: Send + Sync {
    /// An ioctl.
    ///
    /// # Safety
    /// As for ioctl.
    unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), c_int>;

    /// A mapping.
    ///
    /// # Safety
    /// As for mmap.
    unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, c_int>;

    /// The driver's, when it is in this process.
    fn local(&self) -> Option<&KfdFile>;
}

/// A render node's open file.
pub(crate) trait Render: Send + Sync {
    /// An ioctl; `bound` is the process that ACQUIRE_VM has bound it to.
    ///
    /// # Safety
    /// As for ioctl.
    unsafe fn ioctl(&self, bound: Option<&dyn Process>, command: u32, argument: *mut c_void) -> Result<(), c_int>;

    /// A mapping of an object of its own; `None` if none is at the offset.
    ///
    /// # Safety
    /// As for mmap.
    unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Option<Result<*mut c_void, c_int>>;
}
