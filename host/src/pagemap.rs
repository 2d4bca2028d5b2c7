// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What pages are behind addresses, asked of the page tables: the ioctl PAGEMAP_SCAN of
//! `/proc/self/pagemap` (Linux 6.7). Nothing here allocates but [`Pagemap::open`].

use linux_raw_sys::general::{page_region, pm_scan_arg};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use vkfd_driver::base::addr::index;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;

/// To be filled.
pub(crate) const NO_REGION: page_region = page_region { start: 0, end: 0, categories: 0 };

/// This process's page tables.
pub(crate) struct Pagemap(File);

impl Pagemap {
    /// # Errors
    /// No /proc.
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// The runs of pages from `start` on that are all of `is` and none of `is_not` (`PAGE_IS_*`),
    /// as many as fit, and how far the answer goes. `None` where the kernel does not answer.
    pub(crate) fn scan<'r>(
        &self,
        start: u64,
        end: u64,
        is: u32,
        is_not: u32,
        regions: &'r mut [page_region],
    ) -> Option<(&'r [page_region], u64)> {
        let mut arg = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: 0,
            start,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr().expose_provenance() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            category_inverted: is_not.into(),
            category_mask: (is | is_not).into(),
            category_anyof_mask: 0,
            return_mask: is.into(),
        };
        // SAFETY: the vector is valid for `vec_len` regions, which the call fills; it changes no
        // page (no WP flag).
        let found = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        let found = usize::try_from(found).ok()?;
        Some((regions.get(..found)?, if found < index(arg.vec_len) { end } else { arg.walk_end }))
    }
}
