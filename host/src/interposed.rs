// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether libc's mapping calls are interposed in this program: whether a call gets to the hooks of
//! [`crate::interpose`].

#[cfg(feature = "interpose")]
mod reached {
    use libc::{c_int, c_void, size_t};
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        /// Set by the hook that [`interposed`] calls.
        static REACHED: Cell<bool> = const { Cell::new(false) };
    }

    /// A hook was called.
    pub(crate) fn note_hook() {
        REACHED.set(true);
    }

    /// Whether the mapping calls of this process go through the hooks.
    pub fn interposed() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| {
            REACHED.set(false);
            // SAFETY: a constant C string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"munmap".as_ptr()) };
            type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
            let call: Munmap = if found.is_null() {
                libc::munmap
            } else {
                // SAFETY: `munmap` has this type, in any library that defines it.
                unsafe { std::mem::transmute::<*mut c_void, Munmap>(found) }
            };
            // SAFETY: an empty range is refused with EINVAL.
            unsafe { call(std::ptr::null_mut(), 0) };
            REACHED.get()
        })
    }
}

#[cfg(feature = "interpose")]
pub use reached::interposed;
#[cfg(feature = "interpose")]
pub(crate) use reached::note_hook;

/// Whether the mapping calls of this process go through the hooks.
#[cfg(not(feature = "interpose"))]
pub const fn interposed() -> bool {
    false
}
