// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Evicting SVM memory that is not where it was: a forked child has it, or nobody that the driver
//! knows of.

use vkfd_driver::machine::kfd::Options;
use vkfd_sim::svm::AT;
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::svm::*;

/// One GPU, and memory on it.
fn rig(vram: u64, pages: u64) -> Rig {
    let rig = Rig::with_gpus(Options::default(), 1, vram);
    rig.mm.map(AT, pages, true);
    rig.mm.fill(AT..AT + pages);
    rig.set(AT, pages, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert_eq!(rig.mm.device_pages() as u64, pages);
    rig
}

#[test]
fn what_only_a_forked_child_has_is_evicted_where_it_is() {
    let rig = rig(2048, 1024);
    let device = &rig.process.kfd().devices()[0];
    rig.mm.leave_to_child(AT, 512);
    rig.mm.leave_to_child(AT + 600, 10);
    assert_eq!(rig.mm.device_pages(), 502);
    assert_eq!(device.residency().hosted().0, 1024, "the child's are still there");
    let free = device.vram().available() / 4096;
    // More than is free without the child's pages.
    assert!(device.make_room(free + 1000).unwrap());
    assert_eq!(device.residency().hosted().0, 0);
    assert!(device.residency().is_empty());
    // Page tables of blocks without ranges may go meanwhile.
    assert!(device.vram().available() / 4096 >= free + 1024);
    rig.mm.check_child((AT..AT + 512).chain(AT + 600..AT + 610));
    rig.mm.check_filled((AT + 512..AT + 600).chain(AT + 610..AT + 1024));
    let counters = rig.svm_counters();
    assert_eq!((counters.pages_in.get(), counters.pages_out.get(), counters.evictions.get()), (1024, 1024, 2));
    rig.mm.end_child();
    assert_eq!(device.residency().hosted().0, 0);
}

#[test]
fn before_a_device_goes_what_only_a_child_has_comes_back() {
    let rig = rig(2048, 512);
    let device = &rig.process.kfd().devices()[0];
    rig.mm.leave_to_child(AT, 512);
    assert_eq!(device.evict_all().unwrap(), 512);
    assert_eq!(device.residency().hosted().0, 0);
    rig.mm.check_child(AT..AT + 512);
}

#[test]
fn all_places_of_a_granule_are_known_however_its_pages_have_come_and_gone() {
    let rig = rig(4096, 512);
    let device = &rig.process.kfd().devices()[0];
    // Places are given back at the ends, in the middle and all but a few, and others taken.
    for step in [2, 3, 7, 510] {
        for page in (AT..AT + 512).step_by(step).chain([AT + 511]) {
            rig.mm.renew(page, 1);
            rig.mm.fill([page]);
        }
        assert_eq!(device.residency().hosted().0, rig.mm.device_pages() as u64);
        rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
        assert_eq!(device.residency().hosted().0, 512);
    }
    rig.mm.leave_to_child(AT, 512);
    assert_eq!(device.evict_all().unwrap(), 512);
    assert!(device.residency().is_empty());
    rig.mm.check_child(AT..AT + 512);
}

#[test]
fn svm_memory_has_no_more_of_the_vram_than_it_may() {
    let limited = |svm_vram| {
        let rig = Rig::with_gpus(Options { svm_vram: Some(svm_vram), ..Options::default() }, 1, 8192);
        rig.mm.map(AT, 2048, true);
        rig.mm.fill(AT..AT + 2048);
        rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
        rig
    };
    let rig = limited(4 << 20);
    let device = &rig.process.kfd().devices()[0];
    for (block, hosted) in [(0, 512), (1, 1024), (2, 1024), (3, 1024)] {
        rig.set(AT + block * 512, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
        assert_eq!(device.residency().hosted().0, hosted, "with block {block}");
        assert!(device.vram().available() > 5000 * 4096, "there is room for the rest");
    }
    let counters = rig.svm_counters();
    assert_eq!((counters.pages_in.get(), counters.pages_out.get(), counters.evictions.get()), (2048, 1024, 2));
    rig.mm.check_filled(AT..AT + 2048);

    // All in one call.
    let rig = limited(4 << 20);
    rig.set(AT, 2048, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert_eq!(rig.process.kfd().devices()[0].residency().hosted().0, 1024);

    let rig = limited(1 << 20);
    rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert_eq!((rig.mm.device_pages(), rig.svm_counters().pages_refused.get()), (0, 512));
    rig.set(AT, 256, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert_eq!(rig.mm.device_pages(), 256);
}
