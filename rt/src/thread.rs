// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Threads that start and end without the C library's locks.
//!
//! A thread of the standard library first registers a destructor for its thread-local data, which
//! waits for the loader's lock and for malloc's. A call into vkfd may come from a constructor
//! inside dlopen, with the loader's lock held. If it waits for the start or the end of such a
//! thread, it never returns. These threads are the system's alone (pthread): the C library
//! allocates for them on the thread that starts them, not on the new one.
//!
//! So code on them has no thread-local data with a destructor. It does not ask the standard library
//! for the current thread (`std::thread::current`, `park`, a blocking channel): that would make
//! such data. `cargo xtask stray` looks for such data and for other threads.

use std::ffi::{c_void, CString};
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use vkfd_sabotage::Switch;

/// Bytes of a thread's stack.
const STACK: usize = 2 << 20;

/// A thread. When it is dropped, the thread goes on.
pub struct Thread {
    thread: Option<libc::pthread_t>,
    panicked: Arc<AtomicBool>,
}

struct Start {
    name: CString,
    run: Box<dyn FnOnce() + Send>,
    panicked: Arc<AtomicBool>,
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it for this thread alone.
    let Start { name, run, panicked } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a C string, of which the kernel takes 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    drop(name);
    if vkfd_sabotage::process().has(Switch::LoaderInThreads) {
        // SAFETY: it finds the program itself, which stays loaded.
        unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    }
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        panicked.store(true, Ordering::Release);
    }
    std::ptr::null_mut()
}

/// Starts a thread that runs `run`; the kernel shows 15 bytes of its name.
///
/// # Errors
/// The system's, when there can be no more threads.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let panicked = Arc::new(AtomicBool::new(false));
    let name = CString::new(name).unwrap_or_default();
    let start = Box::into_raw(Box::new(Start { name, run: Box::new(run), panicked: panicked.clone() }));
    let mut thread = 0;
    // SAFETY: the attributes are initialised before they are used and destroyed after; the new
    // thread takes what `start` points to.
    let refused = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK);
        let refused = libc::pthread_create(&raw mut thread, &raw const attributes, begin, start.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        refused
    };
    if refused != 0 {
        // SAFETY: there is no thread that could have taken it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(refused));
    }
    Ok(Thread { thread: Some(thread), panicked })
}

/// Runs `run` on a new thread and waits for its result.
///
/// # Errors
/// As [`spawn`], and when `run` panics.
pub fn elsewhere<R: Send>(name: &str, run: impl FnOnce() -> R + Send) -> io::Result<R> {
    let mut result = None;
    let place = &mut result;
    let run: Box<dyn FnOnce() + Send + '_> = Box::new(move || *place = Some(run()));
    // SAFETY: the thread is joined before anything that `run` borrows ends; nothing in between
    // panics.
    let run = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Box<dyn FnOnce() + Send>>(run) };
    spawn(name, run)?.join();
    result.ok_or_else(|| io::Error::other("the thread has panicked"))
}

impl Thread {
    /// Waits for its end. Whether it panicked.
    pub fn join(mut self) -> bool {
        if let Some(thread) = self.thread.take() {
            // SAFETY: neither joined nor detached before: this takes it.
            unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        }
        self.panicked.load(Ordering::Acquire)
    }

    /// Whether the caller is this thread.
    pub fn is_current(&self) -> bool {
        // SAFETY: no preconditions.
        self.thread.is_some_and(|thread| unsafe { libc::pthread_equal(thread, libc::pthread_self()) != 0 })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // SAFETY: as in `join`.
            unsafe { libc::pthread_detach(thread) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_thread_has_its_name_and_is_waited_for() {
        let said = Arc::new(Mutex::new(String::new()));
        let to = said.clone();
        let thread = spawn("vkfd-of-a-long-name", move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            *to.lock().unwrap() = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        });
        let thread = thread.unwrap();
        assert!(!thread.is_current());
        assert!(!thread.join());
        assert_eq!(said.lock().unwrap().as_str(), "vkfd-of-a-long-\n");
    }

    #[test]
    fn what_a_thread_borrows_outlives_it() {
        let mut numbers = vec![1, 2, 3];
        let sum = elsewhere("vkfd-sum", || {
            numbers.push(4);
            numbers.iter().sum::<i32>()
        });
        assert_eq!((sum.unwrap(), numbers.len()), (10, 4));
        assert!(elsewhere("vkfd-panic", || panic!("as the test wants it")).is_err());
    }

    #[test]
    fn a_panic_is_told_of() {
        assert!(spawn("vkfd-panic", || panic!("as the test wants it")).unwrap().join());
    }
}
