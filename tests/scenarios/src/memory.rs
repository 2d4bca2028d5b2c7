// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test memory: mapped pages with a pattern, which GPUs access at any time.
//!
//! No reference to the memory is ever made; the CPU copies by volatile words. Every page's pattern
//! differs from every other's of the same seed, and from the same page's of another seed.
//!
//! Lock: `owned` guards the list of addresses that are still this value's; what was unmapped
//! belongs to its next owner.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use vkfd_client::{CpuVa, UserptrRange, PAGE};

const HUGE: usize = 2 << 20;

/// What is behind the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory.
    Anonymous,
    /// Shared memory (a memfd).
    Shared,
    /// A file of a file system, mapped privately.
    FilePrivate,
    /// A file of a file system, mapped shared.
    FileShared,
}

/// How [`Memory::scatter`] lays ranges out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One after the other.
    Adjacent,
    /// One after the other, from the last to the first.
    Reversed,
    /// Without gaps, in an order that looks random and is always the same.
    Shuffled,
    /// In ascending order with a gap of a range's size after each.
    Gaps,
}

/// Mapped memory. Its remaining parts are unmapped on drop.
#[derive(Debug)]
pub struct Memory {
    start: *mut u8,
    bytes: usize,
    backing: Backing,
    file: Option<File>,
    /// Offsets that are mapped by this value.
    owned: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the memory belongs to this value and not to a thread; no reference to it is made.
unsafe impl Send for Memory {}
// SAFETY: as above; all accesses are volatile, and what they race with is the GPU as much as
// another thread.
unsafe impl Sync for Memory {}

fn usize_of(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}

/// A file of `bytes` zero bytes without a name.
fn nameless(backing: Backing, bytes: usize) -> io::Result<File> {
    let file = if backing == Backing::Shared {
        // SAFETY: a constant C string.
        let fd = unsafe { libc::memfd_create(c"vkfd-scenario".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        unsafe { File::from_raw_fd(fd) }
    } else {
        let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
        std::os::unix::fs::OpenOptionsExt::custom_flags(File::options().read(true).write(true), flags)
            .open(std::env::temp_dir())?
    };
    file.set_len(bytes as u64)?;
    Ok(file)
}

impl Memory {
    /// Maps `bytes` (whole pages) of zeroes, aligned to 2 MiB.
    ///
    /// # Errors
    ///
    /// What the system calls failed with.
    pub fn new(backing: Backing, bytes: u64) -> io::Result<Self> {
        let bytes = usize_of(bytes)?;
        let file = if backing == Backing::Anonymous { None } else { Some(nameless(backing, bytes)?) };
        // A scenario's addresses are nobody else's, before, during and after. The kernel places its
        // own mappings from the top of the address space down, so that a hole made here stays one.
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let step = bytes.next_multiple_of(HUGE) + HUGE;
        let start = ptr::with_exposed_provenance_mut(NEXT.fetch_add(step, Ordering::Relaxed));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        unsafe { map(start, bytes, libc::PROT_NONE, flags, -1) }?;
        let memory = Self { start, bytes, backing, file, owned: Mutex::new(Vec::new()) };
        memory.own(0..bytes);
        memory.place(0..bytes)?;
        Ok(memory)
    }

    /// Anonymous memory.
    ///
    /// # Errors
    ///
    /// As [`Memory::new`].
    pub fn anonymous(bytes: u64) -> io::Result<Self> {
        Self::new(Backing::Anonymous, bytes)
    }

    fn own(&self, range: Range<usize>) {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner).push(range);
    }

    fn disown(&self, gone: Range<usize>) {
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let left = |r: &Range<usize>| [r.start..r.end.min(gone.start), r.start.max(gone.end)..r.end];
        *owned = owned.iter().flat_map(left).filter(|r| r.start < r.end).collect();
    }

    fn owns(&self, range: &Range<usize>) -> bool {
        let owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = |r: &Range<usize>| r.end.min(range.end).saturating_sub(r.start.max(range.start));
        owned.iter().map(inside).sum::<usize>() == range.end - range.start
    }

    /// Maps what is behind the memory over addresses that are this value's.
    fn place(&self, range: Range<usize>) -> io::Result<()> {
        let flags = match self.backing {
            Backing::Anonymous => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            Backing::FilePrivate => libc::MAP_PRIVATE,
            Backing::Shared | Backing::FileShared => libc::MAP_SHARED,
        };
        let fd = self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (at, bytes) = (self.start.wrapping_add(range.start), range.end - range.start);
        let offset = if self.file.is_some() { range.start } else { 0 };
        // SAFETY: the addresses are this value's own, and no reference to them exists.
        unsafe { map_at(at, bytes, prot, flags | libc::MAP_FIXED, fd, offset) }.map(drop)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Its size in pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.bytes() / PAGE
    }

    /// The address at `offset`.
    #[must_use]
    pub fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes(), "{offset:#x} is outside of the memory");
        self.start.wrapping_add(self.offset(offset))
    }

    /// The file behind it, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    #[allow(clippy::cast_possible_truncation)] // offsets below `bytes`, which is a usize
    fn offset(&self, offset: u64) -> usize {
        offset as usize
    }

    /// `bytes` from `offset` on, as a range for registration.
    #[must_use]
    pub fn range(&self, offset: u64, bytes: u64) -> UserptrRange {
        UserptrRange { start: CpuVa::of(self.at(offset)).0, size: bytes }
    }

    /// All of it, as a range.
    #[must_use]
    pub fn whole(&self) -> UserptrRange {
        self.range(0, self.bytes())
    }

    /// `n` ranges of `size` bytes in it.
    ///
    /// # Panics
    ///
    /// When they do not fit.
    #[must_use]
    pub fn scatter(&self, n: u64, size: u64, layout: Layout) -> Vec<UserptrRange> {
        let mut slots: Vec<u64> = match layout {
            Layout::Gaps => (0..n).map(|i| 2 * i).collect(),
            Layout::Reversed => (0..n).rev().collect(),
            Layout::Adjacent | Layout::Shuffled => (0..n).collect(),
        };
        let span = if layout == Layout::Gaps { 2 * n } else { n };
        assert!(span * size <= self.bytes(), "{n} ranges of {size:#x} bytes do not fit");
        if layout == Layout::Shuffled {
            for i in (1..slots.len()).rev() {
                let other = mix(i as u64) % (i as u64 + 1);
                slots.swap(i, self.offset(other));
            }
        }
        slots.into_iter().map(|slot| self.range(slot * size, size)).collect()
    }

    /// Writes the pattern of `seed` to all pages.
    pub fn fill(&self, seed: u64) {
        self.fill_pages(0..self.pages(), seed);
    }

    /// Writes the pattern of `seed` to some pages.
    pub fn fill_pages(&self, pages: Range<u64>, seed: u64) {
        for page in pages {
            let at = self.at(page * PAGE).cast::<u64>();
            for (i, word) in (0..).zip(page_words(page, seed)) {
                // SAFETY: the page is mapped and this value's; a volatile write makes no reference.
                unsafe { at.add(i).write_volatile(word) };
            }
        }
    }

    /// The first of `pages` that does not have the pattern of `seed`, as the CPU sees it.
    #[must_use]
    pub fn find_wrong(&self, pages: Range<u64>, seed: u64) -> Option<u64> {
        pages.into_iter().find(|page| {
            let at = self.at(page * PAGE).cast::<u64>();
            // SAFETY: the page is mapped and this value's; a volatile read makes no reference.
            (0..).zip(page_words(*page, seed)).any(|(i, word)| unsafe { at.add(i).read_volatile() } != word)
        })
    }

    /// Bytes as the CPU sees them.
    #[must_use]
    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        gather(&[self.range(offset, bytes)])
    }

    /// Writes bytes.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.bytes());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping; a volatile write makes no reference.
            unsafe { self.at(offset).add(i).write_volatile(*byte) };
        }
    }

    fn span(&self, offset: u64, bytes: u64) -> Range<usize> {
        let range = self.offset(offset)..self.offset(offset + bytes);
        assert!(range.end <= self.bytes && self.owns(&range), "{offset:#x}+{bytes:#x} is not this memory's");
        range
    }

    /// munmap.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn unmap(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let range = self.span(offset, bytes);
        // Before the call: another thread may be given the addresses as soon as they are free.
        self.disown(range);
        // SAFETY: the addresses were this value's own, and no reference to them exists.
        unsafe { unmap(self.at(offset), self.offset(bytes)) }
    }

    /// Maps what was unmapped again: zeroes, or what the file has.
    ///
    /// # Errors
    ///
    /// The system call's; EEXIST when something else is there by now.
    pub fn map_again(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is replaced.
        unsafe { map(self.at(offset), self.offset(bytes), libc::PROT_NONE, flags, -1) }?;
        let range = self.offset(offset)..self.offset(offset + bytes);
        self.own(range.clone());
        self.place(range)
    }

    /// Maps anew over the old mapping, in one call: zeroes, or what the file has.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn replace(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.place(self.span(offset, bytes))
    }

    /// Moves pages to other addresses with mremap; nothing is mapped here then. They have page
    /// numbers from 0 on there.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn remap(&self, offset: u64, bytes: u64) -> io::Result<Memory> {
        let range = self.span(offset, bytes);
        let len = range.end - range.start;
        let backing = Backing::Anonymous;
        let target = Self::new(backing, bytes)?;
        self.disown(range);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: source and target are values' own memory, and no reference to them exists.
        let to = unsafe { libc::mremap(self.at(offset).cast(), len, len, flags, target.start) };
        if to == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(target)
    }

    /// Moves all of it with mremap, to an address `shift` above a multiple of 2 MiB. With `keep`
    /// the old mapping stays here without its pages (MREMAP_DONTUNMAP), else nothing is mapped
    /// here.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub(crate) fn remap_by(&self, shift: u64, keep: bool) -> io::Result<Memory> {
        let range = self.span(0, self.bytes());
        let room = Self::anonymous(self.bytes() + shift)?;
        let target = Self {
            start: room.at(shift),
            bytes: self.bytes,
            backing: self.backing,
            file: None,
            owned: Mutex::default(),
        };
        // What `room` has from `shift` on is the target's.
        room.unmap(0, shift)?;
        room.disown(0..room.bytes);
        target.own(range.clone());
        let mut flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        match keep {
            true => flags |= libc::MREMAP_DONTUNMAP,
            false => self.disown(range),
        }
        // SAFETY: source and target are values' own memory, and no reference to them exists.
        let to = unsafe { libc::mremap(self.start.cast(), self.bytes, self.bytes, flags, target.start) };
        if to == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(target)
    }

    /// madvise with `MADV_*` advice.
    pub(crate) fn madvise(&self, offset: u64, bytes: u64, advice: c_int) -> io::Result<()> {
        let range = self.span(offset, bytes);
        // SAFETY: the memory is this value's own; its contents may change under nobody's reference.
        let failed = unsafe { libc::madvise(self.at(offset).cast(), range.end - range.start, advice) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// MADV_DONTNEED: anonymous pages become zeroes.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.madvise(offset, bytes, libc::MADV_DONTNEED)
    }

    /// MADV_PAGEOUT.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn page_out(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.madvise(offset, bytes, libc::MADV_PAGEOUT)
    }

    /// MADV_HUGEPAGE; not every kernel has it.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn want_huge_pages(&self) -> io::Result<()> {
        self.madvise(0, self.bytes(), libc::MADV_HUGEPAGE)
    }

    /// MADV_NOHUGEPAGE; not every kernel has it.
    pub(crate) fn refuse_huge_pages(&self) -> io::Result<()> {
        self.madvise(0, self.bytes(), libc::MADV_NOHUGEPAGE)
    }

    /// mprotect with `PROT_*` bits.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn protect(&self, offset: u64, bytes: u64, prot: c_int) -> io::Result<()> {
        let range = self.span(offset, bytes);
        // SAFETY: the memory is this value's own, and no reference to it exists.
        let failed = unsafe { libc::mprotect(self.at(offset).cast(), range.end - range.start, prot) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let owned = std::mem::take(self.owned.get_mut().unwrap_or_else(PoisonError::into_inner));
        for range in owned {
            // SAFETY: the addresses are this value's own until now, and no reference to them
            // exists.
            let _ = unsafe { unmap(self.start.wrapping_add(range.start), range.end - range.start) };
        }
    }
}

/// # Safety
///
/// With `MAP_FIXED`, what is at `at` is the caller's.
unsafe fn map_at(
    at: *mut u8,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> io::Result<*mut u8> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: promised by the caller.
    let mapped = unsafe { libc::mmap(at.cast(), bytes, prot, flags, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapped.cast())
}

/// # Safety
///
/// As for [`map_at`].
unsafe fn map(at: *mut u8, bytes: usize, prot: c_int, flags: c_int, fd: c_int) -> io::Result<*mut u8> {
    // SAFETY: promised by the caller.
    unsafe { map_at(at, bytes, prot, flags, fd, 0) }
}

/// # Safety
///
/// The addresses are the caller's.
unsafe fn unmap(at: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: promised by the caller.
    let failed = bytes != 0 && unsafe { libc::munmap(at.cast(), bytes) } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What the CPU sees of ranges of this process, in the order of the list.
///
/// # Panics
///
/// When the ranges have more bytes than the computer can address. They must be mapped.
#[must_use]
pub fn gather(ranges: &[UserptrRange]) -> Vec<u8> {
    let mut all = Vec::new();
    for range in ranges {
        let at = ptr::with_exposed_provenance::<u64>(usize::try_from(range.start).expect("an address"));
        for i in 0..usize::try_from(range.size / 8).expect("a size") {
            // SAFETY: whole pages that the caller says are mapped; a volatile read makes no
            // reference.
            all.extend(unsafe { at.add(i).read_volatile() }.to_ne_bytes());
        }
    }
    all
}

/// SplitMix64's mixing function.
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn page_words(page: u64, seed: u64) -> impl Iterator<Item = u64> {
    let base = mix(page ^ mix(seed));
    (0..PAGE / 8).map(move |i| base.wrapping_add(i))
}

/// The bytes of a page with the pattern of `seed`.
#[must_use]
pub fn pattern(page: u64, seed: u64) -> Vec<u8> {
    page_words(page, seed).flat_map(u64::to_ne_bytes).collect()
}

/// The sum of a page's 64-bit words with the pattern of `seed`, wrapping.
#[must_use]
pub fn pattern_sum(page: u64, seed: u64) -> u64 {
    page_words(page, seed).fold(0, u64::wrapping_add)
}

/// The position of the first page of `bytes` that does not have the pattern which page `pages[i]`
/// has with `seed`.
#[must_use]
pub fn wrong_page(bytes: &[u8], pages: impl IntoIterator<Item = u64>, seed: u64) -> Option<usize> {
    let chunks = bytes.chunks(pattern(0, 0).len());
    chunks.zip(pages).position(|(bytes, page)| {
        let words = bytes.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_ne_bytes));
        !words.eq(page_words(page, seed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_shows_a_wrong_page_seed_and_byte() {
        let memory = Memory::anonymous(4 * PAGE).unwrap();
        memory.fill(7);
        assert_eq!(memory.find_wrong(0..4, 7), None);
        assert_eq!(memory.find_wrong(0..4, 8), Some(0));
        assert_eq!(wrong_page(&memory.read(0, 4 * PAGE), [0, 1, 3, 2], 7), Some(2));
        memory.write(2 * PAGE + 5, &[memory.read(2 * PAGE, 8)[5] ^ 1]);
        assert_eq!(memory.find_wrong(0..4, 7), Some(2));
    }

    #[test]
    fn what_was_unmapped_is_nobodys() {
        let memory = Memory::anonymous(4 * PAGE).unwrap();
        memory.unmap(PAGE, PAGE).unwrap();
        assert!(memory.owns(&(0..4096)) && !memory.owns(&(0..8192)));
        memory.map_again(PAGE, PAGE).unwrap();
        assert!(memory.owns(&(0..16384)));
        memory.fill(1);
        let moved = memory.remap(2 * PAGE, PAGE).unwrap();
        assert_eq!(wrong_page(&moved.read(0, PAGE), [2], 1), None);
        assert!(!memory.owns(&(8192..12288)));
    }

    #[test]
    fn layouts_have_every_place_once() {
        let memory = Memory::anonymous(64 * PAGE).unwrap();
        let base = memory.whole().start;
        for layout in [Layout::Adjacent, Layout::Reversed, Layout::Shuffled, Layout::Gaps] {
            let mut starts: Vec<u64> = memory.scatter(32, PAGE, layout).iter().map(|r| r.start - base).collect();
            let given = starts.clone();
            starts.sort_unstable();
            starts.dedup();
            assert_eq!(starts.len(), 32);
            assert_eq!(given == starts, matches!(layout, Layout::Adjacent | Layout::Gaps), "{layout:?}");
        }
    }
}
