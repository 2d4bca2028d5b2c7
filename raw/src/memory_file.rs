// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of memory (memfd) that other processes map or hold: VRAM, a guest's window, a BAR, the
//! stand-in for a buffer.
//!
//! **Seals.** A holder of such a file can cut it short, and an ordinary access to the lost part is
//! SIGBUS for every process that has it mapped. So all of them are made here, and their size is
//! sealed before another process sees them. `cargo xtask stray` finds a memfd that is made
//! elsewhere. A file that comes from another process is asked for its seals ([`stays_long`]), or
//! this crate's accesses alone reach it.
//!
//! **The file-size limit.** The kernel takes a memfd's size for a file's: beyond RLIMIT_FSIZE it
//! raises SIGXFSZ, which ends the process, although no memory is taken yet. Batch systems set such
//! limits. The memory of a file that has its size may be touched, so only the moment of sizing
//! matters. Limits belong to a process. A child shares this process's descriptors and memory, but
//! has limits of its own. It raises its soft limit to the hard limit (and beyond it, with the
//! privilege), sizes the file and ends. No other thread of the program sees another limit or signal
//! mask. The child sends no signal when it ends, and the program's calls of wait do not see it. If
//! the hard limit is too low, the error names it.
//!
//! Everything here is a system call: nothing is allocated, and no lock is taken.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};

use vkfd_sabotage::{process, Switch};

/// The file-size limit is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file of {bytes} bytes of memory is more than the file-size limit (RLIMIT_FSIZE, {hard} bytes) allows: ulimit -f unlimited")]
pub struct SizeLimit {
    /// What was wanted.
    bytes: u64,
    /// The hard limit.
    hard: u64,
}

/// The seals: nobody can cut such a file, lengthen it, or take them off.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A file of `bytes` zero bytes whose size stays, closed on exec. Memory is taken where it is
/// written to.
///
/// # Errors
/// The system's: no descriptor, no memory. Beyond the file-size limit [`SizeLimit`] is the source,
/// and the kind is FileTooLarge.
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
    resize(&file, bytes)?;
    if !process().has(Switch::Unsealed) {
        control(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS)?;
    }
    Ok(file)
}

/// Whether nobody can cut the file short.
pub fn stays_long(file: impl AsFd) -> bool {
    let seals = control(file.as_fd().as_raw_fd(), libc::F_GET_SEALS, 0);
    seals.is_ok_and(|seals| seals & libc::F_SEAL_SHRINK != 0)
}

/// The next bytes of the file, from `from` on and before `end`, that have memory: the first one,
/// and the one behind the last. All bytes before them are zeros that nobody has touched. The file's
/// position changes.
///
/// # Errors
/// The system's: a kind of file that does not know.
pub fn next_memory(file: impl AsFd, from: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |to: u64, what: libc::c_int| {
        let fd = file.as_fd().as_raw_fd();
        let to = libc::off_t::try_from(to).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a call with numbers on a borrowed descriptor, past a library in between.
        let at = unsafe { libc::syscall(libc::SYS_lseek, fd, to, what) };
        u64::try_from(at).map_err(|_| io::Error::last_os_error())
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(begin) if begin < end => Ok(Some((begin, seek(begin, libc::SEEK_HOLE)?.min(end)))),
        Ok(_) => Ok(None),
        // Nothing follows.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
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

fn resize(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let limit = limits();
    if bytes <= limit.rlim_cur || process().has(Switch::SizeInProcess) {
        // SAFETY: a call on an owned descriptor.
        return match unsafe { libc::syscall(libc::SYS_ftruncate, file.as_raw_fd(), length) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
    }
    match resize_elsewhere(file.as_raw_fd(), length) {
        Err(error) if error.raw_os_error() == Some(libc::EFBIG) => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, SizeLimit { bytes, hard: limit.rlim_max }))
        }
        result => result,
    }
}

/// This process's. Unlimited is the largest number.
fn limits() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: fills in the local structure.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit
}

/// What the child does, and what came of it.
struct Job {
    fd: RawFd,
    length: libc::off_t,
    errno: i32,
}

const STACK: usize = 64 << 10;

/// In the child, on a stack of its own; its parent's thread waits. Only system calls.
extern "C" fn child(job: *mut libc::c_void) -> i32 {
    // SAFETY: the parent's job, which nobody else looks at before this process has ended.
    let job = unsafe { &mut *job.cast::<Job>() };
    let hard = limits().rlim_max;
    for most in [libc::RLIM_INFINITY, hard] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: reads the local structure. Only this child's limits change.
        if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0 {
            break;
        }
    }
    // SIGXFSZ is blocked, as all are.
    // SAFETY: the descriptor is the parent's, which keeps it open.
    let done = unsafe { libc::syscall(libc::SYS_ftruncate, job.fd, job.length) };
    job.errno = if done == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) };
    0
}

/// As ftruncate, without this process's limit.
fn resize_elsewhere(fd: RawFd, length: libc::off_t) -> io::Result<()> {
    let (prot, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let stack = unsafe { libc::syscall(libc::SYS_mmap, 0, STACK, prot, kind, -1, 0) };
    let stack = usize::try_from(stack).map_err(|_| io::Error::last_os_error())?;
    let top = std::ptr::with_exposed_provenance_mut::<libc::c_void>(stack + STACK);
    let mut job = Job { fd, length, errno: libc::EIO };
    // A signal to the process group must not run the program's handler in the child.
    let signals = Signals::block_all();
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK;
    // SAFETY: the child runs `child` on that stack and uses the job; this thread goes on when it
    // has ended. It has no other thread's lock, as it calls nothing but the kernel.
    let pid = unsafe { libc::clone(child, top, flags, (&raw mut job).cast()) };
    let mut result = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    if result.is_ok() {
        // SAFETY: waits for the child just made, which no other wait takes: it has no exit signal.
        while unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) } < 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        if job.errno != 0 {
            result = Err(io::Error::from_raw_os_error(job.errno));
        }
    }
    drop(signals);
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { libc::syscall(libc::SYS_munmap, stack, STACK) };
    result
}

/// This thread's signal mask, put back when it is dropped.
struct Signals(libc::sigset_t);

impl Signals {
    fn block_all() -> Self {
        let mut all = MaybeUninit::uninit();
        // SAFETY: the set is filled in before it is used.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            Self::block(&all.assume_init())
        }
    }

    fn block(set: &libc::sigset_t) -> Self {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: both sets are valid: zeros are an empty one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, set, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Runs `write`, which writes to one of the user's ordinary files and may meet the limit. The limit
/// is an error then, and no signal.
pub fn without_size_signal<R>(write: impl FnOnce() -> R) -> R {
    let (mut size, mut pending) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: the set is filled in before it is used; the other is valid as zeros.
    let (size, had) = unsafe {
        libc::sigemptyset(size.as_mut_ptr());
        libc::sigaddset(size.as_mut_ptr(), libc::SIGXFSZ);
        libc::sigpending(pending.as_mut_ptr());
        (size.assume_init(), libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1)
    };
    let blocked = Signals::block(&size);
    let result = write();
    if !had {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: valid sets and times. Takes the signal if there is one: it is this write's.
        unsafe { libc::sigtimedwait(&raw const size, std::ptr::null_mut(), &raw const now) };
    }
    drop(blocked);
    result
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

    /// The control, in a child, because the switch is the process's.
    #[test]
    fn a_file_without_seals_is_noticed() {
        // SAFETY: the child makes a file and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            process().turn(Switch::Unsealed, true);
            let file = sealed(c"open", 8192);
            let noticed = file.is_ok_and(|file| !stays_long(&file) && file.set_len(0).is_ok());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!noticed)) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
}
