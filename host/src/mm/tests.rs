// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a fault answers.

use super::*;
use crate::address_space::ProcessMemory;
use crate::sys;
use std::sync::atomic::AtomicUsize;
use vkfd_driver::seams::address_space::{AddressSpace, Invalidate};
use vkfd_sabotage::Switch;

/// Hears nothing.
struct Deaf;

impl Invalidate for Deaf {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        true
    }
}

fn pages(first: CpuVa, count: u64) -> CpuSpan {
    CpuSpan::between(first, CpuVa(first.0 + count * PAGE))
}

/// Counts what it is notified of.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Invalidate for Counter {
    fn invalidate(&self, _: CpuSpan, _: bool) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// Memory may be mapped after a fault has registered what was there, and before it looks at the
/// pages. Its end must still be noticed.
#[test]
fn memory_that_is_mapped_during_a_fault_is_watched() {
    let mm = Mm::get(Source::Auto).unwrap();
    if mm.uffd.is_none() {
        return;
    }
    let process = ProcessMemory::new(mm);
    // The watch is of one page, or of one page and its two neighbours.
    for (count, trust) in [(1, false), (3, false), (1, true), (3, true)] {
        let memory = sys::map_anonymous(3 * 4096, libc::MAP_PRIVATE).unwrap();
        let first = CpuVa(memory.as_ptr().expose_provenance() as u64);
        let hole = pages(CpuVa(first.0 + PAGE), 1);
        let watched = if count == 1 { hole } else { pages(first, 3) };
        let told = Arc::new(Counter::default());
        let watch = process.watch(watched, told.clone()).unwrap();
        let fault = || {
            let seq = watch.read_begin();
            process.fault(&*watch, seq, &[hole], Access::Write, &mut [Page::default()])
        };
        assert_eq!(fault(), Faulted { spans: 1, error: None });
        // SAFETY: the mapping is the test's own, and nothing refers to it.
        unsafe { sys::unmap(hole.start().0, PAGE) };
        mm.settle();
        let told_first = told.0.swap(0, Ordering::SeqCst);
        crate::sabotage::switches().turn_on_with(Switch::MapWhileFaulting, hole.start().0);
        crate::sabotage::switches().turn(Switch::TrustRegistration, trust);
        let done = (0..3).map(|_| fault()).find(|faulted| faulted.error != Some(Errno::EBUSY));
        crate::sabotage::switches().turn(Switch::MapWhileFaulting, false);
        crate::sabotage::switches().turn(Switch::TrustRegistration, false);
        assert_eq!(done, Some(Faulted { spans: 1, error: None }), "it is there after all");
        // SAFETY: as above.
        unsafe { sys::unmap(hole.start().0, PAGE) };
        mm.settle();
        let noticed = told.0.load(Ordering::SeqCst) != 0;
        assert_eq!((told_first != 0, noticed), (true, !trust), "{count} pages, trusting: {trust}");
        drop(watch);
        // SAFETY: as above.
        unsafe { sys::unmap(first.0, 3 * PAGE) };
    }
}

/// The spans before the one that failed are said to be done: so they are, also when why it failed
/// is to be asked again.
#[test]
fn what_is_said_to_be_faulted_in_is() {
    let mm = Mm::get(Source::Auto).unwrap();
    let Ok(mover) = crate::migrate::Mover::started(mm) else { return };
    let memory = sys::map_anonymous(4 * 4096, libc::MAP_PRIVATE).unwrap();
    let at = CpuVa(memory.as_ptr().expose_provenance() as u64);
    // SAFETY: the mapping is the test's own, and nothing refers to it.
    unsafe { sys::unmap(at.0 + 2 * PAGE, PAGE) };
    let process = ProcessMemory::new(mm);
    let watch = process.watch(pages(at, 4), Arc::new(Deaf)).unwrap();
    let spans = [pages(at, 1), pages(CpuVa(at.0 + PAGE), 1), pages(CpuVa(at.0 + 2 * PAGE), 1)];
    let fault = || {
        let mut found = [Page::default(); 3];
        let seq = watch.read_begin();
        let faulted = process.fault(&*watch, seq, &spans, Access::Write, &mut found);
        for page in &found[..faulted.spans] {
            assert_ne!(*page, Page::default(), "said to be done: {faulted:?}, {found:x?}");
        }
        faulted
    };
    assert_eq!(fault(), Faulted { spans: 2, error: Some(Errno::EFAULT) });
    assert_eq!(mover.out_of_reach(fault), Faulted { spans: 2, error: Some(Errno::EBUSY) });
    drop(watch);
    // SAFETY: as above.
    unsafe { sys::unmap(at.0, 4 * PAGE) };
}

/// The driver skips such memory at once, where it would try each page.
#[test]
fn what_no_access_reaches_is_told_by_its_mappings() {
    let mm = Mm::get(Source::Auto).unwrap();
    let memory = sys::map_anonymous(5 * 4096, libc::MAP_PRIVATE).unwrap();
    let at = CpuVa(memory.as_ptr().expose_provenance() as u64);
    let page = |number: u64| CpuVa(at.0 + number * PAGE);
    // One page may be written, two read, one is not there, and one may be written.
    // SAFETY: the mapping is the test's own, and nothing refers to it.
    unsafe {
        assert_eq!(libc::mprotect(memory.as_ptr().wrapping_add(4096).cast(), 2 * 4096, libc::PROT_READ), 0);
        sys::unmap(page(3).0, PAGE);
    }
    let process = ProcessMemory::new(mm);
    let reach = |first, count, access| process.out_of_reach(pages(page(first), count), access) / PAGE;
    assert_eq!(reach(0, 5, Access::Write), 0);
    assert_eq!(reach(1, 4, Access::Write), 3);
    assert_eq!(reach(1, 2, Access::Write), 2);
    assert_eq!(reach(1, 4, Access::Read), 0);
    assert_eq!(reach(3, 2, Access::Read), 1);
    // SAFETY: as above.
    unsafe { sys::unmap(at.0, 5 * PAGE) };
}
