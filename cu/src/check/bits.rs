// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which bytes of an allocation were written: a bit each, which any thread changes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Bytes of an allocation that are kept.
const MOST: u64 = 64 << 20;
/// Bytes of all allocations together.
const ALL: u64 = 512 << 20;

/// Bytes that are kept at the moment.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// The bits of an allocation.
#[derive(Debug)]
pub struct Bits {
    /// Set where a byte was written.
    words: Box<[AtomicU64]>,
    bytes: u64,
    /// It was filled with garbage, and what is none any more was written.
    garbage: bool,
}

impl Bits {
    /// Of `bytes` that nothing wrote; none where there are too many already.
    pub(super) fn new(bytes: u64, garbage: bool) -> Option<Arc<Bits>> {
        let bytes = bytes.min(MOST);
        let took = KEPT.fetch_update(Relaxed, Relaxed, |kept| Some(kept + bytes).filter(|kept| *kept <= ALL));
        took.ok()?;
        let words = (0..bytes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Some(Arc::new(Bits { words, bytes, garbage }))
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has_garbage(&self) -> bool {
        self.garbage
    }

    /// The garbage of eight bytes from an offset on that eight divides.
    #[must_use]
    pub fn garbage(offset: u64) -> u64 {
        let value = (offset / 8).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value ^ value >> 27
    }

    fn each(from: u64, len: u64, bytes: u64, mut f: impl FnMut(usize, u64)) {
        let end = from.saturating_add(len).min(bytes);
        let mut at = from;
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            let count = (64 - bit).min(end - at);
            let mask = if count == 64 { u64::MAX } else { ((1u64 << count) - 1) << bit };
            f(usize::try_from(word).unwrap_or(usize::MAX), mask);
            at += count;
        }
    }

    /// These bytes were written.
    pub(super) fn define(&self, from: u64, len: u64) {
        Bits::each(from, len, self.bytes, |word, mask| {
            if let Some(word) = self.words.get(word) {
                word.fetch_or(mask, Relaxed);
            }
        });
    }

    /// These bytes got a value that nothing wrote.
    pub(super) fn forget(&self, from: u64, len: u64) {
        Bits::each(from, len, self.bytes, |word, mask| {
            if let Some(word) = self.words.get(word) {
                word.fetch_and(!mask, Relaxed);
            }
        });
    }

    /// Whether a byte was written. Beyond what is kept, all were.
    pub(super) fn is_written(&self, at: u64) -> bool {
        let word = usize::try_from(at / 64).ok().and_then(|word| self.words.get(word));
        at >= self.bytes || word.is_none_or(|word| word.load(Relaxed) >> (at % 64) & 1 == 1)
    }
}

impl Drop for Bits {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_one_by_one() {
        let bits = Bits::new(200, false).expect("room");
        bits.define(60, 10);
        let written: Vec<u64> = (0..200).filter(|at| bits.is_written(*at)).collect();
        assert_eq!(written, (60..70).collect::<Vec<_>>());
        bits.forget(61, 3);
        assert!(bits.is_written(60) && !bits.is_written(63) && bits.is_written(64));
        bits.define(0, u64::MAX);
        assert!((0..200).all(|at| bits.is_written(at)) && bits.is_written(1 << 40));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let all: Vec<_> = (0..2 * ALL / MOST).filter_map(|_| Bits::new(u64::MAX, false)).collect();
        assert!(all.len() as u64 <= ALL / MOST);
        assert_eq!(all.first().map(|bits| bits.bytes()), Some(MOST));
    }
}
