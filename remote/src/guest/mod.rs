// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest's ways to the device, for programs in the guest: what its kernel does for them.
//!
//! | module | what |
//! | --- | --- |
//! | [`drm`] | the guest kernel's virtio-gpu, by a render node |
//! | [`file_message`] | messages that carry a file |
//! | [`fork`] | what a forked child has of registered memory |
//! | [`sharing`] | what a process that shares its machine has besides (`vkfd serve`) |
//! | [`socket`] | the device itself, by a socket, without a virtual machine: for tests, and to try programs |
//! | [`forward`] | a context of vkfd's own capability set, over either |
//! | [`virtgpu`] | the system calls of the guest kernel's virtio-gpu: numbers, arguments, constants |
//!
//! Nothing here calls libc's `open` with a path: a library that is loaded into programs has another
//! function of that name.

pub mod drm;
pub mod file_message;
pub mod fork;
pub mod forward;
pub mod sharing;
pub mod socket;
pub mod virtgpu;

use std::ffi::c_void;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::forward::BlobKind;

/// A resource of the device that this process made. Closing it ends what it is used for on the
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The host's number of it.
    pub resource: u32,
    /// Its bytes.
    pub bytes: u64,
    /// The guest kernel's number of it.
    handle: u32,
}

/// A file as `/proc/self/maps` shows it: device and inode.
pub type FileId = (u64, u64);

/// A part of a resource that a mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The resource.
    pub resource: u32,
    /// Where in it.
    pub offset: u64,
    /// Bytes from there on that belong together.
    pub bytes: u64,
    /// Whether it is the guest's own memory, and not the host's.
    pub guest: bool,
}

/// What a guest's kernel does for a program that has a context of the device.
pub trait Transport: Send + Sync {
    /// The machine in words, as the capability set has it.
    fn machine(&self) -> &str;

    /// A blob of the host's memory, which can be mapped.
    ///
    /// # Errors
    /// The kernel's.
    fn host_blob(&self, kind: BlobKind, bytes: u64) -> io::Result<Blob>;

    /// A blob of the guest's memory. It is empty.
    ///
    /// # Errors
    /// The kernel's.
    fn guest_blob(&self, bytes: u64) -> io::Result<Blob>;

    /// Gives a blob up. Mappings of it stay.
    fn close(&self, blob: &Blob);

    /// Maps all of a blob, at `at` if that is not null.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// The caller may replace the mapping at `at`.
    unsafe fn map(&self, blob: &Blob, at: *mut c_void, protection: i32) -> io::Result<*mut c_void>;

    /// What a mapping of `file` from `offset` on shows, if that is one of this process's blobs.
    fn find(&self, file: FileId, offset: u64) -> Option<Found>;

    /// Whether a mapping of this file can only be this process's: of a blob that it made, by this
    /// way to the device or an earlier one.
    fn is_private(&self, file: FileId) -> bool;

    /// What there is besides where the machine is shared with other processes.
    fn shared_machine(&self) -> Option<&Arc<sharing::SharedMachine>> {
        None
    }

    /// Sends a request on a ring and waits for its fence; TimedOut after `patience`.
    ///
    /// # Errors
    /// The kernel's, or the host's refusal.
    fn submit(&self, payload: &[u8], ring: u32, patience: Option<Duration>) -> io::Result<()>;
}

/// The way to the device at `path`: a render node, or the socket of a loopback.
///
/// # Errors
/// It is neither, or the device does not offer vkfd's capability set.
pub fn open(path: &Path) -> io::Result<Arc<dyn Transport>> {
    Ok(match path.starts_with("/dev/dri") {
        true => Arc::new(drm::Node::open(path)?),
        false => Arc::new(socket::Connection::open(path)?),
    })
}

/// A size that is an address's, on a 64-bit system.
fn size(bytes: u64) -> usize {
    const { assert!(size_of::<usize>() == 8) };
    #[allow(clippy::cast_possible_truncation)]
    let size = bytes as usize;
    size
}

/// Maps a part of a file, shared.
///
/// # Safety
/// As for [`Transport::map`].
unsafe fn map_file(fd: i32, offset: u64, bytes: u64, at: *mut c_void, protection: i32) -> io::Result<*mut c_void> {
    let flags = libc::MAP_SHARED | if at.is_null() { 0 } else { libc::MAP_FIXED };
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: promised by the caller.
    let mapped = unsafe { libc::mmap(at, size(bytes), protection, flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped)
}

/// Device and inode of an open file.
///
/// # Errors
/// The kernel's.
pub fn identity(fd: i32) -> io::Result<FileId> {
    // SAFETY: zero is a valid structure.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // By the system call: the library that is loaded into programs shows other numbers for some
    // files. SAFETY: an empty path names the descriptor; the structure is the kernel's on 64-bit
    // machines.
    let done = unsafe { libc::syscall(libc::SYS_newfstatat, fd, c"".as_ptr(), &raw mut data, libc::AT_EMPTY_PATH) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((data.st_dev, data.st_ino))
}
