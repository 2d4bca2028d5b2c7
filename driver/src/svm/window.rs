// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Windows: 512 MiB of addresses under one interval notifier, the table of the blocks in it, and
//! what an invalidation changes there.
//!
//! SVM ranges are small or large, split and merge; their notifiers do neither. A window is made
//! with the first range in it and goes with the last. So the number of notifiers is that of the 512
//! MiB regions in use, for any number of ranges. It is made of *blocks* of 2 MiB, each with its own
//! page tables on each GPU that uses it, reserved when it is first mapped there. So any of its
//! pages can be written and cleared later, without an allocation and without a sleeping lock.
//!
//! The window's table has, by address, each [`Block`] with its state ([`BlockState`]), and nothing
//! else has either. A block is live as long as it is in the table, and its state is found by the
//! block itself. A thread that kept a block that has ended finds nothing by it, also when there is
//! another at its addresses.
//!
//! An invalidation of wanted pages stops the queues and asks for a restore; entries of others are
//! cleared and the TLB is flushed. Entries of memory that is unmapped are cleared in any case, and
//! its ranges are noted to be dropped.
//!
//! The notifier lock (rank `Notifier`, one per window) guards [`State`]. It is taken in reclaim.
//! Cost of an invalidation: O(blocks hit), plus the entries cleared.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a window is 256 blocks; what invalidations name is cut to it"
)]

use super::block::Block;
use super::block_state::{BlockState, Map};
use super::owner::SvmOwner;
use super::Svm;
use crate::base::addr::{index, CpuSpan, CpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::collections::page_bits::PageBits;
use crate::device::smi::Event;
use crate::os::{self, Arc, Mutex, MutexGuard, Vec};
use crate::queues::eviction;
use crate::sabotage::Switch;
use crate::seams::address_space::Invalidate;
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

/// A block that is live.
struct Live {
    block: Arc<Block>,
    state: BlockState,
}

/// What the notifier lock guards.
pub struct State {
    /// By address: which of `live`.
    slots: Vec<u16>,
    live: Vec<Live>,
    /// Blocks that may have outstanding pages, by number.
    restless: [u64; BLOCKS / 64],
    /// Pages that were unmapped and whose ranges are still there, by block number, whether there is
    /// a block or not.
    drops: Vec<PageBits>,
}

/// The notifier lock, held.
pub type Guard<'a> = MutexGuard<'a, State>;

/// A window.
pub struct Window {
    owner: Arc<dyn SvmOwner>,
    span: CpuSpan,
    state: Mutex<State>,
}

impl Window {
    /// The window of `base`, which is a multiple of [`WINDOW`], without blocks.
    pub fn new(owner: Arc<dyn SvmOwner>, base: u64) -> Result<Arc<Self>> {
        let state = State {
            slots: Vec::filled(EMPTY, BLOCKS)?,
            live: Vec::new(),
            restless: [0; BLOCKS / 64],
            drops: Vec::filled(PageBits::NONE, BLOCKS)?,
        };
        let span = CpuSpan::between(CpuVa(base), CpuVa(base.saturating_add(WINDOW)));
        os::arc(Self { owner, span, state: Mutex::new(Rank::Notifier, state)? })
    }

    /// Its addresses.
    pub const fn span(&self) -> CpuSpan {
        self.span
    }

    /// Whose it is.
    pub fn owner(&self) -> &dyn SvmOwner {
        &*self.owner
    }

    /// Takes the notifier lock.
    pub fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// The block of number `slot`, if there is one.
    pub fn find(&self, slot: usize) -> Option<Arc<Block>> {
        self.lock().at(slot).map(|live| live.block.clone())
    }

    /// The first block from number `from` on.
    pub fn next(&self, from: usize) -> Option<Arc<Block>> {
        let mut state = self.lock();
        (from..BLOCKS).find_map(|slot| state.at(slot).map(|live| live.block.clone()))
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.lock().live.is_empty()
    }

    /// Adds a block, which is live from now on. EADDRINUSE where there is one. The caller holds the
    /// lock of all windows.
    pub fn add(&self, block: &Arc<Block>, state: BlockState) -> Result {
        let mut live = Some(Live { block: block.clone(), state });
        let wanted = self.lock().live.len() + 1;
        // Allocated outside of the lock; the replaced table is freed outside of it, too.
        let mut bigger = if self.lock().live.capacity() < wanted {
            Vec::with_capacity(wanted.next_power_of_two())?
        } else {
            Vec::new()
        };
        let mut guard = self.lock();
        let added = guard.add(block.slot(), &mut live, &mut bigger);
        drop(guard);
        added
    }

    /// The end of a block: no thread finds its state any more. Its entries are cleared, and the
    /// caller gives its page tables back. `None` if it has ended before. The caller holds the lock
    /// of all windows.
    pub fn take(&self, block: &Block) -> Option<BlockState> {
        let mut state = self.lock();
        state.of(block)?.clear();
        let slot = block.slot();
        let at = core::mem::replace(state.slots.get_mut(slot)?, EMPTY);
        // The block itself is the caller's, too: it is not freed here.
        let Live { state: taken, block: taken_block } = state.live.swap_remove(at.into());
        if let Some(moved) = state.live.get(usize::from(at)).map(|live| live.block.slot()) {
            state.slots[moved] = at;
        }
        drop(state);
        drop(taken_block);
        Some(taken)
    }

    /// A thread that has a block's reservation is about to look at its ranges: what leaves from now
    /// on is noted in the block. Pages of it whose ranges have to be dropped still, and are none
    /// any more. The caller holds the lock of all windows.
    pub fn begin_look(&self, block: &Block) -> PageBits {
        let mut state = self.lock();
        if let Some(known) = block.of(&mut state) {
            known.forgotten = PageBits::NONE;
        }
        state.dropped(block)
    }

    /// As [`begin_look`](Self::begin_look), for a thread that maps nothing by it.
    pub fn dropped(&self, block: &Block) -> PageBits {
        self.lock().dropped(block)
    }

    /// Clears all entries of `span`, whose ranges are about to go, on all GPUs. The caller holds
    /// the lock of all windows.
    pub fn forget(&self, span: CpuSpan) {
        let mut state = self.lock();
        state.clear(self.span, span, &mut |_| PageBits::ALL);
        state.each_block(self.span, span, &mut |_, block, pages| {
            block.valid &= !pages;
            if !self.owner.sabotage().has(Switch::Forgotten) {
                block.forgotten |= pages;
            }
            for map in block.maps.iter_mut() {
                map.wanted &= !pages;
            }
            block.check();
        });
    }

    /// The first unmapped pages in a row from `from` on that were not taken yet. The caller holds
    /// the lock of all windows, and drops their ranges under it.
    pub fn take_drop(&self, from: CpuVa) -> Option<CpuSpan> {
        self.lock().take_drop(self.span, from)
    }

    /// Whether pages of `span` were unmapped and not taken yet.
    pub fn has_drop(&self, span: CpuSpan) -> bool {
        self.lock().has_drop(self.span, span)
    }

    /// There are no ranges here, so nothing is to be dropped.
    pub fn forget_drops(&self) {
        self.lock().drops.fill(PageBits::NONE);
    }

    /// What was taken could not be dealt with.
    pub fn put_back_drop(&self, span: CpuSpan) {
        self.lock().note_drop(self.span, span);
    }

    /// The first block from number `from` on that has outstanding pages.
    pub fn restless(&self, from: usize) -> Option<Arc<Block>> {
        let mut state = self.lock();
        for slot in from..BLOCKS {
            if state.restless[slot / 64] >> (slot % 64) & 1 == 0 {
                continue;
            }
            match state.at(slot).filter(|live| !live.state.outstanding().is_empty()) {
                Some(live) => return Some(live.block.clone()),
                None => state.restless[slot / 64] &= !(1 << (slot % 64)),
            }
        }
        None
    }

    /// Wanted pages of a block could not be brought up to date. The restore does it, and looks for
    /// missing ones again. The queues stop until then.
    pub fn leave_to_restore(&self, block: &Block, pages: PageBits) {
        let mut state = self.lock();
        if let Some(known) = block.of(&mut state) {
            known.missing &= !pages;
        }
        state.changed(block);
        // Under the notifier lock: an invalidation stops no queues for pages that wait already.
        self.stop_queues(&mut self.owner.eviction().lock(), true);
    }

    /// Stops the queues until wanted pages are up to date, and asks for that.
    fn stop_queues(&self, eviction: &mut eviction::State, blockable: bool) {
        eviction.wait_svm();
        self.owner.evict_queues(eviction, abi::QUEUE_EVICTION_TRIGGER_SVM, blockable);
        self.owner.schedule_restore();
    }

    /// `trigger`: `SVM_UNMAP_TRIGGER_*`.
    fn hear(&self, span: CpuSpan, blockable: bool, trigger: u32) -> bool {
        let owner = &self.owner;
        let unmapped = trigger == abi::SVM_UNMAP_TRIGGER_UNMAP_FROM_CPU;
        if !span.overlaps(self.span) || owner.sabotage().has(Switch::Invalidation) {
            return true;
        }
        let Some(mut state) = (if blockable { Some(self.state.lock()) } else { self.state.try_lock() }) else {
            return false;
        };
        let state = &mut *state;
        let (mut stop, mut hit) = (false, 0);
        state.each_block(self.span, span, &mut |_, block, pages| {
            hit += 1;
            let known = block.valid | block.missing;
            let relied_on = |map: &Map| !(map.wanted & (map.entries | known) & pages).is_empty();
            stop |= !unmapped && block.maps.iter().any(relied_on);
        });
        // Both locks before the first change, so that refusing leaves nothing half done.
        let mut eviction = match (stop, blockable) {
            (false, _) => None,
            (true, true) => Some(owner.eviction().lock()),
            (true, false) => match owner.eviction().try_lock() {
                None => return false,
                guard => guard,
            },
        };
        let mut restless = [0u64; BLOCKS / 64];
        state.each_block(self.span, span, &mut |slot, block, pages| {
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
                if !owner.sabotage().has(Switch::Forgotten) {
                    block.forgotten |= pages;
                }
            }
            if !block.outstanding().is_empty() {
                restless[slot / 64] |= 1 << (slot % 64);
            }
        });
        for (all, new) in state.restless.iter_mut().zip(restless) {
            *all |= new;
        }
        // Stopped queues are the barrier where entries are wanted; elsewhere it is the flush.
        let gpus = state.clear(self.span, span, &mut |map| !map.wanted);
        if cfg!(debug_assertions) {
            state.each_block(self.span, span, &mut |_, block, _| block.check());
        }
        if hit > 0 {
            owner.counters().invalidations.add(1);
            owner.counters().ranges_invalidated.add(hit);
        }
        if gpus != 0 {
            let event = Event::Unmapped { start: span.start().0 / PAGE, pages: span.pages(), trigger };
            owner.tell_gpus(gpus, event, blockable);
        }
        if let Some(eviction) = eviction.as_deref_mut() {
            self.stop_queues(eviction, blockable);
        }
        if unmapped {
            state.note_drop(self.span, span);
            owner.svm().note(Svm::DROPS);
            owner.schedule_faults();
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
    fn at(&mut self, slot: usize) -> Option<&mut Live> {
        let at = *self.slots.get(slot)?;
        self.live.get_mut(usize::from(at))
    }

    /// What is known of a block, as long as it is live.
    pub fn of(&mut self, block: &Block) -> Option<&mut BlockState> {
        let live = self.at(block.slot())?;
        core::ptr::eq(Arc::as_ptr(&live.block), block).then_some(&mut live.state)
    }

    /// What is known of whatever block has a number. Not to be asked for by a thread that has a
    /// block.
    pub fn of_slot(&mut self, slot: usize) -> Option<&mut BlockState> {
        self.at(slot).map(|live| &mut live.state)
    }

    /// `bigger` is empty, or replaces the table that is too small and holds that afterwards.
    /// Nothing is freed here.
    fn add(&mut self, slot: usize, live: &mut Option<Live>, bigger: &mut Vec<Live>) -> Result {
        if self.slots.get(slot) != Some(&EMPTY) {
            return Err(Errno::EADDRINUSE.into());
        }
        if bigger.capacity() > 0 {
            core::mem::swap(&mut self.live, bigger);
            while let Some(old) = bigger.pop() {
                // At most 256.
                self.slots[old.block.slot()] = u16::try_from(self.live.len()).unwrap_or(EMPTY);
                self.live.push_reserved(old);
            }
        }
        if let Some(live) = live.take() {
            self.slots[slot] = u16::try_from(self.live.len()).unwrap_or(EMPTY);
            self.live.push_reserved(live);
        }
        Ok(())
    }

    /// Calls `f` for each block that `span` touches in the window at `window`, with its number and
    /// the pages touched.
    pub fn each_block(&mut self, window: CpuSpan, span: CpuSpan, f: &mut dyn FnMut(usize, &mut BlockState, PageBits)) {
        each_slot(window, span, &mut |slot, pages| {
            if let Some(live) = self.at(slot) {
                f(slot, &mut live.state, pages);
            }
        });
    }

    /// Clears entries of `span`, on each GPU those of the pages that `which` gives, and flushes.
    /// Which GPUs had any.
    fn clear(&mut self, window: CpuSpan, span: CpuSpan, which: &mut dyn FnMut(&Map) -> PageBits) -> u32 {
        let mut gpus = 0u32;
        self.each_block(window, span, &mut |_, block, pages| {
            for map in block.maps.iter_mut() {
                let pages = pages & which(map);
                if map.clear(pages) {
                    gpus |= 1 << map.vm.gpu_index();
                }
            }
        });
        let mut flushed = 0u32;
        self.each_block(window, span, &mut |_, block, _| {
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

    /// A block has changed: if it has outstanding pages a restore finds it.
    pub fn changed(&mut self, block: &Block) {
        let slot = block.slot();
        let Some(state) = self.of(block) else { return };
        state.check();
        if !state.outstanding().is_empty() {
            self.restless[slot / 64] |= 1 << (slot % 64);
        }
    }

    fn dropped(&self, block: &Block) -> PageBits {
        self.drops.get(block.slot()).copied().unwrap_or_default()
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

    fn has_drop(&self, window: CpuSpan, span: CpuSpan) -> bool {
        let mut any = false;
        each_slot(window, span, &mut |slot, pages| any |= !(self.drops[slot] & pages).is_empty());
        any
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let blocks = self.live.iter().map(|live| live.state.memory());
        self.slots.memory() + self.live.memory() + self.drops.memory() + blocks.sum::<u64>()
    }
}

/// Calls `f` with the number of each block that `span` touches in the window at `window`, and its
/// pages.
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
