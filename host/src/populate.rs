// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faulting many spans in: `process_madvise(self, MADV_POPULATE_*)`, up to 1,024 pieces a system
//! call.
//!
//! Present pages are left out ([`present`]). MADV_POPULATE checks permissions and page presence as
//! an access would, and reading breaks no copy-on-write. Linux before 6.13 and some sandboxes
//! refuse this advice by `process_madvise` for the own process; there it is one `madvise` a piece.
//! Linux before 5.14 has no MADV_POPULATE. There only the mappings' permissions are checked,
//! because an access through a live frame faults the page in anyway.

mod present;

use self::present::Present;
use crate::{maps, sys};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::{Access, Faulted};

/// The most pieces a call takes (UIO_MAXIOV).
const BATCH: usize = 1024;
/// Most bytes of one piece: the kernel cuts what a call may cover at 2 GiB less a page.
const PIECE: u64 = 1 << 30;
/// How often a piece that fails for no visible reason is tried again: its mapping was changing.
const RETRIES: u32 = 3;

/// Faults pages in.
pub(crate) struct Populate {
    /// Of this process; `None` where there is no `pidfd_open`.
    pidfd: Option<OwnedFd>,
    /// Whether `process_madvise` has not been refused yet.
    batched: AtomicBool,
    /// Whether MADV_POPULATE exists.
    supported: bool,
    /// Tells what needs no populating.
    present: Option<Present>,
}

impl Populate {
    pub(crate) fn new() -> Self {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, sys::pid(), 0) };
        // SAFETY: a successful pidfd_open gave a descriptor that nobody else owns.
        let pidfd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // An empty range with known advice succeeds; unknown advice is EINVAL.
        let supported = sys::madvise(0, 0, libc::MADV_POPULATE_READ).is_ok();
        Self { batched: AtomicBool::new(pidfd.is_some() && supported), pidfd, supported, present: Present::new() }
    }

    /// Faults `spans` in. How many leading spans it did, and why not the next.
    pub(crate) fn populate(&self, spans: &[CpuSpan], access: Access) -> Faulted {
        let mut done = 0;
        let Some(mut batch) = Batch::with_room(spans.len().min(BATCH)) else {
            return Faulted { spans: 0, error: Some(Errno::ENOMEM) };
        };
        while done < spans.len() {
            batch.gather(&spans[done..]);
            if let Some(present) = &self.present {
                present.skip_present(&mut batch, access);
            }
            match self.batch(&batch, access) {
                Ok(()) => done += batch.spans,
                Err(failed) => return self.find_failed(spans, done + failed, access),
            }
        }
        Faulted { spans: done, error: None }
    }

    /// All pieces of a batch; on failure the first span of the piece that failed.
    fn batch(&self, batch: &Batch, access: Access) -> Result<(), usize> {
        let mut at = 0;
        while at < batch.pieces.len() {
            let many = batch.pieces.len() - at > 1 && self.batched.load(Ordering::Relaxed);
            let result = if many { self.process_madvise(&batch.pieces[at..], access) } else { Ok(0) };
            let mut bytes = result.as_ref().copied().unwrap_or(0);
            while at < batch.pieces.len() && bytes >= batch.pieces[at].iov_len as u64 {
                bytes -= batch.pieces[at].iov_len as u64;
                at += 1;
            }
            if at == batch.pieces.len() {
                break;
            }
            // The next piece by itself: because it failed, because the call was cut short, or
            // because there are no batches.
            let piece = batch.pieces[at];
            if self.one(piece.iov_base.expose_provenance() as u64, piece.iov_len as u64, access).is_err() {
                return Err(batch.first_span[at]);
            }
            if result.is_err_and(|e| !is_interrupted(&e)) {
                self.batched.store(false, Ordering::Relaxed);
            }
            at += 1;
        }
        Ok(())
    }

    fn process_madvise(&self, pieces: &[libc::iovec], access: Access) -> io::Result<u64> {
        let Some(pidfd) = &self.pidfd else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: the array is valid for the call, and populating changes no contents.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_raw_fd(),
                pieces.as_ptr(),
                pieces.len(),
                advice(access),
                0,
            )
        };
        u64::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// One piece.
    fn one(&self, at: u64, bytes: u64, access: Access) -> Result<(), Errno> {
        let Some(span) = CpuSpan::new(CpuVa(at), bytes) else {
            return Err(Errno::EFAULT);
        };
        if !self.supported {
            return maps::refusal(span, access).map_or(Ok(()), Err);
        }
        let mut tries = 0;
        loop {
            let Err(error) = sys::madvise(at, bytes, advice(access)) else {
                return Ok(());
            };
            if is_interrupted(&error) {
                continue;
            }
            if let Some(refusal) = maps::refusal(span, access) {
                return Err(refusal);
            }
            let errno = match error.raw_os_error() {
                Some(libc::ENOMEM) => Errno::ENOMEM,
                // Mapped with the permission, and still refused: device memory (EINVAL), past the
                // end of a file or poisoned (EFAULT, EHWPOISON).
                _ => Errno::EFAULT,
            };
            tries += 1;
            if tries > RETRIES {
                return Err(errno);
            }
        }
    }

    /// Which span from `from` on fails, one by one. When none does any more, the rest is populated.
    fn find_failed(&self, spans: &[CpuSpan], from: usize, access: Access) -> Faulted {
        for (i, span) in spans.iter().enumerate().skip(from) {
            if let Err(errno) = self.one(span.start().0, span.bytes(), access) {
                return Faulted { spans: i, error: Some(errno) };
            }
        }
        Faulted { spans: spans.len(), error: None }
    }
}

fn is_interrupted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

const fn advice(access: Access) -> i32 {
    match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    }
}

/// Pieces of one system call: spans that touch are one piece. The lists are on the heap, because
/// the caller's thread may have a stack of a few pages. All have the room of one batch from the
/// start, so that nothing grows later.
struct Batch {
    pieces: Vec<libc::iovec>,
    /// Position of each piece's first span.
    first_span: Vec<usize>,
    /// Spans in it.
    spans: usize,
    /// For [`Present::skip_present`]: the pieces in the order of their addresses, and which of them
    /// are there.
    sorted: Vec<(u64, u64, u16)>,
    there: Vec<bool>,
}

/// An empty list with room for `room`; `None` without memory.
fn list<T>(room: usize) -> Option<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(room).ok()?;
    Some(list)
}

impl Batch {
    /// An empty one for up to `room` pieces, of which there are no more than [`BATCH`].
    fn with_room(room: usize) -> Option<Self> {
        let (pieces, first_span) = (list(room)?, list(room)?);
        Some(Self { pieces, first_span, spans: 0, sorted: list(room)?, there: list(room)? })
    }

    /// Takes as many of `spans` as it has room for.
    fn gather(&mut self, spans: &[CpuSpan]) {
        let room = self.pieces.capacity().min(BATCH);
        self.pieces.clear();
        self.first_span.clear();
        self.spans = 0;
        for span in spans {
            let full = self.pieces.len() == room;
            match self.pieces.last_mut() {
                Some(piece)
                    if piece.iov_base.expose_provenance() + piece.iov_len == index(span.start().0)
                        && piece.iov_len as u64 + span.bytes() <= PIECE =>
                {
                    piece.iov_len += index(span.bytes());
                }
                _ if full => break,
                _ => {
                    self.pieces.push(libc::iovec {
                        iov_base: std::ptr::with_exposed_provenance_mut(index(span.start().0)),
                        iov_len: index(span.bytes()),
                    });
                    self.first_span.push(self.spans);
                }
            }
            self.spans += 1;
        }
    }
}

/// Whether the page tables can be asked what is there.
pub(crate) fn asks_page_tables() -> bool {
    Present::new().is_some()
}

#[cfg(test)]
mod tests;
