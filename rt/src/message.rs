// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lines on stderr from code that lives in other people's programs.
//!
//! A line is one system call, and takes no lock of stdio. Another thread may hold that lock while
//! it waits for this one. A forked child's copy of it may be locked for ever. The crates that live
//! in programs have no other way: clippy refuses `eprintln!` there.

use crate::section;
use std::fmt;

/// Writes a line to stderr; a program without stderr has no messages.
pub fn write(line: fmt::Arguments<'_>) {
    section::forbid("a message");
    let line = format!("{line}\n");
    // SAFETY: the kernel reads what the string has.
    unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
}
