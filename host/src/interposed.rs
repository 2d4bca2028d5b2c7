// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether libc's mapping calls are interposed in this program: whether a call gets to the hooks of
//! [`crate::interpose`]. A hook notes that it was called, in a variable of its thread; a test makes
//! a call that changes nothing and looks.

#[cfg(feature = "interpose")]
mod reached {
    use libc::{c_int, c_void, size_t};
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        /// Set by each hook.
        static REACHED: Cell<bool> = const { Cell::new(false) };
    }

    /// A hook was called.
    #[inline]
    pub fn note_hook() {
        REACHED.set(true);
    }

    /// Whether `call` gets to a hook.
    pub fn reaches(call: impl FnOnce()) -> bool {
        REACHED.set(false);
        call();
        REACHED.get()
    }

    /// Whether the mapping calls of this process go through the hooks.
    pub fn interposed() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        *ANSWER.get_or_init(|| {
            // SAFETY: a constant C string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"munmap".as_ptr()) };
            type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
            let call: Munmap = if found.is_null() {
                libc::munmap
            } else {
                // SAFETY: `munmap` has this type, in any library that defines it.
                unsafe { std::mem::transmute::<*mut c_void, Munmap>(found) }
            };
            reaches(|| {
                // SAFETY: an empty range is refused with EINVAL.
                unsafe { call(std::ptr::null_mut(), 0) };
            })
        })
    }
}

#[cfg(feature = "interpose")]
pub use reached::{interposed, note_hook, reaches};

/// Whether the mapping calls of this process go through the hooks.
#[cfg(not(feature = "interpose"))]
pub const fn interposed() -> bool {
    false
}
