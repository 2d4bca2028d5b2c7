// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is known of a block's pages, and its entries on each GPU.
//!
//! Of each page a block knows whether it is *valid* (faulted in, and not invalidated since) or
//! *missing*. On each GPU it knows whether there is an *entry*, whether that is *current*, and
//! whether it is *wanted*. Wanted entries must be right while the process's queues run (XNACK off,
//! or ALWAYS_MAPPED). [`BlockState::check`] has the invariants that hold whenever no thread has the
//! notifier lock:
//!
//! 1. Every entry in a page table of the block's addresses is one of [`Map::entries`]: an
//!    invalidation finds it.
//! 2. A current entry is of a valid page, and points at it.
//! 3. A missing page has no entry.
//! 4. An entry that is not current is wanted. So its page is outstanding, which keeps a restore
//!    from letting queues go on.
//!
//! Guarded by the notifier lock of the block's window ([`super::window`]).
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a block is 512 pages; sizes of what is in memory"
)]

use crate::base::addr::index;
use crate::base::errno::Result;
use crate::collections::page_bits::{PageBits, BLOCK_PAGES};
use crate::device::damping::Bounces;
use crate::gpuvm::page_table::Leaves;
use crate::gpuvm::vm::Vm;
use crate::os::{Arc, Vec};
use crate::seams::address_space::Page;

/// A block's entries on one GPU.
pub struct Map {
    /// The GPU's VM.
    pub vm: Arc<Vm>,
    /// Where the entries are.
    pub leaves: Leaves,
    /// Pages that have an entry, right or not.
    pub entries: PageBits,
    /// Pages whose entry is right.
    pub current: PageBits,
    /// Pages whose entry must be right while the queues run.
    pub wanted: PageBits,
}

impl Map {
    /// No entries.
    pub const fn new(vm: Arc<Vm>, leaves: Leaves) -> Self {
        Self { vm, leaves, entries: PageBits::NONE, current: PageBits::NONE, wanted: PageBits::NONE }
    }

    /// Clears entries of `pages` where there are any. Whether there were.
    pub fn clear(&mut self, pages: PageBits) -> bool {
        let gone = self.entries & pages;
        let gpu = self.vm.gpu();
        gone.runs(|first, count| self.leaves.clear_part(&**gpu, first, count));
        self.entries &= !pages;
        self.current &= !pages;
        !gone.is_empty()
    }

    /// Clears entries that nobody will bring up to date. Whether there were any.
    pub fn clear_outdated(&mut self) -> bool {
        self.clear(!self.current & !self.wanted)
    }
}

/// What is known of a block.
pub struct BlockState {
    /// The pages, where valid.
    pub pages: Vec<Page>,
    /// Faulted in and not invalidated since.
    pub valid: PageBits,
    /// Not there, or not permitted, when last looked at.
    pub missing: PageBits,
    /// Invalidated since the fault under way began.
    pub moved: PageBits,
    /// Pages that have left the ranges since the reservation's holder read them: these get no
    /// entries.
    pub forgotten: PageBits,
    /// How it goes to and fro.
    pub bounces: Bounces,
    /// By GPU, in the order they were mapped.
    pub maps: Vec<Map>,
}

impl BlockState {
    /// Nothing known, and room for a map on each of `gpus` GPUs.
    pub fn new(gpus: usize) -> Result<Self> {
        Ok(Self {
            pages: Vec::filled(Page::default(), BLOCK_PAGES)?,
            valid: PageBits::NONE,
            missing: PageBits::NONE,
            moved: PageBits::NONE,
            forgotten: PageBits::NONE,
            bounces: Bounces::new(),
            maps: Vec::with_capacity(gpus)?,
        })
    }

    /// Pages that must be valid while the queues run.
    pub fn wanted(&self) -> PageBits {
        self.maps.iter().fold(PageBits::NONE, |bits, map| bits | map.wanted)
    }

    /// Of these, the pages that are not valid or lack a right entry, and can have one.
    pub fn outstanding(&self) -> PageBits {
        let lacks = |map: &Map| map.wanted & !(self.missing | (self.valid & map.current));
        self.maps.iter().fold(PageBits::NONE, |bits, map| bits | lacks(map))
    }

    /// Whether a valid page may be written to.
    pub fn is_writable(&self, page: u64) -> bool {
        self.valid.has(page) && self.pages[index(page)].writable()
    }

    /// A page is to be written that may be valid for reading only: then it is to be faulted in
    /// again. Whether it is.
    pub fn unshare(&mut self, page: u64) -> bool {
        let only = PageBits::page(page);
        if !self.valid.has(page) || self.is_writable(page) {
            return false;
        }
        self.valid &= !only;
        for map in self.maps.iter_mut() {
            map.current &= !only;
            if map.clear_outdated() {
                map.vm.flush();
            }
        }
        true
    }

    /// The mapping on GPU number `gpu`.
    pub fn map(&mut self, gpu: usize) -> Option<&mut Map> {
        self.maps.iter_mut().find(|map| map.vm.gpu_index() == gpu)
    }

    /// Clears all entries on all GPUs, and flushes.
    pub fn clear(&mut self) {
        for map in self.maps.iter_mut() {
            if map.clear(PageBits::ALL) {
                map.vm.flush();
            }
        }
    }

    /// The violated part of the invariant above, as far as it is about this alone. O(GPUs).
    pub fn wrong(&self) -> Option<&'static str> {
        self.maps.iter().find_map(|map| {
            let none = [
                (map.current & !map.entries, "an entry is current that is not there"),
                (map.current & !self.valid, "an entry is current whose page is not valid"),
                (map.entries & self.missing, "a missing page has an entry"),
                (map.entries & !map.current & !map.wanted, "an entry is out of date and nobody wants it"),
            ];
            none.into_iter().find(|(pages, _)| !pages.is_empty()).map(|(_, what)| what)
        })
    }

    /// Debug builds: that the invariant holds.
    #[track_caller]
    pub fn check(&self) {
        debug_assert_eq!(self.wrong(), None, "the state of a block of SVM memory");
    }

    /// Bytes of memory held beyond its own.
    pub fn memory(&self) -> u64 {
        let leaves = self.maps.iter().map(|map| map.leaves.memory()).sum::<u64>();
        self.pages.memory() + self.maps.memory() + leaves
    }
}
