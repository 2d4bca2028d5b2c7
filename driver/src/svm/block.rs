// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A block: 2 MiB of addresses, mapped to GPUs at the same addresses, faulted in and mapped as a unit of work.
//!
//! The *reservation* (a lock of rank `Bo`) serialises what maps the block: calls, faults, restores. Pages are faulted in under it, as with a
//! buffer object. What invalidations change is in [`super::window`], under the notifier lock.
//!
//! ```text
//! until all wanted pages are valid or missing:
//!     lock: moved = none                           (what is invalidated from here on is in `moved`)
//!     read_begin of the window                     (waits for invalidations under way)
//!     fault the pages in                           (no lock held that an invalidation takes)
//!     lock: those not in `moved` become valid, entries are written
//! ```
//!
//! What to map, the reservation's holder reads off the ranges first. Ranges that leave meanwhile note their pages in the block as *forgotten*, and these
//! are passed over: otherwise an entry would be left where the next buffer object may be.
//!
//! As only one such loop runs in a block, one bitmap says of each page what a generation would, and an invalidation costs only the
//! pages it hits. The order of the first two steps is that of [`crate::revalidate`], for the same reason.
//!
//! While pages are being moved to a GPU ([`Moving`]) nothing is faulted in: a fault is the CPU's to the host, and would bring back what a
//! moment later nobody would have to bring back, or put a page where the move has none to take along.

use super::page_bits::PageBits;
use super::residency::Granule;
use super::view::View;
use super::window::{BlockState, Map, Window, BLOCK_PAGES};
use crate::addr::{index, CpuSpan, CpuVa, GpuSpan, GpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::address_space::{Access, Page, Watch};
use crate::errno::{Errno, Error, RangeAt, Reason, Result};
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, MutexGuard, Time, Vec};
use crate::pte;
use crate::vm::Vm;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// What the reservation guards.
pub struct Inner {
    /// Its ranges have gone: whoever still has it looks again.
    gone: bool,
}

/// The reservation, held.
pub type Reserved<'a> = MutexGuard<'a, Inner>;

/// A block.
pub struct Block {
    window: Arc<Window>,
    watch: Arc<dyn Watch>,
    slot: usize,
    granule: Arc<Granule>,
    inner: Mutex<Inner>,
    /// Moves under way. Raised under the reservation, taken back without.
    moving: AtomicU32,
}

/// Pages of a block are being moved to a GPU, until this is dropped.
pub struct Moving(Arc<Block>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.moving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is to be faulted in and mapped.
pub struct Want<'a> {
    /// The attributes.
    pub view: &'a View,
    /// Pages that are to be valid.
    pub pages: PageBits,
    /// Pages that are also to be mapped, by GPU number, beyond those that are kept.
    pub extra: &'a [PageBits],
    /// Fault for writing, whatever the attributes say.
    pub write: bool,
}

/// What came of it.
#[derive(Clone, Copy, Default)]
pub struct Fetched {
    /// Pages neither valid nor missing: they would not hold still.
    pub left: PageBits,
    /// Why pages are missing, if one is newly so.
    pub error: Option<Errno>,
}

impl Block {
    /// Block number `slot` of a window.
    pub fn new(window: &Arc<Window>, watch: &Arc<dyn Watch>, slot: usize, granule: Arc<Granule>) -> Result<Arc<Self>> {
        let inner = Mutex::new(Rank::Bo, Inner { gone: false })?;
        os::arc(Self { window: window.clone(), watch: watch.clone(), slot, granule, inner, moving: AtomicU32::new(0) })
    }

    /// Its addresses.
    pub fn span(&self) -> CpuSpan {
        self.granule.span()
    }

    /// Its VRAM side.
    pub const fn granule(&self) -> &Arc<Granule> {
        &self.granule
    }

    /// Its number in its window.
    pub const fn slot(&self) -> usize {
        self.slot
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

    /// Takes the reservation; `None` once its ranges have gone.
    pub fn reserve(&self) -> Option<Reserved<'_>> {
        Some(self.inner.lock()).filter(|inner| !inner.gone)
    }

    /// Keeps its pages from being faulted in; waits for who is at it, and until `deadline` for those who move it to a GPU. `None` once its ranges have
    /// gone. The reservation must not be held; blocks of one move in ascending order.
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

    /// Waits until nobody moves pages of it to a GPU, or `deadline` has passed, or the thread is being killed. The reservation must not be held.
    pub fn await_moves(&self, deadline: Time) {
        let mut pause = Duration::from_micros(50);
        while self.is_moving() && !os::killed() && os::now() < deadline {
            os::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire) != 0
    }

    /// Calls `f` with what is known of it, under the notifier lock.
    pub fn state<R>(&self, f: impl FnOnce(&mut BlockState) -> R) -> Option<R> {
        self.window.lock().block(self.slot).map(f)
    }

    /// Makes its page tables on a GPU, if it has none there. ENOMEM (reason `NoVram`) when VRAM is short.
    pub fn map_on(&self, _: &Reserved<'_>, vm: &Arc<Vm>) -> Result {
        if self.state(|b| b.map(vm.gpu_index()).is_some()) != Some(false) {
            return Ok(());
        }
        let start = GpuVa(self.span().start().0);
        let span = GpuSpan::between(start, GpuVa(start.0 + HUGE));
        let leaves = vm.reserve(span)?;
        let (entries, current, wanted) = (PageBits::NONE, PageBits::NONE, PageBits::NONE);
        self.state(|b| b.maps.push_reserved(Map { vm: vm.clone(), leaves, entries, current, wanted }));
        Ok(())
    }

    /// Brings what is mapped in line with the attributes: access that was lost ends now, `touched` pages that are missing are looked at
    /// again with the next [`fetch`](Self::fetch), and get new entries if they have `changed`. Page tables are there already.
    pub fn update(&self, _: &Reserved<'_>, view: &View, touched: PageBits, changed: bool) {
        let changed = if changed { touched } else { PageBits::NONE };
        let mut state = self.window.lock();
        let Some(block) = state.block(self.slot) else { return };
        for map in block.maps.iter_mut() {
            let gpu = map.vm.gpu_index();
            map.wanted = view.kept(gpu) & !block.forgotten;
            map.current &= !changed;
            // Whatever nobody will bring up to date must not be found by a running queue.
            let outdated = !map.current & !map.wanted;
            if map.clear(outdated | !view.allowed(gpu)) {
                map.vm.flush();
            }
        }
        // What was faulted in for reading may be wanted for writing.
        for page in 0..HUGE_PAGES {
            if changed.has(page) && block.valid.has(page) && !block.pages[index(page)].writable() {
                block.valid.remove(page);
            }
        }
        block.missing &= !touched;
        let restless = !block.outstanding().is_empty();
        state.set_restless(self.slot, restless);
    }

    /// Faults in and maps what is wanted, until it is there or `deadline` has passed.
    pub fn fetch(&self, reserved: &Reserved<'_>, want: &Want<'_>, deadline: Time) -> Result<Fetched> {
        let mut pause = Duration::from_micros(50);
        let mut fetched = Fetched::default();
        let mut before = u64::MAX;
        let mut pass =
            Pass { block: self, want, pages: Vec::new(), runs: Vec::new(), spans: Vec::new(), buffer: Vec::new() };
        loop {
            fetched.left = match self.is_moving() {
                false => pass.run(reserved, &mut fetched.error)?,
                true => self.state(|b| want.pages & !(b.valid | b.missing | b.forgotten)).unwrap_or(PageBits::NONE),
            };
            let left = fetched.left.count();
            if left == 0 {
                return Ok(fetched);
            }
            // As long as each pass leaves less, there is no pause.
            if left >= before {
                if os::killed() || os::now() >= deadline {
                    return Ok(fetched);
                }
                os::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            before = left;
        }
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

    /// Ends it: no entries, no page tables. The ranges have gone.
    pub fn end(&self) {
        let Some(mut inner) = self.reserve() else { return };
        inner.gone = true;
        self.window.forget(self.span());
        let state = self.window.remove(self.slot);
        for map in state.iter().flat_map(|state| state.maps.iter()) {
            map.vm.release(&map.leaves);
        }
        drop(inner);
        drop(state);
    }
}

/// One look at the pages that are not there.
struct Pass<'a> {
    block: &'a Block,
    want: &'a Want<'a>,
    /// By page of the block.
    pages: Vec<Page>,
    /// What is to be faulted, `(first, pages)`.
    runs: Vec<(u64, u64)>,
    spans: Vec<CpuSpan>,
    buffer: Vec<Page>,
}

/// How a pass went.
#[derive(Default)]
struct Found {
    got: PageBits,
    missing: PageBits,
    error: Option<Errno>,
    /// An invalidation came between.
    busy: bool,
}

impl Pass<'_> {
    /// Faults in what is neither valid nor missing, and writes entries. What is left.
    fn run(&mut self, _: &Reserved<'_>, error: &mut Option<Errno>) -> Result<PageBits> {
        let block = self.block;
        let todo = block.state(|b| {
            b.moved = PageBits::NONE;
            self.want.pages & !(b.valid | b.missing | b.forgotten)
        });
        let Some(todo) = todo else { return Ok(PageBits::NONE) };
        let mut found = Found::default();
        if !todo.is_empty() {
            if self.pages.is_empty() {
                self.pages = Vec::filled(Page::default(), BLOCK_PAGES)?;
                self.buffer = Vec::filled(Page::default(), BLOCK_PAGES)?;
            }
            let seq = block.watch.read_begin();
            let only_read = if self.want.write { self.want.view.gpu_read_only } else { self.want.view.only_read };
            self.fault(seq, todo & !only_read, Access::Write, &mut found)?;
            self.fault(seq, todo & only_read, Access::Read, &mut found)?;
            block.window.process().sabotage().before_commit(block.span());
        }
        if found.error.is_some() {
            *error = found.error;
        }
        Ok(self.commit(&found))
    }

    fn span(&self, first: u64, pages: u64) -> CpuSpan {
        let start = self.block.span().start().0 + first * PAGE;
        CpuSpan::between(CpuVa(start), CpuVa(start + pages * PAGE))
    }

    fn fault(&mut self, seq: crate::address_space::Seq, todo: PageBits, access: Access, found: &mut Found) -> Result {
        if todo.is_empty() {
            return Ok(());
        }
        self.runs.clear();
        let mut count = 0;
        todo.runs(|_, _| count += 1);
        self.runs.reserve(count)?;
        self.spans.reserve(count)?;
        todo.runs(|first, pages| {
            self.runs.push_reserved((first, pages));
        });
        let mut from = 0;
        let mut denied = PageBits::NONE;
        while from < self.runs.len() && !found.busy {
            self.spans.clear();
            for at in from..self.runs.len() {
                let (first, pages) = self.runs[at];
                let span = self.span(first, pages);
                self.spans.push(span)?;
            }
            let wanted: u64 = self.runs[from..].iter().map(|run| run.1).sum();
            os::failpoint("fault")?;
            let mm = self.block.window.process().mm();
            let faulted = mm.fault(&*self.block.watch, seq, &self.spans, access, &mut self.buffer[..index(wanted)]);
            let mut at = 0;
            for (first, pages) in &self.runs[from..from + faulted.spans] {
                let to = &mut self.pages[index(*first)..index(first + pages)];
                to.copy_from_slice(&self.buffer[at..at + to.len()]);
                at += to.len();
                found.got |= PageBits::range(*first, first + pages);
            }
            from += faulted.spans;
            let Some(errno) = faulted.error else { continue };
            let Some((first, pages)) = self.runs.get(from).copied() else { break };
            match errno {
                Errno::EBUSY | Errno::EAGAIN => found.busy = true,
                Errno::EFAULT | Errno::EPERM | Errno::ESRCH if pages > 1 => {
                    // Which of them? Half and half: O(log pages) calls for each that is missing.
                    self.runs[from] = (first, pages / 2);
                    self.runs.push((first + pages / 2, pages - pages / 2))?;
                }
                Errno::EPERM if access == Access::Write => {
                    denied.insert(first);
                    from += 1;
                }
                Errno::EFAULT | Errno::EPERM | Errno::ESRCH => {
                    found.missing.insert(first);
                    found.error = Some(errno);
                    from += 1;
                }
                _ => return Err(errno.into()),
            }
        }
        // What may not be written may be read.
        if !denied.is_empty() && !found.busy {
            self.fault(seq, denied, Access::Read, found)?;
        }
        Ok(())
    }

    fn commit(&self, found: &Found) -> PageBits {
        let block = self.block;
        let mut state = block.window.lock();
        let Some(b) = state.block(block.slot) else { return PageBits::NONE };
        let moved = if block.window.process().sabotage().skip_generation_check() { PageBits::NONE } else { b.moved };
        let good = found.got & !(moved | b.forgotten);
        good.runs(|first, pages| {
            let range = index(first)..index(first + pages);
            b.pages[range.clone()].copy_from_slice(&self.pages[range]);
        });
        b.valid |= good;
        b.missing |= found.missing & !moved;
        for at in 0..b.maps.len() {
            let (valid, missing, forgotten) = (b.valid, b.missing, b.forgotten);
            let BlockState { pages, maps, .. } = &mut *b;
            let map = &mut maps[at];
            let gpu = map.vm.gpu_index();
            let extra = self.want.extra.get(gpu).copied().unwrap_or_default();
            let wanted = (map.wanted | extra) & self.want.view.allowed(gpu) & !forgotten;
            let mut changed = map.clear(missing & (wanted | map.wanted));
            let write = wanted & valid & !map.current;
            if !write.is_empty() {
                self.write(map, pages, write);
                changed = true;
            }
            if changed {
                map.vm.flush();
            }
        }
        let restless = !b.outstanding().is_empty();
        let left = self.want.pages & !(b.valid | b.missing | b.forgotten);
        state.set_restless(block.slot, restless);
        left
    }

    fn write(&self, map: &mut Map, pages: &[Page], write: PageBits) {
        let view = self.want.view;
        let gpu = &**map.vm.gpu();
        map.entries |= write;
        map.current |= write;
        // All there and in one piece: one huge entry.
        let start = view.entry(0, pages[0]);
        let whole = map.current == PageBits::ALL
            && pte::address(start) % HUGE == 0
            && (0..).zip(pages).all(|(i, page)| view.entry(i, *page) == start + i * PAGE);
        if whole {
            map.leaves.write_part(gpu, 0, HUGE_PAGES, |i| start + i * PAGE);
            return;
        }
        write.runs(|first, count| {
            map.leaves.write_part(gpu, first, count, |i| view.entry(first + i, pages[index(first + i)]));
        });
    }
}
