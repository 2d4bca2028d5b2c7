// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host-visible window: all host memory that the guest maps.
//!
//! Mechanism: one file, mapped here as a whole and by the VMM as a whole, once. Its size is sealed,
//! so that no VMM and no program can cut it short under the accesses of this process. The guest's
//! kernel chooses where in the window a resource is; [`Window::bind`] gives that part to the
//! resource and nothing is mapped anywhere. (A mapping for each resource is a memory region for
//! each to vhost, of which there are few, and moves the guest's RAM here every time.)
//!
//! So memory that the guest maps has its place from MAP_BLOB on, not from its allocation. A part
//! that is given back is emptied: what comes there next finds zeroes.
//!
//! Lock: `bound` guards which parts are taken; a leaf.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use vkfd_host::{Grant, Grants};
use vkfd_raw::memory_file;

use vkfd_remote::protocol::PAGE;

/// The window.
#[derive(Debug)]
pub struct Window {
    file: File,
    at: NonNull<c_void>,
    bytes: u64,
    grant: Grant,
    bound: Mutex<BTreeMap<u64, u64>>,
}

// SAFETY: the mapping belongs to the window, and all accesses to it are atomic or raw copies.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// Why a part cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not whole pages within the window.
    Outside,
    /// Another resource has some of it.
    Taken,
}

impl Window {
    /// A window of `bytes` (whole pages), which is granted to the guest's processes.
    ///
    /// # Errors
    /// The system's.
    pub fn new(bytes: u64, grants: &Arc<Grants>) -> io::Result<Arc<Self>> {
        let file = memory_file::sealed(c"vkfd-window", bytes)?;
        let at = map(&file, bytes)?;
        let grant = grants.grant(at.as_ptr().expose_provenance() as u64, bytes);
        Ok(Arc::new(Self { file, at, bytes, grant, bound: Mutex::default() }))
    }

    /// The file that the VMM maps.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a part.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn bind(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Place, Refused> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        let Some(end) = end.filter(|_| bytes > 0 && offset % PAGE == 0 && bytes % PAGE == 0) else {
            return Err(Refused::Outside);
        };
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let before = bound.range(..end).next_back();
        if before.is_some_and(|(at, bytes)| at + bytes > offset) {
            return Err(Refused::Taken);
        }
        bound.insert(offset, bytes);
        Ok(Place { window: self.clone(), offset, bytes })
    }

    /// How many parts are taken.
    pub fn places(&self) -> usize {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.grant.end();
        // SAFETY: the mapping is the window's own and no place is left.
        unsafe { libc::munmap(self.at.as_ptr(), size(self.bytes)) };
    }
}

/// A part of the window. Emptied and given back when dropped.
#[derive(Debug)]
pub struct Place {
    window: Arc<Window>,
    offset: u64,
    bytes: u64,
}

impl Place {
    /// Its first address here.
    pub fn start(&self) -> NonNull<c_void> {
        // SAFETY: `bind` checked that the offset is inside of the mapping.
        unsafe { self.window.at.byte_add(size(self.offset)) }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A 64-bit word of it, which the guest may access at the same time. `None` past its end or
    /// between two words.
    pub fn word(&self, at: u64) -> Option<&AtomicU64> {
        let inside = at % 8 == 0 && at.checked_add(8).is_some_and(|end| end <= self.bytes);
        // SAFETY: inside of the place, which is mapped as long as `self`, aligned, and accessed
        // here by atomic operations or copies only.
        inside.then(|| unsafe { AtomicU64::from_ptr(self.start().byte_add(size(at)).cast().as_ptr()) })
    }

    /// A 32-bit word; see [`Place::word`].
    pub fn half(&self, at: u64) -> Option<&AtomicU32> {
        let inside = at % 4 == 0 && at.checked_add(4).is_some_and(|end| end <= self.bytes);
        // SAFETY: as in `word`.
        inside.then(|| unsafe { AtomicU32::from_ptr(self.start().byte_add(size(at)).cast().as_ptr()) })
    }

    /// Copies bytes in; nothing past the end.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let room = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(0).min(bytes.len());
        if room > 0 {
            // SAFETY: `room` bytes from `at` on are inside of the place, and no reference to its
            // memory exists.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().byte_add(size(at)).cast().as_ptr(), room);
            };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (Ok(offset), Ok(bytes)) = (i64::try_from(self.offset), i64::try_from(self.bytes)) else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers; the emptied part belongs to this place alone, and its user has gone.
        if unsafe { libc::fallocate(self.window.file.as_raw_fd(), mode, offset, bytes) } != 0 {
            tracing::error!("the window cannot be emptied at {offset:#x}: {}", io::Error::last_os_error());
            // It stays taken: nobody may see what is in it.
            return;
        }
        self.window.bound.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.offset);
    }
}

/// Maps all of `file`, shared.
pub(super) fn map(file: &File, bytes: u64) -> io::Result<NonNull<c_void>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size(bytes),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    match NonNull::new(at) {
        Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(at),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A size that is an address's, on a 64-bit system.
pub(super) fn size(bytes: u64) -> usize {
    const { assert!(size_of::<usize>() == 8) };
    #[allow(clippy::cast_possible_truncation)]
    let size = bytes as usize;
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn parts_do_not_overlap_and_come_back_empty() {
        let window = Window::new(16 * PAGE, &Arc::default()).unwrap();
        let place = window.bind(4 * PAGE, 4 * PAGE).unwrap();
        place.word(8).unwrap().store(7, Ordering::Relaxed);
        for (offset, bytes) in [(3, 2), (4, 4), (5, 1), (7, 2), (0, 16)] {
            assert_eq!(window.bind(offset * PAGE, bytes * PAGE).unwrap_err(), Refused::Taken, "{offset} {bytes}");
        }
        let beside = [window.bind(3 * PAGE, PAGE).unwrap(), window.bind(8 * PAGE, PAGE).unwrap()];
        drop(place);
        let place = window.bind(4 * PAGE, PAGE).unwrap();
        assert_eq!(place.word(8).unwrap().load(Ordering::Relaxed), 0);
        assert!(place.word(PAGE).is_none() && place.word(4).is_none() && place.half(PAGE - 4).is_some());
        place.write(PAGE - 2, &[1, 2, 3]);
        assert_eq!(beside[1].half(0).unwrap().load(Ordering::Relaxed), 0);
        drop((place, beside));
        assert_eq!(window.places(), 0);
    }

    #[test]
    fn nothing_outside_is_given() {
        let window = Window::new(16 * PAGE, &Arc::default()).unwrap();
        for (offset, bytes) in
            [(16 * PAGE, PAGE), (15 * PAGE, 2 * PAGE), (0, 0), (1, PAGE), (0, 1), (u64::MAX - 4095, PAGE)]
        {
            assert_eq!(window.bind(offset, bytes).unwrap_err(), Refused::Outside, "{offset:#x} {bytes:#x}");
        }
    }
}
