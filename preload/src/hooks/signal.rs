// SPDX-License-Identifier: GPL-2.0 OR MIT
//! sigaction and signal for SIGSEGV and SIGBUS: once the GPU has a handler for its accesses to
//! memory that may go, that handler stays first. The program's handler gets the program's own
//! faults.

use crate::real;
use libc::c_int;
use vkfd_host::hook::DESCRIPTOR;
use vkfd_host::hooks;

/// A call with no signal's number may ask whether it gets here.
fn note_question(signal: c_int) {
    if signal < 0 {
        vkfd_host::interpose::note_hook();
    }
}

hooks! {
    HOOKS;

    /// sigaction(2).
    [DESCRIPTOR] fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        note_question(signal);
        // SAFETY: null or valid, promised by the caller.
        unsafe {
            match vkfd_gpu::raw::chain(signal, new.as_ref().copied()) {
                Some(before) => {
                    if !old.is_null() {
                        old.write(before);
                    }
                    0
                }
                None => real::sigaction()(signal, new, old),
            }
        }
    }

    /// signal(2).
    [DESCRIPTOR] fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        note_question(signal);
        // SAFETY: zero is a valid structure: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_RESTART);
        match vkfd_gpu::raw::chain(signal, Some(action)) {
            Some(before) => before.sa_sigaction,
            // SAFETY: forwarded to the caller.
            None => unsafe { real::signal()(signal, handler) },
        }
    }
}
