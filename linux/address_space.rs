// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's CPU memory as the driver sees it:
//! [`vkfd_driver::seams::address_space::AddressSpace`] over interval notifiers and HMM.
//!
//! An open file belongs to the address space (`mm_struct`) that opened it. The file holds the
//! structure (`mmgrab`), not the contents. Code that reads the contents takes a user's reference
//! for that long, and fails with ESRCH when there are no users any more. After a fork or an exec
//! the file's new owner has another address space and gets EBADF.
//!
//! Each invalidation is noted before the driver's callback runs. So `read_begin` waits for every
//! invalidation that has raised a generation, as the driver's scheme of generations needs.
//!
//! The generations show, range by range, which pages went stale during a fault. HMM knows one
//! sequence number for its whole request. It would begin again with each invalidation, also of
//! other memory in the window, and in a storm of them never end. So it gets a notifier that notes
//! nothing ([`Quiet`]).
//!
//! Ranges that lie near each other are looked up together, gaps included ([`Looked`]); only what is
//! missing is faulted in range by range.

use crate::device_memory::{self, IntoSystem, Memories, CHUNK};
use crate::hmm::{self, Pfn};
use crate::interval_notifier::{IntervalNotifier, Invalidation, Operations, Sequence};
use crate::migrate::{self, Lists, Select};
use crate::pin::PinnedPages;
use crate::sabotage::SWITCHES;
use core::any::Any;
use core::ops::Range;
use core::time::Duration;
use kernel::bindings;
use kernel::mm::virt::{flags, VmaRef};
use kernel::mm::{Mm, MmWithUser};
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::SetOnce;
use kernel::time::Delta;
use kernel::uaccess::{UserPtr, UserSlice};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PhysAddr, VramOffset};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Mapping, Page, Seq, Watch};
use vkfd_driver::seams::device_memory::{DeviceMemory, Migration};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os::{self, Arc, Vec};
use vkfd_driver::sabotage::{FailPoint, Switch};

/// How long one call of HMM may go on beginning again. Since the notifier notes nothing, it never
/// has to. But HMM counts the time that it waits for the lock of the mappings, and fails when it
/// gets the lock too late. If mapping and unmapping threads keep each other waiting, a short time
/// would end each call before its lookup, until the driver's own deadline. So it is as long as that
/// usually is.
const FAULT_TIME: Delta = Delta::from_secs(10);

const CHUNK_BYTES: usize = CHUNK * PAGE_SIZE;
/// What a measurement faults in at a time of a longer range.
const MOST_MEASURED_PAGES: u64 = 16384;
/// How often pages are moved again that changed while they moved: where there was none, a processor
/// may have brought one. The next time they are pages like others.
const MIGRATION_TRIES: usize = 3;

/// The notifier that HMM gets: of a page that nobody maps, and whatever happens to it does not
/// matter.
struct Quiet;

impl Operations for Quiet {
    fn invalidate(&self, _: &Invalidation<'_>) -> bool {
        true
    }
}

/// A device's mapping has no memory to mirror.
const DEVICES: usize = flags::IO | flags::PFNMAP | flags::MIXEDMAP;

unsafe extern "C" {
    fn vkfd_vma_is_heap_or_stack(vma: *const bindings::vm_area_struct) -> bool;
}

/// What a notifier's callback works on.
struct Client(Arc<dyn Invalidate>, CpuSpan);

impl Operations for Client {
    fn invalidate(&self, invalidation: &Invalidation<'_>) -> bool {
        let Self(client, watched) = self;
        let range = invalidation.range();
        let start = watched.start().max(CpuVa(range.start as u64));
        let end = watched.end().min(CpuVa(range.end as u64));
        invalidation.note();
        let (span, blockable) = (CpuSpan::between(start, end), invalidation.blockable());
        if invalidation.unmaps() {
            client.unmapped(span, blockable)
        } else if invalidation.migrates() {
            client.migrating(span, blockable)
        } else {
            client.invalidate(span, blockable)
        }
    }
}

impl Watch for IntervalNotifier<Client> {
    fn span(&self) -> CpuSpan {
        self.data().1
    }

    fn read_begin(&self) -> Seq {
        let Sequence(seq) = self.read_begin();
        Seq(seq as u64)
    }

    fn read_retry(&self, Seq(seq): Seq) -> bool {
        self.read_retry(Sequence(index(seq)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A process's memory.
pub(crate) struct ProcessMemory {
    mm: ARef<Mm>,
    /// Whose it is, as the system as a whole numbers users: containers have others of the same
    /// number.
    uid: u32,
    /// Its pages that a GPU's memory can hold.
    memories: Arc<Memories>,
    /// From the first watch on.
    quiet: SetOnce<Arc<IntervalNotifier<Quiet>>>,
}

impl ProcessMemory {
    /// That of the calling process. ESRCH for a thread without any.
    pub(crate) fn current(memories: Arc<Memories>) -> Result<Self> {
        let current = kernel::current!();
        let mm = current.mm().ok_or(Errno::ESRCH)?;
        // SAFETY: the current task.
        let uid = unsafe { bindings::task_uid(current.as_ptr()) }.val;
        Ok(Self { mm: ARef::from(&**mm), uid, memories, quiet: SetOnce::new() })
    }

    /// A number that no other address space has while this is held.
    pub(crate) fn key(&self) -> usize {
        self.mm.as_raw().addr()
    }

    /// A reference as a user of the address space. Given back by a worker: the last user tears the
    /// address space down, which is not for a thread that may hold locks.
    fn alive(&self) -> Result<impl core::ops::Deref<Target = kernel::mm::MmWithUserAsync>> {
        let user = self.mm.mmget_not_zero().ok_or(Errno::ESRCH)?;
        Ok(MmWithUser::into_mmput_async(user))
    }

    fn user_slice(&self, at: CpuVa, bytes: usize) -> Result<UserSlice> {
        // There is nobody to ask for another process's memory: calls on a file from elsewhere were
        // refused.
        if !self.is_current() {
            return Err(Errno::EFAULT.into());
        }
        Ok(UserSlice::new(UserPtr::from_addr(index(at.0)), bytes))
    }
}

impl ProcessMemory {
    /// Calls `f` for the mapped parts of `span`, each at most a chunk and in one mapping, which is
    /// locked for that long only. Gives up when the thread is being killed.
    fn each_chunk(&self, span: CpuSpan, mut f: impl FnMut(&VmaRef, Range<usize>, &mut Lists)) -> Result {
        let mm = self.alive()?;
        let mut lists = Lists::new(CHUNK.min(index(span.pages())))?;
        let (mut at, end) = (index(span.start().0), index(span.end().0));
        while at < end {
            if os::killed() {
                return Err(Errno::EINTR.into());
            }
            // A client may name any address.
            let next = end.min((at / CHUNK_BYTES + 1).saturating_mul(CHUNK_BYTES));
            let _lock = mm.mmap_read_lock();
            while at < next {
                // SAFETY: the lock is held as long as the mapping is used.
                let vma = unsafe {
                    let found = bindings::find_vma(mm.as_raw(), at);
                    if found.is_null() {
                        return Ok(());
                    }
                    VmaRef::from_raw(found)
                };
                at = at.max(vma.start());
                if at >= next {
                    break;
                }
                let part = at..next.min(vma.end());
                at = part.end;
                f(vma, part, &mut lists);
            }
        }
        Ok(())
    }
}

impl AddressSpace for ProcessMemory {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        Ok(self.user_slice(from, to.len())?.reader().read_slice(to)?)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        Ok(self.user_slice(to, from.len())?.writer().write_slice(from)?)
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        if !span.is_whole_pages() {
            return Err(Errno::EINVAL.into());
        }
        os::failpoint(FailPoint::Watch)?;
        let mm = self.alive()?;
        if self.quiet.as_ref().is_none() {
            // Of two threads that come here at once, one's is dropped again.
            self.quiet.populate(Arc::pin_init(IntervalNotifier::new(&mm, 0..PAGE_SIZE, Quiet), GFP_KERNEL)?);
        }
        let range = index(span.start().0)..index(span.end().0);
        let notifier = IntervalNotifier::new(&mm, range, Client(client, span));
        let watch: Arc<IntervalNotifier<Client>> = Arc::pin_init(notifier, GFP_KERNEL)?;
        Ok(watch)
    }

    fn fault(&self, watch: &dyn Watch, _seq: Seq, spans: &[CpuSpan], access: Access, pages: &mut [Page]) -> Faulted {
        let fail = |errno| Faulted { spans: 0, error: Some(errno) };
        let inside = |span: &CpuSpan| watch.span().start() <= span.start() && span.end() <= watch.span().end();
        if !spans.iter().all(inside) {
            return fail(Errno::EINVAL);
        }
        // A thread that has a watch has seen that there is one, or that another thread is just
        // making it.
        let Some(notifier) = self.quiet.as_ref() else { return fail(Errno::EAGAIN) };
        let patience = if self.is_current() { hmm::Patience::Killable } else { hmm::Patience::None };
        let mm = match self.alive() {
            Ok(mm) => mm,
            Err(error) => return fail(error.errno),
        };
        let wanted: u64 = spans.iter().map(|s| s.pages()).sum();
        if wanted != pages.len() as u64 {
            return fail(Errno::EINVAL);
        }
        let access = match access {
            Access::Read => hmm::Access::Read,
            Access::Write => hmm::Access::Write,
        };
        let run = Run::new(notifier, &mm, &self.memories, access, patience);
        let fault_run = |start: CpuVa, pages: &mut [Page]| run.fault(start, pages);
        // HMM has the same error for no mapping and for one that not even allows reading.
        let explain = |errno, span| if errno == Errno::EFAULT && is_denied(&mm, span) { Errno::EPERM } else { errno };
        // Without room for it each range is looked up by itself.
        let mut looked = (spans.len() > 1).then(|| Looked::new(&run).ok()).flatten();
        let (mut done, mut first) = (0, 0);
        while done < spans.len() {
            if let Some(looked) = &mut looked {
                looked.go_to(&spans[done..]);
                let count = index(spans[done].pages());
                if looked.tell(spans[done], &mut pages[first..first + count]) {
                    (done, first) = (done + 1, first + count);
                    continue;
                }
            }
            let neighbours = neighbours(&spans[done..]);
            let count: usize = spans[done..done + neighbours].iter().map(|s| index(s.pages())).sum();
            let Err(errno) = fault_run(spans[done].start(), &mut pages[first..first + count]) else {
                (done, first) = (done + neighbours, first + count);
                continue;
            };
            if neighbours == 1 || !matches!(errno, Errno::EFAULT | Errno::EPERM) {
                return Faulted { spans: done, error: Some(explain(errno, spans[done])) };
            }
            // One of several: which?
            for span in &spans[done..done + neighbours] {
                let count = index(span.pages());
                if let Err(errno) = fault_run(span.start(), &mut pages[first..first + count]) {
                    return Faulted { spans: done, error: Some(explain(errno, *span)) };
                }
                (done, first) = (done + 1, first + count);
            }
        }
        Faulted { spans: done, error: None }
    }

    fn measure_fault_bare(&self, spans: &[CpuSpan]) -> Result<Duration> {
        if !self.is_current() {
            return Err(Errno::EFAULT.into());
        }
        let notifier = self.quiet.as_ref().ok_or(Errno::EAGAIN)?;
        let mm = self.alive()?;
        let run = Run::new(notifier, &mm, &self.memories, hmm::Access::Write, hmm::Patience::Killable);
        let most = spans.iter().map(|span| span.pages()).max().unwrap_or(0).min(MOST_MEASURED_PAGES);
        let mut pfns = Vec::filled(Pfn::default(), index(most))?;
        let start = os::now();
        for span in spans {
            let mut at = span.start();
            while at < span.end() {
                let pages = ((span.end().0 - at.0) / PAGE_SIZE as u64).min(most);
                let end = CpuVa(at.0 + pages * PAGE_SIZE as u64);
                let range = index(at.0)..index(end.0);
                run.lookup.fault_bare(range, hmm::Access::Write, &mut pfns[..index(pages)])?;
                at = end;
            }
            os::interrupted()?;
        }
        Ok(Duration::from_nanos(os::now().0.saturating_sub(start.0)))
    }

    fn measure_pin(&self, spans: &[CpuSpan]) -> Result<Duration> {
        if !self.is_current() {
            return Err(Errno::EFAULT.into());
        }
        let pages: u64 = spans.iter().map(|s| s.pages()).sum();
        let start = os::now();
        let mut pinned = PinnedPages::with_capacity(index(pages))?;
        for span in spans {
            pinned.pin(index(span.start().0), index(span.pages()))?;
        }
        Ok(Duration::from_nanos(os::now().0.saturating_sub(start.0)))
    }

    fn migration(&self) -> Migration {
        self.memories.migration()
    }

    fn migrate_to_device(
        &self,
        span: CpuSpan,
        device: &Arc<dyn DeviceMemory>,
        places: &mut [Option<VramOffset>],
    ) -> Result<u64> {
        if !span.is_whole_pages() || places.len() as u64 != span.pages() {
            return Err(Errno::EINVAL.into());
        }
        os::failpoint(FailPoint::Migrate)?;
        let target = self.memories.target(device)?;
        let mut moved = 0;
        self.each_chunk(span, |vma, range, lists| {
            // A GPU may not use it either: a fault that will be refused moves nothing first.
            if vma.flags() & flags::READ == 0 {
                return;
            }
            let first = (range.start - index(span.start().0)) / PAGE_SIZE;
            let places = &mut places[first..first + range.len() / PAGE_SIZE];
            for _ in 0..MIGRATION_TRIES {
                let mut mover = target.mover(places);
                // A mapping whose pages cannot move is none of those that do.
                let _ =
                    migrate::of_mapping(vma, range.clone(), Select::System, device_memory::owner(), lists, &mut mover);
                let done = mover.finish();
                moved += done.pages;
                if !done.changed_meanwhile {
                    break;
                }
            }
        })?;
        Ok(moved)
    }

    fn migrate_to_system(&self, span: CpuSpan) -> Result<u64> {
        if !span.is_whole_pages() {
            return Err(Errno::EINVAL.into());
        }
        os::failpoint(FailPoint::Migrate)?;
        let mut moved = 0;
        let result = self.each_chunk(span, |vma, range, lists| {
            let mut mover = IntoSystem::new(&self.memories, vma, range.start);
            let _ = migrate::of_mapping(vma, range, Select::Device, device_memory::owner(), lists, &mut mover);
            moved += mover.moved;
        });
        self.memories.settle();
        result?;
        Ok(moved)
    }

    fn evict_places(&self, device: &dyn DeviceMemory, places: &[VramOffset]) -> Result<u64> {
        os::failpoint(FailPoint::Migrate)?;
        self.memories.evict(device, places)
    }

    fn settle(&self) {
        if !SWITCHES.has(Switch::TellFreeLate) {
            self.memories.settle();
        }
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        let mut memory = true;
        let look = |vma: &VmaRef| memory &= vma.flags() & DEVICES == 0;
        self.alive().is_ok_and(|mm| each_mapping(&mm, span, look)) && memory
    }

    fn mapping(&self, at: CpuVa, span: CpuSpan) -> Option<Mapping> {
        let mm = self.alive().ok()?;
        let lock = mm.mmap_read_lock();
        let vma = lock.vma_lookup(index(at.0)).filter(|vma| vma.flags() & DEVICES == 0)?;
        let found = CpuSpan::between(CpuVa(vma.start() as u64), CpuVa(vma.end() as u64));
        // SAFETY: the mapping is one of the locked address space, for which the kernel only reads.
        let heap_or_stack = unsafe { vkfd_vma_is_heap_or_stack(vma.as_ptr()) };
        found.overlaps(span).then(|| Mapping { span: found.overlap(span), heap_or_stack })
    }

    fn first_mapped(&self, span: CpuSpan) -> Option<CpuSpan> {
        let mm = self.alive().ok()?;
        let _lock = mm.mmap_read_lock();
        // SAFETY: the lock is held as long as the mapping is used.
        let vma = unsafe {
            let found = bindings::find_vma(mm.as_raw(), index(span.start().0));
            (!found.is_null()).then(|| VmaRef::from_raw(found))?
        };
        let found = CpuSpan::between(CpuVa(vma.start() as u64), CpuVa(vma.end() as u64));
        found.overlaps(span).then(|| found.overlap(span))
    }

    fn out_of_reach(&self, span: CpuSpan, access: Access) -> u64 {
        let wanted = match access {
            // What may only be written HMM does not give either.
            Access::Read => flags::READ,
            Access::Write => flags::WRITE,
        };
        let (start, end) = (index(span.start().0), index(span.end().0));
        let Ok(mm) = self.alive() else { return span.bytes() };
        let _lock = mm.mmap_read_lock();
        let mut at = start;
        while at < end {
            // SAFETY: the lock is held as long as the mapping is used.
            let vma = unsafe {
                let found = bindings::find_vma(mm.as_raw(), at);
                (!found.is_null()).then(|| VmaRef::from_raw(found))
            };
            match vma {
                // Nothing is mapped from here on.
                None => at = end,
                Some(vma) if vma.start() <= at && vma.flags() & wanted != 0 => break,
                // Up to the next mapping, or beyond one that forbids it.
                Some(vma) => at = if vma.start() > at { vma.start() } else { vma.end() },
            }
        }
        (at.min(end) - start) as u64
    }

    fn user(&self) -> u32 {
        self.uid
    }

    fn is_current(&self) -> bool {
        let current = kernel::current!();
        current.mm().is_some_and(|mm| mm.as_raw() == self.mm.as_raw())
    }
}

/// Calls `f` for the mappings of `span`, one after the other, up to the first hole. Whether there
/// is none.
fn each_mapping(mm: &MmWithUser, span: CpuSpan, mut f: impl FnMut(&VmaRef)) -> bool {
    let lock = mm.mmap_read_lock();
    let mut at = index(span.start().0);
    while at < index(span.end().0) {
        let Some(vma) = lock.vma_lookup(at) else { return false };
        f(vma);
        at = vma.end();
    }
    true
}

/// Whether all of `span` is mapped memory, and some of it may not even be read.
fn is_denied(mm: &MmWithUser, span: CpuSpan) -> bool {
    let (mut denied, mut memory) = (false, true);
    let mapped = each_mapping(mm, span, |vma| {
        denied |= vma.flags() & flags::READ == 0;
        memory &= vma.flags() & (flags::IO | flags::PFNMAP) == 0;
    });
    mapped && memory && denied
}

/// How many of the first spans follow each other in memory.
fn neighbours(spans: &[CpuSpan]) -> usize {
    1 + spans.windows(2).take_while(|pair| pair[0].end() == pair[1].start()).count()
}

/// How consecutive pages are faulted in.
struct Run<'a> {
    lookup: hmm::Lookup<'a, Quiet>,
    memories: &'a Memories,
    access: hmm::Access,
}

impl<'a> Run<'a> {
    fn new(
        notifier: &'a IntervalNotifier<Quiet>,
        mm: &'a MmWithUser,
        memories: &'a Memories,
        access: hmm::Access,
        patience: hmm::Patience,
    ) -> Self {
        let lookup = hmm::Lookup { notifier, mm, patience, owner: device_memory::owner(), timeout: FAULT_TIME };
        Self { lookup, memories, access }
    }

    fn fault(&self, start: CpuVa, pages: &mut [Page]) -> core::result::Result<(), Errno> {
        // SAFETY: both types are 64-bit words of which every pattern is a value. So the same array
        // can be filled as one and turned into the other in place; it is borrowed exclusively.
        // Nothing reads its contents after a failure.
        let pfns = unsafe { core::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<Pfn>(), pages.len()) };
        let start = index(start.0);
        let range = start..start + pfns.len() * PAGE_SIZE;
        self.lookup.fault(range, self.access, pfns).map_err(|e| match Errno(-e.to_errno()) {
            // Memory that is no memory: a device's.
            Errno::EINVAL => Errno::EFAULT,
            errno => errno,
        })?;
        let mut places = Places::new(self.memories);
        for page in pages {
            // SAFETY: as above, the other way round.
            let pfn = unsafe { *core::ptr::from_ref(page).cast::<Pfn>() };
            *page = places.page(pfn).ok_or(Errno::EFAULT)?;
        }
        Ok(())
    }
}

/// Turns HMM's reports of pages into their places for GPUs.
struct Places<'a> {
    memories: &'a Memories,
    /// The block of the last page that was of ordinary memory: so are all of it, because the kernel
    /// adds a device's memory in whole blocks.
    ordinary: usize,
}

impl<'a> Places<'a> {
    /// A subsection of the kernel, 2 MiB.
    const BLOCK: usize = 1 << bindings::PFN_SUBSECTION_SHIFT;
    /// No page's.
    const NO_BLOCK: usize = usize::MAX;

    fn new(memories: &'a Memories) -> Self {
        Self { memories, ordinary: Self::NO_BLOCK }
    }

    /// Where a page is for GPUs. None for one that they do not reach: another driver's device has
    /// it.
    fn page(&mut self, pfn: Pfn) -> Option<Page> {
        if !pfn.is_valid() {
            return None;
        }
        let block = pfn.frame() / Self::BLOCK;
        if block != self.ordinary {
            if let Some(at) = self.memories.fabric(pfn.frame()) {
                return Some(Page::device(at, pfn.is_writable()));
            }
            if pfn.is_device() {
                return None;
            }
            self.ordinary = block;
        }
        Some(Page::new(PhysAddr(pfn.phys()), pfn.is_writable()))
    }
}

/// The result of one kernel lookup over a stretch of addresses, gaps included. One call per range
/// would take the lock and walk from the root each time. A range's missing pages are faulted in for
/// it alone.
///
/// What was looked up may be as old as the call of [`AddressSpace::fault`]: the driver finds out by
/// its generations, which it noted before.
struct Looked<'a> {
    run: &'a Run<'a>,
    places: Places<'a>,
    start: CpuVa,
    /// Of the stretch.
    pages: usize,
    pfns: Vec<Pfn>,
}

impl<'a> Looked<'a> {
    /// As much as one page table maps.
    const PAGES: usize = 512;
    /// A wider gap, in bytes, costs more to look over than another call.
    const GAP: u64 = 8 * PAGE_SIZE as u64;

    fn new(run: &'a Run<'a>) -> Result<Self> {
        let pfns = Vec::filled(Pfn::default(), Self::PAGES)?;
        Ok(Self { run, places: Places::new(run.memories), start: CpuVa(0), pages: 0, pfns })
    }

    /// Unless it has looked at the first of `spans` already, looks at it and those of the next that
    /// lie near. A failure is as if nothing was there.
    fn go_to(&mut self, spans: &[CpuSpan]) {
        let Some((first, next)) = spans.split_first() else { return };
        if self.place(*first).is_some() {
            return;
        }
        self.pages = 0;
        let start = first.start();
        let mut end = first.end();
        for (before, span) in spans.iter().zip(next) {
            let near = span.start() >= start && span.start().0.saturating_sub(before.end().0) <= Self::GAP;
            if !near || (span.end().0 - start.0) > (Self::PAGES * PAGE_SIZE) as u64 {
                break;
            }
            end = end.max(span.end());
        }
        let pages = index((end.0 - start.0) / PAGE_SIZE as u64);
        // One range that is alone is faulted in at once.
        if end == first.end() || pages > Self::PAGES {
            return;
        }
        if self.run.lookup.look(index(start.0)..index(end.0), &mut self.pfns[..pages]).is_ok() {
            (self.start, self.pages) = (start, pages);
        }
    }

    /// Where the pages of `span` are among those looked at, if all are.
    fn place(&self, span: CpuSpan) -> Option<Range<usize>> {
        let first = index(span.start().0.checked_sub(self.start.0)? / PAGE_SIZE as u64);
        let first = first.saturating_sub(usize::from(SWITCHES.has(Switch::NearRanges)));
        let end = first.checked_add(index(span.pages()))?;
        (end <= self.pages).then_some(first..end)
    }

    /// Writes where the pages of `span` are to `pages`, which is as long, if all of them were
    /// there.
    fn tell(&mut self, span: CpuSpan, pages: &mut [Page]) -> bool {
        let Some(place) = self.place(span) else { return false };
        let (places, access) = (&mut self.places, self.run.access);
        pages.iter_mut().zip(&self.pfns[place]).all(|(page, pfn)| {
            // A page that is out of reach goes the long way, which says why.
            let found = if pfn.serves(access) { places.page(*pfn) } else { None };
            found.map(|found| *page = found).is_some()
        })
    }
}
