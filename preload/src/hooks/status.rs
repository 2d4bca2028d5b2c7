// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The stat family. Devices are shown as the character devices that they are not.

use super::done;
use crate::redirect::{Device, Path};
use crate::{real, table};
use libc::{c_char, c_int, c_uint, AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use vkfd_gpu::raw;
use vkfd_host::hook::{DESCRIPTOR, FROM_AT, FROM_PATH, OLD_FSTAT, OLD_FSTATAT, OLD_STAT, STATX};
use vkfd_host::hooks;

const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// The device that an `*at` function is asked about: by path, or by descriptor.
fn device(directory: c_int, name: *const c_char, path: &Path, flags: c_int) -> Option<Device> {
    // Linux also takes null for an empty path. SAFETY: a byte that is read by a routine that may
    // fault; no Rust object is there.
    let empty = flags & AT_EMPTY_PATH != 0 && (name.is_null() || unsafe { raw::load_u8(name.cast()) } == Ok(0));
    if empty {
        table::get(directory).map(|file| file.device())
    } else {
        // The link itself is one.
        let linked = || path.descriptor().filter(|_| flags & AT_SYMLINK_NOFOLLOW == 0)?.link();
        path.device().or_else(linked)
    }
}

/// What fstatat says of a device. EFAULT where `to` cannot be written.
fn of_device(device: Device, directory: c_int, path: &Path, to: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: zeros are a valid structure; the call fills it in; the copy may fault.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if real::sys_fstatat(directory, path.as_ptr(), &raw mut status, flags) < 0 {
            return -1;
        }
        status.st_mode = MODE;
        status.st_rdev = device.number();
        (status.st_size, status.st_blocks) = (0, 0);
        let copied = raw::copy(to.cast(), (&raw const status).cast(), size_of::<libc::stat>());
        done(copied.map(|()| 0).map_err(|_| libc::EFAULT))
    }
}

/// The functions of the family. Each passes on to the function of its own name: a library that
/// comes next may have it too, and see other files than the kernel does (fakeroot). Where libc is
/// too old to have it, the system call does the same.
///
/// `by` are the arguments before the structure as the next function gets them.
macro_rules! family {
    ($($(#[$doc:meta])* [$probe:expr] $name:ident($($argument:ident: $kind:ty),*; $to:ident $(, $last:ident: $last_kind:ty)?) =
        [$directory:expr, $path:expr, $flags:expr] by |$shown:ident| ($($by:expr),*);)*) => {
        hooks! {
            FAMILY;
            $(
                $(#[$doc])*
                [$probe] fn $name($($argument: $kind,)* $to: *mut libc::stat $(, $last: $last_kind)?) -> c_int {
                    let (directory, name, flags) = ($directory, $path, $flags);
                    let path = Path::new_at(directory, name);
                    if let Some(device) = device(directory, name, &path, flags) {
                        return of_device(device, directory, &path, $to, flags);
                    }
                    let $shown = path.as_ptr();
                    // SAFETY: forwarded to the caller.
                    unsafe {
                        match real::present(real::$name() as *const ()) {
                            true => real::$name()($($by,)* $to $(, $last)?),
                            false => real::sys_fstatat(directory, $shown, $to, flags),
                        }
                    }
                }
            )*
        }
    };
}

const EMPTY: *const c_char = c"".as_ptr();

// The structure has one form on 64-bit machines.
family! {
    /// stat(2).
    [FROM_PATH] stat(path: *const c_char; to) = [AT_FDCWD, path, 0] by |shown| (shown);
    /// See `stat`.
    [FROM_PATH] stat64(path: *const c_char; to) = [AT_FDCWD, path, 0] by |shown| (shown);
    /// lstat(2).
    [FROM_PATH] lstat(path: *const c_char; to) = [AT_FDCWD, path, AT_SYMLINK_NOFOLLOW] by |shown| (shown);
    /// See `lstat`.
    [FROM_PATH] lstat64(path: *const c_char; to) = [AT_FDCWD, path, AT_SYMLINK_NOFOLLOW] by |shown| (shown);
    /// fstat(2).
    [DESCRIPTOR] fstat(fd: c_int; to) = [fd, EMPTY, AT_EMPTY_PATH] by |shown| (fd);
    /// See `fstat`.
    [DESCRIPTOR] fstat64(fd: c_int; to) = [fd, EMPTY, AT_EMPTY_PATH] by |shown| (fd);
    /// fstatat(2).
    [FROM_AT] fstatat(directory: c_int, path: *const c_char; to, flags: c_int) = [directory, path, flags] by |shown| (directory, shown);
    /// See `fstatat`.
    [FROM_AT] fstatat64(directory: c_int, path: *const c_char; to, flags: c_int) = [directory, path, flags] by |shown| (directory, shown);
    /// stat as older programs call it.
    [OLD_STAT] __xstat(version: c_int, path: *const c_char; to) = [AT_FDCWD, path, 0] by |shown| (version, shown);
    /// See `__xstat`.
    [OLD_STAT] __xstat64(version: c_int, path: *const c_char; to) = [AT_FDCWD, path, 0] by |shown| (version, shown);
    /// See `__xstat`.
    [OLD_STAT] __lxstat(version: c_int, path: *const c_char; to) = [AT_FDCWD, path, AT_SYMLINK_NOFOLLOW] by |shown| (version, shown);
    /// See `__xstat`.
    [OLD_STAT] __lxstat64(version: c_int, path: *const c_char; to) = [AT_FDCWD, path, AT_SYMLINK_NOFOLLOW] by |shown| (version, shown);
    /// See `__xstat`.
    [OLD_FSTAT] __fxstat(version: c_int, fd: c_int; to) = [fd, EMPTY, AT_EMPTY_PATH] by |shown| (version, fd);
    /// See `__xstat`.
    [OLD_FSTAT] __fxstat64(version: c_int, fd: c_int; to) = [fd, EMPTY, AT_EMPTY_PATH] by |shown| (version, fd);
    /// See `__xstat`.
    [OLD_FSTATAT] __fxstatat(version: c_int, directory: c_int, path: *const c_char; to, flags: c_int) = [directory, path, flags] by |shown| (version, directory, shown);
    /// See `__xstat`.
    [OLD_FSTATAT] __fxstatat64(version: c_int, directory: c_int, path: *const c_char; to, flags: c_int) = [directory, path, flags] by |shown| (version, directory, shown);
}

hooks! {
    HOOKS;

    /// statx(2).
    [STATX] fn statx(
        directory: c_int,
        name: *const c_char,
        flags: c_int,
        mask: c_uint,
        to: *mut libc::statx,
    ) -> c_int {
        let path = Path::new_at(directory, name);
        let Some(device) = device(directory, name, &path, flags) else {
            // SAFETY: forwarded to the caller.
            return unsafe { real::statx()(directory, path.as_ptr(), flags, mask, to) };
        };
        // SAFETY: zeros are a valid structure; the call fills it in; the copy may fault.
        unsafe {
            let mut status: libc::statx = std::mem::zeroed();
            if real::statx()(directory, path.as_ptr(), flags, mask, &raw mut status) < 0 {
                return -1;
            }
            // The type bits are in the lower 16.
            status.stx_mode = u16::try_from(MODE).unwrap_or(0);
            status.stx_rdev_major = libc::major(device.number());
            status.stx_rdev_minor = libc::minor(device.number());
            (status.stx_size, status.stx_blocks) = (0, 0);
            let copied = raw::copy(to.cast(), (&raw const status).cast(), size_of::<libc::statx>());
            done(copied.map(|()| 0).map_err(|_| libc::EFAULT))
        }
    }
}
