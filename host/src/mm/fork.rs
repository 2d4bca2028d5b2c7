// SPDX-License-Identifier: GPL-2.0 OR MIT
//! fork: the kernel write-protects everything for copy-on-write, so every watch is invalidated
//! around it.
//!
//! Through `pthread_atfork`, where userfaultfd does not tell (its fork event needs CAP_SYS_PTRACE).
//! Raw `clone` calls go unseen. Nothing of the parent's host runs in the child: its threads are not
//! there, and whatever lock they held stays locked. [`Mm::current`] is the child's own
//! ([`crate::per_process`]), from when it makes a machine.

use super::{Invalidation, Mm};
use crate::uffd::everything;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Once;

thread_local! {
    /// The invalidation around this thread's fork. Without a destructor, because to register one
    /// takes the loader's lock and malloc's.
    static AROUND: ManuallyDrop<RefCell<Option<Invalidation<'static>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
}

extern "C" fn prepare() {
    if let Some(mm) = Mm::current() {
        if mm.is_watched(everything()) {
            let around = mm.invalidation(everything());
            AROUND.with(|place| *place.borrow_mut() = Some(around));
        }
    }
}

extern "C" fn parent() {
    AROUND.with(|place| *place.borrow_mut() = None);
}

extern "C" fn child() {
    // Forgotten, not dropped: ending it would take a lock.
    AROUND.with(|place| std::mem::forget(place.borrow_mut().take()));
}

/// Installs the handlers, once.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are functions for the life of the process and call nothing that fork
        // forbids.
        let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if refused != 0 {
            tracing::warn!(errno = refused, "forks will not be seen");
        }
    });
}
