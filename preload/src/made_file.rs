// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files whose text is made when they are opened: a memory file, which the program gets instead of
//! the file that it named.

use libc::c_int;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use vkfd_gpu::raw::memory_file;

/// Whether a caller with these flags of open reads a file, and does nothing else.
pub(crate) fn is_read(flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_DIRECTORY | libc::O_PATH) == 0
}

/// A descriptor of a file with this text. None where it cannot be made.
pub(crate) fn open(text: &[u8], flags: c_int) -> Option<c_int> {
    write(text, flags & libc::O_CLOEXEC != 0).ok().map(IntoRawFd::into_raw_fd)
}

fn write(text: &[u8], close: bool) -> io::Result<File> {
    let make = if close { memory_file::sealed } else { memory_file::sealed_inherited };
    let file = make(c"sysfs", text.len() as u64)?;
    file.write_all_at(text, 0)?;
    Ok(file)
}
