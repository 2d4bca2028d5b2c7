// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SVM memory in VRAM against a simulated host: prefetch, faults, pressure, failures. Every page
//! holds a number that must survive.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::device::damping::Damping;
use vkfd_driver::device::vram::Contents;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_driver::seams::event_stream::EventStream;
use vkfd_sim::{Rig, GPU_ID};
use vkfd_uapi::svm::*;

/// A page number at a 2 MiB boundary.
const AT: u64 = 0x10_0000;
const SYSTEM: u32 = SVM_LOCATION_SYSMEM;

fn rig_of(options: Options, gpus: u32, vram: u64, pages: u64) -> Rig {
    let rig = Rig::with_gpus(options, gpus, vram);
    rig.mm.map(AT, pages, true);
    rig.mm.fill(AT..AT + pages);
    rig
}

fn rig(kind: Kind) -> Rig {
    rig_of(Options { device_memory: kind, ..Options::default() }, 2, 4096, 2048)
}

/// What a file of the first GPU's events has been told.
#[derive(Default)]
struct Events(Mutex<String>);

impl EventStream for Events {
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

impl Events {
    fn of(rig: &Rig) -> Arc<Self> {
        let events = Arc::new(Self::default());
        let smi = rig.process.kfd().devices()[0].smi();
        smi.reserve(rig.process.number(), 0).unwrap();
        smi.fill(rig.process.number(), Some(events.clone()));
        events
    }

    /// The lines since it was last asked.
    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
}

fn intact(rig: &Rig, pages: u64) {
    rig.mm.check_filled(AT..AT + pages);
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
        // XNACK is off: what was mapped and is reported is faulted in again at once, by the
        // restore, if nothing keeps it.
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
    rig.mm.check_filled(AT..AT + 50);
    rig.settle();
    assert_eq!(rig.mm.device_pages(), 462);
    rig.check_svm(0, AT, 512);
    assert_eq!(rig.mm.moves.load(Ordering::SeqCst), 512 + 50);
    // That is a move back like any other.
    let counters = rig.svm_counters();
    assert_eq!((counters.migrations_out.get(), counters.pages_out.get(), counters.evictions.get()), (50, 50, 0));
    prefetch(&rig, AT, 512, SYSTEM);
    assert_eq!((counters.pages_in.get(), counters.pages_out.get()), (512, 512));
}

#[test]
fn pages_that_come_back_together_are_counted_by_granule() {
    let rig = rig(Kind::Private);
    rig.set(AT, 1024, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let events = Events::of(&rig);
    prefetch(&rig, AT, 1024, GPU_ID);
    rig.settle();
    let device = &rig.process.kfd().devices()[0];
    let free = device.vram().available() / 4096;
    events.lines();
    // A host may have several pages at once: here all of both granules, which lie one after the
    // other, and what is nobody's.
    let first = (0..).map(|page| vkfd_driver::base::addr::VramOffset(page * 4096));
    let at = first
        .take(4096)
        .find(|at| vkfd_sim::migration::fabric_frame(GPU_ID, *at) == rig.mm.frame(AT).unwrap())
        .unwrap();
    use vkfd_driver::seams::device_memory::DeviceMemory;
    device.came_back(at, 1024);
    let counters = rig.svm_counters();
    assert_eq!((counters.migrations_out.get(), counters.pages_out.get()), (2, 1024));
    let lines = events.lines();
    let cpu = |line: &String| line.split(' ').collect::<Vec<_>>()[3..].join(" ");
    let here = format!("@{AT:x}(200) {GPU_ID:x}->0");
    assert_eq!(cpu(&lines[0]), format!("{here} ffffffff:ffffffff 2"), "{lines:?}");
    assert_eq!(cpu(&lines[1]), format!("{here} 2 0"), "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
    device.came_back(vkfd_driver::base::addr::VramOffset(4095 * 4096), 10);
    assert_eq!((counters.pages_out.get(), device.vram().available() / 4096), (1024, free));
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
    // Preferred: there, for any caller.
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
    rig.mm.pin((AT..AT + 1024).step_by(3));
    let before = rig.vram_used(0);
    prefetch(&rig, AT, 1024, GPU_ID);
    let moved = rig.mm.device_pages() as u64;
    assert_eq!(moved, 1024 - 1024_u64.div_ceil(3));
    assert_eq!(rig.vram_used(0) - before, moved * 4096, "what did not move was given back");
    rig.check_svm(0, AT, 1024);
    intact(&rig, 1024);
    assert_eq!(rig.svm_counters().pages_refused.get(), 1024 - moved);
    // Some that moved do not come back.
    rig.mm.pin(AT..AT + 100);
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
fn one_page_that_goes_to_and_fro_rests_though_the_others_stay() {
    let long = Duration::from_secs(3600);
    let damping = Damping { window: long, bounces: 2, pause: long, longest: long };
    let rig = rig_of(Options { damping, device_memory: Kind::Private, ..Options::default() }, 1, 4096, 512);
    rig.process.set_xnack(true).unwrap();
    rig.gpu_read(0, AT).unwrap();
    assert_eq!(rig.mm.device_pages(), 512);
    for _ in 0..10 {
        assert_eq!(rig.mm.cpu_read(AT + 3), (AT + 3) * 3);
        assert_eq!(rig.gpu_read(0, AT + 3), Ok((AT + 3) * 3));
    }
    let counters = rig.svm_counters();
    assert_eq!((rig.mm.location(AT + 3), rig.mm.device_pages()), (Some(SYSTEM), 511));
    assert_eq!((counters.bounces.get(), counters.pages_in.get()), (3, 512 + 3));
    assert!(counters.damped.get() > 0);
    // The others are used where they are, and that is no thrashing.
    let damped = counters.damped.get();
    rig.mm.notify(AT, 512, true);
    rig.gpu_read(0, AT + 3).unwrap();
    assert_eq!(rig.gpu_read(0, AT + 4), Ok((AT + 4) * 3));
    assert_eq!(counters.damped.get(), damped + 1);
    assert_eq!(rig.mm.location(AT + 4), Some(GPU_ID));
}

#[test]
fn memory_that_two_threads_prefetch_at_once_is_known_to_be_there() {
    let rig = oversubscribed(false);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    // VRAM is full.
    prefetch(&rig, AT + 512, 1536, GPU_ID);
    assert_eq!(rig.mm.device_pages(), 1536);
    let (room, wait) = std::sync::mpsc::sync_channel(0);
    let (go_on, moved) = std::sync::mpsc::sync_channel(0);
    let moved = Mutex::new(moved);
    rig.mm.after_move_out(move |_| {
        room.send(()).unwrap();
        moved.lock().unwrap().recv().unwrap();
    });
    std::thread::scope(|s| {
        s.spawn(|| prefetch(&rig, AT, 512, GPU_ID));
        wait.recv().unwrap();
        // One thread has made room for it, and another takes that for the same; the first makes
        // room once more, for nothing, and finds it there.
        prefetch(&rig, AT, 512, GPU_ID);
        assert_eq!(rig.mm.location(AT), Some(GPU_ID));
        go_on.send(()).unwrap();
    });
    rig.settle();
    let refused = rig.svm_counters().pages_refused.get();
    assert_eq!((rig.mm.device_pages(), refused), (1024, 0));
    // It is known to be there: nothing is moved again, and all of it comes back when that is asked
    // for.
    let moves = rig.mm.moves.load(Ordering::SeqCst);
    prefetch(&rig, AT, 512, GPU_ID);
    assert_eq!((rig.mm.moves.load(Ordering::SeqCst), rig.svm_counters().pages_refused.get()), (moves, refused));
    prefetch(&rig, AT, 512, SYSTEM);
    assert_eq!((rig.mm.location(AT), rig.mm.device_pages()), (Some(SYSTEM), 512));
    assert_eq!(rig.process.kfd().devices()[0].residency().hosted().0, 512);
    rig.check_svm(0, AT, 2048);
    intact(&rig, 2048);
}

#[test]
fn mostly_read_memory_is_looked_for_where_it_would_move() {
    let rig = rig(Kind::Coherent);
    rig.process.set_xnack(true).unwrap();
    let list = [(SVM_ATTR_SET_FLAGS, SVM_FLAG_GPU_READ_MOSTLY), (SVM_ATTR_GRANULARITY, 4)];
    rig.set(AT, 512, &list).unwrap();
    rig.gpu_read(0, AT).unwrap();
    // Another granule of the same 2 MiB is on no GPU.
    rig.gpu_read(1, AT + 16).unwrap();
    rig.gpu_read(1, AT).unwrap();
    assert_eq!((rig.mm.location(AT), rig.mm.location(AT + 16)), (Some(GPU_ID), Some(GPU_ID + 1)));
    intact(&rig, 512);
}

#[test]
fn what_is_known_of_bouncing_memory_goes_with_it() {
    let long = Duration::from_secs(3600);
    let damping = Damping { window: long, bounces: 2, pause: long, longest: long };
    let rig = rig_of(Options { damping, ..Options::default() }, 2, 4096, 512);
    rig.process.set_xnack(true).unwrap();
    // The first half goes to and fro; the second keeps the block.
    rig.set(AT, 256, &[(SVM_ATTR_GRANULARITY, 8)]).unwrap();
    rig.set(AT + 256, 256, &[(SVM_ATTR_GRANULARITY, 7)]).unwrap();
    for round in 0..8 {
        rig.mm.notify(AT, 256, true);
        rig.gpu_read(round % 2, AT).unwrap();
    }
    let counters = rig.svm_counters();
    let (bounces, damped) = (counters.bounces.get(), counters.damped.get());
    assert!(bounces == 3 && damped > 0, "{bounces} {damped}");
    // Other memory in its place has not bounced.
    rig.mm.unmap(AT, 256);
    rig.mm.map(AT, 256, true);
    rig.gpu_read(0, AT).unwrap();
    rig.gpu_read(1, AT).unwrap();
    assert_eq!(rig.mm.location(AT), Some(GPU_ID + 1));
    assert_eq!((counters.bounces.get(), counters.damped.get()), (bounces + 1, damped), "the second move of new memory");
}

#[test]
fn buffer_objects_of_any_process_make_svm_memory_give_way() {
    let rig = rig_of(Options::default(), 1, 2048, 1536);
    rig.set(AT, 1536, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    prefetch(&rig, AT, 1536, GPU_ID);
    assert_eq!(rig.mm.device_pages(), 1536);
    let other = rig.process.kfd().open(Arc::new(vkfd_sim::SimMm::default())).unwrap();
    other.acquire_vm(GPU_ID).unwrap();
    use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_VRAM};
    let alloc = |process: &Arc<vkfd_driver::process::Process>, pages: u64| {
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: 0x20_0000_0000,
            size: pages * 4096,
            handle: 0,
            mmap_offset: 0,
            gpu_id: GPU_ID,
            flags: ALLOC_MEM_FLAGS_VRAM,
        };
        let at = vkfd_driver::base::addr::CpuVa(std::ptr::from_mut(&mut args) as u64);
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
    // A little more than is free: one call that evicts a large granule, not the small one and
    // another.
    let evictions = rig.svm_counters().evictions.get();
    let room = device.alloc_vram(free + 100, Contents::Zero).unwrap();
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
fn what_moved_before_a_failure_is_counted() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    rig.mm.pin(AT..AT + 100);
    rig.mm.fail_move(Errno::EINTR);
    assert_eq!(rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]), Err(Errno::EINTR));
    let counters = rig.svm_counters();
    assert_eq!((counters.pages_in.get(), counters.pages_refused.get(), rig.mm.device_pages()), (412, 100, 412));
    rig.settle();
    rig.check_svm(0, AT, 512);
    prefetch(&rig, AT, 512, SYSTEM);
    assert_eq!(counters.pages_out.get(), 412);
    intact(&rig, 512);
}

#[test]
fn migration_that_fails_anywhere_loses_nothing_and_leaks_nothing() {
    let rig = rig(Kind::Coherent);
    rig.set(AT, 1200, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let (used, other) = (rig.vram_used(0), rig.vram_used(1));
    for (from, to) in [(SYSTEM, GPU_ID), (GPU_ID, GPU_ID + 1), (GPU_ID, SYSTEM)] {
        let mut failed = 0;
        for n in 0.. {
            prefetch(&rig, AT, 1200, from);
            let (result, reached) =
                vkfd_driver::os::fault_injection::fail_nth(n, || rig.set(AT, 1200, &[(SVM_ATTR_PREFETCH_LOC, to)]));
            failed += u32::from(result.is_err());
            rig.settle();
            rig.check_svm(0, AT, 1200);
            if !reached {
                assert!((AT..AT + 1200).all(|page| rig.mm.location(page) == Some(to)));
                break;
            }
            prefetch(&rig, AT, 1200, SYSTEM);
            rig.settle();
            assert_eq!((rig.vram_used(0), rig.vram_used(1)), (used, other), "to {to:#x}, point {n}");
        }
        assert!(failed > 0, "to {to:#x}");
        intact(&rig, 1200);
    }
}

#[test]
fn events_tell_of_migration_faults_eviction_and_unmaps() {
    let rig = rig(Kind::Coherent);
    let events = Events::of(&rig);
    let lines = || events.lines().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>();
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
    // Why entries went: pages changed, moved, or are no more.
    let triggers = || {
        let lines = events.lines();
        let unmaps = lines.iter().filter(|line| line.starts_with("b "));
        unmaps.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    rig.mm.renew(AT + 600, 1);
    assert_eq!(triggers(), ["0"]);
    prefetch(&rig, AT + 512, 512, SYSTEM);
    assert_eq!(triggers(), ["1"]);
    rig.reach(0, AT + 600, false).unwrap();
    events.lines();
    rig.mm.unmap(AT + 600, 1);
    assert_eq!(triggers(), ["2"]);
}
