// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client can take, and keep from others: memory, VMIDs, queues, other clients' interrupts.

use std::sync::Arc;

use vkfd_driver::base::addr::{CpuVa, GpuVa, VramOffset, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::queues::event::Waited;
use vkfd_driver::seams::gpu::{FaultReason, Gpu, HwQueue, Interrupts, PageFault, Vmid};
use vkfd_sabotage::{Switch, Switches};
use vkfd_sim::patience::until;
use vkfd_sim::svm::AT;
use vkfd_sim::{Rig, SimMm, GPU_ID};
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EventData, EVENT_HW_EXCEPTION, EVENT_MEMORY, EVENT_SIGNAL};
use vkfd_uapi::memory::*;
use vkfd_uapi::mmap;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::SetXnackModeArgs;
use vkfd_uapi::svm::*;
use vkfd_uapi::vkfd::*;

const MIB: u64 = 1 << 20;
const GTT: u32 = ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_GTT;
const VRAM: u32 = ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_VRAM;
const VA: u64 = 0x10_0000_0000;

/// A machine whose limit is about 66 MiB.
fn small() -> Rig {
    Rig::new(Options { ram: (3 << 29) + 92 * MIB, ..Options::default() })
}

fn call<T: Pod>(process: &Arc<Process>, command: u32, args: &mut T) -> Result<(), Errno> {
    process.ioctl(command, CpuVa(std::ptr::from_mut(args) as u64)).map_err(|e| e.errno)
}

fn alloc(process: &Arc<Process>, va: u64, size: u64, flags: u32) -> Result<u64, Errno> {
    alloc_at(process, va, size, flags).map(|(handle, _)| handle)
}

/// The handle, and where it is mapped.
fn alloc_at(process: &Arc<Process>, va: u64, size: u64, flags: u32) -> Result<(u64, u64), Errno> {
    let mut args = AllocMemoryOfGpuArgs { va_addr: va, size, handle: 0, mmap_offset: 0, gpu_id: GPU_ID, flags };
    call(process, c::ALLOC_MEMORY_OF_GPU.0, &mut args).map(|()| (args.handle, args.mmap_offset))
}

/// Another client of the rig's machine.
fn open(rig: &Rig, user: u32) -> Arc<Process> {
    let kfd = rig.process.kfd().clone();
    kfd.open(Arc::new(SimMm::of_user(user))).unwrap()
}

#[test]
fn an_exported_buffer_is_charged_as_long_as_anything_has_its_memory() {
    let rig = small();
    let limit = rig.process.kfd().limit().clone();
    let handle = alloc(&rig.process, VA, 32 * MIB, GTT).unwrap();
    let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
    rig.call(c::EXPORT_DMABUF.0, &mut export).unwrap();
    rig.free(handle).unwrap();
    assert_eq!(limit.used(), 32 * MIB, "the file has it");
    // So it cannot be had once more as often as one likes.
    let again = alloc(&rig.process, VA, 32 * MIB, GTT).unwrap();
    assert_eq!(alloc(&rig.process, 2 * VA, 32 * MIB, GTT), Err(Errno::ENOMEM));
    rig.free(again).unwrap();
    let dmabuf_fd = export.dmabuf_fd;
    let mut import = ImportDmabufArgs { va_addr: 2 * VA, handle: 0, gpu_id: GPU_ID, dmabuf_fd };
    rig.call(c::IMPORT_DMABUF.0, &mut import).unwrap();
    // The file goes; the object that was made of it has the memory. It is charged once.
    rig.files.close();
    assert_eq!(limit.used(), 32 * MIB);
    rig.free(import.handle).unwrap();
    assert_eq!(limit.used(), 0);
}

#[test]
fn the_signal_page_stays_and_stays_charged() {
    let rig = small();
    let limit = rig.process.kfd().limit().clone();
    let handle = alloc(&rig.process, VA, 32 * MIB, GTT).unwrap();
    let other = alloc(&rig.process, 2 * VA, MIB, GTT).unwrap();
    let mut event = CreateEventArgs { event_page_offset: handle, ..CreateEventArgs::zeroed() };
    rig.call(c::CREATE_EVENT.0, &mut event).unwrap();
    assert_eq!(rig.free(handle), Err(Errno::EPERM), "as KFD has it");
    rig.free(other).unwrap();
    assert_eq!(limit.used(), 32 * MIB);
    rig.process.release();
    assert_eq!(limit.used(), 0);
}

#[test]
fn svm_memory_is_charged_with_xnack_off() {
    let rig = small();
    let limit = rig.process.kfd().limit().clone();
    rig.mm.map(AT, 32 * 1024, true);
    let set = |first, pages| rig.set(first, pages, &[(SVM_ATTR_GRANULARITY, 9)]);
    set(AT, 8192).unwrap();
    assert_eq!(limit.used(), 32 * MIB);
    // What is a range already counts once, and what fails leaves nothing.
    set(AT + 4096, 8192).unwrap();
    assert_eq!(limit.used(), 48 * MIB);
    assert_eq!(set(AT + 8192, 16384), Err(Errno::ENOMEM));
    assert_eq!(limit.used(), 48 * MIB);
    // With XNACK on the device faults in the pages that it needs: nothing is charged.
    let xnack = |on| rig.call(c::SET_XNACK_MODE.0, &mut SetXnackModeArgs { xnack_enabled: on });
    xnack(1).unwrap();
    assert_eq!(limit.used(), 0);
    set(AT + 8192, 16384).unwrap();
    assert_eq!(limit.used(), 0);
    assert_eq!(xnack(0), Err(Errno::ENOMEM));
    assert!(rig.process.xnack());
    // Half of it is unmapped.
    rig.mm.unmap(AT + 8192, 16384);
    xnack(0).unwrap();
    assert_eq!(limit.used(), 32 * MIB);
    rig.mm.unmap(AT, 4096);
    assert_eq!(rig.set(AT, 1, &[(SVM_ATTR_GRANULARITY, 9)]), Err(Errno::EFAULT), "it is swept before");
    assert_eq!(limit.used(), 16 * MIB);
    rig.process.release();
    assert_eq!(limit.used(), 0);
}

#[test]
fn one_user_leaves_some_for_others() {
    let rig = Rig::new(Options::default());
    let mut mine = Vec::new();
    let refused = loop {
        let process = open(&rig, 1000);
        let got = process.acquire_vm(GPU_ID);
        mine.push(process);
        if let Err(error) = got {
            break error.errno;
        }
    };
    assert_eq!((mine.len(), refused), (6, Errno::ENOSPC), "of 7, the rig has one");
    let other = open(&rig, 1001);
    other.acquire_vm(GPU_ID).unwrap();
    // What is given back can be had again, as long as one is left.
    for _ in 0..3 {
        mine.pop().unwrap().release();
    }
    let again = open(&rig, 1000);
    again.acquire_vm(GPU_ID).unwrap();
    for process in mine.into_iter().chain([other, again]) {
        process.release();
    }
}

fn create_queue(process: &Arc<Process>, ring: u64) -> Result<u32, Errno> {
    use vkfd_uapi::queue::{CreateQueueArgs, QUEUE_TYPE_SDMA};
    let mut args = CreateQueueArgs {
        ring_base_address: ring,
        ring_size: 4096,
        read_pointer_address: ring + 4096,
        write_pointer_address: ring + 4104,
        gpu_id: GPU_ID,
        queue_type: QUEUE_TYPE_SDMA,
        queue_percentage: 100,
        ..CreateQueueArgs::zeroed()
    };
    call(process, c::CREATE_QUEUE.0, &mut args).map(|()| args.queue_id)
}

#[test]
fn one_user_leaves_queues_for_others() {
    use vkfd_uapi::queue::DestroyQueueArgs;
    let rig = Rig::new(Options::default());
    let (one, other) = (open(&rig, 1000), open(&rig, 1001));
    for process in [&one, &other] {
        process.acquire_vm(GPU_ID).unwrap();
        let handle = alloc(process, VA, 8192, GTT).unwrap();
        let ids = [GPU_ID];
        let mut map =
            MapMemoryToGpuArgs { handle, device_ids_array_ptr: ids.as_ptr() as u64, n_devices: 1, n_success: 0 };
        call(process, c::MAP_MEMORY_TO_GPU.0, &mut map).unwrap();
    }
    let mut queues = Vec::new();
    let refused = loop {
        match create_queue(&one, VA) {
            Ok(queue) => queues.push(queue),
            Err(errno) => break errno,
        }
    };
    assert_eq!((queues.len(), refused), (192, Errno::ENOSPC));
    create_queue(&other, VA).unwrap();
    let mut destroy = DestroyQueueArgs { queue_id: queues[0], pad: 0 };
    call(&one, c::DESTROY_QUEUE.0, &mut destroy).unwrap();
    assert_eq!(create_queue(&one, VA), Err(Errno::ENOSPC), "there is one less than before");
    destroy.queue_id = queues[1];
    call(&one, c::DESTROY_QUEUE.0, &mut destroy).unwrap();
    create_queue(&one, VA).unwrap();
    one.release();
    other.release();
}

#[test]
fn events_without_a_slot_have_a_most() {
    let rig = Rig::new(Options::default());
    let events = rig.process.events();
    let made = (0..).find(|_| events.create(EVENT_MEMORY, false).is_err()).unwrap();
    assert_eq!(made, 1 << 16);
    assert_eq!(events.create(EVENT_MEMORY, false).unwrap_err().errno, Errno::ENOSPC);
    events.create(EVENT_SIGNAL, false).unwrap();
}

/// Whether one of the events came.
fn came(process: &Process, event: u32) -> bool {
    let mut list = os::Vec::new();
    list.push(EventData { event_id: event, ..EventData::zeroed() }).unwrap();
    process.events().wait(&mut list, true, 0) == Waited::Complete
}

/// Interrupts that were on their way when a process ended are nobody's, even if another process has
/// its VMID then.
#[test]
fn a_late_interrupt_is_not_the_next_owners() {
    let rig = Rig::new(Options::default());
    let kfd = rig.process.kfd().clone();
    let open = || {
        let process = open(&rig, 0);
        process.acquire_vm(GPU_ID).unwrap();
        process
    };
    let fault = |vmid, retry| PageFault {
        vmid,
        queue: HwQueue(77),
        va: GpuVa(0xdead_b000),
        write: true,
        reason: FaultReason::NotPresent,
        retry,
    };
    let report = |vmid, event| {
        kfd.page_fault(GPU_ID, fault(vmid, true));
        kfd.page_fault(GPU_ID, fault(vmid, false));
        kfd.queue_stops(GPU_ID, vmid, HwQueue(77), "late");
        kfd.queue_error(GPU_ID, vmid, HwQueue(77));
        kfd.signal_event(GPU_ID, vmid, event);
    };
    // VMID 1 is the rig's own.
    let (first, second) = (Vmid::new(2, 0), Vmid::new(2, 1));
    let ended = open();
    ended.release();
    drop(ended);
    let next = open();
    let events =
        [EVENT_MEMORY, EVENT_HW_EXCEPTION, EVENT_SIGNAL].map(|kind| next.events().create(kind, false).unwrap().0);
    report(first, events[2]);
    assert!(events.iter().all(|event| !came(&next, *event)), "of the process before");
    assert!(rig.gpu.answers().is_empty());
    assert_eq!(next.counters().gpu_faults.get(), 0);
    // Its own come.
    report(second, events[2]);
    assert!(events.iter().all(|event| came(&next, *event)));
    next.release();
    // And not when it has gone, with nobody after it.
    report(second, events[2]);
}

/// The memory that a GPU has available before and after 512 pages are prefetched into its memory.
fn around_a_prefetch(sabotage: Switches) -> [u64; 2] {
    let rig = Rig::with_gpus(Options { sabotage, ..Options::default() }, 1, 2048);
    rig.mm.map(AT, 512, true);
    let resident = || rig.process.kfd().devices()[0].residency().hosted().0;
    let available = || {
        let mut args = GetAvailableMemoryArgs { available: 0, gpu_id: GPU_ID, pad: 0 };
        call(&rig.process, c::AVAILABLE_MEMORY.0, &mut args).map(|()| args.available).unwrap()
    };
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID)]).unwrap();
    let before = available();
    rig.set(AT, 512, &[(SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    let after = available();
    assert_eq!(resident(), 512);
    // A buffer object gets all of it, whatever was said.
    let handle = alloc(&rig.process, VA, before, VRAM);
    assert_eq!((handle.map(drop), resident(), available()), (Ok(()), 0, 0));
    [before, after]
}

/// As AMD's driver counts: what gives way to a buffer object is available to it.
#[test]
fn a_prefetch_leaves_as_much_memory_available() {
    let [before, after] = around_a_prefetch(Switches::NONE);
    assert_eq!(after, before);
}

#[test]
fn ranges_that_count_as_unavailable_are_noticed() {
    let [before, after] = around_a_prefetch(Switch::CountedRanges.into());
    assert_eq!(after, before - 512 * PAGE);
}

#[test]
fn an_allocation_that_cannot_succeed_evicts_nobody() {
    let rig = Rig::with_gpus(Options::default(), 1, 2048);
    rig.mm.map(AT, 512, true);
    rig.set(AT, 512, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    let resident = || rig.process.kfd().devices()[0].residency().hosted().0;
    assert_eq!(resident(), 512);
    let other = open(&rig, 1);
    other.acquire_vm(GPU_ID).unwrap();
    alloc(&other, VA, 1000 * PAGE, VRAM).unwrap();
    // So many can never be free: 1,000 are an object's.
    assert_eq!(alloc(&other, 2 * VA, 1100 * PAGE, VRAM), Err(Errno::ENOMEM));
    assert_eq!(resident(), 512);
    // So many can.
    alloc(&other, 2 * VA, 900 * PAGE, VRAM).unwrap();
    assert!(resident() < 512);
    other.release();
}

#[test]
fn what_is_for_tests_is_off_unless_switched_on() {
    let rig = Rig::on(SimMm::default(), Options::default(), 1, 2048);
    rig.mm.map(AT, 16, true);
    let mut windows = WindowsArgs { gap: 0, per_range: 1, pad: 0 };
    assert_eq!(rig.call(SET_WINDOWS.0, &mut windows), Err(Errno::EPERM));
    assert_eq!(rig.call(MEASURE.0, &mut MeasureArgs::zeroed()), Err(Errno::EPERM));
    assert_eq!(rig.move_pages(AT, 1, MOVE_TO_GPU), Err(Errno::EPERM));
    let mut caps = CapsArgs { size: 64, ..CapsArgs::zeroed() };
    rig.call(QUERY_CAPS.0, &mut caps).unwrap();
    assert_eq!(caps.caps & CAP_DIAGNOSIS, 0);
    let rig = Rig::new(Options::default());
    rig.call(SET_WINDOWS.0, &mut windows).unwrap();
    rig.call(QUERY_CAPS.0, &mut caps).unwrap();
    assert_ne!(caps.caps & CAP_DIAGNOSIS, 0);
}

#[test]
fn what_is_measured_is_charged_meanwhile() {
    use vkfd_uapi::batch::UserptrRange;
    let rig = small();
    let limit = rig.process.kfd().limit().clone();
    rig.mm.map(AT, 17 * 1024, true);
    let measure = |pages: u64| {
        let ranges = [UserptrRange { start: AT * PAGE, size: pages * PAGE }];
        let mut args = MeasureArgs { ranges_ptr: ranges.as_ptr() as u64, num_ranges: 1, ..MeasureArgs::zeroed() };
        rig.call(MEASURE.0, &mut args)
    };
    let seen = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (most, watched) = (seen.clone(), limit.clone());
    rig.mm.after_fault(move |_, _| {
        most.fetch_max(watched.used(), std::sync::atomic::Ordering::SeqCst);
    });
    measure(1024).unwrap();
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 4 * MIB);
    assert_eq!(limit.used(), 0);
    assert_eq!(measure(17 * 1024), Err(Errno::ENOMEM));
}

/// Each VM has a page of its own for registers.
#[test]
fn registers_are_not_shared() {
    let rig = Rig::new(Options::default());
    let other = open(&rig, 1);
    other.acquire_vm(GPU_ID).unwrap();
    let page = |process: &Arc<Process>| {
        let flags = ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_MMIO_REMAP;
        let (_, offset) = alloc_at(process, VA, PAGE, flags).unwrap();
        match process.mmap(offset, PAGE).unwrap() {
            vkfd_driver::calls::mmap::Mapped::Dma(memory, 0) => memory.page(0),
            _ => panic!("not memory of the driver's"),
        }
    };
    assert_ne!(page(&rig.process), page(&other));
    other.release();
}

/// Doorbells are mapped as a whole, and no GPU is ENODEV.
#[test]
fn doorbells_are_mapped_as_kfd_does() {
    let rig = Rig::new(Options::default());
    let doorbells = |gpu_id| mmap::encode(mmap::MMAP_TYPE_DOORBELL, gpu_id);
    let map = |offset, bytes| rig.process.mmap(offset, bytes).map(drop).map_err(|error| error.errno);
    assert_eq!(map(doorbells(GPU_ID), 2 * PAGE), Ok(()));
    for (offset, bytes) in [(0, PAGE), (PAGE, PAGE), (0, 3 * PAGE)] {
        assert_eq!(map(doorbells(GPU_ID) + offset, bytes), Err(Errno::EINVAL), "{bytes:#x} from {offset:#x} on");
    }
    for none in [0, !GPU_ID] {
        assert_eq!(map(doorbells(none), 2 * PAGE), Err(Errno::ENODEV));
    }
    assert_eq!(map(mmap::encode(mmap::MMAP_TYPE_MMIO, !GPU_ID), PAGE), Err(Errno::ENODEV));
}

/// A mapping has an object's first page.
#[test]
fn an_object_is_mapped_from_its_beginning() {
    let rig = Rig::new(Options::default());
    for (at, kind) in [(VA, ALLOC_MEM_FLAGS_VRAM), (2 * VA, ALLOC_MEM_FLAGS_GTT)] {
        let (_, offset) = alloc_at(&rig.process, at, 4 * PAGE, kind | ALLOC_MEM_FLAGS_WRITABLE).unwrap();
        let map = |from: u64, pages: u64| rig.process.mmap(offset + from, pages * PAGE).map(drop).map_err(|e| e.errno);
        assert_eq!([map(0, 4), map(0, 1)], [Ok(()); 2]);
        assert_eq!([map(PAGE, 1), map(0, 5), map(PAGE, 3)], [Err(Errno::EINVAL); 3]);
    }
}

/// Queues that fault are served one after the other as they came, however many there are, and a
/// thread that faults again comes last.
#[test]
fn faults_are_served_in_their_order() {
    use std::sync::{mpsc, Mutex};
    let rig = Rig::with_gpus(Options::default(), 1, 2048);
    rig.mm.set_kind(None);
    let faults = 24;
    for i in 0..faults {
        rig.mm.map(AT + 512 * i, 512, true);
    }
    rig.process.set_xnack(true).unwrap();
    let (begun, wait) = mpsc::sync_channel(0);
    let (go_on, continued) = mpsc::sync_channel::<()>(0);
    let first = Mutex::new(Some((begun, continued)));
    rig.mm.after_fault(move |_, _| {
        let taken = first.lock().unwrap().take();
        if let Some((begun, continued)) = taken {
            begun.send(()).unwrap();
            continued.recv().unwrap();
        }
    });
    let fault = |i: u64| {
        let va = GpuVa((AT + 512 * i) * PAGE);
        let queue = HwQueue(u32::try_from(i).unwrap() + 1);
        let reason = FaultReason::NotPresent;
        let fault = PageFault { vmid: Vmid(1), queue, va, write: false, reason, retry: true };
        rig.process.kfd().page_fault(GPU_ID, fault);
    };
    fault(0);
    wait.recv().unwrap();
    (1..faults).for_each(fault);
    go_on.send(()).unwrap();
    until("each fault is answered", || rig.gpu.answers().len() as u64 == faults);
    let order: Vec<_> = rig.gpu.answers().iter().map(|(va, _)| (va / PAGE - AT) / 512).collect();
    assert_eq!(order, (0..faults).collect::<Vec<_>>());
}

/// VRAM that anybody had, for whatever, is zero when somebody else gets it.
#[test]
fn vram_comes_without_what_others_had_in_it() {
    let rig = Rig::with_gpus(Options::default(), 1, 1024);
    let device = rig.process.kfd().devices()[0].clone();
    rig.mm.map(AT, 512, true);
    // Data in a buffer and in migrated memory, entries in page tables; all of it is given back.
    let other = open(&rig, 1);
    other.acquire_vm(GPU_ID).unwrap();
    let (handle, offset) = alloc_at(&other, VA, 128 * PAGE, VRAM).unwrap();
    let ids = [GPU_ID];
    let mut map = MapMemoryToGpuArgs { handle, device_ids_array_ptr: ids.as_ptr() as u64, n_devices: 1, n_success: 0 };
    call(&other, c::MAP_MEMORY_TO_GPU.0, &mut map).unwrap();
    let seam = rig.gpu.clone();
    for (at, bytes) in pieces(&other, offset, 128).iter() {
        seam.write_entries(*at, 0x5ec4_e700, 0, bytes / 8);
    }
    rig.set(AT, 256, &[(SVM_ATTR_ACCESS, GPU_ID), (SVM_ATTR_PREFETCH_LOC, GPU_ID)]).unwrap();
    let there = rig.gpu.walk(AT * PAGE).expect("mapped");
    let base = device.properties().vram_base.0;
    seam.write_entries(VramOffset(there * PAGE - base), 0x5ec4_e700, 0, 512);
    other.release();
    drop(other);
    rig.mm.unmap(AT, 512);
    assert!(rig.set(AT, 1, &[(SVM_ATTR_GRANULARITY, 9)]).is_err());
    // All that is free, as one client's.
    let pages = device.vram().available() / PAGE;
    let (_, offset) = alloc_at(&rig.process, VA, pages * PAGE, VRAM).unwrap();
    let mut words = 0u64;
    for (at, bytes) in pieces(&rig.process, offset, pages).iter() {
        for word in (at.0..at.0 + bytes).step_by(8) {
            assert_eq!(seam.read_entry(VramOffset(word)), 0, "at {word:#x}");
            words += 1;
        }
    }
    assert_eq!(words, pages * 512);
}

/// Where a VRAM object is.
fn pieces(process: &Process, offset: u64, pages: u64) -> os::Vec<(VramOffset, u64)> {
    match process.mmap(offset, pages * PAGE).unwrap() {
        vkfd_driver::calls::mmap::Mapped::Vram { pieces, .. } => pieces,
        vkfd_driver::calls::mmap::Mapped::Dma(..) => panic!("not VRAM"),
    }
}
