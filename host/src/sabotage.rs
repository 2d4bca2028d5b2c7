// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test-only: what is left out of the protocols by which memory moves.

#[cfg(feature = "sabotage")]
mod switches {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    static UNSEALED: AtomicBool = AtomicBool::new(false);

    /// Copies pages while others may still write to them.
    pub fn copy_unsealed(on: bool) {
        UNSEALED.store(on, Ordering::SeqCst);
    }

    pub(crate) fn unsealed() -> bool {
        UNSEALED.load(Ordering::Relaxed)
    }

    static SLOW: AtomicBool = AtomicBool::new(false);
    static CARELESS: AtomicBool = AtomicBool::new(false);
    static SLOW_REPLACING: AtomicBool = AtomicBool::new(false);
    static FORGETFUL: AtomicBool = AtomicBool::new(false);

    static STACKS: AtomicBool = AtomicBool::new(false);
    static WAITS: AtomicBool = AtomicBool::new(false);
    static TOUCHED: AtomicUsize = AtomicUsize::new(0);
    static REGISTERING: AtomicBool = AtomicBool::new(false);

    /// Moves threads' stacks like any memory.
    pub fn move_stacks(on: bool) {
        STACKS.store(on, Ordering::SeqCst);
    }

    /// Has the worker wait for the mm's registration whoever has it.
    pub fn wait_for_registration(on: bool) {
        WAITS.store(on, Ordering::SeqCst);
    }

    /// Whoever registers memory touches `at` meanwhile, some time after [`is_registering`]; 0 for nothing. Breaks nothing by itself.
    pub fn touch_while_registering(at: usize) {
        REGISTERING.store(false, Ordering::SeqCst);
        TOUCHED.store(at, Ordering::SeqCst);
    }

    /// Whether somebody who is to touch something has the lock by now.
    pub fn is_registering() -> bool {
        REGISTERING.load(Ordering::SeqCst)
    }

    pub(crate) fn moves_stacks() -> bool {
        STACKS.load(Ordering::Relaxed)
    }

    pub(crate) fn waits_for_registration() -> bool {
        WAITS.load(Ordering::Relaxed)
    }

    pub(crate) fn while_registering() {
        let at = TOUCHED.load(Ordering::SeqCst);
        if at != 0 {
            REGISTERING.store(true, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            // SAFETY: a test's own memory, which it says is mapped; a volatile read makes no reference.
            unsafe { std::ptr::with_exposed_provenance::<u64>(at).read_volatile() };
        }
    }

    /// Waits before the registration of what has stayed in system memory ends. Breaks nothing by itself.
    pub fn end_slowly(on: bool) {
        SLOW.store(on, Ordering::SeqCst);
    }

    /// Ends registrations without regard to what has been moved there meanwhile.
    pub fn end_carelessly(on: bool) {
        CARELESS.store(on, Ordering::SeqCst);
    }

    /// Waits between the last look at a mapping and its replacement. Breaks nothing by itself.
    pub fn replace_slowly(on: bool) {
        SLOW_REPLACING.store(on, Ordering::SeqCst);
    }

    /// Does not look for what was moved away just before a mapping was replaced.
    pub fn forget_what_moved(on: bool) {
        FORGETFUL.store(on, Ordering::SeqCst);
    }

    pub(crate) fn before_replacing() {
        if SLOW_REPLACING.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(crate) fn forgetful() -> bool {
        FORGETFUL.load(Ordering::Relaxed)
    }

    pub(crate) fn before_ending() {
        if SLOW.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(crate) fn careless() -> bool {
        CARELESS.load(Ordering::Relaxed)
    }
}

#[cfg(not(feature = "sabotage"))]
mod switches {
    pub(crate) const fn moves_stacks() -> bool {
        false
    }

    pub(crate) const fn waits_for_registration() -> bool {
        false
    }

    pub(crate) const fn while_registering() {}

    pub(crate) const fn unsealed() -> bool {
        false
    }

    pub(crate) const fn before_ending() {}

    pub(crate) const fn before_replacing() {}

    pub(crate) const fn forgetful() -> bool {
        false
    }

    pub(crate) const fn careless() -> bool {
        false
    }
}

#[cfg(feature = "sabotage")]
pub use switches::*;
#[cfg(not(feature = "sabotage"))]
pub(crate) use switches::*;
