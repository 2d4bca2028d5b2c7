// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A host made for tests: CPU memory that is a table of pages, and a GPU that is an array of
//! entries. Both do exactly what a test tells them, at the moment that it says: that is how races
//! become tests that always run the same way.
#![allow(dead_code)] // each test file uses its part

#[allow(unused_imports, reason = "not every test uses all of it")]
pub use rig::{Rig, GPU_ID, WRITABLE_USERPTR};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Mapping, Page, Seq, Watch};
use vkfd_driver::seams::device_memory::{DeviceMemory, Kind, Migration};
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, GpuProperties, HwQueue, QueueSpec, Vmid};
use vkfd_uapi::pod::Pod;

mod dma;
pub mod files;
#[cfg(vkfd_shuttle)]
pub mod interleaved;
pub mod migrate;
mod rig;
pub mod svm;
pub mod user;

#[derive(Clone)]
struct CpuPage {
    frame: u64,
    writable: bool,
    /// In a GPU's memory, which the frame is of.
    device: Option<(Arc<dyn DeviceMemory>, VramOffset)>,
}

/// What is about to change.
#[derive(Clone, Copy)]
enum Change {
    Pages,
    /// In whose memory they are.
    Place,
    /// Whether they are mapped.
    Mapping,
}

type Watched = (u64, CpuSpan, Arc<dyn Invalidate>);
type Hook = Box<dyn Fn(&SimMm, &[CpuSpan]) + Send + Sync>;
type LookHook = Box<dyn Fn(&SimMm, CpuSpan, bool) + Send + Sync>;
type OnceHook = Box<dyn FnOnce(&SimMm) + Send + Sync>;

/// CPU memory. Caller memory for `read` and `write` is the test's own (real pointers); what is
/// registered is the table's.
#[derive(Default)]
pub struct SimMm {
    pages: Mutex<BTreeMap<u64, CpuPage>>,
    /// Pages that only a forked child has any more.
    childs: Mutex<BTreeMap<u64, CpuPage>>,
    watches: Mutex<Vec<Watched>>,
    next: AtomicU64,
    seq: AtomicU64,
    /// Invalidations under way: told, not yet done.
    flight: Mutex<Vec<CpuSpan>>,
    /// Called after pages were faulted and before the driver gets them.
    after_fault: Mutex<Option<Arc<Hook>>>,
    /// Called when a call next waits for late notifications.
    at_settle: Mutex<Option<Box<dyn FnOnce() + Send + Sync>>>,
    /// Called before the next watch is there.
    before_watch: Mutex<Option<OnceHook>>,
    /// Called after each question whether memory is mapped, with the answer, before the driver gets
    /// it.
    after_look: Mutex<Option<Arc<LookHook>>>,
    /// Called after pages have moved to system memory.
    after_move_out: Mutex<Option<OnceHook>>,
    /// Called while pages are about to move to a GPU: reported, and not moved yet.
    before_move: Mutex<Option<Arc<Hook>>>,
    /// Faults that shall end with this error, by page.
    pub faults: Mutex<BTreeMap<u64, Errno>>,
    pub fault_calls: AtomicU64,
    pub pages_faulted: AtomicU64,
    pub mapped_calls: AtomicU64,
    /// Pages at which another mapping begins, although those before are mapped, too.
    pub seams: Mutex<BTreeSet<u64>>,
    /// Pages of malloc's heap.
    pub heap: Mutex<std::ops::Range<u64>>,
    /// What memory holds, by frame; a thread that reaches a frame reads and writes this.
    pub data: Mutex<BTreeMap<u64, u64>>,
    /// Pages that will not move.
    pub pinned: Mutex<BTreeSet<u64>>,
    /// Migrations to this memory only: none is not able to.
    pub kind: Mutex<Option<Kind>>,
    pub moves: AtomicU64,
    /// The only caller's memory that can be read and written, where a test names addresses that are
    /// none. Real pointers otherwise.
    pub caller: Mutex<Option<std::ops::Range<u64>>>,
    /// What the next move to a GPU ends with, when pages have moved.
    pub move_error: Mutex<Option<Errno>>,
}

/// Where other threads may run: under a scheduler that explores interleavings, this is a choice.
fn turn() {
    os::sleep(std::time::Duration::ZERO);
}

struct SimWatch {
    id: u64,
    span: CpuSpan,
    mm: Arc<SimMm>,
}

impl Watch for SimWatch {
    fn span(&self) -> CpuSpan {
        self.span
    }
    fn read_begin(&self) -> Seq {
        while self.mm.flight.lock().unwrap().iter().any(|f| f.overlaps(self.span)) {
            os::sleep(std::time::Duration::from_micros(50));
        }
        Seq(self.mm.seq.load(Ordering::SeqCst))
    }
    fn read_retry(&self, seq: Seq) -> bool {
        Seq(self.mm.seq.load(Ordering::SeqCst)) != seq
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimWatch {
    fn drop(&mut self) {
        self.mm.watches.lock().unwrap().retain(|w| w.0 != self.id);
    }
}

/// The memory as the driver holds it.
pub struct Mm(pub Arc<SimMm>);

impl SimMm {
    /// Maps pages `[first, first + count)`, each to a fresh frame.
    pub fn map(&self, first: u64, count: u64, writable: bool) {
        let mut pages = self.pages.lock().unwrap();
        for page in first..first + count {
            let frame = 0x1000 + self.next.fetch_add(1, Ordering::SeqCst);
            pages.insert(page, CpuPage { frame, writable, device: None });
        }
    }

    /// The frame of a page.
    pub fn frame(&self, page: u64) -> Option<u64> {
        self.pages.lock().unwrap().get(&page).map(|p| p.frame)
    }

    /// Tells the watchers, without a change. Whether all agreed.
    pub fn notify(&self, first: u64, count: u64, blockable: bool) -> bool {
        self.notify_as(first, count, blockable, Change::Pages)
    }

    fn notify_as(&self, first: u64, count: u64, blockable: bool, what: Change) -> bool {
        self.seq.fetch_add(1, Ordering::SeqCst);
        let span = CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE));
        let clients: Vec<_> = {
            let watches = self.watches.lock().unwrap();
            watches.iter().filter(|w| w.1.overlaps(span)).map(|w| w.2.clone()).collect()
        };
        clients.iter().all(|client| match what {
            Change::Pages => client.invalidate(span, blockable),
            Change::Place => client.migrating(span, blockable),
            Change::Mapping => client.unmapped(span, blockable),
        })
    }

    /// Tells the watchers, changes, and ends the invalidation.
    fn change(&self, what: Change, first: u64, count: u64, f: impl FnOnce()) {
        turn();
        let span = CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE));
        self.flight.lock().unwrap().push(span);
        self.notify_as(first, count, true, what);
        turn();
        f();
        let mut flight = self.flight.lock().unwrap();
        let own = flight.iter().position(|f| *f == span).unwrap();
        flight.swap_remove(own);
    }

    /// Takes pages away, as munmap does: told first, gone then.
    pub fn unmap(&self, first: u64, count: u64) {
        self.change(Change::Mapping, first, count, || self.take(first, count));
    }

    /// As [`unmap`](Self::unmap), but a forked child keeps the pages.
    pub fn leave_to_child(&self, first: u64, count: u64) {
        self.change(Change::Mapping, first, count, || {
            for page in first..first + count {
                let taken = self.pages.lock().unwrap().remove(&page).unwrap();
                self.childs.lock().unwrap().insert(page, taken);
            }
        });
    }

    /// As [`unmap`](Self::unmap), by a host that cannot tell an unmap from another change.
    pub fn unmap_untold(&self, first: u64, count: u64) {
        self.change(Change::Pages, first, count, || self.take(first, count));
    }

    fn take(&self, first: u64, count: u64) {
        let mut gone = Vec::new();
        for page in first..first + count {
            gone.extend(self.pages.lock().unwrap().remove(&page));
        }
        self.let_go(gone);
    }

    /// Takes all pages away, when nobody listens any more.
    pub fn end(&self) {
        let pages = std::mem::take(&mut *self.pages.lock().unwrap());
        self.let_go(pages.into_values().collect());
    }

    /// Gives pages new frames, as a discard or a migration does.
    pub fn renew(&self, first: u64, count: u64) {
        self.change(Change::Pages, first, count, || {
            let mut old = Vec::new();
            for page in first..first + count {
                let frame = 0x1000 + self.next.fetch_add(1, Ordering::SeqCst);
                let new = CpuPage { frame, writable: true, device: None };
                old.extend(self.pages.lock().unwrap().insert(page, new));
            }
            self.let_go(old);
        });
    }

    /// EFAULT for memory that is known not to be the caller's.
    fn check_caller(&self, at: CpuVa, bytes: usize) -> Result {
        let inside = match &*self.caller.lock().unwrap() {
            Some(caller) => at.0 >= caller.start && at.0.checked_add(bytes as u64).is_some_and(|end| end <= caller.end),
            None => at.0 >= PAGE,
        };
        if bytes > 0 && !inside {
            return Err(Errno::EFAULT.into());
        }
        Ok(())
    }

    /// Whether some page has this frame.
    pub fn is_live(&self, frame: u64) -> bool {
        self.pages.lock().unwrap().values().any(|p| p.frame == frame)
    }

    /// Runs `hook` when a call next waits for late notifications.
    pub fn at_settle(&self, hook: impl FnOnce() + Send + Sync + 'static) {
        *self.at_settle.lock().unwrap() = Some(Box::new(hook));
    }

    /// Runs `hook` before the next watch is there.
    pub fn before_watch(&self, hook: impl FnOnce(&SimMm) + Send + Sync + 'static) {
        *self.before_watch.lock().unwrap() = Some(Box::new(hook));
    }

    /// Runs `hook` after each question whether memory is mapped.
    pub fn after_look(&self, hook: impl Fn(&SimMm, CpuSpan, bool) + Send + Sync + 'static) {
        *self.after_look.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    /// Runs `hook` when pages have moved to system memory the next time.
    pub fn after_move_out(&self, hook: impl FnOnce(&SimMm) + Send + Sync + 'static) {
        *self.after_move_out.lock().unwrap() = Some(Box::new(hook));
    }

    /// Runs `hook` after each fault.
    pub fn after_fault(&self, hook: impl Fn(&SimMm, &[CpuSpan]) + Send + Sync + 'static) {
        *self.after_fault.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    /// Runs `hook` before each move to a GPU.
    pub fn before_move(&self, hook: impl Fn(&SimMm, &[CpuSpan]) + Send + Sync + 'static) {
        *self.before_move.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    pub fn no_hook(&self) {
        *self.after_fault.lock().unwrap() = None;
        *self.after_look.lock().unwrap() = None;
    }

    pub fn watch_count(&self) -> usize {
        self.watches.lock().unwrap().len()
    }
}

impl AddressSpace for Mm {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        self.0.check_caller(from, to.len())?;
        // SAFETY: tests pass pointers to their own live memory, or ones that were refused above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        self.0.check_caller(to, from.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        Ok(())
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        os::failpoint(FailPoint::Watch)?;
        let hook = self.0.before_watch.lock().unwrap().take();
        if let Some(hook) = hook {
            hook(&self.0);
        }
        let id = self.0.next.fetch_add(1, Ordering::SeqCst);
        self.0.watches.lock().unwrap().push((id, span, client));
        Ok(Arc::new(SimWatch { id, span, mm: self.0.clone() }))
    }

    fn fault(&self, _: &dyn Watch, _: Seq, spans: &[CpuSpan], access: Access, out: &mut [Page]) -> Faulted {
        self.0.fault_calls.fetch_add(1, Ordering::SeqCst);
        let mut done = Faulted { spans: 0, error: None };
        let mut at = 0;
        'spans: for span in spans {
            for page in span.start().0 / PAGE..span.end().0 / PAGE {
                let error = self.0.faults.lock().unwrap().get(&page).copied();
                let found = self.0.pages.lock().unwrap().get(&page).cloned();
                done.error = match (error, found) {
                    (Some(e), _) => Some(e),
                    (None, None) => Some(Errno::EFAULT),
                    (None, Some(p)) if access == Access::Write && !p.writable => Some(Errno::EPERM),
                    (None, Some(p)) => {
                        let writable = access == Access::Write;
                        out[at] = match p.device {
                            Some(_) => Page::device(FabricAddr(p.frame * PAGE), writable),
                            None => Page::new(PhysAddr(p.frame * PAGE), writable),
                        };
                        at += 1;
                        None
                    }
                };
                if done.error.is_some() {
                    break 'spans;
                }
            }
            done.spans += 1;
        }
        self.0.pages_faulted.fetch_add(at as u64, Ordering::SeqCst);
        turn();
        let hook = self.0.after_fault.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(&self.0, spans);
        }
        done
    }

    fn migration(&self) -> Migration {
        self.0.migration()
    }

    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        os::failpoint(FailPoint::Migrate)?;
        let moved = self.0.move_in(span, device, places);
        self.0.move_error.lock().unwrap().take().map_or(Ok(moved), |error| Err(error.into()))
    }

    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        os::failpoint(FailPoint::Migrate)?;
        let moved = self.0.move_out(span);
        let hook = self.0.after_move_out.lock().unwrap().take();
        if let Some(hook) = hook {
            hook(&self.0);
        }
        Ok(moved)
    }

    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        Ok(self.0.move_out_places(device, places))
    }

    fn settle(&self) {
        let hook = self.0.at_settle.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        self.0.mapped_calls.fetch_add(1, Ordering::SeqCst);
        let there = |pages: &BTreeMap<u64, CpuPage>| {
            (span.start().0 / PAGE..span.end().0.div_ceil(PAGE)).all(|p| pages.contains_key(&p))
        };
        let mapped = there(&self.0.pages.lock().unwrap());
        let hook = self.0.after_look.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(&self.0, span, mapped);
        }
        mapped
    }

    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        let page = at.0 / PAGE;
        let (start, end) = {
            let seams = self.0.seams.lock().unwrap();
            let start = seams.range(..=page).next_back().map_or(0, |seam| seam * PAGE);
            let end = seams.range(page + 1..).next().map_or(u64::MAX, |seam| seam * PAGE);
            (CpuVa(start), CpuVa(end))
        };
        let span = CpuSpan::between(span.start().max(start), span.end().min(end));
        let found = Mapping::without_holes(at, span, |page| self.mapped(page))?;
        Some(Mapping { heap_or_stack: self.0.heap.lock().unwrap().contains(&page), ..found })
    }

    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        let pages = self.0.pages.lock().unwrap();
        let faults = self.0.faults.lock().unwrap();
        // What faults with EPERM is as PROT_NONE.
        let forbidden = |page: u64| faults.get(&page) == Some(&Errno::EPERM);
        let reached = |(page, p): &(&u64, &CpuPage)| (p.writable || access == Access::Read) && !forbidden(**page);
        let first = pages.range(span.start().0 / PAGE..span.end().0 / PAGE).find(reached);
        first.map_or(span.bytes(), |(page, _)| page * PAGE - span.start().0)
    }

    fn is_current(&self) -> bool {
        true
    }
}

/// A GPU: VRAM to walk, and a record of the calls that it got.
pub struct SimGpu {
    properties: GpuProperties,
    vram: Vec<AtomicU64>,
    roots: Mutex<BTreeMap<u32, u64>>,
    next_dma: AtomicU64,
    suspended: Mutex<BTreeSet<u32>>,
    pub suspends: AtomicU64,
    pub flushes: AtomicU64,
    pub entry_writes: AtomicU64,
    pub faults_served: Mutex<Vec<(u64, bool)>>,
}

impl SimGpu {
    pub fn new(gpu_id: u32, vram_pages: u64) -> Arc<Self> {
        Arc::new(Self {
            properties: GpuProperties {
                gpu_id,
                vram_bytes: vram_pages * PAGE,
                vram_base: FabricAddr(u64::from(gpu_id) << 30),
                vmids: 8,
                gfx_target_version: 90000,
                model: *vkfd_driver::targets::Target::Gfx900.model(),
                xnack_capable: true,
                clock_hz: 1_000_000_000,
            },
            vram: (0..vram_pages * 512).map(|_| AtomicU64::new(0)).collect(),
            roots: Mutex::default(),
            next_dma: AtomicU64::new(0x7000_0000_0000),
            suspended: Mutex::default(),
            suspends: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            entry_writes: AtomicU64::new(0),
            faults_served: Mutex::default(),
        })
    }

    pub fn is_suspended(&self) -> bool {
        !self.suspended.lock().unwrap().is_empty()
    }

    /// An access of a queue: unless it is suspended, the frame that it reaches is given to `f`.
    /// Suspending waits for it.
    pub fn access(&self, va: u64, f: impl FnOnce(Option<u64>)) {
        let suspended = self.suspended.lock().unwrap();
        if suspended.is_empty() {
            f(self.walk(va));
        }
    }

    /// The frame that the first VMID's tables give for a GPU address, walked by an own reading of
    /// the format.
    pub fn walk(&self, va: u64) -> Option<u64> {
        self.entry(va).map(|(frame, _)| frame)
    }

    /// The frame, and the entry that gives it.
    pub fn entry(&self, va: u64) -> Option<(u64, u64)> {
        let mut table = *self.roots.lock().unwrap().values().next()?;
        for shift in [39, 30, 21, 12] {
            let at = (table - self.properties.vram_base.0) / 8 + ((va >> shift) & 511);
            let entry = self.vram[usize::try_from(at).unwrap()].load(Ordering::SeqCst);
            if entry & 1 == 0 {
                return None;
            }
            let address = entry & 0xffff_ffff_f000;
            if shift == 12 {
                self.check_fragment(table, va, entry);
                return Some((address >> 12, entry));
            }
            if entry >> 54 & 1 != 0 {
                return Some(((address >> 12) + ((va >> 12) & 511), entry));
            }
            table = address;
        }
        None
    }

    /// A fragment says of all its entries what they are: each must say the same.
    fn check_fragment(&self, table: u64, va: u64, entry: u64) {
        let pages = 1u64 << (entry >> 7 & 31);
        let here = (va >> 12) & 511;
        let first = here & !(pages - 1);
        let base = entry.wrapping_sub((here - first) << 12);
        assert_eq!((base >> 12) & (pages - 1), 0, "fragments are aligned");
        for page in 0..pages {
            let at = (table - self.properties.vram_base.0) / 8 + first + page;
            let other = self.vram[usize::try_from(at).unwrap()].load(Ordering::SeqCst);
            assert_eq!(other, base + (page << 12), "entry {page} of a fragment of {pages} pages at {va:#x}");
        }
    }

    fn word(&self, at: VramOffset) -> &AtomicU64 {
        &self.vram[usize::try_from(at.0 / 8).unwrap()]
    }
}

/// The GPU as the driver holds it.
pub struct Device(pub Arc<SimGpu>);

impl Gpu for Device {
    fn properties(&self) -> &GpuProperties {
        &self.0.properties
    }
    fn read_entry(&self, at: VramOffset) -> u64 {
        self.0.word(at).load(Ordering::SeqCst)
    }
    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        self.0.entry_writes.fetch_add(count, Ordering::SeqCst);
        for i in 0..count {
            self.0.word(VramOffset(at.0 + i * 8)).store(first + step * i, Ordering::SeqCst);
        }
    }
    fn clear(&self, at: VramOffset, bytes: u64) {
        self.write_entries(at, 0, 0, bytes / 8);
    }
    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, _: bool) {
        let mut roots = self.0.roots.lock().unwrap();
        match root {
            Some(root) => roots.insert(vmid.0, root.0),
            None => roots.remove(&vmid.0),
        };
    }
    fn flush_tlb(&self, _: Vmid) {
        // An access in flight ends first.
        drop(self.0.suspended.lock().unwrap());
        self.0.flushes.fetch_add(1, Ordering::SeqCst);
    }
    fn suspend(&self, vmid: Vmid) {
        self.0.suspends.fetch_add(1, Ordering::SeqCst);
        self.0.suspended.lock().unwrap().insert(vmid.0);
    }
    fn resume(&self, vmid: Vmid) {
        self.0.suspended.lock().unwrap().remove(&vmid.0);
    }
    fn fault_done(&self, _: Vmid, va: GpuVa, served: bool) {
        self.0.faults_served.lock().unwrap().push((va.0, served));
    }
    fn add_queue(&self, _: &QueueSpec) -> Result<HwQueue> {
        Ok(HwQueue(1))
    }
    fn update_queue(&self, _: HwQueue, _: GpuVa, _: u64, _: bool) -> Result {
        Ok(())
    }
    fn remove_queue(&self, _: HwQueue) {}
    fn ring(&self) {}
    fn clock(&self) -> u64 {
        os::now().0
    }
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::Dma)?;
        let first = self.0.next_dma.fetch_add(bytes, Ordering::SeqCst);
        Ok(Arc::new(dma::SimDma::new(bytes, first)))
    }
}
