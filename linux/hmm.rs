// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Heterogeneous memory management: the pages behind a process's addresses, faulted in but not
//! pinned.
//!
//! [`Lookup::fault`] does for a device what a page fault does for a processor, for a whole range at
//! once. The pages it tells may go at any time afterwards; an [`IntervalNotifier`] says when.
//!
//! The kernel's call faults everything from the first missing page to the end of the request in a
//! page table. A fault on one of the owner's private pages moves it back; a lookup alone would
//! report it as it is. So [`Lookup::fault`] looks up first, and faults only between two such pages.
//!
//! Nothing here depends on the rest of this module's crate.
//!
//! C header: [`include/linux/hmm.h`](srctree/include/linux/hmm.h)

use crate::dev_pagemap::Owner;
use crate::interval_notifier::{IntervalNotifier, Operations};
use core::ops::Range;
use kernel::bindings;
use kernel::error::to_result;
use kernel::mm::MmWithUser;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::time::{msecs_to_jiffies, Delta, Instant, Monotonic};

// The kernel's bindings do not have this header. helpers.c asserts that all of it is as it says
// there.
const VALID: usize = 1 << 63;
const WRITE: usize = 1 << 62;
const ORDER_SHIFT: u32 = 53;
const FRAME_MASK: usize = (1 << ORDER_SHIFT) - 1;

#[repr(C)]
struct RawRange {
    notifier: *mut bindings::mmu_interval_notifier,
    notifier_seq: c_ulong,
    start: c_ulong,
    end: c_ulong,
    hmm_pfns: *mut c_ulong,
    default_flags: c_ulong,
    pfn_flags_mask: c_ulong,
    dev_private_owner: *mut c_void,
}

unsafe extern "C" {
    fn hmm_range_fault(range: *mut RawRange) -> c_int;
    fn hmm_range_fault_unlocked_timeout(range: *mut RawRange, timeout: c_ulong) -> c_int;
    fn vkfd_pfn_to_page(pfn: c_ulong) -> *mut bindings::page;
    fn vkfd_page_is_zone_device(page: *mut bindings::page) -> bool;
    fn vkfd_page_is_device_private(page: *mut bindings::page) -> bool;
}

/// What is known of one page.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Pfn(usize);

impl Pfn {
    /// Whether there is a page.
    pub(crate) const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Whether it may be written to.
    pub(crate) const fn is_writable(self) -> bool {
        self.0 & (VALID | WRITE) == VALID | WRITE
    }

    /// Its frame number.
    pub(crate) const fn frame(self) -> usize {
        self.0 & FRAME_MASK
    }

    /// Whether a valid page is in a device's memory, whichever driver has the device.
    pub(crate) fn is_device(self) -> bool {
        // SAFETY: HMM tells pages that have page structures only. It may be another page by now,
        // but is one of the same memory.
        unsafe { vkfd_page_is_zone_device(vkfd_pfn_to_page(self.frame())) }
    }

    /// Whether it is in a device's memory where processors do not reach it; of a valid one.
    fn is_private(self) -> bool {
        // SAFETY: as above.
        unsafe { vkfd_page_is_device_private(vkfd_pfn_to_page(self.frame())) }
    }

    /// Whether it is there for `access`. A private page is told as it is, whatever it allows.
    pub(crate) fn serves(self, access: Access) -> bool {
        self.0 & access.flags() == access.flags() || (self.is_valid() && self.is_private())
    }

    /// Its physical address.
    pub(crate) const fn phys(self) -> u64 {
        (self.frame() as u64) << PAGE_SHIFT
    }
}

/// What the device wants to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Does not break copy-on-write.
    Read,
    /// Read and write.
    Write,
}

impl Access {
    /// What the kernel is asked for.
    const fn flags(self) -> usize {
        match self {
            Self::Read => VALID,
            Self::Write => VALID | WRITE,
        }
    }
}

/// Whether a fault may wait for user space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It may: for a thread that can be killed. Page faults that user space serves (userfaultfd)
    /// are waited for.
    Killable,
    /// It may not: for a kernel thread, which nobody can kill while it waits for a process that may
    /// be waiting for it. Such a fault is EFAULT.
    None,
}

/// How pages of `mm` are looked up: what calls have in common.
pub(crate) struct Lookup<'a, T: Operations> {
    /// Invalidations that it notes make a lookup begin again; with one that notes none, the caller
    /// has to find out which of the pages are stale.
    pub(crate) notifier: &'a IntervalNotifier<T>,
    /// The notifier's; has users.
    pub(crate) mm: &'a MmWithUser,
    /// Whether faults wait for user space.
    pub(crate) patience: Patience,
    /// This owner's private pages are reported as they are; another owner's are moved to ordinary
    /// memory.
    pub(crate) owner: Owner,
    /// For how long the kernel may begin again.
    pub(crate) timeout: Delta,
}

impl<T: Operations> Lookup<'_, T> {
    /// Faults in the pages of `range` and tells them in `pfns`, which is as long. Sleeps.
    ///
    /// EINVAL for a range that is not like that, EFAULT without a mapping or memory behind it,
    /// EPERM if the mapping does not allow the access. EBUSY after the timeout, ENOMEM, EINTR if
    /// the thread is killed.
    pub(crate) fn fault(&self, range: Range<usize>, access: Access, pfns: &mut [Pfn]) -> Result {
        let call = self.call(range, pfns.len())?;
        call.run(0..pfns.len(), 0, pfns)?;
        let is_kept = |pfn: Pfn| pfn.is_valid() && pfn.is_private();
        let is_wanted = |pfn: Pfn| !pfn.serves(access);
        let mut at = 0;
        while let Some(next) = pfns[at..].iter().position(|pfn| is_wanted(*pfn)) {
            let first = at + next;
            let part = &pfns[first..];
            let part = &part[..part.iter().position(|pfn| is_kept(*pfn)).unwrap_or(part.len())];
            at = first + part.iter().rposition(|pfn| is_wanted(*pfn)).map_or(part.len(), |last| last + 1);
            call.run(first..at, access.flags(), pfns)?;
        }
        Ok(())
    }

    /// Tells in `pfns`, which is as long, what there is in `range`, and faults nothing in: a page
    /// that does not [serve](Pfn::serves) may be there after a fault. What is mapped in `range`, or
    /// whether anything is, does not matter. Errors as [`fault`](Self::fault), but not for want of
    /// a mapping. Sleeps.
    pub(crate) fn look(&self, range: Range<usize>, pfns: &mut [Pfn]) -> Result {
        self.call(range, pfns.len())?.run(0..pfns.len(), 0, pfns)
    }

    /// One call of the kernel and nothing else, to compare [`fault`](Self::fault) with.
    pub(crate) fn fault_bare(&self, range: Range<usize>, access: Access, pfns: &mut [Pfn]) -> Result {
        self.call(range, pfns.len())?.run(0..pfns.len(), access.flags(), pfns)
    }

    fn call(&self, range: Range<usize>, pages: usize) -> Result<Call<'_, T>> {
        let whole = range.start % PAGE_SIZE == 0 && range.end % PAGE_SIZE == 0 && range.start < range.end;
        if !whole || (range.end - range.start) / PAGE_SIZE != pages || self.mm.as_raw() != self.notifier.mm().as_raw() {
            return Err(EINVAL);
        }
        Ok(Call { lookup: self, address: range.start, begun: Instant::now() })
    }
}

/// A lookup under way.
struct Call<'a, T: Operations> {
    lookup: &'a Lookup<'a, T>,
    /// Of the first page.
    address: usize,
    begun: Instant<Monotonic>,
}

impl<T: Operations> Call<'_, T> {
    /// Finds out which of `pages` are there, and faults in those that lack any of `flags`.
    fn run(&self, pages: Range<usize>, flags: usize, pfns: &mut [Pfn]) -> Result {
        let part = &mut pfns[pages.clone()];
        // Some flags would be carried over.
        part.fill(Pfn::default());
        let mut raw = RawRange {
            notifier: self.lookup.notifier.as_raw(),
            notifier_seq: 0,
            start: self.address + pages.start * PAGE_SIZE,
            end: self.address + pages.end * PAGE_SIZE,
            hmm_pfns: part.as_mut_ptr().cast(),
            default_flags: flags,
            pfn_flags_mask: 0,
            dev_private_owner: self.lookup.owner.as_ptr(),
        };
        if self.lookup.patience == Patience::Killable {
            let left = self.lookup.timeout - self.begun.elapsed();
            let millis = u32::try_from(left.as_millis_ceil().max(1)).unwrap_or(u32::MAX);
            // 0 would mean no end.
            let ticks = msecs_to_jiffies(millis).max(1);
            // SAFETY: the notifier is registered as long as it is borrowed. `part` has an entry a
            // page, with the layout of an unsigned long. The address space is not torn down while
            // it has users, and is not locked by this thread.
            return to_result(unsafe { hmm_range_fault_unlocked_timeout(&mut raw, ticks) });
        }
        loop {
            raw.notifier_seq = self.lookup.notifier.read_begin().0;
            let result = {
                let _lock = self.lookup.mm.mmap_read_lock();
                // SAFETY: as above, and the lock is held.
                to_result(unsafe { hmm_range_fault(&mut raw) })
            };
            if result != Err(EBUSY) || self.begun.elapsed() > self.lookup.timeout {
                return result;
            }
        }
    }
}
