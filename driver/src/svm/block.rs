// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A block: 2 MiB of addresses, mapped to GPUs at the same addresses, faulted in and mapped as a
//! unit of work.
//!
//! The *reservation* (a lock of rank `Bo`) serialises what maps the block: calls, faults, restores.
//! Pages are faulted in under it ([`super::fetch`]), as with a buffer object. What invalidations
//! change is in [`super::window`], under the notifier lock.
//!
//! What to map, the reservation's holder reads off the ranges first. Ranges that leave meanwhile
//! note their pages in the block as *forgotten*, and these are passed over: otherwise an entry
//! would be left where the next buffer object may be.
//!
//! A block is live while a window's table has it ([`super::table`]). Its removal waits for no
//! thread, because a thread may hold a reservation as long as a page fault takes. A thread that
//! still has the block then finds no state by it, so its work has no effect. There may be another
//! block at its addresses, with a reservation of its own.
//!
//! While pages are being moved to a GPU ([`Moving`]) nothing is faulted in: to the host, a fault is
//! the CPU's. It would bring pages back that just moved, or put a page there after the move has
//! passed it.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a block is 512 pages at addresses that a range has"
)]

use super::block_state::{BlockState, Map};
use super::view::View;
use super::window::{State, Window, WINDOW};
use crate::base::addr::{index, CpuSpan, GpuSpan, GpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::base::errno::{Errno, Error, RangeAt, Reason, Result};
use crate::base::lock_rank::Rank;
use crate::collections::page_bits::PageBits;
use crate::device::residency::Granule;
use crate::gpuvm::vm::Vm;
use crate::os::{self, Arc, Mutex, MutexGuard, Time};
use crate::sabotage::Switch;
use crate::seams::address_space::Watch;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// A block.
pub struct Block {
    window: Arc<Window>,
    watch: Arc<dyn Watch>,
    granule: Arc<Granule>,
    reservation: Mutex<()>,
    /// Moves under way. Raised under the reservation, taken back without.
    moving: AtomicU32,
}

/// The reservation, held.
pub type Reserved<'a> = MutexGuard<'a, ()>;

/// Pages of a block are being moved to a GPU, until this is dropped.
pub struct Moving(Arc<Block>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Block {
    /// The block of `granule`'s addresses, in `window`. Not live yet.
    pub fn new(window: &Arc<Window>, watch: &Arc<dyn Watch>, granule: Arc<Granule>) -> Result<Arc<Self>> {
        os::arc(Self {
            window: window.clone(),
            watch: watch.clone(),
            granule,
            reservation: Mutex::new(Rank::Bo, ())?,
            moving: AtomicU32::new(0),
        })
    }

    /// Its addresses.
    pub fn span(&self) -> CpuSpan {
        self.granule.span()
    }

    /// Its VRAM side.
    pub const fn granule(&self) -> &Arc<Granule> {
        &self.granule
    }

    /// Its window.
    pub const fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Its window's notifier.
    pub fn watch(&self) -> &dyn Watch {
        &*self.watch
    }

    /// Its number in its window.
    pub fn slot(&self) -> usize {
        slot_of(self.span().start().0)
    }

    /// Its pages that `span` touches.
    pub fn pages_of(&self, span: CpuSpan) -> PageBits {
        let own = self.span().overlap(span);
        let base = self.span().start().0;
        if own.bytes() == 0 {
            return PageBits::NONE;
        }
        PageBits::range((own.start().0 - base) / PAGE, (own.end().0 - base).div_ceil(PAGE))
    }

    /// Takes the reservation; `None` once it has ended.
    pub fn reserve(&self) -> Option<Reserved<'_>> {
        let reserved = self.reservation.lock();
        self.state(|_| reserved)
    }

    /// Keeps its pages from being faulted in; waits for a thread that works on it, and until
    /// `deadline` for threads that move it to a GPU. `None` once it has ended. The reservation must
    /// not be held; blocks of one move in ascending order.
    pub fn begin_move(self: &Arc<Self>, deadline: Time) -> Option<Moving> {
        loop {
            self.await_moves(deadline);
            let reserved = self.reserve()?;
            if !self.is_moving() || os::killed() || os::now() >= deadline {
                self.moving.fetch_add(1, Ordering::AcqRel);
                drop(reserved);
                return Some(Moving(self.clone()));
            }
        }
    }

    /// Waits until nobody moves pages of it to a GPU, or `deadline` has passed, or the thread is
    /// being killed. The reservation must not be held.
    pub fn await_moves(&self, deadline: Time) {
        let mut pause = Duration::from_micros(50);
        while self.is_moving() && !os::killed() && os::now() < deadline {
            os::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Whether pages of it are being moved to a GPU.
    pub fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire) != 0
    }

    /// What is known of it in its window's state, as long as it is live.
    pub fn of<'s>(&self, state: &'s mut State) -> Option<&'s mut BlockState> {
        match self.window.owner().sabotage().has(Switch::BlockIdentity) {
            false => state.of(self),
            true => state.of_slot(self.slot()),
        }
    }

    /// Calls `f` with its state, under the notifier lock. `None` once it has ended.
    pub fn state<R>(&self, f: impl FnOnce(&mut BlockState) -> R) -> Option<R> {
        self.of(&mut self.window.lock()).map(f)
    }

    /// Makes its page tables on a GPU, if it has none there. ENOMEM (reason `NoVram`) when VRAM is
    /// short.
    pub fn map_on(&self, _: &Reserved<'_>, vm: &Arc<Vm>) -> Result {
        if self.state(|b| b.map(vm.gpu_index()).is_some()) != Some(false) {
            return Ok(());
        }
        let start = GpuVa(self.span().start().0);
        let leaves = vm.reserve(GpuSpan::between(start, GpuVa(start.0 + HUGE)))?;
        let mut map = Some(Map::new(vm.clone(), leaves));
        self.state(|b| map.take().map(|map| b.maps.push_reserved(map)));
        // It has ended meanwhile.
        if let Some(map) = map {
            vm.release(&map.leaves);
        }
        Ok(())
    }

    /// Brings `touched` pages in line with the attributes: lost access ends now, and the next
    /// [`fetch`](Self::fetch) writes new entries if they have `changed`. Page tables are there
    /// already. Other pages are other calls'.
    pub fn update(&self, _: &Reserved<'_>, view: &View, touched: PageBits, changed: bool) {
        let changed = if changed { touched } else { PageBits::NONE };
        let mut state = self.window.lock();
        let Some(block) = self.of(&mut state) else { return };
        for map in block.maps.iter_mut() {
            let gpu = map.vm.gpu_index();
            map.wanted = (map.wanted & !touched) | (view.kept(gpu) & touched & !block.forgotten);
            map.current &= !changed;
            // Whatever nobody will bring up to date must not be found by a running queue.
            let outdated = map.clear_outdated();
            if map.clear(touched & !view.allowed(gpu)) || outdated {
                map.vm.flush();
            }
        }
        // What was faulted in for reading may be wanted for writing.
        for page in 0..HUGE_PAGES {
            if changed.has(page) && block.valid.has(page) && !block.pages[index(page)].writable() {
                block.valid.remove(page);
            }
        }
        if self.window.owner().sabotage().has(Switch::ForgottenMissing) {
            block.missing &= !touched;
        }
        state.changed(self);
    }

    /// The error that names this block.
    pub fn error(&self, errno: Errno) -> Error {
        let reason = match errno {
            Errno::EPERM => Reason::NoPermission,
            Errno::EAGAIN => Reason::Deadline,
            _ => Reason::NotMapped,
        };
        let span = self.span();
        Error::new(errno, reason).at(RangeAt { index: 0, start: span.start(), bytes: span.bytes() })
    }
}

/// The number in its window of the block at `at`.
pub fn slot_of(at: u64) -> usize {
    index(at % WINDOW / HUGE)
}
