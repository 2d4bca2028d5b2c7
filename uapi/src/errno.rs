// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Linux's error numbers that a KFD returns: one table.
//!
//! Mechanism: [`errnos!`](crate::errnos) gives its rows to another macro, which makes what its
//! crate needs of them: the driver's constants, the client's with a text, a program's names. This
//! module has the plain numbers.

/// Gives the table to a macro: name, name without the E, number, and text.
#[macro_export]
macro_rules! errnos {
    ($callback:ident) => {
        $callback! {
            EPERM PERM = 1, "operation not permitted";
            ENOENT NOENT = 2, "no such file or object";
            ESRCH SRCH = 3, "no such process";
            EINTR INTR = 4, "interrupted by a signal";
            EIO IO = 5, "input or output error";
            EBADF BADF = 9, "bad file descriptor";
            EAGAIN AGAIN = 11, "try again";
            ENOMEM NOMEM = 12, "out of memory";
            EACCES ACCES = 13, "permission denied";
            EFAULT FAULT = 14, "bad address";
            EBUSY BUSY = 16, "device or resource busy";
            EEXIST EXIST = 17, "exists already";
            ENODEV NODEV = 19, "no such device";
            EINVAL INVAL = 22, "invalid argument";
            EMFILE MFILE = 24, "too many open files";
            ENOTTY NOTTY = 25, "unknown command";
            ENOSPC NOSPC = 28, "no space left";
            ETIME TIME = 62, "timer expired";
            EOVERFLOW OVERFLOW = 75, "value too large";
            EOPNOTSUPP OPNOTSUPP = 95, "not supported";
            EADDRINUSE ADDRINUSE = 98, "address range already in use";
            ENOTSUPP NOTSUPP = 524, "not supported by this driver";
        }
    };
}

macro_rules! numbers {
    ($($name:ident $short:ident = $value:literal, $text:literal;)+) => {
        $(#[doc = concat!($text, ".")] pub const $name: i32 = $value;)+
    };
}

errnos!(numbers);
