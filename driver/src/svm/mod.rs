// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM: memory that a GPU uses at the addresses that the CPU has it at, without a handle.
//!
//! | module | what |
//! | --- | --- |
//! | [`attributes`] | what a process has said of a range, and what KFD makes of it |
//! | [`ranges`] | the ranges: disjoint, split and merged by calls |
//! | `call` | the ioctl: set and get |
//! | [`window`] | notifiers over 512 MiB, and what invalidations change |
//! | [`block`] | 2 MiB that are faulted in and mapped together |
//! | `fault` | GPU page faults (XNACK on) |
//! | `restore` | what invalidations have stopped queues for; ranges whose memory has gone |
//! | `migration` | moving pages to a GPU's memory and back |
//! | [`residency`] | which are there, coldest first; making room |
//! | [`damping`] | pages that go to and fro |
//! | `snapshot` | what a client can read of all this |
//!
//! Attributes are of ranges, and ranges split and merge as calls have it. Everything that costs is of blocks and windows, which are
//! aligned and stay. So an attribute that changes in the middle of a range moves no page-table entry outside of it.
//!
//! The lock of rank `Svm` guards the ranges and the tables of windows and blocks. It is taken under a block's reservation, to read the
//! attributes as they are at the moment; no CPU memory is looked at under it.

pub mod attributes;
pub mod block;
mod call;
pub mod counters;
pub mod damping;
mod fault;
mod migration;
pub mod page_bits;
pub mod ranges;
pub mod residency;
mod restore;
mod snapshot;
pub mod view;
pub mod window;

use self::block::{Block, Reserved};
use self::counters::Counters;
use self::page_bits::PageBits;
use self::ranges::SvmRanges;
use self::residency::Granule;
use self::view::View;
use self::window::{windows_of, BlockState, Window, BLOCKS, WINDOW};
use crate::addr::{index, CpuSpan, CpuVa, HUGE};
use crate::address_space::{AddressSpace, Invalidate, Watch};
use crate::errno::{Errno, Result};
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, Vec};
use crate::process::Process;
use crate::vm::Vm;
use core::sync::atomic::{AtomicU32, Ordering};

/// A window with its notifier and its blocks.
struct Watched {
    window: Arc<Window>,
    watch: Arc<dyn Watch>,
    blocks: Vec<Option<Arc<Block>>>,
}

impl Watched {
    fn base(&self) -> u64 {
        self.window.span().start().0
    }
}

struct Inner {
    ranges: SvmRanges,
    /// By address.
    windows: Vec<Watched>,
}

/// A process's SVM memory.
pub struct Svm {
    inner: Mutex<Inner>,
    counters: Arc<Counters>,
    /// What is to be looked after, noted by invalidations.
    notes: AtomicU32,
    /// Held while what was noted is dropped: who finds nothing noted must find it dropped.
    sweep: Mutex<()>,
}

/// The VMs of a process, by GPU number.
pub type Vms = Vec<Option<Arc<Vm>>>;

impl Svm {
    /// Memory of ranges was unmapped.
    pub const DROPS: u32 = 1;

    /// None.
    pub fn new() -> Result<Self> {
        let inner = Inner { ranges: SvmRanges::new(), windows: Vec::new() };
        Ok(Self {
            inner: Mutex::new(Rank::Svm, inner)?,
            counters: os::arc(Counters::default())?,
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

    /// Whether a range shares a byte with `[start, end)`. Ranges whose memory there has gone, and whose host could not tell, are dropped first.
    /// O(log ranges) where there is none.
    pub fn conflict(&self, mm: &dyn AddressSpace, start: u64, end: u64) -> bool {
        loop {
            let hit = self.inner.lock().ranges.within(start, end).first().copied();
            let Some(range) = hit else { return false };
            let span = CpuSpan::between(CpuVa(range.start.max(start)), CpuVa(range.end.min(end)));
            // Without memory for the split the conflict stands.
            if mm.first_mapped(span).is_some() || self.drop_span(span).is_err() {
                return true;
            }
        }
    }

    /// Drops the ranges of `span`, whose memory has gone: first their entries, so that nothing of theirs is left where another
    /// object may be mapped next.
    fn drop_span(&self, span: CpuSpan) -> Result {
        if span.bytes() == 0 {
            return Ok(());
        }
        self.inner.lock().drop_span(&self.counters, span)
    }

    /// Makes windows for all of `span`. Called without locks.
    fn make_windows(&self, process: &Arc<Process>, span: CpuSpan) -> Result {
        for base in windows_of(span) {
            if self.inner.lock().window(base).is_some() {
                continue;
            }
            let window = Window::new(process, base)?;
            let client: Arc<dyn Invalidate> = window.clone();
            os::failpoint("watch")?;
            let watch = process.mm().watch(window.span(), client)?;
            let blocks = Vec::filled(None, BLOCKS)?;
            let mut surplus = Some(Watched { window, watch, blocks });
            let result = self.inner.lock().add_window(&mut surplus);
            // If another made it meanwhile; not dropped under the lock that its callback's worker takes.
            drop(surplus);
            result?;
        }
        Ok(())
    }

    /// The block at `at`, made if there is a window. `None` where no range has ever been.
    fn block(&self, process: &Process, at: u64) -> Result<Option<Arc<Block>>> {
        let mut inner = self.inner.lock();
        let Some(watched) = inner.window_mut(at) else { return Ok(None) };
        let slot = index(at % WINDOW / HUGE);
        if let Some(block) = &watched.blocks[slot] {
            return Ok(Some(block.clone()));
        }
        let start = at / HUGE * HUGE;
        let span = CpuSpan::between(CpuVa(start), CpuVa(start.saturating_add(HUGE)));
        let gpus = process.gpu_count();
        let granule = Granule::new(process.mm_arc().clone(), process.who(), span, gpus, self.counters.clone())?;
        let block = Block::new(&watched.window, &watched.watch, slot, granule)?;
        watched.window.add(BlockState::new(slot, gpus)?)?;
        watched.blocks[slot] = Some(block.clone());
        Ok(Some(block))
    }

    /// The block at `at`, if there is one.
    pub(crate) fn find_block(&self, at: u64) -> Option<Arc<Block>> {
        self.inner.lock().window(at)?.blocks[index(at % WINDOW / HUGE)].clone()
    }

    /// The first block at or above `at` and below `end`.
    fn next_block(&self, at: u64, end: u64) -> Option<Arc<Block>> {
        let inner = self.inner.lock();
        let first = inner.windows.partition_point(|w| w.base() + (WINDOW - 1) < at);
        for watched in &inner.windows[first..] {
            if watched.base() >= end {
                return None;
            }
            let from = index(at.saturating_sub(watched.base()) / HUGE);
            if let Some(block) = watched.blocks[from..].iter().flatten().next() {
                return Some(block.clone()).filter(|block| block.span().start().0 < end);
            }
        }
        None
    }

    /// What the ranges say of a block now.
    fn view(&self, process: &Process, block: &Block) -> Result<View> {
        self.look(process, block, |_| ())
    }

    /// As [`view`](Self::view), for who maps the block by it: what leaves the ranges from now on is noted in the block, and gets no entries.
    fn view_to_map(&self, process: &Process, block: &Block, _: &Reserved<'_>) -> Result<View> {
        self.look(process, block, |block| {
            block.state(|b| b.forgotten = PageBits::NONE);
        })
    }

    fn look(&self, process: &Process, block: &Block, begin: impl FnOnce(&Block)) -> Result<View> {
        let mut view = View::new(process.gpu_count())?;
        let xnack = process.xnack();
        let inner = self.inner.lock();
        // Under the lock that ranges leave under.
        begin(block);
        let span = block.span();
        for range in inner.ranges.within(span.start().0, span.end().0) {
            let own = CpuSpan::between(CpuVa(range.start), CpuVa(range.end));
            view.add(block.pages_of(own), &range.attributes, xnack);
        }
        Ok(view)
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let inner = self.inner.lock();
        let windows = inner.windows.iter().map(|w| w.blocks.memory() + w.window.lock().memory());
        inner.ranges.memory() + inner.windows.memory() + windows.sum::<u64>()
    }

    /// How many notifiers there are.
    pub fn window_count(&self) -> usize {
        self.inner.lock().windows.len()
    }
}

impl Inner {
    fn position(&self, at: u64) -> core::result::Result<usize, usize> {
        self.windows.binary_search_by_key(&(at / WINDOW * WINDOW), Watched::base)
    }

    fn window(&self, at: u64) -> Option<&Watched> {
        self.position(at).ok().map(|i| &self.windows[i])
    }

    fn window_mut(&mut self, at: u64) -> Option<&mut Watched> {
        self.position(at).ok().map(|i| &mut self.windows[i])
    }

    /// Whether there are windows for all of `span`.
    fn has_windows(&self, span: CpuSpan) -> bool {
        windows_of(span).all(|base| self.window(base).is_some())
    }

    fn add_window(&mut self, watched: &mut Option<Watched>) -> Result {
        let Some(base) = watched.as_ref().map(Watched::base) else { return Ok(()) };
        let Err(at) = self.position(base) else { return Ok(()) };
        self.windows.reserve(1)?;
        if let Some(watched) = watched.take() {
            self.windows.push_reserved(watched);
            self.windows[at..].rotate_right(1);
        }
        Ok(())
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
        })
    }
}

impl Process {
    /// The VMs, by GPU number.
    fn svm_vms(&self) -> Result<Vms> {
        let mut vms = Vec::with_capacity(self.gpu_count())?;
        for vm in self.lock().vms.iter() {
            vms.push_reserved(vm.clone());
        }
        Ok(vms)
    }

    /// The bit of a GPU that a call names. EINVAL when there is none.
    fn gpu_bit(&self, gpu_id: u32) -> Result<u32> {
        Ok(1 << self.kfd().device(gpu_id)?.index())
    }

    /// Makes page tables of a block on a GPU; evicts SVM memory if VRAM is short. `Ok(false)` once the block has gone. Called without locks.
    fn svm_map_on(&self, block: &Block, vm: &Arc<Vm>) -> Result<bool> {
        loop {
            let Some(reserved) = block.reserve() else { return Ok(false) };
            let result = block.map_on(&reserved, vm);
            drop(reserved);
            match result {
                Err(e) if residency::wants_room(&e) && vm.device().make_room(4)? => {}
                Err(e) => return Err(e),
                Ok(()) => return Ok(true),
            }
        }
    }
}

/// KFD's SVM errors for what a call says of an address.
fn not_mapped() -> crate::errno::Error {
    crate::errno::Error::new(Errno::EFAULT, crate::errno::Reason::NotMapped)
}
