// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What threads that run a kernel have counted.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use vkfd_cu::Detour;
use vkfd_isa::Op;

/// Keys that are counted in one access: as many as a block of an engine may have, and once more,
/// because the access ends when half are in use.
const COUNTED: usize = 128;

/// Counts by key, without allocation.
pub(crate) struct Counts<K>(SmallVec<[(K, u64); COUNTED]>);

impl<K: Copy + Ord> Counts<K> {
    /// None yet.
    pub(crate) fn new() -> Counts<K> {
        Counts(SmallVec::new())
    }

    /// Counts a key once more.
    pub(crate) fn add(&mut self, key: K) {
        if let Some((_, times)) = self.0.iter_mut().find(|(known, _)| *known == key) {
            *times += 1;
        } else if self.0.len() < COUNTED {
            self.0.push((key, 1));
        } else {
            debug_assert!(false, "an access ends before there are so many");
        }
    }

    /// The access is to end.
    pub(crate) fn is_half_full(&self) -> bool {
        self.0.len() >= COUNTED / 2
    }

    /// Adds all to a map, which allocates, and begins anew.
    pub(crate) fn move_to(&mut self, sums: &mut BTreeMap<K, u64>) {
        for (key, times) in self.0.drain(..) {
            *sums.entry(key).or_insert(0) += times;
        }
    }
}

/// What a thread has counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Instructions executed.
    pub(crate) instructions: u64,
    /// Bytes that vector instructions reached.
    pub(crate) bytes: u64,
    /// Work-groups that have ended, and their waves.
    pub(crate) groups: u64,
    pub(crate) waves: u64,
    /// Operations executed that only approximate hardware's, and how often.
    pub(crate) inexact: BTreeMap<Op, u64>,
    /// Instructions that the reference engine executed, and why.
    pub(crate) detours: BTreeMap<(Op, Detour), u64>,
}

impl Tally {
    /// Adds another thread's.
    pub(crate) fn add(&mut self, other: Tally) {
        let Tally { instructions, bytes, groups, waves, inexact, detours } = other;
        self.instructions += instructions;
        self.bytes += bytes;
        self.groups += groups;
        self.waves += waves;
        for (op, times) in inexact {
            *self.inexact.entry(op).or_insert(0) += times;
        }
        for (detour, times) in detours {
            *self.detours.entry(detour).or_insert(0) += times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_once() {
        let (mut counts, mut sums) = (Counts::new(), BTreeMap::from([('b', 1)]));
        "abab".chars().for_each(|key| counts.add(key));
        for _ in 0..2 {
            counts.move_to(&mut sums);
            assert_eq!(sums, BTreeMap::from([('a', 2), ('b', 3)]));
        }
        ('a'..).take(COUNTED / 2).for_each(|key| counts.add(key));
        assert!(counts.is_half_full());
    }
}
