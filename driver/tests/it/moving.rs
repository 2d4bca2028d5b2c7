// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is done with memory while it moves to a GPU, by threads other than its mover.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_sim::svm::AT;
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::memory::{ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::svm::*;
use vkfd_uapi::vkfd::MOVE_TO_GPU;

const VA: u64 = 0x20_0000_0000;

fn rig(kind: Kind) -> Rig {
    let rig = Rig::with_gpus(Options { device_memory: kind, ..Options::default() }, 2, 4096);
    rig.mm.map(AT, 2048, true);
    rig.mm.fill(AT..AT + 2048);
    rig
}

fn move_to_gpu(rig: &Rig, first: u64, pages: u64) -> u64 {
    rig.move_pages(first, pages, MOVE_TO_GPU).unwrap()
}

/// Pages that were faulted in while pages moved, granule by granule, with time for every thread
/// that would fault them in.
fn faulted_meanwhile(rig: &Rig, run: impl FnOnce()) -> Vec<u64> {
    let meanwhile = Arc::new(Mutex::new(Vec::new()));
    let seen = meanwhile.clone();
    rig.mm.before_move(move |mm, _| {
        let before = mm.pages_faulted.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        seen.lock().unwrap().push(mm.pages_faulted.load(Ordering::SeqCst) - before);
    });
    run();
    let seen = meanwhile.lock().unwrap().clone();
    seen
}

#[test]
fn no_userptr_object_faults_in_what_is_moving() {
    for kind in [Kind::Coherent, Kind::Private] {
        let rig = rig(kind);
        // Two that share pages, in several pieces, one of them across two granules; XNACK is off,
        // so that each is restored at once.
        let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;
        let first = rig.register(VA, &[(AT + 100, 10), (AT, 50), (AT + 500, 30)], flags).unwrap();
        let second = rig.register(VA + (1 << 30), &[(AT + 40, 100)], flags).unwrap();
        rig.map(first).unwrap();
        rig.map(second).unwrap();
        let faulted = faulted_meanwhile(&rig, || assert_eq!(move_to_gpu(&rig, AT, 512), 512));
        assert_eq!(faulted, [0], "{kind:?}: pages faulted in during the move");
        rig.settle();
        rig.check(VA, &[(AT + 100, 10), (AT, 50), (AT + 500, 30)]);
        rig.check(VA + (1 << 30), &[(AT + 40, 100)]);
        assert_eq!(rig.mm.device_pages(), 512);
    }
}

#[test]
fn an_object_beside_what_is_moving_is_not_kept_waiting() {
    let rig = rig(Kind::Private);
    let flags = ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE;
    // Its hull is hit, none of its ranges is.
    let object = rig.register(VA, &[(AT, 10), (AT + 600, 10)], flags).unwrap();
    rig.map(object).unwrap();
    let meanwhile = Arc::new(Mutex::new(0));
    let (seen, process) = (meanwhile.clone(), rig.process.clone());
    rig.mm.before_move(move |mm, _| {
        mm.notify(AT + 605, 1, true);
        for _ in 0..60_000 {
            if !process.eviction().lock().evicted() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        *seen.lock().unwrap() += u32::from(!process.eviction().lock().evicted());
    });
    assert_eq!(move_to_gpu(&rig, AT + 100, 100), 100);
    assert_eq!(*meanwhile.lock().unwrap(), 1, "restored before the move was over");
    rig.settle();
}

#[test]
fn no_range_faults_in_what_a_client_moves_by_hand() {
    let rig = rig(Kind::Private);
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let faulted = faulted_meanwhile(&rig, || assert_eq!(move_to_gpu(&rig, AT, 512), 512));
    assert_eq!(faulted, [0]);
    rig.settle();
    rig.check_svm(0, AT, 1024);
}

#[test]
fn a_prefetch_waits_for_who_is_moving_the_same_pages() {
    for kind in [Kind::Coherent, Kind::Private] {
        let rig = rig(kind);
        // No GPU has access: mapping it there would wait by itself.
        let (begun, wait) = std::sync::mpsc::sync_channel(16);
        rig.mm.before_move(move |_, _| {
            // Time for the other one, which must not need it.
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        });
        std::thread::scope(|scope| {
            scope.spawn(|| rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap());
            wait.recv().unwrap();
            rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
            assert_eq!(rig.mm.device_pages(), 512, "{kind:?}: pages that are there when the second prefetch returns");
        });
        let counters = rig.svm_counters();
        assert_eq!((counters.pages_in.get(), counters.pages_out.get()), (512, 0));
        assert_eq!(rig.process.kfd().devices()[0].residency().hosted().0, 512);
    }
}

#[test]
fn a_prefetch_moves_what_another_one_could_not() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (begun, wait) = std::sync::mpsc::sync_channel(16);
    rig.mm.pin(AT..AT + 100);
    let moves = AtomicU64::new(0);
    rig.mm.before_move(move |mm, _| {
        // Pinned for the first one only.
        if moves.fetch_add(1, Ordering::SeqCst) > 0 {
            mm.unpin();
        }
        begun.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    });
    std::thread::scope(|scope| {
        scope.spawn(|| rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap());
        wait.recv().unwrap();
        rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
        assert_eq!(rig.mm.device_pages(), 512);
    });
    assert_eq!(rig.mm.device_pages(), 512);
    assert_eq!(rig.svm_counters().pages_in.get(), 512);
}

#[test]
fn from_gpu_to_gpu_only_what_is_not_there_moves() {
    for kind in [Kind::Coherent, Kind::Private] {
        let rig = rig(kind);
        rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_ACCESS, GPU_ID + 1)]).unwrap();
        let go = |first, pages, to| rig.set(first, pages, &[(SVM_ATTR_PREFETCH_LOC, to)]).unwrap();
        // On the second GPU, between and beside parts that are on the first or on none.
        go(AT, 1024, GPU_ID);
        go(AT + 10, 20, GPU_ID + 1);
        go(AT + 200, 1, GPU_ID + 1);
        go(AT + 500, 100, GPU_ID + 1);
        go(AT + 40, 5, SVM_LOCATION_SYSMEM);
        let before = rig.mm.moves.load(Ordering::SeqCst);
        go(AT, 1024, GPU_ID);
        assert!((AT..AT + 1024).all(|page| rig.mm.location(page) == Some(GPU_ID)));
        // There by way of system memory, and five from there.
        assert_eq!(rig.mm.moves.load(Ordering::SeqCst) - before, 2 * 121 + 5, "{kind:?}");
        rig.settle();
        rig.check_svm(0, AT, 1024);
        rig.check_svm(1, AT, 1024);
        rig.mm.check_filled(AT..AT + 1024);
    }
}
