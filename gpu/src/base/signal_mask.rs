// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Signals that a GPU's threads leave to the program's.

/// Blocks the signals that a process sends or gets from outside, so that a thread spawned meanwhile
/// never runs the program's handlers for them. Restores the mask when dropped.
pub(crate) struct SignalMask(libc::sigset_t);

impl SignalMask {
    pub(crate) fn block_asynchronous() -> SignalMask {
        // SAFETY: plain calls on local structures.
        unsafe {
            let mut block = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut block);
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
                libc::sigdelset(&mut block, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &block, &mut old);
            SignalMask(old)
        }
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        // SAFETY: restores a mask that the kernel filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
