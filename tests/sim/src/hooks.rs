// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The moments at which a test steps in: it changes memory, waits for another thread, or counts.
//! A hook runs on the thread that called the host, before the driver gets the answer, with no lock
//! of the simulation. So it may do everything that a test may.

use crate::{lock, SimMm};
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::CpuSpan;

type OnSpans = dyn Fn(&SimMm, &[CpuSpan]) + Send + Sync;
type OnAnswer = dyn Fn(&SimMm, CpuSpan, bool) + Send + Sync;

/// A hook that runs each time.
pub(crate) struct Often<F: ?Sized>(Mutex<Option<Arc<F>>>);

impl<F: ?Sized> Default for Often<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<F: ?Sized> Often<F> {
    pub(crate) fn get(&self) -> Option<Arc<F>> {
        lock(&self.0).clone()
    }
}

type Next = Box<dyn FnOnce(&SimMm) + Send + Sync>;

/// A hook that runs the next time only.
#[derive(Default)]
pub(crate) struct Once(Mutex<Option<Next>>);

impl Once {
    pub(crate) fn run(&self, mm: &SimMm) {
        let hook = lock(&self.0).take();
        if let Some(hook) = hook {
            hook(mm);
        }
    }
}

/// The hooks of a memory.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) after_fault: Often<OnSpans>,
    pub(crate) after_look: Often<OnAnswer>,
    pub(crate) before_move: Often<OnSpans>,
    pub(crate) after_move_out: Once,
    pub(crate) at_settle: Once,
    pub(crate) before_watch: Once,
}

impl SimMm {
    /// Runs `hook` after each fault: pages were looked up, and the driver does not have them yet.
    pub fn after_fault(&self, hook: impl Fn(&SimMm, &[CpuSpan]) + Send + Sync + 'static) {
        *lock(&self.hooks.after_fault.0) = Some(Arc::new(hook));
    }

    /// Runs `hook` after each question whether memory is mapped, with the answer.
    pub fn after_look(&self, hook: impl Fn(&SimMm, CpuSpan, bool) + Send + Sync + 'static) {
        *lock(&self.hooks.after_look.0) = Some(Arc::new(hook));
    }

    /// Runs `hook` before each move to a GPU: watches were notified, and nothing has moved yet.
    pub fn before_move(&self, hook: impl Fn(&SimMm, &[CpuSpan]) + Send + Sync + 'static) {
        *lock(&self.hooks.before_move.0) = Some(Arc::new(hook));
    }

    /// Runs `hook` when pages have moved to system memory the next time.
    pub fn after_move_out(&self, hook: impl FnOnce(&SimMm) + Send + Sync + 'static) {
        *lock(&self.hooks.after_move_out.0) = Some(Box::new(hook));
    }

    /// Runs `hook` when a call next waits for late notifications.
    pub fn at_settle(&self, hook: impl FnOnce(&SimMm) + Send + Sync + 'static) {
        *lock(&self.hooks.at_settle.0) = Some(Box::new(hook));
    }

    /// Runs `hook` before the next watch is there.
    pub fn before_watch(&self, hook: impl FnOnce(&SimMm) + Send + Sync + 'static) {
        *lock(&self.hooks.before_watch.0) = Some(Box::new(hook));
    }

    /// Ends the hooks after faults and looks.
    pub fn no_hook(&self) {
        *lock(&self.hooks.after_fault.0) = None;
        *lock(&self.hooks.after_look.0) = None;
    }
}
