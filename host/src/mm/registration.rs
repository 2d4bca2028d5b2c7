// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which memory is registered for events, and with whose descriptor: watched memory with the
//! watches', what is on a GPU or on its way with the mover's ([`super::elsewhere`]). Memory whose
//! last watch has ended stays registered for a while.
//!
//! Lock `registration` guards all of it. A thread that has it may touch pages that the mover's
//! worker must bring back, so the worker never waits for it. The worker's calls return `None` when
//! another thread has the lock. The worker then does its other work and tries again.

use super::told::{Goes, Told};
use super::{By, Mm};
use crate::uffd::Uffd;
use crate::{mapping_count, sabotage};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{CpuSpan, CpuVa};
use vkfd_driver::base::errno::Errno;
use vkfd_sabotage::Switch;

/// How long memory stays registered for events after its last watch has ended.
const LINGER: Duration = Duration::from_millis(250);
/// Most bytes unregistered at a time, with registrations waiting.
const TIDY_BYTES: u64 = 64 << 20;

/// What `registration` guards besides the right to change the tree.
#[derive(Default)]
pub(super) struct Registration {
    /// How many watches the tree has room for.
    pub(super) watches: usize,
    /// Where watches have ended and memory may still be registered for events, and since when.
    pub(super) lingering: Vec<(CpuSpan, Instant)>,
    /// What the mover has registered with its own descriptor and not entered in its runs yet, or
    /// taken out of them.
    moving: Option<CpuSpan>,
}

/// Events of memory go from one descriptor to the other, and from neither in between. Until it is
/// dropped [`Mm::settle`] waits: a thread that has unmapped something meanwhile goes on when it was
/// reported.
struct Handing<'a>(&'a Mm);

impl<'a> Handing<'a> {
    fn begin(mm: &'a Mm) -> Self {
        mm.handing.store(true, Ordering::SeqCst);
        Self(mm)
    }
}

impl Drop for Handing<'_> {
    fn drop(&mut self) {
        self.0.handing.store(false, Ordering::SeqCst);
    }
}

/// How often others give way to the worker before they take the lock all the same: it may be
/// waiting for them elsewhere.
const TURNS: u32 = 1000;

impl Mm {
    pub(super) fn registration(&self) -> MutexGuard<'_, Registration> {
        for _ in 0..TURNS {
            if !self.wanted.load(Ordering::Relaxed) {
                break;
            }
            std::thread::yield_now();
        }
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the mover's worker: `None` when somebody else has the lock.
    fn try_registration(&self) -> Option<MutexGuard<'_, Registration>> {
        if sabotage::has(Switch::WaitForRegistration) {
            return Some(self.registration());
        }
        let registration = match self.registration.try_lock() {
            Ok(registration) => Some(registration),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        self.wanted.store(registration.is_none(), Ordering::Relaxed);
        registration
    }

    /// Registers a watch's interval for events, as far as it is mapped. With `registration` held.
    /// ENOMEM when it cannot be watched for want of mappings: going on would miss what happens to
    /// it.
    pub(super) fn register(&self, told: &Told) -> Result<(), Errno> {
        if self.uffd.is_none() {
            return Ok(());
        }
        sabotage::while_registering();
        // Before registering: an event that comes meanwhile sets it again.
        told.mark_registered();
        self.register_part(told, told.span())
    }

    /// Registers the present mappings in `span`, a part of a watch's interval. The interval may
    /// have had fewer mappings when the watch was made. ENOMEM as [`Self::register`].
    pub(crate) fn listen(&self, told: &Told, span: CpuSpan) -> Result<(), Errno> {
        if self.uffd.is_none() {
            return Ok(());
        }
        let _registration = self.registration();
        self.register_part(told, span)
    }

    /// Registers `span` for a watch, which is marked as not registered where some of that cannot
    /// be: a fault tries again. With `registration` held.
    fn register_part(&self, told: &Told, span: CpuSpan) -> Result<(), Errno> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        // The mapping that it is cut out of has two more neighbours then.
        let mut registered = if mapping_count::take(2) { Ok(true) } else { Err(Errno::ENOMEM) };
        self.each_unmoved(span, |part| {
            registered = registered.and_then(|all| Ok(uffd.register(part)? && all));
        });
        if registered != Ok(true) {
            told.mark_unregistered();
        }
        if registered.is_err() {
            tracing::warn!(
                "vm.max_map_count is nearly reached, and the rest stays for the program: memory that is watched separately takes up to \
                 two mappings. Register it as a batch, or raise the limit (sysctl vm.max_map_count)"
            );
        }
        registered.map(drop)
    }

    /// Looks whether the memory of `spans`, which were faulted in, is registered for events. Memory
    /// that was mapped after its watch's registration is registered now. How many leading spans
    /// were registered when they were faulted in: the pages of the next may have been another
    /// mapping's, whose end nobody noticed. Memory that cannot be registered counts as registered.
    pub(super) fn registered_before(&self, spans: &[CpuSpan]) -> usize {
        let Some(uffd) = self.uffd.as_ref().filter(|_| !sabotage::has(Switch::TrustRegistration)) else {
            return spans.len();
        };
        let mut late = false;
        let known = spans.iter().take_while(|span| {
            self.each_unmoved(**span, |part| {
                if !uffd.has_registered(part) {
                    let _registration = self.registration();
                    late |= uffd.register(part) == Ok(true);
                }
            });
            !late
        });
        known.count()
    }

    /// Registers the watched parts of `span` for events. With `registration` held.
    fn watch_again(&self, span: CpuSpan) {
        let Some(uffd) = &self.uffd else { return };
        self.tree().overlapping(span.start().0, span.end().0, &mut |_, _, told| {
            if uffd.register(told.cut(span)) != Ok(true) {
                told.mark_unregistered();
            }
            true
        });
    }

    /// Reports the parts of `span` that are not mapped: nothing else did if they went while its
    /// events went from one descriptor to another. Without `registration`, because a notified
    /// thread may wait for it.
    fn tell_of_holes(&self, span: CpuSpan) {
        let Some(mover) = self.elsewhere().filter(|_| self.is_watched(span)) else { return };
        if sabotage::has(Switch::ForgetWhatWent) {
            return;
        }
        mover.each_hole(span, &mut |hole| {
            self.registration_lost(hole);
            drop(self.begin(hole, By::Others, Goes::Memory));
        });
    }

    /// Waits until no memory's events are on their way from one descriptor to another.
    pub(super) fn settle_handing(&self) {
        while self.handing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Calls `f` for the parts of `span` whose events come from the watches' descriptor, not from
    /// the mover's.
    fn each_unmoved(&self, span: CpuSpan, mut f: impl FnMut(CpuSpan)) {
        match self.elsewhere() {
            Some(mover) => mover.each_unmoved(span, &mut f),
            None => f(span),
        }
    }

    /// Memory of `span` has gone from its addresses, or moved: its registration for events is lost.
    pub(crate) fn registration_lost(&self, span: CpuSpan) {
        self.tree().overlapping(span.start().0, span.end().0, &mut |_, _, told| {
            told.mark_unregistered();
            true
        });
    }

    /// Has `register` register `span` for the mover, whose descriptor then shows its events. False
    /// as `register`; then as before. `None` when it is to be tried again.
    pub(crate) fn hand_over(&self, span: CpuSpan, register: impl FnOnce() -> bool) -> Option<bool> {
        let mut registration = self.try_registration()?;
        let _handing = Handing::begin(self);
        if let Some(uffd) = &self.uffd {
            uffd.hand_over(span);
        }
        sabotage::wait_if(Switch::HandOverSlowly);
        let done = register();
        if done {
            let hull = registration.moving.unwrap_or(span);
            let (start, end) = (hull.start().min(span.start()), hull.end().max(span.end()));
            registration.moving = Some(CpuSpan::between(start, end));
        } else {
            self.watch_again(span);
        }
        drop(registration);
        self.tell_of_holes(span);
        Some(done)
    }

    /// Whether the watches' descriptor has notified of all changes that had begun before memory was
    /// handed over.
    pub(crate) fn is_heard(&self) -> bool {
        self.uffd.as_ref().is_none_or(Uffd::is_quiet)
    }

    /// Has `register` register memory of the host's own for the mover. A watch around it may have
    /// it registered for events, which mean nothing there. `None` when it is to be tried again.
    pub(crate) fn lend(&self, span: CpuSpan, register: impl Fn() -> bool) -> Option<bool> {
        if register() {
            return Some(true);
        }
        let _registration = self.try_registration()?;
        if let Some(uffd) = &self.uffd {
            uffd.unregister(span);
        }
        Some(register())
    }

    /// Takes `span` back from the mover, which has `unregister` end its registration. False as
    /// `unregister`, or when somebody else registers memory; then nothing has changed.
    pub(crate) fn take_over(&self, span: CpuSpan, unregister: impl FnOnce() -> bool) -> bool {
        let Some(registration) = self.try_registration() else { return false };
        let _handing = Handing::begin(self);
        let done = unregister();
        sabotage::wait_if(Switch::HandOverSlowly);
        if done {
            self.watch_again(span);
            drop(registration);
            self.tell_of_holes(span);
        }
        done
    }

    /// The mover has nothing registered but its runs. `None` when it is to be said again.
    pub(crate) fn handed_back(&self) -> Option<()> {
        self.try_registration()?.moving = None;
        Some(())
    }

    pub(super) fn serve_tidy(&'static self) -> std::io::Result<()> {
        let tidy = move || loop {
            std::thread::sleep(LINGER);
            self.tidy();
        };
        vkfd_rt::thread::spawn("vkfd-tidy", tidy).map(drop)
    }

    /// Ends the registration of memory that nothing has watched for [`LINGER`]. Unregistering walks
    /// every page, so it is not for the thread that frees an object; and memory that is registered
    /// again soon need not be unregistered at all.
    fn tidy(&self) {
        let Some(uffd) = &self.uffd else { return };
        loop {
            // One span a turn: a registration must not wait for all of them.
            let mut registration = self.registration();
            let old = registration.lingering.iter().position(|(_, since)| since.elapsed() >= LINGER);
            let Some(old) = old else { return };
            let (span, _) = registration.lingering.swap_remove(old);
            let rest = CpuSpan::between(CpuVa(span.end().0.min(span.start().0 + TIDY_BYTES)), span.end());
            if rest.bytes() != 0 {
                registration.lingering.push((rest, Instant::now() - LINGER));
            }
            let now = CpuSpan::between(span.start(), rest.start());
            if registration.moving.is_some_and(|moving| moving.overlaps(now)) {
                registration.lingering.push((now, Instant::now()));
                continue;
            }
            self.each_alone(now, |alone| self.each_unmoved(alone, |part| uffd.unregister(part)));
        }
    }
}
