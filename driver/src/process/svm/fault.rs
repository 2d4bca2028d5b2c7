// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GPU page faults on SVM memory (XNACK on): a range for unregistered memory, a place for the
//! granule, entries for the GPU.
//!
//! Where a granule goes follows KFD: to the preferred location, else to the GPU that may have it
//! (ACCESS), else it stays (ACCESS_IN_PLACE). Beyond that: what is READ_MOSTLY and already in some
//! GPU's memory is read there, and what bounces rests ([`crate::device::damping`]).

use super::SvmWork;
use crate::base::addr::{block_start, page_start, CpuSpan, CpuVa, HUGE, PAGE};
use crate::base::errno::{Errno, Result};
use crate::collections::page_bits::PageBits;
use crate::device::smi::Event;
use crate::device::Device;
use crate::gpuvm::vm::Vm;
use crate::os::{self, Arc, Time, Vec};
use crate::seams::gpu::PageFault;
use crate::svm::attributes::Attributes;
use crate::svm::block::Block;
use crate::svm::fetch::Want;
use crate::svm::ranges::Range;
use crate::svm::window::Window;
use vkfd_uapi::smi::MIGRATE_TRIGGER_PAGEFAULT_GPU;
use vkfd_uapi::svm as abi;

/// A fault brings at most 2^n pages: 1 GiB.
const LARGEST: u32 = 18;

/// Where others unmap memory of a mapping all the time, it is looked at so often for a fault.
const LOOKS: u32 = 16;

/// What is at an address: a range, or the part of its 2 MiB between two ranges.
enum Found {
    Range(Range),
    Gap(CpuSpan),
}

/// Where a granule should be.
enum Place {
    Stay,
    System,
    Gpu(Arc<Device>),
}

impl SvmWork<'_> {
    /// Serves a fault of GPU number `gpu` where no buffer object is: whether the device is to try
    /// again.
    pub(crate) fn fault(&self, gpu: usize, fault: &PageFault, deadline: Time) -> Result<bool> {
        if !self.process.xnack() || !self.process.mm().has_svm() {
            return Ok(false);
        }
        let at = page_start(fault.va.0);
        self.sweep_in(CpuSpan::between(CpuVa(at), CpuVa(at.saturating_add(PAGE))))?;
        let Some(device) = self.process.kfd().devices().get(gpu).cloned() else { return Ok(false) };
        let vm = self.process.vm(gpu)?;
        let Some(range) = self.range_at(at)? else { return Ok(false) };
        let a = range.attributes;
        let denied = fault.write && a.has(abi::SVM_FLAG_GPU_RO) || fault.executes() && !a.has(abi::SVM_FLAG_GPU_EXEC);
        if a.allowed() >> gpu & 1 == 0 || denied {
            return Ok(false);
        }
        let granule = granule(&range, at);
        self.process.tell(device.id(), Event::FaultStart { page: at / PAGE, write: fault.write });
        let moved = self.place(granule, &a, &device, at, fault.write);
        let served = self.map_granule(granule, &vm, at, fault.write, deadline);
        self.check_blocks(granule);
        self.process.tell(device.id(), Event::FaultEnd { page: at / PAGE, migrated: moved });
        if matches!(served, Ok(true)) {
            self.process.svm().counters().add_fault(gpu);
        }
        served
    }

    /// The range at `at`; made if there is none and memory is. `None` where there is no memory, or
    /// something else has the address. EAGAIN where others unmap memory there all the time.
    ///
    /// As KFD makes it: the part of the mapping in the 2 MiB around, between the existing ranges;
    /// if that meets a buffer or a userptr, the page alone. So a client's later registration meets
    /// as few ranges as possible that it never named.
    fn range_at(&self, at: u64) -> Result<Option<Range>> {
        let around = match self.look(at) {
            Found::Range(range) => return Ok(Some(range)),
            Found::Gap(around) => around,
        };
        let page = CpuSpan::between(CpuVa(at), CpuVa(at.saturating_add(PAGE)));
        // Nothing is watched for an access to nothing.
        if at < PAGE || !self.process.mm().mapped(page) {
            return Ok(None);
        }
        let made = match self.create(at, around) {
            Ok(true) => true,
            Err(e) if e.errno != Errno::EAGAIN => return Err(e),
            _ => self.create(at, page)?,
        };
        if !made {
            return Ok(None);
        }
        match self.look(at) {
            Found::Range(range) => Ok(Some(range)),
            // Unmapped just now: the next mapping there is looked up when the device faults again.
            Found::Gap(_) => Err(Errno::EAGAIN.into()),
        }
    }

    /// Looks once, for another thread may make a range there at any time.
    fn look(&self, at: u64) -> Found {
        let svm = self.process.svm().inner.lock();
        // Page 0 is no memory.
        let (mut start, mut end) = (block_start(at).max(PAGE), block_start(at).saturating_add(HUGE));
        for range in svm.ranges.within(start, end) {
            if range.end <= at {
                start = range.end;
            } else if range.start > at {
                end = end.min(range.start);
            } else {
                return Found::Range(*range);
            }
        }
        Found::Gap(CpuSpan::between(CpuVa(start), CpuVa(end)))
    }

    /// Makes a range of memory that nobody registered: the mapping's at `at`, within a part of its
    /// 2 MiB. False where there is none, or something else has its addresses. EAGAIN where others
    /// unmap memory in it all the time.
    ///
    /// Others may unmap parts of that mapping meanwhile and map memory of theirs there. So the
    /// lookup runs while a window listens and no thread takes its notes. It runs again if anything
    /// was unmapped before the range is there. Later unmaps are dropped from the range. (KFD holds
    /// the lock of all mappings.)
    fn create(&self, at: u64, within: CpuSpan) -> Result<bool> {
        for _ in 0..LOOKS {
            self.process.svm().make_windows(&|| self.process.as_svm_owner(), within)?;
            self.sweep_in(within)?;
            let inner = self.process.lock();
            let sweep = self.process.svm().sweep.lock();
            let window = self.process.svm().inner.lock().window_of(at);
            let mapping = self.process.mm().mapping(CpuVa(at), within);
            let Some(found) = mapping.filter(|found| self.conflicts(&inner, found.span).is_ok()) else {
                drop((sweep, inner));
                self.process.svm().prune(within);
                return Ok(false);
            };
            let (span, attributes) = (found.span, Attributes::found(found.heap_or_stack));
            let mut svm = self.process.svm().inner.lock();
            let same = |now: Arc<Window>| window.as_ref().is_some_and(|window| Arc::ptr_eq(window, &now));
            if !svm.has_windows(span) || !svm.window_of(at).is_some_and(same) || svm.has_drop(span) {
                continue;
            }
            svm.ranges.replace(span.start().0, span.end().0, &mut |old| Some(old.unwrap_or(attributes)))?;
            drop((svm, sweep, inner));
            self.process.svm().counters().unregistered.add(1);
            self.confirm(span)?;
            return Ok(true);
        }
        self.process.svm().prune(within);
        Err(Errno::EAGAIN.into())
    }

    /// Brings a granule to its best place. Whether pages moved; if that fails, it is used in place.
    fn place(&self, granule: CpuSpan, a: &Attributes, device: &Arc<Device>, at: u64, write: bool) -> bool {
        let trigger = MIGRATE_TRIGGER_PAGEFAULT_GPU;
        let moved = match self.best_place(granule, a, device, at, write) {
            Place::Stay => Ok(0),
            Place::System => self.move_out(granule, a, trigger),
            Place::Gpu(device) => self.move_in(granule, a, &device, trigger),
        };
        matches!(moved, Ok(1..))
    }

    fn best_place(&self, granule: CpuSpan, a: &Attributes, device: &Arc<Device>, at: u64, write: bool) -> Place {
        let block = self.process.svm().find_block(at);
        let on_a_gpu = || block.as_ref().is_some_and(|b| self.location(b, b.pages_of(granule)).is_some());
        let best = match a.preferred {
            abi::SVM_LOCATION_SYSMEM => return Place::System,
            abi::SVM_LOCATION_UNDEFINED => None,
            gpu_id => self.process.kfd().device(gpu_id).ok().cloned(),
        };
        let best = match best {
            Some(preferred) => preferred,
            None if a.access >> device.index() & 1 == 0 => return Place::Stay,
            None if !write && a.has(abi::SVM_FLAG_GPU_READ_MOSTLY) && on_a_gpu() => return Place::Stay,
            None => device.clone(),
        };
        // What is there already does not go to and fro.
        let would_move = |b: &Arc<Block>| !(b.pages_of(granule) & !best.residency().pages(b.granule())).is_empty();
        let rests = |b: &Arc<Block>| b.state(|b| b.bounces.rests(os::now())) == Some(true);
        if block.is_some_and(|block| would_move(&block) && rests(&block)) {
            self.process.svm().counters().damped.add(1);
            return Place::Stay;
        }
        Place::Gpu(best)
    }

    /// Maps the pages of a granule on one GPU, block by block. Whether the page at `at` is there
    /// for the access.
    fn map_granule(&self, granule: CpuSpan, vm: &Arc<Vm>, at: u64, write: bool, deadline: Time) -> Result<bool> {
        let mut served = Ok(false);
        let mut start = granule.start().0;
        while start < granule.end().0 {
            let next = block_start(start).saturating_add(HUGE).min(granule.end().0);
            let part = CpuSpan::between(CpuVa(start), CpuVa(next));
            let here = part.contains(CpuVa(at)).then_some((at % HUGE / PAGE, write));
            let mapped = match self.process.svm().block(start)? {
                Some(block) => self.map_part(&block, part, vm, here, deadline),
                // Its ranges have gone just now, as below.
                None => Ok(true),
            };
            if here.is_some() {
                served = mapped;
            }
            start = next;
        }
        served
    }

    /// `page`: the page of the block that faulted, and whether it is to be written.
    fn map_part(
        &self,
        block: &Arc<Block>,
        part: CpuSpan,
        vm: &Arc<Vm>,
        page: Option<(u64, bool)>,
        deadline: Time,
    ) -> Result<bool> {
        let gpu = vm.gpu_index();
        // Gone just now: the device asks again.
        if !self.map_on(block, vm)? {
            return Ok(true);
        }
        let Some(reserved) = block.reserve() else { return Ok(true) };
        let view = self.process.svm().view_to_map(block, &reserved)?;
        let pages = block.pages_of(part) & view.allowed(gpu);
        let mut extra = Vec::filled(PageBits::NONE, gpu.saturating_add(1))?;
        if let Some(own) = extra.get_mut(gpu) {
            *own = pages;
        }
        if let Some((page, true)) = page {
            let only = PageBits::page(page);
            let upgrade = block.state(|b| b.unshare(page)).unwrap_or(false);
            if upgrade || !(view.only_read & only).is_empty() {
                let want = Want { view: &view, pages: only & pages, again: true, extra: &extra, write: true };
                block.fetch(&reserved, &want, deadline)?;
            }
        }
        let want = Want { view: &view, pages, again: true, extra: &extra, write: false };
        let fetched = block.fetch(&reserved, &want, deadline)?;
        let Some((page, write)) = page else { return Ok(true) };
        if fetched.left.has(page) {
            return Err(Errno::EAGAIN.into());
        }
        // Also false when it was invalidated just now and is not missing: then the device asks
        // again.
        let there = block.state(|b| !b.missing.has(page) && (!write || !b.valid.has(page) || b.is_writable(page)));
        drop(reserved);
        self.touch(block);
        // It was unmapped just now: the next mapping there is looked up when the device faults
        // again.
        let gone = !view.known.has(page);
        Ok(gone || (there.unwrap_or(true) && pages.has(page)))
    }
}

/// What migrates with the page at `at`: the aligned 2^granularity pages around it, as far as they
/// are in its range.
fn granule(range: &Range, at: u64) -> CpuSpan {
    let bytes = PAGE << range.attributes.granularity.min(LARGEST);
    // A power of two.
    let start = at & bytes.wrapping_neg();
    CpuSpan::between(CpuVa(start.max(range.start)), CpuVa(start.saturating_add(bytes).min(range.end)))
}
