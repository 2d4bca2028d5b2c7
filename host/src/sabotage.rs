// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The switches `host.*` and `program.*`, which break protocols by which memory moves, and the
//! library in a program.
//!
//! They are in the process's set ([`vkfd_sabotage::process`]), because the process has one memory,
//! and its mappings move in one way whatever machines it has. Tests that turn a switch on run one
//! at a time.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use vkfd_sabotage::{process, LiveSwitches, Switch};

/// What is broken in this process.
pub fn switches() -> &'static LiveSwitches {
    process()
}

/// Whether this process has the switch on.
pub fn has(switch: Switch) -> bool {
    process().has(switch)
}

/// Waits a while if `switch` is on, so that what a test races with it comes first.
pub(crate) fn wait_if(switch: Switch) {
    if has(switch) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

static REGISTERING: AtomicBool = AtomicBool::new(false);

/// Whether a thread that is to touch something ([`Switch::TouchWhileRegistering`]) has the
/// registration's lock by now. Looking forgets it.
pub fn was_registering() -> bool {
    REGISTERING.swap(false, SeqCst)
}

/// With the registration's lock held.
pub(crate) fn while_registering() {
    if let Some(address) = process().value(Switch::TouchWhileRegistering).and_then(|at| usize::try_from(at).ok()) {
        REGISTERING.store(true, SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        // SAFETY: a test's own memory, which it says is mapped; a volatile read makes no reference.
        unsafe { std::ptr::with_exposed_provenance::<u64>(address).read_volatile() };
    }
}
