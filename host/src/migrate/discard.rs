// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The client's changes to mappings with pages on a device, from the ring's events: the table of
//! runs follows them.
//!
//! For coherent runs the kernel's mappings decide: a run is the part that is mapped to its place in
//! VRAM. Private runs are mappings like any other, so there the events decide.

use super::device_ram::Window;
use super::places::{Run, CAPACITY};
use super::worker::Worker;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, HUGE};

impl Worker {
    /// Mappings in `span` have gone.
    pub(super) fn unmapped(&mut self, span: CpuSpan) {
        self.take_gone(span);
    }

    /// Mappings of `from` are at `to` now.
    pub(super) fn remapped(&mut self, from: CpuSpan, to: CpuVa) {
        // What was there before has gone, even if that is told later.
        self.take_gone(CpuSpan::between(to, CpuVa(to.0 + from.bytes())));
        let runs = self.runs_in(from);
        self.make_room(2 * runs.len(), from);
        for run in runs {
            let Some(window) = self.window(run.memory) else { continue };
            let start = CpuVa(to.0 + (run.span.start().0 - from.start().0));
            let there = Run { span: CpuSpan::between(start, CpuVa(start.0 + run.span.bytes())), ..run };
            if run.coherent && self.is_vram(&run, &window) {
                continue; // it was the worker's own, or has been put back
            }
            let mut runs = self.mover.places.lock();
            while runs.take_first(run.span).is_some() {}
            if runs.has_room() {
                // Even if it is not there any more: then another change is to come that tells where
                // it has gone. Sealed, whatever it was before: the collector may have sealed it
                // since.
                runs.insert(Run { sealed: run.coherent, ..there });
                continue;
            }
            drop(runs);
            tracing::error!(at = %there.span.start(), bytes = there.span.bytes(), "no room for a run of pages: contents are lost");
            self.release(&run);
        }
        // Memory that was registered only for a move need not be registered any more. A watch of
        // that place is notified of the changes that it misses meanwhile.
        let there = CpuSpan::between(to, CpuVa(to.0 + from.bytes()));
        let mm = self.mm;
        let _told = mm.invalidation(there);
        self.disown_rest(there);
    }

    /// Moves runs back until there is room for `count` more. None of `except`, which is just being
    /// dealt with.
    fn make_room(&mut self, count: usize, except: CpuSpan) {
        let mut i = 0;
        loop {
            let runs = self.mover.places.lock();
            if runs.len() + count + 2 <= CAPACITY {
                return;
            }
            let Some(run) = runs.get(i) else { return };
            drop(runs);
            let mm = self.mm;
            let told = (!run.span.overlaps(except)).then(|| mm.invalidation(run.span));
            if told.is_none() || self.chunk_to_system(run.span) == 0 {
                i += 1;
            }
        }
    }

    /// The contents of `span` are going.
    pub(super) fn discarded(&mut self, span: CpuSpan) {
        for run in self.runs_in(span) {
            let mut at = run.span.start();
            while at < run.span.end() {
                let end = CpuVa(run.span.end().0.min((at.0 / HUGE + 1) * HUGE));
                if let Some(piece) = run.cut(CpuSpan::between(at, end)) {
                    if self.piece_to_system(piece, false) == 0 && piece.coherent {
                        self.wipe(&piece);
                    }
                }
                at = end;
            }
        }
    }

    /// Zeroes a piece where it is.
    fn wipe(&self, piece: &Run) {
        let Some(window) = self.window(piece.memory) else { return };
        let vram = window.mapped(window.offset(piece.at), piece.span.bytes());
        let target = std::ptr::with_exposed_provenance_mut(index(vram.start().0));
        // SAFETY: VRAM is only accessed raw, and these pages are the client's, which discards them.
        let _ = unsafe { vkfd_gpu::raw::fill(target, 0, index(vram.bytes())) };
    }

    fn runs_in(&self, span: CpuSpan) -> Vec<Run> {
        let mut found = Vec::new();
        let mut at = span.start();
        loop {
            let next = self.mover.places.lock().first_in(CpuSpan::between(at, span.end()));
            let Some(run) = next else { return found };
            found.push(run);
            at = run.span.end();
        }
    }

    /// Releases the parts of the runs in `span` that are not mapped any more.
    fn take_gone(&mut self, span: CpuSpan) {
        for run in self.runs_in(span) {
            let Some(window) = self.window(run.memory) else { continue };
            let mut at = run.span.start();
            while at < run.span.end() {
                let rest = CpuSpan::between(at, run.span.end());
                let (part, stays) = if run.coherent { self.next_part(&run, rest, &window) } else { (rest, false) };
                if !stays {
                    let taken = self.mover.places.lock().take_first(part);
                    if let Some(gone) = taken {
                        self.release(&gone);
                    }
                }
                at = part.end();
            }
        }
    }

    /// The first part of `rest` that is the same mapping or the same hole, and whether it is
    /// `run`'s.
    fn next_part(&self, run: &Run, rest: CpuSpan, window: &Window) -> (CpuSpan, bool) {
        let Ok(Some(vma)) = self.mover.mappings.query(rest.start()) else { return (rest, false) };
        if vma.span.start() > rest.start() {
            return (CpuSpan::between(rest.start(), CpuVa(vma.span.start().0.min(rest.end().0))), false);
        }
        let part = vma.cut(rest);
        (part, run.cut(part).is_some_and(|piece| self.is_vram(&piece, window)))
    }
}
