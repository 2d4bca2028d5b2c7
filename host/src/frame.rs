// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frames: what a GPU page-table entry's physical address means on this host.
//!
//! A *frame* is an index into a table that says which CPU virtual page the frame stands for. GPU
//! accesses to a live frame go through that CPU address. When an invalidation of a page has been
//! delivered, its frame *dies*, and a later access is refused as stale. As KASAN finds a use after
//! free, this finds a lost invalidation or a lost TLB flush.
//!
//! Mechanism. Virtual addresses are divided into blocks of 2 MiB. The first page of a block that
//! gets a frame gives the block a *home group* of 512 consecutive, aligned frames. So adjacent
//! pages have adjacent frames, and a fully populated block fits one huge GPU entry. A page with a
//! recently dead home frame gets a *single* frame out of other groups instead. When all frames of a
//! block are dead, its group is retired, and the next page starts a new group. Dead frames come
//! back only after [`QUARANTINE`] further deaths.
//!
//! Locking. `pool` guards all changes. [`Frames::resolve`] takes no lock: one load, with acquire
//! order. Nothing here calls malloc: all tables are `Table`s, and lists are threaded through them.
//! [`Frames::kill`] runs in the delivery of invalidations.
//!
//! Limits: addresses below 2^47; 2^28 frames (1 TiB), fewer where the tables cannot be reserved. An
//! early reuse of frames in quarantine happens only when nothing else is left.

use crate::table::Table;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PhysAddr, HUGE, PAGE, PAGE_SHIFT};
use vkfd_driver::base::errno::Errno;

/// Deaths after which a dead frame may be used again.
pub const QUARANTINE: u64 = 65_536;

/// Frames in a group, pages in a block.
const GROUP: u32 = 512;
/// Blocks that one counter of `regions` covers (1 GiB), so that a scan of the whole address space
/// skips what is empty.
const REGION: u64 = 512;
const VA_BITS: u32 = 47;
const BLOCKS: u64 = (1 << VA_BITS) / HUGE;

const LIVE: u64 = 1;
/// The driver's own memory: only [`Frames::release`] ends it.
const PINNED: u64 = 2;
const FLAGS: u64 = PAGE - 1;

/// A frame number. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Frame(u32);

impl Frame {
    const NONE: Self = Self(0);

    const fn phys(self) -> PhysAddr {
        PhysAddr((self.0 as u64) << PAGE_SHIFT)
    }

    /// The frame of a physical address; `None` above all frames.
    fn of(at: PhysAddr) -> Option<Self> {
        u32::try_from(at.0 >> PAGE_SHIFT).ok().map(Self)
    }

    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Whether a frame table knows a physical address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// It stands for this CPU address; so do the following bytes, this many in all.
    Live(CpuVa, u64),
    /// It stood for memory that was taken away.
    Stale,
    /// It never stood for anything.
    Unknown,
}

/// The frame table.
pub struct Frames {
    /// Per frame: CPU page address with LIVE and PINNED; dead: `deaths << 1` (home frame) or
    /// `next << 1` (single); 0: fresh.
    entries: Table<AtomicU64>,
    /// Per page of each group's block: its frame.
    leaves: Table<AtomicU32>,
    /// Per block: its home group, 0 if none.
    blocks: Table<AtomicU32>,
    /// Per region: how many of its blocks have a group.
    regions: Table<AtomicU32>,
    /// Per group: pages of its block that have a frame; once retired: the next retired group.
    group: Table<AtomicU32>,
    /// Per group: number of deaths when it was retired.
    retired_at: Table<AtomicU64>,
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    /// Groups below were used.
    groups: u32,
    retired: Queue,
    singles: Queue,
    singles_len: u64,
    /// Fresh single frames.
    fresh: std::ops::Range<u32>,
    deaths: u64,
    live: u64,
}

/// Head and tail of a list threaded through a table; 0 is none.
#[derive(Default, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

impl Frames {
    /// A table of up to 2^28 frames, fewer where so much address space cannot be had.
    pub fn new() -> io::Result<Self> {
        let mut frames = 1usize << 28;
        loop {
            match Self::with_capacity(frames) {
                Err(_) if frames > 1 << 20 => frames >>= 2,
                done => return done,
            }
        }
    }

    fn with_capacity(frames: usize) -> io::Result<Self> {
        let groups = frames / GROUP as usize;
        Ok(Self {
            entries: Table::new(frames)?,
            leaves: Table::new(frames)?,
            blocks: Table::new(index(BLOCKS))?,
            regions: Table::new(index(BLOCKS / REGION))?,
            group: Table::new(groups)?,
            retired_at: Table::new(groups)?,
            pool: Mutex::new(Pool {
                groups: 1,
                retired: Queue::default(),
                singles: Queue::default(),
                singles_len: 0,
                fresh: 0..0,
                deaths: 1,
                live: 0,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many frames live.
    pub fn live(&self) -> u64 {
        self.lock().live
    }

    /// What `at` stands for, and for how many bytes from there (at least to the end of its page, at
    /// most `max`). Takes no lock.
    pub fn resolve(&self, at: PhysAddr, max: u64) -> Resolved {
        let Some(frame) = Frame::of(at) else {
            return Resolved::Unknown;
        };
        let Some(entry) = self.entries.get(frame.at()) else {
            return Resolved::Unknown;
        };
        let entry = entry.load(Ordering::Acquire);
        if entry & LIVE == 0 {
            return if entry == 0 { Resolved::Unknown } else { Resolved::Stale };
        }
        let page = entry & !FLAGS;
        let offset = at.0 % PAGE;
        let mut bytes = PAGE - offset;
        for next in self.entries.iter().skip(frame.at() + 1) {
            if bytes >= max {
                break;
            }
            let next = next.load(Ordering::Acquire);
            if next & LIVE == 0 || next & !FLAGS != page + offset + bytes {
                break;
            }
            bytes += PAGE;
        }
        Resolved::Live(CpuVa(page + offset), bytes.min(max))
    }

    /// `at` will be resolved soon.
    pub fn prefetch(&self, at: PhysAddr) {
        if let Some(entry) = Frame::of(at).and_then(|frame| self.entries.get(frame.at())) {
            vkfd_gpu::raw::prefetch(std::ptr::from_ref(entry).cast(), 1);
        }
    }

    /// The frames of the pages of `spans`, made where a page has none, given to `each` in order.
    ///
    /// # Errors
    /// How many spans were done, and EFAULT above the user's half of the address space, or ENOMEM
    /// when there are no frames left. Frames given out before stay.
    pub fn assign(&self, spans: &[CpuSpan], mut each: impl FnMut(PhysAddr)) -> Result<(), (usize, Errno)> {
        let mut pool = self.lock();
        for (done, span) in spans.iter().enumerate() {
            self.assign_as(&mut pool, *span, 0, &mut each).map_err(|errno| (done, errno))?;
        }
        Ok(())
    }

    /// As [`Frames::assign`], for memory of the driver's own: invalidations leave it alone.
    pub fn assign_pinned(&self, span: CpuSpan, mut each: impl FnMut(PhysAddr)) -> Result<(), Errno> {
        self.assign_as(&mut self.lock(), span, PINNED, &mut each)
    }

    fn assign_as(
        &self,
        pool: &mut Pool,
        span: CpuSpan,
        flags: u64,
        each: &mut impl FnMut(PhysAddr),
    ) -> Result<(), Errno> {
        if span.end().0 > 1 << VA_BITS {
            return Err(Errno::EFAULT);
        }
        for part in blocks_of(span) {
            let group = self.home(pool, part.block)?;
            for page in part.pages {
                each(self.frame(pool, part.block, group, page, flags)?.phys());
            }
        }
        Ok(())
    }

    /// The block's group, a new one if it has none.
    fn home(&self, pool: &mut Pool, block: u64) -> Result<u32, Errno> {
        let slot = &self.blocks[index(block)];
        let group = slot.load(Ordering::Relaxed);
        if group != 0 {
            return Ok(group);
        }
        let group = self.take_group(pool)?;
        slot.store(group, Ordering::Relaxed);
        self.regions[index(block / REGION)].fetch_add(1, Ordering::Relaxed);
        Ok(group)
    }

    /// A group nobody uses: the oldest retired one if its quarantine is over, else a fresh one,
    /// else the oldest.
    fn take_group(&self, pool: &mut Pool) -> Result<u32, Errno> {
        let oldest = pool.retired.head;
        let rested =
            oldest != 0 && pool.deaths - self.retired_at[oldest as usize].load(Ordering::Relaxed) >= QUARANTINE;
        if !rested && (pool.groups as usize) < self.group.len() {
            pool.groups += 1;
            return Ok(pool.groups - 1);
        }
        if oldest == 0 {
            return Err(Errno::ENOMEM);
        }
        pool.retired.head = self.group[oldest as usize].swap(0, Ordering::Relaxed);
        if pool.retired.head == 0 {
            pool.retired.tail = 0;
        }
        if !rested {
            let frames = oldest as usize * GROUP as usize;
            for entry in &self.entries[frames..frames + GROUP as usize] {
                entry.store(0, Ordering::Relaxed);
            }
        }
        Ok(oldest)
    }

    /// The frame of one page.
    fn frame(&self, pool: &mut Pool, block: u64, group: u32, page: u32, flags: u64) -> Result<Frame, Errno> {
        let home = Frame(group * GROUP + page);
        let slot = &self.leaves[home.at()];
        let frame = Frame(slot.load(Ordering::Relaxed));
        if frame != Frame::NONE {
            return Ok(frame);
        }
        let entry = self.entries[home.at()].load(Ordering::Relaxed);
        let frame = if entry == 0 || pool.deaths - (entry >> 1) >= QUARANTINE { home } else { self.single(pool)? };
        let va = block * HUGE + u64::from(page) * PAGE;
        self.entries[frame.at()].store(va | flags | LIVE, Ordering::Release);
        slot.store(frame.0, Ordering::Relaxed);
        self.group[group as usize].fetch_add(1, Ordering::Relaxed);
        pool.live += 1;
        Ok(frame)
    }

    /// A frame for a page whose home frame is in quarantine.
    fn single(&self, pool: &mut Pool) -> Result<Frame, Errno> {
        if pool.singles_len < QUARANTINE {
            if pool.fresh.is_empty() {
                if let Ok(group) = self.take_group(pool) {
                    pool.fresh = group * GROUP..(group + 1) * GROUP;
                }
            }
            if let Some(frame) = pool.fresh.next() {
                return Ok(Frame(frame));
            }
        }
        let oldest = Frame(pool.singles.head);
        if oldest == Frame::NONE {
            return Err(Errno::ENOMEM);
        }
        if pool.singles.tail == oldest.0 {
            pool.singles = Queue::default();
        } else {
            // A link is a frame number, so it fits.
            pool.singles.head = u32::try_from(self.entries[oldest.at()].load(Ordering::Relaxed) >> 1).unwrap_or(0);
        }
        pool.singles_len -= 1;
        Ok(oldest)
    }

    /// Ends the frames of `span`, the driver's own memory excepted: an access from now on is stale.
    /// Neither allocates nor frees. O(blocks in use + pages in them).
    pub fn kill(&self, span: CpuSpan) {
        self.kill_where(span, |entry| entry & PINNED == 0);
    }

    /// Ends the frames of the driver's own memory.
    pub fn release(&self, span: CpuSpan) {
        self.kill_where(span, |_| true);
    }

    fn kill_where(&self, span: CpuSpan, mortal: impl Fn(u64) -> bool) {
        let span = CpuSpan::between(span.start(), CpuVa(span.end().0.min(1 << VA_BITS)));
        let mut parts = blocks_of(span);
        while let Some(part) = parts.next() {
            let region = &self.regions[index(part.block / REGION)];
            if region.load(Ordering::Relaxed) == 0 {
                parts.skip_to((part.block / REGION + 1) * REGION);
                continue;
            }
            if self.blocks[index(part.block)].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut pool = self.lock();
            // Again: the group may have been retired before the lock was taken.
            let group = self.blocks[index(part.block)].load(Ordering::Relaxed);
            if group != 0 {
                self.kill_in_block(&mut pool, group, part, &mortal);
            }
        }
    }

    fn kill_in_block(&self, pool: &mut Pool, group: u32, part: Part, mortal: impl Fn(u64) -> bool) {
        let mut died = 0;
        for page in part.pages {
            let home = Frame(group * GROUP + page);
            let slot = &self.leaves[home.at()];
            let frame = Frame(slot.load(Ordering::Relaxed));
            if frame == Frame::NONE || !mortal(self.entries[frame.at()].load(Ordering::Relaxed)) {
                continue;
            }
            slot.store(0, Ordering::Relaxed);
            died += 1;
            pool.deaths += 1;
            if frame == home {
                self.entries[frame.at()].store(pool.deaths << 1, Ordering::Release);
            } else {
                self.bury_single(pool, frame);
            }
        }
        pool.live -= u64::from(died);
        let left = self.group[group as usize].load(Ordering::Relaxed) - died;
        self.group[group as usize].store(left, Ordering::Relaxed);
        if left == 0 {
            self.retire(pool, part.block, group);
        }
    }

    fn bury_single(&self, pool: &mut Pool, frame: Frame) {
        // The last of the list links to itself, which also keeps its entry distinct from a fresh
        // one.
        self.entries[frame.at()].store(u64::from(frame.0) << 1, Ordering::Release);
        if pool.singles.tail == 0 {
            pool.singles.head = frame.0;
        } else {
            self.entries[pool.singles.tail as usize].store(u64::from(frame.0) << 1, Ordering::Release);
        }
        pool.singles.tail = frame.0;
        pool.singles_len += 1;
    }

    /// A block all of whose frames are dead gives its group up.
    fn retire(&self, pool: &mut Pool, block: u64, group: u32) {
        self.blocks[index(block)].store(0, Ordering::Relaxed);
        self.regions[index(block / REGION)].fetch_sub(1, Ordering::Relaxed);
        self.retired_at[group as usize].store(pool.deaths, Ordering::Relaxed);
        if pool.retired.tail == 0 {
            pool.retired.head = group;
        } else {
            self.group[pool.retired.tail as usize].store(group, Ordering::Relaxed);
        }
        pool.retired.tail = group;
    }
}

/// A block's part of a span.
struct Part {
    block: u64,
    /// Pages in the block.
    pages: std::ops::Range<u32>,
}

struct Blocks {
    at: u64,
    end: u64,
}

fn blocks_of(span: CpuSpan) -> Blocks {
    Blocks { at: span.start().0 / PAGE, end: span.end().0.div_ceil(PAGE) }
}

impl Blocks {
    fn skip_to(&mut self, block: u64) {
        self.at = self.at.max(block * u64::from(GROUP));
    }
}

impl Iterator for Blocks {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.at >= self.end {
            return None;
        }
        let block = self.at / u64::from(GROUP);
        let first = block * u64::from(GROUP);
        let end = self.end.min(first + u64::from(GROUP));
        let in_block = |page: u64| u32::try_from(page - first).unwrap_or(GROUP);
        let pages = in_block(self.at)..in_block(end);
        self.at = end;
        Some(Part { block, pages })
    }
}

#[cfg(test)]
mod tests;
