// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Moving pages of processes between ordinary memory and a device's.
//!
//! A page moves in steps. The kernel takes it out of all mappings and does not wait (a page with
//! another holder does not move). The driver chooses its place and copies its contents
//! ([`Mover::place`]). The kernel puts the new page there, or leaves a page that has changed
//! meanwhile. The mappings are made again. Interval notifiers are notified before the first step.
//!
//! [`of_mapping`] moves the pages of a part of a mapping, [`back_on_fault`] the one that a
//! processor has touched, [`evict`] pages of a device wherever they are mapped. Each works on lists
//! with an entry per page, so that a call's range should be small (512 pages, say).
//!
//! Huge pages are split: pages move one by one. Only pages of anonymous memory can be moved to a
//! device.
//!
//! Nothing here depends on the rest of this module's crate but [`crate::dev_pagemap`].
//!
//! C header: [`include/linux/migrate.h`](srctree/include/linux/migrate.h)

use crate::dev_pagemap::{Fault, Operations, Owner, PageMap};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::error::to_result;
use kernel::mm::virt::VmaRef;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

// The kernel's bindings do not have this header. helpers.c asserts that all of it is as it says
// there.
const VALID: usize = 1 << 0;
const MIGRATE: usize = 1 << 1;
const FRAME_SHIFT: u32 = 6;
const SELECT_SYSTEM: usize = 1 << 0;
const SELECT_PRIVATE: usize = 1 << 1;
const SELECT_COHERENT: usize = 1 << 2;

#[repr(C)]
struct RawMigrate {
    vma: *mut bindings::vm_area_struct,
    dst: *mut c_ulong,
    src: *mut c_ulong,
    cpages: c_ulong,
    npages: c_ulong,
    start: c_ulong,
    end: c_ulong,
    pgmap_owner: *mut c_void,
    flags: c_ulong,
    fault_page: *mut bindings::page,
}

unsafe extern "C" {
    fn migrate_vma_setup(args: *mut RawMigrate) -> c_int;
    fn migrate_vma_pages(args: *mut RawMigrate);
    fn migrate_vma_finalize(args: *mut RawMigrate);
    fn migrate_device_pfns(src: *mut c_ulong, pages: c_ulong) -> c_int;
    fn migrate_device_pages(src: *mut c_ulong, dst: *mut c_ulong, pages: c_ulong);
    fn migrate_device_finalize(src: *mut c_ulong, dst: *mut c_ulong, pages: c_ulong);

    fn vkfd_pfn_to_page(pfn: c_ulong) -> *mut bindings::page;
    fn vkfd_page_to_pfn(page: *mut bindings::page) -> c_ulong;
    fn vkfd_page_address(page: *mut bindings::page) -> *mut u8;
    fn vkfd_page_is_anon(page: *mut bindings::page) -> bool;
    fn vkfd_page_is_ksm(page: *mut bindings::page) -> bool;
    fn vkfd_lock_page(page: *mut bindings::page);
    fn vkfd_put_page(page: *mut bindings::page);
    fn vkfd_gfp_user_page() -> bindings::gfp_t;
}

/// A page that is not in use yet: locked, and nobody else's.
///
/// # Invariants
///
/// The page is locked by this value and has one reference, which is this value's.
pub(crate) struct LockedPage(NonNull<bindings::page>);

impl LockedPage {
    /// # Safety
    ///
    /// The page is locked, and the only reference to it is the caller's, which gives both away.
    pub(crate) unsafe fn from_raw(page: NonNull<bindings::page>) -> Self {
        Self(page)
    }

    /// A page of ordinary memory for `address` of a mapping, or for anyone. Sleeps. None when there
    /// is no memory.
    ///
    /// It is the process's page: the kernel's profile of allocations must not have it as the
    /// driver's.
    pub(crate) fn new(place: Option<(&VmaRef, usize)>) -> Option<Self> {
        // SAFETY: the address is one of the mapping, whose mmap lock is held as long as it is
        // borrowed; contexts that have one may sleep. The page is new: nobody waits for its lock.
        unsafe {
            let flags = vkfd_gfp_user_page();
            let page: *mut bindings::page = match place {
                Some((vma, address)) => bindings::vma_alloc_folio_noprof(flags, 0, vma.as_ptr(), address).cast(),
                None => bindings::alloc_pages_noprof(flags, 0),
            };
            let page = NonNull::new(page)?;
            vkfd_lock_page(page.as_ptr());
            Some(Self(page))
        }
    }

    /// Where the contents of a page of ordinary memory are: [`PAGE_SIZE`] bytes.
    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: a page.
        unsafe { vkfd_page_address(self.0.as_ptr()) }
    }

    fn into_entry(self) -> usize {
        let page = ManuallyDrop::new(self).0;
        // SAFETY: a page.
        unsafe { vkfd_page_to_pfn(page.as_ptr()) << FRAME_SHIFT | VALID }
    }
}

impl Drop for LockedPage {
    fn drop(&mut self) {
        // SAFETY: locked and referenced, by the invariants.
        unsafe {
            bindings::unlock_page(self.0.as_ptr());
            vkfd_put_page(self.0.as_ptr());
        }
    }
}

/// A page that is to move: locked, and mapped nowhere for the moment. Nobody changes its contents.
pub(crate) struct SourcePage<'a>(NonNull<bindings::page>, PhantomData<&'a ()>);

impl SourcePage<'_> {
    /// Its frame number.
    pub(crate) fn frame(&self) -> usize {
        // SAFETY: a page.
        unsafe { vkfd_page_to_pfn(self.0.as_ptr()) }
    }

    /// Whether it can be moved to a device: a page of one anonymous mapping and its copies, not one
    /// that was merged (KSM).
    pub(crate) fn is_anonymous(&self) -> bool {
        // SAFETY: a page that is locked.
        unsafe { vkfd_page_is_anon(self.0.as_ptr()) && !vkfd_page_is_ksm(self.0.as_ptr()) }
    }

    /// Where the contents of a page of ordinary or coherent memory are: [`PAGE_SIZE`] bytes.
    pub(crate) fn address(&self) -> *const u8 {
        // SAFETY: a page.
        unsafe { vkfd_page_address(self.0.as_ptr()) }
    }
}

/// Where pages go.
pub(crate) trait Mover {
    /// A page for entry `index` of the range, with the contents of `source` in it; zeroes where
    /// there was no page (which moves like any other, to a device only). None leaves it. In
    /// ordinary memory, the page is for `address` of the mapping if there is one.
    fn place(&mut self, index: usize, source: Option<&SourcePage<'_>>) -> Option<LockedPage>;

    /// Entry `index` moved; in a moment everyone will see it.
    fn moved(&mut self, index: usize);
}

/// Which pages of a mapping move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Select {
    /// Those in ordinary memory, and what has no page yet.
    System,
    /// Those that are an owner's.
    Device,
}

/// Room for the lists of a move.
pub(crate) struct Lists(KVVec<c_ulong>, KVVec<c_ulong>);

impl Lists {
    /// For at most `pages` pages.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        Ok(Self(KVVec::from_elem(0, pages, GFP_KERNEL)?, KVVec::from_elem(0, pages, GFP_KERNEL)?))
    }
}

/// Raw entries of both lists, as long as each other.
struct Entries<'a> {
    src: &'a mut [c_ulong],
    dst: &'a mut [c_ulong],
}

impl Entries<'_> {
    fn source(&self, index: usize) -> Option<SourcePage<'_>> {
        let entry = self.src[index];
        // SAFETY: the kernel has put the frame of a page there, of which it has a reference.
        let page = (entry & VALID != 0).then(|| unsafe { vkfd_pfn_to_page(entry >> FRAME_SHIFT) });
        NonNull::new(page?).map(|page| SourcePage(page, PhantomData))
    }

    fn place(&mut self, mover: &mut impl Mover) {
        for index in 0..self.src.len() {
            if self.src[index] & MIGRATE != 0 {
                let page = mover.place(index, self.source(index).as_ref());
                self.dst[index] = page.map_or(0, LockedPage::into_entry);
            }
        }
    }

    fn tell(&self, mover: &mut impl Mover) {
        for index in 0..self.src.len() {
            if self.src[index] & MIGRATE != 0 && self.dst[index] != 0 {
                mover.moved(index);
            }
        }
    }
}

fn run(raw: &mut RawMigrate, entries: Entries<'_>, mover: &mut impl Mover) -> Result {
    (raw.src, raw.dst) = (entries.src.as_mut_ptr(), entries.dst.as_mut_ptr());
    // SAFETY: the lists have an entry per page; the mapping is locked as long as it is borrowed,
    // which the callers do.
    to_result(unsafe { migrate_vma_setup(raw) })?;
    let pages = raw.npages;
    let (src, dst) = (&mut entries.src[..pages], &mut entries.dst[..pages]);
    let mut entries = Entries { src, dst };
    if raw.cpages > 0 {
        entries.place(mover);
    }
    // SAFETY: set up above; each page in `dst` is a locked one with a reference, which the kernel
    // takes.
    unsafe { migrate_vma_pages(raw) };
    entries.tell(mover);
    // SAFETY: as above.
    unsafe { migrate_vma_finalize(raw) };
    Ok(())
}

fn raw(vma: &VmaRef, range: Range<usize>, select: Select, owner: Owner) -> RawMigrate {
    RawMigrate {
        vma: vma.as_ptr(),
        dst: core::ptr::null_mut(),
        src: core::ptr::null_mut(),
        cpages: 0,
        npages: 0,
        start: range.start,
        end: range.end,
        pgmap_owner: owner.as_ptr(),
        flags: match select {
            Select::System => SELECT_SYSTEM,
            Select::Device => SELECT_PRIVATE | SELECT_COHERENT,
        },
        fault_page: core::ptr::null_mut(),
    }
}

/// Moves the pages of `range`, whole pages of `vma` of which the lists have room for so many.
/// EINVAL for a range that is not like that, or a mapping whose pages cannot move. Sleeps.
pub(crate) fn of_mapping(
    vma: &VmaRef,
    range: Range<usize>,
    select: Select,
    owner: Owner,
    lists: &mut Lists,
    mover: &mut impl Mover,
) -> Result {
    let whole = range.start % PAGE_SIZE == 0 && range.end % PAGE_SIZE == 0 && range.start < range.end;
    let pages = range.len() / PAGE_SIZE;
    if !whole || range.start < vma.start() || range.end > vma.end() || pages > lists.0.len() {
        return Err(EINVAL);
    }
    let entries = Entries { src: &mut lists.0[..pages], dst: &mut lists.1[..pages] };
    entries.src.fill(0);
    entries.dst.fill(0);
    run(&mut raw(vma, range, select, owner), entries, mover)
}

/// Moves the page that a processor has touched. That it may not move (somebody else is moving it)
/// is no error: the processor tries again.
pub(crate) fn back_on_fault(fault: &Fault<'_>, owner: Owner, mover: &mut impl Mover) -> Result {
    let start = fault.address() & !(PAGE_SIZE - 1);
    let mut raw = raw(fault.vma(), start..start + PAGE_SIZE, Select::Device, owner);
    raw.fault_page = fault.as_raw();
    let entries = Entries { src: &mut [0], dst: &mut [0] };
    run(&mut raw, entries, mover)
}

/// Moves pages of a device out of it, whichever owner has them mapped: those of `pages` that are in
/// use, at most as many as the lists have room for. What somebody holds, or is just moving, stays.
/// The mover knows a page by its frame: entries have no other meaning. Sleeps.
pub(crate) fn evict<T: Operations>(
    map: &PageMap<T>,
    pages: impl Iterator<Item = usize>,
    lists: &mut Lists,
    mover: &mut impl Mover,
) -> Result {
    let mut count = 0;
    for (entry, page) in lists.0.iter_mut().zip(pages.filter(|page| map.is_used(*page))) {
        *entry = map.first_frame() + page;
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    let mut entries = Entries { src: &mut lists.0[..count], dst: &mut lists.1[..count] };
    entries.dst.fill(0);
    // SAFETY: the pages have structures as long as the map is borrowed. The lists have an entry per
    // page. Each page in `dst` is a locked one with a reference, which the kernel takes.
    unsafe {
        to_result(migrate_device_pfns(entries.src.as_mut_ptr(), count))?;
        entries.place(mover);
        migrate_device_pages(entries.src.as_mut_ptr(), entries.dst.as_mut_ptr(), count);
        entries.tell(mover);
        migrate_device_finalize(entries.src.as_mut_ptr(), entries.dst.as_mut_ptr(), count);
    }
    Ok(())
}
