// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faulting a block's pages in and writing their entries: the one loop behind calls, restores and
//! GPU faults of SVM memory.
//!
//! ```text
//! until all that is asked for is valid or missing:
//!     lock: moved = none                      (what is invalidated from here on is in `moved`)
//!     read_begin of the window                (waits for invalidations under way)
//!     fault the pages in                      (no lock held that an invalidation takes)
//!     lock: those not in `moved` become valid, entries are written
//! ```
//!
//! As only one such loop runs in a block, one bitmap says of each page what a generation would, and
//! an invalidation costs only the pages it hits. The order of the first two steps is that of
//! [`crate::userptr::revalidate`], for the same reason.
//!
//! Only requested pages are looked at, and only their failures are errors. Failures of other memory
//! in the same block belong to the callers that request it. Entries are written for all pages that
//! are valid and wanted.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "runs are of the 512 pages of a block; a host answers with no more spans than it was given"
)]

use super::block::{Block, Reserved};
use super::block_state::{BlockState, Map};
use super::view::View;
use crate::base::addr::{index, CpuSpan, CpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::base::errno::{Errno, Result};
use crate::base::pte;
use crate::collections::page_bits::{PageBits, BLOCK_PAGES};
use crate::os::{self, Time, Vec};
use crate::sabotage::{FailPoint, Switch};
use crate::seams::address_space::{Access, Page};
use core::time::Duration;

/// What is to be faulted in and mapped.
pub struct Want<'a> {
    /// The attributes.
    pub view: &'a View,
    /// Pages that are to be valid.
    pub pages: PageBits,
    /// Look missing ones up again. Until then they stay noted as missing: an invalidation that
    /// brings one back has to stop the queues.
    pub again: bool,
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
    /// Why the first of the pages that are missing now is, if this has found out.
    pub error: Option<Errno>,
}

impl Block {
    /// Faults in and maps what is wanted, until it is there or `deadline` has passed.
    pub fn fetch(&self, reserved: &Reserved<'_>, want: &Want<'_>, deadline: Time) -> Result<Fetched> {
        let mut pause = Duration::from_micros(50);
        let mut before = u64::MAX;
        let mut pass = Pass::new(self, want);
        loop {
            let left = match self.is_moving() {
                false => pass.run(reserved)?,
                // What is valid already is mapped all the same.
                true => pass.commit(&Found::default()),
            };
            let count = left.count();
            if count == 0 {
                return Ok(pass.fetched(left));
            }
            // As long as each pass leaves less, there is no pause.
            if count >= before {
                if os::killed() || os::now() >= deadline {
                    return Ok(pass.fetched(left));
                }
                os::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            before = count;
        }
    }
}

/// Looks at the pages that are not there.
struct Pass<'a> {
    block: &'a Block,
    want: &'a Want<'a>,
    /// Pages that are still to be looked up also if they were missing.
    again: PageBits,
    /// Missing pages that have no mapping, and those whose mapping does not allow it.
    gone: PageBits,
    denied: PageBits,
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
    gone: PageBits,
    denied: PageBits,
    /// An invalidation came between.
    busy: bool,
}

impl<'a> Pass<'a> {
    fn new(block: &'a Block, want: &'a Want<'a>) -> Self {
        let (gone, denied) = (PageBits::NONE, PageBits::NONE);
        let (pages, runs, spans, buffer) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let again = if want.again { want.pages } else { PageBits::NONE };
        Self { block, want, again, gone, denied, pages, runs, spans, buffer }
    }

    fn fetched(&self, left: PageBits) -> Fetched {
        let first = (self.gone | self.denied).next(0, true);
        let errno = |page| if self.denied.has(page) { Errno::EPERM } else { Errno::EFAULT };
        Fetched { left, error: first.map(errno) }
    }

    /// Faults pages in that are neither valid nor missing, and writes entries. The pages that are
    /// left.
    fn run(&mut self, _: &Reserved<'_>) -> Result<PageBits> {
        let block = self.block;
        let todo = block.state(|b| {
            b.moved = PageBits::NONE;
            self.left(b)
        });
        let Some(todo) = todo else { return Ok(PageBits::NONE) };
        let mut found = Found::default();
        if !todo.is_empty() {
            if self.pages.is_empty() {
                self.pages = Vec::filled(Page::default(), BLOCK_PAGES)?;
                self.buffer = Vec::filled(Page::default(), BLOCK_PAGES)?;
            }
            let seq = block.watch().read_begin();
            let only_read = if self.want.write { self.want.view.gpu_read_only } else { self.want.view.only_read };
            self.fault(seq, todo & !only_read, Access::Write, &mut found)?;
            self.fault(seq, todo & only_read, Access::Read, &mut found)?;
            block.window().owner().before_commit(block.span());
        }
        Ok(self.commit(&found))
    }

    /// Pages that are wanted, and of which this does not know whether they are there.
    fn left(&self, b: &BlockState) -> PageBits {
        self.want.pages & !(b.valid | (b.missing & !self.again) | b.forgotten)
    }

    fn span(&self, first: u64, pages: u64) -> CpuSpan {
        let start = self.block.span().start().0 + first * PAGE;
        CpuSpan::between(CpuVa(start), CpuVa(start + pages * PAGE))
    }

    fn fault(
        &mut self,
        seq: crate::seams::address_space::Seq,
        todo: PageBits,
        access: Access,
        found: &mut Found,
    ) -> Result {
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
            os::interrupted()?;
            self.spans.clear();
            for at in from..self.runs.len() {
                let (first, pages) = self.runs[at];
                let span = self.span(first, pages);
                self.spans.push(span)?;
            }
            let wanted: u64 = self.runs[from..].iter().map(|run| run.1).sum();
            os::failpoint(FailPoint::Fault)?;
            let mm = self.block.window().owner().mm();
            let faulted = mm.fault(self.block.watch(), seq, &self.spans, access, &mut self.buffer[..index(wanted)]);
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
            // A hole, or a mapping that forbids it, is one miss however long it is.
            let none = |access| self.out_of_reach(first, pages, access);
            match errno {
                Errno::EBUSY | Errno::EAGAIN => found.busy = true,
                Errno::EFAULT | Errno::EPERM if pages > 1 && none(Access::Read) > 0 => {
                    let none = none(Access::Read);
                    let missing = if errno == Errno::EPERM { &mut found.denied } else { &mut found.gone };
                    *missing |= PageBits::range(first, first + none);
                    from = self.pass_over(from, none);
                }
                Errno::EPERM if pages > 1 && access == Access::Write && none(access) > 0 => {
                    let none = none(access);
                    denied |= PageBits::range(first, first + none);
                    from = self.pass_over(from, none);
                }
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
                    let missing = if errno == Errno::EPERM { &mut found.denied } else { &mut found.gone };
                    missing.insert(first);
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

    /// So many pages from the beginning of a run are certainly out of reach.
    fn out_of_reach(&self, first: u64, pages: u64, access: Access) -> u64 {
        let mm = self.block.window().owner().mm();
        (mm.out_of_reach(self.span(first, pages), access) / PAGE).min(pages)
    }

    /// Leaves out the first `count` pages of run number `at`. Which run is next.
    fn pass_over(&mut self, at: usize, count: u64) -> usize {
        match self.runs.get_mut(at) {
            Some((first, pages)) if *pages > count => {
                (*first, *pages) = (*first + count, *pages - count);
                at
            }
            _ => at + 1,
        }
    }

    fn commit(&mut self, found: &Found) -> PageBits {
        let block = self.block;
        let mut state = block.window().lock();
        let Some(b) = block.of(&mut state) else { return PageBits::NONE };
        let unchecked = block.window().owner().sabotage().has(Switch::GenerationCheck);
        let moved = if unchecked { PageBits::NONE } else { b.moved };
        let stays = !(moved | b.forgotten);
        let good = found.got & stays;
        good.runs(|first, pages| {
            let range = index(first)..index(first + pages);
            b.pages[range.clone()].copy_from_slice(&self.pages[range]);
        });
        b.valid |= good;
        let lost = found.gone | found.denied;
        b.missing = (b.missing & !good) | (lost & stays);
        self.again &= !(found.got | lost);
        self.gone = ((self.gone & !found.denied) | found.gone) & b.missing;
        self.denied = ((self.denied & !found.gone) | found.denied) & b.missing;
        let (valid, missing, forgotten) = (b.valid, b.missing, b.forgotten);
        let BlockState { pages, maps, .. } = &mut *b;
        for map in maps.iter_mut() {
            let gpu = map.vm.gpu_index();
            let allowed = self.want.view.allowed(gpu);
            // Access that was lost since: a thread that takes it away is still to come here.
            map.wanted &= allowed;
            let extra = self.want.extra.get(gpu).copied().unwrap_or_default();
            let wanted = (map.wanted | extra) & allowed & !forgotten;
            let mut changed = map.clear(missing);
            let write = wanted & valid & !map.current;
            if !write.is_empty() {
                self.write(map, pages, write);
                changed = true;
            }
            // Also of pages that are valid again, and not wanted any more.
            if map.clear_outdated() || changed {
                map.vm.flush();
            }
        }
        let left = self.left(b);
        state.changed(block);
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
