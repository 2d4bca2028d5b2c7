// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The stat family. Devices are shown as the character devices that they are not.

use crate::redirect::{Device, Path};
use crate::{real, table};
use libc::{c_char, c_int, c_uint, AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};

const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// The device that an `*at` function is asked about: by path, or by descriptor.
unsafe fn device(directory: c_int, name: *const c_char, path: &Path, flags: c_int) -> Option<Device> {
    // SAFETY: a C string, promised by the caller; Linux also takes null for an empty one.
    let empty = flags & AT_EMPTY_PATH != 0 && (name.is_null() || unsafe { *name } == 0);
    if empty {
        table::get(directory).map(|file| file.device())
    } else {
        path.device()
    }
}

/// fstatat(2).
///
/// # Safety
/// As for fstatat.
#[no_mangle]
pub unsafe extern "C" fn fstatat(directory: c_int, name: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: forwarded to the caller; on success there is a structure at `to`.
    unsafe {
        let path = Path::new_at(directory, name);
        let result = real::fstatat(directory, path.as_ptr(), to, flags);
        if result == 0 {
            if let Some(device) = device(directory, name, &path, flags) {
                show(&mut *to, device);
            }
        }
        result
    }
}

fn show(status: &mut libc::stat, device: Device) {
    status.st_mode = MODE;
    status.st_rdev = device.number();
    status.st_size = 0;
    status.st_blocks = 0;
}

/// statx(2).
///
/// # Safety
/// As for statx.
#[no_mangle]
pub unsafe extern "C" fn statx(
    directory: c_int,
    name: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: forwarded to the caller; on success there is a structure at `to`.
    unsafe {
        let path = Path::new_at(directory, name);
        let result = real::statx()(directory, path.as_ptr(), flags, mask, to);
        if result == 0 {
            if let Some(device) = device(directory, name, &path, flags) {
                let status = &mut *to;
                // The type bits are in the lower 16.
                status.stx_mode = u16::try_from(MODE).unwrap_or(0);
                status.stx_rdev_major = libc::major(device.number());
                status.stx_rdev_minor = libc::minor(device.number());
                (status.stx_size, status.stx_blocks) = (0, 0);
            }
        }
        result
    }
}

/// fstat(2).
///
/// # Safety
/// As for fstat.
#[no_mangle]
pub unsafe extern "C" fn fstat(fd: c_int, to: *mut libc::stat) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe { fstatat(fd, c"".as_ptr(), to, AT_EMPTY_PATH) }
}

macro_rules! family {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*; $to:ident$(, $last:ident: $last_kind:ty)?) =
        $directory:expr, $path:expr, $flags:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for stat.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $kind,)* $to: *mut libc::stat $(, $last: $last_kind)?) -> c_int {
                // SAFETY: forwarded to the caller.
                unsafe { fstatat($directory, $path, $to, $flags) }
            }
        )*
    };
}

// The structure has one form on 64-bit machines, so a version says nothing.
family! {
    /// stat(2).
    stat(path: *const c_char; to) = AT_FDCWD, path, 0;
    /// See `stat`.
    stat64(path: *const c_char; to) = AT_FDCWD, path, 0;
    /// lstat(2).
    lstat(path: *const c_char; to) = AT_FDCWD, path, AT_SYMLINK_NOFOLLOW;
    /// See `lstat`.
    lstat64(path: *const c_char; to) = AT_FDCWD, path, AT_SYMLINK_NOFOLLOW;
    /// See `fstat`.
    fstat64(fd: c_int; to) = fd, c"".as_ptr(), AT_EMPTY_PATH;
    /// stat as older programs call it.
    __xstat(_version: c_int, path: *const c_char; to) = AT_FDCWD, path, 0;
    /// See `__xstat`.
    __xstat64(_version: c_int, path: *const c_char; to) = AT_FDCWD, path, 0;
    /// See `__xstat`.
    __lxstat(_version: c_int, path: *const c_char; to) = AT_FDCWD, path, AT_SYMLINK_NOFOLLOW;
    /// See `__xstat`.
    __lxstat64(_version: c_int, path: *const c_char; to) = AT_FDCWD, path, AT_SYMLINK_NOFOLLOW;
    /// See `__xstat`.
    __fxstat(_version: c_int, fd: c_int; to) = fd, c"".as_ptr(), AT_EMPTY_PATH;
    /// See `__xstat`.
    __fxstat64(_version: c_int, fd: c_int; to) = fd, c"".as_ptr(), AT_EMPTY_PATH;
    /// See `fstatat`.
    fstatat64(directory: c_int, path: *const c_char; to, flags: c_int) = directory, path, flags;
    /// See `__xstat`.
    __fxstatat(_version: c_int, directory: c_int, path: *const c_char; to, flags: c_int) = directory, path, flags;
    /// See `__xstat`.
    __fxstatat64(_version: c_int, directory: c_int, path: *const c_char; to, flags: c_int) = directory, path, flags;
}
