// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPU clock.

/// Ticks per second of [`clock`].
pub const CLOCK_HZ: u64 = 100_000_000;

/// The GPU clock: 100 MHz, the same for all GPUs, derived from CLOCK_MONOTONIC. SDMA timestamps and
/// signals carry it.
pub fn clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the local structure; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    // Neither part is ever negative.
    let [seconds, nanoseconds] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * CLOCK_HZ + nanoseconds / (1_000_000_000 / CLOCK_HZ)
}
