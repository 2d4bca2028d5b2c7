// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many log lines others can cause: the one limit for commands that serve guests and programs.
//!
//! Each place in the source that logs has a budget of [`BURST`] lines, and gets [`EACH`] a new one.
//! So the number of such places bounds the lines that a guest's commands, a client's calls or GPU
//! code can cause. The first line after a pause says how many were left out.
//!
//! Limits: the driver's warnings are one place. One client's flood can hide another's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::Metadata;
use vkfd_rt::message;

/// Lines of one place at once.
pub const BURST: u32 = 500;
/// How long until there is another one.
pub const EACH: Duration = Duration::from_secs(1);

struct Budget {
    left: u32,
    since: Instant,
    left_out: u64,
}

/// The budgets. There are as many as places in the source that have logged.
#[derive(Default)]
pub struct LogRate(Mutex<HashMap<Identifier, Budget>>);

impl LogRate {
    /// Whether a line of this place is written. Lines that were left out are told on stderr first.
    pub fn admits(&self, place: &Metadata<'_>) -> bool {
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = all.entry(place.callsite()).or_insert(Budget::new(now)).take(now);
        drop(all);
        match taken {
            None => false,
            Some(0) => true,
            Some(left_out) => {
                let (file, line) = (place.file().unwrap_or("?"), place.line().unwrap_or(0));
                message::write(format_args!("{left_out} messages like the next one were left out ({file}:{line})"));
                true
            }
        }
    }
}

impl Budget {
    const fn new(since: Instant) -> Self {
        Self { left: BURST, since, left_out: 0 }
    }

    /// How many lines were left out before this one; `None` when it is left out as well.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let new = now.saturating_duration_since(self.since).as_secs() / EACH.as_secs();
        if new > 0 {
            self.left = self.left.saturating_add(u32::try_from(new).unwrap_or(BURST)).min(BURST);
            self.since = now;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.left_out += 1;
            return None;
        };
        self.left = left;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_writes_a_burst_and_then_a_line_a_second() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut budget = Budget::new(begun);
        assert_eq!((0..10 * BURST).filter(|_| budget.take(begun).is_some()).count(), 500);
        assert_eq!(budget.take(at(1)), Some(9 * u64::from(BURST)));
        assert_eq!(budget.take(at(1)), None);
        // An hour's pause is no hour's lines.
        assert_eq!((0..10_000).filter(|_| budget.take(at(3600)).is_some()).count(), 500);
        // Ten a second, for a day.
        let day = (0..86_400).flat_map(|second| std::iter::repeat_n(at(3600 + second), 10));
        assert_eq!(day.filter(|now| budget.take(*now).is_some()).count(), 86_399);
    }
}
