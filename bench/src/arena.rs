// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory that all subjects work on: one anonymous mapping with a contiguous part and, above
//! it, scattered ranges of the same total size.
//!
//! The ranges have gaps of one to three pages between them, and the list has them in shuffled order
//! (a recorded list: its own gaps and order). All pages of both parts are touched beforehand, so
//! that zeroing is not measured. The GPU reads and writes the memory at any time, so it is only
//! accessed by raw pointers.

use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use vkfd_client::{CpuVa, UserptrRange, PAGE};

/// Whether the memory may have huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB only.
    Small,
    /// Huge pages where the kernel gives them. Gaps then cost memory too.
    Huge,
}

/// The memory.
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    /// The contiguous part.
    pub whole: UserptrRange,
    /// The scattered ranges, in the order of the list.
    pub ranges: Vec<UserptrRange>,
    /// The numbers of the ranges in the order of their addresses.
    pub by_address: Vec<usize>,
}

/// A repeatable source of shuffles and gaps (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).checked_rem(n).unwrap_or(0)
    }

    /// A position in a list of `n`; 0 if it is empty.
    pub fn position(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap_or(0)
    }
}

/// Bytes between the two parts, and the alignment of the second.
const BETWEEN: u64 = 2 << 20;
/// Bytes of one part that are touched before it is the other's turn.
const STEP: u64 = 64 << 10;

impl Arena {
    /// `count` ranges of `bytes` each, whole pages.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn scattered(count: usize, bytes: u64, pages: Pages) -> io::Result<Self> {
        let mut random = Random(count as u64 ^ bytes << 20);
        let mut pieces = Vec::with_capacity(count);
        let mut at = 0;
        for _ in 0..count {
            pieces.push((at, bytes));
            at += bytes + (1 + random.below(3)) * PAGE;
        }
        for i in (1..count).rev() {
            pieces.swap(i, random.position(i + 1));
        }
        Self::new(&pieces, pages)
    }

    /// Ranges at these offsets and with these lengths.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn new(pieces: &[(u64, u64)], pages: Pages) -> io::Result<Self> {
        let total: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
        let span = pieces.iter().map(|(at, bytes)| at + bytes).max().unwrap_or(0);
        let first = total.next_multiple_of(BETWEEN) + BETWEEN;
        let bytes = usize::try_from(first + span).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let base = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let advice = if pages == Pages::Small { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
        // SAFETY: advice about a new mapping of our own; a kernel without huge pages refuses it,
        // which is as well.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
        let start = CpuVa::of(base.as_ptr()).0;
        let at = |(offset, bytes): &(u64, u64)| UserptrRange { start: start + first + offset, size: *bytes };
        let ranges: Vec<_> = pieces.iter().map(at).collect();
        let mut by_address: Vec<usize> = (0..ranges.len()).collect();
        by_address.sort_by_key(|&i| ranges[i].start);
        let arena = Self { base, bytes, whole: UserptrRange { start, size: total }, ranges, by_address };
        arena.touch_alternately();
        Ok(arena)
    }

    /// A contiguous part at a multiple of 2 MiB and no ranges; `bytes` is whole pages. Small pages,
    /// all touched.
    ///
    /// # Errors
    ///
    /// What mmap failed with.
    pub fn block(bytes: u64) -> io::Result<Self> {
        let mapped = usize::try_from(bytes + BETWEEN).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let base = map(mapped, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: advice about a new mapping of our own; a kernel without huge pages refuses it,
        // which is as well.
        unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_NOHUGEPAGE) };
        let start = CpuVa::of(base.as_ptr()).0.next_multiple_of(BETWEEN);
        let whole = UserptrRange { start, size: bytes };
        let block = Self { base, bytes: mapped, whole, ranges: Vec::new(), by_address: Vec::new() };
        block.touch(whole);
        Ok(block)
    }

    /// Touches both parts piece by piece in turn, so that neither has the better physical pages:
    /// the kernel hands out fragments first.
    fn touch_alternately(&self) {
        let mut before = self.whole.start;
        for range in &self.ranges {
            for at in (0..range.size).step_by(usize::try_from(STEP).unwrap_or(1)) {
                let size = STEP.min(range.size - at);
                self.touch(UserptrRange { start: before + at, size });
                self.touch(UserptrRange { start: range.start + at, size });
            }
            before += range.size;
        }
    }

    /// Bytes of all ranges together, which is also the contiguous part's size.
    pub fn total(&self) -> u64 {
        self.whole.size
    }

    /// The piece of the contiguous part that has the place of range `number` in the list's order.
    pub fn piece(&self, number: usize) -> UserptrRange {
        let before: u64 = self.ranges[..number].iter().map(|range| range.size).sum();
        UserptrRange { start: self.whole.start + before, size: self.ranges[number].size }
    }

    /// A pointer to one of its ranges.
    pub fn pointer(&self, range: UserptrRange) -> *mut u8 {
        self.base.as_ptr().with_addr(usize::try_from(range.start).unwrap_or(0))
    }

    /// Writes a word to each page.
    pub fn touch(&self, range: UserptrRange) {
        let at = self.pointer(range);
        for page in (0..range.size).step_by(usize::try_from(PAGE).unwrap_or(4096)) {
            // SAFETY: inside of the mapping, which is readable and writable; no references to it
            // exist.
            unsafe { at.add(usize::try_from(page).unwrap_or(0)).cast::<u64>().write_volatile(page | 1) };
        }
    }

    /// Discards the pages of a span of the arena, as `madvise(MADV_DONTNEED)`. How long the call
    /// took.
    ///
    /// # Errors
    ///
    /// What madvise failed with.
    pub fn discard(&self, span: UserptrRange) -> io::Result<Duration> {
        let (at, bytes) = (self.pointer(span), usize::try_from(span.size).unwrap_or(0));
        let start = Instant::now();
        // SAFETY: the pages are the arena's own, and nothing refers to them.
        let result = unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) };
        let took = start.elapsed();
        if result == 0 {
            Ok(took)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's own; buffers over it are gone, or their driver is
        // told.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A new anonymous mapping.
pub fn map(bytes: usize, prot: i32) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED nothing that exists is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// The process's mappings: first address and end.
pub fn mappings() -> impl Iterator<Item = (u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let parse = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    text.lines().filter_map(parse).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_apart_shuffled_and_as_large_as_the_whole() {
        let arena = Arena::scattered(100, 2 * PAGE, Pages::Small).unwrap();
        assert_eq!((arena.total(), arena.ranges.len()), (200 * PAGE, 100));
        assert_ne!(arena.by_address, (0..100).collect::<Vec<_>>());
        let mut end = arena.whole.start + arena.whole.size;
        for &i in &arena.by_address {
            assert!(arena.ranges[i].start > end);
            end = arena.ranges[i].start + arena.ranges[i].size;
        }
        assert!(end <= arena.whole.start + arena.bytes as u64);
        assert_eq!(arena.piece(99).start + 2 * PAGE, arena.whole.start + arena.whole.size);
    }

    #[test]
    fn a_discard_takes_the_pages_and_leaves_the_others() {
        let arena = Arena::scattered(3, PAGE, Pages::Small).unwrap();
        // SAFETY: mapped memory that nobody else uses.
        let read = |range| unsafe { arena.pointer(range).cast::<u64>().read_volatile() };
        arena.discard(arena.ranges[1]).unwrap();
        assert_eq!([0, 1, 2].map(|i| read(arena.ranges[i])), [1, 0, 1]);
    }
}
