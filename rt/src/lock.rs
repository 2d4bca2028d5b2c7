// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A lock whose free form is zeroed memory: memory that the kernel wipes in a forked child is
//! unlocked.

use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody sleeps.
const AWAITED: u32 = 2;

/// How often the word is looked at before sleeping.
const SPINS: u32 = 100;

/// The lock's word.
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// Holds the lock until it is dropped.
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    pub(crate) fn lock(&self) -> Held<'_> {
        for _ in 0..SPINS {
            if self.0.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Held(self);
            }
            std::hint::spin_loop();
        }
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word lives as long as the reference; there is no timeout.
            unsafe {
                libc::syscall(libc::SYS_futex, self.0.as_ptr(), op, AWAITED, std::ptr::null::<libc::timespec>());
            }
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0 .0.swap(FREE, Ordering::Release) == AWAITED {
            let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word lives as long as the reference.
            unsafe { libc::syscall(libc::SYS_futex, self.0 .0.as_ptr(), op, 1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counted(Lock, UnsafeCell<u64>);

    // SAFETY: the count is only touched with the lock held.
    unsafe impl Sync for Counted {}

    impl Counted {
        fn add(&self) {
            let _held = self.0.lock();
            // SAFETY: the lock is held.
            unsafe { *self.1.get() += 1 };
        }
    }

    #[test]
    fn one_thread_at_a_time_has_it() {
        let counted = Counted(Lock(AtomicU32::new(FREE)), UnsafeCell::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|_| counted.add()));
            }
        });
        assert_eq!(counted.1.into_inner(), 200_000);
    }
}
