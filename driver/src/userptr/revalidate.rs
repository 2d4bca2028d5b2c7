// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Faulting invalid ranges in and committing them: the one loop behind registration, mapping,
//! restore and GPU faults.
//!
//! ```text
//! take the list of invalid ranges, or of those that are wanted
//! until it is empty:
//!     take ranges of one window, up to a chunk, noting their generations
//!     read_begin of the window                     (waits for invalidations under way)
//!     fault their pages in                         (no lock held that an invalidation takes)
//!     under the notifier lock, for each range:
//!         generation moved? back on the list : commit, write entries
//! ```
//!
//! The generations are noted *before* `read_begin`: an invalidation whose callback ran before that
//! is waited for, one whose callback runs later moves the generation. The other way round, one that
//! runs in between would be missed by both.
//!
//! While an object's memory is being moved to a GPU (`calls::move_pages`) nothing is faulted in. A
//! fault would put a page there after the move has passed it, or bring a private page back.
//!
//! A range of more than a chunk goes piece by piece under one generation. The caller holds the
//! object's reservation (rank `Bo`), so no two revalidations of an object run at once. O(pages of
//! the ranges taken), one chunk of memory.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "numbers of ranges and pages of a set that was checked; a host answers with no more spans than it was given"
)]

use crate::base::addr::{index, CpuSpan, CpuVa, HUGE_PAGES, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::os::{self, Arc, Vec};
use crate::sabotage::{FailPoint, Switch};
use crate::seams::address_space::{Page, Seq, Watch};
use crate::userptr::reach::Block;
use crate::userptr::window::Windows;
use crate::userptr::{InvalidList, Reservation, State, Status, Userptr};
use core::time::Duration;

/// Most pages and ranges faulted in at a time.
pub(crate) const CHUNK_PAGES: u64 = 16384;
pub(crate) const CHUNK_RANGES: usize = 1024;

/// What to do about a range that has no mapping, or not the permission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Fail, naming it: it was asked for just now.
    Fail,
    /// Note it; it keeps no entries, the others go on.
    Note,
}

#[derive(Clone, Copy)]
struct Pick {
    range: usize,
    generation: u32,
    pages: u64,
}

struct Pass<'a> {
    object: &'a Userptr,
    windows: &'a Windows,
    missing: Missing,
    /// Ranges that have become valid.
    committed: u64,
    picks: Vec<Pick>,
    spans: Vec<CpuSpan>,
    pages: Vec<Page>,
}

/// Which ranges a revalidation is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All of them, at one and the same time.
    All,
    /// Each of them once, whatever happens to it afterwards: no GPU has it yet. With less memory
    /// than is registered there is no moment at which all are valid.
    Each,
    /// One, which the device waits for, and its neighbours in a block of the GPU's pages. The rest
    /// may be in swap and is left there.
    Near(usize, Block),
}

impl Wanted {
    /// How many are not there yet.
    fn left(self, state: &State) -> usize {
        match self {
            Self::All => state.counts().0,
            Self::Each => state.unseen(),
            Self::Near(range, _) => is_invalid(state, range).into(),
        }
    }
}

fn is_invalid(state: &State, range: usize) -> bool {
    matches!(state.range(range).1, Status::Invalid | Status::Filling)
}

/// One pass over the ranges that are invalid now and wanted. `Err` only with [`Missing::Fail`], for
/// want of memory, or in a thread that is being killed; the ranges not dealt with are back on the
/// list then.
pub fn pass(object: &Userptr, _: &Reservation, windows: &Windows, missing: Missing, wanted: Wanted) -> Result {
    let (mut list, ranges, pages) = {
        let mut state = object.lock();
        let list = match wanted {
            Wanted::All => state.take_list(),
            Wanted::Each => state.take_unseen(),
            Wanted::Near(..) => InvalidList::empty(),
        };
        let (ranges, pages) = match wanted {
            // What is touched decides the size of the buffers, not what exists.
            Wanted::All | Wanted::Each => match wanted.left(&state) {
                few @ 0..=CHUNK_RANGES => (few, state.pages_of(&list, object.ranges())),
                _ => (CHUNK_RANGES, object.ranges().pages()),
            },
            Wanted::Near(range, block) => {
                let neighbours = neighbours(object, range, block);
                (neighbours.clone().count(), neighbours.map(|range| object.ranges().place(range).1).sum())
            }
        };
        (list, ranges, pages.min(CHUNK_PAGES))
    };
    if ranges == 0 {
        object.lock().put_back(list);
        return Ok(());
    }
    let result = Pass::new(object, windows, missing, ranges, pages).and_then(|mut pass| {
        let result = match wanted {
            Wanted::All | Wanted::Each => pass.run(&mut list),
            Wanted::Near(range, block) => pass.run_around(range, block),
        };
        // Whatever happened, entries were changed.
        let maps = object.lock().maps().len();
        for at in 0..maps {
            let vm = object.lock().maps().get(at).map(|m| m.vm.clone());
            if let Some(vm) = vm {
                vm.flush();
            }
        }
        result.map(|()| pass.committed)
    });
    object.lock().put_back(list);
    object.process().counters().ranges_restored.add(result?);
    Ok(())
}

/// `range` and the others in `block`: the device will want them next. A range that is longer than
/// any block is enough by itself.
fn neighbours(object: &Userptr, range: usize, block: Block) -> impl Iterator<Item = usize> + Clone + '_ {
    let ranges = object.ranges();
    let base = object.va().0 / PAGE;
    let first = ranges.of_page(block.first.saturating_sub(base)).unwrap_or(range);
    let last = ranges.of_page((block.end - base).min(ranges.pages()) - 1).unwrap_or(range);
    let long = move |range| ranges.place(range).1 > HUGE_PAGES;
    (first..=last).filter(move |neighbour| *neighbour == range || !long(range) && !long(*neighbour))
}

/// How far [`converge`] came.
pub struct Converged {
    /// Invalid ranges that are left.
    pub left: usize,
    /// Passes after the first.
    pub repeats: u64,
}

/// Passes without a pause, and none while the memory is being moved to a GPU, as long as each
/// leaves fewer invalid ranges than the one before. Invalidations that keep coming hit more ranges
/// during a long pass than during a short one, so this closes in on none, where a pause would lose
/// the lead again.
pub fn converge(
    object: &Userptr,
    reserved: &Reservation,
    windows: &Windows,
    missing: Missing,
    wanted: Wanted,
) -> Result<Converged> {
    let mut before = usize::MAX;
    let mut repeats = 0;
    loop {
        if !object.is_moving() {
            pass(object, reserved, windows, missing, wanted)?;
        }
        let left = wanted.left(&object.lock());
        if left == 0 || left >= before {
            return Ok(Converged { left, repeats });
        }
        before = left;
        repeats += 1;
    }
}

/// [`converge`]s until all that is wanted is there, with growing pauses in between, until
/// `deadline` has passed: EAGAIN then, naming the first range that would not hold still.
pub fn settle(
    object: &Userptr,
    reserved: &Reservation,
    windows: &Windows,
    missing: Missing,
    wanted: Wanted,
    deadline: os::Time,
) -> Result {
    let mut pause = Duration::from_micros(50);
    loop {
        let converged = converge(object, reserved, windows, missing, wanted)?;
        object.process().counters().register_retries.add(converged.repeats);
        let restless = {
            let state = object.lock();
            match wanted {
                Wanted::All => state.first_invalid(),
                Wanted::Each if state.unseen() == 0 => None,
                Wanted::Each => state.first_unseen(),
                Wanted::Near(range, _) => is_invalid(&state, range).then_some(range),
            }
        };
        let Some(range) = restless else { return Ok(()) };
        if os::killed() {
            return Err(Errno::EINTR.into());
        }
        if os::now() >= deadline {
            return Err(Error::new(Errno::EAGAIN, Reason::Deadline).at(object.ranges().at(range)));
        }
        object.process().counters().register_retries.add(1);
        os::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Puts a range that was picked back on the list unless it became valid. What was written of it is
/// cleared: an invalidation looks for entries only in ranges that are not `Invalid`.
fn give_back(object: &Userptr, state: &mut State, range: usize) {
    if state.range(range).1 == Status::Filling {
        let (first, count) = object.ranges().place(range);
        for map in state.maps() {
            map.leaves.clear(&**map.vm.gpu(), first, count);
        }
    }
    state.relist(range);
}

impl<'a> Pass<'a> {
    fn new(object: &'a Userptr, windows: &'a Windows, missing: Missing, ranges: usize, pages: u64) -> Result<Self> {
        Ok(Self {
            object,
            windows,
            missing,
            committed: 0,
            picks: Vec::with_capacity(ranges)?,
            spans: Vec::with_capacity(ranges)?,
            pages: Vec::filled(Page::default(), index(pages))?,
        })
    }

    fn run(&mut self, list: &mut InvalidList) -> Result {
        let object = self.object;
        loop {
            // Before anything is picked: all that is left is on the list.
            os::interrupted()?;
            let Some(first) = object.lock().peek(list) else { return Ok(()) };
            let watch = self.windows.of(first, object.ranges().span(first).start());
            self.pick(list, &**watch);
            self.fetch(&**watch)?;
        }
    }

    /// A range that the device waits for, with its neighbours that are watched together with it.
    /// They stay on the object's list, and its readers skip ranges that have become valid.
    fn run_around(&mut self, range: usize, block: Block) -> Result {
        let (object, windows) = (self.object, self.windows);
        let watch_of = |range| windows.of(range, object.ranges().span(range).start());
        let watch = watch_of(range);
        {
            let state = object.lock();
            for range in neighbours(object, range, block).filter(|range| Arc::ptr_eq(watch_of(*range), watch)) {
                self.pick_one(&state, range, object.ranges().span(range));
            }
        }
        self.fetch(&**watch)
    }

    /// Notes the generation of a range, if it is invalid.
    fn pick_one(&mut self, state: &State, range: usize, span: CpuSpan) {
        let (generation, status) = state.range(range);
        if status == Status::Invalid {
            self.picks.push_reserved(Pick { range, generation, pages: span.pages() });
            self.spans.push_reserved(span);
        }
    }

    /// Faults in and commits what was picked.
    fn fetch(&mut self, watch: &dyn Watch) -> Result {
        let seq = watch.read_begin();
        let result = match self.picks.last() {
            Some(only) if only.pages > CHUNK_PAGES => self.long_range(*only, watch, seq),
            Some(_) => self.chunk(watch, seq),
            // All that were left had become valid or were no longer of this list.
            None => Ok(()),
        };
        if result.is_err() {
            let mut state = self.object.lock();
            for pick in self.picks.iter() {
                give_back(self.object, &mut state, pick.range);
            }
        }
        result
    }

    /// Takes ranges that fit a chunk and lie in `watch`; a range longer than a chunk only alone.
    fn pick(&mut self, list: &mut InvalidList, watch: &dyn Watch) {
        self.picks.clear();
        self.spans.clear();
        let ranges = self.object.ranges();
        let mut state = self.object.lock();
        let mut room = CHUNK_PAGES;
        let watched = watch.span();
        while let Some(range) = state.peek(list) {
            let span = ranges.span(range);
            let pages = span.pages();
            let here = self.windows.is_of(watch, watched, range, span.start());
            let full = self.picks.len() == self.picks.capacity() || (pages > room && !self.picks.is_empty());
            if full || !here {
                break;
            }
            state.pop(list);
            let picked = self.picks.len();
            self.pick_one(&state, range, span);
            if self.picks.len() > picked {
                room = room.saturating_sub(pages);
            }
        }
    }

    fn chunk(&mut self, watch: &dyn Watch, seq: Seq) -> Result {
        let mut from = 0;
        while from < self.picks.len() {
            os::interrupted()?;
            let spans = &self.spans[from..];
            let wanted: u64 = spans.iter().map(|s| s.pages()).sum();
            let mm = self.object.process().mm();
            let access = self.object.access();
            let faulted = match os::failpoint(FailPoint::Fault) {
                Ok(()) => mm.fault(watch, seq, spans, access, &mut self.pages[..index(wanted)]),
                Err(e) => return Err(e),
            };
            self.object.process().before_commit(spans[0]);
            self.commit(from, faulted.spans);
            from += faulted.spans;
            if let Some(errno) = faulted.error {
                if errno == Errno::EBUSY || errno == Errno::EAGAIN {
                    self.moved(from, self.picks.len());
                    return Ok(());
                }
                self.miss(self.picks[from], errno)?;
                from += 1;
            }
        }
        Ok(())
    }

    fn moved(&mut self, from: usize, to: usize) {
        let mut state = self.object.lock();
        for pick in &self.picks[from..to] {
            give_back(self.object, &mut state, pick.range);
        }
    }

    fn unmoved(&self, state: &State, pick: Pick) -> bool {
        let (generation, status) = state.range(pick.range);
        let same = generation == pick.generation && matches!(status, Status::Invalid | Status::Filling);
        same || self.object.process().sabotage().has(Switch::GenerationCheck)
    }

    fn commit(&mut self, from: usize, count: usize) {
        let object = self.object;
        let mut at = 0;
        let mut state = object.lock();
        for pick in &self.picks[from..from + count] {
            let pages = &self.pages[at..at + index(pick.pages)];
            at += pages.len();
            if self.unmoved(&state, *pick) {
                let (first, count) = object.ranges().place(pick.range);
                state.commit(pick.range, first, pages, Status::Valid);
                for map in state.maps() {
                    object.write_entries(&state, map, first, count);
                }
                self.committed += 1;
            } else {
                state.relist(pick.range);
            }
        }
    }

    fn long_range(&mut self, pick: Pick, watch: &dyn Watch, seq: Seq) -> Result {
        let object = self.object;
        let (first, pages) = object.ranges().place(pick.range);
        let start = object.ranges().span(pick.range).start();
        let mut done = 0;
        while done < pages {
            os::interrupted()?;
            // Pieces end where 2 MiB blocks of the GPU range end: a block is written as a whole or
            // not at all.
            let va_page = object.va().0 / PAGE + first + done;
            let piece = (CHUNK_PAGES - va_page % HUGE_PAGES).min(pages - done);
            let from = CpuVa(start.0 + done * PAGE);
            let span = CpuSpan::between(from, CpuVa(from.0 + piece * PAGE));
            os::failpoint(FailPoint::Fault)?;
            let mm = object.process().mm();
            let buffer = &mut self.pages[..index(piece)];
            let faulted = mm.fault(watch, seq, &[span], object.access(), buffer);
            match faulted.error {
                Some(Errno::EBUSY | Errno::EAGAIN) => {
                    self.moved(0, 1);
                    return Ok(());
                }
                Some(errno) => return self.miss(pick, errno),
                None => {}
            }
            object.process().before_commit(span);
            let mut state = object.lock();
            if !self.unmoved(&state, pick) {
                state.relist(pick.range);
                return Ok(());
            }
            let status = if done + piece == pages { Status::Valid } else { Status::Filling };
            state.commit(pick.range, first + done, &self.pages[..index(piece)], status);
            for map in state.maps() {
                object.write_entries(&state, map, first + done, piece);
            }
            drop(state);
            done += piece;
        }
        self.committed += 1;
        Ok(())
    }

    /// A range could not be faulted in.
    fn miss(&mut self, pick: Pick, errno: Errno) -> Result {
        let object = self.object;
        let (reason, status) = match errno {
            // Or all of the address space has gone, and the file outlives it.
            Errno::EFAULT | Errno::ESRCH => (Reason::NotMapped, Status::Gone),
            Errno::EPERM => (Reason::NoPermission, Status::Denied),
            _ => return Err(Error { at: Some(object.ranges().at(pick.range)), ..Error::from(errno) }),
        };
        if self.missing == Missing::Fail {
            return Err(Error::new(errno, reason).at(object.ranges().at(pick.range)));
        }
        let mut state = object.lock();
        if self.unmoved(&state, pick) {
            state.miss(pick.range, status);
            let (first, count) = object.ranges().place(pick.range);
            for map in state.maps() {
                map.leaves.clear(&**map.vm.gpu(), first, count);
            }
        } else {
            state.relist(pick.range);
        }
        Ok(())
    }
}
