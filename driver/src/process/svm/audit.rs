// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The page tables of a process against everything that is known of them: what
//! [`crate::svm::table`] and [`crate::svm::block_state`] say always holds.
//!
//! An entry that is found here and nowhere else is one that no invalidation will find: a GPU would
//! go on using memory that has another owner. Right at any time, also while others work: it takes
//! the locks of ranks `Process`, `Svm`, `Vm` and `Notifier`. O(page tables) of the process, so it
//! is for tests; debug builds look at the blocks of each call.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "of debug builds: blocks and pages of windows that are there"
)]

use super::SvmWork;
use crate::base::addr::{index, CpuSpan, GpuVa, HUGE, HUGE_PAGES, PAGE};
use crate::base::pte;
use crate::collections::page_bits::PageBits;
use crate::gpuvm::vm::Vm;
use crate::os::Arc;
use crate::process;
use crate::svm::block::slot_of;
use crate::svm::window::BLOCKS;
use crate::svm::{Inner, Vms};

/// What does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flaw {
    pub what: &'static str,
    /// At which address.
    pub at: u64,
    /// On which GPU, by number.
    pub gpu: usize,
    /// The entry there.
    pub entry: u64,
}

impl SvmWork<'_> {
    /// Looks for an entry without an owner, and for recorded state that is wrong.
    pub fn audit(&self) -> Option<Flaw> {
        // Until the end: there is no VM that it does not have.
        let objects = self.process.lock();
        let svm = self.process.svm().inner.lock();
        let flaw = objects.vms.iter().flatten().find_map(|vm| audit_vm(&objects, &svm, vm));
        flaw.or_else(|| audit_blocks(&svm, &objects.vms))
    }

    /// Debug builds: that what the first few blocks of `span` know is so. O(pages).
    pub(super) fn check_blocks(&self, span: CpuSpan) {
        const MOST: usize = 4;
        if !cfg!(debug_assertions) {
            return;
        }
        let objects = self.process.lock();
        let svm = self.process.svm().inner.lock();
        for block in (span.start().0 / HUGE..span.end().0.div_ceil(HUGE)).take(MOST) {
            let flaw = audit_block(&svm, &objects.vms, block * HUGE);
            debug_assert!(flaw.is_none(), "SVM: {flaw:x?}");
        }
    }
}

/// Each entry in the tables of a VM is a buffer object's, or one of a live block.
fn audit_vm(objects: &process::Inner, svm: &Inner, vm: &Arc<Vm>) -> Option<Flaw> {
    let gpu = vm.gpu_index();
    vm.each_block(|table, GpuVa(start)| {
        let window = svm.window(start).map(|watched| &watched.window);
        let mut state = window.map(|window| window.lock());
        let entry = |page| table.entry_at(GpuVa(start + page * PAGE));
        // Read under the lock under which they are written.
        let mut there = PageBits::NONE;
        for page in (0..HUGE_PAGES).filter(|page| entry(*page) & pte::VALID != 0) {
            there.insert(page);
        }
        let block = state.as_mut().and_then(|state| state.of_slot(slot_of(start)));
        let known = block.and_then(|block| block.map(gpu)).map_or(PageBits::NONE, |map| map.entries);
        drop(state);
        let unknown = there & !known;
        let stray = (0..HUGE_PAGES).filter(|page| unknown.has(*page)).find(|page| {
            let at = start + page * PAGE;
            let Some((_, _, number)) = objects.gpu_va.first_overlap(at, at + PAGE) else { return true };
            let Some(object) = objects.bos.get(number).and_then(|bo| bo.userptr()) else { return false };
            // A mapping is there before its entries are, and as long.
            let state = object.lock();
            entry(*page) & pte::VALID != 0 && !state.maps().iter().any(|map| Arc::ptr_eq(&map.vm, vm))
        });
        let flaw =
            |page| Flaw { what: "an entry that nobody knows of", at: start + page * PAGE, gpu, entry: entry(page) };
        stray.map(flaw)
    })
}

/// What each block knows is so.
fn audit_blocks(svm: &Inner, vms: &Vms) -> Option<Flaw> {
    svm.windows.iter().find_map(|watched| {
        let base = watched.window.span().start().0;
        (0..BLOCKS as u64).find_map(|block| audit_block(svm, vms, base + block * HUGE))
    })
}

/// The block at `at`: its entries are of ranges, are in the page tables, and point where its pages
/// are if they are current.
fn audit_block(svm: &Inner, vms: &Vms, at: u64) -> Option<Flaw> {
    let flaw = |what, page, gpu, entry| Some(Flaw { what, at: at + page * PAGE, gpu, entry });
    let mut state = svm.window(at)?.window.lock();
    let block = state.of_slot(slot_of(at))?;
    if let Some(what) = block.wrong() {
        return flaw(what, 0, 0, 0);
    }
    let mut ranges = PageBits::NONE;
    for range in svm.ranges.within(at, at + HUGE) {
        ranges |= PageBits::range((range.start.max(at) - at) / PAGE, (range.end.min(at + HUGE) - at) / PAGE);
    }
    for map in block.maps.iter() {
        let gpu = map.vm.gpu_index();
        if !vms.iter().flatten().any(|vm| Arc::ptr_eq(vm, &map.vm)) {
            return flaw("a map on a VM that the process does not have", 0, gpu, 0);
        }
        let mut found = None;
        map.entries.runs(|first, count| {
            for page in first..first + count {
                let entry = map.leaves.entry(&**map.vm.gpu(), page);
                let right = pte::address(entry) == pte::address(pte::leaf(block.pages[index(page)].target(), 0, 0));
                let what = if entry & pte::VALID == 0 {
                    "an entry that is not there"
                } else if !ranges.has(page) {
                    "an entry of no range"
                } else if map.current.has(page) && !right {
                    "a current entry that points elsewhere"
                } else {
                    continue;
                };
                found = found.or(flaw(what, page, gpu, entry));
            }
        });
        if found.is_some() {
            return found;
        }
    }
    None
}
