// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which SVM memory is in a GPU's VRAM, coldest first, and bringing it back.
//!
//! A [`Granule`] is 2 MiB of a process's addresses. While pages of it are in a GPU's VRAM it has a
//! *seat* there, in a list by last use: a prefetch, a GPU fault or a restore. Each VRAM page that
//! was handed to the host knows its seat, so that [`DeviceMemory::released`] finds it, for any last
//! user of the page.
//!
//! Where room is needed ([`room`](crate::device::room)), the `LOT` coldest granules are brought
//! back, largest first (each costs one call, so the large ones cost less a page). That happens
//! without any lock of the driver: the process whose memory it is learns of it as of any
//! invalidation.
//!
//! First by the granule's addresses in the address space that it came from. The rest then belongs
//! to others (a forked child, or the same process at another address, after mremap). It is evicted
//! by place, for which the VRAM pages of a seat are linked.
//!
//! The lock (rank `Vram`) guards the list and the pages' seats: 16 bytes a VRAM page, made with the
//! first migration.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "pages of VRAM and of granules, which seats know; nothing in here is a client's number"
)]

use crate::base::addr::{index, CpuSpan, VramOffset, PAGE};
use crate::base::counters::SvmCounters;
use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::collections::handle::Handles;
use crate::collections::page_bits::{PageBits, BLOCK_PAGES};
use crate::device::smi::{Event, Who};
use crate::device::Device;
use crate::os::{self, Arc, Mutex, Vec};
use crate::seams::address_space::AddressSpace;
use crate::seams::device_memory::DeviceMemory;
use core::sync::atomic::{AtomicU32, Ordering};
use vkfd_uapi::smi::{MIGRATE_TRIGGER_PAGEFAULT_CPU, MIGRATE_TRIGGER_TTM_EVICTION};
use vkfd_uapi::svm::SVM_LOCATION_UNDEFINED;

const NIL: u32 = u32::MAX;
/// Granules that are looked at together.
const LOT: usize = 16;

/// 2 MiB of a process's addresses, as far as VRAM is concerned.
pub struct Granule {
    mm: Arc<dyn AddressSpace>,
    who: Who,
    span: CpuSpan,
    /// Its seat by GPU number.
    seats: Vec<AtomicU32>,
    counters: Arc<SvmCounters>,
}

impl Granule {
    /// In no VRAM.
    pub fn new(
        mm: Arc<dyn AddressSpace>,
        who: Who,
        span: CpuSpan,
        gpus: usize,
        counters: Arc<SvmCounters>,
    ) -> Result<Arc<Self>> {
        let mut seats = Vec::with_capacity(gpus)?;
        for _ in 0..gpus {
            seats.push(AtomicU32::new(NIL))?;
        }
        os::arc(Self { mm, who, span, seats, counters })
    }

    /// Its addresses.
    pub const fn span(&self) -> CpuSpan {
        self.span
    }

    /// Whether pages of it may be in the VRAM of GPU number `gpu`.
    pub fn is_on(&self, gpu: usize) -> bool {
        self.seats.get(gpu).is_some_and(|seat| seat.load(Ordering::Acquire) != NIL)
    }

    /// Whether pages of it may be in any VRAM.
    pub fn is_resident(&self) -> bool {
        (0..self.seats.len()).any(|gpu| self.is_on(gpu))
    }

    /// Brings what is in `span` of it back to system memory. How many pages moved. They count as
    /// the first GPU's that has any of the granule.
    pub fn bring_back(&self, span: CpuSpan) -> Result<u64> {
        let from = (0..self.seats.len()).find(|gpu| self.is_on(*gpu));
        let moved = self.mm.migrate_to_system(span)?;
        self.count_moves_out(from, moved);
        Ok(moved)
    }

    fn count_moves_out(&self, from: Option<usize>, pages: u64) {
        if pages > 0 {
            self.counters.add_out(from, pages);
        }
    }
}

struct Seat {
    granule: Arc<Granule>,
    /// Pages of the granule that are here, or offered a place here.
    pages: PageBits,
    /// How many places each of them has: several while several threads move it at once. Stays at
    /// the largest number.
    places: [u16; BLOCK_PAGES],
    /// Places in all, and the VRAM page that is the first of them.
    count: u64,
    first: u32,
    colder: u32,
    warmer: u32,
    /// The eviction that last tried it.
    tried: u64,
}

impl Seat {
    /// Page number `page` of the granule has one place more.
    fn enter(&mut self, page: u64) {
        self.pages.insert(page);
        self.count += 1;
        if let Some(places) = self.places.get_mut(index(page)) {
            *places = places.saturating_add(1);
        }
    }

    /// And one less.
    fn leave(&mut self, page: u64) {
        self.count -= 1;
        match self.places.get_mut(index(page)) {
            Some(&mut u16::MAX) | None => {}
            Some(places) => {
                *places -= 1;
                if *places == 0 {
                    self.pages.remove(page);
                }
            }
        }
    }
}

/// Whose a VRAM page is.
#[derive(Clone, Copy)]
struct Owner {
    seat: u32,
    /// Which page of the granule.
    page: u32,
    /// VRAM pages of the same seat.
    next: u32,
    before: u32,
}

impl Owner {
    const NOBODY: Self = Self { seat: NIL, page: 0, next: NIL, before: NIL };
}

struct State {
    /// Pages that hosts have, and pages that they have given back.
    hosted: u64,
    released: u64,
    /// Pages that were taken to be offered to hosts.
    promised: u64,
    seats: Handles<Seat>,
    coldest: u32,
    warmest: u32,
    owners: Vec<Owner>,
    evictions: u64,
}

/// What SVM memory is in one GPU's VRAM.
pub struct Residency {
    gpu: usize,
    state: Mutex<State>,
}

impl Residency {
    /// None, on GPU number `gpu`.
    pub fn new(gpu: usize) -> Result<Self> {
        let state = State {
            hosted: 0,
            released: 0,
            promised: 0,
            seats: Handles::new(),
            coldest: NIL,
            warmest: NIL,
            owners: Vec::new(),
            evictions: 0,
        };
        Ok(Self { gpu, state: Mutex::new(Rank::Vram, state)? })
    }

    /// Makes room to know the seats of `pages` pages of VRAM.
    pub fn prepare(&self, pages: u64) -> Result {
        if self.state.lock().owners.is_empty() {
            let mut owners = Vec::filled(Owner::NOBODY, index(pages))?;
            let mut state = self.state.lock();
            if state.owners.is_empty() {
                core::mem::swap(&mut state.owners, &mut owners);
            }
            drop(state);
        }
        Ok(())
    }

    /// Pages from page `first` of a granule on are about to be offered `places`. It becomes the
    /// warmest.
    pub fn enter(&self, granule: &Arc<Granule>, first: u64, places: &[Option<VramOffset>]) -> Result {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut number = granule.seats[self.gpu].load(Ordering::Acquire);
        if number == NIL {
            number = state.seats.reserve()?;
            let granule = granule.clone();
            granule.seats[self.gpu].store(number, Ordering::Release);
            let (pages, places) = (PageBits::NONE, [0; BLOCK_PAGES]);
            let seat = Seat { granule, pages, places, count: 0, first: NIL, colder: NIL, warmer: NIL, tried: 0 };
            state.seats.fill(number, seat);
            state.link(number);
        } else {
            state.unlink(number);
            state.link(number);
        }
        for (page, place) in places.iter().enumerate().map(|(page, place)| (first.saturating_add(page as u64), place)) {
            let Some(at) = place else { continue };
            state.own(index(at.0 / PAGE), number, page);
        }
        Ok(())
    }

    /// Pages are not, or no longer, the host's. False, and nothing done, where some of them were
    /// not.
    pub fn leave(&self, at: VramOffset, pages: u64) -> bool {
        let mut page = index(at.0 / PAGE);
        let end = {
            let state = self.state.lock();
            match page.checked_add(index(pages)).filter(|end| *end <= state.owners.len()) {
                Some(end) if state.owners[page..end].iter().all(|owner| owner.seat != NIL) => end,
                _ => return false,
            }
        };
        while page < end {
            // With the last page of a granule its seat goes, and perhaps the address space behind
            // it: not under the lock.
            let ended = self.state.lock().leave_until(self.gpu, &mut page, end);
            drop(ended);
        }
        true
    }

    /// It has just been used.
    pub fn touch(&self, granule: &Granule) {
        if granule.is_on(self.gpu) {
            let mut state = self.state.lock();
            let number = granule.seats[self.gpu].load(Ordering::Acquire);
            if number != NIL {
                state.unlink(number);
                state.link(number);
            }
        }
    }

    /// Its pages that are here.
    pub fn pages(&self, granule: &Granule) -> PageBits {
        if !granule.is_on(self.gpu) {
            return PageBits::NONE;
        }
        let state = self.state.lock();
        let seat = state.seats.get(granule.seats[self.gpu].load(Ordering::Acquire));
        seat.map_or(PageBits::NONE, |seat| seat.pages)
    }

    /// Whose the page at `at` is, which page of the granule it is, and how many of the next `pages`
    /// follow it there, too.
    fn owner(&self, at: VramOffset, pages: u64) -> Option<(Arc<Granule>, u64, u64)> {
        let state = self.state.lock();
        let owners = state.owners.get(index(at.0 / PAGE)..)?;
        let first = owners.first()?;
        let granule = state.seats.get(first.seat)?.granule.clone();
        let follows = |(at, owner): &(usize, &Owner)| {
            let page = u32::try_from(*at).ok().and_then(|at| first.page.checked_add(at));
            owner.seat == first.seat && Some(owner.page) == page
        };
        let run = owners.iter().take(index(pages)).enumerate().take_while(follows).count();
        Some((granule, first.page.into(), run as u64))
    }

    /// Where its pages are here, ascending: also those that are only offered a place.
    fn places(&self, granule: &Granule) -> Result<Vec<VramOffset>> {
        let mut places = Vec::new();
        loop {
            let wanted = {
                let state = self.state.lock();
                let number = granule.seats[self.gpu].load(Ordering::Acquire);
                let Some(seat) = state.seats.get(number) else { return Ok(Vec::new()) };
                if places.capacity() as u64 >= seat.count {
                    let mut at = seat.first;
                    while let Some(owner) = state.owners.get(at as usize) {
                        places.push_reserved(VramOffset(u64::from(at) * PAGE));
                        at = owner.next;
                    }
                    break;
                }
                seat.count
            };
            // Not under the lock.
            places = Vec::with_capacity(index(wanted))?;
        }
        places.sort_unstable_by_key(|at: &VramOffset| at.0);
        Ok(places)
    }

    /// How many granules have pages here.
    pub fn len(&self) -> usize {
        self.state.lock().seats.len()
    }

    /// VRAM pages that the host has (or is being offered), and how many it has given back since the
    /// beginning.
    pub fn hosted(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.hosted, state.released)
    }

    /// Notes that `pages` pages are to be offered to hosts, if these may have so many more: `most`
    /// in all.
    pub(super) fn promise(&self, pages: u64, most: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.hosted + state.promised + pages <= most;
        if fits {
            state.promised += pages;
        }
        fits
    }

    /// They were offered, or will not be.
    pub(super) fn redeem(&self, pages: u64) {
        self.state.lock().promised -= pages;
    }

    /// How many more pages hosts may have, of `most`.
    pub(super) fn left_of(&self, most: u64) -> u64 {
        let state = self.state.lock();
        most.saturating_sub(state.hosted + state.promised)
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn next_eviction(&self) -> u64 {
        let mut state = self.state.lock();
        state.evictions += 1;
        state.evictions
    }

    /// The coldest that eviction number `eviction` has not tried yet, largest first.
    pub(super) fn coldest(&self, eviction: u64) -> Result<Vec<(u64, Arc<Granule>)>> {
        let mut lot = Vec::with_capacity(LOT)?;
        let mut state = self.state.lock();
        let mut at = state.coldest;
        while at != NIL && lot.len() < LOT {
            let Some(seat) = state.seats.get_mut(at) else { break };
            if seat.tried != eviction {
                seat.tried = eviction;
                lot.push_reserved((seat.count, seat.granule.clone()));
                let mut place = lot.len() - 1;
                while place > 0 && lot[place - 1].0 < lot[place].0 {
                    lot.swap(place - 1, place);
                    place -= 1;
                }
            }
            at = seat.warmer;
        }
        Ok(lot)
    }
}

impl State {
    /// VRAM page `at` is for page number `page` of the granule of seat `number` from now on.
    fn own(&mut self, at: usize, number: u32, page: u64) {
        let Some(seat) = self.seats.get_mut(number) else { return };
        // There are fewer VRAM pages than 2^32, and pages of a granule are below 512.
        let (Ok(place), Ok(page_number)) = (u32::try_from(at), u32::try_from(page)) else { return };
        let Some(owner) = self.owners.get_mut(at) else { return };
        let next = core::mem::replace(&mut seat.first, place);
        *owner = Owner { seat: number, page: page_number, next, before: NIL };
        seat.enter(page);
        self.hosted += 1;
        if let Some(next) = self.owners.get_mut(next as usize) {
            next.before = place;
        }
    }

    /// Pages from `page` on leave their seats, until one is empty, which is returned, or `end`.
    fn leave_until(&mut self, gpu: usize, page: &mut usize, end: usize) -> Option<Seat> {
        while *page < end {
            let owner = core::mem::replace(&mut self.owners[*page], Owner::NOBODY);
            *page += 1;
            if let Some(next) = self.owners.get_mut(owner.next as usize) {
                next.before = owner.before;
            }
            if let Some(before) = self.owners.get_mut(owner.before as usize) {
                before.next = owner.next;
            }
            let Some(seat) = self.seats.get_mut(owner.seat) else { continue };
            if owner.before == NIL {
                seat.first = owner.next;
            }
            seat.leave(owner.page.into());
            self.hosted -= 1;
            if seat.count == 0 {
                seat.granule.seats[gpu].store(NIL, Ordering::Release);
                self.unlink(owner.seat);
                return self.seats.remove(owner.seat);
            }
        }
        None
    }

    fn link(&mut self, number: u32) {
        let last = core::mem::replace(&mut self.warmest, number);
        if let Some(seat) = self.seats.get_mut(number) {
            (seat.colder, seat.warmer) = (last, NIL);
        }
        match self.seats.get_mut(last) {
            Some(before) => before.warmer = number,
            None => self.coldest = number,
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(seat) = self.seats.get(number) else { return };
        let (colder, warmer) = (seat.colder, seat.warmer);
        match self.seats.get_mut(colder) {
            Some(before) => before.warmer = warmer,
            None => self.coldest = warmer,
        }
        match self.seats.get_mut(warmer) {
            Some(after) => after.colder = colder,
            None => self.warmest = colder,
        }
    }
}

impl Device {
    /// Brings a granule back to system memory. How many pages moved.
    pub(super) fn evict(&self, granule: &Granule) -> u64 {
        let (start, pages) = (granule.span.start().0 / PAGE, granule.span.pages());
        let (from, to, trigger) = (self.id(), 0, MIGRATE_TRIGGER_TTM_EVICTION);
        let (prefetch, preferred) = (SVM_LOCATION_UNDEFINED, SVM_LOCATION_UNDEFINED);
        let started = Event::MigrateStart { start, pages, from, to, prefetch, preferred, trigger };
        self.smi().send(self.id(), &granule.who, started, true);
        let result = granule.bring_back(granule.span);
        // An ended process has no memory to bring back; its remaining pages have other users.
        let moved = result.as_ref().map_or(0, |moved| *moved) + self.evict_from_others(granule).unwrap_or(0);
        let error = result.as_ref().map_or_else(|e| -e.errno.0.abs(), |_| 0);
        self.smi().send(self.id(), &granule.who, Event::MigrateEnd { start, pages, from, to, trigger, error }, true);
        if moved > 0 {
            granule.counters.evictions.add(1);
        }
        moved
    }

    /// Evicts the pages of a granule that are still here, by place. How many pages moved.
    fn evict_from_others(&self, granule: &Granule) -> Result<u64> {
        if !granule.is_on(self.index()) {
            return Ok(0);
        }
        let places = self.residency().places(granule)?;
        let moved = granule.mm.evict_places(self, &places)?;
        granule.count_moves_out(Some(self.index()), moved);
        Ok(moved)
    }

    /// Takes pages that were offered and did not move back into the allocator.
    pub fn withdraw(&self, at: VramOffset, pages: u64) {
        if self.residency().leave(at, pages) {
            self.vram().give_back_run(at, pages);
        }
    }
}

impl DeviceMemory for Device {
    fn gpu_id(&self) -> u32 {
        self.id()
    }

    fn coherent(&self) -> bool {
        self.memory_kind() == crate::seams::device_memory::Kind::Coherent
    }

    fn came_back(&self, at: VramOffset, pages: u64) {
        let mut done = 0;
        while done < pages {
            let next = VramOffset(at.0 + done * PAGE);
            let Some((granule, first, run)) = self.residency().owner(next, pages - done) else {
                // Nobody's: `released` says so.
                done += 1;
                continue;
            };
            granule.counters.add_out(Some(self.index()), run);
            let start = granule.span.start().0 / PAGE + first;
            let (from, to, trigger) = (self.id(), 0, MIGRATE_TRIGGER_PAGEFAULT_CPU);
            let (prefetch, preferred) = (SVM_LOCATION_UNDEFINED, SVM_LOCATION_UNDEFINED);
            let started = Event::MigrateStart { start, pages: run, from, to, prefetch, preferred, trigger };
            self.smi().send(self.id(), &granule.who, started, true);
            let ended = Event::MigrateEnd { start, pages: run, from, to, trigger, error: 0 };
            self.smi().send(self.id(), &granule.who, ended, true);
            done += run;
        }
    }

    fn released(&self, at: VramOffset, pages: u64) {
        // Before they leave, so that a thread that sees them gone also sees that they came back.
        self.residency().state.lock().released += pages;
        if self.residency().leave(at, pages) {
            self.vram().give_back_run(at, pages);
        } else {
            self.residency().state.lock().released -= pages;
            os::warn(format_args!(
                "gpu {:#x}: {pages} pages at VRAM {at} came back that were not given away",
                self.id()
            ));
        }
    }
}
