// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sections that the event reader waits for: a GPU's access in flight, and the reader's own rounds.
//!
//! So is the time for which a thread holds one of the driver's locks that the reader also takes.
//!
//! A thread in a section takes none of the C library's locks: it neither allocates nor frees nor
//! prints. Debug builds check that: [`Checked`] around the global allocator and [`forbid`] where
//! something is printed end the process with a message and a backtrace. In release builds nothing
//! is left of it.
//!
//! Where a program of ours has [`crate::heap::Heap`], allocating in a section would do no harm. It
//! is checked all the same, because the client library lives in programs with allocators of their
//! own.

use crate::word::Word;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// In how many sections this thread is, one in the other, and the length of the first one's name.
static NUMBERS: Word = Word::new();
/// The name's address.
static NAME: Word = Word::new();
/// Above the depth.
const LENGTH: u32 = 32;

fn get() -> (u32, &'static str) {
    let (numbers, name) = (NUMBERS.get() as u64, NAME.get());
    let length = usize::try_from(numbers >> LENGTH).unwrap_or(0);
    if name == 0 {
        return (0, "");
    }
    let name = ptr::with_exposed_provenance(name);
    // SAFETY: what `set` took apart.
    let name = unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(name, length)) };
    (u32::try_from(numbers & u64::from(u32::MAX)).unwrap_or(0), name)
}

fn set(depth: u32, name: &'static str) {
    let numbers = u64::from(depth) | (name.len() as u64) << LENGTH;
    // Both have a value, or none.
    if NAME.set(name.as_ptr().expose_provenance()) {
        NUMBERS.set(usize::try_from(numbers).unwrap_or(0));
    }
}

/// This thread enters a section, which `name` is the name of.
#[inline]
pub fn enter(name: &'static str) {
    if cfg!(debug_assertions) {
        let (depth, outer) = get();
        set(depth + 1, if depth == 0 { name } else { outer });
    }
}

/// This thread leaves the section that it entered last.
#[inline]
pub fn leave() {
    if cfg!(debug_assertions) {
        let (depth, name) = get();
        set(depth.saturating_sub(1), name);
    }
}

/// The section that this thread is in. Debug builds only.
#[inline]
pub fn inside() -> Option<&'static str> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let (depth, name) = get();
    (depth != 0).then_some(name)
}

/// Ends the process if this thread is in a section: `what` may not be done there.
#[inline]
pub fn forbid(what: &str) {
    if let Some(name) = inside() {
        found(what, name);
    }
}

#[cold]
#[inline(never)]
fn found(what: &str, name: &'static str) {
    // A panic is a fault of its own, and its message has to be made.
    if std::thread::panicking() {
        return;
    }
    // The backtrace allocates.
    set(0, name);
    let backtrace = std::backtrace::Backtrace::force_capture();
    let said = format!("vkfd: {what} inside {name}, which the event reader waits for\n{backtrace}\n");
    // Not by the standard library, from which a test's harness keeps what is written.
    // SAFETY: writes what the string has.
    unsafe { libc::write(libc::STDERR_FILENO, said.as_ptr().cast(), said.len()) };
    std::process::abort();
}

/// A global allocator that may not be called in a section.
pub struct Checked<A>(pub A);

// SAFETY: all is passed on.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Checked<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        forbid("an allocation");
        // SAFETY: forwarded to the caller.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        forbid("an allocation");
        // SAFETY: forwarded to the caller.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        forbid("freeing memory");
        // SAFETY: forwarded to the caller.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        forbid("an allocation");
        // SAFETY: forwarded to the caller.
        unsafe { self.0.realloc(at, layout, bytes) }
    }
}
