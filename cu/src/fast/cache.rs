// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Host pointers of pages, kept while the gate is open.
//!
//! Direct-mapped, by page and by access. What it has is the world's answer and lives no longer than
//! a span does: an engine empties it whenever it starts to run a wave. So a flush that the driver
//! forgot stays as visible as without it.

use crate::world::{Access, Span, World};

/// Halves of them are for reading and for writing: a loop that copies with a stride has hundreds of
/// both.
const ENTRIES: usize = 1024;
/// Bytes of a page, the least that page tables map.
pub(super) const PAGE: u64 = 4096;

#[derive(Clone, Copy)]
struct Entry {
    /// The page's address, and in the bits below it the access and the time when it was asked.
    tag: u64,
    ptr: *mut u8,
}

/// Pages that were translated since the gate was opened.
pub(super) struct Cache {
    entries: Box<[Entry; ENTRIES]>,
    /// When the gate was opened; in the tags, so that nothing need be emptied.
    time: u64,
    /// Bytes that handlers have read and written since they were last counted.
    pub(super) moved: u64,
}

// SAFETY: the pointers are only used by the thread that holds the gate open; after a move they are
// stale and, by the time in their tags, known to be.
unsafe impl Send for Cache {}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache { entries: Box::new([Entry { tag: u64::MAX, ptr: std::ptr::null_mut() }; ENTRIES]), time: 0, moved: 0 }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        // The low bits of a tag have room for 2^11 times.
        self.time = (self.time + 1) & 0x7ff;
        if self.time == 0 {
            self.entries.fill(Entry { tag: u64::MAX, ptr: std::ptr::null_mut() });
        }
    }

    /// The host pointer of a byte; what follows it in its page follows there. None if there is no
    /// such page, or not all of it: the reference engine finds out what that means.
    #[inline(always)]
    pub(super) fn page(&mut self, world: &mut dyn World, va: u64, write: bool) -> Option<*mut u8> {
        let (slot, tag) = self.place(va, write);
        let entry = self.entries[slot];
        let ptr = if entry.tag == tag { entry.ptr } else { self.refill(world, slot, tag)? };
        Some(ptr.wrapping_add((va & (PAGE - 1)) as usize))
    }

    /// Where a page is, and how it is marked.
    #[inline(always)]
    fn place(&self, va: u64, write: bool) -> (usize, u64) {
        let page = va & !(PAGE - 1);
        let tag = page | self.time << 1 | u64::from(write);
        // Of any stride, the highest bits of such a product are spread evenly.
        let hash = (page >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros() + 1);
        (hash as usize % (ENTRIES / 2) + usize::from(write) * (ENTRIES / 2), tag)
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self, world: &mut dyn World, slot: usize, tag: u64) -> Option<*mut u8> {
        let access = if tag & 1 != 0 { Access::Write } else { Access::Read };
        let Span { ptr, len } = world.translate(tag & !(PAGE - 1), access).ok()?;
        if (len as u64) < PAGE {
            return None;
        }
        self.entries[slot] = Entry { tag, ptr };
        Some(ptr)
    }
}
