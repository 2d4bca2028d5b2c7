// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A userptr object: caller memory, one range or thousands, that a GPU sees as one contiguous
//! range. No page is pinned.
//!
//! Each range has a *generation*, raised by every invalidation that touches it, and a *status*.
//! Pages are faulted in without a lock and used only if the range's generation has not changed (see
//! [`crate::userptr::revalidate`]). So each range has its own validity: an invalidation beside it
//! costs nothing, one inside costs one range. The whole batch has no sequence number that could
//! keep a registration from ever finishing.
//!
//! Invalid ranges are linked into a list through an array, so that the callback allocates nothing
//! and a restore visits only them.
//!
//! * XNACK off: the callback marks the ranges, and if the object is mapped stops the process's
//!   queues ([`crate::queues::eviction`]). Entries stay, stopped queues are the barrier.
//! * XNACK on: the callback clears the ranges' entries and flushes; the device faults, and the
//!   fault handler restores.
//!
//! The notifier lock (rank `Notifier`, one per object) guards [`State`]. It is taken in reclaim.
//! Cost of an invalidation: O(log n + ranges hit), with XNACK on also O(pages of these); a callback
//! that hits no range takes no lock.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "numbers of ranges and pages of a set that was checked; what a host names is cut to it"
)]

pub mod owner;
pub mod range_set;
pub mod reach;
pub mod revalidate;
pub mod window;

use self::owner::UserptrOwner;
use crate::base::addr::{index, CpuSpan, CpuVa, GpuVa, PAGE};
use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::base::pte;
use crate::gpuvm::vm::Mapping;
use crate::os::{Arc, Mutex, MutexGuard, Vec};
use crate::sabotage::Switch;
use crate::seams::address_space::{Access, Invalidate, Page};
use crate::userptr::range_set::RangeSet;
use crate::userptr::reach::Reach;
use core::sync::atomic::{AtomicU32, Ordering};
use vkfd_uapi::smi::QUEUE_EVICTION_TRIGGER_USERPTR;

const NIL: u32 = u32::MAX;

/// What is known of a range's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Not known: to be faulted in.
    Invalid,
    /// Some pages of a long range are committed, more are being faulted in.
    Filling,
    /// The object has its pages.
    Valid,
    /// There was no mapping when it was last looked at: no entries.
    Gone,
    /// The mapping did not allow the access when it was last looked at: no entries.
    Denied,
}

#[derive(Clone, Copy)]
struct RangeState {
    generation: u32,
    /// Next on the list of invalid ranges.
    next: u32,
    status: Status,
    listed: bool,
    /// Has been valid at some time.
    seen: bool,
    /// What it was, gone or denied, while the driver looks for its memory.
    looked_for: Option<Status>,
}

/// What the notifier lock guards.
pub struct State {
    ranges: Vec<RangeState>,
    pages: Vec<Page>,
    first_invalid: u32,
    /// Ranges that are `Invalid` or `Filling`.
    invalid: usize,
    /// Ranges that are `Gone` or `Denied`.
    missing: usize,
    /// Ranges that have never been valid.
    unseen: usize,
    maps: Vec<Mapping>,
    /// On the eviction's waiting list.
    waiting: bool,
    /// On its list of those that lack memory.
    lacking: bool,
    /// How much a GPU's fault brings.
    reach: Reach,
}

/// The notifier lock, held.
pub type Guard<'a> = MutexGuard<'a, State>;

/// The object's reservation ([`crate::buffers::bo`]), as far as userptr must know that it is held:
/// a thread that has a reference to it holds that lock.
pub struct Reservation(());

impl Reservation {
    /// For the data that the lock guards.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

/// A userptr object.
pub struct Userptr {
    process: Arc<dyn UserptrOwner>,
    /// The object's number in its process.
    number: u32,
    va: GpuVa,
    access: Access,
    executable: bool,
    ranges: RangeSet,
    state: Mutex<State>,
    /// Moves of its memory to a GPU under way. Raised under the reservation, taken back without.
    moving: AtomicU32,
}

/// Memory of an object is being moved to a GPU, until this is dropped.
pub struct Moving(Arc<Userptr>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Userptr {
    /// An object all of whose ranges are invalid. O(pages) memory: 8 bytes per page, 40 per range.
    pub fn new(
        process: Arc<dyn UserptrOwner>,
        number: u32,
        va: GpuVa,
        access: Access,
        executable: bool,
        ranges: RangeSet,
    ) -> Result<Arc<Self>> {
        let fresh = RangeState {
            generation: 0,
            next: NIL,
            status: Status::Invalid,
            listed: false,
            seen: false,
            looked_for: None,
        };
        let mut state = State {
            ranges: Vec::filled(fresh, ranges.len())?,
            pages: Vec::filled(Page::default(), index(ranges.pages()))?,
            first_invalid: NIL,
            invalid: ranges.len(),
            missing: 0,
            unseen: ranges.len(),
            maps: Vec::with_capacity(process.gpu_count())?,
            waiting: false,
            lacking: false,
            reach: Reach::default(),
        };
        // By address: neighbours are faulted in together however the caller's array orders them.
        for range in ranges.by_cpu().iter().rev() {
            state.list(*range as usize);
        }
        crate::os::arc(Self {
            process,
            number,
            va,
            access,
            executable,
            ranges,
            state: Mutex::new(Rank::Notifier, state)?,
            moving: AtomicU32::new(0),
        })
    }

    /// Keeps its memory from being faulted in: see `calls::move_pages`. Under the object's
    /// reservation, so that no fault is under way.
    pub fn begin_move(self: &Arc<Self>, _: &Reservation) -> Moving {
        self.moving.fetch_add(1, Ordering::AcqRel);
        Moving(self.clone())
    }

    /// Whether some of its memory is being moved to a GPU.
    pub fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire) != 0
    }

    /// Its ranges.
    pub const fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// Its first GPU address.
    pub const fn va(&self) -> GpuVa {
        self.va
    }

    /// What the GPU may do with it.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Whose it is.
    pub fn process(&self) -> &dyn UserptrOwner {
        &*self.process
    }

    /// Takes the notifier lock.
    pub fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// The entry for a page: where it points and what it allows.
    fn entry(&self, page: Page) -> u64 {
        let mut access = pte::READABLE;
        if self.access == Access::Write && page.writable() {
            access |= pte::WRITEABLE;
        }
        if self.executable {
            access |= pte::EXECUTABLE;
        }
        pte::leaf(page.target(), access, 0)
    }

    /// Writes the entries of `count` pages from object page `first` into one mapping, from the
    /// committed pages.
    pub fn write_entries(&self, state: &State, map: &Mapping, first: u64, count: u64) {
        let pages = &state.pages[index(first)..index(first + count)];
        map.leaves.write_pages(&**map.vm.gpu(), first, pages, |page| self.entry(page));
    }

    /// Asks for a restore of this object if it has invalid ranges and is mapped. Stops the queues
    /// until then. With XNACK on nothing is to be done: faults bring the ranges back.
    pub fn request_restore(&self, state: &mut State) {
        if !self.process.xnack() && self.keep_waiting(state) {
            self.process.schedule_restore();
        }
    }

    /// Puts this object on the waiting list if it has invalid ranges and is mapped. Whether it did.
    pub fn keep_waiting(&self, state: &mut State) -> bool {
        let wanted = state.invalid > 0 && !state.maps.is_empty();
        if wanted {
            self.evict(state, &mut self.process.eviction().lock(), true);
        }
        wanted
    }

    /// Puts this object on the list of those that lack memory if it is mapped and has ranges that
    /// are gone or denied. Whether it has.
    pub fn note_lack(&self, state: &mut State) -> bool {
        let lacks = state.missing > 0 && !state.maps.is_empty();
        if lacks && !core::mem::replace(&mut state.lacking, true) {
            self.process.eviction().lock().lack(self.number);
        }
        lacks
    }

    fn evict(&self, state: &mut State, eviction: &mut crate::queues::eviction::State, blockable: bool) {
        if !core::mem::replace(&mut state.waiting, true) {
            eviction.wait(self.number);
        }
        self.process.evict_queues(eviction, QUEUE_EVICTION_TRIGGER_USERPTR, blockable);
    }

    /// Bytes of driver memory held.
    pub fn memory(&self) -> u64 {
        let state = self.lock();
        size_of::<Self>() as u64
            + self.ranges.memory()
            + state.ranges.memory()
            + state.pages.memory()
            + state.maps.memory()
            + state.maps.iter().map(|m| m.leaves.memory()).sum::<u64>()
    }
}

impl Invalidate for Userptr {
    fn invalidate(&self, span: CpuSpan, blockable: bool) -> bool {
        let counters = self.process.counters();
        let sabotage = self.process.sabotage();
        // An overlap test that is off by one page at a range's end is one whose span begins a page
        // late.
        let late = if sabotage.has(Switch::RangeEnd) { PAGE } else { 0 };
        let span = CpuSpan::between(CpuVa(span.start().0 + late), span.end());
        let mut any = false;
        self.ranges.overlapping(span, &mut |_| {
            any = true;
            false
        });
        if !any || sabotage.has(Switch::Invalidation) {
            return true;
        }
        let Some(mut state) = (if blockable { Some(self.state.lock()) } else { self.state.try_lock() }) else {
            return false;
        };
        let retried = self.process.xnack();
        let stop = !retried && !state.maps.is_empty();
        // Both locks before the first change, so that refusing leaves nothing half done.
        let mut eviction = if !stop {
            None
        } else if blockable {
            Some(self.process.eviction().lock())
        } else {
            match self.process.eviction().try_lock() {
                None => return false,
                guard => guard,
            }
        };
        let state = &mut *state;
        let mut hit = 0;
        let mut cleared = false;
        self.ranges.overlapping(span, &mut |range| {
            hit += 1;
            let had_entries = state.invalidate(range);
            if retried && had_entries {
                let (first, pages) = self.ranges.place(range);
                for map in state.maps.iter() {
                    map.leaves.clear(&**map.vm.gpu(), first, pages);
                }
                cleared = true;
            }
            true
        });
        counters.invalidations.add(1);
        counters.ranges_invalidated.add(hit);
        if cleared {
            for map in state.maps.iter() {
                map.vm.flush();
            }
        }
        if let Some(eviction) = eviction.as_deref_mut() {
            self.evict(state, eviction, blockable);
            self.process.schedule_restore();
        }
        true
    }
}

impl State {
    fn list(&mut self, range: usize) {
        if !core::mem::replace(&mut self.ranges[range].listed, true) {
            self.ranges[range].next = self.first_invalid;
            // Range counts stay below 2^32 - 1 (checked when the set is built).
            self.first_invalid = u32::try_from(range).unwrap_or(NIL);
        }
    }

    fn set_status(&mut self, range: usize, status: Status) {
        let count = |status| match status {
            Status::Invalid | Status::Filling => (1, 0),
            Status::Gone | Status::Denied => (0, 1),
            Status::Valid => (0, 0),
        };
        let (invalid, missing) = count(core::mem::replace(&mut self.ranges[range].status, status));
        let (now_invalid, now_missing) = count(status);
        if now_invalid == 0 {
            self.ranges[range].looked_for = None;
        }
        self.invalid = self.invalid + now_invalid - invalid;
        self.missing = self.missing + now_missing - missing;
        if status == Status::Valid && !core::mem::replace(&mut self.ranges[range].seen, true) {
            self.unseen -= 1;
        }
    }

    /// Raises the generation and makes the range invalid. Whether it may have had entries.
    fn invalidate(&mut self, range: usize) -> bool {
        self.ranges[range].generation = self.ranges[range].generation.wrapping_add(1);
        self.ranges[range].looked_for = None;
        match self.ranges[range].status {
            // Listed, or in the hands of a revalidation, which will find the generation moved and
            // list it.
            Status::Invalid => false,
            was => {
                self.set_status(range, Status::Invalid);
                self.list(range);
                matches!(was, Status::Valid | Status::Filling)
            }
        }
    }

    /// Range `range`'s generation and status.
    pub fn range(&self, range: usize) -> (u32, Status) {
        (self.ranges[range].generation, self.ranges[range].status)
    }

    /// As clients see it: gone or denied, while its memory is looked for.
    pub fn shown(&self, range: usize) -> Status {
        self.ranges[range].looked_for.unwrap_or(self.ranges[range].status)
    }

    /// How many ranges are invalid, and how many are gone or denied.
    pub const fn counts(&self) -> (usize, usize) {
        (self.invalid, self.missing)
    }

    /// How many ranges have never been valid.
    pub const fn unseen(&self) -> usize {
        self.unseen
    }

    /// The first that has never been valid. O(ranges).
    pub fn first_unseen(&self) -> Option<usize> {
        self.ranges.iter().position(|range| !range.seen)
    }

    /// The first on the list that is invalid: some may have become valid without having been taken
    /// off it.
    pub fn first_invalid(&self) -> Option<usize> {
        let mut at = self.first_invalid;
        while at != NIL && self.ranges[at as usize].status != Status::Invalid {
            at = self.ranges[at as usize].next;
        }
        (at != NIL).then_some(at as usize)
    }

    /// Takes the whole list of invalid ranges; its members stay linked.
    pub fn take_list(&mut self) -> InvalidList {
        InvalidList(core::mem::replace(&mut self.first_invalid, NIL))
    }

    /// Takes only those that have never been valid; the others stay, in their order. O(listed).
    pub fn take_unseen(&mut self) -> InvalidList {
        let mut at = core::mem::replace(&mut self.first_invalid, NIL);
        let mut taken = InvalidList(NIL);
        let (mut last_taken, mut last_kept) = (NIL, NIL);
        while at != NIL {
            let next = core::mem::replace(&mut self.ranges[at as usize].next, NIL);
            let (first, last) = match self.ranges[at as usize].seen {
                false => (&mut taken.0, &mut last_taken),
                true => (&mut self.first_invalid, &mut last_kept),
            };
            match core::mem::replace(last, at) {
                NIL => *first = at,
                before => self.ranges[before as usize].next = at,
            }
            at = next;
        }
        taken
    }

    /// The first of a list taken with [`take_list`](Self::take_list).
    pub fn peek(&self, list: &InvalidList) -> Option<usize> {
        (list.0 != NIL).then_some(list.0 as usize)
    }

    /// Pages of the ranges of a list, also of those that have become valid: they may be invalidated
    /// again. O(listed).
    pub fn pages_of(&self, list: &InvalidList, ranges: &RangeSet) -> u64 {
        let mut at = list.0;
        let mut pages = 0u64;
        while at != NIL {
            pages = pages.saturating_add(ranges.place(at as usize).1);
            at = self.ranges[at as usize].next;
        }
        pages
    }

    /// Takes the first off the list.
    pub fn pop(&mut self, list: &mut InvalidList) -> Option<usize> {
        let range = self.peek(list)?;
        list.0 = self.ranges[range].next;
        self.ranges[range].listed = false;
        Some(range)
    }

    /// Puts what is left of a list back.
    pub fn put_back(&mut self, mut list: InvalidList) {
        while let Some(range) = self.pop(&mut list) {
            self.list(range);
        }
    }

    /// Puts a range that could not be committed back on the list, if it is still invalid.
    pub fn relist(&mut self, range: usize) {
        if matches!(self.ranges[range].status, Status::Invalid | Status::Filling) {
            self.set_status(range, Status::Invalid);
            self.list(range);
        }
    }

    /// How much a GPU's fault brings.
    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }

    /// Makes all gone and denied ranges invalid, so that they are looked at again. O(ranges) if
    /// there are any.
    pub fn retry_missing(&mut self) {
        self.relist_missing(false);
    }

    /// [`retry_missing`](Self::retry_missing) of a driver that looks by itself: clients see the old
    /// state until there is a new one.
    pub fn look_for_missing(&mut self) {
        self.relist_missing(true);
    }

    fn relist_missing(&mut self, unseen: bool) {
        if self.missing == 0 {
            return;
        }
        for range in 0..self.ranges.len() {
            let was = self.ranges[range].status;
            if matches!(was, Status::Gone | Status::Denied) {
                self.ranges[range].looked_for = unseen.then_some(was);
                self.set_status(range, Status::Invalid);
                self.list(range);
            }
        }
    }

    /// Stores pages of a range from object page `first` on; the range becomes `status`.
    pub fn commit(&mut self, range: usize, first: u64, pages: &[Page], status: Status) {
        self.pages[index(first)..index(first) + pages.len()].copy_from_slice(pages);
        self.set_status(range, status);
    }

    /// Records that a range has no pages to be had.
    pub fn miss(&mut self, range: usize, status: Status) {
        self.set_status(range, status);
    }

    /// Its mappings.
    pub fn maps(&self) -> &[Mapping] {
        &self.maps
    }

    /// Adds a mapping; there is room for one per GPU.
    pub fn add_map(&mut self, map: Mapping) {
        self.maps.push_reserved(map);
    }

    /// Takes the mapping of a GPU away.
    pub fn remove_map(&mut self, gpu: usize) -> Option<Mapping> {
        let at = self.maps.iter().position(|m| m.vm.gpu_index() == gpu)?;
        Some(self.maps.swap_remove(at))
    }

    /// The restore has taken the object off the waiting list.
    pub fn no_longer_waiting(&mut self) {
        self.waiting = false;
    }

    /// The object has been taken off the list of those that lack memory.
    pub fn no_longer_lacking(&mut self) {
        self.lacking = false;
    }
}

/// Invalid ranges taken off an object, linked through its state.
pub struct InvalidList(u32);

impl InvalidList {
    pub const fn empty() -> Self {
        Self(NIL)
    }
}
