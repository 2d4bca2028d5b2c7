// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code that was made at run time and accesses memory that may vanish.
//!
//! Such code lies in registered ranges. While it accesses memory, RBX has the address at which it
//! goes on after a fault, and that address is in the same range. The fault handler looks at both.
//! So code needs no table of its accesses.
//!
//! The handler may run at any time, so the ranges are a table of atomics: a place is taken by its
//! begin and given back after its end is zero.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges that a process may have.
const MOST: usize = 4096;

/// A range's begin and end. The begin is 0 in a free place, and an end of 0 is none yet.
struct Place(AtomicUsize, AtomicUsize);

static PLACES: [Place; MOST] = [const { Place(AtomicUsize::new(0), AtomicUsize::new(0)) }; MOST];
/// One behind the last place that was ever taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Takes a place for a range; `None`: there is none left.
pub(in super::super) fn take(range: &Range<usize>) -> Option<usize> {
    super::install();
    for (index, place) in PLACES.iter().enumerate() {
        if place.0.compare_exchange(0, range.start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            place.1.store(range.end, Ordering::Release);
            TAKEN.fetch_max(index + 1, Ordering::AcqRel);
            return Some(index);
        }
    }
    None
}

/// Gives a place back.
pub(in super::super) fn give(index: usize) {
    let Some(place) = PLACES.get(index) else { return };
    place.1.store(0, Ordering::Release);
    place.0.store(0, Ordering::Release);
}

/// Whether made code at `rip` goes on at `rbx` after a fault.
pub(super) fn resumes(rip: usize, rbx: usize) -> bool {
    let taken = TAKEN.load(Ordering::Acquire).min(MOST);
    PLACES.iter().take(taken).any(|place| {
        let (begin, end) = (place.0.load(Ordering::Acquire), place.1.load(Ordering::Acquire));
        begin != 0 && (begin..end).contains(&rip) && (begin..end).contains(&rbx)
    })
}
