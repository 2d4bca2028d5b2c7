// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Small numbers for objects: a table whose lowest free number is handed out next, in O(1).
//!
//! An entry is reserved before its object is built and filled afterwards, so that building needs no
//! lock. Guarded by its owner's lock.

use crate::base::errno::{Errno, Result};
use crate::os::Vec;

enum Slot<T> {
    Free(u32),
    Reserved,
    Used(T),
}

const END: u32 = u32::MAX;

/// The table.
pub struct Handles<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    used: usize,
}

impl<T> Handles<T> {
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: END, used: 0 }
    }

    /// Takes a number.
    pub fn reserve(&mut self) -> Result<u32> {
        if self.free != END {
            let number = self.free;
            // What the list of free numbers names is free.
            let slot = self.slots.get_mut(number as usize).ok_or(Errno::ENOMEM)?;
            if let Slot::Free(next) = *slot {
                self.free = next;
            }
            *slot = Slot::Reserved;
            return Ok(number);
        }
        let number = u32::try_from(self.slots.len()).ok().filter(|n| *n != END).ok_or(Errno::ENOMEM)?;
        self.slots.push(Slot::Reserved)?;
        Ok(number)
    }

    /// Puts the object behind a reserved number.
    pub fn fill(&mut self, number: u32, object: T) {
        if let Some(slot @ Slot::Reserved) = self.slots.get_mut(number as usize) {
            *slot = Slot::Used(object);
            self.used = self.used.saturating_add(1);
        }
    }

    /// The object behind a number.
    pub fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(number as usize) {
            Some(Slot::Used(object)) => Some(object),
            _ => None,
        }
    }

    /// The object behind a number, to change it.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(number as usize) {
            Some(Slot::Used(object)) => Some(object),
            _ => None,
        }
    }

    /// Gives a number back, with its object if it had one.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slots.get_mut(number as usize)?;
        if matches!(slot, Slot::Free(_)) {
            return None;
        }
        let was = core::mem::replace(slot, Slot::Free(self.free));
        self.free = number;
        match was {
            Slot::Used(object) => {
                self.used = self.used.saturating_sub(1);
                Some(object)
            }
            _ => None,
        }
    }

    /// Objects and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// Objects and their numbers, from a number on; any number, also where there never was one.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.slots.get(first as usize..).unwrap_or(&[]);
        // Not `(first..)`, which counts on behind the last number before it finds that there is no
        // object.
        slots.iter().enumerate().filter_map(move |(offset, slot)| match slot {
            Slot::Used(object) => Some((first.checked_add(u32::try_from(offset).ok()?)?, object)),
            _ => None,
        })
    }

    /// Objects, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Used(object) => Some(object),
            _ => None,
        })
    }

    /// How many objects.
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.slots.memory()
    }
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_and_stale_ones_refused() {
        let mut h = Handles::new();
        let (a, b) = (h.reserve().unwrap(), h.reserve().unwrap());
        h.fill(a, 'a');
        assert_eq!((h.get(a), h.get(b), h.len()), (Some(&'a'), None, 1));
        assert_eq!(h.remove(a), Some('a'));
        assert_eq!((h.remove(a), h.get(a)), (None, None));
        assert_eq!(h.remove(b), None);
        assert_eq!(h.reserve().unwrap(), b);
        assert_eq!(h.reserve().unwrap(), a);
        h.fill(99, 'x');
        assert!(h.is_empty());
    }

    #[test]
    fn objects_are_found_from_any_number_on() {
        let mut h = Handles::new();
        for object in 0..3 {
            let number = h.reserve().unwrap();
            h.fill(number, object);
        }
        h.remove(1);
        let from = |first| h.iter_from(first).map(|(number, object)| (number, *object)).last();
        assert_eq!((from(0), from(1), from(2)), (Some((2, 2)), Some((2, 2)), Some((2, 2))));
        assert_eq!((from(3), from(u32::MAX - 1), from(u32::MAX)), (None, None, None));
    }
}
