// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A copy by two threads, because one processor alone does not use the memory's bandwidth: the
//! worker, which needs the copy, and a helper, which is awake while much moves.
//!
//! Threads claim steps one by one. The ticket counts the copies begun and the claimed steps of the
//! last. So no thread claims a step of a finished copy, and the copy's parameters do not change
//! before all claimed steps are done.
//!
//! Limit: the worker waits for a claimed step, even while its processor runs other threads.

use crate::sys;
use crate::uffd::block_signals;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa};

/// Bytes of a step.
const STEP: u64 = 64 << 10;
/// The part of the ticket that counts steps.
const STEPS: u64 = u32::MAX as u64;

/// The last copy, which is under way or over.
pub(super) struct SharedCopy {
    /// Copies begun, in the upper half, and steps claimed of the last.
    ticket: AtomicU64,
    to: AtomicU64,
    from: AtomicU64,
    /// Steps it has.
    steps: AtomicU64,
    done: AtomicU64,
    failed: AtomicBool,
    /// 1 while there are copies to help with.
    helping: AtomicU32,
}

/// The helper is awake while it lives.
pub(super) struct Helping<'a>(&'a SharedCopy);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        self.0.helping.store(0, Ordering::SeqCst);
    }
}

impl SharedCopy {
    pub(super) const fn new() -> Self {
        Self {
            ticket: AtomicU64::new(0),
            to: AtomicU64::new(0),
            from: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            helping: AtomicU32::new(0),
        }
    }

    /// Has the helper awake. The worker only.
    pub(super) fn helping(&self) -> Helping<'_> {
        self.helping.store(1, Ordering::SeqCst);
        sys::futex_wake(&self.helping);
        Helping(self)
    }

    /// The helper's work.
    pub(super) fn help_for_ever(&self) -> ! {
        block_signals();
        loop {
            if self.helping.load(Ordering::SeqCst) == 0 {
                sys::futex_wait(&self.helping, 0, u32::MAX);
            } else if !self.help() {
                super::relax();
            }
        }
    }

    /// Begins a copy to `to` from `from`: from the stash to VRAM or back. It is to be ended. One
    /// thread at a time.
    pub(super) fn begin(&self, to: CpuVa, from: CpuVa) {
        // No step of the last copy is left to be claimed, and from here to the new ticket there is
        // none at all.
        self.steps.store(0, Ordering::SeqCst);
        self.done.store(0, Ordering::SeqCst);
        self.failed.store(false, Ordering::SeqCst);
        self.to.store(to.0, Ordering::SeqCst);
        self.from.store(from.0, Ordering::SeqCst);
        let copies = self.ticket.load(Ordering::SeqCst) & !STEPS;
        self.ticket.store(copies.wrapping_add(STEPS + 1), Ordering::SeqCst);
    }

    /// The first `bytes` may be copied by now.
    pub(super) fn offer(&self, bytes: u64) {
        self.steps.store(bytes / STEP, Ordering::SeqCst);
    }

    /// Copies what is left of the first `bytes`, none of which are fewer than were offered, and
    /// waits for the copying thread. False when something could not be touched.
    pub(super) fn end(&self, bytes: u64) -> bool {
        let steps = bytes / STEP;
        self.steps.store(steps, Ordering::SeqCst);
        while self.help() {}
        let (end, at) = (steps * STEP, |start: &AtomicU64| start.load(Ordering::SeqCst) + steps * STEP);
        let copied = copy(CpuVa(at(&self.to)), CpuVa(at(&self.from)), bytes - end);
        while self.done.load(Ordering::SeqCst) < steps {
            std::thread::yield_now();
        }
        copied && !self.failed.load(Ordering::SeqCst)
    }

    /// Copies `from` to `to`. False when something could not be touched.
    pub(super) fn run(&self, to: CpuSpan, from: CpuVa) -> bool {
        self.begin(to.start(), from);
        self.end(to.bytes())
    }

    /// Copies a step, if there is one to be claimed. Neither allocates nor waits, but for the pages
    /// that it touches.
    pub(super) fn help(&self) -> bool {
        let mut ticket = self.ticket.load(Ordering::SeqCst);
        let step = loop {
            // The number of another copy's steps does no harm: then the ticket is another, too.
            if ticket & STEPS >= self.steps.load(Ordering::SeqCst) {
                return false;
            }
            match self.ticket.compare_exchange(ticket, ticket + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break ticket & STEPS,
                Err(other) => ticket = other,
            }
        };
        let at = |start: &AtomicU64| CpuVa(start.load(Ordering::SeqCst) + step * STEP);
        if !copy(at(&self.to), at(&self.from), STEP) {
            self.failed.store(true, Ordering::SeqCst);
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        true
    }
}

fn copy(to: CpuVa, from: CpuVa, bytes: u64) -> bool {
    let target = std::ptr::with_exposed_provenance_mut(index(to.0));
    let source = std::ptr::with_exposed_provenance(index(from.0));
    // SAFETY: VRAM is only accessed raw, and the other is the stash's, or (a test's sabotage) the
    // client's memory: nothing of the host's refers to it.
    unsafe { vkfd_gpu::raw::copy_nontemporal(target, source, index(bytes)) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_driver::base::addr::PAGE;

    const BYTES: u64 = (1 << 20) + 3 * PAGE;

    fn memory(prot: i32) -> CpuSpan {
        // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
        let at = unsafe { sys::mmap(0, BYTES, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }.unwrap();
        CpuSpan::between(CpuVa(at), CpuVa(at + BYTES))
    }

    fn words(span: CpuSpan) -> impl Iterator<Item = *mut u32> {
        (span.start().0..span.end().0).step_by(64).map(|at| std::ptr::with_exposed_provenance_mut(index(at)))
    }

    #[test]
    fn two_threads_copy_everything_and_nothing_late() {
        let copy = SharedCopy::new();
        let over = AtomicBool::new(false);
        let helped = AtomicU32::new(0);
        let (from, to) = (memory(libc::PROT_READ | libc::PROT_WRITE), memory(libc::PROT_READ | libc::PROT_WRITE));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if copy.help() {
                        helped.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            let mut round = 0u32;
            // Two steps and a half, of which half a step is not copied as soon as it is offered.
            let offered = 5 * STEP / 2;
            let (first, second) = (words(from).take(index(2 * STEP / 64)), words(from).skip(index(2 * STEP / 64)));
            let (first, second) = (first.collect::<Vec<_>>(), second.collect::<Vec<_>>());
            while round < 200 || helped.load(Ordering::SeqCst) < 100 {
                round += 1;
                // SAFETY: mapped above. The test looks for words that another thread still writes.
                first.iter().for_each(|word| unsafe { word.write_volatile(round) });
                copy.begin(to.start(), from.start());
                copy.offer(offered);
                // SAFETY: as above.
                second.iter().for_each(|word| unsafe { word.write_volatile(round) });
                assert!(copy.end(to.bytes()));
                // Nobody copies these any more.
                // SAFETY: as above.
                words(from).for_each(|word| unsafe { word.write_volatile(!round) });
                // SAFETY: as above.
                assert!(words(to).all(|word| unsafe { word.read_volatile() } == round), "round {round}");
            }
            over.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn what_cannot_be_touched_is_told_of_by_whoever_finds_it() {
        let copy = SharedCopy::new();
        let (from, to) = (memory(libc::PROT_READ | libc::PROT_WRITE), memory(libc::PROT_READ));
        assert!(!copy.run(to, from.start()));
        assert!(copy.run(from, to.start()));
        // Only the last page, which is no whole step.
        let last = CpuVa(from.end().0 - PAGE);
        // SAFETY: a page mapped above, which nothing refers to.
        unsafe { sys::mprotect(last.0, PAGE, libc::PROT_NONE) }.unwrap();
        assert!(!copy.run(from, to.start()));
    }
}
