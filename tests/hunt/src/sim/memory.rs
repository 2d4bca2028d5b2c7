// SPDX-License-Identifier: GPL-2.0 OR MIT
//! CPU memory: a table of pages, each a frame that no other page ever has; and the notifiers on it.
//!
//! A stretch of addresses at [`CALLER`] is memory that calls read and write; everything else there
//! is not. Pages of the table can be registered. A [`Race`] runs after the driver has faulted pages
//! in and before it gets them: the moment that matters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vkfd_driver::base::addr::{CpuSpan, CpuVa, PhysAddr, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Page, Seq, Watch};

/// Where the memory of callers begins.
pub const CALLER: u64 = 0x10_0000;
/// Its size.
pub const CALLER_BYTES: usize = 0x1_0000;
/// First page of the table.
pub const FIRST_PAGE: u64 = 0x1000;
/// Frames that belong together are aligned like their pages, so that large entries come about.
const BLOCK: u64 = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuPage {
    frame: u64,
    writable: bool,
}

/// What happens to pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They go.
    Unmap,
    /// They get other frames, as by a discard or a migration.
    Renew,
    /// They become writable or not.
    Protect { writable: bool },
    /// Nothing; the driver is told all the same.
    Nothing,
}

/// A change of `count` pages from `first` on, after the `skip`-th fault call from now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Race {
    /// Fault calls to let pass.
    pub skip: u32,
    /// What happens.
    pub change: Change,
    /// First page.
    pub first: u64,
    pub count: u64,
}

struct Table {
    pages: Vec<Option<CpuPage>>,
    alive: BTreeSet<u64>,
    next_frame: u64,
}

struct Watched {
    id: u64,
    span: CpuSpan,
    client: Arc<dyn Invalidate>,
}

/// The memory.
pub struct SimMemory {
    table: Mutex<Table>,
    caller: Mutex<Vec<u8>>,
    watches: Mutex<Vec<Watched>>,
    sequence: AtomicU64,
    under_way: Mutex<usize>,
    changed: Condvar,
    race: Mutex<Option<Race>>,
    raced: Mutex<Vec<Race>>,
    fail_once: Mutex<BTreeMap<u64, Errno>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pages_of(span: CpuSpan) -> std::ops::Range<u64> {
    span.start().0 / PAGE..span.end().0.div_ceil(PAGE)
}

impl Table {
    fn place(&self, page: u64) -> Option<usize> {
        let at = usize::try_from(page.checked_sub(FIRST_PAGE)?).ok()?;
        (at < self.pages.len()).then_some(at)
    }

    fn get(&self, page: u64) -> Option<CpuPage> {
        self.place(page).and_then(|at| self.pages[at])
    }

    fn set(&mut self, page: u64, new: Option<CpuPage>) {
        let Some(at) = self.place(page) else { return };
        let old = std::mem::replace(&mut self.pages[at], new);
        if let Some(old) = old {
            self.alive.remove(&old.frame);
        }
        if let Some(new) = new {
            self.alive.insert(new.frame);
        }
    }

    fn fresh(&mut self, first: u64, count: u64, writable: bool) {
        let base = self.next_frame.next_multiple_of(BLOCK) + first % BLOCK;
        self.next_frame = base + count;
        for i in 0..count {
            self.set(first + i, Some(CpuPage { frame: base + i, writable }));
        }
    }
}

impl SimMemory {
    /// A table of `pages` pages, none of them mapped.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        let table = Table { pages: vec![None; pages], alive: BTreeSet::new(), next_frame: 0x1_0000 };
        Self {
            table: Mutex::new(table),
            caller: Mutex::new(vec![0; CALLER_BYTES]),
            watches: Mutex::default(),
            sequence: AtomicU64::new(0),
            under_way: Mutex::new(0),
            changed: Condvar::new(),
            race: Mutex::default(),
            raced: Mutex::default(),
            fail_once: Mutex::default(),
        }
    }

    fn caller_place(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(at.checked_sub(CALLER)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= CALLER_BYTES).then_some(start..end)
    }

    /// Puts bytes into the callers' memory; what does not fit there is left out.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        if let Some(place) = Self::caller_place(at, bytes.len()) {
            lock(&self.caller)[place].copy_from_slice(bytes);
        }
    }

    /// Takes bytes out of it.
    pub fn get(&self, at: u64, bytes: &mut [u8]) {
        if let Some(place) = Self::caller_place(at, bytes.len()) {
            bytes.copy_from_slice(&lock(&self.caller)[place]);
        }
    }

    /// Maps pages to frames of their own. Only what is replaced is notified, as in the kernel.
    pub fn map(&self, first: u64, count: u64, writable: bool) -> bool {
        let replaced = (first..first + count).any(|page| self.frame(page).is_some());
        if replaced {
            self.invalidation(&[first], count, |table| table.fresh(first, count, writable));
        } else {
            lock(&self.table).fresh(first, count, writable);
        }
        replaced
    }

    /// A page's frame.
    pub fn frame(&self, page: u64) -> Option<u64> {
        lock(&self.table).get(page).map(|p| p.frame)
    }

    /// Whether a page is there and allows the access.
    pub fn allows(&self, page: u64, write: bool) -> Allowed {
        match lock(&self.table).get(page) {
            None => Allowed::Missing,
            Some(p) if write && !p.writable => Allowed::Denied,
            Some(_) => Allowed::Fine,
        }
    }

    /// Whether a frame is some page's.
    pub fn is_alive(&self, frame: u64) -> bool {
        lock(&self.table).alive.contains(&frame)
    }

    /// Runs `change` with the watchers of `count` pages from each of `told` on told first;
    /// [`Watch::read_begin`] waits until it is done.
    fn invalidation(&self, told: &[u64], count: u64, change: impl FnOnce(&mut Table)) {
        *lock(&self.under_way) += 1;
        for first in told {
            self.notify(*first, count, true);
        }
        change(&mut lock(&self.table));
        *lock(&self.under_way) -= 1;
        self.changed.notify_all();
    }

    /// Tells the watchers. Whether all agreed; each is notified of the part it watches.
    pub fn notify(&self, first: u64, count: u64, blockable: bool) -> bool {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        let span = CpuSpan::between(CpuVa(first * PAGE), CpuVa((first + count) * PAGE));
        let told: Vec<_> = lock(&self.watches)
            .iter()
            .filter(|w| w.span.overlaps(span))
            .map(|w| {
                let part = CpuSpan::between(w.span.start().max(span.start()), w.span.end().min(span.end()));
                (w.client.clone(), part)
            })
            .collect();
        told.iter().all(|(client, part)| client.invalidate(*part, blockable))
    }

    /// Changes pages: tells, then does it. Pages that are not mapped stay so.
    pub fn change(&self, change: Change, first: u64, count: u64) {
        self.invalidation(&[first], count, |table| {
            for page in first..first + count {
                let Some(old) = table.get(page) else { continue };
                match change {
                    Change::Unmap => table.set(page, None),
                    Change::Renew => table.fresh(page, 1, old.writable),
                    Change::Protect { writable } => table.set(page, Some(CpuPage { writable, ..old })),
                    Change::Nothing => {}
                }
            }
        });
    }

    /// Moves pages, as mremap does. What is at the target goes.
    pub fn remap(&self, from: u64, count: u64, to: u64) -> bool {
        let replaced = (to..to + count).any(|page| self.frame(page).is_some());
        let told = if replaced { &[from, to][..] } else { &[from] };
        self.invalidation(told, count, |table| {
            for i in 0..count {
                let page = table.get(from + i);
                table.set(from + i, None);
                table.set(to + i, page);
            }
        });
        replaced
    }

    /// Arms a race, or none.
    pub fn arm(&self, race: Option<Race>) {
        *lock(&self.race) = race;
    }

    /// Races that have happened since this was last asked.
    pub fn take_raced(&self) -> Vec<Race> {
        std::mem::take(&mut lock(&self.raced))
    }

    /// Lets the next fault of a page fail.
    pub fn fail_once(&self, page: u64, errno: Errno) {
        lock(&self.fail_once).insert(page, errno);
    }

    /// Forgets what [`fail_once`](Self::fail_once) has not done yet.
    pub fn no_failures(&self) {
        lock(&self.fail_once).clear();
    }

    /// Registered notifiers.
    pub fn watches(&self) -> usize {
        lock(&self.watches).len()
    }

    fn run_race(&self) {
        let due = {
            let mut race = lock(&self.race);
            match race.as_mut() {
                Some(waiting) if waiting.skip > 0 => {
                    waiting.skip -= 1;
                    None
                }
                _ => race.take(),
            }
        };
        if let Some(race) = due {
            lock(&self.raced).push(race);
            self.change(race.change, race.first, race.count);
        }
    }

    fn fault_page(&self, page: u64, access: Access) -> std::result::Result<Page, Errno> {
        if let Some(errno) = lock(&self.fail_once).remove(&page) {
            return Err(errno);
        }
        let write = access == Access::Write;
        match lock(&self.table).get(page) {
            None => Err(Errno::EFAULT),
            Some(p) if write && !p.writable => Err(Errno::EPERM),
            Some(p) => Ok(Page::new(PhysAddr(p.frame * PAGE), write)),
        }
    }
}

/// What an access to a page comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    Fine,
    /// Nothing is mapped.
    Missing,
    /// Not allowed.
    Denied,
}

struct SimWatch {
    id: u64,
    span: CpuSpan,
    memory: Arc<SimMemory>,
}

impl Watch for SimWatch {
    fn span(&self) -> CpuSpan {
        self.span
    }
    fn read_begin(&self) -> Seq {
        let mut under_way = lock(&self.memory.under_way);
        while *under_way > 0 {
            under_way = self.memory.changed.wait(under_way).unwrap_or_else(PoisonError::into_inner);
        }
        Seq(self.memory.sequence.load(Ordering::SeqCst))
    }
    fn read_retry(&self, seq: Seq) -> bool {
        Seq(self.memory.sequence.load(Ordering::SeqCst)) != seq
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimWatch {
    fn drop(&mut self) {
        lock(&self.memory.watches).retain(|w| w.id != self.id);
    }
}

/// The memory as the driver holds it.
pub struct Mm(pub Arc<SimMemory>);

impl AddressSpace for Mm {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        let place = SimMemory::caller_place(from.0, to.len()).ok_or(Errno::EFAULT)?;
        to.copy_from_slice(&lock(&self.0.caller)[place]);
        Ok(())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        let place = SimMemory::caller_place(to.0, from.len()).ok_or(Errno::EFAULT)?;
        lock(&self.0.caller)[place].copy_from_slice(from);
        Ok(())
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        os::failpoint(FailPoint::Watch)?;
        let id = self.0.sequence.fetch_add(1, Ordering::SeqCst);
        lock(&self.0.watches).push(Watched { id, span, client });
        Ok(Arc::new(SimWatch { id, span, memory: self.0.clone() }))
    }

    fn fault(&self, watch: &dyn Watch, _: Seq, spans: &[CpuSpan], access: Access, out: &mut [Page]) -> Faulted {
        let mut done = Faulted { spans: 0, error: None };
        let mut room = out.iter_mut();
        'spans: for span in spans {
            let inside = watch.span().start() <= span.start() && span.end() <= watch.span().end();
            assert!(inside, "{span:?} is outside of the watch of {:?}", watch.span());
            for page in pages_of(*span) {
                match (self.0.fault_page(page, access), room.next()) {
                    (Ok(found), Some(slot)) => *slot = found,
                    (Err(errno), _) => {
                        done.error = Some(errno);
                        break 'spans;
                    }
                    (Ok(_), None) => panic!("no room for {span:?}"),
                }
            }
            done.spans += 1;
        }
        self.0.run_race();
        done
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        pages_of(span).all(|page| self.0.frame(page).is_some())
    }

    fn is_current(&self) -> bool {
        true
    }
}
