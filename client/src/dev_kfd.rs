// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system's KFD: `/dev/kfd`, `/dev/dri/renderD*` and the topology in sysfs.
//!
//! Lock: `render` guards the list of render nodes, which are opened at first use; a leaf.

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use vkfd_uapi::command;

use crate::address::GpuId;
use crate::error::{ClientError, Errno};
use crate::topology::{self, Node};
use crate::transport::{MmapFile, Transport};

/// An open `/dev/kfd`.
pub struct DevKfd {
    kfd: File,
    nodes: Vec<Node>,
    render: Mutex<Vec<(GpuId, File)>>,
}

impl DevKfd {
    /// Opens the KFD at `path` and reads the topology.
    ///
    /// # Errors
    ///
    /// [`ClientError::Open`], [`ClientError::Topology`].
    pub fn open(path: &Path) -> Result<Self, ClientError> {
        let kfd = open_device(path)?;
        let nodes = topology::read(Path::new(topology::SYSFS))?;
        Ok(Self { kfd, nodes, render: Mutex::new(Vec::new()) })
    }

    /// Opens the KFD at `path` as a driver process of its own. [`DevKfd::open`] gives that
    /// of the address space, however often it is opened.
    ///
    /// # Errors
    ///
    /// As [`DevKfd::open`]; what CREATE_PROCESS failed with, but for ENOTTY: an older driver has no
    /// process but that of the address space.
    pub fn open_apart(path: &Path) -> Result<Self, ClientError> {
        let opened = Self::open(path)?;
        // SAFETY: the call has no argument.
        match unsafe { opened.ioctl(command::CREATE_PROCESS.0, std::ptr::null_mut()) } {
            Ok(()) | Err(Errno::NOTTY) => Ok(opened),
            Err(errno) => Err(ClientError::call("CREATE_PROCESS")(errno)),
        }
    }

    fn render_node(&self, gpu: GpuId) -> Result<c_int, ClientError> {
        let mut open = self.render.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, file)) = open.iter().find(|(id, _)| *id == gpu) {
            return Ok(file.as_raw_fd());
        }
        let info = self.nodes.iter().filter_map(|node| node.gpu.as_ref()).find(|info| info.id == gpu);
        let minor = info.ok_or(ClientError::NoGpu(gpu))?.render_minor;
        let file = open_device(Path::new(&format!("/dev/dri/renderD{minor}")))?;
        let fd = file.as_raw_fd();
        open.push((gpu, file));
        Ok(fd)
    }
}

fn open_device(path: &Path) -> Result<File, ClientError> {
    let open = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
    open.map_err(|e| ClientError::Open {
        path: path.display().to_string(),
        errno: Errno(e.raw_os_error().unwrap_or(libc::EIO)),
    })
}

impl Transport for DevKfd {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: the descriptor is open as long as `self`; the caller answers for the argument.
        let result = unsafe { libc::ioctl(self.kfd.as_raw_fd(), libc::Ioctl::from(command), arg) };
        if result < 0 {
            return Err(Errno::last());
        }
        Ok(())
    }

    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        let fd = match what {
            MmapFile::Kfd => self.kfd.as_raw_fd(),
            MmapFile::Render(gpu) => self.render_node(gpu).map_err(|e| e.errno().unwrap_or(Errno::NODEV))?,
        };
        // KFD's offsets use bit 63; off_t has the same bits.
        let offset = libc::off_t::from_ne_bytes(offset.to_ne_bytes());
        // SAFETY: the descriptor is open; the caller answers for the mapping at `addr`.
        let at = unsafe { libc::mmap(addr, len, prot, flags, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(at)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        Ok(self.nodes.clone())
    }

    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError> {
        let fd = self.render_node(gpu)?;
        u32::try_from(fd).map_err(|_| ClientError::NoGpu(gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_says_so() {
        let error = DevKfd::open(Path::new("/dev/there-is-no-kfd")).map(drop).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert!(error.to_string().contains("/dev/there-is-no-kfd"), "{error}");
    }
}
