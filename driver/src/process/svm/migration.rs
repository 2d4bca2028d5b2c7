// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Moving SVM memory to a GPU's VRAM and back, in granules of 2 MiB where addresses allow, several
//! in one call to the host.
//!
//! The driver takes VRAM from its allocator (aligned blocks, so that a whole granule can be one
//! page-table entry), notes which granule it is for, and offers it. The host moves the pages that
//! it can, and unused VRAM goes back. Nothing is locked meanwhile. Only faults of the moving pages
//! wait, and other moves of the same block to a GPU. A user of the memory gets an invalidation for
//! the move, and finds the new place by faulting. So a migration that fails half way leaves some
//! pages here and some there, each whole.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a batch is 2 MiB times a constant at addresses that a range has; places are of its pages"
)]

use super::SvmWork;
use crate::base::addr::{index, CpuSpan, CpuVa, VramOffset, HUGE, HUGE_PAGES, PAGE};
use crate::base::errno::{Reason, Result};
use crate::collections::page_bits::PageBits;
use crate::device::room::Promise;
use crate::device::smi::Event;
use crate::device::vram::{Vram, VramBlock};
use crate::device::Device;
use crate::os::{self, Arc, Vec};
use crate::sabotage::FailPoint;
use crate::seams::device_memory::DeviceMemory;
use crate::svm::attributes::Attributes;
use crate::svm::block::{Block, Moving};

/// Bytes that one call to the host moves at most.
const BATCH: u64 = 16 * HUGE;
const SYSTEM: u32 = 0;

/// VRAM that has been taken, page by page.
struct Room {
    blocks: Vec<VramBlock>,
    /// What is next: a block, and a page of it.
    block: usize,
    page: u64,
    _promise: Promise,
}

impl Room {
    fn take(&mut self) -> Option<VramOffset> {
        let block = self.blocks.get(self.block)?;
        let at = VramOffset(block.at.0 + self.page * PAGE);
        self.page += 1;
        if self.page == block.pages {
            (self.block, self.page) = (self.block + 1, 0);
        }
        Some(at)
    }

    /// Gives back what nobody took. The rest has been offered.
    fn give_back(mut self, vram: &Vram) {
        while let Some(block) = self.blocks.get(self.block) {
            match self.page {
                0 => vram.give_back(&self.blocks[self.block..=self.block]),
                page => vram.give_back_run(VramOffset(block.at.0 + page * PAGE), block.pages - page),
            }
            (self.block, self.page) = (self.block + 1, 0);
        }
    }
}

/// A part of a batch in one block.
struct Offer {
    block: Arc<Block>,
    /// The block's pages that are to be on the GPU.
    own: PageBits,
    /// Those of them that have been offered places.
    pages: PageBits,
    /// Where its part of the places begins, and which page of the block that is.
    first: usize,
    first_page: u64,
    room: Option<Room>,
    /// From before it is known which pages are not there until it is known which have moved.
    moving: Option<Moving>,
}

/// Brings back what is `elsewhere` of pages that are to move, in as few calls as leave others where
/// they are. Whether there was any.
fn svm_bring_back(block: &Block, to_move: PageBits, elsewhere: PageBits) -> Result<bool> {
    let mut result = Ok(false);
    to_move.runs(|first, pages| {
        let run = PageBits::range(first, first + pages);
        if !(run & elsewhere).is_empty() && result.is_ok() {
            let start = block.span().start().0 + first * PAGE;
            let span = CpuSpan::between(CpuVa(start), CpuVa(start + pages * PAGE));
            result = block.granule().bring_back(span).map(|_| true);
        }
    });
    result
}

impl SvmWork<'_> {
    /// Moves `span`, which is in one range, to a GPU. How many pages moved; those that did not are
    /// used where they are.
    pub(super) fn move_in(&self, span: CpuSpan, a: &Attributes, device: &Arc<Device>, trigger: u32) -> Result<u64> {
        if !self.process.mm().migration().has(device.memory_kind()) {
            return Ok(0);
        }
        device.residency().prepare(device.vram().pages())?;
        // VRAM is taken for a whole batch: no more than SVM memory may have.
        let most = device.svm_pages().saturating_mul(PAGE).clamp(HUGE, BATCH);
        let moved = self.batches(span, 1 << most.ilog2(), |batch| self.move_batch_in(batch, a, device, trigger));
        self.process.hasten_restore();
        moved
    }

    /// Moves what is in VRAM of `span` back to system memory. How many pages moved.
    pub(super) fn move_out(&self, span: CpuSpan, a: &Attributes, trigger: u32) -> Result<u64> {
        self.batches(span, BATCH, |batch| {
            let mut at = batch.start().0;
            let mut from = None;
            while let Some(block) = self.process.svm().next_block(at, batch.end().0) {
                from = from.or(self.location(&block, block.pages_of(batch)));
                at = block.span().end().0;
            }
            let Some(from) = from else { return Ok(0) };
            let (start, pages) = (batch.start().0 / PAGE, batch.pages());
            let (gpu, from, to) = (from.index(), from.id(), SYSTEM);
            let (prefetch, preferred) = (a.prefetch, a.preferred);
            self.process.tell(from, Event::MigrateStart { start, pages, from, to, prefetch, preferred, trigger });
            let result = self.process.mm().migrate_to_system(batch);
            let error = result.as_ref().map_or_else(|e| -e.errno.0.abs(), |_| 0);
            self.process.tell(from, Event::MigrateEnd { start, pages, from, to, trigger, error });
            let moved = result?;
            if moved > 0 {
                self.process.svm().counters().add_out(Some(gpu), moved);
            }
            Ok(moved)
        })
    }

    /// The first GPU whose VRAM has some of `pages` of a block.
    pub(super) fn location(&self, block: &Block, pages: PageBits) -> Option<&Arc<Device>> {
        let has = |device: &&Arc<Device>| !(device.residency().pages(block.granule()) & pages).is_empty();
        self.process.kfd().devices().iter().find(has)
    }

    /// Calls `f` for pieces of `span` that end where batches of `bytes` do, a power of two.
    fn batches(&self, span: CpuSpan, bytes: u64, mut f: impl FnMut(CpuSpan) -> Result<u64>) -> Result<u64> {
        let (mut at, end) = (span.start().0, span.end().0);
        let mut moved = 0;
        while at < end {
            // Pages that have moved are reported as moved, without a failure.
            if moved > 0 && os::killed() {
                break;
            }
            os::interrupted()?;
            let next = (at | (bytes - 1)).saturating_add(1).min(end);
            moved += f(CpuSpan::between(CpuVa(at), CpuVa(next)))?;
            at = next;
        }
        Ok(moved)
    }

    fn move_batch_in(&self, span: CpuSpan, a: &Attributes, device: &Arc<Device>, trigger: u32) -> Result<u64> {
        let mut places: Vec<Option<VramOffset>> = Vec::filled(None, index(span.pages()))?;
        let mut offers: Vec<Offer> = Vec::with_capacity(index(BATCH / HUGE))?;
        let mut at = span.start().0;
        let mut result = Ok(0);
        let mut from = SYSTEM;
        while at < span.end().0 && result.is_ok() {
            let next = (at / HUGE * HUGE).saturating_add(HUGE).min(span.end().0);
            match self.offer(span, CpuSpan::between(CpuVa(at), CpuVa(next)), device, &mut from) {
                Ok(Some(offer)) => {
                    offers.push_reserved(offer);
                }
                Ok(None) => {}
                Err(e) => result = Err(e),
            }
            at = next;
        }
        for offer in offers.iter_mut() {
            if result.is_ok() {
                result = self.enter_offer(offer, device, &mut places).map(|()| 0);
            }
            if let Some(room) = offer.room.take() {
                room.give_back(device.vram());
            }
        }
        if result.is_ok() && places.iter().any(Option::is_some) {
            let (start, pages, to) = (span.start().0 / PAGE, span.pages(), device.id());
            let (prefetch, preferred) = (a.prefetch, a.preferred);
            self.process.tell(to, Event::MigrateStart { start, pages, from, to, prefetch, preferred, trigger });
            let memory: Arc<dyn DeviceMemory> = device.clone();
            result = os::failpoint(FailPoint::Migrate)
                .and_then(|()| self.process.mm().migrate_to_device(span, &memory, &mut places));
            let error = result.as_ref().map_or_else(|e| -e.errno.0.abs(), |_| 0);
            self.process.tell(to, Event::MigrateEnd { start, pages, from, to, trigger, error });
        }
        // Also of a move that failed half way.
        let moved = self.settle_offers(&offers, device, &mut places);
        if moved > 0 {
            self.process.svm().counters().add_in(device.index(), moved);
        }
        result.map(|_| moved)
    }

    /// Takes VRAM for pages of `part` of a batch, which is in one block, that are not there yet.
    /// `None` where there is nothing to move, or no VRAM. Others may be making room for the same
    /// pages.
    fn offer(&self, batch: CpuSpan, part: CpuSpan, device: &Arc<Device>, from: &mut u32) -> Result<Option<Offer>> {
        let Some(block) = self.process.svm().block(part.start().0)? else { return Ok(None) };
        let own = block.pages_of(part);
        // What others are bringing there is there when this returns, as in KFD, where they hold a
        // mutex.
        block.await_moves(self.process.deadline());
        let missing = || own & !device.residency().pages(block.granule());
        // From one GPU to another by way of system memory; pages that are already there stay.
        for other in self.process.kfd().devices().iter().filter(|other| other.index() != device.index()) {
            if svm_bring_back(&block, missing(), other.residency().pages(block.granule()))? {
                *from = other.id();
            }
        }
        let pages = missing();
        if pages.is_empty() {
            device.residency().touch(block.granule());
            return Ok(None);
        }
        let (blocks, promise) = match device.alloc_svm_vram(pages.count()) {
            Ok(taken) => taken,
            Err(e) if e.reason == Reason::NoVram => {
                self.process.svm().counters().pages_refused.add(pages.count());
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let first = index((part.start().0 - batch.start().0) / PAGE);
        let first_page = (part.start().0 - block.span().start().0) / PAGE;
        let room = Some(Room { blocks, block: 0, page: 0, _promise: promise });
        Ok(Some(Offer { block, own, pages: PageBits::NONE, first, first_page, room, moving: None }))
    }

    /// From here on no other thread faults the moving pages in, or moves them. Gives each page that
    /// is still not there a place.
    fn enter_offer(&self, offer: &mut Offer, device: &Device, places: &mut [Option<VramOffset>]) -> Result {
        let Some(moving) = offer.block.begin_move(self.process.deadline()) else { return Ok(()) };
        let granule = offer.block.granule();
        let missing = offer.own & !device.residency().pages(granule);
        let mut pages = PageBits::NONE;
        let slots = &mut places[offer.first..];
        for page in (0..HUGE_PAGES).filter(|page| missing.has(*page)) {
            // What came back since VRAM was taken has none.
            let Some(at) = offer.room.as_mut().and_then(Room::take) else { break };
            slots[index(page - offer.first_page)] = Some(at);
            pages.insert(page);
        }
        // Before the host has them: from then on it may give them back at any time.
        let count = offer.own.count();
        if let Err(e) = device.residency().enter(granule, offer.first_page, &slots[..index(count)]) {
            for slot in slots[..index(count)].iter_mut() {
                if let Some(at) = slot.take() {
                    device.vram().give_back_run(at, 1);
                }
            }
            return Err(e);
        }
        (offer.pages, offer.moving) = (pages, Some(moving));
        Ok(())
    }

    /// Takes back what was offered and did not move, and notes what did. How many pages that is.
    fn settle_offers(&self, offers: &[Offer], device: &Device, places: &mut [Option<VramOffset>]) -> u64 {
        let counters = self.process.svm().counters();
        let mut all = 0;
        for offer in offers {
            let slots = &mut places[offer.first..];
            let mut moved = PageBits::NONE;
            let mut run: Option<(VramOffset, u64)> = None;
            offer.pages.runs(|first, count| {
                for page in first..first + count {
                    let Some(at) = slots[index(page - offer.first_page)].take() else {
                        moved.insert(page);
                        continue;
                    };
                    run = Some(match run {
                        Some((start, pages)) if start.0 + pages * PAGE == at.0 => (start, pages + 1),
                        Some((start, pages)) => {
                            device.withdraw(start, pages);
                            (at, 1)
                        }
                        None => (at, 1),
                    });
                }
            });
            if let Some((start, pages)) = run {
                device.withdraw(start, pages);
            }
            counters.pages_refused.add((offer.pages & !moved).count());
            if moved.is_empty() {
                continue;
            }
            all += moved.count();
            let damping = &self.process.kfd().options().damping;
            if offer.block.state(|b| b.bounces.moved(moved, os::now(), damping)) == Some(true) {
                counters.bounces.add(1);
            }
        }
        all
    }
}
