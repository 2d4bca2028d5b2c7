// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Host pointers of pages, kept while the gate is open.
//!
//! Direct-mapped, by page and by access. What it has is the world's answer and lives no longer than
//! a span does: an engine empties it whenever it starts to run a wave. So a flush that the driver
//! forgot stays as visible as without it.

use crate::world::{Access, Span, World};

/// Halves of them are for reading and for writing: a loop that copies with a stride has hundreds of
/// both.
const ENTRIES: usize = 4096;
/// Bytes of a page, the least that page tables map.
pub(super) const PAGE: u64 = 4096;
/// In a tag: the launch writes this page for the first time, after many others.
const FRESH: u64 = 1 << 11;
/// Times that a tag has room for.
const TIMES: u64 = 1 << 10;

/// Pages that a launch asks for on this thread, for writing, before pages are noted; and noted
/// pages before stores bypass the caches. Together they are 8 MiB, some processors' share of the
/// last cache.
const BEFORE: u32 = 1024;
/// Bits for pages; of more memory than 1 GiB some are taken for written that are not.
const NOTED: usize = 1 << 18;

#[derive(Clone, Copy)]
struct Entry {
    /// The page's address, and in the bits below it the access and the time when it was asked.
    tag: u64,
    ptr: *mut u8,
}

/// Accesses of a region that are told apart, and waves of a work-group.
const SITES: usize = 16;
const WAVES: usize = 4;

/// Accesses of handlers, each of one wave of a work-group, whose distances are kept.
const STRIDES: usize = 256;

/// Whether a stride leads to another page.
pub(super) fn is_far(stride: u64) -> bool {
    stride.wrapping_add(PAGE) > 2 * PAGE
}

/// Where an access was the last time, and how far from the time before.
#[derive(Clone, Copy)]
struct Last {
    access: usize,
    va: u64,
    stride: u64,
}

const NOWHERE: Last = Last { access: 0, va: 0, stride: 0 };

impl Last {
    /// How far the access, which is at `va` now, is likely to go on: if the last three have one
    /// stride.
    #[inline(always)]
    fn go_on(&mut self, access: usize, va: u64) -> Option<u64> {
        let now = va.wrapping_sub(self.va);
        let is_same = self.access == access && self.stride == now;
        *self = Last { access, va, stride: now };
        (is_same && now != 0).then_some(now)
    }
}

/// Accesses of handlers whose lanes' pages are kept apart, each of one wave of a work-group.
const ACCESSES: usize = 64;
/// An access that was in other pages for so long is asked for once in as many times.
const OTHERS: u32 = 64;

/// The pages of an access's lanes when its handler last ran. In a loop they are often the same.
#[derive(Clone)]
struct Lanes {
    /// As in [`Entry`], of each lane. No tag is zero.
    tags: [u64; 64],
    hosts: [*mut u8; 64],
    /// How often the access was asked for since it was last in the same ones.
    others: u32,
}

const NO_LANES: Lanes = Lanes { tags: [0; 64], hosts: [std::ptr::null_mut(); 64], others: 0 };

/// No time is zero.
const NOTHING: Entry = Entry { tag: 0, ptr: std::ptr::null_mut() };

/// Pages that were translated since the gate was opened.
pub(super) struct Cache {
    entries: Box<[Entry; ENTRIES]>,
    lanes: Box<[Lanes]>,
    /// When the gate was opened; in the tags, so that nothing need be emptied.
    time: u64,
    /// How often it was.
    pub(super) openings: u64,
    /// Bytes that handlers have read and written since they were last counted.
    pub(super) moved: u64,
    /// Memory was stored to since that was last told.
    pub(super) wrote: bool,
    /// Something was stored past the caches, and what is stored next may be seen before it.
    pub(super) past: bool,
    /// How often the launch has asked for a page for writing, until there are enough of them.
    asked: u32,
    /// How many pages it has written since then, until there are enough of them, and which.
    written: u32,
    noted: Box<[u64]>,
    /// Of each access of a translated region and each wave of a group, where it asked for a page
    /// last. Regions share them: a loop is in one region for long.
    sites: [Last; SITES * WAVES],
    /// Of handlers' accesses and each wave of a group. Waves of a group often do a round each in
    /// turn, and no two of their accesses need to have the distance of a wave's own ones.
    strides: Box<[Last; STRIDES]>,
    /// Bytes that were stored past the caches.
    #[cfg(debug_assertions)]
    pub(super) passed: u64,
    /// Sabotage: lanes are in the pages of the last time.
    #[cfg(debug_assertions)]
    pub(super) keeps_lanes: bool,
}

// SAFETY: the pointers are only used by the thread that holds the gate open; after a move they are
// stale and, by the time in their tags, known to be.
unsafe impl Send for Cache {}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            entries: Box::new([NOTHING; ENTRIES]),
            lanes: vec![NO_LANES; ACCESSES].into_boxed_slice(),
            time: 1,
            openings: 1,
            moved: 0,
            wrote: false,
            past: false,
            asked: 0,
            written: 0,
            noted: vec![0; NOTED / 64].into_boxed_slice(),
            sites: [NOWHERE; SITES * WAVES],
            strides: Box::new([NOWHERE; STRIDES]),
            #[cfg(debug_assertions)]
            passed: 0,
            #[cfg(debug_assertions)]
            keeps_lanes: false,
        }
    }

    /// How far a handler's access of a wave, by its number, is likely to go on.
    #[inline(always)]
    pub(super) fn stride(&mut self, access: usize, va: u64) -> Option<u64> {
        self.strides[access % STRIDES].go_on(access, va)
    }

    /// The same of a region's access.
    pub(super) fn site(&mut self, site: u32, wave: u16, va: u64) -> Option<u64> {
        let place = site as usize % SITES + SITES * (usize::from(wave) % WAVES);
        self.sites[place].go_on(place, va)
    }

    /// A launch begins.
    pub(super) fn begin(&mut self) {
        (self.asked, self.written) = (0, 0);
    }

    /// What was stored past the caches is seen before what is stored from now on.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.past) {
            vkfd_raw::fence_stores();
        }
    }

    /// Whether the launch has written so much that stores may go past the caches.
    #[inline(always)]
    pub(super) fn streams(&self) -> bool {
        self.written == BEFORE
    }

    /// [`Cache::page`] for writing, of a page that the launch has not written before its last
    /// translation.
    #[inline(always)]
    pub(super) fn fresh_page(&mut self, world: &mut dyn World, va: u64) -> Option<*mut u8> {
        let ptr = self.page(world, va, true)?;
        self.is_fresh(va).then_some(ptr)
    }

    /// Whether the launch had not written a page before its last translation, which is here.
    #[inline(always)]
    pub(super) fn is_fresh(&self, va: u64) -> bool {
        let (slot, tag) = self.place(va, true);
        self.entries[slot].tag == tag | FRESH
    }

    /// Notes that a page is about to be written; whether that is the first time, after many others.
    fn note(&mut self, page: u64) -> bool {
        if self.asked < BEFORE {
            self.asked += 1;
            return false;
        }
        if self.written == 0 {
            self.noted.fill(0);
        }
        let index = (page / PAGE) as usize % NOTED;
        let bit = 1 << (index % 64);
        let known = self.noted[index / 64] & bit != 0;
        self.noted[index / 64] |= bit;
        let many = self.written == BEFORE;
        if !known && !many {
            self.written += 1;
        }
        many && !known
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.openings += 1;
        self.time = (self.time + 1) % TIMES;
        if self.time == 0 {
            self.entries.fill(NOTHING);
            self.lanes.fill(NO_LANES);
            self.time = 1;
        }
    }

    /// The host pointer of a byte; what follows it in its page follows there. None if there is no
    /// such page, or not all of it: the reference engine finds out what that means.
    #[inline(always)]
    pub(super) fn page(&mut self, world: &mut dyn World, va: u64, write: bool) -> Option<*mut u8> {
        self.wrote |= write;
        self.find(world, va, write)
    }

    /// The same, of an atomic operation: whether it changes anything is not known yet.
    #[inline(always)]
    pub(super) fn atomic_page(&mut self, world: &mut dyn World, va: u64) -> Option<*mut u8> {
        self.find(world, va, true)
    }

    #[inline(always)]
    fn find(&mut self, world: &mut dyn World, va: u64, write: bool) -> Option<*mut u8> {
        let (slot, tag) = self.place(va, write);
        let entry = self.entries[slot];
        let ptr = if entry.tag & !FRESH == tag { entry.ptr } else { self.refill(world, slot, tag)? };
        Some(ptr.wrapping_add((va & (PAGE - 1)) as usize))
    }

    /// Whether [`Cache::again`] and [`Cache::keep`] are worth their time. `access`: any number, the
    /// same for each time.
    #[inline(always)]
    pub(super) fn may_stay(&mut self, access: usize) -> bool {
        let others = &mut self.lanes[access % ACCESSES].others;
        *others = others.wrapping_add(1);
        *others < OTHERS || *others % OTHERS == 0
    }

    /// Host pointers of the bytes that an access's lanes reach, if each lane is in the page of the
    /// last time. Other accesses may have the same number: the pages are compared.
    #[inline(always)]
    pub(super) fn again(
        &mut self,
        access: usize,
        (vas, bytes): (&[u64], u64),
        write: bool,
        out: &mut [*mut u8; 64],
    ) -> bool {
        let mark = self.mark(write);
        let lanes = &mut self.lanes[access % ACCESSES];
        let mut differ = 0;
        for (((va, tag), host), out) in vas.iter().zip(&lanes.tags).zip(&lanes.hosts).zip(out) {
            // The last byte is in the same page, too.
            let page = va & !(PAGE - 1);
            differ |= (page | mark) ^ tag | (va.wrapping_add(bytes - 1) & !(PAGE - 1)) ^ page;
            *out = host.wrapping_add((va % PAGE) as usize);
        }
        #[cfg(debug_assertions)]
        if self.keeps_lanes && lanes.tags[0] != 0 {
            differ = 0;
        }
        if differ == 0 {
            lanes.others = 0;
            self.wrote |= write;
        }
        differ == 0
    }

    /// Keeps a lane's page for [`Cache::again`].
    #[inline(always)]
    pub(super) fn keep(&mut self, access: usize, lane: usize, page: u64, host: *mut u8, write: bool) {
        let tag = page | self.mark(write);
        let lanes = &mut self.lanes[access % ACCESSES];
        (lanes.tags[lane % 64], lanes.hosts[lane % 64]) = (tag, host);
    }

    /// The bits of a tag below the page's address.
    #[inline(always)]
    fn mark(&self, write: bool) -> u64 {
        self.time << 1 | u64::from(write)
    }

    /// Where a page is, and how it is marked.
    #[inline(always)]
    fn place(&self, va: u64, write: bool) -> (usize, u64) {
        let page = va & !(PAGE - 1);
        let tag = page | self.mark(write);
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
        let fresh = access == Access::Write && self.note(tag & !(PAGE - 1));
        self.entries[slot] = Entry { tag: if fresh { tag | FRESH } else { tag }, ptr };
        Some(ptr)
    }
}
