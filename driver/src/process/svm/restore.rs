// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What follows an invalidation: wanted pages become valid again before the queues go on, and
//! ranges go whose memory has gone.
//!
//! SVM waits in the same place as userptr objects ([`crate::queues::eviction`]), once a process,
//! and the same worker serves it; the queues go on when nothing waits. Windows know which of their
//! blocks are restless.

use super::SvmWork;
use crate::base::addr::{CpuSpan, CpuVa};
use crate::base::errno::Result;
use crate::os::{self, Arc};
use crate::svm::block::Block;
use crate::svm::fetch::Want;
use crate::svm::window::{windows_of, Window, WINDOW};
use crate::svm::Svm;
use core::sync::atomic::Ordering;

impl SvmWork<'_> {
    /// Makes wanted pages valid, block by block. Whether something is left to do.
    pub(crate) fn restore(&self) -> bool {
        // What could not be dropped is not wanted either.
        let _ = self.sweep();
        let mut before = usize::MAX;
        loop {
            let left = self.restore_pass();
            // As with userptr: once more at once as long as each pass leaves less.
            if left == 0 || left >= before {
                return left > 0;
            }
            before = left;
        }
    }

    fn restore_pass(&self) -> usize {
        let mut left = 0;
        let mut base = 0;
        loop {
            let window = self.process.svm().inner.lock().window_from(base);
            let Some(window) = window else { return left };
            let mut slot = 0;
            while let Some(block) = window.restless(slot) {
                // Without memory for one the others go on.
                left = usize::from(self.restore_block(&block).unwrap_or(true)).saturating_add(left);
                slot = block.slot().saturating_add(1);
            }
            match window.span().start().0.checked_add(WINDOW) {
                Some(next) => base = next,
                None => return left,
            }
        }
    }

    /// Whether something of the block is left to do.
    fn restore_block(&self, block: &Arc<Block>) -> Result<bool> {
        let Some(reserved) = block.reserve() else { return Ok(false) };
        let view = self.process.svm().view_to_map(block, &reserved)?;
        let Some(wanted) = block.state(|b| b.wanted()) else { return Ok(false) };
        let want = Want { view: &view, pages: wanted, again: false, extra: &[], write: false };
        let fetched = block.fetch(&reserved, &want, os::now())?;
        drop(reserved);
        self.check_blocks(block.span());
        self.process.counters().ranges_restored.add(1);
        self.touch(block);
        Ok(!fetched.left.is_empty())
    }

    /// Drops ranges whose memory was unmapped, with the blocks and windows that go with them. Also
    /// what another thread is just dropping has gone when this returns. ENOMEM leaves what could
    /// not be dropped noted. Called without locks. O(windows) with something to drop, else O(1).
    pub(crate) fn sweep(&self) -> Result {
        // What a client unmapped before it mapped other memory there is not to be found later, when
        // that memory has ranges.
        self.process.mm().settle();
        let _one = self.process.svm().sweep.lock();
        let notes = self.process.svm().notes.swap(0, Ordering::AcqRel);
        if notes == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        let mut base = 0;
        loop {
            let window = self.process.svm().inner.lock().window_from(base);
            let Some(window) = window else { return result };
            if let Err(error) = self.sweep_window(&window, notes & Svm::UNUSED != 0) {
                self.process.svm().note(Svm::DROPS);
                result = Err(error);
            }
            match window.span().start().0.checked_add(WINDOW) {
                Some(next) => base = next,
                None => return result,
            }
        }
    }

    /// As [`svm_sweep`](Self::svm_sweep), for a caller that asks about `span`: ranges elsewhere
    /// that could not be dropped do not matter to it.
    pub(super) fn sweep_in(&self, span: CpuSpan) -> Result {
        let swept = self.sweep();
        match swept {
            Err(error) if self.process.svm().inner.lock().has_drop(span) => Err(error),
            _ => Ok(()),
        }
    }

    fn sweep_window(&self, window: &Arc<Window>, prune: bool) -> Result {
        let mut at = window.span().start();
        while let Some(span) = self.process.svm().drop_noted(window, at)? {
            at = span.end();
        }
        if prune || at > window.span().start() {
            self.process.svm().prune(window.span());
        }
        Ok(())
    }

    /// Ranges have just been made in `span`, which was mapped a moment ago. What was unmapped
    /// before they were there, when nobody listened or what was reported had been dealt with
    /// already, is not a range's. O(mappings) where all is mapped.
    pub(super) fn confirm(&self, span: CpuSpan) -> Result {
        for base in windows_of(span) {
            os::interrupted()?;
            let watch = self.process.svm().inner.lock().window(base).map(|watched| watched.watch.clone());
            if let Some(watch) = watch {
                watch.listen(watch.span().overlap(span))?;
                // Some hosts report an unmap before it is done.
                watch.read_begin();
            }
        }
        if self.process.mm().mapped(span) {
            return Ok(());
        }
        let mut at = span.start();
        while at < span.end() {
            os::interrupted()?;
            let rest = CpuSpan::between(at, span.end());
            // Ranges are made under this lock: none can come between the look and the drop, for
            // memory that was mapped there since.
            let objects = self.process.lock();
            let mapped = self.process.mm().first_mapped(rest).unwrap_or(CpuSpan::between(rest.end(), rest.end()));
            let dropped = self.process.svm().drop_span(CpuSpan::between(at, mapped.start()));
            drop(objects);
            dropped?;
            at = mapped.end();
        }
        self.process.svm().prune(span);
        Ok(())
    }

    /// A GPU has got a VM, or XNACK was switched: other pages must be mapped now.
    pub(crate) fn reapply(&self) {
        let Ok(mut vms) = self.room_for_vms() else { return };
        self.vms(&mut vms);
        let mut at = 0;
        loop {
            let found = self.process.svm().inner.lock().ranges.within(at, u64::MAX).first().copied();
            let Some(range) = found else { return };
            let part = CpuSpan::between(CpuVa(range.start.max(at)), CpuVa(range.end));
            // What cannot be had now stays out until it is asked for.
            let _ = self.apply(part, &vms, false, false);
            if os::killed() {
                return;
            }
            at = part.end().0;
        }
    }

    /// A block was used by a GPU just now.
    pub(super) fn touch(&self, block: &Block) {
        for device in self.process.kfd().devices() {
            device.residency().touch(block.granule());
        }
    }
}
