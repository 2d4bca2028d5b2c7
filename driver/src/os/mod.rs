// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver needs of its surroundings, without generics: one implementation per host, picked
//! here and nowhere else.
//!
//! | item | meaning |
//! | --- | --- |
//! | [`Vec`] | growable array whose growth can fail |
//! | [`Arc`], [`arc`] | shared ownership; making one can fail. There is no weak form, because the kernel has none |
//! | [`Mutex`], [`Condvar`] | sleeping locks with a rank |
//! | [`Work`] | a function run later on a thread of the host, at most once at a time |
//! | [`now`], [`sleep`] | a monotonic clock |
//! | [`thread_id`], [`killed`] | the calling thread, and whether it is being killed |
//! | [`interrupted`] | EINTR if so, and a breath for others: in every loop whose length a client chooses |
//! | [`random`] | numbers that clients cannot foresee, where clients are strangers |
//! | [`failpoint`] | where a test makes an allocation or a host call fail |
//! | [`warn`] | a line in the log |

#[cfg(vkfd_kernel)]
mod kernel;
#[cfg(not(vkfd_kernel))]
mod user;
#[cfg(vkfd_kernel)]
pub use self::kernel::*;
#[cfg(not(vkfd_kernel))]
pub use self::user::*;

/// What the user host's `os` is made of: the standard library's threads and locks, or (built with
/// `--cfg vkfd_shuttle`) shuttle's, under which a test explores the order in which threads run.
/// There time does not pass: whatever is scheduled is due, and a wait ends only when it is woken.
#[cfg(not(any(vkfd_kernel, vkfd_shuttle)))]
mod prim {
    extern crate std;
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use std::thread;
    pub(super) use std::thread_local;
    pub(super) use std::time::Instant;
}
#[cfg(all(vkfd_shuttle, not(vkfd_kernel)))]
mod prim {
    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use shuttle::thread;
    pub(super) use shuttle::thread_local;

    /// A clock that stands still.
    #[derive(Clone, Copy, PartialEq, PartialOrd)]
    pub(super) struct Instant;

    impl Instant {
        pub(super) fn now() -> Self {
            Self
        }
        pub(super) fn elapsed(&self) -> core::time::Duration {
            core::time::Duration::ZERO
        }
        pub(super) fn saturating_duration_since(&self, _: Self) -> core::time::Duration {
            core::time::Duration::ZERO
        }
    }

    impl core::ops::Add<core::time::Duration> for Instant {
        type Output = Self;
        fn add(self, _: core::time::Duration) -> Self {
            self
        }
    }
}
