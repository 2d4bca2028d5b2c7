// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of memory (memfd) that other processes map or hold: VRAM, a guest's window, a BAR, what
//! stands for a buffer.
//!
//! A holder of such a file can cut it short, and an ordinary access to the lost part is SIGBUS for
//! everybody that has it mapped. So all of them are made here, and their size is sealed before
//! anybody sees them. `cargo xtask stray` finds a memfd that is made elsewhere.
//!
//! A file that comes from another process is asked for its seals ([`stays_long`]), or accessed by
//! this crate's accesses alone.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};

/// The seals: nobody can cut such a file, lengthen it, or take them off.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A file of `bytes` zero bytes whose size stays, closed on exec. Memory is taken where it is
/// written to.
///
/// # Errors
/// The system's: no descriptor, no memory, a size beyond the limit of files' sizes.
pub fn sealed(name: &CStr, bytes: u64) -> io::Result<File> {
    make(name, bytes, libc::MFD_CLOEXEC)
}

/// As [`sealed`]; programs that this one executes keep it.
///
/// # Errors
/// As there.
pub fn sealed_inherited(name: &CStr, bytes: u64) -> io::Result<File> {
    make(name, bytes, 0)
}

fn make(name: &CStr, bytes: u64, flags: libc::c_uint) -> io::Result<File> {
    // SAFETY: a C string; the descriptor is checked before it is owned.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), flags | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.set_len(bytes)?;
    control(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS)?;
    Ok(file)
}

/// Whether nobody can cut the file short.
pub fn stays_long(file: impl AsFd) -> bool {
    let seals = control(file.as_fd().as_raw_fd(), libc::F_GET_SEALS, 0);
    seals.is_ok_and(|seals| seals & libc::F_SEAL_SHRINK != 0)
}

/// fcntl, past a library that stands in for it in this process.
fn control(fd: RawFd, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the commands of this module take and give numbers.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
    match libc::c_int::try_from(done) {
        Ok(done) if done >= 0 => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_changes_the_size_of_a_sealed_file() {
        for file in [sealed(c"sealed", 8192).unwrap(), sealed_inherited(c"sealed", 8192).unwrap()] {
            let again = file.try_clone().unwrap();
            for bytes in [0, 4096, 12288] {
                assert_eq!(again.set_len(bytes).unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes}");
            }
            assert_eq!(file.metadata().unwrap().len(), 8192);
            assert!(stays_long(&file));
            assert!(control(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE).is_err(), "no more seals");
        }
        let (open, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!stays_long(&open), "a socket has no seals");
    }
}
