// SPDX-License-Identifier: GPL-2.0 OR MIT
//! State of one process, although its memory may be copied. fork gives the child a copy of every
//! static, without the threads, the registrations and the locks' holders behind it. [`PerProcess`]
//! is a cell that a forked child finds empty.
//!
//! A process is known by its number and by how many forks its memory has come through
//! ([`Identity`]): in another PID namespace a child may have its parent's number. Fork handlers
//! count, so a child that a raw `clone` made has its parent's count and another number. Such a
//! child, and one of vfork, which shares its parent's memory, makes nothing of its own: what it
//! stored would be its parent's.
//!
//! No locks: what a thread of the parent was in the middle of is left behind with its cell.

use crate::sys;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

/// The process that this memory is of; 0 until somebody asked.
static OWNER: AtomicI32 = AtomicI32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    OWNER.store(sys::pid(), Ordering::SeqCst);
}

/// Notes whose memory this is, and every fork from now on. To be called early, by a process that
/// nobody else's memory is of.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        OWNER.store(sys::pid(), Ordering::SeqCst);
        // SAFETY: the handler only stores, and asks for its process.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            tracing::warn!(errno = refused, "forked children will have no machines");
        }
    });
}

/// A process, as long as it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pid: i32,
    forks: u32,
}

impl Identity {
    /// The caller's. A system call.
    pub fn current() -> Self {
        Self { pid: sys::pid(), forks: FORKS.load(Ordering::SeqCst) }
    }

    /// Whether it is the caller's.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Nobody's.
    pub const NONE: Self = Self { pid: 0, forks: 0 };

    /// Whether this memory is this process's, and not a parent's.
    pub fn owns_memory(self) -> bool {
        self.pid == OWNER.load(Ordering::SeqCst)
    }
}

struct Made<T> {
    by: Identity,
    value: OnceLock<T>,
}

/// A value for each process. Never freed.
pub struct PerProcess<T: Send + Sync + 'static>(AtomicPtr<Made<T>>);

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn made(&self) -> Option<&'static Made<T>> {
        // SAFETY: null, or a leaked box. In a forked child it is a copy of its parent, of which
        // only `by` is looked at.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// This process's, if it has one.
    pub fn get(&self) -> Option<&'static T> {
        self.made().filter(|made| made.by.is_current())?.value.get()
    }

    /// This process's, made if need be. `None` in a process that uses another's memory.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> Option<&'static T> {
        watch_forks();
        let by = Identity::current();
        loop {
            let before = self.0.load(Ordering::Acquire);
            match self.made() {
                Some(made) if made.by == by => return Some(made.value.get_or_init(make)),
                _ if !by.owns_memory() => return None,
                _ => {}
            }
            let new = Box::into_raw(Box::new(Made { by, value: OnceLock::new() }));
            if self.0.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl<T: Send + Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CELL: PerProcess<AtomicU32> = PerProcess::new();

    fn status_of(child: libc::pid_t) -> i32 {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_forked_child_finds_the_cell_empty_and_its_parents_is_untouched() {
        let value = CELL.get_or_init(|| AtomicU32::new(1)).unwrap();
        // SAFETY: the child only looks at the cell, allocates (the C library's fork sees to that),
        // and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let empty = CELL.get().is_none();
            let own = CELL.get_or_init(|| AtomicU32::new(2)).is_some_and(|own| own.load(Ordering::SeqCst) == 2);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(empty) + 2 * i32::from(own)) };
        }
        assert_eq!(status_of(child), 3);
        assert_eq!(value.load(Ordering::SeqCst), 1);
        assert!(ptr::eq(CELL.get().unwrap(), value));
    }

    #[test]
    fn a_child_that_no_handler_saw_makes_nothing() {
        static OTHER: PerProcess<u32> = PerProcess::new();
        OTHER.get_or_init(|| 1);
        // SAFETY: as fork, without the C library: the child makes no call that allocates before it
        // ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let nothing = OTHER.get().is_none() && OTHER.get_or_init(|| 2).is_none();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(nothing)) };
        }
        assert_eq!(status_of(i32::try_from(child).unwrap()), 1);
        assert_eq!(OTHER.get(), Some(&1));
    }
}
