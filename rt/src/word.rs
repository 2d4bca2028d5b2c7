// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A word of each thread, which a thread finds without taking a lock.
//!
//! The language finds a thread-local variable of a library by `__tls_get_addr`. When other
//! libraries were loaded since the thread's last call, that may reallocate the thread's table of
//! such variables, under malloc's lock. A thread of the program that trims its heap holds this
//! lock, and waits for the event reader. So what the reader does, and what it waits for, has no
//! such variables.
//!
//! Mechanism: a key of POSIX threads. The C library keeps the values of the first 32 keys in the
//! thread itself, and reads and writes them without a lock.
//!
//! Limits: a word has no value where the program made 32 keys before the first use.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Values of other keys are allocated.
const IN_THREAD: u32 = 32;

/// A word of each thread; 0 at first.
pub struct Word(AtomicU32);

impl Word {
    /// Makes no key yet.
    #[must_use]
    pub const fn new() -> Word {
        Word(AtomicU32::new(0))
    }

    /// This thread's value.
    pub fn get(&self) -> usize {
        // SAFETY: the key is this word's.
        self.key().map_or(0, |key| unsafe { libc::pthread_getspecific(key) }.addr())
    }

    /// Whether there is room for this thread's value, which is `value` then.
    pub fn set(&self, value: usize) -> bool {
        // SAFETY: as above. The thread itself has the room.
        self.key().is_some_and(|key| unsafe { libc::pthread_setspecific(key, ptr::without_provenance(value)) } == 0)
    }

    fn key(&self) -> Option<libc::pthread_key_t> {
        let known = match self.0.load(Ordering::Acquire) {
            0 => self.make(),
            known => known,
        };
        known.checked_sub(1).filter(|key| *key < IN_THREAD)
    }

    /// The key, by one more; 0 if there is none any more.
    #[cold]
    fn make(&self) -> u32 {
        let mut key = 0;
        // SAFETY: the key is written. Values have no destructor.
        if unsafe { libc::pthread_key_create(&raw mut key, None) } != 0 {
            return 0;
        }
        match self.0.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => key + 1,
            Err(known) => {
                // SAFETY: no other thread has seen it.
                unsafe { libc::pthread_key_delete(key) };
                known
            }
        }
    }
}

impl Default for Word {
    fn default() -> Self {
        Word::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_word_of_its_own() {
        static WORD: Word = Word::new();
        assert_eq!(WORD.get(), 0);
        assert!(WORD.set(7));
        let others = std::thread::spawn(|| {
            let before = WORD.get();
            WORD.set(8);
            (before, WORD.get())
        });
        assert_eq!(others.join().unwrap(), (0, 8));
        assert_eq!(WORD.get(), 7);
    }
}
