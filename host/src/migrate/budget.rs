// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The number of mappings that moving may use: vm.max_map_count less a sixteenth of it (4,095 by
//! default), which stays for the program.

use super::places::CAPACITY;
use super::vma::Mappings;
use std::time::{Duration, Instant};

/// How long a count of the process's mappings is believed.
const FRESH: Duration = Duration::from_millis(50);

/// Mappings that a process may have.
pub(crate) fn max_map_count() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

/// The budget.
pub(super) struct Budget {
    limit: u64,
    /// Mappings there were when they were last counted, and those made since.
    count: u64,
    counted: Option<Instant>,
}

impl Budget {
    pub(super) fn new() -> Self {
        let limit = max_map_count().unwrap_or(65_530);
        Self { limit: limit - limit / 16, count: 0, counted: None }
    }

    /// How many more mappings there may be, counting them if that is not known well enough for
    /// `wanted`.
    pub(super) fn left(&mut self, wanted: u64, runs: usize) -> u64 {
        let fresh = self.counted.is_some_and(|at| at.elapsed() < FRESH);
        if !fresh || self.count + wanted > self.limit {
            self.count = Mappings::count();
            self.counted = Some(Instant::now());
        }
        // Runs are limited, too; a change of one may leave two more.
        let runs = (CAPACITY as u64 - 64).saturating_sub(2 * runs as u64);
        self.limit.saturating_sub(self.count).min(runs)
    }

    /// That many were made.
    pub(super) fn spend(&mut self, mappings: u64) {
        self.count += mappings;
    }
}
