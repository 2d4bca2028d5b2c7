// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Room in a GPU's VRAM: SVM memory gives way to any process's buffer objects, to page tables, and
//! to other SVM memory. SVM may have a limit of its own.
//!
//! The coldest granules go first ([`residency`](crate::device::residency)), until there is room.
//! Each is tried once a call, so a call ends. No lock is held meanwhile. Pages that are taken for
//! SVM memory count against its limit from then on, as a `Promise` until the host is offered them.
#![expect(clippy::arithmetic_side_effects, reason = "pages that granules have brought back")]

use crate::base::addr::PAGE;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::device::vram::{Contents, VramBlock};
use crate::device::Device;
use crate::os::{self, Arc, Vec};
use core::time::Duration;

/// Most lots of granules in one call.
const LOTS: usize = 256;
/// How long a call goes on making room that others take.
const PATIENCE: Duration = Duration::from_secs(10);
const NO_VRAM: Error = Error::new(Errno::ENOMEM, Reason::NoVram);

/// Pages of VRAM that are to be offered to a host, until it is dropped.
pub(crate) struct Promise {
    device: Arc<Device>,
    pages: u64,
}

impl Promise {
    fn new(device: &Arc<Device>, pages: u64) -> Option<Self> {
        let fits = device.residency().promise(pages, device.svm_pages());
        fits.then(|| Self { device: device.clone(), pages })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.device.residency().redeem(self.pages);
    }
}

impl Device {
    /// `pages` pages of VRAM, in as few blocks as there are; SVM memory makes room if need be.
    /// Called without locks.
    pub fn alloc_vram(&self, pages: u64, contents: Contents) -> Result<Vec<VramBlock>> {
        self.try_with_room(|| self.vram().alloc(&**self.gpu(), pages, contents), || self.make_room(pages))
    }

    /// [`alloc_vram`](Self::alloc_vram) of pages to be offered to a host for SVM memory, which may
    /// have [`svm_pages`](Self::svm_pages): ENOMEM (reason `NoVram`) where that is not enough.
    pub(crate) fn alloc_svm_vram(self: &Arc<Self>, pages: u64) -> Result<(Vec<VramBlock>, Promise)> {
        let most = self.svm_pages();
        if pages > most {
            return Err(NO_VRAM);
        }
        self.try_with_room(
            || {
                let promise = Promise::new(self, pages).ok_or(NO_VRAM)?;
                Ok((self.vram().alloc(&**self.gpu(), pages, Contents::Any)?, promise))
            },
            || match self.residency().left_of(most) < pages {
                true => self.evict_until(pages, || self.residency().left_of(most)),
                false => self.make_room(pages),
            },
        )
    }

    /// Calls `f`, which needs `pages` pages of VRAM at most, and again as long as that fails for
    /// want of VRAM and SVM memory can give way. A thread that makes room may find it taken by
    /// other threads that do the same: EINTR for a thread that is being killed, and not for ever.
    /// Called without locks.
    pub(crate) fn with_room<R>(&self, pages: u64, f: impl FnMut() -> Result<R>) -> Result<R> {
        // It may need less than that, so less is worth making room for.
        self.try_with_room(f, || self.make_room(pages.min(self.most_room())))
    }

    fn try_with_room<R>(&self, mut f: impl FnMut() -> Result<R>, room: impl Fn() -> Result<bool>) -> Result<R> {
        let until = os::now().after(PATIENCE);
        loop {
            match f() {
                Err(e) if wants_room(&e) && os::now() < until && room()? => os::interrupted()?,
                result => return result,
            }
        }
    }

    /// Pages of VRAM that would be free if all SVM memory were evicted.
    pub(crate) fn most_room(&self) -> u64 {
        let (evictable, _) = self.residency().hosted();
        (self.vram().available() / PAGE).saturating_add(evictable)
    }

    /// Evicts SVM memory until `pages` pages of VRAM are free or none is left to evict: whether
    /// anything came back. Nothing is evicted for an allocation that could not succeed even then:
    /// objects and page tables have the rest. Called without locks.
    pub fn make_room(&self, pages: u64) -> Result<bool> {
        match pages > self.most_room() {
            true => Ok(false),
            false => self.evict_until(pages, || self.vram().available() / PAGE),
        }
    }

    /// Evicts SVM memory until `free` says `pages` pages or none is left to evict: whether anything
    /// came back. Called without locks.
    fn evict_until(&self, pages: u64, free: impl Fn() -> u64) -> Result<bool> {
        let eviction = self.residency().next_eviction();
        let mut any = false;
        for _ in 0..LOTS {
            let lot = self.residency().coldest(eviction)?;
            if lot.is_empty() {
                break;
            }
            for (_, granule) in lot.iter() {
                os::interrupted()?;
                let before = free();
                if before >= pages && any {
                    return Ok(true);
                }
                let moved = self.evict(granule);
                any |= moved > 0;
                await_release(moved.saturating_add(before).min(pages), &free);
            }
        }
        Ok(any)
    }

    /// Brings all SVM memory back, before the device goes away. How many pages moved.
    pub fn evict_all(&self) -> Result<u64> {
        let eviction = self.residency().next_eviction();
        let mut moved = 0;
        loop {
            let lot = self.residency().coldest(eviction)?;
            if lot.is_empty() {
                return Ok(moved);
            }
            moved += lot.iter().map(|(_, granule)| self.evict(granule)).sum::<u64>();
        }
    }
}

/// Waits until `free` says `pages` pages: a host may give pages back a moment after they have
/// moved.
fn await_release(pages: u64, free: impl Fn() -> u64) {
    let mut tries = 0;
    while free() < pages && tries < 100 {
        os::sleep(Duration::from_micros(100));
        tries += 1;
    }
}

/// An error that room in VRAM may cure.
fn wants_room(error: &Error) -> bool {
    error.reason == Reason::NoVram
}
