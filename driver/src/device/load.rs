// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The share of time in which a GPU runs kernels, for monitors.
//!
//! The device counts the time with a kernel. The share is that of the time since somebody asked
//! last, or since the machine was made. Questions that follow sooner than [`SHORTEST`] get the last
//! answer, so that two monitors do not see each other's instants.

use crate::base::errno::Result;
use crate::base::lock_rank::Rank;
use crate::os::Mutex;

/// Nanoseconds that a share is of, at least.
const SHORTEST: u64 = 100_000_000;

struct Sample {
    /// When, in nanoseconds.
    at: u64,
    /// Nanoseconds of work before.
    worked: u64,
    percent: u32,
}

/// See the module.
pub struct Load(Mutex<Sample>);

impl Load {
    /// Of a GPU that has not worked at `now`.
    pub fn new(now: u64) -> Result<Self> {
        Ok(Self(Mutex::new(Rank::Vram, Sample { at: now, worked: 0, percent: 0 })?))
    }

    /// The share at `now`, when the GPU has worked for `worked` nanoseconds in all.
    pub fn percent(&self, now: u64, worked: u64) -> u32 {
        let mut last = self.0.lock();
        let passed = now.saturating_sub(last.at);
        if passed >= SHORTEST {
            // A device that was replaced begins at 0 again.
            let busy = worked.saturating_sub(last.worked);
            let share = busy.saturating_mul(100).checked_div(passed).unwrap_or(0).min(100);
            *last = Sample { at: now, worked, percent: u32::try_from(share).unwrap_or(100) };
        }
        last.percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_since_the_last_question() {
        let (load, ms) = (Load::new(0).unwrap(), 1_000_000);
        assert_eq!(load.percent(200 * ms, 50 * ms), 25);
        assert_eq!(load.percent(400 * ms, 250 * ms), 100);
        // Too soon: the last answer, and the time is not lost.
        assert_eq!(load.percent(499 * ms, 250 * ms), 100);
        assert_eq!(load.percent(600 * ms, 252 * ms), 1);
        assert_eq!(load.percent(800 * ms, 252 * ms), 0);
        // Clocks of two sides.
        assert_eq!(load.percent(900 * ms, 500 * ms), 100);
        // A device that began again.
        assert_eq!(load.percent(1100 * ms, ms), 0);
        assert_eq!(load.percent(1300 * ms, 21 * ms), 10);
    }
}
