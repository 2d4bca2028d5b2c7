// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The guest kernel's virtio-gpu, by its render node: the ioctls of `virtgpu_drm.h`.
//!
//! A mapping of a blob is known by its offset. DRM gives every object a range of offsets of its own
//! in the node's file, and `/proc/self/maps` shows them, also after a program's changes of the
//! mapping.
//!
//! Lock: `blobs`, a leaf.

use std::collections::BTreeMap;
use std::ffi::{c_void, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::virtgpu::{
    self, Exec, CONTEXT_CAPSET, CONTEXT_INIT, CONTEXT_RINGS, CREATE_BLOB, EXECBUFFER, EXEC_FENCE_OUT, EXEC_RING,
    GEM_CLOSE, GETPARAM, GET_CAPS, MAP, PARAM_CAPSETS, RESOURCE_INFO,
};
use super::{identity, map_file, Blob, FileId, Found, Transport};
use crate::protocol::forward::{BlobKind, SLOTS};
use crate::protocol::{blob, capset};

/// Render nodes of a system.
const MINORS: std::ops::Range<u32> = 128..192;

#[derive(Clone, Copy)]
struct Known {
    blob: Blob,
    guest: bool,
}

/// A render node with a context of vkfd's own capability set.
pub struct Node {
    fd: OwnedFd,
    file: FileId,
    machine: String,
    /// By the offset at which they are mapped.
    blobs: Mutex<BTreeMap<u64, Known>>,
}

fn call(fd: i32, number: u64, args: *mut c_void) -> io::Result<()> {
    loop {
        // SAFETY: callers pass the argument that the number declares, with pointers to memory of
        // the sizes in it.
        if unsafe { libc::ioctl(fd, number, args) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// The machine that the node's device offers in vkfd's capability set.
fn machine(fd: i32) -> io::Result<String> {
    let none = || io::Error::new(io::ErrorKind::Unsupported, "the device does not offer vkfd's capability set");
    let mut sets = 0_u64;
    let mut args = [PARAM_CAPSETS, (&raw mut sets).expose_provenance() as u64];
    call(fd, GETPARAM, args.as_mut_ptr().cast()).map_err(|_| none())?;
    if sets >> capset::KFD & 1 == 0 {
        return Err(none());
    }
    let mut data = vec![0_u8; capset::KFD_BYTES];
    let mut args = [u64::from(capset::KFD), data.as_mut_ptr().expose_provenance() as u64, data.len() as u64];
    call(fd, GET_CAPS, args.as_mut_ptr().cast())?;
    capset::machine(&data).map(Into::into).map_err(|_| none())
}

/// The first render node whose device offers vkfd's capability set, and the machine in words.
#[must_use]
pub fn find() -> Option<(PathBuf, String)> {
    MINORS.map(|minor| PathBuf::from(format!("/dev/dri/renderD{minor}"))).find_map(|path| {
        let fd = open(&path).ok()?;
        let machine = machine(fd.as_raw_fd()).ok()?;
        Some((path, machine))
    })
}

impl Node {
    /// Opens a node and makes a context.
    ///
    /// # Errors
    /// The kernel's, and Unsupported for another device.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open(path)?;
        let machine = machine(fd.as_raw_fd())?;
        let mut parameters = [CONTEXT_CAPSET, u64::from(capset::KFD), CONTEXT_RINGS, SLOTS as u64];
        let mut args = [2, parameters.as_mut_ptr().expose_provenance() as u64];
        call(fd.as_raw_fd(), CONTEXT_INIT, args.as_mut_ptr().cast())?;
        let file = identity(fd.as_raw_fd())?;
        Ok(Self { fd, file, machine, blobs: Mutex::default() })
    }

    fn call<T>(&self, number: u64, args: &mut T) -> io::Result<()> {
        call(self.fd.as_raw_fd(), number, std::ptr::from_mut(args).cast())
    }

    fn blob(&self, memory: u32, flags: u32, size: u64, id: u64) -> io::Result<Blob> {
        let mut args = virtgpu::Blob { memory, flags, size, id, ..virtgpu::Blob::default() };
        self.call(CREATE_BLOB, &mut args)?;
        let mut blob = Blob { resource: args.resource, bytes: size, handle: args.handle };
        let mut info = [args.handle, 0, 0, 0];
        let mut offset = [0_u64, u64::from(args.handle)];
        let known = self.call(RESOURCE_INFO, &mut info).and_then(|()| self.call(MAP, &mut offset));
        if let Err(error) = known {
            self.close_handle(&blob);
            return Err(error);
        }
        blob.resource = info[1];
        let guest = memory == blob::MEM_HOST3D_GUEST;
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).insert(offset[0], Known { blob, guest });
        Ok(blob)
    }

    fn close_handle(&self, blob: &Blob) {
        // Fails only for a handle that is none.
        let _ = self.call(GEM_CLOSE, &mut [blob.handle, 0]);
    }
}

impl Transport for Node {
    fn machine(&self) -> &str {
        &self.machine
    }

    fn host_blob(&self, kind: BlobKind, bytes: u64) -> io::Result<Blob> {
        self.blob(blob::MEM_HOST3D, blob::FLAG_MAPPABLE, bytes, kind.id())
    }

    fn guest_blob(&self, bytes: u64) -> io::Result<Blob> {
        self.blob(blob::MEM_HOST3D_GUEST, blob::FLAG_MAPPABLE, bytes, 0)
    }

    fn close(&self, blob: &Blob) {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, known| known.blob != *blob);
        self.close_handle(blob);
    }

    unsafe fn map(&self, blob: &Blob, at: *mut c_void, protection: i32) -> io::Result<*mut c_void> {
        let mut offset = [0_u64, u64::from(blob.handle)];
        self.call(MAP, &mut offset)?;
        // SAFETY: forwarded to the caller.
        unsafe { map_file(self.fd.as_raw_fd(), offset[0], blob.bytes, at, protection) }
    }

    fn find(&self, file: FileId, offset: u64) -> Option<Found> {
        if file != self.file {
            return None;
        }
        let blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, known) = blobs.range(..=offset).next_back()?;
        let within = offset - start;
        let bytes = known.blob.bytes.checked_sub(within).filter(|bytes| *bytes > 0)?;
        Some(Found { resource: known.blob.resource, offset: within, bytes, guest: known.guest })
    }

    fn is_private(&self, file: FileId) -> bool {
        file == self.file
    }

    fn submit(&self, payload: &[u8], ring: u32, patience: Option<Duration>) -> io::Result<()> {
        let mut args = Exec {
            flags: EXEC_FENCE_OUT | EXEC_RING,
            size: u32::try_from(payload.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            command: payload.as_ptr().expose_provenance() as u64,
            fence: -1,
            ring,
            ..Exec::default()
        };
        self.call(EXECBUFFER, &mut args)?;
        // SAFETY: the kernel gave a descriptor that nobody else has.
        let fence = unsafe { OwnedFd::from_raw_fd(args.fence) };
        let milliseconds = patience.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        loop {
            let mut poll = libc::pollfd { fd: fence.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which is alive.
            match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
                1 => return Ok(()),
                0 => return Err(io::ErrorKind::TimedOut.into()),
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}
