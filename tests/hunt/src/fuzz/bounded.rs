// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A world of a few pages for the engines, which says when one of them touches anything else.
//!
//! Each page lies between pages of the host that allow nothing. A page that the tables do not let a
//! wave write is not writable on the host either. The engines turn a fault into an error and report
//! it as memory that has gone. Here no memory ever goes, and such a report means an access outside
//! the translated memory.

use std::ptr;

use vkfd_cu::{Access, Miss, Span, Stop, World};
use vkfd_gpu::raw;

const PAGE: usize = 4096;
/// Where the pages are for the GPU.
pub const BASE: u64 = 0x7f12_3450_0000;
/// Pages: code, data, data that is only read, and one that is not there.
const CODE: usize = 2;
const DATA: usize = 4;
const READ_ONLY: usize = 1;
const MAPPED: usize = CODE + DATA + READ_ONLY;
/// Where the data are.
pub const DATA_VA: u64 = BASE + (CODE * PAGE) as u64;
/// Bytes of code.
pub const CODE_BYTES: usize = CODE * PAGE;
/// Host pages from one page to the next.
const STRIDE: usize = 3 * PAGE;

/// The world.
pub struct Bounded {
    memory: *mut u8,
    /// Events that were raised.
    pub events: Vec<u32>,
}

impl Bounded {
    /// Zeroed pages.
    pub fn new() -> Bounded {
        let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, wherever the kernel likes.
        let memory = unsafe { libc::mmap(ptr::null_mut(), (MAPPED + 1) * STRIDE, none, private, -1, 0) };
        assert!(memory != libc::MAP_FAILED, "no address space");
        let world = Bounded { memory: memory.cast(), events: Vec::new() };
        (0..MAPPED).for_each(|page| world.allow(page, true));
        world
    }

    fn page(&self, page: usize) -> *mut u8 {
        self.memory.wrapping_add(PAGE + page * STRIDE)
    }

    fn allow(&self, page: usize, write: bool) {
        let rights = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a page of the own mapping.
        let done = unsafe { libc::mprotect(self.page(page).cast(), PAGE, rights) };
        assert_eq!(done, 0, "mprotect");
    }

    /// Puts code and data in place; what is left of each is zeros.
    pub fn load(&mut self, code: &[u8], data: &[u8]) {
        self.events.clear();
        let parts = [(0..CODE, code), (CODE..MAPPED, data)];
        for (pages, mut bytes) in parts {
            for page in pages {
                self.allow(page, true);
                let mut image = [0; PAGE];
                let here = bytes.len().min(PAGE);
                image[..here].copy_from_slice(&bytes[..here]);
                bytes = &bytes[here..];
                // SAFETY: both are a page long; nobody has a reference to the world's.
                unsafe { ptr::copy_nonoverlapping(image.as_ptr(), self.page(page), PAGE) };
                self.allow(page, (CODE..CODE + DATA).contains(&page));
            }
        }
    }

    /// The data.
    pub fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; DATA * PAGE];
        for (n, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            // SAFETY: both are a page long; the engines do not run now.
            unsafe { ptr::copy_nonoverlapping(self.page(CODE + n), page.as_mut_ptr(), PAGE) };
        }
        bytes
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        // SAFETY: the own mapping, of which no span is left.
        unsafe { libc::munmap(self.memory.cast(), (MAPPED + 1) * STRIDE) };
    }
}

impl World for Bounded {
    fn enter(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    fn leave(&mut self) {}

    fn wanted(&self) -> bool {
        false
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        let miss = Miss { va, access, lost: false, reason: 0 };
        let offset = va.checked_sub(BASE).and_then(|offset| usize::try_from(offset).ok()).ok_or(miss)?;
        let (page, within) = (offset / PAGE, offset % PAGE);
        let allowed = match access {
            Access::Execute => page < CODE,
            Access::Read => page < MAPPED,
            Access::Write => (CODE..CODE + DATA).contains(&page),
        };
        let span = Span { ptr: self.page(page.min(MAPPED)).wrapping_add(within), len: PAGE - within };
        allowed.then_some(span).ok_or(miss)
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
        assert!(!miss.lost, "an access outside of what was translated: {miss:x?}");
        Err(Stop)
    }

    fn interrupt(&mut self, event: u32) {
        self.events.push(event);
    }

    fn clock(&self) -> u64 {
        7
    }

    fn cycles(&self) -> u64 {
        7
    }
}

/// So that accesses outside end in an error and not in a signal.
pub fn install() {
    raw::install();
}
