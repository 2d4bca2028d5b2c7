// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a wave knows of the waves of other work-groups: up to which time it is ordered behind them.
//!
//! An entry is of one wave, and exact. A wave knows [`MOST`] others in this way. One more makes the
//! oldest entry a floor: then it counts as ordered behind everybody up to that time, which hides
//! races and makes none up.

/// Waves that are known one by one.
const MOST: usize = 8;

/// A wave of another group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The first wave of its group, by number.
    pub(super) group: u32,
    pub(super) index: u8,
    /// Its own accesses up to then had completed.
    pub(super) done: u32,
    /// It was ordered behind its group's accesses up to then.
    pub(super) mates: u32,
}

impl Entry {
    fn newest(&self) -> u32 {
        self.done.max(self.mates)
    }
}

/// All that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    floor: u32,
    count: u8,
    entries: [Entry; MOST],
}

impl Known {
    pub(super) const NOBODY: Known =
        Known { floor: 0, count: 0, entries: [Entry { group: 0, index: 0, done: 0, mates: 0 }; MOST] };

    fn entries(&self) -> &[Entry] {
        self.entries.get(..self.count.into()).unwrap_or(&[])
    }

    /// Everybody is known up to a time.
    pub(super) fn raise(&mut self, floor: u32) {
        self.floor = self.floor.max(floor);
    }

    pub(super) fn add(&mut self, new: Entry) {
        if new.newest() <= self.floor {
            return;
        }
        let count = usize::from(self.count);
        let same = |old: &&mut Entry| (old.group, old.index) == (new.group, new.index);
        if let Some(old) = self.entries.iter_mut().take(count).find(same) {
            (old.done, old.mates) = (old.done.max(new.done), old.mates.max(new.mates));
        } else if let Some(place) = self.entries.get_mut(count) {
            *place = new;
            self.count += 1;
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|entry| entry.newest()) {
            let floor = std::mem::replace(oldest, new).newest();
            self.raise(floor);
        }
    }

    pub(super) fn join(&mut self, other: &Known) {
        self.raise(other.floor);
        other.entries().iter().for_each(|entry| self.add(*entry));
    }

    /// The newest time that is known of anybody; 0: nothing is.
    pub(super) fn newest(&self) -> u32 {
        self.entries().iter().map(Entry::newest).max().unwrap_or(0).max(self.floor)
    }

    /// Whether an access of a wave at a time is known.
    pub(super) fn covers(&self, group: u32, index: u8, time: u32) -> bool {
        let covers =
            |entry: &Entry| entry.group == group && time <= if entry.index == index { entry.done } else { entry.mates };
        time <= self.floor || self.entries().iter().any(covers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(group: u32, done: u32) -> Entry {
        Entry { group, index: 1, done, mates: 0 }
    }

    #[test]
    fn the_oldest_becomes_the_floor() {
        let mut known = Known::default();
        (1..=8).for_each(|n| known.add(entry(n * 16, n * 10)));
        assert!(known.covers(16, 1, 10) && !known.covers(16, 1, 11) && !known.covers(999, 1, 1));
        assert!(!known.covers(16, 0, 1), "its mates are not");
        known.add(entry(160, 100));
        assert!(known.covers(999, 1, 10) && !known.covers(999, 1, 11));
        assert!(known.covers(160, 1, 100));
        assert_eq!(known.newest(), 100);
    }

    #[test]
    fn a_join_has_the_newer_of_both() {
        let (mut one, mut other) = (Known::default(), Known::default());
        one.add(entry(16, 5));
        other.add(entry(16, 9));
        other.add(entry(32, 3));
        one.join(&other);
        assert!(one.covers(16, 1, 9) && one.covers(32, 1, 3) && !one.covers(32, 1, 4));
    }
}
