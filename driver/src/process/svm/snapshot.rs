// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client can read of its SVM memory: counters, ranges, and where their pages are.
//!
//! What is in VRAM is known exactly as long as no forked child has copies of its own; then a page
//! counts where either has it.

use super::SvmWork;
use crate::base::addr::{CpuSpan, CpuVa};
use crate::base::errno::Result;
use crate::collections::page_bits::PageBits;
use crate::os;
use crate::seams::device_memory::Kind;
use crate::svm::ranges::Range;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd as abi;

impl SvmWork<'_> {
    pub(crate) fn info(&self) -> Result<abi::SvmInfo> {
        let counters = self.process.svm().counters();
        let mut info = abi::SvmInfo {
            notifiers: self.process.svm().window_count() as u64,
            migrations_in: counters.migrations_in.get(),
            pages_in: counters.pages_in.get(),
            migrations_out: counters.migrations_out.get(),
            pages_out: counters.pages_out.get(),
            evictions: counters.evictions.get(),
            pages_refused: counters.pages_refused.get(),
            bounces: counters.bounces.get(),
            damped: counters.damped.get(),
            faults: counters.faults.get(),
            unregistered: counters.unregistered.get(),
            dropped: counters.dropped.get(),
            vram_used: self
                .process
                .kfd()
                .devices()
                .iter()
                .fold(0, |sum, device| device.vram().used().saturating_add(sum)),
            memory: self.memory_kind(),
            ..abi::SvmInfo::zeroed()
        };
        let mut at = 0;
        while let Some(range) = self.range_from(at) {
            info.ranges = info.ranges.saturating_add(1);
            info.bytes = info.bytes.saturating_add(range.end.saturating_sub(range.start));
            info.vram_pages = info.vram_pages.saturating_add(self.residency(&range)?.1);
            at = range.end;
        }
        Ok(info)
    }

    fn memory_kind(&self) -> u32 {
        let can = self.process.mm().migration();
        let kinds = self.process.kfd().devices().iter().map(|device| device.memory_kind());
        match kinds.into_iter().find(|kind| can.has(*kind)) {
            None => abi::SVM_MEMORY_NONE,
            Some(Kind::Coherent) => abi::SVM_MEMORY_COHERENT,
            Some(Kind::Private) => abi::SVM_MEMORY_PRIVATE,
        }
    }

    fn range_from(&self, at: u64) -> Option<Range> {
        self.process.svm().inner.lock().ranges.within(at, u64::MAX).first().copied()
    }

    /// Which GPUs have pages of a range, how many pages, and how many pages are known to the
    /// driver. O(blocks).
    fn residency(&self, range: &Range) -> Result<(u32, u64, u64)> {
        let span = CpuSpan::between(CpuVa(range.start), CpuVa(range.end));
        let (mut gpus, mut vram, mut valid) = (0, 0u64, 0u64);
        let mut at = range.start;
        while let Some(block) = self.process.svm().next_block(at, range.end) {
            os::interrupted()?;
            let own = block.pages_of(span);
            let mut here = PageBits::NONE;
            for device in self.process.kfd().devices() {
                let pages = device.residency().pages(block.granule()) & own;
                if !pages.is_empty() {
                    gpus |= 1 << device.index();
                    here |= pages;
                }
            }
            vram = here.count().saturating_add(vram);
            valid = block.state(|b| (b.valid & own).count()).unwrap_or(0).saturating_add(valid);
            at = block.span().end().0;
        }
        Ok((gpus, vram, valid))
    }

    pub(crate) fn copy_out_ranges(&self, args: &mut abi::SnapshotArgs) -> Result {
        args.total = self.process.svm().inner.lock().ranges.all().len() as u64;
        let mut at = args.handle;
        let result = self.process.copy_out(args, |_| {
            let Some(range) = self.range_from(at) else { return Ok(None) };
            at = range.end;
            let a = range.attributes;
            let (on_gpus, vram_pages, valid_pages) = self.residency(&range)?;
            Ok(Some(abi::SvmRangeInfo {
                start: range.start,
                size: range.end.saturating_sub(range.start),
                preferred: a.preferred,
                prefetch: a.prefetch,
                flags: a.flags,
                granularity: a.granularity,
                access: a.access,
                in_place: a.in_place,
                on_gpus,
                pad: 0,
                vram_pages,
                valid_pages,
            }))
        });
        args.handle = at;
        result
    }
}
