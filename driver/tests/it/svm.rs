// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM ranges against a simulated host: attributes, mapping, invalidation, faults.

use std::sync::atomic::Ordering;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::gpuvm::page_table::VA_END;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::gpu::FaultReason;
use vkfd_sim::svm::{rig, xnack_rig, Refused, AT};
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::memory::ALLOC_MEM_FLAGS_EXECUTABLE;
use vkfd_uapi::svm::*;

/// Memory types.
const NC: u64 = 0;
const UC: u64 = 3;
const SNOOPED: u64 = 1 << 2;
const WRITEABLE: u64 = 1 << 6;
const EXECUTABLE: u64 = 1 << 4;

#[test]
fn attributes_are_checked_as_kfd_checks_them() {
    let rig = rig();
    let gone = GPU_ID + 9;
    for bad in [
        (SVM_ATTR_PREFERRED_LOC, gone),
        (SVM_ATTR_PREFETCH_LOC, SVM_LOCATION_UNDEFINED),
        (SVM_ATTR_PREFETCH_LOC, gone),
        (SVM_ATTR_ACCESS, 0),
        (SVM_ATTR_NO_ACCESS, gone),
        (SVM_ATTR_GRANULARITY + 1, 0),
    ] {
        assert_eq!(rig.set(AT, 1, &[bad]), Err(Errno::EINVAL), "{bad:?}");
    }
    assert_eq!(rig.set(AT + 2048, 1, &[]), Err(Errno::EFAULT));
    assert_eq!(rig.get(AT + 2048, 1, &[]), Err(Errno::EFAULT));
    for bad in [(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID), (SVM_ATTR_NO_ACCESS, GPU_ID), (99, 0), (SVM_ATTR_ACCESS, gone)] {
        assert_eq!(rig.get(AT, 1, &[bad]), Err(Errno::EINVAL), "{bad:?}");
    }
    assert_eq!(rig.info().notifiers, 0, "refused calls leave nothing");
}

#[test]
fn attributes_come_back_as_kfd_sums_them_up() {
    let rig = rig();
    let ask = [
        (SVM_ATTR_PREFERRED_LOC, 0),
        (SVM_ATTR_PREFETCH_LOC, 0),
        (SVM_ATTR_ACCESS, GPU_ID),
        (SVM_ATTR_SET_FLAGS, 0),
        (SVM_ATTR_CLR_FLAGS, 0),
        (SVM_ATTR_GRANULARITY, 0),
    ];
    let unset = rig.get(AT, 16, &ask).unwrap();
    let nowhere = SVM_LOCATION_UNDEFINED;
    let flags = SVM_FLAG_HOST_ACCESS | SVM_FLAG_COHERENT;
    assert_eq!(unset, [(0, nowhere), (1, nowhere), (SVM_ATTR_NO_ACCESS, GPU_ID), (5, flags), (6, !flags), (7, 9)]);
    let set = [
        (SVM_ATTR_PREFERRED_LOC, GPU_ID),
        (SVM_ATTR_ACCESS, GPU_ID),
        (SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_EXEC),
        (SVM_ATTR_CLR_FLAGS, SVM_FLAG_COHERENT),
        (SVM_ATTR_GRANULARITY, 200),
    ];
    rig.set(AT, 8, &set).unwrap();
    let flags = SVM_FLAG_HOST_ACCESS | SVM_FLAG_GPU_EXEC;
    let expected =
        [(0, GPU_ID), (1, nowhere), (SVM_ATTR_ACCESS, GPU_ID), (5, flags), (6, !flags), (SVM_ATTR_GRANULARITY, 0x3f)];
    assert_eq!(rig.get(AT, 8, &ask).unwrap(), expected);
    // A gap is not asked, as in KFD.
    assert_eq!(rig.get(AT, 16, &ask).unwrap(), expected);
    // Two ranges: what both have. In place here and by migration there is neither.
    rig.set(AT + 8, 8, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID), (SVM_ATTR_PREFERRED_LOC, GPU_ID + 1)]).unwrap();
    let both = rig.get(AT, 16, &ask).unwrap();
    assert_eq!(both[0].1, nowhere);
    assert_eq!(both[2].0, SVM_ATTR_NO_ACCESS);
    assert_eq!((both[3].1, both[4].1), (SVM_FLAG_HOST_ACCESS, !(flags | SVM_FLAG_COHERENT)));
    assert_eq!(both[5].1, 9);
    assert_eq!(rig.get(AT + 8, 8, &ask).unwrap()[2].0, SVM_ATTR_ACCESS_IN_PLACE);
    rig.process.set_xnack(true).unwrap();
    assert_eq!(rig.get(AT + 100, 1, &ask).unwrap()[2].0, SVM_ATTR_ACCESS, "with XNACK on all may use what nobody set");
}

#[test]
fn with_xnack_off_access_maps_at_once_and_only_the_gpus_that_have_it() {
    let rig = rig();
    // Not aligned, over three blocks.
    let (first, pages) = (AT + 300, 1000);
    rig.set(first, pages, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, first, pages);
    assert!(rig.nothing_mapped(1, first, pages) && rig.nothing_mapped(0, AT, 300));
    assert!(rig.nothing_mapped(0, first + pages, 100));
    rig.set(first + 500, 100, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID + 1)]).unwrap();
    rig.check_svm(1, first + 500, 100);
    assert!(rig.nothing_mapped(1, first, 500));
    rig.set(first + 550, 10, &[(SVM_ATTR_NO_ACCESS, GPU_ID)]).unwrap();
    assert!(rig.nothing_mapped(0, first + 550, 10));
    rig.check_svm(0, first, 550);
    rig.check_svm(1, first + 500, 100);
    assert_eq!(rig.info().notifiers, 1);
    assert!(!rig.gpu.is_suspended());
}

#[test]
fn entries_follow_the_flags_and_the_permission_of_the_memory() {
    let rig = rig();
    rig.mm.protect(AT + 4, 4, false);
    rig.set(AT, 16, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let entry = |page| rig.gpu.entry((AT + page) * 4096).unwrap().1;
    assert!(entry(0) & WRITEABLE != 0 && entry(0) & EXECUTABLE == 0);
    assert!(entry(5) & WRITEABLE == 0, "read-only memory is mapped for reading");
    rig.set(AT, 2, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_RO | SVM_FLAG_GPU_EXEC)]).unwrap();
    assert!(entry(1) & WRITEABLE == 0 && entry(1) & EXECUTABLE != 0);
    assert!(entry(2) & WRITEABLE != 0 && entry(2) & EXECUTABLE == 0);
    rig.set(AT, 2, &[(SVM_ATTR_CLR_FLAGS, SVM_FLAG_GPU_RO)]).unwrap();
    assert!(entry(1) & WRITEABLE != 0 && entry(1) & EXECUTABLE != 0);
    assert!(entry(1) & SNOOPED != 0, "system memory is in CPU caches");
    rig.set(AT, 2, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    assert!(entry(1) & SNOOPED == 0 && entry(1) & WRITEABLE != 0 && entry(1) & EXECUTABLE != 0);
    let mtype = |page| entry(page) >> 57 & 3;
    assert_eq!((mtype(1), mtype(2)), (UC, UC), "memory is coherent unless somebody says otherwise");
    rig.set(AT, 2, &[(SVM_ATTR_CLR_FLAGS, SVM_FLAG_COHERENT)]).unwrap();
    assert_eq!((mtype(1), mtype(2)), (NC, UC));
    rig.set(AT, 2, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_EXT_COHERENT)]).unwrap();
    assert_eq!((mtype(1), mtype(2)), (UC, UC));
    for flag in [SVM_FLAG_HOST_ACCESS, SVM_FLAG_HIVE_LOCAL] {
        let before = [entry(1), entry(2)];
        for change in [SVM_ATTR_SET_FLAGS, SVM_ATTR_CLR_FLAGS] {
            rig.set(AT, 16, &[(change, flag)]).unwrap();
            assert_eq!([entry(1), entry(2)], before, "flag {flag:#x}");
        }
    }
    rig.check_svm(0, AT, 16);
}

#[test]
fn memory_that_may_not_be_used_is_reported_and_the_rest_is_mapped() {
    let rig = rig();
    rig.mm.fail(AT + 7, Errno::EFAULT);
    assert_eq!(rig.set(AT, 600, &[(SVM_ATTR_ACCESS, GPU_ID)]), Err(Errno::EFAULT));
    rig.check_svm(0, AT, 7);
    rig.check_svm(0, AT + 8, 592);
    assert!(rig.nothing_mapped(0, AT + 7, 1));
    assert!(!rig.gpu.is_suspended(), "what cannot be had stops nothing");
}

#[test]
fn an_invalidation_stops_the_queues_and_costs_only_the_pages_it_hits() {
    let rig = rig();
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let faulted = rig.mm.pages_faulted.load(Ordering::SeqCst);
    for (first, count) in [(AT + 5, 1), (AT + 511, 2), (AT + 700, 20)] {
        rig.mm.renew(first, count);
    }
    rig.settle();
    rig.check_svm(0, AT, 1024);
    let info = rig.info();
    assert!(info.evictions >= 1 && info.evictions == info.restores);
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst) - faulted, 23);
    // Next to it: nothing stops.
    let suspends = rig.gpu.suspends.load(Ordering::SeqCst);
    rig.mm.renew(AT + 1024, 100);
    assert_eq!(rig.gpu.suspends.load(Ordering::SeqCst), suspends);
    assert_eq!(rig.info().evictions, info.evictions);
}

#[test]
fn userptr_and_svm_share_one_eviction() {
    let rig = rig();
    rig.mm.map(AT + 4096, 4, true);
    rig.set(AT, 4, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let va = 0x10_0000_0000;
    let handle = rig.register(va, &[(AT + 4096, 4)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    for _ in 0..10 {
        rig.mm.renew(AT + 1, 1);
        rig.mm.renew(AT + 4097, 1);
        rig.settle();
        rig.check_svm(0, AT, 4);
        rig.check(va, &[(AT + 4096, 4)]);
    }
    assert_eq!(rig.set(AT + 4096, 1, &[]), Err(Errno::EADDRINUSE));
    assert_eq!(rig.register(va + 0x10_0000, &[(AT + 3, 1)], WRITABLE_USERPTR), Err(Errno::EADDRINUSE));
}

#[test]
fn a_page_that_moves_while_it_is_faulted_in_is_faulted_in_again_and_no_other() {
    let rig = rig();
    let armed = std::sync::atomic::AtomicBool::new(true);
    rig.mm.after_fault(move |mm, _| {
        if armed.swap(false, Ordering::SeqCst) {
            mm.renew(AT + 17, 1);
        }
    });
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.check_svm(0, AT, 512);
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst), 513);
}

#[test]
fn memory_that_never_holds_still_is_left_to_the_restore() {
    let options = Options { register_deadline: std::time::Duration::from_millis(20), ..Options::default() };
    let rig = Rig::with_gpus(options, 1, 2048);
    rig.mm.map(AT, 16, true);
    rig.mm.after_fault(|mm, _| mm.renew(AT + 3, 1));
    rig.set(AT, 16, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    assert!(rig.gpu.is_suspended());
    rig.mm.no_hook();
    rig.settle();
    rig.check_svm(0, AT, 16);
}

#[test]
fn an_invalidation_that_may_not_block_is_refused_whole() {
    let rig = rig();
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    {
        let _eviction = rig.process.eviction().lock();
        let refused = std::thread::scope(|s| s.spawn(|| !rig.mm.notify(AT, 1, false)).join().unwrap());
        assert!(refused);
    }
    assert!(!rig.gpu.is_suspended());
    rig.check_svm(0, AT, 512);
    assert!(rig.mm.notify(AT, 1, false));
}

#[test]
fn memory_becomes_read_only_and_writable_again_under_a_range() {
    let rig = rig();
    rig.set(AT, 8, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let writable = |page| rig.gpu.entry((AT + page) * 4096).unwrap().1 & WRITEABLE != 0;
    assert!(writable(3));
    rig.mm.protect(AT + 3, 1, false);
    rig.settle();
    assert!(!writable(3) && writable(2));
    rig.check_svm(0, AT, 8);
    rig.mm.protect(AT + 3, 1, true);
    rig.settle();
    assert!(writable(3));
}

#[test]
fn faults_bring_memory_that_nobody_registered() {
    let rig = xnack_rig();
    rig.mm.cpu_write(AT + 700, 42);
    assert_eq!(rig.gpu_read(0, AT + 700), Ok(42));
    // The 2 MiB around it came along.
    rig.check_svm(0, AT + 512, 512);
    assert!(rig.nothing_mapped(0, AT, 512) && rig.nothing_mapped(1, AT + 512, 512));
    rig.gpu_write(1, AT + 700, 43).unwrap();
    assert_eq!(rig.mm.cpu_read(AT + 700), 43);
    assert_eq!(rig.svm_counters().unregistered.get(), 1);
    // Not where nothing is mapped, and only as far as something is.
    assert_eq!(rig.gpu_read(0, AT + 2048), Err(Refused));
    rig.mm.map(AT + 2048 + 5, 3, true);
    assert!(rig.gpu_read(0, AT + 2048 + 6).is_ok());
    assert_eq!(rig.gpu_read(0, AT + 2048 + 4), Err(Refused));
    assert_eq!(rig.gpu_read(0, AT + 2048 + 8), Err(Refused));
    assert_eq!(rig.info().evictions, 0);
}

/// As in KFD: pages of one mapping, and beside a buffer's or a userptr's memory the page alone.
#[test]
fn a_fault_takes_as_little_as_it_can_of_what_nobody_registered() {
    let rig = xnack_rig();
    rig.mm.cut([AT + 100, AT + 300]);
    rig.reach(0, AT + 200, true).unwrap();
    rig.check_svm(0, AT + 100, 200);
    assert!(rig.nothing_mapped(0, AT, 100) && rig.nothing_mapped(0, AT + 300, 300));
    // Memory in the mapping before, of which a fault has taken nothing.
    let object = rig.register(0x10_0000_0000, &[(AT + 20, 2)], WRITABLE_USERPTR).unwrap();
    rig.reach(0, AT + 60, true).unwrap();
    rig.check_svm(0, AT + 60, 1);
    assert!(rig.nothing_mapped(0, AT, 60) && rig.nothing_mapped(0, AT + 61, 39));
    // So all but that page can still be registered.
    for first in [AT, AT + 22, AT + 59, AT + 61, AT + 300] {
        let other = rig.register(0x11_0000_0000, &[(first, 1)], WRITABLE_USERPTR).unwrap();
        rig.free(other).unwrap();
    }
    assert_eq!(rig.register(0x11_0000_0000, &[(AT + 60, 1)], WRITABLE_USERPTR), Err(Errno::EADDRINUSE));
    // The userptr's own memory is nothing for a fault.
    assert_eq!(rig.gpu_read(0, AT + 21), Err(Refused));
    rig.free(object).unwrap();
    assert_eq!(rig.gpu_read(0, AT + 21), Ok(0));
}

#[test]
fn the_heap_stays_in_system_memory() {
    let rig = rig();
    rig.process.set_xnack(true).unwrap();
    rig.mm.set_heap(AT..AT + 512);
    for (page, moves) in [(AT + 7, false), (AT + 512 + 7, true)] {
        rig.gpu_write(0, page, 42).unwrap();
        assert_eq!(rig.mm.device_pages() != 0, moves, "page {page:#x}");
        let preferred = rig.get(page, 1, &[(SVM_ATTR_PREFERRED_LOC, 0)]).unwrap()[0].1;
        assert_eq!(preferred == SVM_LOCATION_SYSMEM, !moves);
        assert_eq!(rig.mm.cpu_read(page), 42);
    }
}

#[test]
fn with_xnack_an_invalidation_clears_what_it_hits_and_a_fault_brings_it_back() {
    let rig = xnack_rig();
    rig.gpu_write(0, AT, 1).unwrap();
    rig.check_svm(0, AT, 512);
    let suspends = rig.gpu.suspends.load(Ordering::SeqCst);
    rig.mm.renew(AT + 9, 3);
    assert!(rig.nothing_mapped(0, AT + 9, 3));
    rig.check_svm(0, AT, 9);
    rig.check_svm(0, AT + 12, 500);
    assert_eq!(rig.gpu.suspends.load(Ordering::SeqCst), suspends);
    let faulted = rig.mm.pages_faulted.load(Ordering::SeqCst);
    rig.reach(0, AT + 10, true).unwrap();
    rig.check_svm(0, AT, 512);
    assert_eq!(rig.mm.pages_faulted.load(Ordering::SeqCst) - faulted, 3);
}

#[test]
fn faults_outside_of_what_a_client_can_map_are_refused() {
    let rig = xnack_rig();
    for page in [VA_END / 4096, (1 << 48) / 4096, u64::MAX / 4096 - 512, u64::MAX / 4096] {
        assert!(!rig.fault(0, page, true, FaultReason::NotPresent), "page {page:#x}");
    }
    assert_eq!(rig.svm_counters().unregistered.get(), 0);
    // Of calls, too.
    for (first, pages) in [(u64::MAX / 4096 - 1, 1), (u64::MAX / 4096 - 2048, 1024), (VA_END / 4096, 1)] {
        assert_eq!(rig.set(first, pages, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]), Err(Errno::EFAULT));
    }
    assert_eq!(rig.set(u64::MAX / 4096, 2, &[]), Err(Errno::EOVERFLOW));
}

#[test]
fn the_granularity_says_how_much_a_fault_brings() {
    let rig = xnack_rig();
    rig.set(AT, 2048, &[(SVM_ATTR_GRANULARITY, 4)]).unwrap();
    rig.reach(0, AT + 37, false).unwrap();
    rig.check_svm(0, AT + 32, 16);
    assert!(rig.nothing_mapped(0, AT, 32) && rig.nothing_mapped(0, AT + 48, 512));
    rig.set(AT, 2048, &[(SVM_ATTR_GRANULARITY, 10)]).unwrap();
    rig.reach(0, AT + 1030, false).unwrap();
    rig.check_svm(0, AT + 1024, 1024);
    assert!(rig.nothing_mapped(0, AT + 48, 900));
}

#[test]
fn access_and_permission_are_kept_by_faults() {
    let rig = xnack_rig();
    rig.set(AT, 512, &[(SVM_ATTR_NO_ACCESS, GPU_ID)]).unwrap();
    assert_eq!(rig.gpu_read(0, AT), Err(Refused));
    assert_eq!(rig.gpu_read(1, AT), Ok(0));
    rig.set(AT, 512, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_RO)]).unwrap();
    assert_eq!(rig.gpu_read(1, AT), Ok(0));
    assert_eq!(rig.gpu_write(1, AT, 1), Err(Refused));
    rig.mm.map(AT + 512, 512, false);
    assert_eq!(rig.gpu_read(0, AT + 600), Ok(0));
    assert_eq!(rig.gpu_write(0, AT + 600, 1), Err(Refused), "memory that may not be written");
    // What is mostly read is faulted in for reading, and a write gets it for writing all the same.
    rig.set(AT + 1024, 512, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_READ_MOSTLY)]).unwrap();
    rig.gpu_read(0, AT + 1030).unwrap();
    assert!(rig.gpu.entry((AT + 1030) * 4096).unwrap().1 & WRITEABLE == 0);
    rig.gpu_write(0, AT + 1030, 5).unwrap();
    assert_eq!(rig.mm.cpu_read(AT + 1030), 5);
    assert!(rig.gpu.entry((AT + 1031) * 4096).unwrap().1 & WRITEABLE == 0);
    assert!(!rig.fault(0, AT, false, FaultReason::Stale));
}

/// A GPU may read what has an entry: refused is the fetch of an instruction, which no retry would
/// get.
#[test]
fn what_may_not_be_executed_is_no_fault_to_serve() {
    let rig = xnack_rig();
    rig.gpu_read(0, AT + 600).unwrap();
    assert!(!rig.fault(0, AT + 600, false, FaultReason::Permission));
    rig.set(AT + 600, 1, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_EXEC)]).unwrap();
    assert!(rig.fault(0, AT + 600, false, FaultReason::Permission));
    for (number, executable) in [(0, 0), (1, ALLOC_MEM_FLAGS_EXECUTABLE)] {
        let va = 0x10_0000_0000 + number * 4096;
        let object = rig.register(va, &[(AT + number, 1)], WRITABLE_USERPTR | executable).unwrap();
        rig.map(object).unwrap();
        assert_eq!(rig.fault(0, va / 4096, false, FaultReason::Permission), executable != 0);
    }
}

#[test]
fn always_mapped_ranges_are_restored_also_with_xnack() {
    let rig = xnack_rig();
    rig.set(AT, 64, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_ALWAYS_MAPPED)]).unwrap();
    rig.check_svm(0, AT, 64);
    rig.check_svm(1, AT, 64);
    rig.mm.renew(AT + 5, 1);
    rig.settle();
    rig.check_svm(0, AT, 64);
    assert!(rig.info().evictions > 0);
    rig.set(AT, 64, &[(SVM_ATTR_CLR_FLAGS, SVM_FLAG_GPU_ALWAYS_MAPPED)]).unwrap();
    let before = rig.info().evictions;
    rig.mm.renew(AT + 5, 1);
    assert_eq!(rig.info().evictions, before);
}

#[test]
fn xnack_off_maps_what_faults_would_have_brought() {
    let rig = xnack_rig();
    rig.set(AT, 600, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_NO_ACCESS, GPU_ID + 1)]).unwrap();
    assert!(rig.nothing_mapped(0, AT, 600));
    rig.process.set_xnack(false).unwrap();
    rig.check_svm(0, AT, 600);
    rig.mm.renew(AT, 1);
    rig.process.set_xnack(true).unwrap();
    rig.settle();
    // Whatever entry there is is right.
    for page in AT..AT + 600 {
        let entry = rig.gpu.walk(page * 4096);
        assert!(entry.is_none() || entry == rig.mm.frame(page));
    }
    rig.gpu_write(0, AT, 7).unwrap();
    assert_eq!(rig.mm.cpu_read(AT), 7);
}

#[test]
fn notifiers_are_as_many_as_512_mib_regions_whatever_the_ranges() {
    let rig = rig();
    rig.mm.map(AT + 4096, 4096, true);
    for i in 0..1000 {
        rig.set(AT + 2 * i, 1, &[(SVM_ATTR_GRANULARITY, (i % 7) as u32)]).unwrap();
    }
    assert_eq!(rig.info().notifiers, 1);
    let far = AT + (5 << 17);
    rig.mm.map(far, 1, true);
    rig.set(far, 1, &[]).unwrap();
    assert_eq!(rig.info().notifiers, 2);
    rig.mm.unmap(far, 1);
    rig.get(AT, 1, &[]).unwrap();
    assert_eq!(rig.info().notifiers, 1);
}

#[test]
fn a_process_that_ends_leaves_nothing() {
    let rig = rig();
    let used = rig.vram_used(0);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    assert!(rig.vram_used(0) > used);
    rig.process.release();
    assert_eq!(rig.mm.watch_count(), 0);
    assert_eq!(rig.process.kfd().devices()[0].vram().used(), 0);
}

#[test]
fn every_failpoint_of_a_call_leaves_a_state_that_a_second_call_completes() {
    let rig = rig();
    let list = [(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)];
    for n in 0.. {
        let first = AT + n % 3 * 100;
        let (result, reached) = vkfd_driver::os::fault_injection::fail_nth(n, || rig.set(first, 700, &list));
        if !reached {
            result.unwrap();
            break;
        }
        rig.settle();
        rig.set(first, 700, &list).unwrap();
        rig.settle();
        rig.check_svm(0, first, 700);
        rig.mm.unmap(AT, 2048);
        assert_eq!(rig.get(AT, 1, &[]), Err(Errno::EFAULT));
        assert_eq!((rig.mm.watch_count(), rig.mm.device_pages()), (0, 0), "point {n}");
        assert_eq!(rig.process.kfd().devices()[0].residency().len(), 0);
        rig.mm.map(AT, 2048, true);
    }
}
