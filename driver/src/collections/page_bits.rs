// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which of a block's 512 pages: a set that is copied, combined and walked by runs.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "512 bits, of which callers name those of a block"
)]

use crate::base::addr::HUGE_PAGES;
use core::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not};

const WORDS: usize = 8;
const _: () = assert!(HUGE_PAGES == WORDS as u64 * 64);

/// Pages in a block, as an array has them.
pub const BLOCK_PAGES: usize = 512;

/// A set of pages of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageBits([u64; WORDS]);

impl PageBits {
    pub const NONE: Self = Self([0; WORDS]);
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Pages `[first, end)`.
    pub fn range(first: u64, end: u64) -> Self {
        let mut bits = Self::NONE;
        for (word, base) in bits.0.iter_mut().zip((0..).step_by(64)) {
            let low = first.clamp(base, base + 64) - base;
            let high = end.clamp(base, base + 64) - base;
            if high > low {
                *word = (u64::MAX >> (64 - (high - low))) << low;
            }
        }
        bits
    }

    /// One page.
    pub fn page(page: u64) -> Self {
        let mut bits = Self::NONE;
        bits.insert(page);
        bits
    }

    /// `page` is one of them from now on.
    pub fn insert(&mut self, page: u64) {
        if page < HUGE_PAGES {
            self.0[word(page)] |= 1 << (page % 64);
        }
    }

    /// `page` is none of them any more.
    pub fn remove(&mut self, page: u64) {
        if page < HUGE_PAGES {
            self.0[word(page)] &= !(1 << (page % 64));
        }
    }

    /// Whether `page` is one of them.
    pub fn has(&self, page: u64) -> bool {
        page < HUGE_PAGES && self.0[word(page)] >> (page % 64) & 1 != 0
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Calls `f` with `(first, pages)` of each run of pages that lie side by side, lowest first.
    pub fn runs(&self, mut f: impl FnMut(u64, u64)) {
        let mut from = 0;
        while let Some(first) = self.next(from, true) {
            let end = self.next(first, false).unwrap_or(HUGE_PAGES);
            f(first, end - first);
            from = end;
        }
    }

    /// The first page from `from` on that is (or is not) one of them.
    pub fn next(&self, from: u64, set: bool) -> Option<u64> {
        let mut at = from;
        while at < HUGE_PAGES {
            let bits = if set { self.0[word(at)] } else { !self.0[word(at)] };
            let rest = bits >> (at % 64);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros()));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

const fn word(page: u64) -> usize {
    crate::base::addr::index(page / 64)
}

macro_rules! combine {
    ($trait:ident, $method:ident, $assign:ident, $assign_method:ident, $op:tt, $assign_op:tt) => {
        impl $trait for PageBits {
            type Output = Self;
            fn $method(mut self, other: Self) -> Self {
                for (a, b) in self.0.iter_mut().zip(other.0) {
                    *a $assign_op b;
                }
                self
            }
        }
        impl $assign for PageBits {
            fn $assign_method(&mut self, other: Self) {
                *self = *self $op other;
            }
        }
    };
}

combine!(BitAnd, bitand, BitAndAssign, bitand_assign, &, &=);
combine!(BitOr, bitor, BitOrAssign, bitor_assign, |, |=);

impl Not for PageBits {
    type Output = Self;
    fn not(mut self) -> Self {
        for word in &mut self.0 {
            *word = !*word;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn runs_give_back_what_ranges_put_in() {
        let parts = [(0, 1), (5, 63), (64, 65), (100, 300), (448, 512)];
        let bits = parts.iter().fold(PageBits::NONE, |bits, (a, b)| bits | PageBits::range(*a, *b));
        let mut runs = Vec::new();
        bits.runs(|first, pages| runs.push((first, first + pages)));
        assert_eq!(runs, parts);
        assert_eq!(bits.count(), parts.iter().map(|(a, b)| b - a).sum::<u64>());
        assert!((bits & !bits).is_empty() && bits | !bits == PageBits::ALL);
        assert_eq!(PageBits::range(0, 512), PageBits::ALL);
        assert!(PageBits::range(7, 7).is_empty() && !bits.has(512) && bits.has(511) && !bits.has(63));
    }
}
