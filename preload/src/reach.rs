// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether the program's calls get to the hooks. Where they do not, because the program or an
//! earlier library has a function of the same name that makes the system call itself, the GPU would
//! see other memory than the CPU. There is no machine in such a process, and a message says why.
//!
//! Mechanism: when the library is loaded, each hook's name is looked up as the program's own calls
//! are. What is not found in this library is called with arguments that change nothing, before the
//! first device is opened: a hook notes that it was reached. So a wrapper that passes calls on, as
//! sanitizers' are, does no harm.
//!
//! Limit: what binds to libc alone (a library that was linked with -Bsymbolic, RTLD_DEEPBIND) is
//! not seen.

use crate::setting;
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use vkfd_host::interpose::reaches;

/// An argument of a call that changes nothing.
#[derive(Clone, Copy)]
enum Argument {
    Number(isize),
    /// A path of ours behind which nothing is.
    Path,
    /// Memory of [`ROOM`] bytes, which begins with the string `r`.
    Buffer,
}

use Argument::{Buffer, Number, Path};

const ROOM: usize = 4096;
const ZERO: Argument = Number(0);
const NONE: Argument = Number(-1);
const SIZE: Argument = Number(ROOM as isize);
/// Of the structure of stat.
const VERSION: Argument = Number(1);
const HERE: Argument = Number(libc::AT_FDCWD as isize);

type Arguments = [Argument; 5];

/// No memory, no file.
const MAPPING: Arguments = [ZERO, ZERO, ZERO, ZERO, NONE];
const DESCRIPTOR: Arguments = [NONE, ZERO, ZERO, ZERO, ZERO];
const PATH: Arguments = [Path, ZERO, ZERO, ZERO, ZERO];
const FROM_PATH: Arguments = [Path, Buffer, SIZE, SIZE, ZERO];
const ATTRIBUTE: Arguments = [Path, Buffer, Buffer, ZERO, ZERO];
const AT: Arguments = [HERE, Path, ZERO, ZERO, ZERO];
const FROM_AT: Arguments = [HERE, Path, Buffer, ZERO, ZERO];

const PROBE: &CStr = c"/dev/dri/vkfd-probe";

/// The hooks, and what each is called with.
const HOOKS: &[(&CStr, Arguments)] = &[
    (c"mmap", MAPPING),
    (c"mmap64", MAPPING),
    (c"munmap", MAPPING),
    (c"mremap", MAPPING),
    (c"madvise", MAPPING),
    (c"mprotect", MAPPING),
    (c"pkey_mprotect", MAPPING),
    (c"open", PATH),
    (c"open64", PATH),
    (c"__open_2", PATH),
    (c"__open64_2", PATH),
    (c"openat", AT),
    (c"openat64", AT),
    (c"__openat_2", AT),
    (c"__openat64_2", AT),
    (c"fopen", FROM_PATH),
    (c"fopen64", FROM_PATH),
    (c"opendir", PATH),
    (c"scandir", [Path, Buffer, ZERO, ZERO, ZERO]),
    (c"scandir64", [Path, Buffer, ZERO, ZERO, ZERO]),
    (c"access", PATH),
    (c"faccessat", AT),
    (c"euidaccess", PATH),
    (c"eaccess", PATH),
    (c"readlink", FROM_PATH),
    (c"__readlink_chk", FROM_PATH),
    (c"readlinkat", [HERE, Path, Buffer, SIZE, ZERO]),
    (c"realpath", PATH),
    (c"__realpath_chk", [Path, Buffer, SIZE, ZERO, ZERO]),
    (c"canonicalize_file_name", PATH),
    (c"stat", FROM_PATH),
    (c"stat64", FROM_PATH),
    (c"lstat", FROM_PATH),
    (c"lstat64", FROM_PATH),
    (c"fstat", DESCRIPTOR),
    (c"fstat64", DESCRIPTOR),
    (c"fstatat", FROM_AT),
    (c"fstatat64", FROM_AT),
    (c"statx", [HERE, Path, ZERO, ZERO, Buffer]),
    (c"getxattr", ATTRIBUTE),
    (c"lgetxattr", ATTRIBUTE),
    (c"listxattr", [Path, Buffer, SIZE, ZERO, ZERO]),
    (c"llistxattr", [Path, Buffer, SIZE, ZERO, ZERO]),
    (c"ioctl", DESCRIPTOR),
    (c"close", DESCRIPTOR),
    (c"close_range", DESCRIPTOR),
    (c"dup", DESCRIPTOR),
    (c"dup2", DESCRIPTOR),
    (c"dup3", DESCRIPTOR),
    (c"fcntl", DESCRIPTOR),
    (c"fcntl64", DESCRIPTOR),
    (c"read", DESCRIPTOR),
    (c"readv", DESCRIPTOR),
    (c"pread", DESCRIPTOR),
    (c"pread64", DESCRIPTOR),
    (c"write", DESCRIPTOR),
    (c"writev", DESCRIPTOR),
    (c"pwrite", DESCRIPTOR),
    (c"pwrite64", DESCRIPTOR),
    (c"lseek", DESCRIPTOR),
    (c"lseek64", DESCRIPTOR),
    (c"ftruncate", DESCRIPTOR),
    (c"ftruncate64", DESCRIPTOR),
    (c"sendfile", DESCRIPTOR),
    (c"copy_file_range", DESCRIPTOR),
    (c"splice", DESCRIPTOR),
    (c"__xstat", [VERSION, Path, Buffer, ZERO, ZERO]),
    (c"__xstat64", [VERSION, Path, Buffer, ZERO, ZERO]),
    (c"__lxstat", [VERSION, Path, Buffer, ZERO, ZERO]),
    (c"__lxstat64", [VERSION, Path, Buffer, ZERO, ZERO]),
    (c"__fxstat", [VERSION, NONE, Buffer, ZERO, ZERO]),
    (c"__fxstat64", [VERSION, NONE, Buffer, ZERO, ZERO]),
    (c"__fxstatat", [VERSION, HERE, Path, Buffer, ZERO]),
    (c"__fxstatat64", [VERSION, HERE, Path, Buffer, ZERO]),
    (c"setxattr", ATTRIBUTE),
    (c"lsetxattr", ATTRIBUTE),
    (c"removexattr", ATTRIBUTE),
    (c"lremovexattr", ATTRIBUTE),
    (c"__read_chk", DESCRIPTOR),
    (c"__pread_chk", DESCRIPTOR),
    (c"__pread64_chk", DESCRIPTOR),
    (c"preadv", DESCRIPTOR),
    (c"preadv64", DESCRIPTOR),
    (c"preadv2", DESCRIPTOR),
    (c"preadv64v2", DESCRIPTOR),
    (c"pwritev", DESCRIPTOR),
    (c"pwritev64", DESCRIPTOR),
    (c"pwritev2", DESCRIPTOR),
    (c"pwritev64v2", DESCRIPTOR),
    (c"fallocate", DESCRIPTOR),
    (c"fallocate64", DESCRIPTOR),
    (c"posix_fallocate", DESCRIPTOR),
    (c"posix_fallocate64", DESCRIPTOR),
    (c"sendfile64", DESCRIPTOR),
    (c"sigaction", DESCRIPTOR),
    (c"signal", DESCRIPTOR),
];

/// What is called by each name, where that is not in this library.
static OTHERS: [AtomicPtr<c_void>; HOOKS.len()] = [const { AtomicPtr::new(std::ptr::null_mut()) }; HOOKS.len()];

const UNKNOWN: u8 = 0;
const GOOD: u8 = 1;
const BAD: u8 = 2;
static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Who defines what is at `at`.
fn object(at: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: zeros are a valid structure, which the loader fills in.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about.
    (unsafe { libc::dladdr(at, &raw mut found) } != 0).then_some(found)
}

/// Looks all names up: when the library is loaded, because the loader may be busy later.
pub(crate) fn look_up() {
    if setting::get().is_none() {
        return;
    }
    let Some(own) = object((&raw const ANSWER).cast()) else { return };
    for ((name, _), other) in HOOKS.iter().zip(&OTHERS) {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if !found.is_null() && object(found).is_some_and(|object| object.dli_fbase != own.dli_fbase) {
            other.store(found, Ordering::Relaxed);
        }
    }
}

/// Whether there can be a machine in this process; says once why not.
pub(crate) fn check() -> Result<(), c_int> {
    if ANSWER.load(Ordering::Acquire) == UNKNOWN {
        // Two threads find out the same.
        let bad = HOOKS.iter().zip(&OTHERS).find(|((_, arguments), other)| {
            let other = other.load(Ordering::Relaxed);
            !other.is_null() && !reaches(|| call(other, arguments))
        });
        let answer = if bad.is_some() { BAD } else { GOOD };
        if let (UNKNOWN, Some(((name, _), other))) = (ANSWER.swap(answer, Ordering::AcqRel), bad) {
            say(name, other.load(Ordering::Relaxed));
        }
    }
    if ANSWER.load(Ordering::Acquire) == GOOD {
        Ok(())
    } else {
        Err(libc::ENODEV)
    }
}

fn call(function: *mut c_void, arguments: &Arguments) {
    static BUFFER: [AtomicU8; ROOM] = [const { AtomicU8::new(0) }; ROOM];
    BUFFER[0].store(b'r', Ordering::Relaxed);
    let [a, b, c, d, e] = arguments.map(|argument| match argument {
        Number(number) => usize::from_ne_bytes(number.to_ne_bytes()),
        Path => PROBE.as_ptr().expose_provenance(),
        Buffer => BUFFER.as_ptr().expose_provenance(),
    });
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: the function has libc's name, and takes up to six integers or pointers, in registers
    // on the machines that this library is for. These fail, or change nothing.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        std::mem::transmute::<*mut c_void, Function>(function)(a, b, c, d, e, 0);
        *errno = before;
    }
}

fn say(name: &CStr, function: *mut c_void) {
    let object = object(function).filter(|object| !object.dli_fname.is_null());
    // SAFETY: a C string that stays as long as the object is loaded.
    let object = object.map(|object| unsafe { CStr::from_ptr(object.dli_fname) }.to_string_lossy().into_owned());
    let (name, object) = (name.to_string_lossy(), object.unwrap_or_else(|| "another library".into()));
    eprintln!(
        "vkfd: {object} has a function {name} of its own, which does not call vkfd's: the GPU would see other memory \
         than the program. There is no GPU in this process. Run the program without {object}, or build it without \
         that function"
    );
}
