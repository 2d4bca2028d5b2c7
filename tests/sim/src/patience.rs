// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Waiting, in real time and under a scheduler that explores interleavings. There no time passes,
//! and each wait is a choice of the thread that runs next.

use std::time::{Duration, Instant};
use vkfd_driver::os;

/// The longest wait, on a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A short wait.
const PAUSE: Duration = Duration::from_micros(50);
/// Turns before a wait pauses.
const SPINS: u32 = 200;

/// A place where another thread may run.
pub(crate) fn turn() {
    os::sleep(Duration::ZERO);
}

/// Waits for a little while.
pub(crate) fn pause() {
    os::sleep(PAUSE);
}

/// Waits for a value. `None` after [`PATIENCE`].
pub fn wait_for<T>(mut value: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    for turn in 0.. {
        match value() {
            None if begun.elapsed() > PATIENCE => break,
            None if turn < SPINS && cfg!(not(vkfd_shuttle)) => std::thread::yield_now(),
            None => pause(),
            found => return found,
        }
    }
    None
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    assert!(wait_for(|| condition().then_some(())).is_some(), "{what}: not within {PATIENCE:?}");
}
