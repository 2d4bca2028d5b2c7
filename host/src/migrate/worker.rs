// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The worker: the one thread that moves pages, processes the collector's events, and reports
//! released pages to the driver.

use super::budget::Budget;
use super::device_ram::{DeviceRam, Window};
use super::places::Run;
use super::ring::Change;
use super::stash::Stash;
use super::threads::Threads;
use super::vma::FileId;
use super::{Job, Mover, AWAKE};
use crate::mm::told::Goes;
use crate::mm::{By, Mm};
use crate::sabotage;
use crate::sys;
use crate::uffd::block_signals;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, VramOffset, HUGE, PAGE};
use vkfd_sabotage::Switch;

/// Most bytes of one invalidation.
pub(super) const CHUNK: u64 = 32 << 20;
/// How often a mapping is asked for without which contents would be lost.
pub(super) const PATIENCE: u32 = 10_000;

/// How long pages are kept for the next move, in milliseconds.
const LINGER: u32 = 1000;
/// How long it takes until a change under way is over, or is asked for again.
const SOON: u32 = 1;
/// How long the worker sleeps when there is nothing to wait for.
const IDLE: u32 = 10_000;

/// A word of this program's static data, to find where that is.
static ANCHOR: AtomicU32 = AtomicU32::new(0);

/// Pages of a GPU's memory that are free.
struct Released {
    memory: Arc<DeviceRam>,
    at: VramOffset,
    pages: u64,
    /// They came back because the CPU touched them.
    touched: bool,
}

impl Mover {
    /// Waits until the driver knows the pages that came back for a touching thread, which continues
    /// already. Without locks of the driver.
    pub(crate) fn settle_released(&self) {
        while self.untold.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// The worker's state; on its stack.
pub(super) struct Worker {
    pub(super) mm: &'static Mm,
    pub(super) mover: &'static Mover,
    pub(super) stash: Stash,
    pub(super) threads: Threads,
    pub(super) budget: Budget,
    /// The program's zero-initialised data, which the worker itself uses.
    pub(super) image: CpuSpan,
    /// What is registered to be moved just now, and whether its mappings have changed since.
    pub(super) adopted: Option<CpuSpan>,
    pub(super) disturbed: bool,
    /// Something is left to do as soon as changes under way are over.
    waiting: bool,
    /// What is no run any more and may still be registered.
    pub(super) to_disown: Vec<CpuSpan>,
    memories: Vec<Option<Arc<DeviceRam>>>,
    /// All of a GPU's memory, sealed, by file and offset: see `Mover::stand_vram`.
    sealed: Vec<(FileId, u64, CpuSpan)>,
    released: Vec<Released>,
    /// What comes back just now does because the CPU touched it.
    touched: bool,
}

impl Worker {
    pub(super) fn new(mm: &'static Mm, mover: &'static Mover, stash: Stash, threads: Threads) -> Self {
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        mover.worker.store(u32::try_from(thread).unwrap_or(0), Ordering::SeqCst);
        let anchor = CpuVa((&raw const ANCHOR).expose_provenance() as u64);
        let mut image = CpuSpan::between(anchor, CpuVa(anchor.0 + 4));
        let mappings = &mover.mappings;
        if let Ok(Some(data)) = mappings.query(anchor) {
            image = data.span;
            if let Ok(Some(next)) = mappings.query(data.span.end()) {
                if next.span.start() == image.end() && next.file.is_none() && !next.special {
                    image = CpuSpan::between(image.start(), next.span.end());
                }
            }
        }
        Self {
            mm,
            mover,
            stash,
            threads,
            budget: Budget::new(),
            image,
            adopted: None,
            disturbed: false,
            waiting: false,
            to_disown: Vec::new(),
            memories: Vec::new(),
            sealed: Vec::new(),
            released: Vec::new(),
            touched: false,
        }
    }

    /// Without end.
    pub(super) fn run(mut self) {
        block_signals();
        let mut last = Instant::now();
        loop {
            let heard = self.mover.ring.bell();
            self.drain();
            self.tell_released();
            let job = self.mover.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if job.is_some() {
                last = Instant::now();
            } else if last.elapsed() < AWAKE {
                // A thread that has its answer may ask for the next piece.
                super::relax();
                continue;
            }
            match job {
                Some(Job::ToDevice { span, memory, places, done }) => {
                    let _helped = self.mover.helped(span.bytes());
                    let placed = self.move_to_device(span, memory, places);
                    self.drain();
                    self.tell_released();
                    // The asking thread waits for this, so it is received.
                    let _ = done.send(placed);
                }
                Some(Job::ToSystem { span, done }) => {
                    let _helped = self.mover.helped(span.bytes());
                    let moved = self.move_to_system(span);
                    self.drain();
                    self.tell_released();
                    self.forget_unused();
                    let _ = done.send(moved);
                }
                Some(Job::Evict { device, places, done }) => {
                    let _helped = self.mover.helped(places.len() as u64 * PAGE);
                    let moved = self.evict(device, &places);
                    self.drain();
                    self.tell_released();
                    self.forget_unused();
                    let _ = done.send(moved);
                }
                None if self.waiting => self.mover.ring.wait(heard, SOON),
                None if self.keeps_nothing() => self.mover.ring.wait(heard, IDLE),
                None => {
                    self.mover.ring.wait(heard, LINGER);
                    if self.mover.ring.bell() == heard {
                        self.trim();
                    }
                }
            }
        }
    }

    /// Deals with everything that has been read: first the changes, in order, then those who wait.
    pub(super) fn drain(&mut self) {
        let ring = &self.mover.ring;
        loop {
            let (from, until) = (ring.handled(), ring.produced());
            if from == until {
                break;
            }
            ring.begin_telling();
            for at in from..until {
                let change = ring.get(at);
                if change.span().is_some() {
                    ring.strike(at);
                    self.changed(change);
                }
            }
            ring.end_telling();
            for at in from..until {
                if let Change::Wait(page) = ring.get(at) {
                    ring.strike(at);
                    self.waited(page);
                }
            }
            ring.set_handled(until);
        }
        self.disown_late();
        self.waiting = !self.mover.unseal() || !self.to_disown.is_empty();
    }

    /// Does work that needs the mm's registration. `f` returns `None` as long as another thread has
    /// it. That thread may wait for a page that this thread is to bring. So this thread goes on
    /// working until then.
    pub(super) fn registering<R>(&mut self, f: impl Fn(&Self) -> Option<R>) -> R {
        loop {
            if let Some(done) = f(self) {
                return done;
            }
            self.drain();
            std::thread::yield_now();
        }
    }

    fn changed(&mut self, change: Change) {
        let Some(span) = change.span() else { return };
        let mm = self.mm;
        let goes = match change {
            Change::Remove(_) => Goes::Pages,
            _ => Goes::Memory,
        };
        if goes == Goes::Memory {
            mm.registration_lost(span);
            self.disturbed |= self.adopted.is_some_and(|adopted| change.touches(adopted));
        }
        sabotage::wait_if(Switch::TellSlowly);
        let _told = mm.begin(span, By::Others, goes);
        match change {
            Change::Unmap(span) => self.unmapped(span),
            Change::Remap { from, to } => self.remapped(from, to),
            Change::Remove(span) => self.discarded(span),
            Change::Wait(_) | Change::Struck => {}
        }
    }

    /// A thread waits at `page`.
    fn waited(&mut self, page: CpuVa) {
        let page = CpuSpan::between(page, CpuVa(page.0 + PAGE));
        let run = self.mover.places.lock().first_in(page);
        match run {
            Some(run) if run.coherent => {
                self.mover.unseal();
                // It may also be a hole that somebody punched.
                self.zero_if_empty(page);
            }
            Some(_) => self.bring_back(page),
            // Memory without contents, that is registered only because its neighbours move.
            None => self.zero_if_empty(page),
        }
        self.mover.descriptor.wake(page);
    }

    /// Fills `page` with zeros if nothing is there. Not if something has just been moved there:
    /// that is dealt with before the thread that waits asks again.
    fn zero_if_empty(&self, page: CpuSpan) {
        let mover = self.mover;
        mover.undisturbed(|_| {
            if mover.ring.pending(mover.ring.handled(), page).next().is_none() {
                let _ = mover.descriptor.zero(page);
            }
        });
    }

    /// Brings back the 2 MiB of private memory around `page`, as far as they are one run.
    fn bring_back(&mut self, page: CpuSpan) {
        let start = CpuVa(page.start().0 / HUGE * HUGE);
        let block = CpuSpan::between(start, CpuVa(start.0 + HUGE));
        let mm = self.mm;
        let _told = mm.invalidation(block);
        self.mover.untold.store(true, Ordering::SeqCst);
        self.touched = true;
        self.chunk_to_system(block);
        self.touched = false;
    }

    /// `window` with a mapping to be staged from, if there can be one.
    pub(super) fn with_sealed(&mut self, window: Window) -> Window {
        if !window.coherent {
            return window;
        }
        let (file, start) = (window.file, window.start);
        let known = self.sealed.iter().find(|known| (known.0, known.1) == (file, start)).map(|known| known.2);
        let sealed = known.or_else(|| {
            let span = self.mover.stand_vram(&window)?;
            self.sealed.push((file, start, span));
            Some(span)
        });
        Window { sealed: sealed.map(CpuSpan::start), ..window }
    }

    /// Frees what is kept for the next move.
    fn trim(&mut self) {
        self.stash.trim();
        for (_, _, span) in self.sealed.drain(..) {
            // So that there is no event of it.
            let _ = self.mover.descriptor.unregister(span);
            // SAFETY: one of the worker's mappings, without a reference to it.
            unsafe { sys::unmap(span.start().0, span.bytes()) };
            self.mover.own.remove(span);
        }
    }

    fn keeps_nothing(&self) -> bool {
        self.stash.is_trimmed() && self.sealed.is_empty()
    }

    /// Where memory `number` is.
    pub(super) fn window(&self, number: u32) -> Option<Window> {
        Some(self.memory(number)?.window())
    }

    fn memory(&self, number: u32) -> Option<&Arc<DeviceRam>> {
        self.memories.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// The number of a device's memory, if pages are or were in it, and where it begins for the
    /// GPUs.
    pub(super) fn known(&self, device: usize) -> Option<(u32, FabricAddr)> {
        let same = |memory: &&Arc<DeviceRam>| memory.device() == device;
        (0..).zip(&self.memories).find_map(|(n, memory)| {
            let memory = memory.as_ref().filter(same)?;
            Some((n, memory.window().fabric))
        })
    }

    /// The number of `memory`.
    pub(super) fn remember(&mut self, memory: Arc<DeviceRam>) -> u32 {
        let known = self.memories.iter().position(|m| m.as_ref().is_some_and(|m| m.is(&memory)));
        let free = || self.memories.iter().position(Option::is_none);
        let number = known.or_else(free).unwrap_or_else(|| {
            self.memories.push(None);
            self.memories.len() - 1
        });
        if known.is_none() {
            self.memories[number] = Some(memory);
        }
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Lets memories go that no pages are in.
    pub(super) fn forget_unused(&mut self) {
        // Allocated before the lock is taken.
        let mut used = vec![false; self.memories.len()];
        let runs = self.mover.places.lock();
        for run in (0..runs.len()).filter_map(|i| runs.get(i)) {
            if let Some(used) = usize::try_from(run.memory).ok().and_then(|n| used.get_mut(n)) {
                *used = true;
            }
        }
        drop(runs);
        for (memory, used) in self.memories.iter_mut().zip(used) {
            if !used {
                *memory = None;
            }
        }
    }

    /// The driver is to be told that `run`'s places are free.
    pub(super) fn release(&mut self, run: &Run) {
        let Some(memory) = self.memory(run.memory).cloned() else { return };
        self.mover.untold.store(true, Ordering::SeqCst);
        let at = memory.window().offset(run.at);
        let (pages, touched) = (run.span.pages(), self.touched);
        if let Some(last) = self.released.last_mut() {
            if last.memory.is(&memory) && last.at.0 + last.pages * PAGE == at.0 && last.touched == touched {
                last.pages += pages;
                return;
            }
        }
        self.released.push(Released { memory, at, pages, touched });
    }

    /// Tells the driver. With nothing under way.
    fn tell_released(&mut self) {
        for Released { memory, at, pages, touched } in std::mem::take(&mut self.released) {
            if touched {
                memory.came_back(at, pages);
            }
            memory.released(at, pages);
        }
        self.mover.untold.store(false, Ordering::SeqCst);
    }
}
