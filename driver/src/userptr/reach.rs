// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much of a userptr object a GPU's fault brings (XNACK on).
//!
//! A fault costs more than a page, so the pages around it are brought along: a block of up to 2 MiB
//! of the GPU's addresses. With less memory than is registered this can do harm: the blocks evict
//! each other's pages, which other waves are using, and the kernel thrashes. So a fault in a block
//! that was brought lately, which has gone again since, halves the next one, down to a page, and
//! any other fault doubles it. Memory that is gone through in order comes in large blocks however
//! little fits.
//!
//! Guarded by the object's notifier lock. O(1).

use crate::base::addr::HUGE_PAGES;

/// Blocks remembered.
const LATELY: usize = 4;

/// Pages of a GPU's address space, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Block {
    /// The first.
    pub first: u64,
    /// One past the last.
    pub end: u64,
}

/// What the next fault brings.
pub struct Reach {
    /// Pages of a block; a power of two.
    pages: u64,
    lately: [Block; LATELY],
    /// The oldest of them.
    oldest: usize,
}

impl Default for Reach {
    /// All of 2 MiB, until that does harm.
    fn default() -> Self {
        Self { pages: HUGE_PAGES, lately: [Block::default(); LATELY], oldest: 0 }
    }
}

impl Reach {
    /// What a fault at `page`, which is not there, is to bring: an aligned block.
    pub fn block(&mut self, page: u64) -> Block {
        let again = self.lately.iter().any(|block| (block.first..block.end).contains(&page));
        self.pages = if again { (self.pages / 2).max(1) } else { self.pages.saturating_mul(2).min(HUGE_PAGES) };
        let first = page & !self.pages.wrapping_sub(1);
        let block = Block { first, end: first.saturating_add(self.pages) };
        if let Some(slot) = self.lately.get_mut(self.oldest) {
            *slot = block;
        }
        self.oldest = self.oldest.wrapping_add(1) % LATELY;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_through_in_order_comes_in_large_blocks() {
        let mut reach = Reach::default();
        for pass in 0..3 {
            for block in 1..9 {
                let first = block * HUGE_PAGES;
                assert_eq!(reach.block(first + pass), Block { first, end: first + HUGE_PAGES });
            }
        }
    }

    #[test]
    fn what_goes_again_comes_in_ever_smaller_blocks_until_it_stays() {
        let mut reach = Reach::default();
        let sizes = |reach: &mut Reach, page| {
            let block = reach.block(page);
            assert!((block.first..block.end).contains(&page));
            block.end - block.first
        };
        let first = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1];
        assert_eq!(first, [(); 12].map(|()| sizes(&mut reach, 1000)));
        // Beside it, others.
        assert_eq!([2, 4, 8, 16], [2000, 3000, 4000, 5000].map(|page| sizes(&mut reach, page)));
    }
}
