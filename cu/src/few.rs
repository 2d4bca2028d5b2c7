// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A list of an instruction's values for its lanes, on the stack. An engine runs inside a GPU's
//! access, in which nothing is allocated: the user host's event reader waits for its end.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// At most `N` values.
pub(crate) struct Few<T: Copy, const N: usize = 64> {
    /// The first `len` are initialised.
    values: [MaybeUninit<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    pub(crate) const fn new() -> Self {
        Few { values: [const { MaybeUninit::uninit() }; N], len: 0 }
    }

    /// `count` times `value`.
    pub(crate) fn filled(value: T, count: usize) -> Self {
        std::iter::repeat_n(value, count).collect()
    }

    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Keeps the first `len` values.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends. Callers have no more than there is room for.
    pub(crate) fn push(&mut self, value: T) {
        debug_assert!(self.len < N, "more than {N} values");
        if let Some(slot) = self.values.get_mut(self.len) {
            slot.write(value);
            self.len += 1;
        }
    }
}

impl<T: Copy, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Few::new()
    }
}

impl<T: Copy, const N: usize> FromIterator<T> for Few<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Self::new();
        values.into_iter().for_each(|value| few.push(value));
        few
    }
}

impl<T: Copy, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` values, of which there are no more than N, are initialised.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr().cast(), self.len) }
    }
}

impl<T: Copy, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.values.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_put_in() {
        let mut few: Few<u32, 4> = (1..4).collect();
        few.push(9);
        few[0] = 7;
        assert_eq!(*few, [7, 2, 3, 9]);
        few.truncate(2);
        assert_eq!(*few, [7, 2]);
        assert_eq!(*Few::<_, 3>::filled('a', 2), ['a', 'a']);
        assert!(Few::<u8>::new().is_empty());
    }
}
