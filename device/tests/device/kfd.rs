// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The whole driver over the wire: batch userptr on guest memory whose pages move and are reused,
//! and clients of a device that dies.

use crate::guest::{limits, until, Guest, Stop, TestBar};
use crate::machine::{Bare, Place};
use crate::memory::GuestMemory;
use crate::queue::split;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::seams::gpu::{DmaMemory, Gpu};
use vkfd_sabotage::Switch;
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EVENT_HW_EXCEPTION};
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, MapMemoryToGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::SetXnackModeArgs;
use vkfd_uapi::queue::{CreateQueueArgs, DestroyQueueArgs, QUEUE_TYPE_SDMA};
use vkfd_uapi::vkfd::{
    ProcessInfo, QueueInfo, SnapshotArgs, QUEUE_STATE_BROKEN, QUEUE_STATE_RUNNING, SNAPSHOT, SNAPSHOT_PROCESS,
    SNAPSHOT_QUEUES,
};
use vkfd_wire::{Condition, Remote};

const GPU_ID: u32 = 0x4b01;
const BATCH_VA: u64 = 0x10_0000_0000;
const RING_VA: u64 = 0x20_0000_0000;
const RING_BYTES: u64 = 0x2000;

/// A guest whose driver is the real one.
struct System {
    kfd: Arc<Kfd>,
    guest: Guest,
    place: Place,
    memory: GuestMemory,
}

impl System {
    fn new(bare: Bare, options: Options) -> Self {
        let Bare { ram, place, setup } = bare;
        let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap());
        let mut gpus: os::Vec<Arc<dyn Gpu>> = os::Vec::new();
        gpus.push(remote.clone()).unwrap();
        let kfd = Kfd::new(gpus, options).unwrap();
        let guest = Guest::new(remote, setup.interrupt, kfd.clone());
        Self { kfd, guest, place, memory: GuestMemory::new(ram) }
    }

    fn open(&self) -> Client {
        Client(self.kfd.open(self.memory.mm.clone()).unwrap())
    }

    fn kill_device(&self) {
        let Place::Processes { program, .. } = &self.place else { panic!() };
        program.signal_device(libc::SIGKILL);
    }
}

/// An open file.
struct Client(Arc<Process>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A queue of a client.
struct ClientQueue {
    id: u32,
    ring: Arc<dyn DmaMemory>,
    doorbell: Arc<dyn DmaMemory>,
    doorbell_at: u64,
    wptr: u64,
}

impl Client {
    fn call<T: Pod>(&self, command: u32, args: &mut T) -> Result<(), Errno> {
        self.0.ioctl(command, CpuVa(std::ptr::from_mut(args).expose_provenance() as u64)).map_err(|e| e.errno)
    }

    fn map(&self, handle: u64) {
        let ids = [GPU_ID];
        let ids_at = ids.as_ptr().expose_provenance() as u64;
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr: ids_at, n_devices: 1, n_success: 0 };
        self.call(c::MAP_MEMORY_TO_GPU.0, &mut args).unwrap();
    }

    /// Registers the ranges as one batch at [`BATCH_VA`].
    fn register(&self, ranges: &[UserptrRange]) {
        let mut args = AllocMemoryOfGpuBatchArgs {
            va_addr: BATCH_VA,
            total_size: ranges.iter().map(|range| range.size).sum(),
            handle: 0,
            ranges_ptr: ranges.as_ptr().expose_provenance() as u64,
            num_ranges: u32::try_from(ranges.len()).unwrap(),
            gpu_id: GPU_ID,
            flags: ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE,
            pad: 0,
        };
        self.call(ALLOC_MEMORY_OF_GPU_BATCH.0, &mut args).unwrap();
        self.map(args.handle);
    }

    fn dma_at(&self, offset: u64, bytes: u64) -> Arc<dyn DmaMemory> {
        match self.0.mmap(offset, bytes).unwrap() {
            Mapped::Dma(memory, 0) => memory,
            _ => panic!("{offset:#x} is no driver memory"),
        }
    }

    /// Memory for a ring and its pointers.
    fn ring(&self) -> Arc<dyn DmaMemory> {
        let size = RING_BYTES + PAGE;
        let flags = ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE;
        let mut args =
            AllocMemoryOfGpuArgs { va_addr: RING_VA, size, handle: 0, mmap_offset: 0, gpu_id: GPU_ID, flags };
        self.call(c::ALLOC_MEMORY_OF_GPU.0, &mut args).unwrap();
        self.map(args.handle);
        self.dma_at(args.mmap_offset, size)
    }

    fn queue(&self, ring: &Arc<dyn DmaMemory>) -> Result<ClientQueue, Errno> {
        let mut args = CreateQueueArgs {
            ring_base_address: RING_VA,
            read_pointer_address: RING_VA + RING_BYTES,
            write_pointer_address: RING_VA + RING_BYTES + 8,
            ring_size: u32::try_from(RING_BYTES).unwrap(),
            gpu_id: GPU_ID,
            queue_type: QUEUE_TYPE_SDMA,
            queue_percentage: 100,
            ..CreateQueueArgs::zeroed()
        };
        ring.write_u64(RING_BYTES, 0);
        self.call(c::CREATE_QUEUE.0, &mut args)?;
        let doorbell = self.dma_at(args.doorbell_offset / 8192 * 8192, 8192);
        let doorbell_at = args.doorbell_offset % 8192;
        Ok(ClientQueue { id: args.queue_id, ring: ring.clone(), doorbell, doorbell_at, wptr: 0 })
    }

    fn destroy(&self, queue: &ClientQueue) -> Result<(), Errno> {
        self.call(c::DESTROY_QUEUE.0, &mut DestroyQueueArgs { queue_id: queue.id, pad: 0 })
    }

    fn snapshot<T: Pod>(&self, op: u32) -> T {
        let mut info = T::zeroed();
        let buffer = std::ptr::from_mut(&mut info).expose_provenance() as u64;
        let mut args = SnapshotArgs { op, buffer, capacity: 1, ..SnapshotArgs::zeroed() };
        self.call(SNAPSHOT.0, &mut args).unwrap();
        info
    }
}

impl ClientQueue {
    /// Writes `value` at `va`.
    fn fence(&mut self, va: u64, value: u32) {
        until("room in the ring", || self.wptr - self.ring.read_u64(RING_BYTES) + 16 < RING_BYTES);
        let [low, high] = split(va).map(u64::from);
        let at = self.wptr % RING_BYTES;
        self.ring.write_u64(at, low << 32 | 5);
        self.ring.write_u64(at + 8, u64::from(value) << 32 | high);
        self.wptr += 16;
        self.doorbell.write_u64(self.doorbell_at, self.wptr);
    }

    fn wait(&self) {
        until("the queue is done", || self.ring.read_u64(RING_BYTES) == self.wptr);
    }
}

/// Scattered ranges of one to three pages, in no order.
fn ranges() -> Vec<UserptrRange> {
    let range = |i: u64| UserptrRange { start: (0x1000 + i * 7 % 100 * 4) * PAGE, size: (1 + i % 3) * PAGE };
    (0..100).map(range).collect()
}

/// What came of it.
struct Outcome {
    info: ProcessInfo,
    rounds: u32,
    moved: u64,
    /// Somebody else's pages that the GPU wrote to, and values that it wrote and that are not
    /// there.
    damage: u64,
}

/// The GPU writes to each page of a batch again and again, while the pages move and their old
/// places get other owners.
fn storm(bare: Bare, xnack: bool, options: Options, time: Duration) -> Outcome {
    let system = System::new(bare, options);
    let ranges = ranges();
    let pages: Vec<u64> =
        ranges.iter().flat_map(|range| (0..range.size / PAGE).map(|page| range.start / PAGE + page)).collect();
    for page in &pages {
        system.memory.add(*page);
    }
    let client = system.open();
    client.0.acquire_vm(GPU_ID).unwrap();
    client.call(c::SET_XNACK_MODE.0, &mut SetXnackModeArgs { xnack_enabled: xnack.into() }).unwrap();
    client.register(&ranges);
    let ring = client.ring();
    let mut queue = client.queue(&ring).unwrap();
    let stop = AtomicBool::new(false);
    let (mut rounds, mut lost) = (0, 0);
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| {
            let mut turn = 1u64;
            while !stop.load(SeqCst) {
                turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                system.memory.migrate(pages[usize::try_from(turn >> 33).unwrap() % pages.len()]);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let until = Instant::now() + time;
        while Instant::now() < until {
            rounds += 1;
            for index in 0..pages.len() as u64 {
                queue.fence(BATCH_VA + index * PAGE + 8, rounds);
            }
            queue.wait();
            lost += pages.iter().filter(|page| system.memory.load(**page, 8) != u64::from(rounds)).count() as u64;
        }
        drop(end);
    });
    until("restored", || client.snapshot::<ProcessInfo>(SNAPSHOT_PROCESS).evicted == 0);
    client.destroy(&queue).unwrap();
    let (moved, corrupted) = system.memory.count();
    Outcome { info: client.snapshot(SNAPSHOT_PROCESS), rounds, moved, damage: lost + corrupted }
}

#[test]
fn pages_that_move_under_a_batch_are_evicted_and_restored_over_the_wire() {
    for bare in [Bare::local(), Bare::processes()] {
        let outcome = storm(bare, false, Options::default(), Duration::from_secs(2));
        let Outcome { info, rounds, moved, damage } = outcome;
        eprintln!("{rounds} rounds, {moved} pages moved, {} evictions, {} flushes", info.evictions, info.tlb_flushes);
        assert_eq!(damage, 0);
        assert!(rounds > 2 && moved > 20 && info.evictions > 5 && info.gpu_faults == 0, "{info:?}");
    }
}

#[test]
fn with_retry_nothing_stops_and_faults_are_served_over_the_wire() {
    for bare in [Bare::local(), Bare::processes()] {
        let outcome = storm(bare, true, Options::default(), Duration::from_secs(2));
        let Outcome { info, rounds, moved, damage } = outcome;
        eprintln!("{rounds} rounds, {moved} pages moved, {} faults, {} flushes", info.gpu_faults, info.tlb_flushes);
        assert_eq!(damage, 0);
        assert!(rounds > 2 && moved > 20 && info.evictions == 0 && info.gpu_faults > 5, "{info:?}");
    }
}

#[test]
fn a_driver_that_ignores_invalidations_does_damage() {
    let options = Options { sabotage: Switch::Invalidation.into(), ..Options::default() };
    assert_ne!(storm(Bare::processes(), false, options, Duration::from_secs(1)).damage, 0);
}

#[test]
fn a_client_of_a_device_that_dies_gets_an_error_and_can_go_on() {
    let system = System::new(Bare::processes(), Options::default());
    let client = system.open();
    client.0.acquire_vm(GPU_ID).unwrap();
    for range in ranges() {
        (0..range.size / PAGE).for_each(|page| system.memory.add(range.start / PAGE + page));
    }
    client.register(&ranges());
    let ring = client.ring();
    let mut queue = client.queue(&ring).unwrap();
    queue.fence(BATCH_VA + 16, 1);
    queue.wait();
    let mut event = CreateEventArgs { event_type: EVENT_HW_EXCEPTION, ..CreateEventArgs::zeroed() };
    client.call(c::CREATE_EVENT.0, &mut event).unwrap();
    assert_eq!(client.snapshot::<QueueInfo>(SNAPSHOT_QUEUES).state, QUEUE_STATE_RUNNING);

    let (process, id) = (client.0.clone(), event.event_id);
    let waiter = std::thread::spawn(move || {
        use vkfd_uapi::event::{EventData, WaitEventsArgs};
        let mut data = EventData { event_id: id, ..EventData::zeroed() };
        let mut args = WaitEventsArgs {
            events_ptr: std::ptr::from_mut(&mut data).expose_provenance() as u64,
            num_events: 1,
            wait_for_all: 0,
            timeout: 20_000,
            wait_result: 9,
        };
        let at = CpuVa(std::ptr::from_mut(&mut args).expose_provenance() as u64);
        process.ioctl(c::WAIT_EVENTS.0, at).unwrap();
        (args.wait_result, data.payload.hw_exception().gpu_id)
    });
    std::thread::sleep(Duration::from_millis(20));
    system.kill_device();
    assert_eq!(waiter.join().unwrap(), (0, GPU_ID), "who waits is told");
    assert_eq!(client.snapshot::<QueueInfo>(SNAPSHOT_QUEUES).state, QUEUE_STATE_BROKEN);

    until("another device", || system.guest.remote.condition() == Condition::Live);
    // Memory moved meanwhile, or now: it is as usual.
    system.memory.migrate(0x1000);
    client.destroy(&queue).unwrap();
    let mut queue = client.queue(&ring).unwrap();
    queue.fence(BATCH_VA + 24, 2);
    queue.wait();
    assert_eq!(system.memory.load(0x1000, 16), 1);
    assert_eq!(system.memory.load(0x1000, 24), 2);
    // So do new clients.
    let other = system.open();
    other.0.acquire_vm(GPU_ID).unwrap();
    let ring = other.ring();
    let mut queue = other.queue(&ring).unwrap();
    queue.fence(RING_VA + RING_BYTES + 64, 3);
    queue.wait();
    assert_eq!(ring.read_u64(RING_BYTES + 64), 3);
}

#[test]
fn without_a_device_new_clients_are_refused_and_old_ones_can_leave() {
    let system = System::new(Bare::processes_with(&["--no-restart"]), Options::default());
    let client = system.open();
    client.0.acquire_vm(GPU_ID).unwrap();
    for range in ranges() {
        (0..range.size / PAGE).for_each(|page| system.memory.add(range.start / PAGE + page));
    }
    client.register(&ranges());
    let ring = client.ring();
    let queue = client.queue(&ring).unwrap();
    system.kill_device();
    until("it is noticed", || system.guest.remote.condition() == Condition::Lost);
    let start = Instant::now();
    let other = system.open();
    assert_eq!(other.0.acquire_vm(GPU_ID).unwrap_err().errno, Errno::ENODEV);
    drop(other);
    assert_eq!(client.queue(&ring).err(), Some(Errno::ENODEV));
    // Invalidations do not hang, and restores end.
    for _ in 0..20 {
        system.memory.migrate(0x1000);
    }
    until("restored", || client.snapshot::<ProcessInfo>(SNAPSHOT_PROCESS).evicted == 0);
    client.destroy(&queue).unwrap();
    drop(client);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
