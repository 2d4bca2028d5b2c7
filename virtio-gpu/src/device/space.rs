// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The addresses that a context gives out: a range of the guest's process, which its library
//! reserves at the beginning. An address there is the same for the GPU.

use std::collections::BTreeMap;

use vkfd_remote::protocol::PAGE;

/// Where it begins: below what Linux gives to mmap, above everything else.
pub const BASE: u64 = 0x7000_0000_0000;
/// Its size.
pub const BYTES: u64 = 1 << 38;

/// Buffers of at least this size are aligned to it.
const HUGE: u64 = 2 << 20;

/// Addresses and which of them are taken.
#[derive(Debug, Default)]
pub struct Space {
    taken: BTreeMap<u64, u64>,
    /// Where to look next.
    next: u64,
}

impl Space {
    /// Takes `bytes` (rounded up to pages) at a multiple of `alignment` (a power of two), plus
    /// `skew` (pages) if that large.
    pub fn take(&mut self, bytes: u64, alignment: u64, skew: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE).filter(|bytes| (1..=BYTES).contains(bytes))?;
        let alignment = match alignment {
            0 if bytes >= HUGE => HUGE,
            0 => PAGE,
            given if given.is_power_of_two() && given <= 1 << 30 => given.max(PAGE),
            _ => return None,
        };
        let from = self.next.max(BASE);
        let at = self.free(from, bytes, alignment, skew).or_else(|| self.free(BASE, bytes, alignment, skew))?;
        self.taken.insert(at, bytes);
        // A page between two buffers, so that running over one's end is a fault.
        self.next = at + bytes + PAGE;
        Some(at)
    }

    /// The first free range from `from` on.
    fn free(&self, from: u64, bytes: u64, alignment: u64, skew: u64) -> Option<u64> {
        let skewed = |at: u64| at.checked_next_multiple_of(alignment).map(|at| at + skew % alignment);
        let mut at = skewed(from)?;
        loop {
            let end = at.checked_add(bytes).filter(|end| *end <= BASE + BYTES)?;
            match self.taken.range(..end).next_back() {
                Some((start, length)) if start + length > at => at = skewed(start + length)?,
                _ => return Some(at),
            }
        }
    }

    /// Gives a range back.
    pub fn give(&mut self, at: u64) {
        self.taken.remove(&at);
    }

    /// The ranges that are taken.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_are_used_again() {
        let mut space = Space::default();
        let mut all = Vec::new();
        for n in 1..200 {
            let bytes = n * 0x7_f000;
            all.push((space.take(bytes, 0, n * PAGE).unwrap(), bytes));
        }
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(space.take(BYTES, 0, 0).is_none() && space.take(0, 0, 0).is_none() && space.take(PAGE, 3, 0).is_none());
        for (at, _) in all {
            space.give(at);
        }
        assert_eq!(space.len(), 0);
        assert_eq!(space.take(BYTES, 0, 0), Some(BASE), "all of it, from the beginning again");
        assert_eq!(space.take(PAGE, 0, 0), None);
    }

    #[test]
    fn alignment_and_skew() {
        let mut space = Space::default();
        let at = space.take(5 * HUGE, 0, 3 * PAGE).unwrap();
        assert_eq!(at % HUGE, 3 * PAGE);
        assert_eq!(space.take(PAGE, 1 << 24, 0).unwrap() % (1 << 24), 0);
    }
}
