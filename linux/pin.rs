// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages of the calling process, pinned: what drivers do that have no interval notifiers. Here only
//! to compare with.
//!
//! Nothing here depends on the rest of this module's crate.

use kernel::alloc::flags::{__GFP_NOWARN, GFP_KERNEL_ACCOUNT};
use kernel::bindings;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

/// Pinned pages. Dropping it lets them go.
///
/// # Invariants
///
/// Each page in `pages` is pinned once.
pub(crate) struct PinnedPages {
    pages: KVVec<*mut bindings::page>,
}

impl PinnedPages {
    /// None, with room for `pages`.
    pub(crate) fn with_capacity(pages: usize) -> Result<Self> {
        Ok(Self { pages: KVVec::with_capacity(pages, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)? })
    }

    /// Pins `pages` pages from `start` on, to be written to for long. EFAULT where that is not
    /// allowed, or no memory; what was pinned until then stays pinned. ENOMEM without room.
    pub(crate) fn pin(&mut self, start: usize, pages: usize) -> Result {
        let mut done = 0;
        while done < pages {
            let room = self.pages.spare_capacity_mut();
            if room.len() < pages - done {
                return Err(ENOMEM);
            }
            let (at, wanted) = (start + done * PAGE_SIZE, c_int::try_from(pages - done)?);
            let flags = bindings::FOLL_WRITE | bindings::FOLL_LONGTERM;
            // SAFETY: there is room for `wanted` pages.
            let got = unsafe { bindings::pin_user_pages_fast(at, wanted, flags, room.as_mut_ptr().cast()) };
            let got = usize::try_from(got).map_err(|_| Error::from_errno(got))?;
            if got == 0 {
                return Err(EFAULT);
            }
            // SAFETY: so many were written, and pinned.
            unsafe { self.pages.inc_len(got) };
            done += got;
        }
        Ok(())
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // SAFETY: pinned, by the invariants.
        unsafe { bindings::unpin_user_pages(self.pages.as_mut_ptr(), self.pages.len()) };
    }
}
