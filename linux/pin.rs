// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pinned pages of the calling process: what a driver needs that is not told of changes. Here for comparison only.
//!
//! While a page is pinned it is neither swapped out nor migrated; the kernel writes it off as unmovable.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use kernel::bindings;
use kernel::prelude::*;

const FOLL_WRITE: c_uint = 1 << 0;
const FOLL_LONGTERM: c_uint = 1 << 8;

unsafe extern "C" {
    fn pin_user_pages_fast(start: c_ulong, count: c_int, flags: c_uint, pages: *mut *mut bindings::page) -> c_int;
    fn unpin_user_pages(pages: *mut *mut bindings::page, count: c_ulong);
}

/// Pages that stay where they are until this is dropped.
pub(crate) struct PinnedPages {
    pages: KVVec<*mut bindings::page>,
}

impl PinnedPages {
    /// Room for `capacity` pages.
    pub(crate) fn with_capacity(capacity: usize) -> Result<Self> {
        Ok(Self { pages: KVVec::with_capacity(capacity, GFP_KERNEL)? })
    }

    /// Pins `count` pages of the calling process from `start` on, for writing and for long. There must be room for them; EINVAL if
    /// there is not. Otherwise what the kernel refused: EFAULT, ENOMEM. What was pinned before stays so.
    pub(crate) fn pin(&mut self, start: usize, count: usize) -> Result {
        let mut done = 0;
        while done < count {
            let room = self.pages.spare_capacity_mut();
            let some = c_int::try_from((count - done).min(room.len())).map_err(|_| EINVAL)?;
            if some == 0 {
                return Err(EINVAL);
            }
            let at = (start + done * kernel::page::PAGE_SIZE) as c_ulong;
            let flags = FOLL_WRITE | FOLL_LONGTERM;
            // SAFETY: there is room for `some` pointers; a bad address is an error.
            let pinned = unsafe { pin_user_pages_fast(at, some, flags, room.as_mut_ptr().cast()) };
            let pinned = usize::try_from(pinned).map_err(|_| Error::from_errno(pinned))?;
            if pinned == 0 {
                return Err(EFAULT);
            }
            // SAFETY: the kernel has written so many pointers, at most as many as there was room for.
            unsafe { self.pages.inc_len(pinned) };
            done += pinned;
        }
        Ok(())
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // SAFETY: each of them was pinned once.
        unsafe { unpin_user_pages(self.pages.as_mut_ptr(), self.pages.len() as c_ulong) };
    }
}
