// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The order of numbered things by a key, for lists that clients give in any order.
//!
//! Mechanism: the keys' differing bits and the number go into one word; the words are sorted by
//! digits of 11 bits, lowest digit first, without comparisons. The words are compared if that costs
//! less: for a few things, or for keys that lie far apart. If a key leaves no room for the number,
//! the keys are compared.
//!
//! Cost: one look over the list if it is in order already, else O(n) per digit of the keys' spread,
//! or O(n log n). 16 bytes per thing meanwhile.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "digits are masked to their table, whose sums are numbers of things that are there"
)]

use crate::base::addr::index;
use crate::base::errno::{Errno, Result};
use crate::os::Vec;

const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Below it in a word is the number.
const NUMBER_BITS: u32 = 32;

/// The numbers below `count` by their keys, things of the same key by their numbers. EINVAL for
/// more than a number can name.
pub fn by_key(count: usize, key: impl Fn(usize) -> u64) -> Result<Vec<u32>> {
    let count_u32 = u32::try_from(count).map_err(|_| Errno::EINVAL)?;
    let (mut lowest, mut highest, mut last, mut in_order) = (u64::MAX, 0, 0, true);
    for number in 0..count {
        let key = key(number);
        in_order &= last <= key;
        (lowest, highest, last) = (lowest.min(key), highest.max(key), key);
    }
    let mut order = Vec::with_capacity(count)?;
    if in_order {
        for number in 0..count_u32 {
            order.push_reserved(number);
        }
        return Ok(order);
    }
    let bits = u64::BITS - (highest - lowest).leading_zeros();
    if bits > u64::BITS - NUMBER_BITS {
        for number in 0..count_u32 {
            order.push_reserved(number);
        }
        order.sort_unstable_by_key(|number| (key(*number as usize), *number));
        return Ok(order);
    }
    let mut words = Vec::with_capacity(count)?;
    for number in 0..count_u32 {
        words.push_reserved((key(number as usize) - lowest) << NUMBER_BITS | u64::from(number));
    }
    let digits = bits.div_ceil(DIGIT_BITS);
    if digits as usize * (count + DIGITS) < count * count.ilog2() as usize {
        by_digits(&mut words, digits)?;
    } else {
        words.sort_unstable();
    }
    for word in words.iter() {
        order.push_reserved(u32::try_from(*word & u64::from(u32::MAX)).unwrap_or(0));
    }
    Ok(order)
}

/// Sorts words whose numbers ascend, by the lowest `digits` digits above the number.
fn by_digits(words: &mut Vec<u64>, digits: u32) -> Result {
    let mut next = Vec::filled(0u64, words.len())?;
    let mut places = Vec::filled(0u32, DIGITS)?;
    for digit in 0..digits {
        let of = |word: u64| index(word >> (NUMBER_BITS + digit * DIGIT_BITS)) % DIGITS;
        places.fill(0);
        for word in words.iter() {
            places[of(*word)] += 1;
        }
        let mut before = 0;
        for place in places.iter_mut() {
            before += core::mem::replace(place, before);
        }
        for word in words.iter() {
            let place = &mut places[of(*word)];
            next[*place as usize] = *word;
            *place += 1;
        }
        core::mem::swap(words, &mut next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec as StdVec;

    #[test]
    fn agrees_with_a_stable_sort_whatever_the_keys() {
        let mut x = 7u64;
        let mut next = move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            x >> 20
        };
        // By digits (one, two, three of them), by words, by keys; with and without equal keys; from
        // a base, too.
        for (count, spread, base) in [
            (5000, 1 << 9, 0),
            (5000, 1 << 20, 1 << 50),
            (5000, 1 << 31, 3),
            (5000, 1 << 32, 0),
            (5000, u64::MAX, 0),
            (20, 1 << 20, 9),
            (20, 3, 0),
            (2, 2, 0),
        ] {
            let keys: StdVec<u64> = (0..count).map(|_| base + next() % spread).collect();
            let mut expected: StdVec<u32> = (0..count).collect();
            expected.sort_by_key(|number| keys[*number as usize]);
            assert_eq!(&*by_key(keys.len(), |number| keys[number]).unwrap(), &*expected, "{count} of {spread}");
        }
    }

    #[test]
    fn order_stays_and_extremes_hold() {
        assert!(by_key(0, |_| 0).unwrap().is_empty());
        assert_eq!(&*by_key(3, |_| 5).unwrap(), [0, 1, 2]);
        assert_eq!(&*by_key(3, |number| number as u64).unwrap(), [0, 1, 2]);
        let keys = [u64::MAX, 0, u64::MAX, 1];
        assert_eq!(&*by_key(4, |number| keys[number]).unwrap(), [1, 3, 0, 2]);
    }
}
