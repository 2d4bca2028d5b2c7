// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Calls have bounds, or give way when their thread is killed. What a killed call has done is as if
//! it had not been made, or as far as it says.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os::fault_injection::kill_after;
use vkfd_sim::svm::AT;
use vkfd_sim::{Rig, GPU_ID, WRITABLE_USERPTR};
use vkfd_uapi::batch::UserptrRange;
use vkfd_uapi::command as c;
use vkfd_uapi::memory::*;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::svm::*;
use vkfd_uapi::vkfd::*;

const VA: u64 = 0x10_0000_0000;

fn alloc(rig: &Rig, va: u64, size: u64, flags: u32) -> Result<u64, Errno> {
    rig.alloc(va, size, flags | ALLOC_MEM_FLAGS_WRITABLE)
}

fn map_list(rig: &Rig, handle: u64, ids: &[u32], done: u32) -> (Result<(), Errno>, u32) {
    let n_devices = u32::try_from(ids.len()).unwrap();
    let device_ids_array_ptr = ids.as_ptr() as u64;
    let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices, n_success: done };
    (rig.call(c::MAP_MEMORY_TO_GPU.0, &mut args), args.n_success)
}

#[test]
fn map_takes_a_list_as_long_as_a_machine_has_gpus_at_most() {
    let rig = Rig::with_gpus(Options::default(), 2, 2048);
    let handle = alloc(&rig, VA, PAGE, ALLOC_MEM_FLAGS_GTT).unwrap();
    let ids = [GPU_ID; 33];
    assert_eq!(map_list(&rig, handle, &ids[..32], 0), (Ok(()), 32), "twice the same is no error");
    assert_eq!(map_list(&rig, handle, &ids, 0), (Err(Errno::EINVAL), 0));
    // Without looking at the list: nothing is there.
    let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr: PAGE, n_devices: u32::MAX, n_success: 0 };
    assert_eq!(rig.call(c::MAP_MEMORY_TO_GPU.0, &mut args), Err(Errno::EINVAL));
    assert_eq!(rig.call(c::UNMAP_MEMORY_FROM_GPU.0, &mut args), Err(Errno::EINVAL));
    // A list that cannot be read: nothing was mapped.
    let other = alloc(&rig, 2 * VA, PAGE, ALLOC_MEM_FLAGS_GTT).unwrap();
    let mut args = MapMemoryToGpuArgs { handle: other, device_ids_array_ptr: 8, n_devices: 2, n_success: 0 };
    assert_eq!(rig.call(c::MAP_MEMORY_TO_GPU.0, &mut args), Err(Errno::EFAULT));
    rig.free(other).unwrap();
    // Killed half way: it says how far it came, and goes on from there.
    let both = [GPU_ID, GPU_ID + 1];
    let other = alloc(&rig, 2 * VA, PAGE, ALLOC_MEM_FLAGS_GTT).unwrap();
    let (result, reached) = kill_after(1, || map_list(&rig, other, &both, 0));
    assert_eq!((result, reached), ((Err(Errno::EINTR), 1), true));
    assert_eq!(map_list(&rig, other, &both, 1), (Ok(()), 2));
}

/// What this thread has had of the processor, whatever else the machine does.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Closing takes a few microseconds for each object. Looking at each number before it as well would
/// be hundreds with so many.
#[test]
fn ending_a_process_is_linear() {
    const OBJECTS: u32 = 60_000;
    let time = || {
        let rig = Rig::with_gpus(Options::default(), 1, 64);
        for i in 0..u64::from(OBJECTS) {
            alloc(&rig, VA + i * PAGE, PAGE, ALLOC_MEM_FLAGS_MMIO_REMAP).unwrap();
        }
        let start = processor_time();
        rig.process.release();
        (processor_time() - start) / OBJECTS
    };
    let best = (0..3).map(|_| time()).min().unwrap();
    assert!(best < Duration::from_micros(40), "{best:?} an object");
}

#[test]
fn snapshots_have_a_most_and_give_way() {
    let rig = Rig::with_gpus(Options::default(), 1, 64);
    let room = 4096usize;
    let mut out = vec![0u64; room];
    let mut pages = |capacity: u32, from: u64| {
        let buffer = out.as_mut_ptr() as u64;
        let mut args = SnapshotArgs { op: SNAPSHOT_PAGES, handle: from, buffer, capacity, ..SnapshotArgs::zeroed() };
        (rig.call(SNAPSHOT.0, &mut args), args.count)
    };
    assert_eq!(pages(4096, VA), (Ok(()), 4096));
    assert_eq!(pages((1 << 20) + 1, VA), (Err(Errno::EINVAL), 0));
    // Page tables end at 1 << 47, and numbers end too.
    assert_eq!(pages(4096, (1 << 47) - 3 * PAGE), (Ok(()), 3));
    assert_eq!(pages(4096, u64::MAX), (Ok(()), 0));
    let (result, reached) = kill_after(3, || pages(4096, VA));
    assert_eq!((result.0, reached), (Err(Errno::EINTR), true));
}

/// From the last number on there is nothing, of anything.
#[test]
fn snapshots_from_any_number_on() {
    let rig = Rig::new(Options::default());
    alloc(&rig, VA, PAGE, ALLOC_MEM_FLAGS_GTT).unwrap();
    rig.mm.map(AT, 1, true);
    let userptr = rig.register(2 * VA, &[(AT, 1)], WRITABLE_USERPTR).unwrap();
    let mut out = [0u64; 64];
    for op in 0..=SNAPSHOT_SVM_RANGES + 1 {
        for index in [0, 1, 2, u32::MAX - 1, u32::MAX] {
            for handle in [0, 1, userptr, u64::MAX - 1, u64::MAX] {
                let buffer = out.as_mut_ptr() as u64;
                let mut args = SnapshotArgs { op, index, handle, buffer, capacity: 1, ..SnapshotArgs::zeroed() };
                let result = rig.call(SNAPSHOT.0, &mut args);
                if result.is_ok() && matches!(op, SNAPSHOT_BOS | SNAPSHOT_QUEUES | SNAPSHOT_RANGES) && index > 1 {
                    assert_eq!(args.count, 0, "operation {op} from {index}");
                }
            }
        }
    }
}

/// A reservation that nothing may access: the host is asked about it, not about each of its pages.
#[test]
fn a_large_reservation_is_one_miss() {
    let rig = Rig::with_gpus(Options::default(), 1, 8192);
    let pages = 64 * 512;
    rig.mm.map(AT, pages + 512, true);
    let calls = |first: u64, count: u64, forbidden: std::ops::Range<u64>| {
        rig.mm.no_failures();
        forbidden.for_each(|page| rig.mm.fail(page, Errno::EPERM));
        let before = (rig.mm.fault_calls.load(Ordering::SeqCst), rig.process.svm().memory());
        let result = rig.set(first, count, &[(SVM_ATTR_ACCESS, GPU_ID)]);
        let after = (rig.mm.fault_calls.load(Ordering::SeqCst), rig.process.svm().memory());
        (result, after.0 - before.0, after.1 - before.1)
    };
    let (result, calls_made, memory) = calls(AT, pages, AT..AT + pages);
    assert_eq!(result, Err(Errno::EPERM));
    assert!(calls_made <= 8, "{calls_made} calls for {pages} pages");
    assert!(memory < 64 << 10, "{memory} bytes");
    // The memory before and behind the hole is mapped all the same.
    let hole = AT + 100..AT + 100 + 10 * 512;
    let (result, calls_made, _) = calls(AT, pages + 512, hole.clone());
    assert_eq!(result, Err(Errno::EPERM));
    assert!(calls_made < 64 * 4 + 16, "{calls_made} calls");
    rig.check_svm(0, AT, 100);
    assert!(rig.nothing_mapped(0, hole.start, hole.end - hole.start));
    rig.check_svm(0, hole.end, pages + 512 - 10 * 512 - 100);
}

/// A call on a rig's objects.
type Call = fn(&Rig) -> Result<(), Errno>;

/// Whatever a call is about, it ends when its thread is killed; the process can be ended then, and
/// nothing is left.
#[test]
fn killed_calls_end_and_leave_nothing() {
    let calls: &[(&str, Call)] = &[
        ("set", |rig| rig.set(AT, 16 * 512, &[(SVM_ATTR_ACCESS, GPU_ID)])),
        ("prefetch", |rig| rig.set(AT, 16 * 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)])),
        ("register", |rig| {
            let list: Vec<_> = (0..16).map(|i| (AT + 512 * (15 - i), 512)).collect();
            rig.register(VA, &list, WRITABLE_USERPTR).and_then(|handle| rig.map(handle))
        }),
        ("move", |rig| rig.move_pages(AT, 16 * 512, MOVE_TO_GPU).map(drop)),
        ("measure", |rig| {
            let list: Vec<_> =
                (0..16).map(|i| UserptrRange { start: (AT + i * 512) * PAGE, size: 512 * PAGE }).collect();
            let mut args = MeasureArgs { ranges_ptr: list.as_ptr() as u64, num_ranges: 16, ..MeasureArgs::zeroed() };
            rig.call(MEASURE.0, &mut args)
        }),
        ("room", |rig| {
            rig.set(AT, 8 * 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)])?;
            alloc(rig, VA, 14 * 512 * PAGE, ALLOC_MEM_FLAGS_VRAM).map(drop)
        }),
    ];
    for (name, call) in calls {
        let mut asked = 0;
        // Killed at its first look at signals, its second, and so on, until it looks no more.
        loop {
            let rig = Rig::with_gpus(Options::default(), 1, 20 * 512);
            rig.mm.map(AT, 16 * 512, true);
            let free = |rig: &Rig| (rig.process.kfd().limit().used(), rig.mm.watch_count());
            let before = free(&rig);
            let (result, reached) = kill_after(asked, || call(&rig));
            if reached {
                // What was done until then may be all that there was to do.
                assert!(matches!(result, Err(Errno::EINTR) | Ok(())), "{name}, killed at look {asked}: {result:?}");
            } else {
                result.unwrap();
            }
            rig.mm.unmap(AT, 16 * 512);
            rig.process.release();
            assert_eq!(free(&rig), before, "{name}, killed at look {asked}");
            assert!(rig.process.kfd().devices()[0].residency().is_empty());
            drop(rig);
            if !reached {
                break;
            }
            asked += 1 + asked / 4;
        }
        assert!(asked > 0, "{name} looks at no signals");
    }
}

/// With its thread killed a process ends as any other.
#[test]
fn a_killed_thread_ends_its_process() {
    let rig = Rig::with_gpus(Options::default(), 1, 8192);
    rig.mm.map(AT, 4096, true);
    rig.set(AT, 2048, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    let handle = rig.register(VA, &[(AT + 2048, 2048)], WRITABLE_USERPTR).unwrap();
    rig.map(handle).unwrap();
    alloc(&rig, 2 * VA, 1 << 20, ALLOC_MEM_FLAGS_GTT).unwrap();
    kill_after(0, || rig.process.release());
    assert_eq!((rig.mm.watch_count(), rig.process.kfd().limit().used(), rig.mm.device_pages()), (0, 0, 0));
    assert_eq!(rig.process.kfd().devices()[0].vram().used(), 0);
}

/// A call whose word declares less than its list has is KFD's EINVAL, and so is one that declares a
/// list beyond its most.
#[test]
fn an_svm_call_is_as_long_as_its_word_says() {
    let rig = Rig::new(Options::default());
    rig.mm.map(AT, 16, true);
    #[repr(C)]
    struct Call(SvmArgs, [SvmAttribute; 2]);
    let attribute = SvmAttribute { attr_type: SVM_ATTR_ACCESS, value: GPU_ID };
    let list = |nattr| SvmArgs { start_addr: AT * PAGE, size: 16 * PAGE, op: SVM_OP_SET_ATTR, nattr };
    let call = |word_bytes: u32, nattr: u32| {
        let mut call = Call(list(nattr), [attribute; 2]);
        let command = c::SVM.0 & !(0x3fff << 16) | word_bytes << 16;
        rig.process.ioctl(command, CpuVa(std::ptr::from_mut(&mut call) as u64)).map_err(|e| e.errno)
    };
    assert_eq!(call(24 + 16, 2), Ok(()));
    assert_eq!(call(24 + 15, 2), Err(Errno::EINVAL));
    assert_eq!(call(24, 1), Err(Errno::EINVAL));
    assert_eq!(call(24 + 16, u32::MAX), Err(Errno::EINVAL));
    assert_eq!(call(24, 0), Ok(()));
}

#[test]
fn somebody_takes_the_room_again_and_again_and_the_call_ends() {
    // Each time room is made for the object, somebody else has it before.
    let rig = Rig::with_gpus(Options::default(), 1, 4096);
    rig.mm.map(AT, 4096, true);
    rig.set(AT, 3 * 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    let (process, kfd) = (rig.process.clone(), rig.process.kfd().clone());
    let taken = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mine = taken.clone();
    rig.mm.after_move_out(move |_| {
        let device = kfd.devices()[0].clone();
        let free = device.vram().available() / PAGE;
        let memory = vkfd_driver::buffers::bo::VramMemory::new(&device, free).unwrap();
        mine.lock().unwrap().push(memory);
        drop(process);
    });
    assert_eq!(alloc(&rig, VA, 3000 * PAGE, ALLOC_MEM_FLAGS_VRAM), Err(Errno::ENOMEM));
    assert_eq!(taken.lock().unwrap().len(), 1);
}
