// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest process's CPU memory: pages in the guest's RAM that can move, with the notifications of
//! it. A place that a page has left belongs to another owner at once, and is filled with a pattern.
//! When it is reused, and at the end, the pattern must still be there.

use crate::ram::Ram;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PhysAddr, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Page, Seq, Watch};
use vkfd_gpu::raw;

/// Places of others before one is reused.
const OTHERS: usize = 500;
const PATTERN: [u8; 4096] = [0xa5; 4096];

#[derive(Default)]
struct Pages {
    /// By page number.
    at: BTreeMap<u64, PhysAddr>,
    others: VecDeque<PhysAddr>,
    moved: u64,
    corrupted: u64,
}

type Watched = (u64, CpuSpan, Arc<dyn Invalidate>);

pub struct GuestMemory {
    ram: Arc<Ram>,
    pages: Mutex<Pages>,
    watches: Mutex<Vec<Watched>>,
    next: AtomicU64,
    seq: AtomicU64,
    /// Invalidations under way.
    flight: Mutex<Vec<CpuSpan>>,
}

impl GuestMemory {
    pub fn new(ram: Arc<Ram>) -> Self {
        let (next, seq) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { ram, pages: Mutex::default(), watches: Mutex::default(), next, seq, flight: Mutex::default() }
    }

    /// Gives page `page` memory.
    pub fn add(&self, page: u64) {
        self.pages.lock().unwrap().at.insert(page, self.ram.pages(1));
    }

    /// The word at byte `at` of a page.
    pub fn load(&self, page: u64, at: u64) -> u64 {
        let pages = self.pages.lock().unwrap();
        self.ram.load(PhysAddr(pages.at[&page].0 + at))
    }

    /// Moves a page to another place, as compaction does.
    pub fn migrate(&self, page: u64) {
        let span = CpuSpan::new(CpuVa(page * PAGE), PAGE).unwrap();
        self.flight.lock().unwrap().push(span);
        self.seq.fetch_add(1, SeqCst);
        let watches: Vec<_> = self.watches.lock().unwrap().iter().filter(|w| w.1.overlaps(span)).cloned().collect();
        for (_, _, client) in watches {
            assert!(client.invalidate(span, true));
        }
        let mut pages = self.pages.lock().unwrap();
        let new = if pages.others.len() < OTHERS {
            self.ram.pages(1)
        } else {
            let reused = pages.others.pop_front().unwrap();
            pages.corrupted += u64::from(self.ram.read(reused, PAGE) != PATTERN);
            reused
        };
        let old = pages.at.insert(page, new).unwrap();
        self.ram.write(new, &self.ram.read(old, PAGE));
        self.ram.write(old, &PATTERN);
        pages.others.push_back(old);
        pages.moved += 1;
        drop(pages);
        let mut flight = self.flight.lock().unwrap();
        let own = flight.iter().position(|f| *f == span).unwrap();
        flight.swap_remove(own);
    }

    /// Pages moved, and places of others that have changed.
    pub fn count(&self) -> (u64, u64) {
        let pages = self.pages.lock().unwrap();
        let changed = pages.others.iter().filter(|at| self.ram.read(**at, PAGE) != PATTERN).count() as u64;
        (pages.moved, pages.corrupted + changed)
    }
}

struct TestWatch {
    id: u64,
    span: CpuSpan,
    memory: Arc<GuestMemory>,
}

impl Watch for TestWatch {
    fn span(&self) -> CpuSpan {
        self.span
    }
    fn read_begin(&self) -> Seq {
        while self.memory.flight.lock().unwrap().iter().any(|f| f.overlaps(self.span)) {
            std::thread::sleep(Duration::from_micros(50));
        }
        Seq(self.memory.seq.load(SeqCst))
    }
    fn read_retry(&self, seq: Seq) -> bool {
        Seq(self.memory.seq.load(SeqCst)) != seq
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for TestWatch {
    fn drop(&mut self) {
        self.memory.watches.lock().unwrap().retain(|w| w.0 != self.id);
    }
}

fn caller(at: CpuVa) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(index(at.0))
}

/// The memory as the driver holds it.
pub struct Mm(pub Arc<GuestMemory>);

impl AddressSpace for Mm {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> Result {
        // SAFETY: arguments of calls are the test's own memory; `to` is ours.
        unsafe { raw::copy(to.as_mut_ptr(), caller(from), to.len()) }.map_err(|_| Errno::EFAULT.into())
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> Result {
        // SAFETY: as in `read`.
        unsafe { raw::copy(caller(to), from.as_ptr(), from.len()) }.map_err(|_| Errno::EFAULT.into())
    }

    fn watch(&self, span: CpuSpan, client: Arc<dyn Invalidate>) -> Result<Arc<dyn Watch>> {
        let id = self.0.next.fetch_add(1, SeqCst);
        self.0.watches.lock().unwrap().push((id, span, client));
        Ok(Arc::new(TestWatch { id, span, memory: self.0.clone() }))
    }

    fn fault(&self, _: &dyn Watch, _: Seq, spans: &[CpuSpan], access: Access, out: &mut [Page]) -> Faulted {
        let pages = self.0.pages.lock().unwrap();
        let mut out = out.iter_mut();
        for (done, span) in spans.iter().enumerate() {
            for page in span.start().0 / PAGE..span.end().0 / PAGE {
                let (Some(at), Some(to)) = (pages.at.get(&page), out.next()) else {
                    return Faulted { spans: done, error: Some(Errno::EFAULT) };
                };
                *to = Page::new(*at, access == Access::Write);
            }
        }
        Faulted { spans: spans.len(), error: None }
    }

    fn mapped(&self, span: CpuSpan) -> bool {
        let pages = self.0.pages.lock().unwrap();
        (span.start().0 / PAGE..span.end().0.div_ceil(PAGE)).all(|page| pages.at.contains_key(&page))
    }

    fn is_current(&self) -> bool {
        true
    }
}
