// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The process's CPU memory as the driver sees it: watches, invalidations, faulting in. One [`Mm`]
//! a process, for all machines.
//!
//! An invalidation is, in the kernel's order: *begin* (callbacks of the overlapping watches), the
//! frames die, *the change*, *end*. [`Mm::invalidation`] does the first two and its guard's drop
//! the last. Its callers are the notification source: [`crate::uffd`]'s reader thread,
//! the hooks of
//! [`crate::interpose`], the fork handlers, or [`Mm::lost`].
//!
//! # Rules of the notification path
//!
//! A thread inside munmap or madvise may sleep until the reader thread has read its event, with any
//! lock held, malloc's included. So from begin to end nothing is allocated or freed, and no lock is
//! taken under which another thread allocates, frees or changes mappings:
//!
//! | lock | guards | held while allocating? |
//! | --- | --- | --- |
//! | `registration` | changes of the set of watches, userfaultfd registration | yes; the notification path never takes it, the mover's worker never waits for it |
//! | `tree` | the watches by interval; read-locked over callbacks, so that a watch's end waits for them | for reading only (the notification path reads too, and nobody can wait to write meanwhile: writers have `registration`) |
//! | `flight` | the invalidations under way | no |
//! | `gates` | whom the reader pauses | no |
//! | frame pool | [`crate::frame`] | no |
//!
//! Order: registration, tree, (the driver's notifier locks), flight, frame pool.

pub(crate) mod elsewhere;
mod fork;
mod registration;
pub(crate) mod told;

use self::elsewhere::Elsewhere;
use self::registration::Registration;
use self::told::{Goes, Told};
use crate::error::HostError;
use crate::frame::{Frames, Resolved};
use crate::interposed::interposed;
use crate::maps;
use crate::per_process::{Identity, PerProcess};
use crate::populate::Populate;
use crate::source::{Capabilities, Source};
use crate::uffd::{Change, Listener, Uffd};
use crate::{sabotage, sys};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, PhysAddr, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::collections::interval::IntervalMap;
use vkfd_driver::seams::address_space::{Access, Faulted, Page};
use vkfd_sabotage::Switch;

/// Invalidations that can be under way at once; more wait. The last place is the reader thread's
/// alone, because a thread that has another may wait for the reader.
const FLIGHTS: usize = 64;
/// Machines that the reader can pause.
const GATES: usize = 64;

/// Someone whose accesses to CPU memory can be held up.
pub trait Pause: Send + Sync {
    /// Holds all accesses up; none is in flight when it returns. Neither allocates nor frees.
    /// Counted.
    fn pause(&self);
    /// Takes one `pause` back.
    fn unpause(&self);
}

/// The process's memory.
pub struct Mm {
    process: Identity,
    frames: Frames,
    populate: Populate,
    source: Source,
    uffd: Option<Uffd>,
    elsewhere: OnceLock<Result<&'static dyn Elsewhere, String>>,
    tree: RwLock<IntervalMap<Told>>,
    registration: Mutex<Registration>,
    /// The mover's worker, which does not wait for `registration`, wants it.
    wanted: AtomicBool,
    /// The mover's worker is passing memory's events from one descriptor to another.
    handing: AtomicBool,
    watches: AtomicUsize,
    flight: Mutex<[Option<CpuSpan>; FLIGHTS]>,
    landed: Condvar,
    gates: Mutex<[Option<Arc<dyn Pause>>; GATES]>,
}

/// The thread that is starting an invalidation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Reader,
    Others,
}

/// An invalidation under way: callbacks are over, frames are dead. Dropping it says that the change
/// has happened.
pub struct Invalidation<'a> {
    mm: &'a Mm,
    slot: usize,
}

static MM: PerProcess<Result<&'static Mm, HostError>> = PerProcess::new();

impl Mm {
    /// The process's one. The first call decides the source.
    ///
    /// # Errors
    /// [`HostError`]; what the first call met stays so for the life of the process.
    pub fn get(wanted: Source) -> Result<&'static Self, HostError> {
        let mm = MM.get_or_init(|| Self::start(wanted)).ok_or(HostError::Borrowed)?.clone()?;
        match wanted.or_from_environment()? {
            Source::Auto => Ok(mm),
            wanted if wanted == mm.source => Ok(mm),
            wanted => Err(HostError::SourceTaken { has: mm.source, wanted }),
        }
    }

    /// The process's one if there is one.
    pub(crate) fn current() -> Option<&'static Self> {
        MM.get()?.as_ref().ok().copied()
    }

    fn start(wanted: Source) -> Result<&'static Self, HostError> {
        let wanted = wanted.or_from_environment()?;
        let (source, uffd) = match wanted {
            Source::Userfaultfd => {
                (wanted, Some(Uffd::open().map_err(|e| HostError::Source { wanted, why: e.to_string() })?))
            }
            Source::Interposed if !interposed() => {
                let why = "libc's mapping calls are not interposed in this program (cargo feature `interpose`)".into();
                return Err(HostError::Source { wanted, why });
            }
            Source::Interposed | Source::AccessOnly => (wanted, None),
            Source::Auto => match Uffd::open() {
                Ok(uffd) => (Source::Userfaultfd, Some(uffd)),
                Err(error) => {
                    let source = if interposed() { Source::Interposed } else { Source::AccessOnly };
                    tracing::info!(%error, %source, "userfaultfd is not available");
                    (source, None)
                }
            },
        };
        vkfd_gpu::raw::install();
        let frames = Frames::new().map_err(|e| HostError::AddressSpace(e.to_string()))?;
        // Lives as long as the process: the reader thread and the fork handlers have no end.
        let mm: &'static Self = Box::leak(Box::new(Self {
            process: Identity::current(),
            frames,
            populate: Populate::new(),
            source,
            uffd,
            elsewhere: OnceLock::new(),
            tree: RwLock::new(IntervalMap::new()),
            registration: Mutex::default(),
            wanted: AtomicBool::new(false),
            handing: AtomicBool::new(false),
            watches: AtomicUsize::new(0),
            flight: Mutex::new([None; FLIGHTS]),
            landed: Condvar::new(),
            gates: Mutex::new([const { None }; GATES]),
        }));
        if let Some(uffd) = &mm.uffd {
            let serve = || uffd.serve(mm).and_then(|()| mm.serve_tidy());
            serve().map_err(|e| HostError::Source { wanted: Source::Userfaultfd, why: e.to_string() })?;
        }
        if !mm.uffd.as_ref().is_some_and(Uffd::sees_forks) && source != Source::AccessOnly {
            fork::install();
        }
        tracing::debug!(%source, unseen = mm.capabilities().unseen(), "watching CPU mappings");
        Ok(mm)
    }

    /// Where notifications come from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// What the source sees.
    pub fn capabilities(&self) -> Capabilities {
        let hooks = interposed() && self.source != Source::AccessOnly;
        match &self.uffd {
            Some(uffd) => Capabilities { protect: hooks, pageout: hooks, ..uffd.capabilities() },
            None => Capabilities {
                unmap: hooks,
                remap: hooks,
                discard: hooks,
                protect: hooks,
                pageout: hooks,
                files: hooks,
                fork: self.source != Source::AccessOnly,
                raw_system_calls: false,
                before_change: hooks,
            },
        }
    }

    /// The frame table.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Whether this is the process that the watches are about, and not a child it forked.
    pub fn is_current(&self) -> bool {
        self.process.is_current()
    }

    /// Waits until the changes of all calls that have returned were told to the driver.
    pub fn settle(&self) {
        if let Some(uffd) = &self.uffd {
            uffd.settle();
        }
        if let Some(mover) = self.elsewhere() {
            mover.settle();
        }
        self.settle_handing();
    }

    /// Waits until the driver was notified of the changes of all returned calls to memory on GPUs.
    /// A page of system memory is reached through its CPU address, and the GPU sees the CPU's
    /// memory anyway. A few loads if nothing is changing.
    pub(crate) fn settle_told(&self) {
        if let Some(mover) = self.elsewhere() {
            mover.settle_told();
        }
    }

    /// What moves pages to GPUs, if anything has moved yet.
    pub(crate) fn elsewhere(&self) -> Option<&'static dyn Elsewhere> {
        self.elsewhere.get()?.as_ref().ok().copied()
    }

    /// What moves pages to GPUs, made by `start` if need be.
    ///
    /// # Errors
    /// Why nothing can be moved here, for people.
    pub(crate) fn elsewhere_or(
        &self,
        start: impl FnOnce() -> Result<&'static dyn Elsewhere, String>,
    ) -> Result<&'static dyn Elsewhere, &str> {
        self.elsewhere.get_or_init(start).as_ref().copied().map_err(String::as_str)
    }

    /// How many pages are on GPUs, and in how many runs of neighbours.
    pub fn moved(&self) -> (u64, usize) {
        self.elsewhere().map_or((0, 0), Elsewhere::resident)
    }

    /// In how many steps pages have moved so far, there and back. In each, a thread that touches
    /// its pages waits until it is over.
    pub fn steps(&self) -> u64 {
        self.elsewhere().map_or(0, |mover| mover.epoch() / 2)
    }

    fn tree(&self) -> RwLockReadGuard<'_, IntervalMap<Told>> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn flight(&self) -> MutexGuard<'_, [Option<CpuSpan>; FLIGHTS]> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gates(&self) -> MutexGuard<'_, [Option<Arc<dyn Pause>>; GATES]> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a watch overlaps `span`. Allocates nothing.
    pub(crate) fn is_watched(&self, span: CpuSpan) -> bool {
        self.watches.load(Ordering::SeqCst) != 0
            && !self.tree().overlapping(span.start().0, span.end().0, &mut |_, _, _| false)
    }

    /// Begins an invalidation of `span`: the driver is told and the frames die. The change may
    /// happen until the guard is dropped.
    pub fn invalidation(&self, span: CpuSpan) -> Invalidation<'_> {
        self.begin(span, By::Others, Goes::Pages)
    }

    pub(crate) fn begin(&self, span: CpuSpan, by: By, goes: Goes) -> Invalidation<'_> {
        let slot = self.take_off(span, by);
        let (start, end) = (span.start().0, span.end().0);
        let tree = self.tree();
        tree.overlapping(start, end, &mut |_, _, told| {
            told.tell(span, goes);
            true
        });
        tree.overlapping(start, end, &mut |_, _, told| {
            self.frames.kill(told.cut(span));
            true
        });
        Invalidation { mm: self, slot }
    }

    /// Inside an invalidation of pages: the change has happened, and `span` is no longer the memory
    /// that it was.
    pub(crate) fn memory_gone(&self, span: CpuSpan) {
        self.tree().overlapping(span.start().0, span.end().0, &mut |_, _, told| {
            told.tell(span, Goes::Memory);
            true
        });
    }

    /// `span` is about to be unmapped. Notifies watchers of memory that may not be registered,
    /// which raises no event. Before the call, because afterwards other memory may be there, and
    /// watched.
    #[cfg(feature = "interpose")]
    pub(crate) fn unheard_goes(&self, span: CpuSpan) {
        if self.watches.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut unheard = false;
        self.tree().overlapping(span.start().0, span.end().0, &mut |_, _, told| {
            unheard = told.is_unregistered();
            !unheard
        });
        if unheard {
            drop(self.begin(span, By::Others, Goes::Memory));
        }
    }

    fn take_off(&self, span: CpuSpan, by: By) -> usize {
        let mut flight = self.flight();
        loop {
            let mine = match by {
                By::Reader => FLIGHTS - 1..FLIGHTS,
                By::Others => 0..FLIGHTS - 1,
            };
            if let Some(slot) = mine.into_iter().find(|i| flight[*i].is_none()) {
                flight[slot] = Some(span);
                return slot;
            }
            flight = self.landed.wait(flight).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until no invalidation that overlaps `span` is under way.
    pub(crate) fn wait_landed(&self, span: CpuSpan) {
        self.settle();
        let mut flight = self.flight();
        while flight.iter().flatten().any(|f| f.overlaps(span)) {
            flight = self.landed.wait(flight).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a watch. It is told nothing of changes whose calls have returned before.
    pub(crate) fn add_watch(&self, told: &Told) -> Result<(), Errno> {
        self.settle();
        let mut room = self.registration();
        let span = told.span();
        if self.watches.load(Ordering::SeqCst) == room.watches {
            let wider = self.widened(room.watches * 2 + 64)?;
            let narrow = std::mem::replace(&mut *self.tree.write().unwrap_or_else(PoisonError::into_inner), wider);
            drop(narrow); // with no lock but `registration`
            room.watches = room.watches * 2 + 64;
        }
        {
            // There is room, so nothing is allocated.
            let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
            tree.insert(span.start().0, span.end().0, told.clone()).map_err(|e| e.errno)?;
        }
        self.watches.fetch_add(1, Ordering::SeqCst);
        let registered = self.register(told);
        drop(room);
        registered.inspect_err(|_| self.remove_watch(told))
    }

    /// A copy of the tree with room for `room` watches. Only with `registration` held, so the tree
    /// stays as it is.
    fn widened(&self, room: usize) -> Result<IntervalMap<Told>, Errno> {
        let mut wider = IntervalMap::new();
        let mut result = wider.reserve(room);
        self.tree().overlapping(0, u64::MAX, &mut |start, end, told| {
            if result.is_ok() {
                result = wider.insert(start, end, told.clone());
            }
            result.is_ok()
        });
        result.map(|()| wider).map_err(|e| e.errno)
    }

    /// Ends a watch: waits for callbacks under way; frames of pages that no other watch covers die.
    pub(crate) fn remove_watch(&self, told: &Told) {
        let mut registration = self.registration();
        let span = told.span();
        {
            // Writing waits for every thread that is delivering. The caller has another reference
            // to `told`'s target, so nothing is freed.
            let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
            tree.remove(span.start().0, span.end().0, told);
        }
        self.watches.fetch_sub(1, Ordering::SeqCst);
        self.each_alone(span, |alone| self.frames.kill(alone));
        if self.uffd.is_some() {
            registration.lingering.push((span, Instant::now()));
        }
    }

    /// Calls `f` for the parts of `span` that no watch covers.
    fn each_alone(&self, span: CpuSpan, f: impl Fn(CpuSpan)) {
        let mut at = span.start();
        while at < span.end() {
            let (alone, next) = self.alone_from(CpuSpan::between(at, span.end()));
            if alone.bytes() != 0 {
                f(alone);
            }
            at = next;
        }
    }

    /// The leading part of `span` that no watch covers, and where to look on.
    fn alone_from(&self, span: CpuSpan) -> (CpuSpan, CpuVa) {
        let mut first = None;
        self.tree().overlapping(span.start().0, span.end().0, &mut |start, end, _| {
            first = Some((start, end));
            false
        });
        match first {
            None => (span, span.end()),
            Some((start, end)) => (CpuSpan::between(span.start(), CpuVa(start)), CpuVa(end)),
        }
    }

    /// See [`vkfd_driver::seams::address_space::AddressSpace::fault`].
    pub(crate) fn fault(&self, told: &Told, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        self.settle();
        let doubt = told.doubt();
        if told.is_unregistered() && self.uffd.is_some() {
            let _registration = self.registration();
            if let Err(errno) = self.register(told) {
                return Faulted { spans: 0, error: Some(errno) };
            }
        }
        map_meanwhile();
        let faulted = self.fault_registered(told, spans, access, pages);
        let (Some(doubt), Some(done)) = (doubt, spans.get(..faulted.spans)) else { return faulted };
        let registered = self.registered_before(done);
        if registered < faulted.spans {
            return Faulted { spans: registered, error: Some(Errno::EBUSY) };
        }
        // Otherwise the watch's other pages may still be missing, and be mapped later.
        if faulted.error.is_none() && done.iter().map(|span| span.pages()).sum::<u64>() == told.span().pages() {
            told.clear(doubt);
        }
        faulted
    }

    /// As [`Mm::fault`], of memory whose mappings were registered for events as far as there were
    /// any.
    fn fault_registered(&self, told: &Told, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        if let Some(mover) = self.elsewhere() {
            if spans.iter().any(|span| mover.holds(*span)) {
                return self.fault_moved(mover, spans, access, pages);
            }
        }
        let epoch = self.elsewhere().map(Elsewhere::epoch);
        let mut faulted = self.populate.populate(spans, access);
        if faulted.error == Some(Errno::EFAULT) {
            if self.has_moved_since(epoch) {
                faulted.error = Some(Errno::EBUSY);
            } else {
                // What is mapped there later must be registered.
                told.mark_unregistered();
            }
        }
        let mut pages = pages.iter_mut();
        let assigned = self.frames.assign(spans.get(..faulted.spans).unwrap_or(spans), |at| {
            if let Some(page) = pages.next() {
                *page = Page::new(at, access == Access::Write);
            }
        });
        if let Err((spans, errno)) = assigned {
            faulted = Faulted { spans, error: Some(errno) };
        }
        faulted
    }

    /// Whether pages were out of reach some time since `epoch`: the kernel's accesses may have
    /// failed for that.
    fn has_moved_since(&self, epoch: Option<u64>) -> bool {
        epoch.is_some_and(|epoch| epoch % 2 != 0) || self.elsewhere().map(Elsewhere::epoch) != epoch
    }

    /// How many bytes from the beginning of `span` on no `access` can reach, going by the mappings.
    /// 0 where they do not tell, because some of the memory is on a GPU or was on its way.
    pub(crate) fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        if self.elsewhere().is_some_and(|mover| mover.holds(span)) {
            return 0;
        }
        let epoch = self.elsewhere().map(Elsewhere::epoch);
        let bytes = maps::out_of_reach(span, access);
        if self.has_moved_since(epoch) {
            0
        } else {
            bytes
        }
    }

    /// As [`Mm::fault`], of which `spans` some are on a GPU. Pages there are not populated: the CPU
    /// may not need them, and private ones would come back.
    fn fault_moved(&self, mover: &dyn Elsewhere, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        let writable = access == Access::Write;
        let mut pages = pages.iter_mut();
        for (i, span) in spans.iter().enumerate() {
            let done = mover.each_part(*span, &mut |part, place| match place {
                Some(place) => {
                    if let Some(errno) = mover.refusal(part, access) {
                        return Err(errno);
                    }
                    for n in 0..part.pages() {
                        if let Some(page) = pages.next() {
                            *page = Page::device(FabricAddr(place.0 + n * PAGE), writable);
                        }
                    }
                    Ok(())
                }
                None => {
                    let epoch = Some(mover.epoch());
                    if let Some(errno) = self.populate.populate(&[part], access).error {
                        let raced = errno == Errno::EFAULT && self.has_moved_since(epoch);
                        return Err(if raced { Errno::EBUSY } else { errno });
                    }
                    let assigned = self.frames.assign(&[part], |at| {
                        if let Some(page) = pages.next() {
                            *page = Page::new(at, writable);
                        }
                    });
                    assigned.map_err(|(_, errno)| errno)
                }
            });
            if let Err(errno) = done {
                return Faulted { spans: i, error: Some(errno) };
            }
        }
        Faulted { spans: spans.len(), error: None }
    }

    /// A GPU access to `at` could not be done: its memory has gone or does not allow it. Waits for
    /// the notification that explains it; when none does, delivers the invalidation itself, so that
    /// the driver faults the page again and learns why.
    pub fn lost(&self, at: PhysAddr) {
        if let Some(uffd) = &self.uffd {
            uffd.drain();
        }
        if let Resolved::Live(va, _) = self.frames.resolve(at, 1) {
            let page = CpuVa(va.0 / PAGE * PAGE);
            drop(self.invalidation(CpuSpan::between(page, CpuVa(page.0 + PAGE))));
        }
    }

    /// Has `gate` paused whenever the program may run ahead of the callbacks. False when there are
    /// too many.
    pub fn add_gate(&self, gate: Arc<dyn Pause>) -> bool {
        match self.gates().iter_mut().find(|g| g.is_none()) {
            Some(free) => {
                *free = Some(gate);
                true
            }
            None => false,
        }
    }

    /// Takes a gate away.
    pub fn remove_gate(&self, gate: &Arc<dyn Pause>) {
        let found = self.gates().iter_mut().find_map(|g| match g {
            Some(known) if Arc::ptr_eq(known, gate) => g.take(),
            _ => None,
        });
        drop(found); // without the lock
    }
}

impl Listener for Mm {
    fn with_accesses_paused(&self, f: &mut dyn FnMut()) {
        let gates = self.gates();
        gates.iter().flatten().for_each(|g| g.pause());
        f();
        gates.iter().flatten().for_each(|g| g.unpause());
    }

    fn changed(&self, span: CpuSpan, change: Change) {
        if change == Change::Gone {
            self.registration_lost(span);
        }
        if let (Change::Discarded, Some(mover)) = (change, self.elsewhere()) {
            mover.expect_discard(span);
        }
        // The change is the kernel's and cannot be waited for.
        drop(self.begin(span, By::Reader, if change == Change::Gone { Goes::Memory } else { Goes::Pages }));
    }
}

/// What a test has a fault race with ([`Switch::MapWhileFaulting`]).
fn map_meanwhile() {
    if let Some(address) = sabotage::switches().value(Switch::MapWhileFaulting) {
        // One that is there already stays.
        let _ = sys::map_page_at(address);
    }
}

impl Drop for Invalidation<'_> {
    fn drop(&mut self) {
        self.mm.flight()[self.slot] = None;
        self.mm.landed.notify_all();
    }
}

#[cfg(test)]
mod tests;
