// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls that move bytes or positions: KFD's file has neither. What lies behind a descriptor here
//! is a file with all memory of the machine, which such calls must not reach.
//!
//! | call | answer |
//! | --- | --- |
//! | read, write and their kin, sendfile, copy_file_range, splice | EINVAL |
//! | read of a render node | there are no events: EAGAIN, or it waits, if the file blocks, for a signal (EINTR) |
//! | lseek | ESPIPE |
//! | ftruncate | EINVAL |
//! | fallocate | ENODEV |
//!
//! Limit: reading by libc itself (a stream made of the descriptor by fdopen) is not seen.

use crate::redirect::Device;
use crate::{real, table};
use libc::{c_int, c_uint, c_void, off_t, size_t, ssize_t};
use vkfd_host::hook::DESCRIPTOR;
use vkfd_host::hooks;

fn failed(errno: c_int) -> ssize_t {
    // SAFETY: the location is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn is_device(fd: c_int) -> bool {
    table::get(fd).is_some()
}

/// Reads from a device.
fn read_device(fd: c_int, device: Device) -> ssize_t {
    if device == Device::Kfd {
        return failed(libc::EINVAL);
    }
    // SAFETY: asks for the descriptor's flags; then waits for a signal.
    unsafe {
        let flags = real::fcntl()(fd, libc::F_GETFL);
        if flags < 0 || flags & libc::O_NONBLOCK != 0 {
            return failed(libc::EAGAIN);
        }
        libc::poll(std::ptr::null_mut(), 0, -1);
    }
    failed(libc::EINTR)
}

macro_rules! transfers {
    ($($(#[$doc:meta])* $name:ident($fd:ident: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty = $device:expr;)*) => {
        hooks! {
            TRANSFERS;
            $(
                $(#[$doc])*
                [DESCRIPTOR] fn $name($fd: c_int $(, $argument: $kind)*) -> $result {
                    match table::get($fd) {
                        Some(_file) => $device(_file.device(), $fd),
                        // SAFETY: forwarded to the caller.
                        None => unsafe { real::$name()($fd $(, $argument)*) },
                    }
                }
            )*
        }
    };
}

fn refused(_: Device, _: c_int) -> ssize_t {
    failed(libc::EINVAL)
}

fn read_of(device: Device, fd: c_int) -> ssize_t {
    read_device(fd, device)
}

fn no_position(_: Device, _: c_int) -> off_t {
    failed(libc::ESPIPE);
    -1
}

fn no_length(_: Device, _: c_int) -> c_int {
    failed(libc::EINVAL);
    -1
}

fn no_blocks(_: Device, _: c_int) -> c_int {
    failed(libc::ENODEV);
    -1
}

/// posix_fallocate returns what went wrong.
fn no_blocks_by_value(_: Device, _: c_int) -> c_int {
    libc::ENODEV
}

transfers! {
    /// read(2).
    read(fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t = read_of;
    /// read, as fortified programs call it.
    __read_chk(fd: c_int, to: *mut c_void, bytes: size_t, size: size_t) -> ssize_t = read_of;
    /// readv(2).
    readv(fd: c_int, list: *const libc::iovec, count: c_int) -> ssize_t = read_of;
    /// pread(2).
    pread(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t) -> ssize_t = read_of;
    /// See `pread`.
    pread64(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t) -> ssize_t = read_of;
    /// See `__read_chk`.
    __pread_chk(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t, size: size_t) -> ssize_t = read_of;
    /// See `__read_chk`.
    __pread64_chk(fd: c_int, to: *mut c_void, bytes: size_t, at: off_t, size: size_t) -> ssize_t = read_of;
    /// preadv(2).
    preadv(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t) -> ssize_t = read_of;
    /// See `preadv`.
    preadv64(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t) -> ssize_t = read_of;
    /// preadv2(2).
    preadv2(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = read_of;
    /// See `preadv2`.
    preadv64v2(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = read_of;
    /// write(2).
    write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t = refused;
    /// writev(2).
    writev(fd: c_int, list: *const libc::iovec, count: c_int) -> ssize_t = refused;
    /// pwrite(2).
    pwrite(fd: c_int, from: *const c_void, bytes: size_t, at: off_t) -> ssize_t = refused;
    /// See `pwrite`.
    pwrite64(fd: c_int, from: *const c_void, bytes: size_t, at: off_t) -> ssize_t = refused;
    /// pwritev(2).
    pwritev(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t) -> ssize_t = refused;
    /// See `pwritev`.
    pwritev64(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t) -> ssize_t = refused;
    /// pwritev2(2).
    pwritev2(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = refused;
    /// See `pwritev2`.
    pwritev64v2(fd: c_int, list: *const libc::iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t = refused;
    /// lseek(2).
    lseek(fd: c_int, to: off_t, from: c_int) -> off_t = no_position;
    /// See `lseek`.
    lseek64(fd: c_int, to: off_t, from: c_int) -> off_t = no_position;
    /// ftruncate(2).
    ftruncate(fd: c_int, bytes: off_t) -> c_int = no_length;
    /// See `ftruncate`.
    ftruncate64(fd: c_int, bytes: off_t) -> c_int = no_length;
    /// fallocate(2).
    fallocate(fd: c_int, mode: c_int, at: off_t, bytes: off_t) -> c_int = no_blocks;
    /// See `fallocate`.
    fallocate64(fd: c_int, mode: c_int, at: off_t, bytes: off_t) -> c_int = no_blocks;
    /// posix_fallocate(3).
    posix_fallocate(fd: c_int, at: off_t, bytes: off_t) -> c_int = no_blocks_by_value;
    /// See `posix_fallocate`.
    posix_fallocate64(fd: c_int, at: off_t, bytes: off_t) -> c_int = no_blocks_by_value;
}

hooks! {
    HOOKS;

    /// sendfile(2).
    [DESCRIPTOR] fn sendfile(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t {
        if is_device(to) || is_device(from) {
            return failed(libc::EINVAL);
        }
        // SAFETY: forwarded to the caller.
        unsafe { real::sendfile()(to, from, at, bytes) }
    }

    /// See `sendfile`.
    [DESCRIPTOR] fn sendfile64(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t {
        // SAFETY: forwarded to the caller.
        unsafe { sendfile(to, from, at, bytes) }
    }

    /// copy_file_range(2).
    [DESCRIPTOR] fn copy_file_range(
        from: c_int,
        at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t {
        if is_device(to) || is_device(from) {
            return failed(libc::EINVAL);
        }
        // SAFETY: forwarded to the caller.
        unsafe { real::copy_file_range()(from, at, to, to_at, bytes, flags) }
    }

    /// splice(2).
    [DESCRIPTOR] fn splice(
        from: c_int,
        at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        bytes: size_t,
        flags: c_uint,
    ) -> ssize_t {
        if is_device(to) || is_device(from) {
            return failed(libc::EINVAL);
        }
        // SAFETY: forwarded to the caller.
        unsafe { real::splice()(from, at, to, to_at, bytes, flags) }
    }
}
