// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Functions that take a descriptor. mmap is among the mapping calls of [`vkfd_host::interpose`].

use super::done;
use crate::device::OpenFile;
use crate::{real, table};
use libc::{c_int, c_uint, c_ulong, c_void};
use vkfd_host::hook::DESCRIPTOR;
use vkfd_host::hooks;

const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// What `fd` is, a device's `file`, has another descriptor, if the call did not fail.
fn duplicated(file: Option<&'static OpenFile>, fd: c_int, copy: c_int) -> c_int {
    if let Some(file) = file.filter(|_| copy >= 0 && copy != fd) {
        table::duplicated(file, copy);
    }
    copy
}

/// Before `to` becomes a duplicate of `fd`, what it was is closed.
fn replaced(fd: c_int, to: c_int) {
    // SAFETY: asks only whether there is such a descriptor: if not, the call fails and nothing is
    // closed.
    if fd != to && unsafe { real::fcntl()(fd, libc::F_GETFD) } >= 0 {
        table::forget(to);
    }
}

hooks! {
    HOOKS;

    /// ioctl(2).
    [DESCRIPTOR] fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe {
            match table::get(fd) {
                // A command is 32 bits; callers that keep it in an int have sign bits above.
                Some(file) => done(file.ioctl((request & 0xffff_ffff) as u32, argument)),
                None => real::ioctl()(fd, request, argument),
            }
        }
    }

    /// close(2).
    [DESCRIPTOR] fn close(fd: c_int) -> c_int {
        table::forget(fd);
        // SAFETY: forwarded to the caller.
        unsafe { real::close()(fd) }
    }

    /// close_range(2).
    [DESCRIPTOR] fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // Otherwise they are closed at exec.
        if flags & CLOSE_RANGE_CLOEXEC == 0 {
            table::forget_range(first, last);
            if first > last {
                vkfd_host::interpose::note_hook();
            }
        }
        // SAFETY: forwarded to the caller.
        unsafe { real::close_range()(first, last, flags) }
    }

    /// closefrom(3).
    [] fn closefrom(first: c_int) {
        let first = c_uint::try_from(first).unwrap_or(0);
        // SAFETY: forwarded to the caller.
        unsafe { close_range(first, c_uint::MAX, 0) };
    }

    /// dup(2).
    [DESCRIPTOR] fn dup(fd: c_int) -> c_int {
        let file = table::get(fd);
        // SAFETY: forwarded to the caller.
        duplicated(file, fd, unsafe { real::dup()(fd) })
    }

    /// dup2(2).
    [DESCRIPTOR] fn dup2(fd: c_int, to: c_int) -> c_int {
        let file = table::get(fd);
        if table::get(to).is_some() {
            replaced(fd, to);
        }
        // SAFETY: forwarded to the caller.
        duplicated(file, fd, unsafe { real::dup2()(fd, to) })
    }

    /// dup3(2).
    [DESCRIPTOR] fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        let file = table::get(fd);
        if table::get(to).is_some() {
            replaced(fd, to);
        }
        // SAFETY: forwarded to the caller.
        duplicated(file, fd, unsafe { real::dup3()(fd, to, flags) })
    }

    /// fcntl(2).
    [DESCRIPTOR] fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let file = table::get(fd);
        // SAFETY: forwarded to the caller.
        let result = unsafe { real::fcntl()(fd, command, argument) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(file, fd, result),
            _ => result,
        }
    }

    /// fcntl with large files, which all are on 64-bit machines.
    [DESCRIPTOR] fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        // SAFETY: forwarded to the caller.
        unsafe { fcntl(fd, command, argument) }
    }
}
