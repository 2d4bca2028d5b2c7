// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Functions that take a path, those of the stat family excepted.

use super::done;
use crate::fdinfo::Descriptor;
use crate::redirect::{self, Path};
use crate::{device, real, table};
use libc::{c_char, c_int, c_void, size_t, ssize_t, AT_FDCWD};
use std::ffi::CStr;
use vkfd_gpu::raw;
use vkfd_host::hook::{AT, CHECKED_PATH, FROM_PATH, LIST, PATH, SIZED_FROM_AT};
use vkfd_host::hooks;

macro_rules! same {
    ($($(#[$doc:meta])* [$probe:expr] $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $other:path $(, $more:expr)*;)*) => {
        hooks! {
            SAME;
            $(
                $(#[$doc])*
                [$probe] fn $name($($argument: $kind),*) -> $result {
                    // SAFETY: forwarded to the caller.
                    unsafe { $other($($argument,)* $($more,)*) }
                }
            )*
        }
    };
}

same! {
    /// open with large files, which all are on 64-bit machines.
    [PATH] open64(path: *const c_char, flags: c_int, mode: real::Mode) -> c_int = open;
    /// open without a mode, as fortified programs call it.
    [PATH] __open_2(path: *const c_char, flags: c_int) -> c_int = open, 0;
    /// See `__open_2`.
    [PATH] __open64_2(path: *const c_char, flags: c_int) -> c_int = open, 0;
    /// See `open64`.
    [AT] openat64(directory: c_int, path: *const c_char, flags: c_int, mode: real::Mode) -> c_int = openat;
    /// See `__open_2`.
    [AT] __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int = openat, 0;
    /// See `__open_2`.
    [AT] __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int = openat, 0;
    /// See `open64`.
    [FROM_PATH] fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE = fopen;
    /// See `open64`.
    [LIST] scandir64(path: *const c_char, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int = scandir;
    /// eaccess(3).
    [PATH] eaccess(path: *const c_char, mode: c_int) -> c_int = euidaccess;
    /// readlink, as fortified programs call it. The size was checked when it was compiled, or is by
    /// the kernel.
    [FROM_PATH] __readlink_chk(path: *const c_char, to: *mut c_char, room: size_t, _size: size_t) -> ssize_t = readlink_checked;
    /// See `__readlink_chk`.
    [CHECKED_PATH] __realpath_chk(path: *const c_char, to: *mut c_char, _size: size_t) -> *mut c_char = realpath_checked;
}

unsafe fn readlink_checked(path: *const c_char, to: *mut c_char, room: size_t, size: size_t) -> ssize_t {
    // SAFETY: forwarded to the caller.
    unsafe { readlink(path, to, room.min(size)) }
}

unsafe fn realpath_checked(path: *const c_char, to: *mut c_char, _size: size_t) -> *mut c_char {
    // SAFETY: forwarded to the caller.
    unsafe { realpath(path, to) }
}

/// What readlink says: as much of `shown` as fits.
///
/// # Safety
/// What is written is within `room`.
unsafe fn copy_out(shown: &str, to: *mut c_char, room: size_t) -> ssize_t {
    let fits = room.min(shown.len());
    // SAFETY: promised by the caller; the copy may fault.
    let copied = unsafe { raw::copy(to.cast(), shown.as_ptr(), fits) }.map_err(|_| libc::EFAULT);
    ssize_t::try_from(done(copied.map(|()| c_int::try_from(fits).unwrap_or(-1)))).unwrap_or(-1)
}

hooks! {
    HOOKS;

    /// open(2).
    [PATH] fn open(path: *const c_char, flags: c_int, mode: real::Mode) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe {
            let path = Path::new(path);
            if let Some(fd) = path.open_made(flags) {
                return fd;
            }
            match path.device() {
                Some(device) => done(device::open(device, flags)),
                None => real::open()(path.as_ptr(), flags, mode),
            }
        }
    }

    /// openat(2).
    [AT] fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: real::Mode) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe {
            let path = Path::new_at(directory, path);
            if let Some(fd) = path.open_made(flags) {
                return fd;
            }
            match path.device() {
                Some(device) => done(device::open(device, flags)),
                None => real::openat()(directory, path.as_ptr(), flags, mode),
            }
        }
    }

    /// fopen(3). A device opened as a stream is not offered: what is there is an empty file.
    [FROM_PATH] fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        // SAFETY: forwarded to the caller.
        unsafe {
            let path = Path::new(path);
            // A mode that also writes is of a file that nobody may write.
            match path.open_made(libc::O_RDONLY) {
                Some(fd) => libc::fdopen(fd, c"r".as_ptr()),
                None => real::fopen()(path.as_ptr(), mode),
            }
        }
    }

    /// opendir(3).
    [PATH] fn opendir(path: *const c_char) -> *mut libc::DIR {
        // SAFETY: forwarded to the caller.
        unsafe { real::opendir()(Path::new(path).as_ptr()) }
    }

    /// scandir(3).
    [LIST] fn scandir(
        path: *const c_char,
        list: *mut c_void,
        filter: *mut c_void,
        compare: *mut c_void,
    ) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe { real::scandir()(Path::new(path).as_ptr(), list, filter, compare) }
    }

    /// access(2).
    [PATH] fn access(path: *const c_char, mode: c_int) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe { real::access()(Path::new(path).as_ptr(), mode) }
    }

    /// faccessat(2).
    [AT] fn faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe { real::faccessat()(directory, Path::new_at(directory, path).as_ptr(), mode, flags) }
    }

    /// euidaccess(3).
    [PATH] fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe { real::euidaccess()(Path::new(path).as_ptr(), mode) }
    }

    /// readlink(2).
    [FROM_PATH] fn readlink(path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t {
        // SAFETY: forwarded to the caller.
        unsafe { readlinkat(AT_FDCWD, path, to, room) }
    }

    /// readlinkat(2).
    [SIZED_FROM_AT] fn readlinkat(directory: c_int, path: *const c_char, to: *mut c_char, room: size_t) -> ssize_t {
        // SAFETY: forwarded to the caller; what is written is within `room`.
        unsafe {
            if let Some(file) = redirect::own_descriptor(path).and_then(table::get) {
                return copy_out(&file.device().path(), to, room);
            }
            let path = Path::new_at(directory, path);
            if let Some(device) = path.descriptor().and_then(Descriptor::link) {
                return copy_out(&device.path(), to, room);
            }
            real::readlinkat()(directory, path.as_ptr(), to, room)
        }
    }

    /// realpath(3): the path that the program knows, not the private one.
    [PATH] fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        // SAFETY: forwarded to the caller. libc returned a C string in `to` or in memory from
        // malloc, and its replacement is shorter.
        unsafe {
            let path = Path::new(path);
            let found = real::realpath()(path.as_ptr(), to);
            if found.is_null() || !path.is_redirected() {
                return found;
            }
            let whole = CStr::from_ptr(found).to_bytes_with_nul();
            if let Some(shown) = redirect::shown(whole) {
                std::ptr::copy(shown.as_ptr(), found.cast(), shown.len());
            }
            found
        }
    }

    /// canonicalize_file_name(3).
    [PATH] fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        // SAFETY: forwarded to the caller.
        unsafe { realpath(path, std::ptr::null_mut()) }
    }
}
