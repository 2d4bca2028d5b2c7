// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of a process elsewhere that changes: what its program unmaps, empties or protects, told
//! by notes before the program goes on.
//!
//! Mechanism: registrations are of this process's mapping of the file that has the other's memory.
//! The server repeats the program's change of its mapping on this one. So the driver's notifiers
//! find it like any client's change, and no GPU reaches memory that the program has unmapped. The
//! pages stay in the file. When the program uses the same part of the file for other memory, it is
//! mapped here again.
//!
//! `Mapping::unmapped` guards the spans that are not mapped, and is held over the change of the
//! mapping; a leaf, apart from the notifiers.

use std::os::fd::AsRawFd;
use std::sync::PoisonError;

use vkfd_remote::protocol::blob::Run;
use vkfd_remote::protocol::forward::sharing::{Happens, Note};
use vkfd_remote::protocol::PAGE;

use super::ram::{Mapping, Ram};
use super::window::size;

/// Most spans of a process that are not mapped here. An unmap beyond them is refused
/// (ENOMEM): the GPU has the pages as they were, as after an unmap that no hook sees.
const MAX_SPANS: usize = 4096;

/// Spans that do not touch, in order.
#[derive(Debug, Default)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    fn add(&mut self, start: u64, end: u64) {
        let touching = |span: &(u64, u64)| span.0 <= end && span.1 >= start;
        let (mut start, mut end) = (start, end);
        for span in self.0.iter().filter(|span| touching(span)) {
            (start, end) = (start.min(span.0), end.max(span.1));
        }
        self.0.retain(|span| span.1 < start || span.0 > end);
        let place = self.0.partition_point(|span| span.0 < start);
        self.0.insert(place, (start, end));
    }

    /// Takes `[start, end)` away. The parts of it that were there.
    fn take(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for (from, to) in self.0.drain(..) {
            let (first, last) = (from.max(start), to.min(end));
            if first >= last {
                left.push((from, to));
                continue;
            }
            found.push((first, last));
            left.extend([(from, first), (last, to)].into_iter().filter(|(from, to)| from < to));
        }
        self.0 = left;
        found
    }

    /// The parts of `[start, end)` that are not there.
    fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (from, to) in self.0.iter().filter(|(from, to)| *from < end && *to > start) {
            if *from > at {
                gaps.push((at, *from));
            }
            at = at.max(*to);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

impl Mapping {
    fn place(&self, offset: u64) -> *mut libc::c_void {
        self.at.as_ptr().wrapping_byte_add(size(offset))
    }

    fn punch(&self, offset: u64, bytes: u64) -> bool {
        let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else { return false };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, bytes) == 0 }
    }

    fn note(&self, note: &Note) -> Result<(), i32> {
        let whole = note.offset % PAGE == 0 && note.bytes % PAGE == 0 && note.bytes != 0;
        let end = note.offset.checked_add(note.bytes).filter(|end| whole && *end <= self.bytes).ok_or(libc::EINVAL)?;
        let mut unmapped = self.unmapped.lock().unwrap_or_else(PoisonError::into_inner);
        if note.happens == Happens::Unmap && unmapped.0.len() >= MAX_SPANS {
            return Err(libc::ENOMEM);
        }
        for (start, end) in unmapped.gaps(note.offset, end) {
            let (at, bytes) = (self.place(start), size(end - start));
            // SAFETY: within this object's mapping, of which there are no references; accesses of
            // GPUs survive that nothing is there.
            let done = unsafe {
                match note.happens {
                    Happens::Unmap => {
                        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                        libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) != libc::MAP_FAILED
                    }
                    // The second way is for memory that may not be written.
                    Happens::Discard => {
                        libc::madvise(at, bytes, libc::MADV_REMOVE) == 0 || self.punch(start, end - start)
                    }
                    Happens::Protect(protection) => {
                        let protection = i32::try_from(protection).unwrap_or(0) & (libc::PROT_READ | libc::PROT_WRITE);
                        libc::mprotect(at, bytes, protection) == 0
                    }
                }
            };
            if !done {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
            }
            if note.happens == Happens::Unmap {
                unmapped.add(start, end);
            }
        }
        Ok(())
    }

    fn give_back(&self, offset: u64, bytes: u64) {
        let mut unmapped = self.unmapped.lock().unwrap_or_else(PoisonError::into_inner);
        for (start, end) in unmapped.take(offset, offset.saturating_add(bytes)) {
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
            let place = i64::try_from(start).unwrap_or(i64::MAX);
            let bytes = size(end - start);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: as in `note`: nothing is mapped there.
            let mapped =
                unsafe { libc::mmap(self.place(start), bytes, protection, flags, self.file.as_raw_fd(), place) };
            if mapped == libc::MAP_FAILED {
                unmapped.add(start, end);
            }
        }
    }
}

impl Ram {
    /// Changes this process's mapping as a note reports of the other process's mapping.
    ///
    /// # Errors
    /// EINVAL for memory that is not its own, or the system's error.
    pub fn note(&self, note: &Note) -> Result<(), i32> {
        let region = self.regions.first().ok_or(libc::EINVAL)?;
        region.mapping.note(note)
    }

    /// Unmapped parts of these runs are other memory from now on.
    pub fn give_back(&self, runs: &[Run]) {
        for run in runs {
            let inside = |region: &&super::ram::Region| run.address.wrapping_sub(region.address) < region.bytes;
            if let Some(region) = self.regions.iter().find(inside) {
                let start = region.offset + (run.address - region.address);
                region.mapping.give_back(start, run.bytes.min(region.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_joined_and_cut() {
        let mut spans = Spans::default();
        spans.add(10, 20);
        spans.add(30, 40);
        assert_eq!(spans.gaps(0, 50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(spans.gaps(12, 18), []);
        spans.add(20, 30);
        assert_eq!(spans.0, [(10, 40)]);
        assert_eq!(spans.take(15, 20), [(15, 20)]);
        assert_eq!(spans.take(0, 12), [(10, 12)]);
        assert_eq!(spans.0, [(12, 15), (20, 40)]);
        assert_eq!(spans.gaps(0, 50), [(0, 12), (15, 20), (40, 50)]);
        assert_eq!(spans.take(41, 50), []);
    }
}
