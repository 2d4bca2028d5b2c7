// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a fault answers.

use super::*;
use crate::sys;
use crate::watch::ProcessMemory;
use vkfd_driver::address_space::{AddressSpace, Invalidate};

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

/// The spans before the one that failed are said to be done: so they are, also when why it failed
/// is to be asked again.
#[test]
fn what_is_said_to_be_faulted_in_is() {
    let mm = Mm::get(Source::Auto).unwrap();
    let Ok(mover) = mm.start_mover() else { return };
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
