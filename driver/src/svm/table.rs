// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which windows and blocks there are: how they come, how they are found, and how they end.
//!
//! What all of SVM rests on, and [`SvmWork::audit`](crate::process::svm::SvmWork::audit) checks:
//!
//! * **A range has a window, and an entry has a live block.** A page-table entry at the address of
//!   an SVM range belongs to the block in the window's table. That block's notifier is registered,
//!   and no invalidation misses the entry. An address with neither a buffer object nor a live block
//!   has no entry.
//! * **Entries are of ranges.** A range leaves under the lock of rank `Svm`, and under the same
//!   hold its entries are cleared and the block notes that these pages get none.
//! * **What was unmapped is of no range**, from the invalidation on: it is noted to be dropped. A
//!   thread that reads the ranges leaves out noted pages, and dropping them removes the note under
//!   the same hold. So the next mapping there gets no entries by other memory's attributes.
//! * A block is made where a range is, and ends where none is, both under that lock; a window
//!   likewise. So of two blocks of the same addresses one has ended, with all its entries cleared,
//!   before the other is made.
//!
//! The lock of rank `Svm` is taken under a block's reservation, never the other way round.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "windows and blocks that were looked for and are there"
)]

use super::block::{slot_of, Block};
use super::block_state::BlockState;
use super::owner::SvmOwner;
use super::window::{windows_of, Window, WINDOW};
use super::{Inner, Svm, SvmRanges};
use crate::base::addr::{CpuSpan, CpuVa, HUGE};
use crate::base::errno::{Errno, Result};
use crate::device::residency::Granule;
use crate::os::{self, Arc};
use crate::sabotage::{FailPoint, Switch};
use crate::seams::address_space::{Invalidate, Watch};
use core::time::Duration;

/// A window with its notifier.
pub struct Watched {
    pub(crate) window: Arc<Window>,
    pub(crate) watch: Arc<dyn Watch>,
}

impl Watched {
    fn base(&self) -> u64 {
        self.window.span().start().0
    }
}

impl Inner {
    fn position(&self, at: u64) -> core::result::Result<usize, usize> {
        self.windows.binary_search_by_key(&(at / WINDOW * WINDOW), Watched::base)
    }

    /// The window of an address.
    pub(crate) fn window(&self, at: u64) -> Option<&Watched> {
        self.position(at).ok().map(|i| &self.windows[i])
    }

    /// The window that `at` is in.
    pub(crate) fn window_of(&self, at: u64) -> Option<Arc<Window>> {
        self.window(at).map(|watched| watched.window.clone())
    }

    /// The first window at or above `base`.
    pub(crate) fn window_from(&self, base: u64) -> Option<Arc<Window>> {
        let at = self.windows.partition_point(|w| w.base() < base);
        self.windows.get(at).map(|w| w.window.clone())
    }

    /// Whether there are windows for all of `span`, so that it may have ranges.
    pub(crate) fn has_windows(&self, span: CpuSpan) -> bool {
        !self.ended && windows_of(span).all(|base| self.window(base).is_some())
    }

    /// Whether pages of `span` were unmapped that are still to be dropped.
    pub(crate) fn has_drop(&self, span: CpuSpan) -> bool {
        windows_of(span).any(|base| self.window(base).is_some_and(|watched| watched.window.has_drop(span)))
    }

    /// Whether there is a window at `base`. ESRCH once the process has ended.
    fn is_watched(&self, base: u64) -> Result<bool> {
        match self.ended {
            true => Err(Errno::ESRCH.into()),
            false => Ok(self.window(base).is_some()),
        }
    }

    fn add_window(&mut self, watched: &mut Option<Watched>) -> Result {
        let Some(base) = watched.as_ref().map(Watched::base) else { return Ok(()) };
        if self.is_watched(base)? {
            return Ok(());
        }
        let (Ok(at) | Err(at)) = self.position(base);
        self.windows.reserve(1)?;
        if let Some(watched) = watched.take() {
            // No thread has looked here yet, and the next one would drop these pages from ranges
            // that are made now.
            watched.window.forget_drops();
            self.windows.push_reserved(watched);
            self.windows[at..].rotate_right(1);
        }
        Ok(())
    }

    fn has_range(&self, span: CpuSpan) -> bool {
        !self.ranges.within(span.start().0, span.end().0).is_empty()
    }

    fn take_unused_window(&mut self, within: CpuSpan) -> Option<Watched> {
        let first = self.windows.partition_point(|w| w.window.span().end() <= within.start());
        let mut near = self.windows[first..].iter().take_while(|w| w.window.span().start() < within.end());
        let at = first + near.position(|w| !self.has_range(w.window.span()) && w.window.is_empty())?;
        self.windows[at..].rotate_left(1);
        self.windows.pop()
    }
}

impl Svm {
    /// Makes windows for all of `span`; `owner` gives the process, to keep. Called without locks.
    pub(crate) fn make_windows(&self, owner: &dyn Fn() -> Result<Arc<dyn SvmOwner>>, span: CpuSpan) -> Result {
        for base in windows_of(span) {
            os::interrupted()?;
            if self.inner.lock().is_watched(base)? {
                continue;
            }
            let window = Window::new(owner()?, base)?;
            let client: Arc<dyn Invalidate> = window.clone();
            os::failpoint(FailPoint::Watch)?;
            let watch = window.owner().mm().watch(window.span(), client)?;
            let mut surplus = Some(Watched { window, watch });
            let result = self.inner.lock().add_window(&mut surplus);
            // If another made it meanwhile; not dropped under the lock that its callback's worker
            // takes.
            drop(surplus);
            result?;
        }
        Ok(())
    }

    /// The block at `at`, made if a range is in it. `None` where none is.
    pub(crate) fn block(&self, at: u64) -> Result<Option<Arc<Block>>> {
        let start = at / HUGE * HUGE;
        let span = CpuSpan::between(CpuVa(start), CpuVa(start.saturating_add(HUGE)));
        let inner = self.inner.lock();
        let Some(watched) = inner.window(at) else { return Ok(None) };
        if !inner.has_range(span) {
            return Ok(None);
        }
        if let Some(block) = watched.window.find(slot_of(at)) {
            return Ok(Some(block));
        }
        let owner = watched.window.owner();
        let gpus = owner.gpu_count();
        let granule = Granule::new(owner.mm_arc().clone(), owner.who(), span, gpus, self.counters.clone())?;
        let block = Block::new(&watched.window, &watched.watch, granule)?;
        watched.window.add(&block, BlockState::new(gpus)?)?;
        Ok(Some(block))
    }

    /// The block at `at`, if there is one.
    pub(crate) fn find_block(&self, at: u64) -> Option<Arc<Block>> {
        self.inner.lock().window(at)?.window.find(slot_of(at))
    }

    /// The first block at or above `at` and below `end`.
    pub(crate) fn next_block(&self, at: u64, end: u64) -> Option<Arc<Block>> {
        let inner = self.inner.lock();
        let first = inner.windows.partition_point(|w| w.base() + (WINDOW - 1) < at);
        for watched in &inner.windows[first..] {
            if watched.base() >= end {
                return None;
            }
            let from = if at > watched.base() { slot_of(at) } else { 0 };
            if let Some(block) = watched.window.next(from) {
                return Some(block).filter(|block| block.span().start().0 < end);
            }
        }
        None
    }

    /// Ends a block in which there is no range any more. Called without locks above `Sweep`.
    fn end_if_unused(&self, block: &Block) {
        let mut inner = self.inner.lock();
        if inner.has_range(block.span()) {
            return;
        }
        if block.window().owner().sabotage().has(Switch::BlockEnd) {
            // What was seen need not hold any more.
            drop(inner);
            (0..200).for_each(|_| os::sleep(Duration::ZERO));
            inner = self.inner.lock();
        }
        let state = block.window().take(block);
        drop(inner);
        if let Some(state) = state {
            give_back(state);
        }
    }

    /// Ends windows of `within` in which there is neither range nor block.
    fn end_windows(&self, within: CpuSpan) {
        loop {
            // A notifier is waited for when it goes: not under the lock.
            let window = self.inner.lock().take_unused_window(within);
            if window.is_none() {
                return;
            }
        }
    }

    /// Ends blocks of `within` in which there is no range any more, and windows. O(blocks there).
    pub(crate) fn prune(&self, within: CpuSpan) {
        let mut at = within.start().0;
        while let Some(block) = self.next_block(at, within.end().0) {
            self.end_if_unused(&block);
            match block.span().start().0.checked_add(HUGE) {
                Some(next) => at = next,
                None => break,
            }
        }
        self.end_windows(within);
    }

    /// The process ends: memory comes back from VRAM, notifiers, entries and page tables go, and
    /// nothing new comes. Calls that are under way find nothing.
    pub(crate) fn release(&self) {
        let mut ranges = SvmRanges::new();
        {
            let mut inner = self.inner.lock();
            inner.ended = true;
            for watched in inner.windows.iter() {
                watched.window.forget(watched.window.span());
            }
            core::mem::swap(&mut inner.ranges, &mut ranges);
            // None is left, and less always fits.
            let _ = inner.charge.set(0);
        }
        drop(ranges);
        let mut at = 0;
        while let Some(block) = self.next_block(at, u64::MAX) {
            self.end_if_unused(&block);
            if block.granule().is_resident() {
                // If its memory has gone, nothing is to be brought back.
                let _ = block.granule().bring_back(block.span());
            }
            at = block.span().end().0;
        }
        // Notifiers last: they are heard as long as there are entries.
        self.end_windows(CpuSpan::between(CpuVa(0), CpuVa(u64::MAX)));
    }
}

/// Gives back the page tables of a block that has ended. Its entries have been cleared.
fn give_back(state: BlockState) {
    // Memory is freed at the end, without locks.
    for map in state.maps.iter() {
        debug_assert!(map.entries.is_empty(), "entries of a block that has ended");
        map.vm.release(&map.leaves);
    }
}
