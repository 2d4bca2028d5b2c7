// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: memory that a GPU uses at the addresses that the CPU has it at, without a handle.
//!
//! | module | what |
//! | --- | --- |
//! | [`attributes`] | what a process has said of a range, and what KFD makes of it |
//! | [`ranges`] | the ranges: disjoint, split and merged by calls |
//! | [`table`] | which windows and blocks there are, and what always holds |
//! | [`window`] | notifiers over 512 MiB, and what invalidations change |
//! | [`block`] | 2 MiB that are faulted in and mapped together |
//! | [`block_state`] | what is known of their pages, and their entries |
//! | [`owner`] | the process, as a trait |
//! | [`fetch`] | faulting them in |
//! | [`crate::device::residency`] | which are there, coldest first; making room |
//! | [`crate::device::damping`] | pages that go to and fro |
//! | [`crate::process::svm`] | what a process does with all this: calls, faults, migration, restore |
//!
//! Attributes are of ranges, and ranges split and merge as calls have it. Everything that costs is
//! of blocks and windows, which are aligned and stay. So an attribute that changes in the middle of
//! a range moves no page-table entry outside of it.
//!
//! The lock of rank `Svm` guards the ranges and the tables of windows and blocks. It is taken under
//! a block's reservation, to read the attributes as they are at the moment; no CPU memory is looked
//! at under it.

pub mod attributes;
pub mod block;
pub mod block_state;
pub mod fetch;
pub mod owner;
pub mod ranges;
pub mod table;
pub mod view;
pub mod window;

use self::block::{Block, Reserved};
use self::ranges::SvmRanges;
use self::table::Watched;
use self::view::View;
use self::window::{windows_of, Window};
use crate::base::addr::{CpuSpan, CpuVa};
use crate::base::counters::SvmCounters as Counters;
use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::collections::page_bits::PageBits;
use crate::device::limit::{Charge, Limit};
use crate::gpuvm::vm::Vm;
use crate::os::{self, Arc, Mutex, Vec};
use crate::sabotage::{Switch, Switches};
use crate::seams::address_space::AddressSpace;
use core::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Inner {
    pub(crate) ranges: SvmRanges,
    /// With XNACK off all memory of ranges is to be there at a time, and counts as registered
    /// memory does, as in KFD. With XNACK on: nothing.
    pub(crate) charge: Charge,
    /// By address.
    pub(crate) windows: Vec<Watched>,
    /// The process has ended: there are no windows any more.
    ended: bool,
}

/// A process's SVM memory.
pub struct Svm {
    pub(crate) inner: Mutex<Inner>,
    counters: Arc<Counters>,
    /// What is to be looked after, noted by invalidations.
    pub(crate) notes: AtomicU32,
    /// Held while noted ranges are dropped: a thread that finds nothing noted must find them
    /// dropped.
    pub(crate) sweep: Mutex<()>,
}

/// The VMs of a process, by GPU number.
pub type Vms = Vec<Option<Arc<Vm>>>;

impl Svm {
    /// Memory of ranges was unmapped.
    pub const DROPS: u32 = 1;
    /// Ranges have gone, and their blocks and windows perhaps with them.
    pub const UNUSED: u32 = 2;

    pub fn new(limit: &Arc<Limit>, sabotage: &Switches) -> Result<Self> {
        let inner = Inner { ranges: SvmRanges::new(), charge: Charge::none(limit), windows: Vec::new(), ended: false };
        Ok(Self {
            inner: Mutex::new(Rank::Svm, inner)?,
            counters: os::arc(Counters::new(sabotage.has(Switch::FirstGpusCounts)))?,
            notes: AtomicU32::new(0),
            sweep: Mutex::new(Rank::Sweep, ())?,
        })
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Notes that something is to be looked after. Allowed in reclaim.
    pub fn note(&self, what: u32) {
        self.notes.fetch_or(what, Ordering::AcqRel);
    }

    /// Whether a range shares a byte with `[start, end)`. Ranges whose memory there has gone, and
    /// whose host could not tell, are dropped first. O(log ranges) where there is none.
    pub fn conflict(&self, mm: &dyn AddressSpace, start: u64, end: u64) -> bool {
        loop {
            let hit = self.inner.lock().ranges.within(start, end).first().copied();
            let Some(range) = hit else { return false };
            let span = CpuSpan::between(CpuVa(range.start.max(start)), CpuVa(range.end.min(end)));
            // Without memory for the split the conflict stands.
            if mm.first_mapped(span).is_some() || self.drop_span(span).is_err() {
                return true;
            }
            // Not here, where the caller has locks.
            self.note(Self::UNUSED);
        }
    }

    /// Drops the ranges of `span`, whose memory has gone: first their entries, so that nothing of
    /// theirs is left where another object may be mapped next.
    pub(crate) fn drop_span(&self, span: CpuSpan) -> Result {
        if span.bytes() == 0 {
            return Ok(());
        }
        self.inner.lock().drop_span(&self.counters, span)
    }

    /// Drops the ranges of the first pages that a window has noted at or above `from`. Which that
    /// is. ENOMEM leaves it noted.
    pub(crate) fn drop_noted(&self, window: &Arc<Window>, from: CpuVa) -> Result<Option<CpuSpan>> {
        let mut inner = self.inner.lock();
        // Of one that has ended: there may be ranges again, and another window for them.
        if !inner.window(window.span().start().0).is_some_and(|watched| Arc::ptr_eq(&watched.window, window)) {
            return Ok(None);
        }
        let Some(span) = window.take_drop(from) else { return Ok(None) };
        inner.drop_span(&self.counters, span).inspect_err(|_| window.put_back_drop(span))?;
        Ok(Some(span))
    }

    /// What the ranges say of a block now. What was unmapped is of none, also as long as that is
    /// still to be noted in the ranges.
    pub(crate) fn view(&self, block: &Block) -> Result<View> {
        self.look(block, |block| block.window().dropped(block))
    }

    /// As [`view`](Self::view), for a thread that maps the block by it: what leaves the ranges from
    /// now on is noted in the block, and gets no entries.
    pub(crate) fn view_to_map(&self, block: &Block, _: &Reserved<'_>) -> Result<View> {
        self.look(block, |block| block.window().begin_look(block))
    }

    fn look(&self, block: &Block, begin: impl FnOnce(&Block) -> PageBits) -> Result<View> {
        let owner = block.window().owner();
        let mut view = View::new(owner.gpu_count())?;
        let xnack = owner.xnack();
        let inner = self.inner.lock();
        // Under the lock that ranges leave under.
        let dropped = begin(block);
        let span = block.span();
        for range in inner.ranges.within(span.start().0, span.end().0) {
            let own = CpuSpan::between(CpuVa(range.start), CpuVa(range.end));
            view.add(block.pages_of(own) & !dropped, &range.attributes, xnack);
        }
        Ok(view)
    }

    /// XNACK is about to be switched, which changes the ranges' charge. ENOMEM, and nothing has
    /// changed, when they do not fit.
    pub(crate) fn switch_charge(&self, xnack: bool) -> Result {
        self.inner.lock().settle_charge(xnack)
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let inner = self.inner.lock();
        let windows = inner.windows.iter().map(|w| w.window.lock().memory());
        windows.fold(inner.ranges.memory().saturating_add(inner.windows.memory()), u64::saturating_add)
    }

    /// How many notifiers there are.
    pub fn window_count(&self) -> usize {
        self.inner.lock().windows.len()
    }
}

impl Inner {
    /// Charges for the ranges as they are, if XNACK is off. ENOMEM, and the charge as before, when
    /// they do not fit; fewer always do.
    fn settle_charge(&mut self, xnack: bool) -> Result {
        self.charge.set(if xnack { 0 } else { self.ranges.bytes() })
    }

    fn drop_span(&mut self, counters: &Counters, span: CpuSpan) -> Result {
        for base in windows_of(span) {
            if let Some(watched) = self.window(base) {
                watched.window.forget(span);
            }
        }
        self.ranges.replace(span.start().0, span.end().0, &mut |old| {
            counters.dropped.add(u64::from(old.is_some()));
            None
        })?;
        // Fewer bytes than were charged, if any were.
        let left = self.charge.bytes().min(self.ranges.bytes());
        self.charge.set(left)
    }
}
