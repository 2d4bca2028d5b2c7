// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A device's memory as pages that processes can have: `ZONE_DEVICE`.
//!
//! A [`PageMap`] gives each page of such memory a page structure, for as long as it exists. The
//! kernel does not allocate these pages. The driver takes one ([`PageMap::take`]) and has a
//! process's page moved there ([`crate::migrate`]). The kernel calls [`Operations::freed`] when the
//! last use has gone. There are two kinds, see [`Kind`].
//!
//! Dropping a map waits for the last page: move them out before ([`crate::migrate::evict`]).
//!
//! The structures take 64 bytes per page of ordinary memory. The range must be aligned to 2 MiB,
//! and nobody else may have structures for it.
//!
//! Nothing here depends on the rest of this module's crate but the bitmap and [`crate::migrate`].
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use crate::atomic_bitmap::AtomicBitmap;
use crate::migrate::LockedPage;
use core::ops::Range;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::error::from_err_ptr;
use kernel::mm::virt::VmaRef;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::types::Opaque;

unsafe extern "C" {
    fn vkfd_pfn_to_page(pfn: c_ulong) -> *mut bindings::page;
    fn vkfd_page_to_pfn(page: *mut bindings::page) -> c_ulong;
    fn vkfd_folio_pgmap(folio: *mut bindings::folio) -> *mut bindings::dev_pagemap;
}

/// The owner of pages, by which HMM and migration recognise them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(*const c_void);

// SAFETY: an address that is compared and never followed.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// One that is different from the owner of every other object.
    pub(crate) const fn new<T>(object: &'static T) -> Self {
        Self(core::ptr::from_ref(object).cast())
    }

    pub(crate) const fn as_ptr(self) -> *mut c_void {
        self.0.cast_mut()
    }
}

/// How processors get on with the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// They and other devices use it in place, as they use ordinary memory
    /// (`MEMORY_DEVICE_COHERENT`).
    Coherent,
    /// They do not reach it: a page is moved back when one touches it (`MEMORY_DEVICE_PRIVATE`).
    Private,
}

/// What a driver does for its pages.
pub(crate) trait Operations: Send + Sync {
    /// Whose they are.
    fn owner() -> Owner;

    /// Page `page` is in use no longer. In any context, also that of an interrupt.
    fn freed(&self, page: usize);

    /// A processor has touched page `page`, which is private. To be moved to ordinary memory.
    /// Called with the mmap lock held; may sleep.
    fn move_to_ram(&self, page: usize, fault: &Fault<'_>) -> Result<(), FaultError>;
}

/// A processor's access to private memory.
pub(crate) struct Fault<'a> {
    vma: &'a VmaRef,
    address: usize,
    page: NonNull<bindings::page>,
}

impl Fault<'_> {
    /// The mapping.
    pub(crate) fn vma(&self) -> &VmaRef {
        self.vma
    }

    /// The page's address in it.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// The page, which the kernel has locked.
    pub(crate) fn as_raw(&self) -> *mut bindings::page {
        self.page.as_ptr()
    }
}

/// Why a page was not moved to ordinary memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultError {
    /// There is no memory.
    Oom,
    /// It cannot be.
    Sigbus,
}

/// Physical addresses without anything behind them: numbers for private pages.
struct FreeRegion(NonNull<bindings::resource>);

// SAFETY: a resource is the kernel's and belongs to no thread.
unsafe impl Send for FreeRegion {}
// SAFETY: its fields do not change as long as it exists.
unsafe impl Sync for FreeRegion {}

impl FreeRegion {
    fn new(bytes: usize, name: &'static CStr) -> Result<Self> {
        // SAFETY: the root resource is the kernel's, the name lives for ever.
        let resource = from_err_ptr(unsafe {
            bindings::request_free_mem_region(&raw mut bindings::iomem_resource, bytes, name.as_char_ptr())
        })?;
        NonNull::new(resource).map(Self).ok_or(ENOMEM)
    }

    fn start(&self) -> u64 {
        // SAFETY: valid as long as it is not released.
        unsafe { self.0.as_ref() }.start
    }
}

impl Drop for FreeRegion {
    fn drop(&mut self) {
        // SAFETY: requested in `new`.
        unsafe {
            let (start, end) = (self.0.as_ref().start, self.0.as_ref().end);
            bindings::__release_region(&raw mut bindings::iomem_resource, start, end - start + 1);
        }
    }
}

/// Where the memory is.
pub(crate) enum Place {
    /// Physical addresses of memory that processors reach: for coherent pages.
    At(Range<u64>),
    /// So many bytes somewhere out of reach, with this name in /proc/iomem: for private pages.
    Anywhere(usize, &'static CStr),
}

/// Page structures for a device's memory.
///
/// # Invariants
///
/// `inner` is mapped, with [`Self::OPS`], for `pages` pages from frame `first` on, as long as the
/// value exists. A page has a bit in `used` from when it is taken until it is free.
#[pin_data(PinnedDrop)]
pub(crate) struct PageMap<T: Operations> {
    #[pin]
    data: T,
    used: AtomicBitmap,
    first: usize,
    pages: usize,
    #[pin]
    inner: Opaque<bindings::dev_pagemap>,
    // Released after the pages have gone.
    _region: Option<FreeRegion>,
}

// SAFETY: the C object may be used and removed by any thread; `T` may be sent.
unsafe impl<T: Operations> Send for PageMap<T> {}
// SAFETY: taking pages is guarded by `used`; `T` may be shared.
unsafe impl<T: Operations> Sync for PageMap<T> {}

impl<T: Operations> PageMap<T> {
    const OPS: bindings::dev_pagemap_ops = bindings::dev_pagemap_ops {
        folio_free: Some(Self::folio_free),
        migrate_to_ram: Some(Self::migrate_to_ram),
        memory_failure: None,
        folio_split: None,
    };

    /// Makes structures for the pages at `place`: for a kind that processors reach, or not. EINVAL
    /// for a place that is not whole pages, ENOMEM, and what the kernel says of a range that it
    /// does not like.
    ///
    /// # Safety
    ///
    /// A given range is memory of the caller's alone, that stays where it is until the map has
    /// gone, and whose contents processors may read and write, cached.
    pub(crate) unsafe fn new<E>(place: Place, data: impl PinInit<T, E>) -> impl PinInit<Self, Error>
    where
        Error: From<E>,
    {
        pin_init::pin_init_scope(move || {
            let (kind, region, range) = match place {
                Place::At(range) => (bindings::memory_type_MEMORY_DEVICE_COHERENT, None, range),
                Place::Anywhere(bytes, name) => {
                    let region = FreeRegion::new(bytes, name)?;
                    let start = region.start();
                    (bindings::memory_type_MEMORY_DEVICE_PRIVATE, Some(region), start..start + bytes as u64)
                }
            };
            let whole = |at: u64| at % PAGE_SIZE as u64 == 0;
            if range.is_empty() || !whole(range.start) || !whole(range.end) {
                return Err(EINVAL);
            }
            let first = usize::try_from(range.start >> PAGE_SHIFT)?;
            let pages = usize::try_from((range.end - range.start) >> PAGE_SHIFT)?;
            Ok(try_pin_init!(Self {
                data <- data,
                used: AtomicBitmap::new(pages)?,
                first,
                pages,
                inner <- Opaque::try_ffi_init(move |slot: *mut bindings::dev_pagemap| {
                    // SAFETY: `slot` stays where it is until the value is dropped, which undoes the
                    // mapping; the operations are constants. The caller promises the rest.
                    unsafe {
                        slot.write_bytes(0, 1);
                        (*slot).type_ = kind;
                        (*slot).ops = &Self::OPS;
                        (*slot).owner = T::owner().as_ptr();
                        (*slot).nr_range = 1;
                        let target: *mut bindings::range = (&raw mut (*slot).__bindgen_anon_1).cast();
                        target.write(bindings::range { start: range.start, end: range.end - 1 });
                        from_err_ptr(bindings::memremap_pages(slot, bindings::NUMA_NO_NODE)).map(drop)
                    }
                }),
                _region: region,
            }? Error))
        })
    }

    /// What the callbacks work on.
    pub(crate) fn data(&self) -> &T {
        &self.data
    }

    /// How many pages there are.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Frame number of the first.
    pub(crate) fn first_frame(&self) -> usize {
        self.first
    }

    /// How many are in use.
    pub(crate) fn used(&self) -> usize {
        self.used.count()
    }

    /// Whether page `page` is in use.
    pub(crate) fn is_used(&self, page: usize) -> bool {
        page < self.pages && self.used.is_set(page)
    }

    /// Takes page `page`, whose contents are the caller's until it lets go of it. None for a page
    /// in use, or that there is not.
    pub(crate) fn take(&self, page: usize) -> Option<LockedPage> {
        if page >= self.pages || !self.used.set(page) {
            return None;
        }
        // SAFETY: mapped, by the invariants, and nobody has it: it becomes a locked page with one
        // reference.
        unsafe {
            let raw = vkfd_pfn_to_page(self.first + page);
            bindings::zone_device_page_init(raw, self.inner.get(), 0);
            Some(LockedPage::from_raw(NonNull::new_unchecked(raw)))
        }
    }

    /// # Safety
    ///
    /// The page belongs to a `Self`, and is in use.
    unsafe fn of<'a>(pgmap: *mut bindings::dev_pagemap, page: *mut bindings::page) -> (&'a Self, usize) {
        // SAFETY: `OPS` is for maps that are the `inner` of a `Self` only, which is not dropped
        // before its pages are free.
        unsafe {
            let inner: *mut Opaque<bindings::dev_pagemap> = pgmap.cast();
            let this = &*kernel::container_of!(inner, Self, inner);
            (this, vkfd_page_to_pfn(page) - this.first)
        }
    }

    unsafe extern "C" fn folio_free(folio: *mut bindings::folio) {
        // SAFETY: the kernel calls this for a page of ours, one page large, whose last reference
        // has gone.
        let (this, page) = unsafe { Self::of(vkfd_folio_pgmap(folio), folio.cast()) };
        // From here on it can be taken again.
        this.used.clear(page);
        this.data.freed(page);
    }

    unsafe extern "C" fn migrate_to_ram(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
        // SAFETY: the kernel calls this for a page of ours, which it has locked and holds, with the
        // mmap lock held.
        let (this, page, fault) = unsafe {
            let Some(raw) = NonNull::new((*vmf).page) else { return bindings::vm_fault_reason_VM_FAULT_SIGBUS };
            let at = &(*vmf).__bindgen_anon_1;
            let (this, page) = Self::of(vkfd_folio_pgmap(raw.as_ptr().cast()), raw.as_ptr());
            (this, page, Fault { vma: VmaRef::from_raw(at.vma), address: at.address, page: raw })
        };
        match this.data.move_to_ram(page, &fault) {
            Ok(()) => 0,
            Err(FaultError::Oom) => bindings::vm_fault_reason_VM_FAULT_OOM,
            Err(FaultError::Sigbus) => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }
}

#[pinned_drop]
impl<T: Operations> PinnedDrop for PageMap<T> {
    fn drop(self: Pin<&mut Self>) {
        // Waits for pages in use.
        // SAFETY: mapped, by the invariants.
        unsafe { bindings::memunmap_pages(self.inner.get()) };
    }
}
