// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's machine: this process is in a guest, and its calls go through a virtio-gpu to a process of its own of the host's driver
//! ([`vkfd_virtio_gpu::guest`]).
//!
//! The context is opened with the first device and ends with the last, and a forked child has one of its own. Descriptors are of a file
//! without contents: a mapping that a program makes past this library shows nothing.

use crate::backend::{Backend, Process, Render};
use libc::{c_int, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use vkfd_host::device_file::DeviceFile;
use vkfd_host::{Description, KfdFile};
use vkfd_virtio_gpu::guest::{self, forward};

/// See the module.
pub(crate) struct Forwarded {
    way: PathBuf,
    machine: Description,
    file: DeviceFile,
    process: Mutex<Weak<forward::Process>>,
}

impl Forwarded {
    /// By the render node or socket `way` to a machine like this.
    pub(crate) fn new(way: PathBuf, machine: Description) -> io::Result<Self> {
        Ok(Self { way, machine, file: DeviceFile::new()?, process: Mutex::default() })
    }

    fn context(&self) -> Result<Arc<forward::Process>, c_int> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process.upgrade() {
            return Ok(process);
        }
        let opened = guest::open(&self.way).and_then(forward::Process::new).map_err(|error| {
            eprintln!("vkfd: the host's machine cannot be reached through {}: {error}", self.way.display());
            libc::ENODEV
        })?;
        let opened = Arc::new(opened);
        *process = Arc::downgrade(&opened);
        Ok(opened)
    }
}

impl Backend for Forwarded {
    fn open(&self) -> Result<Arc<dyn Process>, c_int> {
        Ok(self.context()?)
    }

    fn open_render(&self, index: usize) -> Result<Arc<dyn Render>, c_int> {
        let number = u32::try_from(index).map_err(|_| libc::ENODEV)?;
        Ok(Arc::new(Node { process: self.context()?, number }))
    }

    fn descriptor(&self, flags: c_int) -> io::Result<OwnedFd> {
        self.file.open(flags)
    }

    fn gpu(&self, gpu_id: u32) -> Option<usize> {
        let options = self.machine.options();
        let index = (0..self.machine.gpus).find(|index| options.gpu_properties(*index).gpu_id == gpu_id)?;
        usize::try_from(index).ok()
    }

    fn read(&self, from: *const c_void, to: &mut [u8]) -> Result<(), c_int> {
        // SAFETY: what is written to is this library's own.
        unsafe { forward::read(from, to) }
    }
}

impl Process for forward::Process {
    unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.ioctl(forward::File::Kfd, command, argument) }
    }

    unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.mmap(at, bytes, prot, flags, offset) }
    }

    fn local(&self) -> Option<&KfdFile> {
        None
    }
}

struct Node {
    process: Arc<forward::Process>,
    number: u32,
}

impl Render for Node {
    unsafe fn ioctl(&self, _bound: Option<&dyn Process>, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.process.ioctl(forward::File::Render(self.number), command, argument) }
    }

    unsafe fn mmap(
        &self,
        _at: *mut c_void,
        _bytes: usize,
        _prot: c_int,
        _flags: c_int,
        _offset: u64,
    ) -> Option<Result<*mut c_void, c_int>> {
        // It has no objects of its own: what it shows is the process's.
        None
    }
}
