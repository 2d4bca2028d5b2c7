// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The owner of each slot of the response memory, and with it the ring of the same number.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::protocol::forward::SLOTS;

/// The first that waits may have; the others are for calls that the host does at once.
const FOR_WAITS: u32 = 16;
const _: () = assert!(SLOTS == 64);

/// All of them: a bit for each that is taken.
#[derive(Default)]
pub struct Slots {
    taken: Mutex<u64>,
    given: Condvar,
}

/// One; given back when dropped.
pub struct Slot<'a> {
    slots: &'a Slots,
    number: u32,
    leave: bool,
}

impl Slot<'_> {
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Never gives it back: somebody may still write there. One is always left for the next
    /// caller.
    pub fn leave(mut self) {
        self.leave = self.number % FOR_WAITS != 0;
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !self.leave {
            *self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.number);
            self.slots.given.notify_all();
        }
    }
}

impl Slots {
    fn first_free(&self, taken: &mut u64, from: u32, to: u32) -> Option<Slot<'_>> {
        let number = (from..to).find(|number| *taken >> number & 1 == 0)?;
        *taken |= 1 << number;
        Some(Slot { slots: self, number, leave: false })
    }

    /// One for a call that does not wait. They come back soon.
    pub fn take(&self) -> Slot<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(slot) = self.first_free(&mut taken, 0, FOR_WAITS) {
                return slot;
            }
            taken = self.given.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One for a wait, if there is one.
    pub fn take_for_wait(&self) -> Option<Slot<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.first_free(&mut taken, FOR_WAITS, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_leave_slots_for_calls() {
        let slots = Slots::default();
        let waits: Vec<_> = std::iter::from_fn(|| slots.take_for_wait()).collect();
        assert_eq!(waits.len(), 48);
        let call = slots.take();
        assert_eq!(call.number(), 0);
        drop(call);
        slots.take().leave();
        let one = slots.take();
        assert_eq!(one.number(), 0, "the last is always there");
        slots.take().leave();
        assert_eq!(slots.take().number(), 2);
        drop(waits);
        assert!(slots.take_for_wait().is_some());
    }
}
