// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a sequence on a simulated machine and on the model.
//!
//! No step depends on whether the restore worker has already run. Three kinds of steps wait for it
//! first: changes without a notification (a fresh mapping), a switch of XNACK, and a failure on
//! purpose.

use std::thread;
use std::time::Instant;

use vkfd_driver::base::addr::PAGE;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os::fault_injection;
use vkfd_driver::userptr::window::WindowPolicy;
use vkfd_uapi::command::SET_XNACK_MODE;
use vkfd_uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::process::SetXnackModeArgs;
use vkfd_uapi::vkfd::{BoInfo, RangeInfo, RANGE_INVALID, SNAPSHOT_BOS, SNAPSHOT_RANGES};

use vkfd_driver::seams::address_space::Access;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::patience::PATIENCE;
use vkfd_sim::rig::Called;
use vkfd_sim::{Form, Rig, SimMm};

use super::race::{Change, Race, Races};
use super::{options, Op, Piece, Shape, Step, Trouble, FIRST_PAGE, VRAM_PAGES};

/// GPU address of slot 0.
pub(super) const WINDOW: u64 = 0x10_0000_0000;
/// Objects at a time.
const MOST_OBJECTS: usize = 8;

/// What the driver must know of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Valid,
    Invalid,
    Gone,
    Denied,
}

#[derive(Clone, Debug)]
pub(super) struct Range {
    pub first: u64,
    pub pages: u64,
    pub state: State,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Userptr { ranges: Vec<Range>, writable: bool },
    Vram,
    Gtt,
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub handle: u64,
    /// First page of the window.
    pub page: u64,
    pub pages: u64,
    pub kind: Kind,
    pub mapped: Vec<bool>,
}

impl Object {
    pub fn is_mapped(&self) -> bool {
        self.mapped.contains(&true)
    }

    /// What a look at the memory makes of a range.
    fn look(memory: &SimMm, range: &Range, write: bool) -> State {
        let mut pages = range.first..range.first + range.pages;
        match pages.find_map(|page| memory.allows(page, access(write)).err()) {
            None => State::Valid,
            Some(Errno::EPERM) => State::Denied,
            Some(_) => State::Gone,
        }
    }

    /// Looks at ranges again: the invalid ones, and those that were missing if `missing`.
    fn revalidate(&mut self, memory: &SimMm, missing: bool) {
        let Kind::Userptr { ranges, writable } = &mut self.kind else { return };
        for range in ranges {
            if range.state == State::Invalid || (missing && range.state != State::Valid) {
                range.state = Self::look(memory, range, *writable);
            }
        }
    }

    fn invalidate(&mut self, first: u64, count: u64) {
        let Kind::Userptr { ranges, .. } = &mut self.kind else { return };
        for range in ranges {
            if range.first < first + count && first < range.first + range.pages {
                range.state = State::Invalid;
            }
        }
    }
}

fn access(write: bool) -> Access {
    if write {
        Access::Write
    } else {
        Access::Read
    }
}

/// A fault on a page of the window, and what the driver answers.
fn fault(rig: &Rig, gpu: usize, page: u64, write: bool) -> Option<bool> {
    rig.faulted(gpu, WINDOW / PAGE + page, write, FaultReason::NotPresent)
}

fn set_xnack(rig: &Rig, on: bool) -> Called {
    rig.call(SET_XNACK_MODE.0, &mut SetXnackModeArgs { xnack_enabled: on.into() })
}

/// Both sides.
pub(super) struct World {
    pub shape: Shape,
    pub rig: Rig,
    pub races: Races,
    pub objects: Vec<Object>,
    pub stale: Vec<u64>,
    pub xnack: bool,
}

pub(super) type Verdict<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

/// Runs a sequence.
///
/// # Errors
///
/// The first thing that is not as the model has it, and at which step.
pub fn run(shape: Shape, steps: &[Step]) -> Verdict {
    let windows = if shape.per_range { WindowPolicy::PerRange } else { WindowPolicy::default() };
    let options = Options { windows, sabotage: shape.sabotage, ..options() };
    let rig = Rig::on(SimMm::with_array(), options, shape.gpus, VRAM_PAGES);
    // Some of it is mapped to begin with.
    rig.mm.map(FIRST_PAGE, shape.pages / 4 * 3, true);
    let races = Races::on(&rig.mm);
    let mut world = World { shape, rig, races, objects: Vec::new(), stale: Vec::new(), xnack: false };
    for (i, step) in steps.iter().enumerate() {
        world.step(step).map_err(|why| format!("step {i} ({:?}, {:?}): {why}", step.op, step.trouble))?;
    }
    world.end(steps.len() % 2 == 1).map_err(|why| format!("at the end: {why}"))
}

impl World {
    fn piece(&self, piece: Piece) -> Piece {
        let first = piece.0 % self.shape.pages;
        (FIRST_PAGE + first, piece.1.clamp(1, self.shape.pages - first))
    }

    /// The driver's list of objects.
    pub fn bos(&self) -> Vec<BoInfo> {
        self.rig.snapshot(SNAPSHOT_BOS, 0, 256).expect("a snapshot")
    }

    /// The driver's ranges of an object.
    pub fn ranges(&self, handle: u64) -> Called<Vec<RangeInfo>> {
        self.rig.snapshot(SNAPSHOT_RANGES, handle, 256)
    }

    fn va(page: u64) -> u64 {
        WINDOW + page * PAGE
    }

    fn step(&mut self, step: &Step) -> Verdict {
        let unnoticed = matches!(step.op, Op::Mmap { .. } | Op::Mremap { .. } | Op::Xnack { .. } | Op::Fault { .. });
        if unnoticed || !matches!(step.trouble, Trouble::None) {
            self.settle()?;
        }
        let mut fail = None;
        match step.trouble {
            Trouble::Fail(n) => fail = Some(n),
            Trouble::Page(page, errno) => self.rig.mm.fail_once(FIRST_PAGE + page % self.shape.pages, errno),
            // With XNACK on it is a matter of luck which ranges come along with a fault that is
            // raced.
            Trouble::Race { skip, change, piece } if !(self.xnack && matches!(step.op, Op::Fault { .. })) => {
                let (mut first, count) = self.piece(piece);
                if let (Op::Register { ranges, .. }, true) = (&step.op, count % 2 == 1) {
                    // Where it matters, every other time.
                    let aim = usize::try_from(first).unwrap_or(0) % ranges.len();
                    first = self.piece(ranges[aim]).0;
                }
                self.races.arm(Some(Race { skip, change, first, count }));
            }
            Trouble::Race { .. } | Trouble::None => {}
        }
        self.act(&step.op, fail, step.trouble)?;
        if step.settle || !matches!(step.trouble, Trouble::None) {
            self.settle()?;
            self.check()?;
        }
        Ok(())
    }

    /// Waits for the restore; the model looks again at invalid mapped ranges.
    pub fn settle(&mut self) -> Verdict {
        ensure!(self.rig.settled(), "the queues stay stopped: {:?}", self.rig.info());
        self.races.arm(None);
        self.absorb_races();
        self.rig.mm.no_failures();
        if !self.xnack {
            for object in self.objects.iter_mut().filter(|o| o.is_mapped()) {
                object.revalidate(&self.rig.mm, false);
            }
        }
        Ok(())
    }

    fn absorb_races(&mut self) -> bool {
        let raced = self.races.take();
        for race in &raced {
            self.told(race.first, race.count);
        }
        !raced.is_empty()
    }

    /// The driver was notified of a change.
    fn told(&mut self, first: u64, count: u64) {
        for object in &mut self.objects {
            object.invalidate(first, count);
        }
    }

    /// Makes a call, with a failure on the way if one is wanted. A call that fails for it has
    /// changed nothing, and then works.
    fn call<T>(&self, fail: Option<u64>, comparable: bool, call: impl Fn(&Rig) -> Called<T>) -> Verdict<Called<T>> {
        let Some(n) = fail else { return Ok(call(&self.rig)) };
        let before = self.fingerprint();
        let (result, reached) = fault_injection::fail_nth(n, || call(&self.rig));
        if !reached || result.as_ref().err() != Some(&Errno::ENOMEM) {
            return Ok(result);
        }
        ensure!(self.rig.settled(), "the queues stay stopped after a call that failed: {:?}", self.rig.info());
        let forgotten = self.bos().into_iter().find(|bo| bo.mapped_gpus != 0 && bo.invalid_ranges != 0);
        ensure!(
            self.xnack || forgotten.is_none(),
            "a failed call left ranges that no restore will come for: {forgotten:?}"
        );
        let after = self.fingerprint();
        ensure!(
            !comparable || before == after,
            "a call that failed at failpoint {n} has left something: {before:#?} became {after:#?}"
        );
        Ok(call(&self.rig))
    }

    fn object(&self, number: usize) -> Option<usize> {
        (!self.objects.is_empty()).then(|| number % self.objects.len())
    }

    fn act(&mut self, op: &Op, fail: Option<u64>, trouble: Trouble) -> Verdict {
        let gpus = self.rig.gpus.len();
        match op {
            Op::Mmap { piece, writable } => {
                let (first, count) = self.piece(*piece);
                if self.rig.mm.map(first, count, *writable) {
                    self.told(first, count);
                }
            }
            Op::Change { change, piece } => {
                let (first, count) = self.piece(*piece);
                change.apply(&self.rig.mm, first, count);
                self.told(first, count);
            }
            Op::Mremap { piece, to } => {
                let (first, count) = self.piece(*piece);
                let to = FIRST_PAGE + to % self.shape.pages;
                let count = count.min(FIRST_PAGE + self.shape.pages - to);
                if first.abs_diff(to) >= count {
                    if self.rig.mm.remap(first, count, to) {
                        self.told(to, count);
                    }
                    self.told(first, count);
                }
            }
            Op::Hint { piece } => {
                let (first, count) = self.piece(*piece);
                // Refused while the restore holds a lock; some objects may have heard it. The
                // worker may do so for a moment after the queues run again.
                self.settle()?;
                let began = Instant::now();
                while !self.rig.mm.notify(first, count, false) {
                    ensure!(began.elapsed() < PATIENCE, "refused with nothing going on");
                    thread::yield_now();
                }
                self.told(first, count);
            }
            Op::Register { slot, ranges, writable, form } => {
                self.register(*slot, ranges, *writable, *form, fail, trouble)?
            }
            Op::Alloc { slot, pages, vram } => self.alloc(*slot, *pages, *vram, fail)?,
            Op::Map { object, gpu } => {
                if let Some(at) = self.object(*object) {
                    self.map(at, gpu % gpus, fail, trouble)?;
                }
            }
            Op::Unmap { object, gpu } => {
                if let Some(at) = self.object(*object) {
                    let (handle, gpu) = (self.objects[at].handle, gpu % gpus);
                    let result = self.call(fail, true, |rig| rig.unmap_on(gpu, handle))?;
                    let mapped = std::mem::replace(&mut self.objects[at].mapped[gpu], false);
                    let wanted = if mapped { Ok(()) } else { Err(Errno::EINVAL) };
                    ensure!(result == wanted, "{result:?}, and it was mapped: {mapped}");
                }
            }
            Op::Free { object } => {
                if let Some(at) = self.object(*object) {
                    let handle = self.objects[at].handle;
                    let wanted = if self.objects[at].is_mapped() { Err(Errno::EBUSY) } else { Ok(()) };
                    let result = self.call(fail, true, |rig| rig.free(handle))?;
                    ensure!(result == wanted, "{result:?} instead of {wanted:?}");
                    if result.is_ok() {
                        self.objects.remove(at);
                        self.stale.push(handle);
                    }
                }
            }
            Op::Stale { handle } => {
                let alive = |handle: &u64| self.objects.iter().any(|o| o.handle == *handle);
                let stale: Vec<u64> = self.stale.iter().copied().filter(|h| !alive(h)).collect();
                if let Some(handle) = stale.get(handle % stale.len().max(1)).copied() {
                    let rig = &self.rig;
                    let ranges = self.ranges(handle).map(drop);
                    let results = [rig.map(handle), rig.unmap(handle), rig.free(handle), ranges];
                    // As KFD: calls that map say ENOMEM.
                    let wanted = [Errno::ENOMEM, Errno::ENOMEM, Errno::EINVAL, Errno::EINVAL].map(Err);
                    ensure!(results == wanted, "a stale handle: {results:?}");
                }
            }
            Op::Fault { object, gpu, page, write } => {
                if let Some(at) = self.object(*object).filter(|_| self.xnack) {
                    self.fault(at, gpu % gpus, *page, *write, trouble)?;
                }
            }
            Op::Xnack { on } => {
                let on = *on;
                let result = self.call(fail, true, |rig| set_xnack(rig, on))?;
                ensure!(result.is_ok(), "{result:?}");
                self.xnack = on;
            }
        }
        Ok(())
    }

    fn register(
        &mut self,
        slot: u64,
        ranges: &[Piece],
        writable: bool,
        form: Form,
        fail: Option<u64>,
        trouble: Trouble,
    ) -> Verdict {
        if self.objects.len() >= MOST_OBJECTS {
            return Ok(());
        }
        let page = slot % self.shape.slots * self.shape.slot_pages;
        let form = if ranges.len() > 1 && form == Form::Single { Form::Batch } else { form };
        let list: Vec<Piece> = ranges.iter().map(|r| self.piece(*r)).collect();
        let pages = list.iter().map(|r| r.1).sum();
        let access = if writable { ALLOC_MEM_FLAGS_WRITABLE } else { 0 };
        let flags = ALLOC_MEM_FLAGS_USERPTR | access;
        let taken = self.is_taken(page, pages);
        let before = self.badness(&list, writable);
        let result = self.call(fail, true, |rig| rig.register_as(form, Self::va(page), &list, flags))?;
        let raced = self.absorb_races();
        let after = self.badness(&list, writable);
        let fits = match result {
            Err(Errno::EADDRINUSE) => taken,
            Err(errno) if taken => return Err(format!("{errno:?} instead of EADDRINUSE")),
            Err(Errno::ENOMEM) => matches!(trouble, Trouble::Page(_, Errno::ENOMEM)),
            // A race that comes after the pages were committed, and before others are, does not
            // show.
            Err(errno) => before.contains(&errno) || after.contains(&errno),
            Ok(_) => before.is_empty() || raced,
        };
        ensure!(fits, "{result:?}; taken: {taken}; memory before: {before:?}, after: {after:?}");
        if let Ok(handle) = result {
            let state = if raced { State::Invalid } else { State::Valid };
            let ranges = list.iter().map(|(first, pages)| Range { first: *first, pages: *pages, state }).collect();
            let mapped = vec![false; self.rig.gpus.len()];
            self.objects.push(Object { handle, page, pages, kind: Kind::Userptr { ranges, writable }, mapped });
        }
        Ok(())
    }

    /// The errors that a look at the memory would end with.
    fn badness(&self, list: &[Piece], write: bool) -> Vec<Errno> {
        let pages = list.iter().flat_map(|(first, count)| *first..first + count);
        let mut errors: Vec<Errno> = pages.filter_map(|page| self.rig.mm.allows(page, access(write)).err()).collect();
        errors.sort_unstable_by_key(|e| e.0);
        errors.dedup();
        errors
    }

    fn is_taken(&self, page: u64, pages: u64) -> bool {
        self.objects.iter().any(|o| o.page < page + pages && page < o.page + o.pages)
    }

    fn alloc(&mut self, slot: u64, pages: u64, vram: bool, fail: Option<u64>) -> Verdict {
        if self.objects.len() >= MOST_OBJECTS {
            return Ok(());
        }
        let page = slot % self.shape.slots * self.shape.slot_pages;
        let kind = if vram { ALLOC_MEM_FLAGS_VRAM } else { ALLOC_MEM_FLAGS_GTT };
        let flags = kind | ALLOC_MEM_FLAGS_WRITABLE;
        let result = self.call(fail, true, |rig| rig.alloc(Self::va(page), pages * PAGE, flags))?;
        let taken = self.is_taken(page, pages);
        ensure!(
            result.is_ok() != taken && (result.is_ok() || result == Err(Errno::EADDRINUSE)),
            "{result:?}; taken: {taken}"
        );
        if let Ok(handle) = result {
            let kind = if vram { Kind::Vram } else { Kind::Gtt };
            self.objects.push(Object { handle, page, pages, kind, mapped: vec![false; self.rig.gpus.len()] });
        }
        Ok(())
    }

    fn map(&mut self, at: usize, gpu: usize, fail: Option<u64>, trouble: Trouble) -> Verdict {
        let handle = self.objects[at].handle;
        // What is missing is looked at again, also by a call that then fails.
        let comparable = match &self.objects[at].kind {
            Kind::Userptr { ranges, .. } => ranges.iter().all(|r| r.state == State::Valid),
            _ => true,
        };
        let result = self.call(fail, comparable, |rig| rig.map_on(gpu, handle))?;
        let raced = self.absorb_races();
        match result {
            Ok(()) => {
                self.objects[at].mapped[gpu] = true;
                self.objects[at].revalidate(&self.rig.mm, true);
            }
            Err(Errno::ENOMEM) if matches!(trouble, Trouble::Page(_, Errno::ENOMEM)) => {
                // Looked at again or not; the object is mapped as before, and the restore has the
                // rest.
                self.rig.mm.no_failures();
                let again = self.rig.map_on(gpu, handle);
                ensure!(again.is_ok(), "{again:?} after a page was not to be had once");
                self.objects[at].mapped[gpu] = true;
                self.objects[at].revalidate(&self.rig.mm, true);
            }
            Err(errno) => return Err(format!("{errno:?}; raced: {raced}")),
        }
        Ok(())
    }

    fn fault(&mut self, at: usize, gpu: usize, page: u64, write: bool, trouble: Trouble) -> Verdict {
        let object = &mut self.objects[at];
        let page = page % object.pages;
        let mapped = object.mapped[gpu];
        let Some(served) = fault(&self.rig, gpu, object.page + page, write) else {
            return Err("a fault that is never answered".into());
        };
        let Kind::Userptr { ranges, writable } = &object.kind else {
            ensure!(!served, "a fault on memory that never goes away was served");
            return Ok(());
        };
        if !mapped || (write && !writable) {
            ensure!(!served, "a fault was served that retrying cannot help: mapped {mapped}, writable {writable}");
            return Ok(());
        }
        let mut left = page;
        let number = ranges.iter().position(|r| {
            let here = left < r.pages;
            left = left.saturating_sub(r.pages);
            here
        });
        let number = number.ok_or("a page beyond the last range")?;
        let missing = ranges[number].state != State::Valid;
        let before: Vec<State> = ranges.iter().map(|r| r.state).collect();
        if matches!(trouble, Trouble::Page(_, Errno::ENOMEM)) && !served {
            // The worker had no memory: nothing was promised. The next one is served.
            self.rig.mm.no_failures();
            return self.fault(at, gpu, page, write, Trouble::None);
        }
        object.revalidate(&self.rig.mm, missing);
        let Kind::Userptr { ranges, .. } = &object.kind else { return Ok(()) };
        let wanted = ranges[number].state == State::Valid;
        ensure!(served == wanted, "served: {served}, but range {number} is {:?}", ranges[number]);
        let count = ranges.len();
        self.leave(at, |i, _| i != number && before[i] != State::Valid)?;
        if matches!(trouble, Trouble::Page(..)) {
            // Another range may have been the one that failed; the next fault brings it.
            self.rig.mm.no_failures();
            for range in 0..count {
                let Kind::Userptr { ranges, .. } = &self.objects[at].kind else { break };
                let first: u64 = ranges[..range].iter().map(|r| r.pages).sum();
                let _ = fault(&self.rig, gpu, self.objects[at].page + first, false);
            }
            // Each has had a fault of its own, so what can be there is. What cannot was put back
            // on the list by the next fault, which may have been too far away to look at it.
            self.objects[at].revalidate(&self.rig.mm, true);
            self.leave(at, |_, range| range.state != State::Valid)?;
        }
        Ok(())
    }

    /// A fault brings the range's neighbours, and leaves what is farther away as it was: which of
    /// those that `may` be left were is the driver's choice.
    fn leave(&mut self, at: usize, may: impl Fn(usize, &Range) -> bool) -> Verdict {
        let told = self.ranges(self.objects[at].handle).map_err(|e| format!("{e:?}"))?;
        let Kind::Userptr { ranges, .. } = &mut self.objects[at].kind else { return Ok(()) };
        for (i, (range, told)) in ranges.iter_mut().zip(told).enumerate() {
            if may(i, range) && told.state == RANGE_INVALID {
                range.state = State::Invalid;
            }
        }
        Ok(())
    }

    /// Frees everything, then ends the process: nothing is left either time. Or ends it in the
    /// middle of an eviction.
    fn end(mut self, abruptly: bool) -> Verdict {
        self.settle()?;
        self.check()?;
        if abruptly {
            Change::Nothing.apply(&self.rig.mm, FIRST_PAGE, self.shape.pages);
            return self.rig.close();
        }
        for object in std::mem::take(&mut self.objects) {
            for gpu in 0..self.rig.gpus.len() {
                let unmapped = self.rig.unmap_on(gpu, object.handle);
                let mapped = object.mapped.get(gpu).is_some_and(|mapped| *mapped);
                ensure!(unmapped.is_ok() == mapped, "{unmapped:?}, and it was mapped: {mapped}");
            }
            let freed = self.rig.free(object.handle);
            ensure!(freed.is_ok(), "{freed:?}");
        }
        self.settle()?;
        self.check()?;
        self.rig.close()
    }
}
