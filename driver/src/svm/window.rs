// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Windows: 512 MiB of addresses under one interval notifier, and what an invalidation changes there.
//!
//! SVM ranges are small or large, split and merge; their notifiers do neither. A window is made with the first range in it and
//! goes with the last, so there are as many notifiers as 512 MiB of addresses in use, however many ranges. It is made of *blocks*
//! of 2 MiB, each with its own page tables on each GPU that uses it, reserved when it is first mapped there: so any pages of it can be
//! written and cleared later, on any GPU, without an allocation and without a sleeping lock.
//!
//! Of each page a block knows whether it is *valid* (faulted in, and not invalidated since) and on each GPU whether the entry is
//! *current* and whether it is *wanted*: wanted entries must be right as long as the process's queues run (XNACK off, or
//! ALWAYS_MAPPED). An invalidation of wanted pages stops the queues and asks for a restore; entries of others are cleared and the
//! TLB is flushed. Entries of memory that is unmapped are cleared in any case, and its ranges are noted to be dropped.
//!
//! The notifier lock (rank `Notifier`, one a window) guards [`State`]. It is taken in reclaim. Cost of an invalidation: O(blocks hit),
//! plus the entries cleared.

use super::damping::Bounces;
use super::page_bits::PageBits;
use super::Svm;
use crate::addr::{index, CpuSpan, CpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::address_space::{Invalidate, Page};
use crate::errno::Result;
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, MutexGuard, Vec};
use crate::page_table::Leaves;
use crate::process::Process;
use crate::smi::Event;
use crate::vm::Vm;
use vkfd_uapi::smi as abi;

/// Bytes that a notifier watches.
pub const WINDOW: u64 = 512 << 20;
/// Blocks in a window.
pub const BLOCKS: usize = 256;
const _: () = assert!(WINDOW == BLOCKS as u64 * HUGE);
const EMPTY: u16 = u16::MAX;

/// Where the windows begin that `span` touches.
pub fn windows_of(span: CpuSpan) -> impl Iterator<Item = u64> {
    (span.start().0 / WINDOW..span.end().0.div_ceil(WINDOW)).map(|number| number * WINDOW)
}

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
    /// Clears entries of `pages` where there are any. Whether there were.
    pub fn clear(&mut self, pages: PageBits) -> bool {
        let gone = self.entries & pages;
        let gpu = self.vm.gpu();
        gone.runs(|first, count| self.leaves.clear_part(&**gpu, first, count));
        self.entries &= !pages;
        self.current &= !pages;
        !gone.is_empty()
    }
}

/// What is known of a block.
pub struct BlockState {
    slot: usize,
    /// The pages, where valid.
    pub pages: Vec<Page>,
    /// Faulted in and not invalidated since.
    pub valid: PageBits,
    /// Not there, or not permitted, when last looked at.
    pub missing: PageBits,
    /// Invalidated since the fault under way began.
    pub moved: PageBits,
    /// Of no range any more since who holds the reservation looked at the ranges: whatever it saw there, these get no entries.
    pub forgotten: PageBits,
    /// How it goes to and fro.
    pub bounces: Bounces,
    /// By GPU, in the order they were mapped.
    pub maps: Vec<Map>,
}

impl BlockState {
    /// Nothing known of block number `slot`.
    pub fn new(slot: usize, gpus: usize) -> Result<Self> {
        Ok(Self {
            slot,
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

    /// Of these, what is not, and can be.
    pub fn outstanding(&self) -> PageBits {
        self.wanted() & !(self.valid | self.missing)
    }

    /// Whether a valid page may be written to.
    pub fn is_writable(&self, page: u64) -> bool {
        self.valid.has(page) && self.pages[index(page)].writable()
    }

    /// A page is to be written that may be valid for reading only: then it is to be faulted in again. Whether it is.
    pub fn unshare(&mut self, page: u64) -> bool {
        let only = PageBits::page(page);
        if !self.valid.has(page) || self.is_writable(page) {
            return false;
        }
        self.valid &= !only;
        for map in self.maps.iter_mut() {
            map.current &= !only;
        }
        true
    }

    /// The mapping on GPU number `gpu`.
    pub fn map(&mut self, gpu: usize) -> Option<&mut Map> {
        self.maps.iter_mut().find(|map| map.vm.gpu_index() == gpu)
    }
}

/// Pages in a block, as an array has them.
pub const BLOCK_PAGES: usize = 512;

/// What the notifier lock guards.
pub struct State {
    /// By block number: which of `blocks`.
    slots: Vec<u16>,
    blocks: Vec<BlockState>,
    /// Blocks with outstanding pages, by number.
    restless: [u64; BLOCKS / 64],
    /// Pages that were unmapped and whose ranges are still there, by block number, whether there is a block or not.
    drops: Vec<PageBits>,
}

/// The notifier lock, held.
pub type Guard<'a> = MutexGuard<'a, State>;

/// A window.
pub struct Window {
    process: Arc<Process>,
    span: CpuSpan,
    state: Mutex<State>,
}

impl Window {
    /// The window of `base`, which is a multiple of [`WINDOW`], without blocks.
    pub fn new(process: &Arc<Process>, base: u64) -> Result<Arc<Self>> {
        let state = State {
            slots: Vec::filled(EMPTY, BLOCKS)?,
            blocks: Vec::new(),
            restless: [0; BLOCKS / 64],
            drops: Vec::filled(PageBits::NONE, BLOCKS)?,
        };
        let span = CpuSpan::between(CpuVa(base), CpuVa(base.saturating_add(WINDOW)));
        os::arc(Self { process: process.clone(), span, state: Mutex::new(Rank::Notifier, state)? })
    }

    /// Its addresses.
    pub const fn span(&self) -> CpuSpan {
        self.span
    }

    /// Whose it is.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Takes the notifier lock.
    pub fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// Adds a block. The caller holds the lock of all windows.
    pub fn add(&self, block: BlockState) -> Result {
        let wanted = self.lock().blocks.len() + 1;
        // Allocated outside of the lock; what is replaced is freed outside of it, too.
        let mut bigger = if self.lock().blocks.capacity() < wanted {
            Vec::with_capacity(wanted.next_power_of_two())?
        } else {
            Vec::new()
        };
        let mut guard = self.lock();
        let state = &mut *guard;
        if bigger.capacity() > 0 {
            core::mem::swap(&mut state.blocks, &mut bigger);
            while let Some(old) = bigger.pop() {
                state.slots[old.slot] = u16::try_from(state.blocks.len()).unwrap_or(EMPTY);
                state.blocks.push_reserved(old);
            }
        }
        // At most 256.
        state.slots[block.slot] = u16::try_from(state.blocks.len()).unwrap_or(EMPTY);
        state.blocks.push_reserved(block);
        drop(guard);
        Ok(())
    }

    /// Takes a block out.
    pub fn remove(&self, slot: usize) -> Option<BlockState> {
        let mut state = self.lock();
        let at = core::mem::replace(state.slots.get_mut(slot)?, EMPTY);
        if at == EMPTY {
            return None;
        }
        state.set_restless(slot, false);
        let removed = state.blocks.swap_remove(at.into());
        if let Some(moved) = state.blocks.get(usize::from(at)).map(|block| block.slot) {
            state.slots[moved] = at;
        }
        Some(removed)
    }

    /// Clears all entries of `span`, whose ranges are about to go, on all GPUs. The caller holds the lock of all windows.
    pub fn forget(&self, span: CpuSpan) {
        let mut state = self.lock();
        state.clear(self.span, span, &mut |_| PageBits::ALL);
        state.each_block(self.span, span, &mut |block, pages| {
            block.valid &= !pages;
            block.forgotten |= pages;
            for map in block.maps.iter_mut() {
                map.wanted &= !pages;
            }
        });
    }

    /// The first unmapped pages in a row from `from` on that were not taken yet.
    pub fn take_drop(&self, from: CpuVa) -> Option<CpuSpan> {
        self.lock().take_drop(self.span, from)
    }

    /// What was taken could not be dealt with.
    pub fn put_back_drop(&self, span: CpuSpan) {
        self.lock().note_drop(self.span, span);
    }

    /// The first block from number `from` on that has outstanding pages.
    pub fn restless(&self, from: usize) -> Option<usize> {
        let state = self.lock();
        (from..BLOCKS).find(|slot| state.restless[slot / 64] >> (slot % 64) & 1 != 0)
    }

    /// `trigger`: `SVM_UNMAP_TRIGGER_*`.
    fn hear(&self, span: CpuSpan, blockable: bool, trigger: u32) -> bool {
        let process = &self.process;
        let unmapped = trigger == abi::SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU;
        if !span.overlaps(self.span) || process.sabotage().skip_invalidation() {
            return true;
        }
        let Some(mut state) = (if blockable { Some(self.state.lock()) } else { self.state.try_lock() }) else {
            return false;
        };
        let state = &mut *state;
        let (mut stop, mut hit) = (false, 0);
        state.each_block(self.span, span, &mut |block, pages| {
            hit += 1;
            let known = block.valid | block.missing;
            let relied_on = |map: &Map| !(map.wanted & (map.entries | known) & pages).is_empty();
            stop |= !unmapped && block.maps.iter().any(relied_on);
        });
        // Both locks before the first change, so that refusing leaves nothing half done.
        let mut eviction = match (stop, blockable) {
            (false, _) => None,
            (true, true) => Some(process.eviction().lock()),
            (true, false) => match process.eviction().try_lock() {
                None => return false,
                guard => guard,
            },
        };
        let mut restless = [0u64; BLOCKS / 64];
        state.each_block(self.span, span, &mut |block, pages| {
            block.moved |= pages;
            block.valid &= !pages;
            block.missing &= !pages;
            for map in block.maps.iter_mut() {
                if unmapped {
                    map.wanted &= !pages;
                }
                map.current &= !pages;
            }
            if unmapped {
                block.bounces.forget(pages);
            }
            if !block.outstanding().is_empty() {
                restless[block.slot / 64] |= 1 << (block.slot % 64);
            }
        });
        for (all, new) in state.restless.iter_mut().zip(restless) {
            *all |= new;
        }
        // Stopped queues are the barrier where entries are wanted; elsewhere it is the flush.
        let gpus = state.clear(self.span, span, &mut |map| !map.wanted);
        if hit > 0 {
            process.counters().invalidations.add(1);
            process.counters().ranges_invalidated.add(hit);
        }
        if gpus != 0 {
            let event = Event::Unmapped { start: span.start().0 / PAGE, pages: span.pages(), trigger };
            process.tell_gpus(gpus, event, blockable);
        }
        if let Some(eviction) = eviction.as_deref_mut() {
            eviction.wait_svm();
            process.evict_queues(eviction, abi::QUEUE_EVICTION_TRIGGER_SVM, blockable);
            process.schedule_restore();
        }
        if unmapped {
            state.note_drop(self.span, span);
            process.svm().note(Svm::DROPS);
            process.schedule_faults();
        }
        true
    }
}

impl Invalidate for Window {
    fn invalidate(&self, span: CpuSpan, blockable: bool) -> bool {
        self.hear(span, blockable, abi::SVM_UNMAP_TRIGGER_MMU_NOTIFY)
    }

    fn migrating(&self, span: CpuSpan, blockable: bool) -> bool {
        self.hear(span, blockable, abi::SVM_UNMAP_TRIGGER_MMU_NOTIFY_MIGRATE)
    }

    fn unmapped(&self, span: CpuSpan, blockable: bool) -> bool {
        self.hear(span, blockable, abi::SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU)
    }
}

impl State {
    /// Block number `slot`.
    pub fn block(&mut self, slot: usize) -> Option<&mut BlockState> {
        let at = *self.slots.get(slot)?;
        self.blocks.get_mut(usize::from(at))
    }

    /// Calls `f` for each block that `span` touches in the window at `window`, with the pages touched.
    pub fn each_block(&mut self, window: CpuSpan, span: CpuSpan, f: &mut dyn FnMut(&mut BlockState, PageBits)) {
        each_slot(window, span, &mut |slot, pages| {
            if let Some(block) = self.block(slot) {
                f(block, pages);
            }
        });
    }

    /// Clears entries of `span`, on each GPU those of the pages that `which` gives, and flushes. Which GPUs had any.
    fn clear(&mut self, window: CpuSpan, span: CpuSpan, which: &mut dyn FnMut(&Map) -> PageBits) -> u32 {
        let mut gpus = 0u32;
        self.each_block(window, span, &mut |block, pages| {
            for map in block.maps.iter_mut() {
                let pages = pages & which(map);
                if map.clear(pages) {
                    gpus |= 1 << map.vm.gpu_index();
                }
            }
        });
        let mut flushed = 0u32;
        self.each_block(window, span, &mut |block, _| {
            for map in block.maps.iter() {
                let bit = 1 << map.vm.gpu_index();
                if gpus & bit != 0 && flushed & bit == 0 {
                    flushed |= bit;
                    map.vm.flush();
                }
            }
        });
        gpus
    }

    /// Notes whether a block has outstanding pages.
    pub fn set_restless(&mut self, slot: usize, restless: bool) {
        let bit = 1 << (slot % 64);
        if let Some(word) = self.restless.get_mut(slot / 64) {
            *word = if restless { *word | bit } else { *word & !bit };
        }
    }

    fn note_drop(&mut self, window: CpuSpan, span: CpuSpan) {
        each_slot(window, span, &mut |slot, pages| self.drops[slot] |= pages);
    }

    fn take_drop(&mut self, window: CpuSpan, from: CpuVa) -> Option<CpuSpan> {
        let base = window.start().0;
        let mut at = from.0.max(base) - base;
        let mut start = None;
        for slot in index(at / HUGE)..BLOCKS {
            let first = at % HUGE / PAGE;
            let own = slot as u64 * HUGE;
            let pages = &mut self.drops[slot];
            if start.is_none() {
                start = pages.next(first, true).map(|page| own + page * PAGE);
            }
            if let Some(start) = start {
                // To its end, or on into the next block.
                let first = start.max(own) - own;
                let end = pages.next(first / PAGE, false);
                *pages &= !PageBits::range(first / PAGE, end.unwrap_or(HUGE_PAGES));
                at = own + end.unwrap_or(HUGE_PAGES) * PAGE;
                if end.is_some() {
                    break;
                }
            } else {
                at = own + HUGE;
            }
        }
        start.map(|start| CpuSpan::between(CpuVa(base + start), CpuVa(base + at)))
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let blocks = self.blocks.iter().map(|block| {
            block.pages.memory() + block.maps.memory() + block.maps.iter().map(|map| map.leaves.memory()).sum::<u64>()
        });
        self.slots.memory() + self.blocks.memory() + self.drops.memory() + blocks.sum::<u64>()
    }
}

/// Calls `f` with the number of each block that `span` touches in the window at `window`, and its pages.
fn each_slot(window: CpuSpan, span: CpuSpan, f: &mut dyn FnMut(usize, PageBits)) {
    let base = window.start().0;
    let mut at = span.start().0.max(base) - base;
    let end = span.end().0.min(window.end().0).saturating_sub(base);
    while at < end {
        let block = at / HUGE * HUGE;
        let next = (block + HUGE).min(end);
        f(index(at / HUGE), PageBits::range((at - block) / PAGE, (next - block).div_ceil(PAGE)));
        at = next;
    }
}
