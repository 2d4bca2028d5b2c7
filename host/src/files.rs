// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files that calls give to the program: buffers as memfds, SMI events as one end of a socket pair.
//!
//! Both are real descriptors: they can be duplicated, polled and closed by whatever means. The
//! kernel's state of a file shows that it has been closed. A buffer's file is locked (flock)
//! through the program's description, so that the lock goes when the last duplicate is closed. The
//! host checks the locks when the next file is made or taken, and when memory is short or queried.
//! It gives memory of closed files back then. An event socket's other end says so itself.
//!
//! Limits: a buffer's file has its size, for lseek, but not its contents: it cannot be mapped. It
//! stands for the buffer only in this process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vkfd_driver::base::errno::{Errno, Error, Result};
use vkfd_driver::buffers::dmabuf::DmaBuf;
use vkfd_driver::buffers::files::Files;
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::event_stream::EventStream;
use vkfd_gpu::raw::memory_file;

/// A buffer's file.
struct Exported {
    /// A description of our own; the program's has the lock.
    own: File,
    inode: (u64, u64),
    buffer: Arc<DmaBuf>,
}

impl Exported {
    /// Whether the program has closed it: then the lock can be had.
    fn is_closed(&self) -> bool {
        // SAFETY: a call on a descriptor that is ours.
        let got = unsafe { libc::flock(self.own.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        if got {
            // SAFETY: as above.
            unsafe { libc::flock(self.own.as_raw_fd(), libc::LOCK_UN) };
        }
        got
    }
}

/// The host's files. The lock guards the buffers that have one.
#[derive(Default)]
pub struct HostFiles(Mutex<Vec<Exported>>);

fn errno(error: &io::Error) -> Error {
    let too_large = error.kind() == io::ErrorKind::FileTooLarge;
    Errno(error.raw_os_error().unwrap_or(if too_large { libc::EFBIG } else { libc::EIO })).into()
}

fn inode(file: &File) -> io::Result<(u64, u64)> {
    let data = file.metadata()?;
    Ok((data.dev(), data.ino()))
}

fn number(file: OwnedFd) -> u32 {
    // Descriptors are not negative.
    u32::try_from(file.into_raw_fd()).unwrap_or(0)
}

/// Most buffers that have files at a time: an eighth of the descriptors that this process may have.
/// A buffer takes one here as long as somebody has its file, and another one while it is offered by
/// a name. So one client of a machine that several share leaves descriptors for the others.
fn most_files() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills in the local structure.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let descriptors = if got == 0 { limit.rlim_cur } else { 1024 };
    usize::try_from(descriptors / 8).unwrap_or(usize::MAX).max(64)
}

impl HostFiles {
    fn make(buffer: &Arc<DmaBuf>, flags: u32) -> io::Result<(OwnedFd, Exported)> {
        let theirs = match flags & libc::O_CLOEXEC.unsigned_abs() {
            0 => memory_file::sealed_inherited(c"dmabuf", buffer.bytes())?,
            _ => memory_file::sealed(c"dmabuf", buffer.bytes())?,
        };
        // Another open of the same file: a description of its own.
        let own = File::open(format!("/proc/self/fd/{}", theirs.as_raw_fd()))?;
        // SAFETY: a call on a descriptor that is ours until it is handed out.
        if unsafe { libc::flock(theirs.as_raw_fd(), libc::LOCK_SH) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let inode = inode(&own)?;
        Ok((theirs.into(), Exported { own, inode, buffer: buffer.clone() }))
    }
}

impl Files for HostFiles {
    fn event_stream(&self) -> Result<(u32, Arc<dyn EventStream>)> {
        os::failpoint(FailPoint::EventStream)?;
        let pair = UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            // As KFD's: reading when there is nothing is EAGAIN.
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = pair.map_err(|e| errno(&e))?;
        let stream = Socket { ours, mask: AtomicU64::new(0), closed: AtomicBool::new(false) };
        // The number last: from then on the file is the program's.
        let stream = os::arc(stream)?;
        Ok((number(theirs.into()), stream))
    }

    fn export(&self, buffer: &Arc<DmaBuf>, flags: u32) -> Result<u32> {
        os::failpoint(FailPoint::Export)?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|exported| !exported.is_closed());
        if all.len() >= most_files() {
            return Err(Errno::EMFILE.into());
        }
        let (theirs, exported) = Self::make(buffer, flags).map_err(|e| errno(&e))?;
        all.push(exported);
        Ok(number(theirs))
    }

    fn forget_closed(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|exported| !exported.is_closed());
    }

    fn import(&self, file: u32) -> Result<Arc<DmaBuf>> {
        let fd = RawFd::try_from(file).map_err(|_| Errno::EBADF)?;
        // SAFETY: only duplicated; a number that is no descriptor is an error.
        let duplicate = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if duplicate < 0 {
            return Err(Errno::EBADF.into());
        }
        // SAFETY: new, and nobody else's.
        let wanted = inode(&unsafe { File::from_raw_fd(duplicate) }).map_err(|e| errno(&e))?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|exported| !exported.is_closed());
        let found = all.iter().find(|exported| exported.inode == wanted);
        Ok(found.ok_or(Errno::EINVAL)?.buffer.clone())
    }
}

/// Our end of a program's event file.
struct Socket {
    ours: UnixStream,
    mask: AtomicU64,
    closed: AtomicBool,
}

impl EventStream for Socket {
    fn mask(&self) -> u64 {
        let mut word = [0; 8];
        loop {
            match (&self.ours).read(&mut word) {
                // KFD takes eight bytes at a time, and so does its writer.
                Ok(8) => self.mask.store(u64::from_ne_bytes(word), Ordering::Relaxed),
                Ok(0) => {
                    self.closed.store(true, Ordering::Relaxed);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.mask.load(Ordering::Relaxed)
    }

    fn write(&self, line: &[u8]) {
        // std passes MSG_NOSIGNAL. What does not fit is lost.
        let _ = (&self.ours).write(line);
    }

    fn is_closed(&self) -> bool {
        self.mask();
        self.closed.load(Ordering::Relaxed)
    }
}
