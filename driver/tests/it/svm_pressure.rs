// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Eviction from VRAM: the coldest memory goes, and uses make memory warm.

use vkfd_driver::device::vram::Contents;
use vkfd_driver::machine::kfd::Options;
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::svm::*;

/// A page number at a 2 MiB boundary.
const AT: u64 = 0x10_0000;
/// Pages of a granule.
const GRANULE: u64 = 512;
/// What the driver looks at together.
const LOT: u64 = 16;

/// Memory of so many granules, which a GPU with VRAM of as many may use.
fn rig(granules: u64, xnack: bool) -> Rig {
    let rig = Rig::with_gpus(Options::default(), 1, (granules + 4) * GRANULE);
    rig.mm.map(AT, granules * GRANULE, true);
    rig.mm.fill(AT..AT + granules * GRANULE);
    rig.process.set_xnack(xnack).unwrap();
    rig.set(AT, granules * GRANULE, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig
}

fn first(granule: u64) -> u64 {
    AT + granule * GRANULE
}

fn prefetch(rig: &Rig, granule: u64, pages: u64) {
    rig.set(first(granule), pages, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
}

/// Takes all VRAM that is free and `pages` pages more, and gives it back. How many evictions that
/// took.
fn press(rig: &Rig, pages: u64) -> u64 {
    let device = &rig.process.kfd().devices()[0];
    let before = rig.svm_counters().evictions.get();
    let free = device.vram().available() / 4096;
    let room = device.alloc_vram(free + pages, Contents::Zero).unwrap();
    device.vram().free(&**device.gpu(), &room);
    rig.settle();
    rig.svm_counters().evictions.get() - before
}

/// Granules that have pages in VRAM.
fn there(rig: &Rig, granules: u64) -> Vec<u64> {
    let on_gpu = |granule: &u64| (0..GRANULE).any(|page| rig.mm.location(first(*granule) + page) == Some(GPU_ID));
    (0..granules).filter(on_gpu).collect()
}

fn intact(rig: &Rig, granules: u64) {
    rig.mm.check_filled(AT..AT + granules * GRANULE);
}

#[test]
fn warm_memory_stays_however_large_it_is() {
    // As many cold granules as are looked at together, a small part of each; and one that is whole,
    // and warm.
    let rig = rig(LOT + 1, false);
    for granule in 0..LOT {
        prefetch(&rig, granule, 8);
    }
    prefetch(&rig, LOT, GRANULE);
    assert!(press(&rig, 20) >= 3, "eight pages of each");
    assert!(there(&rig, LOT + 1).contains(&LOT), "the warm one would have been cheaper");
    // Only when the cold have gone.
    press(&rig, GRANULE);
    assert_eq!(rig.mm.location(first(LOT)), Some(0));
    intact(&rig, LOT + 1);
}

#[test]
fn what_has_been_prefetched_again_is_warm() {
    let rig = rig(3, false);
    (0..3).for_each(|granule| prefetch(&rig, granule, GRANULE));
    // It is there already, and nothing moves.
    let moved = rig.svm_counters().pages_in.get();
    prefetch(&rig, 0, GRANULE);
    assert_eq!(rig.svm_counters().pages_in.get(), moved);
    assert_eq!((press(&rig, 1), there(&rig, 3)), (1, vec![0, 2]));
    intact(&rig, 3);
}

#[test]
fn what_a_gpu_has_faulted_on_is_warm() {
    let rig = rig(3, true);
    for granule in 0..3 {
        rig.gpu_read(0, first(granule)).unwrap();
    }
    // Its entries are gone, and the fault that brings them back moves nothing.
    let moved = rig.svm_counters().pages_in.get();
    rig.mm.notify(first(0), GRANULE, true);
    rig.gpu_read(0, first(0)).unwrap();
    assert_eq!(rig.svm_counters().pages_in.get(), moved);
    assert_eq!((press(&rig, 1), there(&rig, 3)), (1, vec![0, 2]));
    intact(&rig, 3);
}

#[test]
fn what_was_restored_for_queues_is_warm() {
    let rig = rig(3, false);
    (0..3).for_each(|granule| prefetch(&rig, granule, GRANULE));
    rig.mm.notify(first(0), GRANULE, true);
    rig.settle();
    assert_eq!((press(&rig, 1), there(&rig, 3)), (1, vec![0, 2]));
    intact(&rig, 3);
}
