// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A ring of 32-bit words that the GPU reads.
//!
//! Mechanism: positions count words since the queue began and never wrap (64 bits); a word's place
//! is its position modulo the ring's size. A packet that does not fit before the ring's end is
//! preceded by no-operations (zero words, SDMA) up to there. The ring is never filled to the last
//! word, so that a full one differs from an empty one also for an engine that compares places.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::address::index;

/// The client's side of a ring: where the next packet goes.
pub(crate) struct Ring {
    base: NonNull<u32>,
    words: u64,
    written: u64,
}

// SAFETY: the ring is the only writer of its memory, which its creator keeps mapped;
// access is by atomic stores.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    ///
    /// `base` points to `words` (a power of two) 4-aligned words that stay mapped as long as the
    /// ring is used, and that nobody else writes or has references to.
    pub(crate) unsafe fn new(base: NonNull<u32>, words: u64) -> Self {
        debug_assert!(words.is_power_of_two());
        Self { base, words, written: 0 }
    }

    /// The position after the last word.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    fn store(&self, position: u64, word: u32, order: Ordering) {
        let place = index(position & (self.words - 1));
        // SAFETY: `place` is within the ring, which is mapped and aligned (see `new`).
        let word_at = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(place)) };
        word_at.store(word, order);
    }

    /// Puts a packet if there is room, given the position up to which the GPU has read. The first
    /// word is stored last.
    pub(crate) fn put(&mut self, packet: &[u32], read: u64) -> bool {
        let Some((&first, rest)) = packet.split_first() else { return true };
        let len = 1 + u64::try_from(rest.len()).unwrap_or(u64::MAX / 2);
        let to_end = self.words - (self.written & (self.words - 1));
        let padding = if len > to_end { to_end } else { 0 };
        let used = self.written.wrapping_sub(read);
        if used + padding + len >= self.words {
            return false;
        }
        for i in 0..padding {
            self.store(self.written + i, 0, Ordering::Relaxed);
        }
        let start = self.written + padding;
        for (i, &word) in (1..).zip(rest) {
            self.store(start + i, word, Ordering::Relaxed);
        }
        self.store(start, first, Ordering::Release);
        self.written = start + len;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Box<[AtomicU32]>);

    impl Memory {
        fn new(words: usize) -> Self {
            Self((0..words).map(|_| AtomicU32::new(0xffff_ffff)).collect())
        }

        fn ring(&self) -> Ring {
            let base = NonNull::new(self.0[0].as_ptr()).unwrap();
            // SAFETY: the memory outlives the ring in each test, and only the ring stores to it.
            unsafe { Ring::new(base, u64::try_from(self.0.len()).unwrap()) }
        }

        fn words(&self) -> Vec<u32> {
            self.0.iter().map(|w| w.load(Ordering::Relaxed)).collect()
        }
    }

    #[test]
    fn a_packet_never_straddles_the_end() {
        let memory = Memory::new(16);
        let mut ring = memory.ring();
        assert!(ring.put(&[1, 2, 3, 4, 5, 6, 7], 0));
        assert!(ring.put(&[8, 9, 10, 11, 12, 13], 0));
        // Three words are left before the end: they become no-operations.
        assert!(ring.put(&[20, 21, 22, 23, 24], 13));
        assert_eq!(ring.written(), 21);
        let words = memory.words();
        assert_eq!(words[..5], [20, 21, 22, 23, 24]);
        assert_eq!(words[5..13], [6, 7, 8, 9, 10, 11, 12, 13]);
        assert_eq!(words[13..], [0, 0, 0]);
        // One that fits exactly needs no padding.
        assert!(ring.put(&[1; 11], 21));
        assert_eq!(ring.written(), 32);
    }

    #[test]
    fn a_full_ring_refuses_and_changes_nothing() {
        let memory = Memory::new(8);
        let mut ring = memory.ring();
        assert!(ring.put(&[1, 1, 1, 1], 0));
        let before = memory.words();
        assert!(!ring.put(&[2, 2, 2, 2], 0), "the last word stays free");
        assert_eq!((memory.words(), ring.written()), (before, 4));
        assert!(ring.put(&[2, 2, 2, 2], 1));
        assert!(!ring.put(&[3], 1));
        assert!(ring.put(&[3], 4));
        assert_eq!(memory.words()[0], 3);
    }
}
