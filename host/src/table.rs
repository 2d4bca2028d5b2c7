// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A large array of atomic words that costs memory only where it is used.
//!
//! One private anonymous `MAP_NORESERVE` mapping: untouched pages read as zero and are not there.
//! Nothing of it goes through malloc, so it may be used where malloc must not be called (see
//! [`crate::mm`]).

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

mod sealed {
    /// # Safety
    /// All bytes zero is a value, and shared access is sound from all threads.
    pub unsafe trait Word: Sync {}
}

// SAFETY: an atomic integer; zero is a value.
unsafe impl sealed::Word for AtomicU32 {}
// SAFETY: an atomic integer; zero is a value.
unsafe impl sealed::Word for AtomicU64 {}

/// The array.
pub(crate) struct Table<T: sealed::Word> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: a `Table` owns its mapping and gives out shared references to `Sync` words only.
unsafe impl<T: sealed::Word> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: sealed::Word> Sync for Table<T> {}

impl<T: sealed::Word> Table<T> {
    /// `len` zero words.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let at = crate::sys::map_anonymous(bytes, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        // Huge pages would make one touched word cost 2 MiB. Only advice: failing changes nothing.
        let _ = crate::sys::madvise(at.as_ptr() as u64, bytes as u64, libc::MADV_NOHUGEPAGE);
        Ok(Self { at: at.cast(), len })
    }
}

impl<T: sealed::Word> Deref for Table<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has `len` words, zero is a value of each, it lives as long as `self`,
        // and nothing writes to it but through these atomics.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: sealed::Word> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference to it outlives `self`.
        unsafe { crate::sys::unmap(self.at.as_ptr() as u64, (self.len * size_of::<T>()) as u64) };
    }
}
