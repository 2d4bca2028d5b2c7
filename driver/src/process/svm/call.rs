// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The SVM ioctl: KFD's checks, in KFD's order, with KFD's errors.
//!
//! Setting checks everything, changes the ranges, then migrates if a prefetch location was given,
//! then maps what is to be mapped at once. As in KFD what fails in the last two steps is reported
//! and not taken back: the attributes stay.

use super::{not_mapped, SvmWork};
use crate::base::addr::{block_start, CpuSpan, CpuVa, HUGE, PAGE};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::collections::page_bits::PageBits;
use crate::os::{self, Vec};
use crate::sabotage::Switch;
use crate::seams::address_space::Access;
use crate::svm::attributes::{Attributes, Common};
use crate::svm::block::Block;
use crate::svm::fetch::Want;
use crate::svm::Vms;
use vkfd_uapi::smi::MIGRATE_TRIGGER_PREFETCH;
use vkfd_uapi::svm as abi;

impl SvmWork<'_> {
    /// The SVM call. EINVAL zero, unaligned or unknown; EOVERFLOW when the end wraps; EFAULT where
    /// there is no mapping; EADDRINUSE where a buffer object's GPU range or a userptr's CPU range
    /// lies.
    pub(crate) fn call(&self, args: &abi::SvmArgs, list: &mut [abi::SvmAttribute]) -> Result {
        let (start, size) = (args.start_addr, args.size);
        if start == 0 || size == 0 || start % PAGE != 0 || size % PAGE != 0 {
            return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
        }
        let span = CpuSpan::new(CpuVa(start), size).ok_or(Error::new(Errno::EOVERFLOW, Reason::Wraps))?;
        match args.op {
            abi::SVM_OP_SET_ATTR => self.set(span, list),
            abi::SVM_OP_GET_ATTR => self.get(span, list),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn check(&self, item: abi::SvmAttribute) -> Result {
        let gpu = match item.attr_type {
            abi::SVM_ATTR_PREFERRED_LOC => {
                ![abi::SVM_LOCATION_SYSMEM, abi::SVM_LOCATION_UNDEFINED].contains(&item.value)
            }
            abi::SVM_ATTR_PREFETCH_LOC => item.value != abi::SVM_LOCATION_SYSMEM,
            abi::SVM_ATTR_ACCESS | abi::SVM_ATTR_ACCESS_IN_PLACE | abi::SVM_ATTR_NO_ACCESS => true,
            abi::SVM_ATTR_SET_FLAGS | abi::SVM_ATTR_CLR_FLAGS | abi::SVM_ATTR_GRANULARITY => false,
            _ => return Err(Errno::EINVAL.into()),
        };
        if gpu {
            self.gpu_bit(item.value)?;
        }
        Ok(())
    }

    fn set(&self, span: CpuSpan, list: &[abi::SvmAttribute]) -> Result {
        for item in list {
            self.check(*item)?;
        }
        // What has been unmapped is not what is to be set.
        self.sweep_in(span)?;
        if !self.process.mm().mapped(span) {
            return Err(not_mapped());
        }
        // What may fail for want of memory of its own does so before anything has changed.
        let mut vms = self.room_for_vms()?;
        let entered = self.enter(span, list);
        if entered.is_err() {
            // Windows that were made for nothing.
            self.process.svm().prune(span);
        }
        entered?;
        self.vms(&mut vms);
        let mut result = self.confirm(span);
        if list.iter().any(|item| item.attr_type == abi::SVM_ATTR_PREFETCH_LOC) {
            result = result.and(self.prefetch(span));
        }
        let stays = |item: &abi::SvmAttribute| {
            [abi::SVM_ATTR_PREFERRED_LOC, abi::SVM_ATTR_GRANULARITY].contains(&item.attr_type)
        };
        if !list.iter().all(stays) || !self.process.xnack() {
            let flags =
                |item: &abi::SvmAttribute| [abi::SVM_ATTR_SET_FLAGS, abi::SVM_ATTR_CLR_FLAGS].contains(&item.attr_type);
            let applied = self.apply(span, &vms, list.iter().any(flags), true);
            result = result.and(applied);
        }
        self.check_blocks(span);
        result
    }

    /// Changes the attributes, once there are notifiers for them.
    fn enter(&self, span: CpuSpan, list: &[abi::SvmAttribute]) -> Result {
        let unset = Attributes::unset(self.process.xnack());
        loop {
            self.process.svm().make_windows(&|| self.process.as_svm_owner(), span)?;
            let inner = self.process.lock();
            self.conflicts(&inner, span)?;
            let mut svm = self.process.svm().inner.lock();
            if !svm.has_windows(span) {
                continue;
            }
            let svm = &mut *svm;
            let charged = svm.charge.bytes();
            if !self.process.xnack() {
                svm.charge.set(charged.saturating_add(svm.ranges.gaps(span.start().0, span.end().0)))?;
            }
            let entered = svm.ranges.replace(span.start().0, span.end().0, &mut |old| {
                let mut a = old.unwrap_or(unset);
                for item in list {
                    a.apply(*item, self.gpu_bit(item.value).unwrap_or(0));
                }
                Some(a)
            });
            if entered.is_err() {
                svm.charge.set(charged)?;
            }
            return entered;
        }
    }

    /// EADDRINUSE where the span is a buffer object's on the GPU, or a userptr's on the CPU.
    pub(super) fn conflicts(&self, inner: &crate::process::Inner, span: CpuSpan) -> Result {
        let (start, end) = (span.start().0, span.end().0);
        if inner.gpu_va.first_overlap(start, end).is_some() {
            return Err(Error::new(Errno::EADDRINUSE, Reason::GpuRangeBusy));
        }
        let mut taken = false;
        inner.cpu_hulls.overlapping(start, end, &mut |_, _, number| {
            // The hull may be hit where no range is.
            taken |= inner.bos.get(*number).is_some_and(|bo| bo.has_cpu_memory_in(span));
            !taken
        });
        if taken {
            return Err(Error::new(Errno::EADDRINUSE, Reason::CpuRangeIsSvm));
        }
        Ok(())
    }

    /// Moves the ranges of `span` to their prefetch locations.
    fn prefetch(&self, span: CpuSpan) -> Result {
        let mut at = span.start().0;
        while at < span.end().0 {
            os::interrupted()?;
            let piece = self.process.svm().inner.lock().ranges.within(at, span.end().0).first().copied();
            let Some(range) = piece else { break };
            let part = CpuSpan::between(CpuVa(range.start.max(at)), CpuVa(range.end.min(span.end().0)));
            match range.attributes.prefetch {
                abi::SVM_LOCATION_UNDEFINED => {}
                abi::SVM_LOCATION_SYSMEM => {
                    self.move_out(part, &range.attributes, MIGRATE_TRIGGER_PREFETCH)?;
                }
                gpu_id => {
                    let device = self.process.kfd().device(gpu_id)?.clone();
                    // What does not move stays, and is used where it is.
                    self.move_in(part, &range.attributes, &device, MIGRATE_TRIGGER_PREFETCH)?;
                }
            }
            at = part.end().0;
        }
        Ok(())
    }

    /// Brings what is mapped of `span` in line with the attributes. All pages that must be valid
    /// are valid when this returns, unless they keep changing. Then the queues are stopped, and the
    /// restore continues. `changed`: entries are to be written anew. `eager`: also map what was
    /// prefetched or is used in place, which a fault would do otherwise.
    pub(super) fn apply(&self, span: CpuSpan, vms: &Vms, changed: bool, eager: bool) -> Result {
        let mut result = Ok(());
        let mut at = block_start(span.start().0);
        while at < span.end().0 {
            os::interrupted()?;
            let block = if self.needs_block(span, at, eager) {
                self.process.svm().block(at)?
            } else {
                // On to the next that there is.
                match self.process.svm().next_block(at, at.saturating_add(HUGE).min(span.end().0)) {
                    Some(block) => Some(block),
                    None => {
                        at = self.next_change(at.saturating_add(HUGE), span, eager);
                        continue;
                    }
                }
            };
            if let Some(block) = block {
                match self.apply_block(&block, vms, block.pages_of(span), changed, eager) {
                    Ok(true) => {}
                    // Its ranges have gone, and there may be others since: whatever is there now.
                    Ok(false) => continue,
                    // Whatever comes next would not do better.
                    Err(e) if matches!(e.errno, Errno::ENOMEM | Errno::ESRCH | Errno::EINTR) => return Err(e),
                    Err(e) => {
                        // A reservation, however long it is, is one miss.
                        at = at.max(self.beyond_reach(&block, span));
                        result = result.and(Err(e));
                    }
                }
            }
            at = at.saturating_add(HUGE);
        }
        result
    }

    /// The beginning of the last 2 MiB, from those of a block on, of which nothing in `span` can be
    /// reached.
    fn beyond_reach(&self, block: &Block, span: CpuSpan) -> u64 {
        let next = block.span().end();
        if next >= span.end() {
            return block.span().start().0;
        }
        let none = self.process.mm().out_of_reach(CpuSpan::between(next, span.end()), Access::Read);
        block_start(next.0.saturating_add(none)).saturating_sub(HUGE)
    }

    /// GPUs that a range's pages are mapped on without a fault.
    fn eager(&self, a: &Attributes) -> u32 {
        let prefetched = self.gpu_bit(a.prefetch).unwrap_or(0) & a.allowed();
        a.kept(self.process.xnack()) | a.in_place | prefetched
    }

    /// Whether any GPU has a range's pages mapped without a fault; `eager` as in
    /// [`svm_apply`](Self::svm_apply).
    fn is_mapped(&self, a: &Attributes, eager: bool) -> bool {
        let gpus = if eager { self.eager(a) } else { a.kept(self.process.xnack()) };
        gpus != 0
    }

    fn needs_block(&self, span: CpuSpan, at: u64, eager: bool) -> bool {
        let inner = self.process.svm().inner.lock();
        let end = at.saturating_add(HUGE).min(span.end().0);
        let mut ranges = inner.ranges.within(at.max(span.start().0), end).iter();
        ranges.any(|range| self.is_mapped(&range.attributes, eager))
    }

    /// The next block from `at` on that exists or is needed: a large range that no GPU uses yet
    /// costs nothing.
    fn next_change(&self, at: u64, span: CpuSpan, eager: bool) -> u64 {
        let end = span.end().0;
        let existing = self.process.svm().next_block(at, end).map_or(end, |block| block.span().start().0);
        let inner = self.process.svm().inner.lock();
        let mut ranges = inner.ranges.within(at.min(end), end).iter();
        let needed = ranges.find(|range| self.is_mapped(&range.attributes, eager));
        needed.map_or(existing, |range| existing.min(block_start(range.start.max(at))))
    }

    /// Of the pages that are touched, and no others. `Ok(false)` if the block ended before it was
    /// done.
    fn apply_block(&self, block: &Block, vms: &Vms, touched: PageBits, changed: bool, eager: bool) -> Result<bool> {
        let touched = if self.process.sabotage().has(Switch::OthersErrors) { PageBits::ALL } else { touched };
        // Page tables first, because making room for them wants no lock held.
        let view = self.process.svm().view(block)?;
        let mut extra = Vec::filled(PageBits::NONE, vms.len())?;
        for ((gpu, vm), extra) in vms.iter().enumerate().zip(extra.iter_mut()) {
            let Some(vm) = vm else { continue };
            if eager {
                *extra = self.eager_pages(block, gpu) & touched;
            }
            if !((view.kept(gpu) & touched) | *extra).is_empty() && !self.map_on(block, vm)? {
                return Ok(false);
            }
        }
        let Some(reserved) = block.reserve() else { return Ok(false) };
        // As they are now: another call may have changed them meanwhile.
        let view = self.process.svm().view_to_map(block, &reserved)?;
        block.update(&reserved, &view, touched, changed);
        let wanted = block.state(|b| b.wanted()).unwrap_or_default() & touched;
        let pages = extra.iter().fold(wanted, |bits, more| bits | *more) & view.known;
        let want = Want { view: &view, pages, again: true, extra: &extra, write: false };
        let fetched = block.fetch(&reserved, &want, self.process.deadline());
        drop(reserved);
        match fetched {
            Ok(fetched) => {
                let left = fetched.left & wanted;
                if !left.is_empty() {
                    block.window().leave_to_restore(block, left);
                }
                let live = block.state(|_| ()).is_some();
                fetched.error.map_or(Ok(live), |errno| Err(block.error(errno)))
            }
            Err(e) => {
                block.window().leave_to_restore(block, wanted);
                Err(e)
            }
        }
    }

    fn eager_pages(&self, block: &Block, gpu: usize) -> PageBits {
        let inner = self.process.svm().inner.lock();
        let span = block.span();
        let ranges = inner.ranges.within(span.start().0, span.end().0);
        ranges
            .iter()
            .filter(|range| self.eager(&range.attributes) >> gpu & 1 != 0)
            .fold(PageBits::NONE, |bits, range| {
                bits | block.pages_of(CpuSpan::between(CpuVa(range.start), CpuVa(range.end)))
            })
    }

    /// What holds for all ranges of the span; what holds for unset memory where there are none.
    fn get(&self, span: CpuSpan, list: &mut [abi::SvmAttribute]) -> Result {
        self.sweep_in(span)?;
        if !self.process.mm().mapped(span) {
            return Err(not_mapped());
        }
        for item in list.iter() {
            let one_gpu = [abi::SVM_ATTR_ACCESS_IN_PLACE, abi::SVM_ATTR_NO_ACCESS].contains(&item.attr_type);
            if one_gpu || item.attr_type > abi::SVM_ATTR_GRANULARITY {
                return Err(Errno::EINVAL.into());
            }
        }
        let common = {
            let inner = self.process.svm().inner.lock();
            let mut ranges = inner.ranges.within(span.start().0, span.end().0).iter();
            let first = ranges.next().map_or(Attributes::unset(self.process.xnack()), |range| range.attributes);
            let mut common = Common::new(&first);
            ranges.for_each(|range| common.add(&range.attributes));
            common
        };
        for item in list {
            let asks_gpu = item.attr_type == abi::SVM_ATTR_ACCESS;
            let bit = if asks_gpu { self.gpu_bit(item.value)? } else { 0 };
            common.answer(item, bit);
        }
        Ok(())
    }
}
