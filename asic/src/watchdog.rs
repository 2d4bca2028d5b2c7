// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Names the register that a driver spins on.
//!
//! A driver that waits for a value which never comes reads one register again and again, and says
//! little. Reads of other registers begin the count anew.

use crate::registers::Dword;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Reads in a row that are no accident.
const READS: u32 = 2000;
/// And their time.
const TIME: Duration = Duration::from_secs(1);

/// What is read in a row.
pub struct Watchdog {
    reads: u32,
    time: Duration,
    at: Dword,
    value: u32,
    count: u32,
    since: Instant,
    reported: BTreeSet<Dword>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new(READS, TIME)
    }
}

impl Watchdog {
    /// Reports `reads` reads in a row that take `time` or longer.
    pub fn new(reads: u32, time: Duration) -> Self {
        Self { reads, time, at: Dword::MAX, value: 0, count: 0, since: Instant::now(), reported: BTreeSet::new() }
    }

    /// `at` has read as `value`. Whether the driver spins on it, said once for each register.
    pub fn read(&mut self, at: Dword, value: u32) -> bool {
        if at != self.at || value != self.value {
            (self.at, self.value, self.count, self.since) = (at, value, 0, Instant::now());
        }
        self.count = self.count.saturating_add(1);
        self.count >= self.reads && self.since.elapsed() >= self.time && self.reported.insert(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_does_not_change_is_reported_once() {
        let mut watchdog = Watchdog::new(3, Duration::ZERO);
        let reports: Vec<bool> = [5, 5, 6, 5, 5, 5, 5].into_iter().map(|at| watchdog.read(at, 0)).collect();
        assert_eq!(reports, [false, false, false, false, false, true, false]);
        // A value that changes is progress.
        let mut watchdog = Watchdog::new(3, Duration::ZERO);
        assert!((0..100).all(|value| !watchdog.read(5, value)));
    }
}
