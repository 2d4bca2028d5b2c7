// SPDX-License-Identifier: GPL-2.0 OR MIT
//! libc's own functions, or those of the library that comes next: looked up by name behind this
//! one.
//!
//! All are looked up when the library's constructor runs, so that no hook does it later, in the
//! middle of malloc. A hook that is called before looks up its own. Functions that an older libc
//! does not have fail with ENOSYS.

use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t, off_t, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),* $(; $variadic:tt)?) -> $result:ty;)*) => {
        $(
            /// The function of this name.
            pub(crate) fn $name() -> unsafe extern "C" fn($($argument),* $(, $variadic)?) -> $result {
                static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let mut found = FOUND.load(Ordering::Relaxed);
                if found.is_null() {
                    found = next(concat!(stringify!($name), "\0"));
                    FOUND.store(found, Ordering::Relaxed);
                }
                // SAFETY: libc's function of this name has this type.
                unsafe { std::mem::transmute(found) }
            }
        )*

        extern "C" fn look_up_all() {
            $($name();)*
        }
    };
}

functions! {
    open: fn(*const c_char, c_int; ...) -> c_int;
    openat: fn(c_int, *const c_char, c_int; ...) -> c_int;
    fopen: fn(*const c_char, *const c_char) -> *mut libc::FILE;
    opendir: fn(*const c_char) -> *mut libc::DIR;
    scandir: fn(*const c_char, *mut c_void, *mut c_void, *mut c_void) -> c_int;
    stat: fn(*const c_char, *mut libc::stat) -> c_int;
    stat64: fn(*const c_char, *mut libc::stat) -> c_int;
    lstat: fn(*const c_char, *mut libc::stat) -> c_int;
    lstat64: fn(*const c_char, *mut libc::stat) -> c_int;
    fstat: fn(c_int, *mut libc::stat) -> c_int;
    fstat64: fn(c_int, *mut libc::stat) -> c_int;
    fstatat: fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    fstatat64: fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    __xstat: fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    __xstat64: fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    __lxstat: fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    __lxstat64: fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    __fxstat: fn(c_int, c_int, *mut libc::stat) -> c_int;
    __fxstat64: fn(c_int, c_int, *mut libc::stat) -> c_int;
    __fxstatat: fn(c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    __fxstatat64: fn(c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    execve: fn(*const c_char, Words, Words) -> c_int;
    execvpe: fn(*const c_char, Words, Words) -> c_int;
    execveat: fn(c_int, *const c_char, Words, Words, c_int) -> c_int;
    fexecve: fn(c_int, Words, Words) -> c_int;
    posix_spawn: fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Words, Words) -> c_int;
    posix_spawnp: fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Words, Words) -> c_int;
    statx: fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    readlink: fn(*const c_char, *mut c_char, size_t) -> ssize_t;
    readlinkat: fn(c_int, *const c_char, *mut c_char, size_t) -> ssize_t;
    access: fn(*const c_char, c_int) -> c_int;
    faccessat: fn(c_int, *const c_char, c_int, c_int) -> c_int;
    euidaccess: fn(*const c_char, c_int) -> c_int;
    realpath: fn(*const c_char, *mut c_char) -> *mut c_char;
    ioctl: fn(c_int, c_ulong; ...) -> c_int;
    fcntl: fn(c_int, c_int; ...) -> c_int;
    sigaction: fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    signal: fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
    close: fn(c_int) -> c_int;
    dup: fn(c_int) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    close_range: fn(c_uint, c_uint, c_int) -> c_int;
    read: fn(c_int, *mut c_void, size_t) -> ssize_t;
    __read_chk: fn(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    readv: fn(c_int, *const libc::iovec, c_int) -> ssize_t;
    pread: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    pread64: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    __pread_chk: fn(c_int, *mut c_void, size_t, off_t, size_t) -> ssize_t;
    __pread64_chk: fn(c_int, *mut c_void, size_t, off_t, size_t) -> ssize_t;
    preadv: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    preadv64: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    preadv2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    preadv64v2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    write: fn(c_int, *const c_void, size_t) -> ssize_t;
    writev: fn(c_int, *const libc::iovec, c_int) -> ssize_t;
    pwrite: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    pwrite64: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    pwritev: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    pwritev64: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    pwritev2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    pwritev64v2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    lseek: fn(c_int, off_t, c_int) -> off_t;
    lseek64: fn(c_int, off_t, c_int) -> off_t;
    ftruncate: fn(c_int, off_t) -> c_int;
    ftruncate64: fn(c_int, off_t) -> c_int;
    fallocate: fn(c_int, c_int, off_t, off_t) -> c_int;
    fallocate64: fn(c_int, c_int, off_t, off_t) -> c_int;
    posix_fallocate: fn(c_int, off_t, off_t) -> c_int;
    posix_fallocate64: fn(c_int, off_t, off_t) -> c_int;
    sendfile: fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    copy_file_range: fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
    splice: fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
    getxattr: fn(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    lgetxattr: fn(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    listxattr: fn(*const c_char, *mut c_char, size_t) -> ssize_t;
    llistxattr: fn(*const c_char, *mut c_char, size_t) -> ssize_t;
    setxattr: fn(*const c_char, *const c_char, *const c_void, size_t, c_int) -> c_int;
    lsetxattr: fn(*const c_char, *const c_char, *const c_void, size_t, c_int) -> c_int;
    removexattr: fn(*const c_char, *const c_char) -> c_int;
    lremovexattr: fn(*const c_char, *const c_char) -> c_int;
}

/// For functions of libc that an old one does not have.
unsafe extern "C" fn missing() -> c_long {
    // SAFETY: the location is this thread's.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

#[cold]
fn next(name: &str) -> *mut c_void {
    // SAFETY: `name` ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    if found.is_null() {
        missing as *mut c_void
    } else {
        found
    }
}

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: extern "C" fn() = look_up_all;

/// The type that mode arguments have where they are variadic.
pub(crate) type Mode = mode_t;

/// A list of strings that ends with a null pointer: arguments, an environment.
pub(crate) type Words = *const *const c_char;

/// Whether libc has the function that a lookup gave.
pub(crate) fn present(function: *const ()) -> bool {
    function != missing as *const ()
}

/// newfstatat(2): all of the stat family.
///
/// # Safety
/// As for fstatat.
pub(crate) unsafe fn sys_fstatat(directory: c_int, path: *const c_char, at: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: forwarded to the caller; the structure is the kernel's on 64-bit machines.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, at, flags) };
    c_int::try_from(result).unwrap_or(-1)
}
