// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which descriptors are devices: a pointer for each descriptor number, null for most. Looking one
//! up is an atomic load.
//!
//! Open files are never freed (a few words each). If a descriptor is closed while another thread
//! uses it, that thread has a closed file, not a dangling pointer.
//!
//! After a fork the child has a copy of the table, in which it may forget descriptors as it likes.
//! A child made by vfork has its parent's table and must not touch it ([`Identity::owns_memory`]).

use crate::device::OpenFile;
use libc::c_int;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use vkfd_host::per_process::Identity;

/// Descriptors at or above are never devices'.
pub(crate) const DESCRIPTORS: usize = 1 << 16;

// Zero pages of the library's data until they are written to.
static TABLE: [AtomicPtr<OpenFile>; DESCRIPTORS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; DESCRIPTORS];
/// No descriptor from here on was ever a device's.
static END: AtomicUsize = AtomicUsize::new(0);

fn slot(fd: c_int) -> Option<&'static AtomicPtr<OpenFile>> {
    let Ok(number) = usize::try_from(fd) else {
        // A call that asks whether it gets here has such a one.
        vkfd_host::interpose::note_hook();
        return None;
    };
    TABLE.get(number)
}

/// The device that a descriptor is of.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<&'static OpenFile> {
    let file = slot(fd)?.load(Ordering::Acquire);
    // SAFETY: null, or a file, which is never freed.
    unsafe { file.as_ref() }
}

/// A descriptor is a device's from now on; the file counts it. EMFILE for a number beyond the
/// table.
pub(crate) fn set(fd: c_int, file: &'static OpenFile) -> Result<(), c_int> {
    let number = usize::try_from(fd).map_err(|_| libc::EBADF)?;
    let slot = TABLE.get(number).ok_or(libc::EMFILE)?;
    END.fetch_max(number + 1, Ordering::AcqRel);
    file.add_descriptor();
    let before = slot.swap(std::ptr::from_ref(file).cast_mut(), Ordering::AcqRel);
    // SAFETY: as in `get`.
    if let Some(before) = unsafe { before.as_ref() } {
        // Closed behind our back, by a raw system call.
        if before.is_ours() {
            before.remove_descriptor();
        }
    }
    Ok(())
}

/// A descriptor is about to be closed. To be called before, as its number may be another file's
/// right after.
pub(crate) fn forget(fd: c_int) {
    let Some(file) = get(fd) else { return };
    if file.is_ours() {
        if let Some(slot) = slot(fd) {
            if !slot.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null() {
                file.remove_descriptor();
            }
        }
    } else if Identity::current().owns_memory() {
        if let Some(slot) = slot(fd) {
            slot.store(std::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// All of a range are about to be closed.
pub(crate) fn forget_range(first: u32, last: u32) {
    let end = END.load(Ordering::Acquire).min((last as usize).saturating_add(1));
    for fd in first as usize..end {
        forget(c_int::try_from(fd).unwrap_or(-1));
    }
}

/// `fd` has become another descriptor of `of`'s file.
pub(crate) fn duplicated(of: &'static OpenFile, fd: c_int) {
    // Beyond the table it is an ordinary file, of the same memory.
    if of.is_ours() || Identity::current().owns_memory() {
        let _ = set(fd, of);
    }
}
