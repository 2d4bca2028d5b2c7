// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the kernel knows of this process's memory: `/proc/self`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vkfd_client::PAGE;

/// How many mappings (VMAs) the process has.
pub(crate) fn count() -> io::Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// The `/proc/self/pagemap` entry of the page at `address`.
pub(crate) fn page(address: u64) -> io::Result<u64> {
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, address / PAGE * 8)?;
    Ok(u64::from_ne_bytes(entry))
}

/// The page is present in memory.
pub(crate) const PRESENT: u64 = 1 << 63;
/// The page is of a file, or shared anonymous memory.
pub(crate) const FILE_PAGE: u64 = 1 << 61;
