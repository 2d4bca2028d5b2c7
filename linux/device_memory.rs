// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPUs' memory as pages of processes: the host's half of
//! [`vkfd_driver::seams::device_memory`].
//!
//! VRAM is memory of this computer, in a PCI device's BAR or kept for it by the machine, so
//! processors can use it in place: its pages are coherent ones. As an option (module parameter
//! `memory`) there are private ones for the same VRAM, which are moved back when a processor
//! touches them. The driver knows the owner of each part of the VRAM: it offers places, and a place
//! that has been used is the kernel's until its last reference has gone.
//!
//! The kernel says so in any context; a bitmap takes it down, and a work item tells the driver.
//!
//! [`GpuMemory::close`] ends it: nothing new is moved there, what is there is moved out, and only
//! then do the page structures go. Pages that somebody holds (I/O, a pipe) it waits for.
//!
//! Locks: `state` guards the map's being there and counts those who move pages with it; nobody
//! holds it over a move. `telling` is held while the driver is notified of free pages, so before
//! the driver's own locks.

use crate::atomic_bitmap::AtomicBitmap;
use crate::dev_pagemap::{self, Fault, FaultError, Kind, Owner, PageMap, Place};
use crate::machine::RemoteGpu;
use crate::migrate::{self, Lists, LockedPage, Mover, SourcePage};
use crate::sabotage::SWITCHES;
use core::mem::ManuallyDrop;
use core::ops::Range;
use kernel::bindings;
use kernel::mm::virt::VmaRef;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::{Arc, CondVar, Mutex, SetOnce};
use kernel::time::{delay::fsleep, Delta};
use kernel::types::Opaque;
use vkfd_driver::base::addr::{index, FabricAddr, VramOffset, PAGE};
use vkfd_driver::seams::device_memory::{DeviceMemory, Migration};
use vkfd_driver::base::errno::{Errno, Result as DriverResult};
use vkfd_driver::seams::gpu::Gpu;
use vkfd_driver::os::Vec;
use vkfd_sabotage::Switch;

/// Pages that are moved at a time.
pub(crate) const CHUNK: usize = 512;

/// Between two tries to move out what somebody holds.
const PAUSE: Delta = Delta::from_millis(10);
/// Tries until the log gives the reason of the delay.
const TRIES_UNTIL_WARNING: u32 = 200;

/// What the pages' owner is known by.
static OWNER: u8 = 0;

/// The owner of all GPUs' pages.
pub(crate) fn owner() -> Owner {
    Owner::new(&OWNER)
}

/// What callbacks work on.
#[pin_data(PinnedDrop)]
pub(crate) struct Pages {
    gpu: Arc<RemoteGpu>,
    /// Whom pages are given back to: from the first move on.
    driver: SetOnce<Arc<dyn DeviceMemory>>,
    /// Places that are being tried: if such a page becomes free, it is the driver's as it was.
    offered: AtomicBitmap,
    /// Free, and the driver has not been told.
    free: AtomicBitmap,
    /// Held while the driver is told.
    #[pin]
    telling: Mutex<()>,
    #[pin]
    report: Opaque<bindings::work_struct>,
}

// SAFETY: the work item is initialised for good, and queueing it is allowed to everyone; the rest
// may be sent.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(gpu: Arc<RemoteGpu>) -> Result<impl PinInit<Self>> {
        let pages = index(gpu.properties().vram_bytes / PAGE);
        let (offered, free) = (AtomicBitmap::new(pages)?, AtomicBitmap::new(pages)?);
        Ok(pin_init!(Self {
            gpu,
            driver: SetOnce::new(),
            offered,
            free,
            telling <- kernel::new_mutex!((), "vkfd_device_pages_telling"),
            report <- Opaque::ffi_init(|slot| {
                let (name, key) = (c"vkfd_device_pages", kernel::static_lock_class!());
                // SAFETY: `slot` stays where it is; `serve` finds its value around the work it is
                // given.
                unsafe {
                    bindings::init_work_with_key(slot, Some(Self::serve), false, name.as_char_ptr(), key.as_ptr());
                }
            }),
        }))
    }

    /// Tells the driver what is free. What others are just telling has been told, too, when this
    /// returns. Without locks. O(1) if nothing is free, else as [`AtomicBitmap::drain`].
    fn tell(&self) {
        let _one = self.telling.lock();
        let Some(driver) = self.driver.as_ref().filter(|_| self.free.count() > 0) else { return };
        self.free.drain(|run| driver.released(place(run.start), run.len() as u64));
    }

    unsafe extern "C" fn serve(work: *mut bindings::work_struct) {
        let work: *mut Opaque<bindings::work_struct> = work.cast();
        if SWITCHES.has(Switch::TellFreeLate) {
            fsleep(PAUSE);
        }
        // SAFETY: the work is the `report` of a `Pages`, which waits for it before it goes.
        unsafe { &*kernel::container_of!(work, Self, report) }.tell();
    }
}

#[pinned_drop]
impl PinnedDrop for Pages {
    fn drop(self: Pin<&mut Self>) {
        // Nobody queues it any more: no page is in use.
        // SAFETY: initialised.
        unsafe { bindings::cancel_work_sync(self.report.get()) };
        self.tell();
    }
}

impl dev_pagemap::Operations for Pages {
    fn owner() -> Owner {
        owner()
    }

    fn freed(&self, page: usize) {
        if self.offered.clear(page) || SWITCHES.has(Switch::ForgetFree) {
            return;
        }
        self.free.set(page);
        let cpu = bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int;
        // SAFETY: the work is initialised, and waited for before it goes. In any context.
        unsafe { bindings::queue_work_on(cpu, bindings::system_dfl_wq, self.report.get()) };
    }

    fn move_to_ram(&self, page: usize, fault: &Fault<'_>) -> Result<(), FaultError> {
        let mut mover = OnFault { pages: self, page, fault, oom: false, moved: false };
        let result = migrate::back_on_fault(fault, owner(), &mut mover);
        // The kernel has the page until this returns: its place is not free yet.
        if let Some(driver) = self.driver.as_ref().filter(|_| mover.moved) {
            driver.came_back(place(page), 1);
        }
        match result {
            Ok(()) if mover.oom => Err(FaultError::Oom),
            Ok(()) => Ok(()),
            Err(_) => Err(FaultError::Sigbus),
        }
    }
}

/// Moves the page that a processor has touched.
struct OnFault<'a> {
    pages: &'a Pages,
    page: usize,
    fault: &'a Fault<'a>,
    oom: bool,
    moved: bool,
}

impl Mover for OnFault<'_> {
    fn place(&mut self, _: usize, source: Option<&SourcePage<'_>>) -> Option<LockedPage> {
        source?;
        let target = LockedPage::new(Some((self.fault.vma(), self.fault.address())));
        self.oom = target.is_none();
        let target = target?;
        copy_out(&self.pages.gpu, self.page, &target);
        Some(target)
    }

    fn moved(&mut self, _: usize) {
        self.moved = true;
    }
}

/// Moves pages out of a GPU, whichever owner has them.
struct Out<'a> {
    map: &'a PageMap<Pages>,
    /// How many moved.
    moved: u64,
}

impl Mover for Out<'_> {
    fn place(&mut self, _: usize, source: Option<&SourcePage<'_>>) -> Option<LockedPage> {
        let page = source?.frame().checked_sub(self.map.first_frame())?;
        let target = LockedPage::new(None)?;
        copy_out(&self.map.data().gpu, page, &target);
        Some(target)
    }

    fn moved(&mut self, _: usize) {
        self.moved += 1;
    }
}

fn place(page: usize) -> VramOffset {
    VramOffset((page as u64) << PAGE_SHIFT)
}

/// Copies the contents of a page of VRAM out, to one of ordinary memory.
fn copy_out(gpu: &RemoteGpu, page: usize, to: &LockedPage) {
    if SWITCHES.has(Switch::EmptyToSystem) {
        return;
    }
    // SAFETY: a page of ordinary memory, nobody else's yet.
    unsafe { gpu.bar().read_page(gpu.bar_offset(place(page)), to.address()) };
}

/// The map, as long as it is there.
struct State {
    map: Option<Arc<PageMap<Pages>>>,
    /// The threads that are moving pages to it.
    users: u32,
}

/// A GPU's memory of one kind.
#[pin_data]
pub(crate) struct GpuMemory {
    gpu: Arc<RemoteGpu>,
    kind: Kind,
    /// Frame numbers of the pages.
    frames: Range<usize>,
    #[pin]
    state: Mutex<State>,
    #[pin]
    idle: CondVar,
}

impl GpuMemory {
    /// Makes pages for the VRAM of `gpu`.
    fn new(gpu: &Arc<RemoteGpu>, kind: Kind) -> Result<Arc<Self>> {
        let bytes = gpu.properties().vram_bytes;
        let start = gpu.bar().phys(gpu.bar_offset(VramOffset(0)));
        let place = match kind {
            Kind::Coherent => Place::At(start..start + bytes),
            Kind::Private => Place::Anywhere(index(bytes), c"vkfd VRAM"),
        };
        // SAFETY: VRAM is this driver's, and memory; it is mapped, cached, as long as there is the
        // GPU, which `Pages` holds.
        let map = unsafe { PageMap::new(place, Pages::new(gpu.clone())?) };
        let map: Arc<PageMap<Pages>> = Arc::pin_init(map, GFP_KERNEL)?;
        let frames = map.first_frame()..map.first_frame() + map.pages();
        Arc::pin_init(
            pin_init!(Self {
                gpu: gpu.clone(),
                kind,
                frames,
                state <- kernel::new_mutex!(State { map: Some(map), users: 0 }, "vkfd_device_memory"),
                idle <- kernel::new_condvar!("vkfd_device_memory_idle"),
            }),
            GFP_KERNEL,
        )
    }

    /// Of `gpu`, of the kinds that `wanted` has. One that cannot be had is left out, with a line in
    /// the log.
    pub(crate) fn of(gpu: &Arc<RemoteGpu>, wanted: Migration) -> Result<Vec<Arc<Self>>> {
        let mut all = Vec::with_capacity(2)?;
        for (kind, wanted) in [(Kind::Coherent, wanted.coherent), (Kind::Private, wanted.private)] {
            if !wanted {
                continue;
            }
            match Self::new(gpu, kind) {
                Ok(memory) => {
                    all.push_reserved(memory);
                }
                Err(error) => {
                    let id = gpu.properties().gpu_id;
                    pr_warn!("gpu {id:#x}: no {kind:?} pages for its memory: {error:?}; nothing can be moved there\n");
                }
            }
        }
        Ok(all)
    }

    /// Where page number `page` is for GPUs.
    fn fabric(&self, page: usize) -> FabricAddr {
        FabricAddr(self.gpu.properties().vram_base.0 + place(page).0)
    }

    /// The map, for moving pages. None when there is no more moving.
    fn enter(&self) -> Option<User<'_>> {
        let mut state = self.state.lock();
        let map = state.map.clone()?;
        state.users += 1;
        Some(User { memory: self, map: ManuallyDrop::new(map) })
    }

    /// Moves everything out. No page is left when this returns.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let Some(map) = state.map.take() else { return };
        while state.users > 0 {
            self.idle.wait(&mut state);
        }
        drop(state);
        let mut tries = 0;
        while map.used() > 0 {
            let evicted = evict(&map, 0..map.pages());
            if map.used() == 0 {
                break;
            }
            tries += 1;
            if tries == TRIES_UNTIL_WARNING {
                let why = if evicted.is_ok() { "I/O or a pipe has them" } else { "there is no memory to move them to" };
                let id = self.gpu.properties().gpu_id;
                pr_warn!("gpu {id:#x}: {} pages of its memory are still in use: {why}\n", map.used());
            }
            fsleep(PAUSE);
        }
    }
}

/// Moves `pages` out, whichever owner has them. How many moved.
fn evict(map: &PageMap<Pages>, pages: impl ExactSizeIterator<Item = usize>) -> Result<u64> {
    let mut lists = Lists::new(CHUNK.min(pages.len()))?;
    let mut used = pages.filter(|page| map.is_used(*page)).peekable();
    let mut out = Out { map, moved: 0 };
    while used.peek().is_some() {
        migrate::evict(map, used.by_ref().take(CHUNK), &mut lists, &mut out)?;
    }
    Ok(out.moved)
}

/// Someone who moves pages to a GPU: it does not go meanwhile.
struct User<'a> {
    memory: &'a GpuMemory,
    map: ManuallyDrop<Arc<PageMap<Pages>>>,
}

impl User<'_> {
    fn map(&self) -> &PageMap<Pages> {
        &self.map
    }

    fn pages(&self) -> &Pages {
        self.map.data()
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        // Before it is counted out. Not the last reference: that is `close`'s, which waits for it.
        // SAFETY: not used any more.
        unsafe { ManuallyDrop::drop(&mut self.map) };
        let mut state = self.memory.state.lock();
        state.users -= 1;
        if state.users == 0 {
            self.memory.idle.notify_all();
        }
    }
}

/// The memory of all GPUs.
pub(crate) struct Memories(Vec<Arc<GpuMemory>>);

impl Memories {
    /// All of them.
    pub(crate) fn new(all: Vec<Arc<GpuMemory>>) -> Self {
        Self(all)
    }

    /// What kinds of moves there are.
    pub(crate) fn migration(&self) -> Migration {
        let any = |kind| self.0.iter().any(|memory| memory.kind == kind);
        Migration { coherent: any(Kind::Coherent), private: any(Kind::Private) }
    }

    fn locate(&self, frame: usize) -> Option<(&GpuMemory, usize)> {
        let memory = self.0.iter().find(|memory| memory.frames.contains(&frame))?;
        Some((memory, frame - memory.frames.start))
    }

    /// Where a page is for GPUs, if it is one of a GPU.
    pub(crate) fn fabric(&self, frame: usize) -> Option<FabricAddr> {
        self.locate(frame).map(|(memory, page)| memory.fabric(page))
    }

    /// The driver has been told what is free by now when this returns, instead of in a moment: it
    /// may be waiting for it. Without locks.
    pub(crate) fn settle(&self) {
        for memory in self.0.iter() {
            if let Some(user) = memory.enter() {
                user.pages().tell();
            }
        }
    }

    fn of(&self, device: &dyn DeviceMemory) -> DriverResult<User<'_>> {
        let kind = if device.coherent() { Kind::Coherent } else { Kind::Private };
        let same = |memory: &&Arc<GpuMemory>| memory.kind == kind && memory.gpu.properties().gpu_id == device.gpu_id();
        let memory = self.0.iter().find(same).ok_or(Errno::EOPNOTSUPP)?;
        Ok(memory.enter().ok_or(Errno::ENODEV)?)
    }

    /// Moves pages of the memory of `device` out, whichever owner has them, and tells the driver
    /// what is free by that. How many moved. Without locks.
    pub(crate) fn evict(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> DriverResult<u64> {
        if SWITCHES.has(Switch::KeepOthers) {
            return Ok(0);
        }
        let user = self.of(device)?;
        let moved = evict(user.map(), places.iter().map(|at| index(at.0 >> PAGE_SHIFT)));
        user.pages().tell();
        Ok(moved?)
    }

    /// The mover of pages to the memory of `device`. EOPNOTSUPP for memory without pages of
    /// that kind, ENODEV when the GPU has gone, EINVAL for another description of it than before.
    pub(crate) fn target(&self, device: &Arc<dyn DeviceMemory>) -> DriverResult<Target<'_>> {
        let user = self.of(&**device)?;
        let driver = &user.pages().driver;
        driver.populate(device.clone());
        if !driver.as_ref().is_some_and(|first| core::ptr::addr_eq(&raw const **first, &raw const **device)) {
            return Err(Errno::EINVAL.into());
        }
        Ok(Target(user))
    }
}

/// A GPU's memory, to move pages to.
pub(crate) struct Target<'a>(User<'a>);

impl Target<'_> {
    /// The move of pages to `places`.
    pub(crate) fn mover<'a>(&'a self, places: &'a mut [Option<VramOffset>]) -> IntoDevice<'a> {
        IntoDevice { map: self.0.map(), places, offered: 0, moved: 0 }
    }
}

/// How a move went.
pub(crate) struct Moved {
    pub(crate) pages: u64,
    /// Whether what is at an address changed between the offer of a place and the end of the move.
    /// The next move may find it at rest.
    pub(crate) changed_meanwhile: bool,
}

/// Moves pages to a GPU's memory, each to its place.
pub(crate) struct IntoDevice<'a> {
    map: &'a PageMap<Pages>,
    places: &'a mut [Option<VramOffset>],
    offered: u64,
    moved: u64,
}

impl IntoDevice<'_> {
    fn page(&self, index: usize) -> Option<usize> {
        let VramOffset(at) = (*self.places.get(index)?)?;
        usize::try_from(at >> PAGE_SHIFT).ok().filter(|_| at % PAGE == 0)
    }

    /// When the move is over.
    pub(crate) fn finish(self) -> Moved {
        for i in 0..self.places.len() {
            // A place whose page did not move, but is not free: somebody has come across it and
            // holds it for a moment. It is given back like any other.
            if self.page(i).is_some_and(|page| self.map.data().offered.clear(page)) {
                self.places[i] = None;
            }
        }
        Moved { pages: self.moved, changed_meanwhile: self.moved < self.offered }
    }
}

impl Mover for IntoDevice<'_> {
    fn place(&mut self, index: usize, source: Option<&SourcePage<'_>>) -> Option<LockedPage> {
        let page = self.page(index)?;
        if source.is_some_and(|source| !source.is_anonymous()) {
            return None;
        }
        let pages = self.map.data();
        let target = self.map.take(page)?;
        pages.offered.set(page);
        let (bar, at) = (pages.gpu.bar(), pages.gpu.bar_offset(place(page)));
        match source {
            Some(_) if SWITCHES.has(Switch::EmptyToDevice) => {}
            // SAFETY: a page of ordinary memory: those of devices were not selected.
            Some(source) => unsafe { bar.write_page(at, source.address()) },
            None => bar.zero_page(at),
        }
        self.offered += 1;
        Some(target)
    }

    fn moved(&mut self, index: usize) {
        if let Some(page) = self.page(index) {
            self.map.data().offered.clear(page);
            self.places[index] = None;
            self.moved += 1;
        }
    }
}

/// Moves pages of any GPU back to ordinary memory.
pub(crate) struct IntoSystem<'a> {
    memories: &'a Memories,
    vma: &'a VmaRef,
    start: usize,
    /// How many moved.
    pub(crate) moved: u64,
}

impl<'a> IntoSystem<'a> {
    /// Of `vma`, from `start` on.
    pub(crate) fn new(memories: &'a Memories, vma: &'a VmaRef, start: usize) -> Self {
        Self { memories, vma, start, moved: 0 }
    }
}

impl Mover for IntoSystem<'_> {
    fn place(&mut self, index: usize, source: Option<&SourcePage<'_>>) -> Option<LockedPage> {
        let (memory, page) = self.memories.locate(source?.frame())?;
        let target = LockedPage::new(Some((self.vma, self.start + index * PAGE_SIZE)))?;
        copy_out(&memory.gpu, page, &target);
        Some(target)
    }

    fn moved(&mut self, _: usize) {
        self.moved += 1;
    }
}
