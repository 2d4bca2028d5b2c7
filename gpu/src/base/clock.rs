// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPU clock.

use std::time::Duration;

/// Ticks per second of [`clock`].
pub const CLOCK_HZ: u64 = 100_000_000;

/// The GPU clock: 100 MHz, the same for all GPUs, derived from CLOCK_MONOTONIC. SDMA timestamps and
/// signals carry it.
pub fn clock() -> u64 {
    let (seconds, nanoseconds) = now();
    seconds * CLOCK_HZ + nanoseconds / (1_000_000_000 / CLOCK_HZ)
}

/// Cycles of a clock of `mhz`, since the same moment as [`clock`]'s.
pub fn cycles(mhz: u32) -> u64 {
    let (seconds, nanoseconds) = now();
    u64::from(mhz) * (seconds * 1_000_000 + nanoseconds / 1000) + u64::from(mhz) * (nanoseconds % 1000) / 1000
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub(crate) fn nanoseconds() -> u64 {
    let (seconds, nanoseconds) = now();
    seconds * 1_000_000_000 + nanoseconds
}

/// The time since then, by [`nanoseconds`].
pub(crate) fn since(then: u64) -> Duration {
    Duration::from_nanos(nanoseconds().saturating_sub(then))
}

/// CLOCK_MONOTONIC, in seconds and nanoseconds.
fn now() -> (u64, u64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the local structure; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    // Neither part is ever negative.
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    (part(now.tv_sec), part(now.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_counted_with_the_clock() {
        for mhz in [1600, 2500] {
            let (before, counted, after) = (clock(), cycles(mhz), clock());
            let ticks = counted / (u64::from(mhz) / 100);
            assert!(before <= ticks && ticks <= after, "{before} {ticks} {after}");
        }
    }
}
