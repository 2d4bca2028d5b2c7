// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The number of mappings that moving may use: the rest stays for the program ([`mapping_count`]).

use super::places::CAPACITY;
use crate::mapping_count;
use std::time::{Duration, Instant};

/// How long a count of the process's mappings is believed.
const FRESH: Duration = Duration::from_millis(50);

/// The budget.
pub(super) struct Budget {
    limit: u64,
    /// Mappings there were when they were last counted, and those made since.
    count: u64,
    counted: Option<Instant>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { limit: mapping_count::limit(), count: 0, counted: None }
    }

    /// How many more mappings there may be, counting them if that is not known well enough for
    /// `wanted`.
    pub(super) fn left(&mut self, wanted: u64, runs: usize) -> u64 {
        let fresh = self.counted.is_some_and(|at| at.elapsed() < FRESH);
        if !fresh || self.count + wanted > self.limit {
            self.count = mapping_count::count();
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
