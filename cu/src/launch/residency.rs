// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The part of a GPU's compute units that all launches under way have taken.
//!
//! If n groups of a launch fill the GPU, a group takes one n-th of it. A launch starts a group if
//! there is room. A launch's share is the GPU divided by the launches under way. A launch with more
//! than its share leaves the room to one that has less and found none. A launch without any group
//! starts one in any case, so every queue gets on. So the groups of all queues together take the
//! GPU's registers and LDS, and one group a queue beyond that.
//!
//! Everything is a count: nothing is published with it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// All of a GPU.
const WHOLE: u64 = 1 << 40;

/// What is taken of a GPU.
#[derive(Debug, Default)]
pub struct Residency {
    taken: AtomicU64,
    /// Launches under way.
    launches: AtomicU32,
    /// Those of them that found no room for their share.
    hungry: AtomicU32,
}

impl Residency {
    /// What is taken, as a part of the whole.
    pub fn taken(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a part, to be looked at")]
        let part = self.taken.load(Relaxed) as f64 / WHOLE as f64;
        part
    }
}

/// What one launch has taken.
#[derive(Debug)]
pub(super) struct Part {
    /// Of one group.
    cost: u64,
    groups: u64,
    hungry: bool,
}

impl Part {
    /// A launch begins, of whose groups so many fit at once.
    pub(super) fn begin(residency: &Residency, resident: u64) -> Part {
        residency.launches.fetch_add(1, Relaxed);
        Part { cost: WHOLE / resident.max(1), groups: 0, hungry: false }
    }

    /// What the launch has, with one group more.
    fn next(&self) -> u64 {
        self.cost.saturating_mul(self.groups.saturating_add(1))
    }

    /// Whether that is within its share.
    fn is_in_share(&self, residency: &Residency) -> bool {
        self.next() <= WHOLE / u64::from(residency.launches.load(Relaxed).max(1))
    }

    /// Whether another launch is to have the room first.
    fn gives_way(&self, residency: &Residency) -> bool {
        let others = residency.hungry.load(Relaxed).saturating_sub(u32::from(self.hungry));
        others > 0 && !self.is_in_share(residency)
    }

    /// Whether the launch may start a group now.
    pub(super) fn has_room(&self, residency: &Residency) -> bool {
        let free = residency.taken.load(Relaxed).saturating_add(self.cost) <= WHOLE;
        self.groups == 0 || free && !self.gives_way(residency)
    }

    /// Takes the room for a group, if there is any.
    pub(super) fn take(&mut self, residency: &Residency) -> bool {
        let room = |taken: u64| taken.checked_add(self.cost).filter(|taken| *taken <= WHOLE);
        let taken = if self.groups == 0 {
            residency.taken.fetch_add(self.cost, Relaxed);
            true
        } else {
            !self.gives_way(residency) && residency.taken.fetch_update(Relaxed, Relaxed, room).is_ok()
        };
        if taken {
            self.groups += 1;
        }
        self.set_hungry(residency, !taken && self.is_in_share(residency));
        taken
    }

    fn set_hungry(&mut self, residency: &Residency, hungry: bool) {
        match (std::mem::replace(&mut self.hungry, hungry), hungry) {
            (false, true) => _ = residency.hungry.fetch_add(1, Relaxed),
            (true, false) => _ = residency.hungry.fetch_sub(1, Relaxed),
            _ => {}
        }
    }

    /// A group has ended.
    pub(super) fn give(&mut self, residency: &Residency) {
        if let Some(groups) = self.groups.checked_sub(1) {
            self.groups = groups;
            residency.taken.fetch_sub(self.cost, Relaxed);
        }
    }

    /// The launch is over, with all of its groups.
    pub(super) fn end(&mut self, residency: &Residency) {
        while self.groups > 0 {
            self.give(residency);
        }
        self.set_hungry(residency, false);
        residency.launches.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many groups a launch can start.
    fn fill(part: &mut Part, residency: &Residency) -> u64 {
        let mut groups = 0;
        while part.take(residency) {
            groups += 1;
        }
        groups
    }

    #[test]
    fn launches_share_what_there_is() {
        let residency = Residency::default();
        let mut first = Part::begin(&residency, 64);
        assert_eq!(fill(&mut first, &residency), 64, "one alone has all of it");
        let mut second = Part::begin(&residency, 16);
        assert_eq!(fill(&mut second, &residency), 1, "and another one group");
        assert!(residency.taken() < 1.1);
        // What the first gives back is the second's, up to its share.
        for _ in 0..64 {
            first.give(&residency);
            first.take(&residency);
            fill(&mut second, &residency);
        }
        assert!((7..=8).contains(&second.groups), "{}", second.groups);
        assert!(residency.taken() <= 1.0 + 1.0 / 16.0);
        first.end(&residency);
        fill(&mut second, &residency);
        assert_eq!(second.groups, 16, "alone again");
        second.end(&residency);
        assert_eq!((residency.taken.into_inner(), residency.hungry.into_inner()), (0, 0));
    }

    #[test]
    fn many_launches_take_one_group_each_beyond_the_gpu() {
        let residency = Residency::default();
        let mut parts: Vec<_> = (0..256).map(|_| Part::begin(&residency, 64)).collect();
        for part in &mut parts {
            fill(part, &residency);
        }
        assert!(parts.iter().all(|part| part.groups > 0));
        assert!(residency.taken() <= 1.0 + 256.0 / 64.0, "{}", residency.taken());
        parts.iter_mut().for_each(|part| part.end(&residency));
        assert_eq!(residency.launches.into_inner(), 0);
    }
}
