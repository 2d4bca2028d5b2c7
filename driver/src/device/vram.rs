// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A GPU's VRAM: a buddy allocator in pages.
//!
//! Mechanism: free blocks of 2^k pages, aligned to their size, are on doubly linked lists. The
//! lists are threaded through an array with one link a page. Taking and giving back a block is
//! O(log pages). Memory: 9 bytes a VRAM page. An allocation that is no power of two is several
//! blocks, largest first, so a big buffer keeps the alignment that 2 MiB entries need.
//!
//! One process never sees another's data. Buffers and page tables are wiped when they come back.
//! Pages of SVM memory come back as they are, and their blocks are *used*. They are wiped when they
//! are handed out, except to a migration, which overwrites them all. A used block makes what it
//! merges with used. The lock (rank `Vram`) guards the lists; wiping happens outside of it.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "pages are below their number, which fits 32 bits, and blocks are those of the allocator itself"
)]

use crate::base::addr::{index, VramOffset, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::base::lock_rank::Rank;
use crate::os::{Mutex, Vec};
use crate::sabotage::FailPoint;
use crate::seams::gpu::Gpu;

const NIL: u32 = u32::MAX;
const ORDERS: usize = 19; // up to 1 GiB blocks
const FREE: u8 = 0x80;
const USED: u8 = 0x40;

/// Consecutive VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VramBlock {
    /// First byte.
    pub at: VramOffset,
    /// Length in pages.
    pub pages: u64,
    /// It may hold what somebody had in it.
    used: bool,
}

impl VramBlock {
    /// One page, which is zero or is to be wiped.
    pub const fn page(at: VramOffset) -> Self {
        Self { at, pages: 1, used: false }
    }

    fn new(at: u32, order: usize, used: bool) -> Self {
        Self { at: VramOffset(u64::from(at) * PAGE), pages: 1 << order, used }
    }
}

/// What is in VRAM that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    Zero,
    /// Whatever: the caller overwrites it before any client can see it.
    Any,
}

struct Lists {
    heads: [u32; ORDERS],
    links: Vec<[u32; 2]>,
    /// At the first page of a free block: `FREE | order`, and `USED` when not all of it is zero.
    state: Vec<u8>,
    free_pages: u64,
}

/// The allocator of one GPU.
pub struct Vram {
    lists: Mutex<Lists>,
    pages: u64,
}

impl Vram {
    /// All of `bytes` free.
    pub fn new(bytes: u64) -> Result<Self> {
        let pages = bytes / PAGE;
        // Page numbers are u32: 16 TiB of VRAM.
        let count = u32::try_from(pages).map_err(|_| Errno::EINVAL)?;
        let mut lists = Lists {
            heads: [NIL; ORDERS],
            links: Vec::filled([NIL; 2], index(pages))?,
            state: Vec::filled(0, index(pages))?,
            free_pages: 0,
        };
        let mut at = 0;
        while at < count {
            let order = largest_order(at, count - at);
            lists.put(at, order, false);
            lists.free_pages += 1 << order;
            at += 1 << order;
        }
        Ok(Self { lists: Mutex::new(Rank::Vram, lists)?, pages })
    }

    /// How many pages it has.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        (self.pages - self.lists.lock().free_pages) * PAGE
    }

    /// Bytes free.
    pub fn available(&self) -> u64 {
        self.lists.lock().free_pages * PAGE
    }

    /// `pages` pages in as few blocks as there are. ENOMEM (reason `NoVram`) takes nothing.
    pub fn alloc(&self, gpu: &dyn Gpu, pages: u64, contents: Contents) -> Result<Vec<VramBlock>> {
        let mut blocks = self.take(pages)?;
        if contents == Contents::Zero {
            for block in blocks.iter_mut().filter(|block| block.used) {
                gpu.clear(block.at, block.pages * PAGE);
                block.used = false;
            }
        }
        Ok(blocks)
    }

    fn take(&self, pages: u64) -> Result<Vec<VramBlock>> {
        let no_vram = Error::new(Errno::ENOMEM, Reason::NoVram);
        let wanted = u32::try_from(pages).map_err(|_| no_vram)?;
        // A block a bit of the size is the least; fragmentation may need more, then room is made
        // outside the lock.
        let mut room = 64;
        loop {
            let mut blocks = Vec::with_capacity(room)?;
            let mut lists = self.lists.lock();
            if lists.free_pages < pages {
                return Err(no_vram);
            }
            let mut left = wanted;
            while left > 0 {
                let want = largest_order(0, left);
                let Some((at, order, used)) = lists.take(want) else { break };
                if !blocks.push_reserved(VramBlock::new(at, order, used)) {
                    lists.give(at, order, used);
                    break;
                }
                left -= 1 << order;
            }
            lists.free_pages -= pages - u64::from(left);
            if left == 0 {
                return Ok(blocks);
            }
            lists.give_back(&blocks);
            drop(lists);
            room *= 4;
        }
    }

    /// One page of zeros, for a page table.
    pub fn alloc_page(&self, gpu: &dyn Gpu) -> Result<VramOffset> {
        crate::os::failpoint(FailPoint::Vram)?;
        let mut lists = self.lists.lock();
        let (at, order, used) = lists.take(0).ok_or(Error::new(Errno::ENOMEM, Reason::NoVram))?;
        lists.free_pages -= 1;
        drop(lists);
        let block = VramBlock::new(at, order, used);
        if block.used {
            gpu.clear(block.at, PAGE);
        }
        Ok(block.at)
    }

    /// Gives a run of pages back as they are, however they were allocated.
    pub fn give_back_run(&self, at: VramOffset, pages: u64) {
        let mut lists = self.lists.lock();
        let mut done = 0;
        while done < pages {
            let first = at.0 / PAGE + done;
            // Pages fit in u32 (see `new`).
            let order = largest_order(u32::try_from(first).unwrap_or(0), u32::try_from(pages - done).unwrap_or(1));
            let block = VramBlock { at: VramOffset(first * PAGE), pages: 1 << order, used: true };
            lists.give_back(&[block]);
            done += block.pages;
        }
    }

    /// Gives blocks back that nothing was written to.
    pub fn give_back(&self, blocks: &[VramBlock]) {
        self.lists.lock().give_back(blocks);
    }

    /// Wipes blocks that were handed out as zeros, and gives them back.
    pub fn free(&self, gpu: &dyn Gpu, blocks: &[VramBlock]) {
        for block in blocks {
            gpu.clear(block.at, block.pages * PAGE);
        }
        self.give_back(blocks);
    }
}

/// The order of the largest block that is aligned at page `at` and not longer than `pages`.
fn largest_order(at: u32, pages: u32) -> usize {
    let fits = pages.ilog2();
    let aligned = if at == 0 { u32::BITS } else { at.trailing_zeros() };
    (fits.min(aligned) as usize).min(ORDERS - 1)
}

impl Lists {
    fn put(&mut self, at: u32, order: usize, used: bool) {
        let head = self.heads[order];
        self.links[at as usize] = [NIL, head];
        if head != NIL {
            self.links[head as usize][0] = at;
        }
        self.heads[order] = at;
        self.state[at as usize] = FREE | if used { USED } else { 0 } | u8::try_from(order).unwrap_or(0);
    }

    /// Takes a block out of its list. Whether it was used.
    fn unlink(&mut self, at: u32, order: usize) -> bool {
        let [before, after] = self.links[at as usize];
        if before == NIL {
            self.heads[order] = after;
        } else {
            self.links[before as usize][1] = after;
        }
        if after != NIL {
            self.links[after as usize][0] = before;
        }
        core::mem::replace(&mut self.state[at as usize], 0) & USED != 0
    }

    /// A block of `order`, split off a larger one if need be; else the largest smaller one: where,
    /// of which order, and whether it was used. Does not count.
    fn take(&mut self, order: usize) -> Option<(u32, usize, bool)> {
        if let Some(found) = (order..ORDERS).find(|o| self.heads[*o] != NIL) {
            let at = self.heads[found];
            let used = self.unlink(at, found);
            for half in (order..found).rev() {
                self.put(at + (1 << half), half, used);
            }
            return Some((at, order, used));
        }
        let smaller = (0..order).rev().find(|o| self.heads[*o] != NIL)?;
        let at = self.heads[smaller];
        let used = self.unlink(at, smaller);
        Some((at, smaller, used))
    }

    /// Puts a block back and merges it with its free buddies. Does not count.
    fn give(&mut self, mut at: u32, mut order: usize, mut used: bool) {
        while order + 1 < ORDERS {
            let buddy = at ^ (1 << order);
            let free = FREE | u8::try_from(order).unwrap_or(0);
            if self.state.get(buddy as usize).is_none_or(|state| state & !USED != free) {
                break;
            }
            used |= self.unlink(buddy, order);
            at &= !(1 << order);
            order += 1;
        }
        self.put(at, order, used);
    }

    fn give_back(&mut self, blocks: &[VramBlock]) {
        for block in blocks {
            // Blocks come from `take`, so both conversions hold.
            let at = u32::try_from(block.at.0 / PAGE).unwrap_or(NIL);
            self.give(at, block.pages.ilog2() as usize, block.used);
            self.free_pages += block.pages;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Vram {
        fn page(&self) -> VramOffset {
            let (at, order, used) = self.lists.lock().take(0).unwrap();
            self.lists.lock().free_pages -= 1;
            VramBlock::new(at, order, used).at
        }
    }

    fn span(b: &VramBlock) -> (u64, u64) {
        (b.at.0, b.at.0 + b.pages * PAGE)
    }

    #[test]
    fn blocks_do_not_overlap_and_all_comes_back() {
        let vram = Vram::new(5000 * PAGE).unwrap();
        let a = vram.take(1027).unwrap();
        let b = vram.take(513).unwrap();
        assert_eq!(vram.used(), 1540 * PAGE);
        assert_eq!(a.iter().map(|b| b.pages).sum::<u64>(), 1027);
        for x in a.iter() {
            assert_eq!(x.at.0 % (x.pages * PAGE), 0, "a block is aligned to its size");
            for y in b.iter() {
                assert!(span(x).1 <= span(y).0 || span(y).1 <= span(x).0);
            }
        }
        let too_much = vram.take(5000).unwrap_err();
        assert_eq!((too_much.errno, too_much.reason), (Errno::ENOMEM, Reason::NoVram));
        let mut lists = vram.lists.lock();
        lists.give_back(&a);
        lists.give_back(&b);
        drop(lists);
        assert_eq!(vram.used(), 0);
        // Merged again: the largest blocks that 5000 pages have are there.
        assert_eq!(vram.take(4096).unwrap().len(), 1);
    }

    #[test]
    fn fragmented_memory_is_still_used_to_the_last_page() {
        let vram = Vram::new(1024 * PAGE).unwrap();
        let mut pages = [VramOffset(0); 1024];
        for page in &mut pages {
            *page = vram.page();
        }
        let mut lists = vram.lists.lock();
        for at in pages.iter().step_by(2) {
            lists.give_back(&[VramBlock::page(*at)]);
        }
        drop(lists);
        let rest = vram.take(512).unwrap();
        assert_eq!(rest.len(), 512);
        assert!(vram.take(1).is_err());
    }

    #[test]
    fn what_was_used_is_known_through_splits_and_merges() {
        let vram = Vram::new(1024 * PAGE).unwrap();
        assert!(vram.take(1024).unwrap().iter().all(|block| !block.used));
        // One page of the last half has been somebody's.
        vram.give_back(&[VramBlock::new(0, 9, false)]);
        for page in 512..1024 {
            match page {
                700 => vram.give_back_run(VramOffset(page * PAGE), 1),
                _ => vram.give_back(&[VramBlock::page(VramOffset(page * PAGE))]),
            }
        }
        let all = vram.take(1024).unwrap();
        assert!(all.iter().map(|block| (block.pages, block.used)).eq([(1024, true)]));
        vram.give_back(&all);
        assert!(vram.take(1).unwrap()[0].used, "nobody knows which half it is");
        // Wiped and given back alone, it is not what its neighbours are.
        vram.give_back(&[VramBlock::page(VramOffset(0))]);
        assert!(vram.take(2).unwrap()[0].used);
    }
}
