// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From a GPU's memory back to system memory: on request, when the CPU touches private pages, and
//! when their contents were discarded.
//!
//! Coherent pages: an empty mapping replaces that of VRAM. Then no thread reaches the VRAM pages,
//! and their contents go into the empty mapping. A thread that touches it waits until then. Private
//! pages: the client's mapping is empty already.

use super::device_ram::{identity, Window};
use super::places::Run;
use super::ring::{from_start, Change, Fate};
use super::stash::{Holds, Slot};
use super::worker::{Worker, CHUNK, PATIENCE};
use super::{await_answer, Job, Mover};
use crate::sabotage;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use vkfd_driver::base::addr::{CpuSpan, CpuVa, VramOffset, HUGE, PAGE};
use vkfd_driver::seams::device_memory::DeviceMemory;
use vkfd_sabotage::Switch;

/// How often a piece is tried whose mapping is changing.
const TRIES: u32 = 8;

/// Where contents are: pages of the stash, if there are such, and VRAM.
type Source = (Option<CpuVa>, CpuVa);

/// What was done with a part.
#[derive(Default)]
struct Filled {
    bytes: u64,
    errno: Option<i32>,
    /// Bytes of the stash's pages that are the client's now.
    given: u64,
    /// Our empty mapping lies where the client has none.
    stray: bool,
    /// The run stays.
    keep: bool,
}

impl Mover {
    /// See `AddressSpace::evict_places`.
    pub(crate) fn evict(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> u64 {
        let (done, answer) = mpsc::sync_channel(1);
        self.submit(Job::Evict { device: identity(device), places: places.to_vec(), done });
        await_answer(&answer, places.len() as u64 * PAGE).unwrap_or(0)
    }
}

impl Worker {
    /// Moves what there is in `span`. How many pages.
    pub(super) fn move_to_system(&mut self, span: CpuSpan) -> u64 {
        let mut moved = 0;
        let mut at = span.start();
        loop {
            self.drain();
            let Some(run) = self.mover.places.lock().first_in(CpuSpan::between(at, span.end())) else { break };
            let start = run.span.start();
            let end = CpuVa(span.end().0.min((start.0 / CHUNK + 1) * CHUNK));
            let mm = self.mm;
            let _told = mm.invalidation(CpuSpan::between(start, end));
            moved += self.chunk_to_system(CpuSpan::between(start, end));
            at = end;
        }
        moved
    }

    /// Moves what is at `places` of a device's memory, wherever that is. How many pages.
    pub(super) fn evict(&mut self, device: usize, places: &[VramOffset]) -> u64 {
        let Some((number, base)) = self.known(device) else { return 0 };
        let (mut at, mut moved) = (CpuVa(0), 0);
        loop {
            let next = self.mover.places.lock().next_at(at, number, base, places);
            let Some(span) = next else { return moved };
            moved += self.move_to_system(span);
            at = span.end();
        }
    }

    /// As [`Worker::move_to_system`] for memory that was reported to the driver.
    pub(super) fn chunk_to_system(&mut self, chunk: CpuSpan) -> u64 {
        let mut moved = 0;
        let mut at = chunk.start();
        let mut tries = 0;
        loop {
            let next = self.mover.places.lock().first_in(CpuSpan::between(at, chunk.end()));
            let Some(run) = next else { return moved };
            let block = CpuVa((run.span.start().0 / HUGE + 1) * HUGE);
            // One mapping at a time: each has a protection of its own.
            let block = match self.mover.mappings.query(run.span.start()) {
                Ok(Some(vma)) if vma.span.contains(run.span.start()) => block.min(vma.span.end()),
                _ => block,
            };
            let Some(piece) = run.cut(CpuSpan::between(run.span.start(), block)) else { return moved };
            let pages = self.piece_to_system(piece, true);
            moved += pages;
            tries += 1;
            if pages == 0 && tries < TRIES {
                self.drain();
                continue;
            }
            tries = 0;
            at = piece.span.end();
        }
    }

    /// Moves a piece of a run, with its `contents` or as zeros. How many pages.
    pub(super) fn piece_to_system(&mut self, piece: Run, contents: bool) -> u64 {
        let Some(window) = self.window(piece.memory) else { return 0 };
        let mut slot = (contents && piece.span.bytes() == HUGE).then(|| self.stash.take_full()).flatten();
        if sabotage::has(Switch::CopyUnsealed) && piece.coherent && contents {
            slot = self.copied_too_early(&piece, &window, slot);
        }
        let since = self.mover.ring.handled();
        self.mover.epoch.fetch_add(1, Ordering::SeqCst);
        let emptied = !piece.coherent || self.take_vram_away(&piece, &window, since);
        let given = if emptied { self.fill(piece, &window, slot.as_ref(), since, contents) } else { 0 };
        self.mover.epoch.fetch_add(1, Ordering::SeqCst);
        if let Some(slot) = slot {
            // Its pages are the client's now, or some of them are.
            let holds = match given {
                HUGE => Holds::Nothing,
                _ if emptied => Holds::Something,
                _ => Holds::Everything,
            };
            self.stash.put(slot, holds);
        }
        if !emptied {
            return 0;
        }
        self.disown_rest(piece.span);
        self.release_what_left(&piece)
    }

    /// Replaces the mapping of VRAM by an empty one. False when it could not be; then it is as it
    /// was.
    fn take_vram_away(&self, piece: &Run, window: &Window, since: u64) -> bool {
        let prot = match self.mover.mappings.query(piece.span.start()) {
            Ok(Some(vma)) if self.is_vram(piece, window) => vma.prot,
            _ => return false,
        };
        let staged = self.mover.stage_empty(piece.span.bytes(), prot);
        staged.and_then(|staged| self.mover.replace(staged, piece.span, prot, since)).is_ok()
    }

    /// Fills the emptied mapping of `piece` and takes it out of the runs, page by page where
    /// mappings have changed since, at once otherwise. The heap is not touched. What could not be
    /// filled stays a run, with its VRAM. How many bytes the slot has no pages for any more.
    fn fill(&self, piece: Run, window: &Window, slot: Option<&Slot>, since: u64, contents: bool) -> u64 {
        let vram = window.mapped(window.offset(piece.at), piece.span.bytes()).start();
        // Into pages that are kept, or straight into new ones.
        let kept = slot
            .filter(|slot| sabotage::has(Switch::CopyUnsealed) || self.mover.copy.run(slot.span, vram))
            .map(|slot| slot.span.start());
        let mut at = piece.span.start();
        let mut tries = 0;
        let mut single = false;
        let mut given = 0;
        while at < piece.span.end() {
            let (part, done) = self.mover.undisturbed(|runs| {
                let disturbed = self.mover.ring.pending(since, piece.span).next().is_some();
                let end = if disturbed || single { CpuVa(at.0 + PAGE) } else { piece.span.end() };
                let part = CpuSpan::between(at, end);
                let done = from_start(at, piece.span);
                let source = (kept.map(|at| CpuVa(at.0 + done)), CpuVa(vram.0 + done));
                let fate = if !contents {
                    Fate::Discarded
                } else if disturbed {
                    self.mover.ring.fate(at, since)
                } else {
                    Fate::Here
                };
                let done = self.fill_part(&piece, window, part, fate, source, since);
                let part = CpuSpan::between(at, CpuVa(at.0 + done.bytes));
                while !done.keep && runs.take_first(part).is_some() {}
                (part, done)
            });
            if done.stray {
                self.mover.take_back(part, || self.is_ours(part, since) == Ok(true));
            }
            at = part.end();
            given += done.given;
            match done.errno {
                None => tries = 0,
                Some(libc::EAGAIN) => {}
                Some(libc::ENOMEM) => {
                    tracing::warn!("no memory to move pages of a GPU back to");
                    self.put_back(piece, at, window, since);
                    return given;
                }
                // The mapping is not there: a change has happened whose event was not read yet. If
                // no event comes, the change cannot be told from the worker's own. Or mprotect,
                // which raises no event, has cut the mapping; then page by page.
                Some(_) if !single => single = true,
                Some(errno) => {
                    tries += 1;
                    if tries > TRIES {
                        tries = 0;
                        tracing::warn!(%at, errno, "a page of a GPU's has no place to come back to");
                        let page = CpuSpan::between(at, CpuVa(at.0 + PAGE));
                        self.mover.places.lock().take_first(page);
                        at = page.end();
                    }
                }
            }
        }
        given
    }

    /// Does with `part` of an emptied piece what its fate is. With changes held up.
    fn fill_part(&self, piece: &Run, window: &Window, part: CpuSpan, fate: Fate, source: Source, since: u64) -> Filled {
        let later = |errno| Filled { errno: Some(errno), ..Filled::default() };
        let done = Filled { bytes: part.bytes(), ..Filled::default() };
        let is_vram = |at: CpuSpan| piece.cut(part).is_some_and(|run| self.is_vram(&Run { span: at, ..run }, window));
        match fate {
            // Moved away before it was emptied, and to here again after.
            Fate::Here if piece.coherent && self.has_come(part, since) && is_vram(part) => {
                Filled { keep: true, ..done }
            }
            Fate::Here => self.fill_missing(part, source),
            Fate::Discarded => done,
            Fate::Unmapped | Fate::Gone if !piece.coherent => done,
            Fate::Unmapped => match self.is_ours(part, since) {
                // It was the worker's own.
                Ok(true) => self.fill_missing(part, source),
                Ok(false) => done,
                Err(errno) => later(errno),
            },
            Fate::Gone => match self.is_ours(part, since) {
                Ok(stray) => Filled { stray, ..done },
                Err(errno) => later(errno),
            },
            // The change finds the run.
            Fate::Moved(_) if !piece.coherent => Filled { keep: true, ..done },
            Fate::Moved(to) => {
                let to = CpuSpan::between(to, CpuVa(to.0 + part.bytes()));
                if !is_vram(to) {
                    return self.fill_missing(to, source);
                }
                // Moved before it was emptied: VRAM has come along, and the client has no mapping
                // at the emptied place.
                match self.is_ours(part, since) {
                    Ok(stray) => Filled { stray, keep: true, ..done },
                    Err(errno) => later(errno),
                }
            }
        }
    }

    /// Whether the worker's empty mapping is at `part`, and not a mapping of the client.
    ///
    /// # Errors
    /// EAGAIN while mappings are changing.
    fn is_ours(&self, part: CpuSpan, since: u64) -> Result<bool, i32> {
        Ok(!self.has_come(part, since) && self.mover.descriptor.is_registered(part)?)
    }

    /// Whether something else has been moved to `part`.
    fn has_come(&self, part: CpuSpan, since: u64) -> bool {
        let moved_there = |(_, change)| match change {
            Change::Remap { from, to } => CpuSpan::new(to, from.bytes()).is_some_and(|came| came.overlaps(part)),
            _ => false,
        };
        self.mover.ring.pending(since, part).any(moved_there)
    }

    /// Fills `to` from pages of the stash or from VRAM. How far it came.
    fn fill_missing(&self, to: CpuSpan, (kept, vram): Source) -> Filled {
        let (mut at, mut given) = (0, 0);
        while at < to.bytes() {
            let rest = CpuSpan::between(CpuVa(to.start().0 + at), to.end());
            let mut done = match kept {
                Some(kept) => self.mover.descriptor.move_pages(rest, CpuVa(kept.0 + at)),
                None => self.mover.descriptor.copy(rest, CpuVa(vram.0 + at)),
            };
            given += kept.map_or(0, |_| done.bytes);
            if done.bytes == 0
                && matches!(done.errno, Some(libc::EINVAL | libc::EBUSY | libc::ENOENT))
                && kept.is_some()
            {
                // Not writable, so that pages cannot be moved there, or a page of the stash is in
                // use by the kernel.
                done = self.mover.descriptor.copy(rest, CpuVa(vram.0 + at));
            }
            at += done.bytes;
            match done.errno {
                None => {}
                Some(libc::EEXIST) => at += PAGE,
                errno => return Filled { bytes: at, errno, given, ..Filled::default() },
            }
        }
        Filled { bytes: to.bytes(), given, ..Filled::default() }
    }

    /// Puts the rest of an emptied piece, from `at` on, back on the device.
    fn put_back(&self, piece: Run, at: CpuVa, window: &Window, since: u64) {
        let Some(rest) = piece.cut(CpuSpan::between(at, piece.span.end())).filter(|_| piece.coherent) else { return };
        while self.mover.places.lock().take_first(rest.span).is_some() {}
        let vram = window.mapped(window.offset(rest.at), rest.span.bytes());
        for _ in 0..PATIENCE {
            if self.put_vram(rest, window, vram.start(), since) {
                return;
            }
            std::thread::yield_now();
        }
        // Neither a page nor a mapping to be had, or the mapping is being changed: what is left of
        // it is empty.
        tracing::error!(at = %rest.span.start(), bytes = rest.span.bytes(), "no memory: contents are lost");
    }

    /// Releases the parts of `piece` that are no run any more. Returns the number of pages.
    pub(super) fn release_what_left(&mut self, piece: &Run) -> u64 {
        let mut pages = 0;
        let mover = self.mover;
        let _ = mover.each_part::<()>(piece.span, |part, place| {
            if let (None, Some(gone)) = (place, piece.cut(part)) {
                pages += gone.span.pages();
                self.release(&gone);
            }
            Ok(())
        });
        pages
    }

    /// Test-only: the copy before anybody is kept from writing.
    fn copied_too_early(&mut self, piece: &Run, window: &Window, slot: Option<Slot>) -> Option<Slot> {
        if let Some(slot) = slot {
            self.stash.put(slot, Holds::Something);
        }
        let slot = self.stash.take_empty()?;
        let vram = window.mapped(window.offset(piece.at), piece.span.bytes()).start();
        let to = CpuSpan::between(slot.span.start(), CpuVa(slot.span.start().0 + piece.span.bytes()));
        self.mover.copy.run(to, vram);
        std::thread::sleep(std::time::Duration::from_micros(50));
        Some(slot)
    }
}
