// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM under shuttle: invalidations, migrations, faults, evictions, unmaps and the end of the
//! process in interleavings that a scheduler chose and can repeat.
//!
//! GPU threads access all the time, and one counts up a number in memory that moves. Two failures
//! are looked for: an access to a frame that no page has any more, and a lost count. Built only
//! with `RUSTFLAGS="--cfg vkfd_shuttle"` (`cargo xtask interleavings`).
#![cfg(vkfd_shuttle)]

use std::sync::Arc;
use vkfd_driver::device::damping::Damping;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::interleaved::{check, with, Accesses};
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::svm::*;

const AT: u64 = 0x10_0000;
const PAGES: u64 = 4;

fn rig(options: Options, gpus: u32, vram: u64) -> Arc<Rig> {
    // Time stands still, so that everything bounces: only where that is asked is it damped.
    let damping = Damping { bounces: u32::MAX, ..options.damping };
    let rig = Rig::with_gpus(Options { damping, ..options }, gpus, vram);
    rig.mm.map(AT, PAGES, true);
    Arc::new(rig)
}

/// GPU `number` accesses all pages; with `faults` it raises a fault for a missing page.
fn gpu(rig: &Arc<Rig>, number: usize, faults: bool) -> Accesses {
    let at = move |turn: u64| (AT + (number as u64 + turn) % PAGES) * 4096;
    Accesses::start(rig, number, at, move |rig, va| {
        if faults {
            let _ = rig.fault(number, va / 4096, true, FaultReason::NotPresent);
        }
    })
}

fn prefetch(rig: &Rig, to: u32) {
    rig.set(AT, PAGES, &[(SVM_ATTR_PREFETCH_LOC, to)]).unwrap();
}

fn life_with_xnack_off(options: Options) {
    let rig = rig(options, 1, 64);
    let changes = with(&rig, |rig| {
        for _ in 0..10 {
            rig.mm.renew(AT + 1, 1);
            rig.mm.renew(AT, 3);
        }
    });
    let accesses = gpu(&rig, 0, false);
    rig.set(AT, PAGES, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, GPU_ID);
    changes.join().unwrap();
    rig.settle();
    rig.check_svm(0, AT, PAGES);
    let more = with(&rig, |rig| rig.mm.unmap(AT + 2, 2));
    // Refused if the memory has gone by then.
    let _ = rig.set(AT, PAGES, &[(SVM_ATTR_PREFETCH_LOC, SVM_LOCATION_SYSMEM)]);
    more.join().unwrap();
    accesses.end();
    rig.settle();
    rig.check_svm(0, AT, PAGES);
    rig.process.release();
    assert_eq!((rig.mm.watch_count(), rig.mm.device_pages(), rig.vram_used(0)), (0, 0, 0));
}

#[test]
fn a_life_with_xnack_off() {
    check(|| life_with_xnack_off(Options::default()));
}

fn life_with_xnack_on(options: Options) {
    let rig = rig(options, 2, 64);
    rig.process.set_xnack(true).unwrap();
    let accesses = [gpu(&rig, 0, true), gpu(&rig, 1, true)];
    let moves = with(&rig, |rig| {
        prefetch(rig, GPU_ID);
        prefetch(rig, SVM_LOCATION_SYSMEM);
    });
    rig.mm.renew(AT + 1, 2);
    moves.join().unwrap();
    accesses.into_iter().for_each(Accesses::end);
    for page in AT..AT + PAGES {
        assert_eq!(rig.reach(0, page, true).ok(), rig.mm.frame(page));
    }
    rig.process.release();
    assert_eq!((rig.mm.watch_count(), rig.mm.device_pages(), rig.vram_used(0)), (0, 0, 0));
}

#[test]
fn two_gpus_fault_while_memory_moves() {
    check(|| life_with_xnack_on(Options::default()));
}

/// Memory without a range gets one by a fault, by a call, or by both at once.
#[test]
fn a_fault_beside_a_call_that_makes_the_range_is_served() {
    check(|| {
        let rig = rig(Options::default(), 2, 64);
        rig.process.set_xnack(true).unwrap();
        let call = with(&rig, |rig| prefetch(rig, SVM_LOCATION_SYSMEM));
        let other = with(&rig, |rig| assert!(rig.reach(1, AT + 2, false).is_ok()));
        assert!(rig.reach(0, AT + 1, true).is_ok());
        call.join().unwrap();
        other.join().unwrap();
        rig.process.release();
        assert_eq!((rig.mm.watch_count(), rig.vram_used(0)), (0, 0));
    });
}

/// Memory of two granules, VRAM for hardly one: a thread that needs room takes the other's.
#[test]
fn evictions_by_faults_prefetches_and_buffer_objects_at_once() {
    check(|| {
        let rig = rig(Options::default(), 1, 16);
        rig.mm.map(AT + 512, PAGES, true);
        rig.process.set_xnack(true).unwrap();
        for page in 0..PAGES {
            rig.mm.cpu_write(AT + page, page + 1);
            rig.mm.cpu_write(AT + 512 + page, page + 11);
        }
        let other = with(&rig, |rig| {
            for _ in 0..2 {
                rig.set(AT + 512, PAGES, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
            }
        });
        let room = with(&rig, |rig| rig.use_vram(3));
        for page in 0..PAGES {
            assert!(rig.reach(0, AT + page, true).is_ok());
        }
        other.join().unwrap();
        room.join().unwrap();
        for page in 0..PAGES {
            assert_eq!((rig.mm.cpu_read(AT + page), rig.mm.cpu_read(AT + 512 + page)), (page + 1, page + 11));
        }
        rig.process.release();
        assert_eq!((rig.mm.device_pages(), rig.vram_used(0)), (0, 0));
    });
}

#[test]
fn attributes_change_from_two_sides_while_memory_is_replaced() {
    check(|| {
        let rig = rig(Options::default(), 2, 64);
        let other = with(&rig, |rig| {
            let _ = rig.set(AT, PAGES, &[(SVM_ATTR_NO_ACCESS, GPU_ID), (SVM_ATTR_ACCESS, GPU_ID + 1)]);
        });
        let unmap = with(&rig, |rig| {
            rig.mm.unmap(AT + 3, 1);
            // Other memory, which has no range unless it got one since.
            rig.mm.map(AT + 3, 1, true);
        });
        let _ = rig.set(AT, PAGES, &[(SVM_ATTR_ACCESS, GPU_ID)]);
        other.join().unwrap();
        unmap.join().unwrap();
        rig.settle();
        // Whichever came last: each GPU has what its access says, and nothing else.
        for page in AT..AT + PAGES {
            for (gpu, gpu_id) in [(0, GPU_ID), (1, GPU_ID + 1)] {
                let access = rig.get(page, 1, &[(SVM_ATTR_ACCESS, gpu_id)]);
                let expected = match access {
                    Ok(list) if list[0].0 == SVM_ATTR_ACCESS => rig.mm.frame(page),
                    _ => None,
                };
                assert_eq!(rig.gpus[gpu].walk(page * 4096), expected, "page {page:#x} on GPU {gpu}");
            }
        }
        rig.process.release();
        assert_eq!((rig.mm.watch_count(), rig.vram_used(0), rig.vram_used(1)), (0, 0, 0));
    });
}

#[test]
fn the_process_ends_in_the_middle() {
    check(|| {
        let rig = rig(Options::default(), 1, 64);
        rig.set(AT, PAGES, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
        prefetch(&rig, GPU_ID);
        let changes = with(&rig, |rig| {
            rig.mm.renew(AT, 1);
            rig.mm.unmap(AT + 1, 1);
        });
        rig.process.release();
        changes.join().unwrap();
        assert_eq!((rig.mm.watch_count(), rig.mm.device_pages(), rig.vram_used(0)), (0, 0, 0));
    });
}

#[cfg(debug_assertions)]
mod planted {
    use super::*;
    use vkfd_driver::sabotage::{Switch, Switches};

    #[test]
    #[should_panic]
    fn a_commit_of_pages_that_moved_is_found() {
        let sabotage = Switches::from(Switch::GenerationCheck);
        check(move || life_with_xnack_off(Options { sabotage, ..Options::default() }));
    }

    #[test]
    #[should_panic]
    fn a_lost_invalidation_is_found() {
        let sabotage = Switches::from(Switch::Invalidation);
        check(move || life_with_xnack_on(Options { sabotage, ..Options::default() }));
    }
}
