// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From system memory to a GPU's.
//!
//! The worker moves chunks, with one invalidation each, in pieces of at most 2 MiB. A waiting
//! thread waits for one piece.

use super::descriptor::Mode;
use super::device_ram::{DeviceRam, Window};
use super::places::Run;
use super::ring::{from_start, Change, Fate};
use super::stash::Holds;
use super::swap::Staged;
use super::vma::Vma;
use super::worker::{Worker, CHUNK, PATIENCE};
use super::{Mover, Placed};
use crate::sabotage;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, VramOffset, HUGE, PAGE};
use vkfd_sabotage::Switch;

/// Bytes taken out at once; then they can be copied.
const PORTION: u64 = 1 << 20;

/// Where a page is offered, by address.
struct Offers {
    start: CpuVa,
    places: Vec<Option<VramOffset>>,
}

impl Offers {
    fn index(&self, at: CpuVa) -> usize {
        index((at.0 - self.start.0) / PAGE)
    }

    fn get(&self, at: CpuVa) -> Option<VramOffset> {
        self.places.get(self.index(at)).copied().flatten()
    }

    /// Takes the offers for these pages, which are among those asked for, back for now: which they
    /// were.
    fn withhold(&mut self, stacks: &[CpuSpan]) -> Vec<(usize, VramOffset)> {
        let mut withheld = Vec::new();
        for stack in stacks {
            for page in self.index(stack.start())..self.index(stack.end()) {
                if let Some(place) = self.places.get_mut(page).and_then(Option::take) {
                    withheld.push((page, place));
                }
            }
        }
        withheld
    }

    fn taken(&mut self, span: CpuSpan) {
        let first = self.index(span.start());
        self.places[first..first + super::places::pages_of(span)].fill(None);
    }

    /// The next piece at or after `at` and before `end`: pages next to each other, with places next
    /// to each other, in one block of 2 MiB.
    fn piece(&self, at: CpuVa, end: CpuVa) -> Option<(CpuSpan, VramOffset)> {
        let mut at = at;
        let first = loop {
            if at >= end {
                return None;
            }
            if let Some(place) = self.get(at) {
                break place;
            }
            at = CpuVa(at.0 + PAGE);
        };
        let limit = end.0.min((at.0 / HUGE + 1) * HUGE);
        let mut stop = at.0 + PAGE;
        while stop < limit && self.get(CpuVa(stop)) == Some(VramOffset(first.0 + (stop - at.0))) {
            stop += PAGE;
        }
        Some((CpuSpan::between(at, CpuVa(stop)), first))
    }
}

/// What came of a piece.
enum Outcome {
    /// That much of it, from its start, has been moved; what was moved away by the client meanwhile
    /// has been given back.
    Moved(Run),
    /// Its first page cannot be taken out now: shared with a child, pinned, gone.
    Stuck,
    /// The mappings are not those that were looked at.
    Disturbed,
    /// Nothing more can be moved at the moment.
    Stop,
}

fn is_movable(vma: &Vma) -> bool {
    !vma.shared && vma.file.is_none() && !vma.special && vma.prot == libc::PROT_READ | libc::PROT_WRITE
}

impl Worker {
    pub(super) fn move_to_device(
        &mut self,
        span: CpuSpan,
        memory: Arc<DeviceRam>,
        places: Vec<Option<VramOffset>>,
    ) -> Placed {
        let window = self.with_sealed(memory.window());
        let number = self.remember(memory);
        let mut offers = Offers { start: span.start(), places };
        let stacks = if sabotage::has(Switch::MoveStacks) {
            Ok(Vec::new())
        } else {
            self.threads.stacks_in(span, &self.mover.mappings)
        };
        let Ok(stacks) = stacks else {
            return Placed { places: offers.places, moved: 0, shared: Vec::new() };
        };
        let withheld = offers.withhold(&stacks);
        let mut moved = 0;
        let mut shared = Vec::new();
        let mut at = span.start();
        while at < span.end() && self.mover.frozen.load(Ordering::SeqCst) == 0 {
            self.drain();
            let end = CpuVa(span.end().0.min((at.0 / CHUNK + 1) * CHUNK));
            let chunk = CpuSpan::between(at, end);
            if !self.chunk_to_device(chunk, &window, number, &mut offers, &mut moved, &mut shared) {
                break;
            }
            at = end;
        }
        for (page, place) in withheld {
            offers.places[page] = Some(place);
        }
        self.adopted = None;
        self.registering(|worker| worker.mm.handed_back());
        self.forget_unused();
        Placed { places: offers.places, moved, shared }
    }

    /// Moves what it can of `chunk`. Whether to go on.
    fn chunk_to_device(
        &mut self,
        chunk: CpuSpan,
        window: &Window,
        number: u32,
        offers: &mut Offers,
        moved: &mut u64,
        shared: &mut Vec<CpuSpan>,
    ) -> bool {
        let mut parts = self.movable(chunk, offers, true);
        if parts.is_empty() {
            return true;
        }
        let mm = self.mm;
        let _told = mm.invalidation(chunk);
        parts.reverse();
        while let Some(part) = parts.pop() {
            if !self.adopt(part) {
                // One of its mappings may be somebody else's.
                let alone = self.movable(part, offers, false);
                if alone.len() > 1 {
                    parts.extend(alone.into_iter().rev());
                }
                continue;
            }
            let stop = self.part_to_device(part, window, number, offers, moved, shared);
            sabotage::wait_if(Switch::EndSlowly);
            self.disown_rest(part);
            if stop {
                return false;
            }
        }
        true
    }

    /// The parts of `chunk` that can move and have a page with an offer: of one mapping each. With
    /// `joined` a part may span several neighbouring mappings, as memory does that came back piece
    /// by piece.
    fn movable(&self, chunk: CpuSpan, offers: &Offers, joined: bool) -> Vec<CpuSpan> {
        let mut parts: Vec<CpuSpan> = Vec::new();
        self.mover.mappings.within(chunk, |vma| {
            let part = vma.cut(chunk);
            if !is_movable(vma) || self.image.overlaps(part) {
                return true;
            }
            self.mover.own.each_other(part, |part| {
                match parts.last_mut().filter(|last| joined && last.end() == part.start()) {
                    Some(last) => *last = CpuSpan::between(last.start(), part.end()),
                    None => {
                        if let Some((first, _)) = offers.piece(part.start(), part.end()) {
                            parts.push(CpuSpan::between(first.start(), part.end()));
                        }
                    }
                }
            });
            true
        });
        // Private memory is such a mapping, too.
        parts.retain(|part| !self.mover.holds(*part) || self.has_system_pages(*part));
        parts
    }

    fn has_system_pages(&self, part: CpuSpan) -> bool {
        self.mover.each_part(part, |_, place| if place.is_none() { Err(()) } else { Ok(()) }).is_err()
    }

    /// Moves what it can of `part`, which is adopted. Pages that cannot be taken out are noted in
    /// `shared`. Whether to stop.
    fn part_to_device(
        &mut self,
        part: CpuSpan,
        window: &Window,
        number: u32,
        offers: &mut Offers,
        moved: &mut u64,
        shared: &mut Vec<CpuSpan>,
    ) -> bool {
        let mut at = part.start();
        while let Some((piece, place)) = offers.piece(at, part.end()) {
            self.drain();
            // Announced discards that were reported are over then; those reported from now on are
            // pending.
            drop(self.mover.replacing());
            let piece = match self.mover.late.clear_part(piece) {
                Some(clear) if clear.start() == piece.start() => clear,
                later => {
                    at = later.map_or(piece.end(), CpuSpan::start);
                    continue;
                }
            };
            // What is on a device already stays there.
            let known = self.mover.places.lock().first_in(piece);
            let piece = match known {
                Some(run) if run.span.start() == piece.start() => {
                    at = run.span.end();
                    continue;
                }
                Some(run) => CpuSpan::between(piece.start(), run.span.start()),
                None => piece,
            };
            let runs = self.mover.places.lock().len();
            if self.budget.left(4, runs) < 4 {
                tracing::warn!("vm.max_map_count is nearly reached: pages stay in system memory");
                return true;
            }
            match self.piece_to_device(piece, place, window, number) {
                Outcome::Moved(Run { span: done, .. }) => {
                    self.budget.spend(if window.coherent { 2 } else { 0 });
                    offers.taken(done);
                    *moved += done.pages();
                    at = done.end();
                }
                Outcome::Stuck => {
                    at = CpuVa(piece.start().0 + PAGE);
                    match shared.last_mut() {
                        Some(last) if last.end() == piece.start() => *last = CpuSpan::between(last.start(), at),
                        _ => shared.push(CpuSpan::between(piece.start(), at)),
                    }
                }
                Outcome::Disturbed => return false,
                Outcome::Stop => return true,
            }
        }
        false
    }

    fn piece_to_device(&mut self, piece: CpuSpan, place: VramOffset, window: &Window, number: u32) -> Outcome {
        if self.disturbed {
            // Something else may be mapped there, of which no event would tell.
            return Outcome::Disturbed;
        }
        let Some(slot) = self.stash.take_empty() else { return Outcome::Stop };
        let register = |mover: &Mover| mover.descriptor.register(slot.span, Mode::Missing).is_ok();
        let lent = self.registering(|worker| worker.mm.lend(slot.span, || register(worker.mover)));
        if !lent || self.disturbed {
            let _ = self.mover.descriptor.unregister(slot.span);
            self.stash.put(slot, Holds::Nothing);
            return if lent { Outcome::Disturbed } else { Outcome::Stop };
        }
        let since = self.mover.ring.handled();
        self.mover.epoch.fetch_add(1, Ordering::SeqCst);
        let (outcome, full) = self.take_out(piece, place, window, number, slot.span.start(), since);
        self.mover.epoch.fetch_add(1, Ordering::SeqCst);
        self.stash.put(slot, if full { Holds::Everything } else { Holds::Something });
        if let Outcome::Moved(run) = outcome {
            self.release_what_left(&run);
        }
        let _ = self.mover.unseal();
        outcome
    }

    /// From taking out to letting go: nothing here touches the heap. Also whether the slot is left
    /// with all its pages.
    fn take_out(
        &self,
        piece: CpuSpan,
        place: VramOffset,
        window: &Window,
        number: u32,
        slot: CpuVa,
        since: u64,
    ) -> (Outcome, bool) {
        let vram = window.mapped(place, piece.bytes());
        self.mover.copy.begin(vram.start(), slot);
        let taken = self.take_pages(piece, slot, since);
        // From here on the slot is memory like any other; what nobody had touched reads as zeros.
        let _ = self.mover.descriptor.unregister(CpuSpan::between(slot, CpuVa(slot.0 + HUGE)));
        let (taken, full) = match taken {
            Some((0, _)) => return (Outcome::Stuck, false),
            Some(taken) => taken,
            None => return (Outcome::Disturbed, false),
        };
        let piece = CpuSpan::between(piece.start(), CpuVa(piece.start().0 + taken));
        let copied = if sabotage::has(Switch::CopyUnsealed) {
            self.mover.copy.run(vram, piece.start())
        } else {
            self.mover.copy.end(taken)
        };
        if !copied {
            self.give_back(piece, slot, since);
            return (Outcome::Stop, false);
        }
        if sabotage::has(Switch::CopyUnsealed) {
            // Long enough for somebody to write what is then lost.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        let run =
            Run { span: piece, at: window.fabric(place), memory: number, coherent: window.coherent, sealed: false };
        if !window.coherent {
            // What changes from then on finds the run.
            let entered = self.mover.undisturbed(|runs| {
                let same = self.mover.ring.pending(since, piece).next().is_none();
                if same {
                    runs.insert(run);
                }
                same
            });
            if !entered {
                self.give_back(piece, slot, since);
                return (Outcome::Disturbed, false);
            }
            return (Outcome::Moved(run), full && taken == HUGE);
        }
        if !self.put_vram(run, window, slot, since) {
            self.give_back(piece, slot, since);
            return (Outcome::Stuck, false);
        }
        (Outcome::Moved(run), full && taken == HUGE)
    }

    /// Takes the pages of `piece` out, as many from its start as can be. How many bytes, and
    /// whether all of them were there; `None` when the mappings are not those that were looked at.
    /// All at one moment: either before a change of the mappings, or not at all.
    fn take_pages(&self, piece: CpuSpan, slot: CpuVa, since: u64) -> Option<(u64, bool)> {
        let mover = self.mover;
        mover.undisturbed(|_| {
            if mover.ring.pending(since, piece).next().is_some() {
                return None;
            }
            // What came into a hole since `adopt` is not registered; without that it could go again
            // unseen.
            mover.descriptor.register(piece, Mode::Missing).ok()?;
            mover.mappings.uniform(piece, is_movable)?;
            if sabotage::has(Switch::CopyUnsealed) {
                return Some((piece.bytes(), true));
            }
            let (mut taken, mut full) = (0, true);
            mover.mappings.within(piece, |vma| {
                let part = vma.cut(piece);
                let mut at = part.start();
                while at < part.end() {
                    // A huge page is taken out whole.
                    let most = if mover.mappings.is_huge(at) { HUGE } else { PORTION };
                    let portion = CpuSpan::between(at, CpuVa(part.end().0.min(at.0 + most)));
                    let (bytes, whole) = mover.take_part(portion, CpuVa(slot.0 + taken));
                    taken += bytes;
                    full &= whole;
                    if bytes < portion.bytes() {
                        return false;
                    }
                    // A hole in the slot would have the copying thread wait for the worker.
                    if full {
                        mover.copy.offer(taken);
                    }
                    at = portion.end();
                }
                true
            });
            Some((taken, full))
        })
    }

    /// Replaces `run`'s mapping by one of VRAM, sealed, and enters the run, whose contents are also
    /// at `slot`. False if that failed; then nothing has changed.
    pub(super) fn put_vram(&self, run: Run, window: &Window, slot: CpuVa, since: u64) -> bool {
        let Ok(Some(Vma { prot, .. })) = self.mover.mappings.query(run.span.start()) else { return false };
        let staged: Result<Staged, i32> = self.mover.stage_vram(window, window.offset(run.at), run.span.bytes(), prot);
        let done = staged.and_then(|staged| self.mover.replace(staged, run.span, prot, since));
        if done.is_err() {
            return false;
        }
        self.mover.places.lock().insert(Run { sealed: true, ..run });
        for (_, change) in self.mover.ring.pending(since, run.span) {
            let Change::Remap { from, to } = change else { continue };
            if sabotage::has(Switch::ForgetWhatMoved) {
                continue;
            }
            for touched in [Some(from), CpuSpan::new(to, from.bytes())].into_iter().flatten() {
                if let Some(part) = run.cut(touched) {
                    let kept = CpuVa(slot.0 + from_start(part.span.start(), run.span));
                    self.moved_before(part, window, kept, since);
                }
            }
        }
        true
    }

    /// Pages of `part` may have been moved by the client just before their mapping was replaced:
    /// then its contents go there, from `kept`. What has happened after that finds the run, which
    /// stays sealed until then.
    fn moved_before(&self, part: Run, window: &Window, kept: CpuVa, since: u64) {
        for page in (0..part.span.bytes()).step_by(index(PAGE)) {
            let at = CpuVa(part.span.start().0 + page);
            let Some(run) = part.cut(CpuSpan::between(at, CpuVa(at.0 + PAGE))) else { return };
            let replaced = self.is_vram(&run, window);
            match self.mover.ring.fate(at, since) {
                // The client has no mapping at the replacement's place.
                Fate::Moved(_) | Fate::Gone if replaced => {
                    self.mover.take_back(run.span, || self.is_vram(&run, window))
                }
                // It has come back to its old place, over the replacement.
                Fate::Here if !replaced => {}
                _ => continue,
            }
            while self.mover.places.lock().take_first(run.span).is_some() {}
            self.give_back(run.span, CpuVa(kept.0 + page), since);
        }
    }

    /// Whether the CPU has `run` mapped where it is.
    pub(super) fn is_vram(&self, run: &Run, window: &Window) -> bool {
        let vma = self.mover.mappings.query(run.span.start());
        vma.is_ok_and(|vma| {
            vma.is_some_and(|vma| {
                let offset = window.in_file(window.offset(run.at));
                vma.span.start() <= run.span.start()
                    && vma.file.is_some_and(|(file, start)| {
                        file == window.file && start + (run.span.start().0 - vma.span.start().0) == offset
                    })
            })
        })
    }

    /// Gives pages that were taken out back, to their old place or to the address that they have
    /// moved to. Discarded pages are dropped.
    fn give_back(&self, piece: CpuSpan, slot: CpuVa, since: u64) {
        if sabotage::has(Switch::CopyUnsealed) {
            return;
        }
        let mut at = piece.start();
        let mut tries = 0;
        let mut single = false;
        while at < piece.end() {
            let (done, errno) = self.mover.undisturbed(|_| {
                let disturbed = self.mover.ring.pending(since, piece).next().is_some();
                let bytes = if disturbed || single { PAGE } else { piece.end().0 - at.0 };
                let to = match self.mover.ring.fate(at, since) {
                    Fate::Here => Some(at),
                    Fate::Moved(to) => Some(to),
                    Fate::Discarded | Fate::Unmapped | Fate::Gone => None,
                };
                let kept = CpuVa(slot.0 + from_start(at, piece));
                match to {
                    Some(to) => self.mover.give(CpuSpan::between(to, CpuVa(to.0 + bytes)), kept),
                    None => (bytes, None),
                }
            });
            at = CpuVa(at.0 + done);
            match errno {
                None => tries = 0,
                Some(libc::EAGAIN) => {}
                // Cut by mprotect, of which no event tells: page by page.
                Some(_) if !single => single = true,
                Some(errno) => {
                    tries += 1;
                    if tries > PATIENCE {
                        tries = 0;
                        tracing::error!(%at, errno, "a page could not be given back: its contents are lost");
                        at = CpuVa(at.0 + PAGE);
                    }
                    std::thread::yield_now();
                }
            }
        }
        self.mover.descriptor.wake(piece);
    }

    /// Has `part` registered with the mover's descriptor. False when it cannot be, or is no memory
    /// to move any more.
    fn adopt(&mut self, part: CpuSpan) -> bool {
        self.adopted = Some(part);
        self.disturbed = false;
        // What is on a device privately is registered, and must not cease to be for a moment.
        let (mover, mut others) = (self.mover, Vec::new());
        let _ = mover.each_part::<()>(part, |part, place| {
            others.extend(place.is_none().then_some(part));
            Ok(())
        });
        let register = |part| mover.descriptor.register(part, Mode::Missing).is_ok();
        let adopted =
            others.into_iter().all(|part| self.registering(|worker| worker.mm.hand_over(part, || register(part))));
        let adopted = adopted && self.hear_others();
        let mut same = true;
        self.mover.mappings.within(part, |vma| {
            same &= is_movable(vma);
            same
        });
        if !adopted || !same {
            self.disown_rest(part);
            return false;
        }
        true
    }

    /// Waits until the watches' descriptor has reported every change that had begun before. The
    /// reader may wait for a GPU, and that for a page, so the worker goes on working. False when
    /// there is no end to it.
    fn hear_others(&mut self) -> bool {
        (0..PATIENCE).any(|_| {
            self.mm.is_heard() || {
                self.drain();
                std::thread::yield_now();
                false
            }
        })
    }

    /// Ends the mover's registration of the memory in `part` that is not on a device.
    pub(super) fn disown_rest(&mut self, part: CpuSpan) {
        let mut at = part.start();
        while at < part.end() {
            let rest = CpuSpan::between(at, part.end());
            let next = self.mover.places.lock().first_in(rest);
            let stop = next.map_or(part.end(), |run| run.span.start());
            if stop > at {
                self.disown(CpuSpan::between(at, stop));
            }
            at = next.map_or(part.end(), |run| run.span.end());
        }
    }

    /// Ends the mover's registration of `part`, which is no run; if it is watched its events go to
    /// the watches' descriptor again. What a change that is not dealt with yet touches stays
    /// registered until it is: empty memory of a run may have been moved there.
    pub(super) fn disown(&mut self, part: CpuSpan) {
        let mover = self.mover;
        let done = self.mm.take_over(part, || {
            if sabotage::has(Switch::EndCarelessly) {
                let _ = mover.descriptor.unregister(part);
                return true;
            }
            mover.undisturbed(|_| {
                if mover.ring.pending(mover.ring.handled(), part).next().is_some() {
                    return false;
                }
                let _ = mover.descriptor.unregister(part);
                // Moved there just before: the moving thread still sleeps, and finds it registered.
                let changing = mover.descriptor.is_changing(mover.probe);
                if changing {
                    mover.register_mapped(part);
                }
                !changing
            })
        });
        if !done {
            self.to_disown.push(part);
        }
    }

    /// Does what [`Worker::disown`] had to put off.
    pub(super) fn disown_late(&mut self) {
        for part in std::mem::take(&mut self.to_disown) {
            self.disown_rest(part);
        }
    }
}
