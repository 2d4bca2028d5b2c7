// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that goes to and fro: found out, and left in system memory for a while.
//!
//! A *bounce* is a page that moves to VRAM again within [`Damping::window`] of its granule's last
//! move there. After [`Damping::bounces`] in a row faults do not move the granule for a time, which
//! doubles with each further bounce. GPUs use it in system memory meanwhile. A prefetch is an order
//! and goes through, a granule that holds still longer than the window is forgiven, and what is
//! known of pages goes with their memory.
//!
//! Guarded by the notifier lock ([`crate::svm::window`]).
#![expect(clippy::arithmetic_side_effects, reason = "a count that is bounded where it is used")]

use crate::collections::page_bits::PageBits;
use crate::os::Time;
use core::time::Duration;

/// How much to and fro is too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damping {
    /// Moves further apart than this are not to and fro.
    pub window: Duration,
    /// So many bounces in a row are let pass.
    pub bounces: u32,
    /// How long a granule is left alone after the first that is not.
    pub pause: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Default for Damping {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(1),
            bounces: 2,
            pause: Duration::from_millis(50),
            longest: Duration::from_secs(2),
        }
    }
}

/// What is known of one granule.
pub struct Bounces {
    /// Pages that have moved in lately.
    moved: PageBits,
    last: Time,
    count: u32,
    rest_until: Time,
}

impl Bounces {
    /// It has never moved.
    pub const fn new() -> Self {
        Self { moved: PageBits::NONE, last: Time(0), count: 0, rest_until: Time(0) }
    }

    /// Whether it is to be left where it is.
    pub fn rests(&self, now: Time) -> bool {
        now < self.rest_until
    }

    /// The memory of `pages` was unmapped: what comes to their addresses is other memory. Allowed
    /// in reclaim.
    pub fn forget(&mut self, pages: PageBits) {
        self.moved &= !pages;
        if self.moved.is_empty() {
            *self = Self::new();
        }
    }

    /// `pages` have moved to VRAM. Whether that was a bounce.
    pub fn moved(&mut self, pages: PageBits, now: Time, damping: &Damping) -> bool {
        if now > self.last.after(damping.window) {
            (self.moved, self.count) = (PageBits::NONE, 0);
        }
        self.last = now;
        let bounced = !(self.moved & pages).is_empty();
        if !bounced {
            self.moved |= pages;
            return false;
        }
        self.moved = pages;
        self.count += 1;
        if let Some(over @ 1..) = self.count.checked_sub(damping.bounces) {
            let pause = damping.pause.saturating_mul(1 << (over - 1).min(16)).min(damping.longest);
            self.rest_until = now.after(pause);
        }
        true
    }
}

impl Default for Bounces {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bounces_rests_longer_and_longer_and_what_holds_still_is_forgiven() {
        let damping = Damping::default();
        let mut b = Bounces::new();
        let at = |ms| Time(0).after(Duration::from_millis(ms));
        assert!(!b.moved(PageBits::range(0, 16), at(10), &damping));
        assert!(!b.moved(PageBits::range(16, 32), at(20), &damping), "other pages are no bounce");
        assert!(b.moved(PageBits::range(0, 16), at(30), &damping));
        assert!(b.moved(PageBits::range(0, 16), at(40), &damping));
        assert!(!b.rests(at(41)));
        assert!(b.moved(PageBits::range(8, 9), at(50), &damping));
        assert!(!b.moved(PageBits::range(0, 8), at(51), &damping));
        assert!(b.rests(at(60)) && !b.rests(at(101)));
        assert!(b.moved(PageBits::range(0, 8), at(110), &damping));
        assert!(b.rests(at(200)) && !b.rests(at(211)));
        assert!(!b.moved(PageBits::ALL, at(5000), &damping));
        assert!(!b.rests(at(5000)));
    }

    #[test]
    fn what_bounced_is_forgotten_with_its_memory() {
        let damping = Damping::default();
        let at = |ms| Time(0).after(Duration::from_millis(ms));
        let mut b = Bounces::new();
        for ms in 10..15 {
            b.moved(PageBits::range(0, 16), at(ms), &damping);
        }
        b.forget(PageBits::range(0, 8) | PageBits::range(16, 512));
        assert!(b.rests(at(20)), "half of it is still there");
        b.forget(PageBits::range(8, 16));
        assert!(!b.rests(at(20)));
        assert!(!b.moved(PageBits::range(0, 16), at(21), &damping), "the first move of other memory");
    }
}
