// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Aged memory: free pages that are no neighbours, as on a machine that has run for long.
//!
//! Mechanism: pages of pipes are of the kind that buffers of graphics drivers are (not movable).
//! Many pipes are filled in turn, a page each time, so that neighbours belong to different pipes;
//! then every fourth is emptied. Pages of programs are of another kind (movable), for which every
//! second page of a mapping is given back. What is free afterwards is single pages, which the
//! kernel gives out before it breaks larger ones.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use anyhow::{ensure, Context, Result};

use crate::memory::Buffer;

const PAGE: usize = 4096;
/// Pages that a pipe is made to hold.
const PIPE_PAGES: usize = 256;
/// Every which pipe is emptied.
const EVERY: usize = 4;

/// The pages that are kept.
pub struct Aged {
    _pipes: Vec<(File, File)>,
    _program: Buffer,
}

impl Aged {
    /// Makes at least `bytes` of free memory of each kind that is scattered.
    pub fn new(bytes: u64) -> Result<Self> {
        let pages = usize::try_from(bytes)?.div_ceil(PAGE);
        // Some of the memory that becomes free is used up otherwise.
        let count = ((pages + pages / 8) * EVERY).div_ceil(PIPE_PAGES).next_multiple_of(EVERY);
        let limit = libc::rlimit { rlim_cur: 2 * count as u64 + 256, rlim_max: 2 * count as u64 + 256 };
        // SAFETY: the structure is whole.
        let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        ensure!(raised == 0, "raise the limit of open files: {}", std::io::Error::last_os_error());
        let mut pipes = Vec::with_capacity(count);
        for _ in 0..count {
            pipes.push(pipe()?);
        }
        let page = [0x5a_u8; PAGE];
        for _ in 0..PIPE_PAGES {
            for (_, write) in &mut pipes {
                write.write_all(&page).context("fill a pipe")?;
            }
        }
        let mut kept = Vec::new();
        let mut page = [0_u8; PAGE];
        for (number, (mut read, write)) in pipes.into_iter().enumerate() {
            if number % EVERY != 0 {
                kept.push((read, write));
                continue;
            }
            for _ in 0..PIPE_PAGES {
                read.read_exact(&mut page).context("empty a pipe")?;
            }
        }
        Ok(Self { _pipes: kept, _program: program(pages)? })
    }
}

/// Every second page of a program's memory.
fn program(pages: usize) -> Result<Buffer> {
    let pages = 2 * (pages + pages / 8);
    let buffer = Buffer::new((pages * PAGE) as u64)?;
    buffer.fill(7);
    for page in (0..pages).step_by(2) {
        // SAFETY: a page of the buffer, of which no reference exists.
        let freed = unsafe { libc::madvise(buffer.at().as_ptr().byte_add(page * PAGE), PAGE, libc::MADV_DONTNEED) };
        ensure!(freed == 0, "give back a page: {}", std::io::Error::last_os_error());
    }
    Ok(buffer)
}

fn pipe() -> Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    ensure!(made == 0, "a pipe: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel gave two descriptors that nobody else has.
    let (read, write) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    let bytes = i32::try_from(PIPE_PAGES * PAGE)?;
    // SAFETY: no pointers.
    let sized = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
    ensure!(sized >= bytes, "a pipe of {bytes} bytes: {}", std::io::Error::last_os_error());
    Ok((read, write))
}
