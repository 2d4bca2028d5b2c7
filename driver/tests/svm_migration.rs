// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM memory in VRAM against a simulated host: prefetch, faults, pressure, failures. Every page holds a number that must survive.

mod sim;

use sim::{Rig, GPU_ID};
use std::sync::atomic::Ordering;
use std::time::Duration;
use vkfd_driver::device_memory::Kind;
use vkfd_driver::errno::Errno;
use vkfd_driver::kfd::Options;
use vkfd_driver::svm::damping::Damping;
use vkfd_uapi::svm::*;

/// A page number at a 2 MiB boundary.
const AT: u64 = 0x10_0000;
const SYSTEM: u32 = SVM_LOCATION_SYSMEM;

fn rig_of(options: Options, gpus: u32, vram: u64, pages: u64) -> Rig {
    let rig = Rig::with_gpus(options, gpus, vram);
    rig.mm.map(AT, pages, true);
    for page in AT..AT + pages {
        rig.mm.cpu_write(page, page * 3);
    }
    rig
}

fn rig(kind: Kind) -> Rig {
    rig_of(Options { device_memory: kind, ..Options::default() }, 2, 4096, 2048)
}

fn intact(rig: &Rig, pages: u64) {
    for page in AT..AT + pages {
        assert_eq!(rig.mm.cpu_read(page), page * 3, "page {page:#x}");
    }
}

fn prefetch(rig: &Rig, first: u64, pages: u64, to: u32) {
    rig.set(first, pages, &[(SVM_ATTR_PREFETCH_LOC, to)]).unwrap();
}

#[test]
fn a_prefetch_moves_now_and_coherent_memory_is_used_there_by_all() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_ACCESS_IN_PLACE, GPU_ID + 1)]).unwrap();
    prefetch(&rig, AT, 1024, GPU_ID);
    assert_eq!(rig.mm.location(AT + 1000), Some(GPU_ID));
    rig.check_svm(0, AT, 1024);
    rig.check_svm(1, AT, 1024);
    // Whole blocks are one entry each.
    assert!(rig.gpu.entry(AT * 4096).unwrap().1 >> 54 & 1 == 1);
    let moves = rig.mm.moves.load(Ordering::SeqCst);
    assert_eq!(moves, 1024);
    intact(&rig, 1024);
    for page in AT..AT + 1024 {
        rig.mm.cpu_write(page, page + 1);
        assert_eq!((rig.gpu_read(0, page), rig.gpu_read(1, page)), (Ok(page + 1), Ok(page + 1)));
        rig.gpu_write(1, page, page * 3).unwrap();
    }
    intact(&rig, 1024);
    rig.settle();
    assert_eq!(rig.mm.moves.load(Ordering::SeqCst), moves, "nothing moved for any of this");
    let counters = rig.svm_counters();
    assert_eq!((counters.migrations_in.get(), counters.pages_in.get(), counters.pages_out.get()), (1, 1024, 0));
    prefetch(&rig, AT, 1024, SYSTEM);
    assert_eq!(rig.mm.device_pages(), 0);
    rig.check_svm(0, AT, 1024);
    intact(&rig, 1024);
    assert_eq!(counters.pages_out.get(), 1024);
    assert!(rig.process.kfd().devices()[0].residency().is_empty());
}

#[test]
fn nothing_is_faulted_in_while_it_moves() {
    for kind in [Kind::Coherent, Kind::Private] {
        let rig = rig(kind);
        rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
        rig.settle();
        // XNACK is off: what was mapped and is told of is faulted in again at once, by the restore, if nothing keeps it.
        let meanwhile = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = meanwhile.clone();
        rig.mm.before_move(move |mm, _| {
            let before = mm.pages_faulted.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            seen.lock().unwrap().push(mm.pages_faulted.load(Ordering::SeqCst) - before);
        });
        prefetch(&rig, AT, 1024, GPU_ID);
        assert_eq!(*meanwhile.lock().unwrap(), [0], "{kind:?}: pages faulted in during each move");
        assert_eq!(rig.mm.device_pages(), 1024);
        rig.settle();
        rig.check_svm(0, AT, 1024);
        intact(&rig, 1024);
    }
}

#[test]
fn private_memory_comes_back_when_the_cpu_touches_it() {
    let rig = rig(Kind::Private);
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 512, GPU_ID);
    assert_eq!(rig.mm.device_pages(), 512);
    for page in AT..AT + 50 {
        assert_eq!(rig.mm.cpu_read(page), page * 3);
    }
    rig.settle();
    assert_eq!(rig.mm.device_pages(), 462);
    rig.check_svm(0, AT, 512);
    assert_eq!(rig.mm.moves.load(Ordering::SeqCst), 512 + 50);
}

#[test]
fn a_fault_moves_the_granule_to_its_best_place() {
    let rig = rig(Kind::Coherent);
    rig.process.set_xnack(true).unwrap();
    // Nobody said anything: to the GPU that asks.
    rig.gpu_read(0, AT + 3).unwrap();
    assert_eq!((rig.mm.location(AT), rig.mm.location(AT + 512)), (Some(GPU_ID), Some(0)));
    rig.gpu_read(1, AT + 3).unwrap();
    assert_eq!(rig.mm.location(AT), Some(GPU_ID + 1), "from GPU to GPU");
    // In place: it stays, wherever it is.
    rig.set(AT + 512, 512, &[(SVM_ATTR_ACCESS_IN_PLACE, GPU_ID), (SVM_ATTR_ACCESS_IN_PLACE, GPU_ID + 1)]).unwrap();
    rig.gpu_read(0, AT + 515).unwrap();
    assert_eq!(rig.mm.location(AT + 515), Some(0));
    prefetch(&rig, AT + 512, 512, GPU_ID + 1);
    rig.gpu_write(0, AT + 515, (AT + 515) * 3).unwrap();
    assert_eq!(rig.mm.location(AT + 515), Some(GPU_ID + 1));
    // Preferred: there, whoever asks.
    rig.set(AT + 1024, 512, &[(SVM_ATTR_PREFERRED_LOC, GPU_ID)]).unwrap();
    rig.gpu_read(1, AT + 1024).unwrap();
    assert_eq!(rig.mm.location(AT + 1024), Some(GPU_ID));
    rig.set(AT + 1024, 512, &[(SVM_ATTR_PREFERRED_LOC, SYSTEM)]).unwrap();
    rig.mm.notify(AT + 1024, 512, true);
    rig.gpu_read(1, AT + 1024).unwrap();
    assert_eq!(rig.mm.location(AT + 1024), Some(0));
    // By granularity.
    rig.set(AT + 1536, 512, &[(SVM_ATTR_GRANULARITY, 4)]).unwrap();
    rig.gpu_read(0, AT + 1536 + 20).unwrap();
    assert_eq!(rig.mm.location(AT + 1536 + 16), Some(GPU_ID));
    assert_eq!(rig.mm.location(AT + 1536 + 15), Some(0));
    assert_eq!(rig.mm.location(AT + 1536 + 32), Some(0));
    intact(&rig, 2048);
}

#[test]
fn mostly_read_memory_is_read_where_it_is() {
    let rig = rig(Kind::Coherent);
    rig.process.set_xnack(true).unwrap();
    rig.set(AT, 512, &[(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_READ_MOSTLY)]).unwrap();
    rig.gpu_read(0, AT).unwrap();
    rig.gpu_read(1, AT).unwrap();
    assert_eq!(rig.mm.location(AT), Some(GPU_ID));
    rig.gpu_write(1, AT, AT * 3).unwrap();
    assert_eq!(rig.mm.location(AT), Some(GPU_ID + 1));
    intact(&rig, 512);
}

#[test]
fn a_third_of_the_pages_that_will_not_move_stays_and_everything_is_mapped() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.mm.pinned.lock().unwrap().extend((AT..AT + 1024).step_by(3));
    let before = rig.vram_used(0);
    prefetch(&rig, AT, 1024, GPU_ID);
    let moved = rig.mm.device_pages() as u64;
    assert_eq!(moved, 1024 - 1024_u64.div_ceil(3));
    assert_eq!(rig.vram_used(0) - before, moved * 4096, "what did not move was given back");
    rig.check_svm(0, AT, 1024);
    intact(&rig, 1024);
    assert_eq!(rig.svm_counters().pages_refused.get(), 1024 - moved);
    // Some that moved do not come back.
    rig.mm.pinned.lock().unwrap().extend(AT..AT + 100);
    prefetch(&rig, AT, 1024, SYSTEM);
    assert!(rig.mm.device_pages() > 0 && rig.mm.device_pages() < 100);
    rig.check_svm(0, AT, 1024);
    intact(&rig, 1024);
}

#[test]
fn an_unmap_in_vram_gives_it_back() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let before = rig.vram_used(0);
    prefetch(&rig, AT, 1024, GPU_ID);
    rig.mm.unmap(AT + 100, 700);
    rig.check_svm(0, AT, 100);
    rig.check_svm(0, AT + 800, 224);
    assert_eq!(rig.vram_used(0) - before, 324 * 4096);
    rig.mm.unmap(AT, 2048);
    rig.get(AT, 1, &[]).unwrap_err();
    assert!(rig.vram_used(0) < before, "page tables, too");
}

#[test]
fn discarded_pages_in_vram_are_replaced_and_nothing_leaks() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let before = rig.vram_used(0);
    prefetch(&rig, AT, 512, GPU_ID);
    rig.mm.renew(AT + 5, 5);
    rig.settle();
    rig.check_svm(0, AT, 512);
    assert_eq!(rig.vram_used(0) - before, 507 * 4096);
    // Prefetched again, only these move.
    let moves = rig.mm.moves.load(Ordering::SeqCst);
    prefetch(&rig, AT, 512, GPU_ID);
    assert_eq!(rig.mm.moves.load(Ordering::SeqCst) - moves, 5);
    rig.check_svm(0, AT, 512);
}

/// Four granules of VRAM, page tables included; memory for eight.
fn oversubscribed(xnack: bool) -> Rig {
    // Bounces are let pass, so that every round moves.
    let damping = Damping { bounces: u32::MAX, ..Damping::default() };
    let rig = rig_of(Options { damping, ..Options::default() }, 1, 2048, 4096);
    rig.process.set_xnack(xnack).unwrap();
    rig
}

#[test]
fn a_working_set_of_twice_the_vram_runs_to_the_right_result() {
    let rig = oversubscribed(true);
    for round in 1..4 {
        for page in AT..AT + 4096 {
            let value = rig.gpu_read(0, page).unwrap();
            assert_eq!(value, page * 3 + round - 1);
            rig.gpu_write(0, page, page * 3 + round).unwrap();
        }
    }
    for page in AT..AT + 4096 {
        assert_eq!(rig.mm.cpu_read(page), page * 3 + 3);
    }
    let counters = rig.svm_counters();
    assert!(counters.evictions.get() >= 8 && counters.pages_in.get() > 8192, "{}", counters.evictions.get());
    assert!(counters.bounces.get() > 0, "and it is seen that it goes to and fro");
    assert!(rig.mm.device_pages() >= 1024);
}

#[test]
fn with_xnack_off_prefetches_beyond_vram_evict_and_queues_go_on() {
    let rig = oversubscribed(false);
    rig.set(AT, 4096, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    for block in 0..8 {
        prefetch(&rig, AT + block * 512, 512, GPU_ID);
    }
    rig.settle();
    rig.check_svm(0, AT, 4096);
    intact(&rig, 4096);
    assert!(rig.svm_counters().evictions.get() >= 4);
    assert_eq!(rig.mm.location(AT + 7 * 512), Some(GPU_ID), "the last is the warmest");
    assert_eq!(rig.mm.location(AT), Some(0), "the first the coldest");
}

#[test]
fn what_bounces_rests_in_system_memory_and_is_used_there() {
    let damping = Damping {
        window: Duration::from_secs(3600),
        bounces: 2,
        pause: Duration::from_secs(3600),
        longest: Duration::from_secs(3600),
    };
    let rig = rig_of(Options { damping, ..Options::default() }, 2, 4096, 512);
    rig.process.set_xnack(true).unwrap();
    for round in 0..20 {
        for page in AT..AT + 512 {
            let gpu = usize::from(round % 2 == 1);
            rig.gpu_write(gpu, page, page * 3).unwrap();
        }
        // As the other GPU's faults would have it.
        rig.mm.notify(AT, 512, true);
    }
    let counters = rig.svm_counters();
    assert_eq!(counters.bounces.get(), 3);
    assert!(counters.damped.get() > 0);
    assert!(counters.migrations_in.get() <= 4);
    intact(&rig, 512);
    // An order is an order.
    prefetch(&rig, AT, 512, GPU_ID);
    assert_eq!(rig.mm.location(AT), Some(GPU_ID));
}

#[test]
fn buffer_objects_of_any_process_make_svm_memory_give_way() {
    let rig = rig_of(Options::default(), 1, 2048, 1536);
    rig.set(AT, 1536, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 1536, GPU_ID);
    assert_eq!(rig.mm.device_pages(), 1536);
    let other = rig.process.kfd().open(std::sync::Arc::new(sim::Mm(std::sync::Arc::default()))).unwrap();
    other.acquire_vm(GPU_ID).unwrap();
    use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_VRAM};
    let alloc = |process: &std::sync::Arc<vkfd_driver::process::Process>, pages: u64| {
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: 0x20_0000_0000,
            size: pages * 4096,
            handle: 0,
            mmap_offset: 0,
            gpu_id: GPU_ID,
            flags: ALLOC_MEM_FLAGS_VRAM,
        };
        let at = vkfd_driver::addr::CpuVa(std::ptr::from_mut(&mut args) as u64);
        process.ioctl(vkfd_uapi::command::ALLOC_MEMORY_OF_GPU.0, at).map(|()| args.handle).map_err(|e| e.errno)
    };
    alloc(&other, 1000).unwrap();
    rig.settle();
    assert!(rig.mm.device_pages() < 1536);
    rig.check_svm(0, AT, 1536);
    intact(&rig, 1536);
    // All of it and more: what there is not cannot be had.
    assert_eq!(alloc(&rig.process, 2048), Err(Errno::ENOMEM));
    alloc(&rig.process, 900).unwrap();
    rig.settle();
    intact(&rig, 1536);
    assert!(rig.svm_counters().evictions.get() >= 2);
    other.release();
}

#[test]
fn the_coldest_goes_first_and_of_the_cold_the_largest() {
    let rig = rig_of(Options::default(), 1, 4096, 2048);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    // A small one that is oldest, and three large ones.
    prefetch(&rig, AT, 16, GPU_ID);
    for block in 1..4 {
        prefetch(&rig, AT + block * 512, 512, GPU_ID);
    }
    let device = &rig.process.kfd().devices()[0];
    let free = device.vram().available() / 4096;
    // A little more than is free: one call that evicts a large granule, not the small one and another.
    let evictions = rig.svm_counters().evictions.get();
    let room = device.alloc_vram(free + 100).unwrap();
    assert_eq!(rig.svm_counters().evictions.get() - evictions, 1);
    assert_eq!(rig.mm.location(AT), Some(GPU_ID));
    device.vram().free(&**device.gpu(), &room);
    rig.settle();
    rig.check_svm(0, AT, 2048);
}

#[test]
fn before_a_device_goes_everything_comes_back() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 2048, GPU_ID);
    let device = &rig.process.kfd().devices()[0];
    assert_eq!(device.evict_all().unwrap(), 2048);
    assert!(device.residency().is_empty());
    rig.settle();
    rig.check_svm(0, AT, 2048);
    intact(&rig, 2048);
}

#[test]
fn a_process_that_ends_brings_its_memory_back() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 2048, GPU_ID);
    rig.process.release();
    assert_eq!((rig.mm.device_pages(), rig.mm.watch_count()), (0, 0));
    intact(&rig, 2048);
    assert_eq!(rig.process.kfd().devices()[0].vram().used(), 0);
}

#[test]
fn migration_that_fails_anywhere_loses_nothing_and_leaks_nothing() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 1200, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let used = rig.vram_used(0);
    for to in [GPU_ID, GPU_ID + 1, SYSTEM] {
        for n in 0.. {
            let (_, reached) =
                vkfd_driver::os::fault_injection::fail_nth(n, || rig.set(AT, 1200, &[(SVM_ATTR_PREFETCH_LOC, to)]));
            rig.settle();
            rig.check_svm(0, AT, 1200);
            if !reached {
                break;
            }
            prefetch(&rig, AT, 1200, SYSTEM);
            rig.settle();
            assert_eq!(rig.vram_used(0), used, "to {to:#x}, point {n}");
            if to == SYSTEM {
                prefetch(&rig, AT, 1200, GPU_ID);
            }
        }
        intact(&rig, 1200);
        prefetch(&rig, AT, 1200, GPU_ID);
    }
}

#[test]
fn events_tell_of_migration_faults_eviction_and_unmaps() {
    use std::sync::{Arc, Mutex};
    use vkfd_driver::files::EventStream;
    #[derive(Default)]
    struct File(Mutex<String>);
    impl EventStream for File {
        fn mask(&self) -> u64 {
            u64::MAX
        }
        fn write(&self, line: &[u8]) {
            self.0.lock().unwrap().push_str(std::str::from_utf8(line).unwrap());
        }
        fn is_closed(&self) -> bool {
            false
        }
    }
    let rig = rig(Kind::Coherent);
    let device = rig.process.kfd().devices()[0].clone();
    let file = Arc::new(File::default());
    device.smi().add(rig.process.number(), file.clone()).unwrap();
    let lines = || {
        let text = std::mem::take(&mut *file.0.lock().unwrap());
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 512, GPU_ID);
    rig.settle();
    let seen = lines();
    // Start, the queues stop for it, end, the queues go on.
    assert_eq!(seen.iter().filter(|l| *l == "5").count(), 1, "{seen:?}");
    for event in ["6", "9", "a"] {
        assert!(seen.iter().any(|l| l == event), "{event} in {seen:?}");
    }
    rig.mm.unmap(AT, 1);
    assert_eq!(lines(), ["b"]);
    rig.process.set_xnack(true).unwrap();
    rig.gpu_read(0, AT + 600).unwrap();
    let seen = lines();
    let order: Vec<_> = ["7", "5", "6", "8"].iter().map(|e| seen.iter().position(|l| l == e)).collect();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{seen:?}");
}
