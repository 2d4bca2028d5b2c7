// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the integration tests share: memory to watch, and a client that counts.
#![allow(dead_code, missing_docs)] // each test file uses a part

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PhysAddr, PAGE};
use vkfd_driver::seams::address_space::{Access, AddressSpace, Faulted, Invalidate, Page, Watch};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::frame::Resolved;
use vkfd_host::mm::Mm;
use vkfd_host::{HostError, Source};
use vkfd_rt::section;

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// One test at a time: a fork invalidates the memory of all. What the host warns of is shown. Where
/// the allocator checks it, nothing is allocated under the driver's locks that the reader takes.
pub fn serial() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    vkfd_driver::os::set_reclaim(|| section::enter("a lock of the driver's"), section::leave);
    let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr);
    let _ = warnings.try_init();
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's memory with this source; `None`, said aloud, where the system does not permit it.
pub fn memory(source: Source) -> Option<&'static Mm> {
    match Mm::get(source) {
        Ok(mm) => Some(mm),
        Err(HostError::Source { wanted, why }) => {
            eprintln!("SKIPPED: {wanted}: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Counts invalidations, and remembers the hull of their spans.
pub struct Counter {
    pub calls: AtomicU64,
    /// Of these, how often memory itself went.
    pub gone: AtomicU64,
    pub low: AtomicU64,
    pub high: AtomicU64,
}

impl Counter {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            low: AtomicU64::new(u64::MAX),
            high: AtomicU64::new(0),
        })
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn take_gone(&self) -> u64 {
        self.gone.swap(0, Ordering::SeqCst)
    }

    pub fn take(&self) -> Option<CpuSpan> {
        let calls = self.calls.swap(0, Ordering::SeqCst);
        let low = self.low.swap(u64::MAX, Ordering::SeqCst);
        let high = self.high.swap(0, Ordering::SeqCst);
        (calls != 0).then(|| CpuSpan::between(CpuVa(low), CpuVa(high)))
    }
}

impl Invalidate for Counter {
    fn invalidate(&self, span: CpuSpan, blockable: bool) -> bool {
        assert!(blockable);
        self.low.fetch_min(span.start().0, Ordering::SeqCst);
        self.high.fetch_max(span.end().0, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn unmapped(&self, span: CpuSpan, blockable: bool) -> bool {
        self.gone.fetch_add(1, Ordering::SeqCst);
        self.invalidate(span, blockable)
    }
}

/// A mapping. Where no place is given it is far from everything the kernel places by itself, so
/// that no other thread's mapping fills a hole that a test makes.
pub struct Area {
    pub at: u64,
    pub bytes: u64,
}

impl Area {
    pub fn new(pages: u64) -> Self {
        Self::map(0, pages, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    pub fn map(at: u64, pages: u64, prot: i32, flags: i32, fd: i32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0x1000_0000_0000);
        let room = (pages * PAGE).next_multiple_of(1 << 30) + (1 << 30);
        let at = if at == 0 { NEXT.fetch_add(room, Ordering::Relaxed) } else { at };
        let hint = std::ptr::with_exposed_provenance_mut(index(at));
        let got = unsafe { libc::mmap(hint, index(pages * PAGE), prot, flags, fd, 0) };
        assert_ne!(got, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { at: got.expose_provenance() as u64, bytes: pages * PAGE }
    }

    pub fn pages(&self, first: u64, count: u64) -> CpuSpan {
        CpuSpan::new(CpuVa(self.at + first * PAGE), count * PAGE).unwrap()
    }

    pub fn all(&self) -> CpuSpan {
        self.pages(0, self.bytes / PAGE)
    }

    pub fn byte(&self, at: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(index(self.at + at))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        unmap(self.all());
    }
}

pub fn pointer(span: CpuSpan) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(index(span.start().0))
}

pub fn unmap(span: CpuSpan) {
    assert_eq!(unsafe { libc::munmap(pointer(span), index(span.bytes())) }, 0);
}

pub fn advise(span: CpuSpan, advice: i32) {
    let done = unsafe { libc::madvise(pointer(span), index(span.bytes()), advice) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

pub fn protect(span: CpuSpan, prot: i32) {
    assert_eq!(unsafe { libc::mprotect(pointer(span), index(span.bytes()), prot) }, 0);
}

/// A watch with its counter and view of memory.
pub struct Watched {
    pub mm: &'static Mm,
    pub memory: ProcessMemory,
    pub watch: Arc<dyn Watch>,
    pub counter: Arc<Counter>,
}

impl Watched {
    pub fn new(mm: &'static Mm, span: CpuSpan) -> Self {
        let memory = ProcessMemory::new(mm);
        let counter = Counter::new();
        let watch = memory.watch(span, counter.clone()).unwrap();
        Self { mm, memory, watch, counter }
    }

    pub fn fault_spans(&self, spans: &[CpuSpan], access: Access) -> (Faulted, Vec<Page>) {
        let count: u64 = spans.iter().map(|s| s.pages()).sum();
        let mut pages = vec![Page::default(); index(count)];
        let seq = self.watch.read_begin();
        let faulted = self.memory.fault(&*self.watch, seq, spans, access, &mut pages);
        (faulted, pages)
    }

    /// Faults a span that must fault.
    pub fn fault(&self, span: CpuSpan, access: Access) -> Vec<Page> {
        let (faulted, pages) = self.fault_spans(&[span], access);
        assert_eq!(faulted, Faulted { spans: 1, error: None });
        assert!(pages.iter().all(|p| p.writable() == (access == Access::Write)));
        pages
    }

    pub fn resolve(&self, at: PhysAddr) -> Resolved {
        self.mm.frames().resolve(at, 1)
    }

    pub fn is_live(&self, page: Page, va: CpuVa) -> bool {
        self.resolve(page.phys()) == Resolved::Live(va, 1)
    }

    /// After a change: what the driver was told, checking that the frames of `gone` died and all
    /// others live.
    pub fn told(&self, all: CpuSpan, pages: &[Page], gone: CpuSpan) -> Option<CpuSpan> {
        self.mm.settle();
        for (i, page) in pages.iter().enumerate() {
            let va = CpuVa(all.start().0 + i as u64 * PAGE);
            let expect = if gone.contains(va) { Resolved::Stale } else { Resolved::Live(va, 1) };
            assert_eq!(self.resolve(page.phys()), expect, "page {i}");
        }
        self.counter.take()
    }
}
