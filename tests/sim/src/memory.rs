// SPDX-License-Identifier: GPL-2.0 OR MIT
//! CPU memory, as a test changes it: like the kernel. Watches are notified before each change of
//! pages that are there; a fresh mapping is notified to nobody.

use crate::caller::Caller;
use crate::hooks::Hooks;
use crate::lock;
use crate::notifiers::{Change, Notifiers};
use crate::table::{CpuPage, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::address_space::Access;
use vkfd_driver::seams::device_memory::Kind;

#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    once: bool,
}

/// The memory.
#[derive(Default)]
pub struct SimMm {
    pub(crate) table: Mutex<Table>,
    pub(crate) notifiers: Arc<Notifiers>,
    pub(crate) hooks: Hooks,
    pub(crate) caller: Caller,
    pub(crate) failures: Mutex<BTreeMap<u64, Failure>>,
    /// Pages at which another mapping begins, although those before are mapped, too.
    pub(crate) cuts: Mutex<BTreeSet<u64>>,
    pub(crate) heap: Mutex<Range<u64>>,
    pub(crate) pinned: Mutex<BTreeSet<u64>>,
    pub(crate) kind: Mutex<Option<Kind>>,
    pub(crate) move_error: Mutex<Option<Errno>>,
    pub(crate) user: u32,
    /// Calls of [`fault`](vkfd_driver::seams::address_space::AddressSpace::fault).
    pub fault_calls: AtomicU64,
    pub pages_faulted: AtomicU64,
    /// Calls of [`mapped`](vkfd_driver::seams::address_space::AddressSpace::mapped).
    pub mapped_calls: AtomicU64,
    /// Pages moved to a GPU or back.
    pub moves: AtomicU64,
}

/// The addresses of pages.
pub fn span(first: u64, count: u64) -> CpuSpan {
    CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE))
}

/// The pages of addresses.
pub(crate) fn pages(span: CpuSpan) -> Range<u64> {
    span.start().0 / PAGE..span.end().0.div_ceil(PAGE)
}

/// What a test does with pages, by number.
impl SimMm {
    /// Memory of a user.
    pub fn of_user(user: u32) -> Self {
        Self { user, ..Self::default() }
    }

    /// Memory whose callers have an array and no pointers ([`crate::caller`]).
    pub fn with_array() -> Self {
        Self { caller: Caller::array(), ..Self::default() }
    }

    /// Maps pages, each to a fresh frame. Whether others were replaced by it.
    pub fn map(&self, first: u64, count: u64, writable: bool) -> bool {
        let replaced = lock(&self.table).pages.range(first..first + count).next().is_some();
        if replaced {
            self.change(Change::Mapping, first, count, || self.fresh(first, count, Some(writable)));
        } else {
            self.fresh(first, count, Some(writable));
        }
        replaced
    }

    /// Maps a page to a frame of the caller's choice.
    pub fn map_at(&self, page: u64, frame: u64) {
        lock(&self.table).insert(page, CpuPage { frame, writable: true, device: None });
    }

    fn fresh(&self, first: u64, count: u64, writable: Option<bool>) {
        let old = lock(&self.table).fresh(first, count, writable);
        self.let_go(old);
    }

    /// Takes pages away, as munmap does.
    pub fn unmap(&self, first: u64, count: u64) {
        self.change(Change::Mapping, first, count, || self.take(first, count));
    }

    /// As [`unmap`](Self::unmap), by a host that cannot tell an unmap from another change.
    pub fn unmap_untold(&self, first: u64, count: u64) {
        self.change(Change::Pages, first, count, || self.take(first, count));
    }

    /// As [`unmap`](Self::unmap), but a forked child keeps the pages.
    pub fn leave_to_child(&self, first: u64, count: u64) {
        self.change(Change::Mapping, first, count, || {
            let table = &mut *lock(&self.table);
            for page in first..first + count {
                let taken = table.remove(page);
                table.child.extend(taken.map(|taken| (page, taken)));
            }
        });
    }

    /// Gives mapped pages fresh frames, as a discard does.
    pub fn renew(&self, first: u64, count: u64) {
        self.change(Change::Pages, first, count, || self.fresh(first, count, None));
    }

    /// Makes mapped pages writable or not.
    pub fn protect(&self, first: u64, count: u64, writable: bool) {
        self.change(Change::Pages, first, count, || {
            lock(&self.table).pages.range_mut(first..first + count).for_each(|(_, page)| page.writable = writable);
        });
    }

    /// Takes all access to mapped pages away, as mprotect(PROT_NONE) does, or gives it back.
    pub fn deny(&self, first: u64, count: u64, denied: bool) {
        let failure = Failure { errno: Errno::EPERM, once: false };
        self.change(Change::Pages, first, count, || {
            let mut failures = lock(&self.failures);
            for page in first..first + count {
                if denied {
                    failures.insert(page, failure);
                } else {
                    failures.remove(&page);
                }
            }
        });
    }

    /// Moves pages to other addresses, as mremap does. Whether others were replaced there.
    pub fn remap(&self, from: u64, count: u64, to: u64) -> bool {
        let replaced = lock(&self.table).pages.range(to..to + count).next().is_some();
        let spans = [(Change::Mapping, span(from, count)), (Change::Mapping, span(to, count))];
        let spans = if replaced { &spans[..] } else { &spans[..1] };
        let mut gone = Vec::new();
        self.notifiers.change(spans, || {
            let mut table = lock(&self.table);
            for page in 0..count {
                let moved = table.remove(from + page);
                gone.extend(table.remove(to + page));
                if let Some(moved) = moved {
                    table.insert(to + page, moved);
                }
            }
        });
        self.let_go(gone);
        replaced
    }

    /// A page of system memory goes to a frame that the caller chose, as in compaction. `copy` gets
    /// the old frame.
    pub fn compact(&self, page: u64, frame: u64, copy: impl FnOnce(u64)) {
        self.change(Change::Pages, page, 1, || {
            let mut table = lock(&self.table);
            copy(table.pages[&page].frame);
            let device = table.put(page, frame, None);
            assert!(device.is_none(), "page {page:#x} is in VRAM");
        });
    }

    /// Takes all pages away, when nobody listens any more.
    pub fn end(&self) {
        let pages = {
            let table = &mut *lock(&self.table);
            table.live.clear();
            std::mem::take(&mut table.pages)
        };
        self.let_go(pages.into_values().collect());
    }

    /// Tells the watches of a change that does not come. Whether all agreed.
    pub fn notify(&self, first: u64, count: u64, blockable: bool) -> bool {
        self.notifiers.notify(Change::Pages, span(first, count), blockable)
    }

    pub(crate) fn change(&self, what: Change, first: u64, count: u64, f: impl FnOnce()) {
        self.notifiers.change(&[(what, span(first, count))], f);
    }

    fn take(&self, first: u64, count: u64) {
        let gone = {
            let table = &mut *lock(&self.table);
            (first..first + count).filter_map(|page| table.remove(page)).collect()
        };
        self.let_go(gone);
    }

    /// Pages are nobody's any more: their words are lost, and VRAM goes back.
    pub(crate) fn let_go(&self, pages: Vec<CpuPage>) {
        for page in pages {
            lock(&self.table).data.remove(&page.frame);
            if let Some((device, at)) = page.device {
                device.released(at, 1);
            }
        }
    }

    /// The frame of a page.
    pub fn frame(&self, page: u64) -> Option<u64> {
        lock(&self.table).pages.get(&page).map(|page| page.frame)
    }

    /// Runs `f` with the frame of a mapped page, which stays there meanwhile.
    pub fn with_frame<T>(&self, page: u64, f: impl FnOnce(u64) -> T) -> T {
        f(lock(&self.table).pages[&page].frame)
    }

    /// Whether some page has this frame.
    pub fn is_live(&self, frame: u64) -> bool {
        lock(&self.table).live.contains(&frame)
    }

    /// The word in a frame.
    pub fn load(&self, frame: u64) -> u64 {
        lock(&self.table).data.get(&frame).copied().unwrap_or(0)
    }

    /// Writes the word in a frame.
    pub fn store(&self, frame: u64, word: u64) {
        lock(&self.table).data.insert(frame, word);
    }

    /// Whether a page allows an access.
    pub fn allows(&self, page: u64, access: Access) -> std::result::Result<(), Errno> {
        match lock(&self.table).pages.get(&page) {
            None => Err(Errno::EFAULT),
            Some(page) if access == Access::Write && !page.writable => Err(Errno::EPERM),
            Some(_) => Ok(()),
        }
    }

    /// Registered notifiers.
    pub fn watch_count(&self) -> usize {
        self.notifiers.count()
    }

    /// Lets each fault of a page fail. With EPERM the page is as PROT_NONE.
    pub fn fail(&self, page: u64, errno: Errno) {
        lock(&self.failures).insert(page, Failure { errno, once: false });
    }

    /// Lets the next fault of a page fail.
    pub fn fail_once(&self, page: u64, errno: Errno) {
        lock(&self.failures).insert(page, Failure { errno, once: true });
    }

    /// The failure of a fault now.
    pub(crate) fn failure(&self, page: u64) -> Option<Errno> {
        let mut failures = lock(&self.failures);
        let failure = *failures.get(&page)?;
        if failure.once {
            failures.remove(&page);
        }
        Some(failure.errno)
    }

    /// Lets no fault fail any more.
    pub fn no_failures(&self) {
        lock(&self.failures).clear();
    }

    /// Says at which pages another mapping begins.
    pub fn cut(&self, pages: impl IntoIterator<Item = u64>) {
        lock(&self.cuts).extend(pages);
    }

    /// Whether another mapping begins at a page.
    pub fn is_cut(&self, page: u64) -> bool {
        lock(&self.cuts).contains(&page)
    }

    /// Says which pages are malloc's heap.
    pub fn set_heap(&self, pages: Range<u64>) {
        *lock(&self.heap) = pages;
    }

    /// Says which pages do not move to a GPU or back.
    pub fn pin(&self, pages: impl IntoIterator<Item = u64>) {
        lock(&self.pinned).extend(pages);
    }

    /// Lets all pages move.
    pub fn unpin(&self) {
        lock(&self.pinned).clear();
    }

    /// Says to which kind of memory pages can move.
    pub fn set_kind(&self, kind: Option<Kind>) {
        *lock(&self.kind) = kind;
    }
}
