// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What follows an invalidation: wanted pages become valid again before the queues go on, and ranges go whose memory has gone.
//!
//! SVM waits in the same place as userptr objects ([`crate::eviction`]), once a process, and the same worker serves it; the queues go
//! on when nothing waits. Windows know which of their blocks are restless.

use super::block::{Block, Want};
use super::window::{windows_of, Window, BLOCKS, WINDOW};
use super::{Inner, Svm, Watched};
use crate::addr::{CpuSpan, CpuVa, HUGE};
use crate::errno::Result;
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use core::sync::atomic::Ordering;
use vkfd_uapi::smi::QUEUE_EVICTION_TRIGGER_SVM;

impl Process {
    /// Stops the queues until wanted pages are valid, and asks for that.
    pub(super) fn svm_request_restore(self: &Arc<Self>) {
        let mut eviction = self.eviction().lock();
        eviction.wait_svm();
        self.evict_queues(&mut eviction, QUEUE_EVICTION_TRIGGER_SVM, true);
        drop(eviction);
        self.schedule_restore();
    }

    /// Makes wanted pages valid, block by block. Whether something is left to do.
    pub(crate) fn svm_restore(self: &Arc<Self>) -> Result<bool> {
        // What could not be dropped is not wanted either.
        let _ = self.svm_sweep();
        let mut before = usize::MAX;
        loop {
            let left = self.svm_restore_pass()?;
            // As with userptr: once more at once as long as each pass leaves less.
            if left == 0 || left >= before {
                return Ok(left > 0);
            }
            before = left;
        }
    }

    fn svm_restore_pass(self: &Arc<Self>) -> Result<usize> {
        let mut left = 0;
        let mut base = 0;
        loop {
            let window = self.svm().inner.lock().window_from(base);
            let Some(window) = window else { return Ok(left) };
            let mut slot = 0;
            while let Some(found) = window.restless(slot) {
                let at = window.span().start().0 + found as u64 * HUGE;
                match self.svm().find_block(at) {
                    Some(block) => left += usize::from(self.svm_restore_block(&block)?),
                    None => window.lock().set_restless(found, false),
                }
                slot = found + 1;
                if slot >= BLOCKS {
                    break;
                }
            }
            match window.span().start().0.checked_add(WINDOW) {
                Some(next) => base = next,
                None => return Ok(left),
            }
        }
    }

    /// Whether something of the block is left to do.
    fn svm_restore_block(&self, block: &Arc<Block>) -> Result<bool> {
        let Some(reserved) = block.reserve() else { return Ok(false) };
        let view = self.svm().view_to_map(self, block, &reserved)?;
        let Some(wanted) = block.state(|b| b.wanted()) else { return Ok(false) };
        let want = Want { view: &view, pages: wanted, extra: &[], write: false };
        let fetched = block.fetch(&reserved, &want, os::now())?;
        drop(reserved);
        self.counters().ranges_restored.add(1);
        self.svm_touch(block);
        Ok(!fetched.left.is_empty())
    }

    /// Drops ranges whose memory was unmapped, with the blocks and windows that go with them. Also what another thread is just dropping
    /// has gone when this returns. ENOMEM leaves what could not be dropped noted. Called without locks. O(windows) with something to drop,
    /// else O(1).
    pub(crate) fn svm_sweep(self: &Arc<Self>) -> Result {
        // What a client unmapped before it mapped other memory there is not to be found later, when that memory has ranges.
        self.mm().settle();
        let _one = self.svm().sweep.lock();
        if self.svm().notes.fetch_and(!Svm::DROPS, Ordering::AcqRel) & Svm::DROPS == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        let mut base = 0;
        loop {
            let window = self.svm().inner.lock().window_from(base);
            let Some(window) = window else { return result };
            if let Err(error) = self.svm_sweep_window(&window) {
                self.svm().note(Svm::DROPS);
                result = Err(error);
            }
            match window.span().start().0.checked_add(WINDOW) {
                Some(next) => base = next,
                None => return result,
            }
        }
    }

    fn svm_sweep_window(&self, window: &Window) -> Result {
        let mut at = window.span().start();
        while let Some(span) = window.take_drop(at) {
            if let Err(error) = self.svm().drop_span(span) {
                window.put_back_drop(span);
                return Err(error);
            }
            at = span.end();
        }
        if at > window.span().start() {
            self.svm_prune(window.span());
        }
        Ok(())
    }

    /// Ranges have just been made in `span`, which was mapped a moment ago. What was unmapped before they were there, when nobody listened
    /// or what was told of had been dealt with already, is not a range's. O(mappings) where all is mapped.
    pub(super) fn svm_confirm(&self, span: CpuSpan) -> Result {
        // Some hosts tell of an unmap before it is done.
        for base in windows_of(span) {
            let watch = self.svm().inner.lock().window(base).map(|watched| watched.watch.clone());
            if let Some(watch) = watch {
                watch.read_begin();
            }
        }
        if self.mm().mapped(span) {
            return Ok(());
        }
        let mut at = span.start();
        while at < span.end() {
            let rest = CpuSpan::between(at, span.end());
            let mapped = self.mm().first_mapped(rest).unwrap_or(CpuSpan::between(rest.end(), rest.end()));
            self.svm().drop_span(CpuSpan::between(at, mapped.start()))?;
            at = mapped.end();
        }
        self.svm_prune(span);
        Ok(())
    }

    /// Ends blocks of `within` in which there is no range any more, and windows. O(blocks there).
    pub(super) fn svm_prune(&self, within: CpuSpan) {
        let mut at = within.start().0;
        while let Some(block) = self.svm().next_block(at, within.end().0) {
            let span = block.span();
            let mut inner = self.svm().inner.lock();
            let unused = inner.ranges.within(span.start().0, span.end().0).is_empty();
            let taken = if unused { inner.take_block(&block) } else { None };
            drop(inner);
            if let Some(block) = taken {
                block.end();
            }
            match span.start().0.checked_add(HUGE) {
                Some(next) => at = next,
                None => break,
            }
        }
        loop {
            // A notifier is waited for when it goes: not under the lock.
            let window = self.svm().inner.lock().take_unused_window(within);
            if window.is_none() {
                return;
            }
        }
    }

    /// A GPU has got a VM, or XNACK was switched: what must be mapped has changed.
    pub(crate) fn svm_reapply(self: &Arc<Self>) {
        let Ok(vms) = self.svm_vms() else { return };
        let mut at = 0;
        loop {
            let found = self.svm().inner.lock().ranges.within(at, u64::MAX).first().copied();
            let Some(range) = found else { return };
            let part = CpuSpan::between(CpuVa(range.start.max(at)), CpuVa(range.end));
            // What cannot be had now stays out until it is asked for.
            let _ = self.svm_apply(part, &vms, false, false);
            at = part.end().0;
        }
    }

    /// The process ends: memory comes back from VRAM, notifiers, entries and page tables go.
    pub(crate) fn svm_release(&self) {
        let mut ranges = super::SvmRanges::new();
        let mut windows = Vec::new();
        {
            let mut inner = self.svm().inner.lock();
            core::mem::swap(&mut inner.ranges, &mut ranges);
            core::mem::swap(&mut inner.windows, &mut windows);
        }
        for watched in windows {
            let Watched { window, watch, blocks } = watched;
            for block in blocks.iter().flatten() {
                block.end();
                if block.granule().is_resident() {
                    // If its memory has gone, nothing is to be brought back.
                    let _ = block.granule().bring_back(block.span());
                }
            }
            drop(blocks);
            drop(watch);
            drop(window);
        }
        drop(ranges);
    }

    /// A block was used by a GPU just now.
    pub(super) fn svm_touch(&self, block: &Block) {
        for device in self.kfd().devices() {
            device.residency().touch(block.granule());
        }
    }
}

impl Inner {
    /// The first window at or above `base`.
    fn window_from(&self, base: u64) -> Option<Arc<Window>> {
        let at = self.windows.partition_point(|w| w.base() < base);
        self.windows.get(at).map(|w| w.window.clone())
    }

    fn take_block(&mut self, block: &Arc<Block>) -> Option<Arc<Block>> {
        let watched = self.window_mut(block.span().start().0)?;
        watched.blocks.get_mut(block.slot())?.take()
    }

    fn take_unused_window(&mut self, within: CpuSpan) -> Option<Watched> {
        let first = self.windows.partition_point(|w| w.window.span().end() <= within.start());
        let mut near = self.windows[first..].iter().take_while(|w| w.window.span().start() < within.end());
        let at = first
            + near.position(|w| {
                let span = w.window.span();
                let unused = self.ranges.within(span.start().0, span.end().0).is_empty();
                unused && w.blocks.iter().all(Option::is_none)
            })?;
        self.windows[at..].rotate_left(1);
        self.windows.pop()
    }
}
