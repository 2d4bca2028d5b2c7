// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sleeping on a word of this process until somebody changes it: no lock, and nothing to allocate.
//! On other systems than Linux, a waiting thread sleeps for a moment and looks again.

use std::sync::atomic::AtomicU32;

/// Waits until `word` is not `value` any more, or somebody wakes. May return for no reason.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    #[cfg(target_os = "linux")]
    // SAFETY: the word lives as long as the reference; there is no timeout.
    unsafe {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, std::ptr::null::<libc::timespec>());
    }
    #[cfg(not(target_os = "linux"))]
    if word.load(std::sync::atomic::Ordering::SeqCst) == value {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// Wakes all threads that wait for `word`.
pub(crate) fn wake(word: &AtomicU32) {
    #[cfg(target_os = "linux")]
    // SAFETY: the word lives as long as the reference.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = word;
}
