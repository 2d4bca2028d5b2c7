// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A bitmap that any context can change: bits are set and cleared one by one with atomic
//! operations, and drained in runs.
//!
//! A second bitmap has a bit for each word of the first that may have bits set. So draining a large
//! and nearly empty one costs little: O(bits / 4096 + bits set).
//!
//! Nothing here depends on the rest of this module's crate.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use kernel::prelude::*;

const BITS: usize = u64::BITS as usize;

/// The bitmap.
pub(crate) struct AtomicBitmap {
    words: KVVec<AtomicU64>,
    /// A bit a word. May be set for a word without bits; is set, or about to be, for every word
    /// that has some.
    summary: KVVec<AtomicU64>,
    set: AtomicUsize,
}

fn zeroes(words: usize) -> Result<KVVec<AtomicU64>> {
    let mut all = KVVec::with_capacity(words, GFP_KERNEL)?;
    for _ in 0..words {
        all.push_within_capacity(AtomicU64::new(0)).map_err(|_| ENOMEM)?;
    }
    Ok(all)
}

impl AtomicBitmap {
    /// `bits` bits, none of them set.
    pub(crate) fn new(bits: usize) -> Result<Self> {
        let words = bits.div_ceil(BITS);
        Ok(Self { words: zeroes(words)?, summary: zeroes(words.div_ceil(BITS))?, set: AtomicUsize::new(0) })
    }

    /// Sets a bit that exists. Whether it was not set.
    pub(crate) fn set(&self, bit: usize) -> bool {
        let (word, mask) = (bit / BITS, 1 << (bit % BITS));
        let was_clear = self.words[word].fetch_or(mask, Ordering::AcqRel) & mask == 0;
        if was_clear {
            self.set.fetch_add(1, Ordering::AcqRel);
        }
        // After the bit: the draining thread looks here first.
        self.summary[word / BITS].fetch_or(1 << (word % BITS), Ordering::Release);
        was_clear
    }

    /// Clears a bit that exists. Whether it was set.
    pub(crate) fn clear(&self, bit: usize) -> bool {
        let mask = 1 << (bit % BITS);
        let was_set = self.words[bit / BITS].fetch_and(!mask, Ordering::AcqRel) & mask != 0;
        if was_set {
            self.set.fetch_sub(1, Ordering::AcqRel);
        }
        was_set
    }

    /// How many are set.
    pub(crate) fn count(&self) -> usize {
        self.set.load(Ordering::Acquire)
    }

    /// Whether a bit that exists is set.
    pub(crate) fn is_set(&self, bit: usize) -> bool {
        self.words[bit / BITS].load(Ordering::Acquire) & (1 << (bit % BITS)) != 0
    }

    /// Clears all and tells which were set, in ascending runs. A bit that is set meanwhile is told
    /// now or next time.
    pub(crate) fn drain(&self, mut each: impl FnMut(Range<usize>)) {
        let mut run = 0..0;
        for (i, summary) in self.summary.iter().enumerate() {
            let mut words = summary.swap(0, Ordering::Acquire);
            while words != 0 {
                let word = i * BITS + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.words[word].swap(0, Ordering::AcqRel);
                self.set.fetch_sub(bits.count_ones() as usize, Ordering::AcqRel);
                while bits != 0 {
                    let bit = word * BITS + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if run.end == bit {
                        run.end = bit + 1;
                        continue;
                    }
                    if !run.is_empty() {
                        each(run.clone());
                    }
                    run = bit..bit + 1;
                }
            }
        }
        if !run.is_empty() {
            each(run);
        }
    }
}
