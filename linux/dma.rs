// SPDX-License-Identifier: GPL-2.0 OR MIT
//! DMA memory: pages of the kernel that device, driver and client share (GTT buffers, doorbells,
//! events).
//!
//! Pages are ordinary ones, each with a reference of its own, so that a client's mapping keeps what
//! it maps also when the memory is freed. Where there are two megabytes to be had in one piece they
//! are taken, for huge entries in the GPU's page tables.

use core::any::Any;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use kernel::bindings;
use kernel::page::BorrowedPage;
use vkfd_driver::base::addr::{index, PhysAddr, HUGE_PAGES, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::gpu::DmaMemory;
use vkfd_driver::os::Vec;

unsafe extern "C" {
    fn vkfd_page_phys(page: *mut bindings::page) -> u64;
    fn vkfd_page_address(page: *mut bindings::page) -> *mut u8;
}

const HUGE_ORDER: u32 = HUGE_PAGES.ilog2();

/// `__GFP_ACCOUNT`, which the kernel's bindings have only together with `GFP_KERNEL`: charged to
/// the caller's memory cgroup.
const GFP_ACCOUNT: bindings::gfp_t = bindings::GFP_KERNEL_ACCOUNT & !bindings::GFP_KERNEL;
const _: () = assert!(GFP_ACCOUNT.count_ones() == 1);

/// A page that is ours.
///
/// # Invariants
///
/// A page of order 0, to which this is a reference.
struct OwnPage(NonNull<bindings::page>);

impl Drop for OwnPage {
    fn drop(&mut self) {
        // SAFETY: gives the reference back.
        unsafe { bindings::__free_pages(self.0.as_ptr(), 0) };
    }
}

/// The memory.
pub(crate) struct DmaPages(Vec<OwnPage>);

// SAFETY: pages may be used and freed by any thread; their contents are accessed by atomic words
// only.
unsafe impl Send for DmaPages {}
// SAFETY: as above.
unsafe impl Sync for DmaPages {}

impl DmaPages {
    /// Zeroed memory of `bytes`, rounded up to pages. EINVAL for nothing, ENOMEM.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let pages = bytes.checked_next_multiple_of(PAGE).filter(|b| *b != 0).ok_or(Errno::EINVAL)? / PAGE;
        let mut all = Vec::with_capacity(index(pages))?;
        let mut left = pages;
        let mut order = HUGE_ORDER;
        while left > 0 {
            if left < HUGE_PAGES {
                order = 0;
            }
            // Large ones only where they cost no effort. All of them are the client's, and its
            // memory cgroup's.
            let effort = if order == 0 { bindings::GFP_KERNEL } else { bindings::GFP_NOWAIT };
            let flags = effort | GFP_ACCOUNT | bindings::__GFP_ZERO | bindings::__GFP_NOWARN;
            // SAFETY: no preconditions in a context that may sleep.
            let first = NonNull::new(unsafe { bindings::alloc_pages(flags, order) });
            let Some(first) = first else {
                if order == 0 {
                    return Err(Errno::ENOMEM.into());
                }
                order = 0;
                continue;
            };
            if order != 0 {
                // SAFETY: just allocated, not compound: from here on they are pages of order 0,
                // each with a reference.
                unsafe { bindings::split_page(first.as_ptr(), order) };
            }
            for i in 0..1 << order {
                // SAFETY: `1 << order` page structures follow each other.
                let page = unsafe { first.add(i) };
                all.push_reserved(OwnPage(page));
                left -= 1;
            }
        }
        Ok(Self(all))
    }

    /// The pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = BorrowedPage<'_>> {
        // SAFETY: held as long as `self`.
        self.0.iter().map(|page| unsafe { BorrowedPage::from_raw(page.0) })
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let page = self.0.get(index(at / PAGE)).filter(|_| at % 8 == 0);
        debug_assert!(page.is_some(), "word at {at:#x} of {:#x} bytes of DMA memory", self.bytes());
        // SAFETY: ordinary memory of ours, mapped by the kernel as long as we have it; inside the
        // page, aligned. Everyone accesses it atomically or from outside Rust.
        page.map(|page| unsafe {
            let start = vkfd_page_address(page.0.as_ptr());
            AtomicU64::from_ptr(start.add(index(at % PAGE)).cast())
        })
    }
}

impl DmaMemory for DmaPages {
    fn bytes(&self) -> u64 {
        self.0.len() as u64 * PAGE
    }

    fn page(&self, page: u64) -> PhysAddr {
        // SAFETY: a page of ours.
        self.0.get(index(page)).map_or(PhysAddr(0), |page| PhysAddr(unsafe { vkfd_page_phys(page.0.as_ptr()) }))
    }

    fn write_u64(&self, at: u64, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn read_u64(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
