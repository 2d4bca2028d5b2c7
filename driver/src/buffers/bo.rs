// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Buffer objects: the memory behind a handle, its mapping to GPUs and its unmapping.
//!
//! The *reservation* (a lock of rank `Bo`) serialises mapping, unmapping, restore and freeing of
//! one object; pages are faulted in under it. It guards [`Inner`]. A userptr object's mappings are
//! with its notifier state instead, because invalidations need them ([`crate::userptr`]).
#![expect(
    clippy::arithmetic_side_effects,
    reason = "pages and bytes of an object, of which its span says that they do not wrap, and of the memory that it has"
)]

use crate::base::addr::{CpuSpan, FabricAddr, GpuSpan, HUGE_PAGES, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::base::lock_rank::Rank;
use crate::base::pte::{self, Target};
use crate::buffers::metadata::Metadata;
use crate::device::limit::Charge;
use crate::device::vram::{Contents, VramBlock};
use crate::device::Device;
use crate::gpuvm::vm::{Mapping, Vm};
use crate::os::{self, Arc, Mutex, MutexGuard, Vec};
use crate::sabotage::Switch;
use crate::seams::gpu::DmaMemory;
use crate::userptr::revalidate::{self, Missing, Wanted};
use crate::userptr::window::Windows;
use crate::userptr::{Moving, Reservation, Status, Userptr};
use core::sync::atomic::{AtomicBool, Ordering};
use vkfd_uapi::memory as abi;

/// Pages written under one hold of the notifier lock while an object is being mapped.
const MAP_STEP: u64 = 8192;

/// What an object is made of.
pub enum Backing {
    /// VRAM of its GPU.
    Vram(Arc<VramMemory>),
    /// System memory of the driver: GTT, doorbells, registers.
    Dma(Arc<dyn DmaMemory>),
    /// The caller's memory.
    Userptr(Arc<Userptr>),
}

impl Backing {
    /// The same memory once more.
    pub fn share(&self) -> Self {
        match self {
            Self::Vram(memory) => Self::Vram(memory.clone()),
            Self::Dma(memory) => Self::Dma(memory.clone()),
            Self::Userptr(object) => Self::Userptr(object.clone()),
        }
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vram(a), Self::Vram(b)) => Arc::ptr_eq(a, b),
            (Self::Dma(a), Self::Dma(b)) => core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
            (Self::Userptr(a), Self::Userptr(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// VRAM of one GPU; dropping it wipes it and gives it back.
pub struct VramMemory {
    device: Arc<Device>,
    blocks: Vec<VramBlock>,
}

impl VramMemory {
    /// `pages` pages; SVM memory makes room if need be. Called without locks.
    pub fn new(device: &Arc<Device>, pages: u64) -> Result<Arc<Self>> {
        os::arc(Self { device: device.clone(), blocks: device.alloc_vram(pages, Contents::Zero)? })
    }

    /// Whose VRAM it is.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Where clients map it, if the host has a file for that and it is contiguous there.
    pub fn mmap_offset(&self) -> Option<u64> {
        let start = self.device.gpu().vram_mmap_offset()?;
        let first = self.blocks.first()?.at.0;
        let mut next = first;
        for block in self.blocks.iter() {
            if block.at.0 != next {
                return None;
            }
            next += block.pages * PAGE;
        }
        start.checked_add(first)
    }

    /// In ascending order within the object.
    pub fn blocks(&self) -> &[VramBlock] {
        &self.blocks
    }
}

impl Drop for VramMemory {
    fn drop(&mut self) {
        self.device.vram().free(&**self.device.gpu(), &self.blocks);
    }
}

/// What the reservation guards.
pub struct Inner {
    /// Says that the lock is held.
    pub(crate) reservation: Reservation,
    /// A userptr object's notifiers, from registration until it is freed.
    windows: Option<Windows>,
    /// Mappings of the other kinds.
    maps: Vec<Mapping>,
    charge: Option<Charge>,
    /// Made when the first file is.
    metadata: Option<Arc<Metadata>>,
    freed: bool,
}

/// A held reservation.
pub type Reserved<'a> = MutexGuard<'a, Inner>;

/// What an object is made from.
pub struct Spec {
    /// Its number in its process.
    pub number: u32,
    /// Its GPU.
    pub device: Arc<Device>,
    /// Its GPU addresses.
    pub span: GpuSpan,
    /// Its ABI flags.
    pub flags: u32,
    /// Where the client mmaps it; 0 if it cannot.
    pub mmap_offset: u64,
    /// Its memory.
    pub backing: Backing,
    /// Where it begins in that memory.
    pub first_page: u64,
    /// What registering the client's memory takes of the system-memory limit. Memory of the
    /// driver's own has its charge with it.
    pub charge: Option<Charge>,
    /// On how many GPUs it may be mapped.
    pub gpus: usize,
    /// How it came.
    pub origin: Origin,
}

/// How an object came to its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The process allocated it.
    Allocated,
    /// It is memory of a file (dma-buf).
    Imported,
    /// It maps a DRM object.
    Gem,
}

/// A buffer object.
pub struct Bo {
    number: u32,
    device: Arc<Device>,
    span: GpuSpan,
    flags: u32,
    mmap_offset: u64,
    backing: Backing,
    first_page: u64,
    origin: Origin,
    inner: Mutex<Inner>,
    /// Registration has succeeded: handles find it.
    ready: AtomicBool,
}

impl Bo {
    /// An object, not mapped anywhere and not ready.
    pub fn new(spec: Spec) -> Result<Arc<Self>> {
        let Spec { number, device, span, flags, mmap_offset, backing, first_page, charge, gpus, origin } = spec;
        let inner = Inner {
            reservation: Reservation::new(),
            windows: None,
            maps: Vec::with_capacity(gpus)?,
            charge,
            metadata: None,
            freed: false,
        };
        let inner = Mutex::new(Rank::Bo, inner)?;
        let ready = AtomicBool::new(false);
        os::arc(Self { number, device, span, flags, mmap_offset, backing, first_page, origin, inner, ready })
    }

    /// Its number in its process.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Its handle in the ABI.
    pub fn handle(&self) -> u64 {
        u64::from(self.device.id()) << 32 | u64::from(self.number)
    }

    /// Its GPU.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its GPU addresses.
    pub const fn span(&self) -> GpuSpan {
        self.span
    }

    /// How it came.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Its ABI flags.
    pub const fn flags(&self) -> u32 {
        self.flags
    }

    /// Its mmap offset, 0 if it has none.
    pub const fn mmap_offset(&self) -> u64 {
        self.mmap_offset
    }

    /// What it is made of.
    pub const fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The userptr object, if it is one.
    pub fn userptr(&self) -> Option<&Arc<Userptr>> {
        match &self.backing {
            Backing::Userptr(object) => Some(object),
            _ => None,
        }
    }

    /// What clients note about its memory: all its files share it.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn metadata(&self) -> Result<Arc<Metadata>> {
        let known = self.inner.lock().metadata.clone();
        match known {
            Some(metadata) => Ok(metadata),
            None => {
                let first = Metadata::new()?;
                Ok(self.inner.lock().metadata.get_or_insert(first).clone())
            }
        }
    }

    /// It was made of a file, whose metadata is its own.
    pub fn share_metadata(&self, metadata: Arc<Metadata>) {
        self.inner.lock().metadata = Some(metadata);
    }

    /// Whether handles find it.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Lets handles find it.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Takes the reservation. EINVAL once it has been freed.
    pub fn reserve(&self) -> Result<Reserved<'_>> {
        let inner = self.inner.lock();
        if inner.freed {
            return Err(Error::new(Errno::EINVAL, Reason::BadHandle));
        }
        Ok(inner)
    }

    /// Registers a userptr object's memory: its notifiers, then its pages, each range at least
    /// once. EFAULT and EPERM name the range; EAGAIN when one would not hold still until
    /// `deadline`. What is invalidated later is MAP's to bring back.
    pub fn register(&self, windows: Windows, deadline: os::Time) -> Result {
        let Backing::Userptr(object) = &self.backing else { return Ok(()) };
        let inner = self.reserve()?;
        revalidate::settle(object, &inner.reservation, &windows, Missing::Fail, Wanted::Each, deadline)?;
        let mut inner = inner;
        inner.windows = Some(windows);
        Ok(())
    }

    /// Whether a GPU has it mapped.
    pub fn mapped_gpus(&self) -> u32 {
        let bit = |bits: u32, map: &Mapping| bits | 1 << map.vm.gpu_index();
        match &self.backing {
            Backing::Userptr(object) => object.lock().maps().iter().fold(0, bit),
            _ => self.inner.lock().maps.iter().fold(0, bit),
        }
    }

    fn is_mapped(&self, inner: &Inner, gpu: usize) -> bool {
        match &self.backing {
            Backing::Userptr(object) => object.lock().maps().iter().any(|m| m.vm.gpu_index() == gpu),
            _ => inner.maps.iter().any(|m| m.vm.gpu_index() == gpu),
        }
    }

    /// Maps it in a VM: one page-table update, one flush. Mapping again is no error, and looks
    /// again at ranges that were gone or denied. O(pages).
    pub fn map(&self, vm: &Arc<Vm>, deadline: os::Time) -> Result {
        let mut inner = self.reserve()?;
        if let Backing::Userptr(object) = &self.backing {
            return self.map_userptr(object, &inner, vm, deadline);
        }
        if self.is_mapped(&inner, vm.gpu_index()) {
            return Ok(());
        }
        if self.span.start().0 == 0 {
            // Memory without addresses: it is mapped through what a file of it becomes.
            return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
        }
        let leaves = vm.reserve(self.span)?;
        let gpu = &**vm.gpu();
        let mut access = pte::READABLE;
        if self.flags & abi::ALLOC_MEM_FLAGS_WRITABLE != 0 {
            access |= pte::WRITEABLE;
        }
        if self.flags & abi::ALLOC_MEM_FLAGS_EXECUTABLE != 0 {
            access |= pte::EXECUTABLE;
        }
        match &self.backing {
            Backing::Dma(memory) => {
                let pages = self.span.pages();
                leaves.write(gpu, 0, pages, |i| (Target::System(memory.page(self.first_page + i)), access));
            }
            Backing::Vram(blocks) => {
                let base = blocks.device.properties().vram_base.0;
                let (from, pages) = (self.first_page, self.span.pages());
                let (mut first, mut before) = (0, 0);
                for block in blocks.blocks() {
                    let skipped = from.saturating_sub(before).min(block.pages);
                    before += block.pages;
                    let here = (block.pages - skipped).min(pages - first);
                    let at = base + block.at.0 + skipped * PAGE;
                    leaves.write(gpu, first, here, |i| (Target::Vram(FabricAddr(at + i * PAGE)), access));
                    first += here;
                }
            }
            Backing::Userptr(_) => {}
        }
        vm.flush();
        inner.maps.push_reserved(Mapping { vm: vm.clone(), leaves });
        Ok(())
    }

    /// As [`map`](Self::map); SVM memory gives way to page tables, which are VRAM, too: a table for
    /// each 2 MiB, and one for each level above. Called without locks.
    pub(crate) fn map_with_room(&self, vm: &Arc<Vm>, deadline: os::Time) -> Result {
        let tables = self.span.pages().div_ceil(HUGE_PAGES).saturating_add(4);
        vm.device().with_room(tables, || self.map(vm, deadline))
    }

    fn map_userptr(&self, object: &Arc<Userptr>, inner: &Reserved<'_>, vm: &Arc<Vm>, deadline: os::Time) -> Result {
        let Some(windows) = &inner.windows else { return Err(Error::new(Errno::EINVAL, Reason::BadHandle)) };
        let fresh = !self.is_mapped(inner, vm.gpu_index());
        if fresh {
            let leaves = vm.reserve(self.span)?;
            object.lock().add_map(Mapping { vm: vm.clone(), leaves });
            self.write_valid(object, vm);
        }
        let settled = {
            let mut state = object.lock();
            state.retry_missing();
            let invalid = state.counts().0;
            drop(state);
            match invalid {
                0 => Ok(()),
                // What changes again meanwhile the device asks for.
                _ if object.process().xnack() => {
                    revalidate::converge(object, &inner.reservation, windows, Missing::Note, Wanted::All).map(|_| ())
                }
                _ => revalidate::settle(object, &inner.reservation, windows, Missing::Note, Wanted::All, deadline),
            }
        };
        match settled {
            // The memory would not hold still: mapped all the same, the restore goes on trying with
            // the queues stopped.
            Err(e) if e.reason == Reason::Deadline => object.request_restore(&mut object.lock()),
            Err(e) => {
                if fresh {
                    self.unmap_userptr(object, vm.gpu_index());
                }
                // What was to be looked at again is invalid now, and elsewhere the object may be
                // mapped.
                object.request_restore(&mut object.lock());
                return Err(e);
            }
            Ok(()) => {}
        }
        vm.flush();
        Ok(())
    }

    /// Writes the entries of all valid ranges into the mapping of `vm`, a step of pages for each
    /// hold of the notifier lock.
    fn write_valid(&self, object: &Userptr, vm: &Arc<Vm>) {
        let ranges = object.ranges();
        let mut range = 0;
        while range < ranges.len() {
            let state = object.lock();
            let Some(map) = state.maps().iter().find(|m| m.vm.gpu_index() == vm.gpu_index()) else { return };
            let mut step = 0;
            while range < ranges.len() && step < MAP_STEP {
                let (first, pages) = ranges.place(range);
                if state.range(range).1 == Status::Valid {
                    object.write_entries(&state, map, first, pages);
                }
                step += pages;
                range += 1;
            }
        }
    }

    /// Takes it off a GPU. Returns whether it was mapped there. O(pages).
    pub fn unmap(&self, gpu: usize) -> Result<bool> {
        let mut inner = self.reserve()?;
        if let Backing::Userptr(object) = &self.backing {
            let mapped = self.is_mapped(&inner, gpu);
            self.unmap_userptr(object, gpu);
            return Ok(mapped);
        }
        let at = inner.maps.iter().position(|m| m.vm.gpu_index() == gpu);
        if let Some(at) = at {
            let map = inner.maps.swap_remove(at);
            map.leaves.clear(&**map.vm.gpu(), 0, self.span.pages());
            map.vm.flush();
            map.vm.release(&map.leaves);
        }
        Ok(at.is_some())
    }

    /// The mapping stays with the object until its entries are gone: an invalidation that comes
    /// meanwhile must still find the GPU to stop, or the entries to clear.
    fn unmap_userptr(&self, object: &Userptr, gpu: usize) {
        let pages = self.span.pages();
        let mut first = 0;
        let mut vm = None;
        while first < pages {
            // Steps end where 2 MiB blocks do, because a block is cleared as a whole.
            let va_page = self.span.start().0 / PAGE + first;
            let step = (MAP_STEP - va_page % HUGE_PAGES).min(pages - first);
            let state = object.lock();
            let Some(map) = state.maps().iter().find(|m| m.vm.gpu_index() == gpu) else { return };
            map.leaves.clear(&**map.vm.gpu(), first, step);
            vm = Some(map.vm.clone());
            first += step;
        }
        let Some(vm) = vm else { return };
        vm.flush();
        let map = object.lock().remove_map(gpu);
        if let Some(map) = map {
            vm.release(&map.leaves);
        }
    }

    /// Ends it: no callback runs any more when this returns. EBUSY while mapped.
    pub fn free(&self) -> Result {
        let mut inner = self.reserve()?;
        let mapped = match &self.backing {
            Backing::Userptr(object) => !object.lock().maps().is_empty(),
            _ => !inner.maps.is_empty(),
        };
        if mapped {
            return Err(Error::new(Errno::EBUSY, Reason::StillMapped));
        }
        inner.freed = true;
        if let Backing::Userptr(object) = &self.backing {
            // Unmapped, so it does not get on a list again.
            object.process().eviction().lock().forget(self.number);
        }
        inner.charge = None;
        let windows = inner.windows.take();
        drop(inner);
        match &self.backing {
            Backing::Userptr(object) if object.process().sabotage().has(Switch::Unregister) => {
                core::mem::forget(windows)
            }
            _ => drop(windows),
        }
        Ok(())
    }

    /// Whether it is a userptr object with memory in `span`.
    pub(crate) fn has_cpu_memory_in(&self, span: CpuSpan) -> bool {
        let mut found = false;
        if let Some(object) = self.userptr() {
            object.ranges().overlapping(span, &mut |_| {
                found = true;
                false
            });
        }
        found
    }

    /// Keeps a userptr object's memory from being faulted in, once nobody is at it. `None` for
    /// another object, or one that has been freed.
    pub(crate) fn begin_move(&self) -> Option<Moving> {
        let object = self.userptr()?;
        let reserved = self.reserve().ok()?;
        Some(object.begin_move(&reserved.reservation))
    }

    /// Restores what is invalid. The object has been taken off the waiting list. Whether something
    /// is left to do.
    pub fn restore(&self) -> Result<bool> {
        let Some(object) = self.userptr() else { return Ok(false) };
        let inner = self.reserve()?;
        object.lock().no_longer_waiting();
        let Some(windows) = &inner.windows else { return Ok(false) };
        let converged = revalidate::converge(object, &inner.reservation, windows, Missing::Note, Wanted::All)?;
        Ok(converged.left > 0 && !object.lock().maps().is_empty())
    }

    /// Looks for memory that a restore did not find, while the queues run. If that does not settle
    /// they stop until the next restore has.
    pub fn look_again(&self) -> Result {
        let Some(object) = self.userptr() else { return Ok(()) };
        let inner = self.reserve()?;
        let Some(windows) = &inner.windows else { return Ok(()) };
        {
            let mut state = object.lock();
            state.no_longer_lacking();
            // With XNACK on the device faults for the pages that it needs.
            if object.process().xnack() {
                return Ok(());
            }
            state.look_for_missing();
        }
        let converged = revalidate::converge(object, &inner.reservation, windows, Missing::Note, Wanted::All);
        if converged.as_ref().is_ok_and(|converged| converged.left == 0) {
            return Ok(());
        }
        object.request_restore(&mut object.lock());
        converged.map(|_| ())
    }

    /// Restores for a fault of GPU number `gpu` at object page `page`: whether the device is to try
    /// again. The invalid ranges around it come along; the rest stays where it is, with more
    /// registered than there is memory for.
    pub fn serve_fault(&self, gpu: usize, page: u64, write: bool, deadline: os::Time) -> Result<bool> {
        let Some(object) = self.userptr() else { return Ok(false) };
        if write && object.access() == crate::seams::address_space::Access::Read {
            return Ok(false);
        }
        let inner = self.reserve()?;
        let Some(range) = object.ranges().of_page(page) else { return Ok(false) };
        let Some(windows) = &inner.windows else { return Ok(false) };
        // Where it is not mapped no retry finds an entry, and the device would retry for ever.
        if !self.is_mapped(&inner, gpu) {
            return Ok(false);
        }
        let wanted = {
            let mut state = object.lock();
            // Another fault may have brought it.
            if state.range(range).1 == Status::Valid {
                return Ok(true);
            }
            state.retry_missing();
            Wanted::Near(range, state.reach().block(object.va().0 / PAGE + page))
        };
        revalidate::settle(object, &inner.reservation, windows, Missing::Note, wanted, deadline)?;
        // Invalidated again just now: the device faults again.
        let status = object.lock().range(range).1;
        Ok(!matches!(status, Status::Gone | Status::Denied))
    }

    /// How many notifiers it has.
    pub fn window_count(&self) -> usize {
        self.inner.lock().windows.as_ref().map_or(0, Windows::len)
    }

    /// Bytes of driver memory held.
    pub fn memory(&self) -> u64 {
        let inner = self.inner.lock();
        let windows = inner.windows.as_ref().map_or(0, Windows::memory);
        let maps = inner.maps.memory() + inner.maps.iter().map(|m| m.leaves.memory()).sum::<u64>();
        let backing = match &self.backing {
            Backing::Vram(memory) => memory.blocks.memory(),
            Backing::Dma(_) => 0,
            Backing::Userptr(object) => object.memory(),
        };
        size_of::<Self>() as u64 + windows + maps + backing
    }
}
