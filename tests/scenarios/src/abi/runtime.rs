// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What compute runtimes call around copies: queues of PM4 with a doorbell of their own mapping,
//! events on a page that they bring, settings of silicon.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vkfd_client::uapi::event::{
    CreateEventArgs, DestroyEventArgs, EventData, SetEventArgs, WaitEventsArgs, EVENT_HW_EXCEPTION, EVENT_MEMORY,
    EVENT_SIGNAL, WAIT_RESULT_COMPLETE, WAIT_RESULT_FAIL, WAIT_RESULT_TIMEOUT,
};
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs, ALLOC_MEM_FLAGS_EXECUTABLE,
    ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::process::{
    GetTileConfigArgs, RuntimeEnableArgs, SetMemoryPolicyArgs, SetScratchBackingVaArgs, SetTrapHandlerArgs,
};
use vkfd_client::uapi::queue::{
    AllocQueueGwsArgs, CreateQueueArgs, DestroyQueueArgs, GetQueueWaveStateArgs, SetCuMaskArgs, UpdateQueueArgs,
    QUEUE_TYPE_COMPUTE, QUEUE_TYPE_SDMA,
};
use vkfd_client::uapi::{command, ioctl::Command};
use vkfd_client::{CpuVa, Errno, MmapFile, Transport, PAGE};

use crate::memory::Memory;
use crate::{raw, Scenario, Stop, World, WorldSpec};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a_pm4_queue_writes_and_signals",
        about: "Ring, pointers and doorbell as a runtime makes them: packets write memory and an event wakes a waiter.",
        run: pm4,
    },
    Scenario {
        name: "a_dispatch_that_cannot_run_is_an_exception",
        about: "The queue ends, a hardware exception says on which GPU, and nothing after the dispatch is done.",
        run: dispatch,
    },
    Scenario {
        name: "queues_need_what_they_use_mapped",
        about: "Ring, pointers, end-of-pipe buffer and save area: EINVAL when they are not mapped, EFAULT when nobody could have them.",
        run: misfits,
    },
    Scenario {
        name: "an_event_page_is_brought_once",
        about: "A GTT object of 32 KiB with the first event; later ones, smaller ones and others than GTT are EINVAL.",
        run: event_page,
    },
    Scenario {
        name: "events_are_waited_for_as_kfd_does",
        about: "Any and all, time, unknown and destroyed events, kinds that a client may not signal.",
        run: waits,
    },
    Scenario {
        name: "settings_of_silicon_are_checked_as_kfd_does",
        about: "Policies, scratch, trap handler, tiling, masks, wave state, the runtime's announcement; debugger and checkpoint calls.",
        run: settings,
    },
];

/// A process of a runtime.
pub(super) struct Runtime {
    transport: Arc<dyn Transport>,
    pub(super) gpu: u32,
    world: Arc<World>,
}

/// An object, mapped for the CPU at its GPU address.
pub(super) struct Object {
    window: Memory,
    pub(super) handle: u64,
}

impl Object {
    pub(super) fn va(&self) -> u64 {
        self.window.whole().start
    }

    pub(super) fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: aligned and inside of the mapping, which is as old as the object; everyone
        // accesses it atomically or from outside.
        unsafe { AtomicU32::from_ptr(self.window.at(at).cast()) }
    }

    fn long(&self, at: u64) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.window.at(at).cast()) }
    }
}

impl Runtime {
    pub(super) fn new() -> Result<Self, Stop> {
        let world = Arc::new(World::new(WorldSpec::default())?);
        Self::within(world.transport()?, world)
    }

    /// Another process of the same driver.
    pub(super) fn beside(&self) -> Result<Self, Stop> {
        Self::within(self.world.transport_beside()?, self.world.clone())
    }

    fn within(transport: Arc<dyn Transport>, world: Arc<World>) -> Result<Self, Stop> {
        let gpu = world.id();
        let mut acquire = [transport.render_fd(world.gpu(0))?, gpu];
        raw::send(&*transport, command::ACQUIRE_VM, CpuVa::of(acquire.as_mut_ptr()).0)?;
        Ok(Self { transport, gpu, world })
    }

    pub(super) fn call<T: Pod>(&self, command: Command, args: &mut T) -> Result<(), Errno> {
        raw::send(&*self.transport, command, CpuVa::of(std::ptr::from_mut(args)).0)
    }

    /// A call with its argument anywhere.
    pub(super) fn send(&self, command: Command, argument: u64) -> Result<(), Errno> {
        raw::send(&*self.transport, command, argument)
    }

    pub(super) fn map_on_gpu(&self, handle: u64) -> Result<(), Errno> {
        let device_ids_array_ptr = CpuVa::of(&raw const self.gpu).0;
        self.call(
            command::MAP_MEMORY_TO_GPU,
            &mut MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 },
        )
    }

    pub(super) fn unmap(&self, handle: u64) -> Result<(), Errno> {
        let device_ids_array_ptr = CpuVa::of(&raw const self.gpu).0;
        self.call(
            command::UNMAP_MEMORY_FROM_GPU,
            &mut UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 },
        )
    }

    pub(super) fn free(&self, handle: u64) -> Result<(), Errno> {
        self.call(command::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle })
    }

    fn show(&self, window: &Memory, offset: u64) -> Result<(), Stop> {
        let (at, bytes) = (window.at(0).cast(), usize::try_from(window.bytes())?);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: over the window, which is the scenario's own.
        unsafe { self.transport.mmap(MmapFile::Render(self.world.gpu(0)), at, bytes, READ_WRITE, flags, offset) }?;
        Ok(())
    }

    /// Memory of `kind`, mapped.
    pub(super) fn alloc(&self, kind: u32, bytes: u64) -> Result<Object, Stop> {
        let window = raw::gpu_window(bytes)?;
        let flags = kind | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_EXECUTABLE | ALLOC_MEM_FLAGS_PUBLIC;
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: window.whole().start,
            size: bytes,
            handle: 0,
            mmap_offset: 0,
            gpu_id: self.gpu,
            flags,
        };
        self.call(command::ALLOC_MEMORY_OF_GPU, &mut args)?;
        self.show(&window, args.mmap_offset)?;
        self.map_on_gpu(args.handle)?;
        Ok(Object { window, handle: args.handle })
    }

    /// Gives a queue the save area that the GPU's topology asks for, if it does.
    fn save_area(&self, args: &mut CreateQueueArgs) -> Result<Option<Object>, Stop> {
        let info = self.world.client().gpu(self.world.gpu(0))?;
        if info.cwsr_bytes == 0 {
            return Ok(None);
        }
        let bytes = u64::from(info.cwsr_bytes) + u64::from(info.debug_bytes);
        let area = self.alloc(ALLOC_MEM_FLAGS_GTT, bytes.next_multiple_of(PAGE))?;
        (args.ctx_save_restore_address, args.ctx_save_restore_size) = (area.va(), info.cwsr_bytes);
        args.ctl_stack_size = info.ctl_stack_bytes;
        Ok(Some(area))
    }

    pub(super) fn event(&self, event_type: u32, event_page_offset: u64) -> Result<CreateEventArgs, Errno> {
        let mut args = CreateEventArgs { event_type, event_page_offset, auto_reset: 1, ..CreateEventArgs::zeroed() };
        self.call(command::CREATE_EVENT, &mut args).map(|()| args)
    }

    pub(super) fn wait(&self, ids: &[u32], all: bool, timeout: u32) -> (Result<(), Errno>, u32, Vec<EventData>) {
        let mut data: Vec<_> = ids.iter().map(|id| EventData { event_id: *id, ..EventData::zeroed() }).collect();
        let mut args = WaitEventsArgs {
            events_ptr: CpuVa::of(data.as_mut_ptr()).0,
            num_events: u32::try_from(ids.len()).unwrap_or(0),
            wait_for_all: all.into(),
            timeout,
            wait_result: u32::MAX,
        };
        let result = self.call(command::WAIT_EVENTS, &mut args);
        (result, args.wait_result, data)
    }
}

/// A queue of PM4 with all that belongs to it.
pub(super) struct Pm4<'a> {
    runtime: &'a Runtime,
    ring: Object,
    control: Object,
    // Held as long as the queue.
    _area: Option<Object>,
    id: u32,
    doorbells: *mut std::ffi::c_void,
    doorbell: *mut u64,
    written: u64,
}

const DOORBELL_BYTES: usize = 0x2000;

impl<'a> Pm4<'a> {
    pub(super) fn new(runtime: &'a Runtime) -> Result<Self, Stop> {
        let ring = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 4 * PAGE)?;
        let control = runtime.alloc(ALLOC_MEM_FLAGS_GTT, PAGE)?;
        let mut args = arguments(runtime, &ring, &control);
        let area = runtime.save_area(&mut args)?;
        runtime.call(command::CREATE_QUEUE, &mut args)?;
        // As libhsakmt does: the high part is mapped, the low bits are added.
        let (base, place) = (args.doorbell_offset & !0x1fff, args.doorbell_offset & 0x1fff);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe {
            runtime.transport.mmap(
                MmapFile::Kfd,
                std::ptr::null_mut(),
                DOORBELL_BYTES,
                READ_WRITE,
                libc::MAP_SHARED,
                base,
            )
        }?;
        let doorbell = at.cast::<u8>().wrapping_add(usize::try_from(place)?).cast();
        Ok(Self { runtime, ring, control, _area: area, id: args.queue_id, doorbells: at, doorbell, written: 0 })
    }

    pub(super) fn submit(&mut self, words: &[u32]) {
        for word in words {
            self.ring.word(self.written * 4 % self.ring.window.bytes()).store(*word, Ordering::Relaxed);
            self.written += 1;
        }
        self.control.long(8).store(self.written, Ordering::Release);
        // SAFETY: mapped since `new`; the GPU reads it.
        unsafe { AtomicU64::from_ptr(self.doorbell) }.store(self.written, Ordering::SeqCst);
    }

    fn read(&self) -> u64 {
        self.control.long(0).load(Ordering::Acquire)
    }

    pub(super) fn finish(&self) -> Result<(), Stop> {
        let start = Instant::now();
        while self.read() != self.written {
            ensure!(start.elapsed() < PATIENCE, "stuck at {} of {}", self.read(), self.written);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn destroy(&self) -> Result<(), Errno> {
        self.runtime.call(command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id: self.id, pad: 0 })
    }
}

impl Drop for Pm4<'_> {
    fn drop(&mut self) {
        // A mapping that is left keeps a kernel's module loaded.
        // SAFETY: mapped in `new`; the value goes, and nothing else has the pointer.
        unsafe { libc::munmap(self.doorbells, DOORBELL_BYTES) };
    }
}

fn arguments(runtime: &Runtime, ring: &Object, control: &Object) -> CreateQueueArgs {
    CreateQueueArgs {
        ring_base_address: ring.va(),
        read_pointer_address: control.va(),
        write_pointer_address: control.va() + 8,
        ring_size: 4 * 4096,
        gpu_id: runtime.gpu,
        queue_type: QUEUE_TYPE_COMPUTE,
        // The die that takes PM4 is in bits 8 to 15.
        queue_percentage: 100 | 1 << 8,
        queue_priority: 7,
        ..CreateQueueArgs::zeroed()
    }
}

pub(super) fn packet(op: u32, body: &[u32]) -> Vec<u32> {
    let count = u32::try_from(body.len()).unwrap_or(1) - 1;
    [&[3 << 30 | count << 16 | op << 8], body].concat()
}

pub(super) fn halves(va: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = va.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

/// RELEASE_MEM of a 32-bit value with an interrupt that names `event`.
fn release(va: u64, value: u32, event: u32) -> Vec<u32> {
    let [low, high] = halves(va);
    packet(0x49, &[0x514, 1 << 29 | 2 << 24, low, high, value, 0, event])
}

fn pm4() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let data = runtime.alloc(ALLOC_MEM_FLAGS_VRAM, PAGE)?;
    let page = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 8 * PAGE)?;
    let event = runtime.event(EVENT_SIGNAL, page.handle)?;
    let slot = page.va() + 8 * u64::from(event.event_slot_index);
    let mut queue = Pm4::new(&runtime)?;
    let [low, high] = halves(data.va());
    for round in 1..200_u32 {
        queue.submit(&packet(0x37, &[5 << 8, low, high, round, !round]));
        queue.submit(&release(slot, event.event_trigger_data, event.event_trigger_data));
        let (result, waited, _) = runtime.wait(&[event.event_id], true, 60_000);
        ensure_eq!((result, waited), (Ok(()), WAIT_RESULT_COMPLETE), "round {round}");
        ensure_eq!((data.word(0).load(Ordering::SeqCst), data.word(4).load(Ordering::SeqCst)), (round, !round));
    }
    queue.finish()?;
    // Turned off it takes nothing, turned on again it goes on.
    let mut update = UpdateQueueArgs { queue_id: queue.id, ..UpdateQueueArgs::zeroed() };
    runtime.call(command::UPDATE_QUEUE, &mut update)?;
    let before = queue.read();
    queue.submit(&packet(0x37, &[5 << 8, low, high, 77]));
    ensure_eq!(runtime.wait(&[event.event_id], true, 20).1, WAIT_RESULT_TIMEOUT);
    ensure_eq!(queue.read(), before);
    update = UpdateQueueArgs {
        ring_base_address: queue.ring.va(),
        queue_id: queue.id,
        ring_size: 4 * 4096,
        queue_percentage: 100,
        queue_priority: 7,
    };
    runtime.call(command::UPDATE_QUEUE, &mut update)?;
    queue.finish()?;
    ensure_eq!(data.word(0).load(Ordering::SeqCst), 77);
    ensure_eq!(queue.destroy(), Ok(()));
    ensure_eq!(queue.destroy(), Err(Errno::INVAL), "again");
    Ok(())
}

fn dispatch() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let data = runtime.alloc(ALLOC_MEM_FLAGS_GTT, PAGE)?;
    let (exception, memory) = (runtime.event(EVENT_HW_EXCEPTION, 0)?, runtime.event(EVENT_MEMORY, 0)?);
    let mut queue = Pm4::new(&runtime)?;
    let [low, high] = halves(data.va());
    let [program, program_high] = halves(data.va() >> 8);
    queue.submit(&packet(0x76, &[0x20c, program, program_high]));
    queue.submit(&packet(0x15, &[1, 1, 1, 1]));
    queue.submit(&packet(0x37, &[5 << 8, low, high, 1]));
    let (result, waited, data_of) = runtime.wait(&[memory.event_id, exception.event_id], false, 60_000);
    ensure_eq!((result, waited), (Ok(()), WAIT_RESULT_COMPLETE));
    ensure_eq!(data_of[1].payload.hw_exception().gpu_id, runtime.gpu);
    ensure_eq!(data_of[0].payload.memory_exception().gpu_id, 0, "a fault as well");
    ensure_eq!(data.word(0).load(Ordering::SeqCst), 0, "what follows the dispatch was done");
    ensure!(queue.read() < queue.written);
    ensure_eq!(queue.destroy(), Ok(()));
    Ok(())
}

fn misfits() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let ring = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 4 * PAGE)?;
    let control = runtime.alloc(ALLOC_MEM_FLAGS_GTT, PAGE)?;
    let eop = runtime.alloc(ALLOC_MEM_FLAGS_VRAM, PAGE)?;
    let unmapped = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 4 * PAGE)?;
    runtime.unmap(unmapped.handle)?;
    let good = CreateQueueArgs {
        eop_buffer_address: eop.va(),
        eop_buffer_size: PAGE,
        ctx_save_restore_address: control.va(),
        ctx_save_restore_size: 4096,
        ..arguments(&runtime, &ring, &control)
    };
    let none = 1 << 52;
    let bad = [
        (CreateQueueArgs { ring_size: 3000, ..good }, Errno::INVAL),
        (CreateQueueArgs { queue_percentage: 101, ..good }, Errno::INVAL),
        (CreateQueueArgs { queue_priority: 16, ..good }, Errno::INVAL),
        (CreateQueueArgs { queue_type: 9, ..good }, Errno::NOTSUPP),
        (CreateQueueArgs { gpu_id: 1, ..good }, Errno::INVAL),
        (CreateQueueArgs { ring_base_address: none, ..good }, Errno::FAULT),
        (CreateQueueArgs { read_pointer_address: none, ..good }, Errno::FAULT),
        (CreateQueueArgs { write_pointer_address: none, ..good }, Errno::FAULT),
        (CreateQueueArgs { eop_buffer_address: none, ..good }, Errno::FAULT),
        (CreateQueueArgs { ctx_save_restore_address: none, ..good }, Errno::FAULT),
        (CreateQueueArgs { ring_base_address: 0, ..good }, Errno::INVAL),
        (CreateQueueArgs { ring_base_address: unmapped.va(), ..good }, Errno::INVAL),
        (CreateQueueArgs { ring_base_address: ring.va() + PAGE, ..good }, Errno::INVAL),
        (CreateQueueArgs { ring_base_address: ring.va() + 64, ring_size: 1024, ..good }, Errno::INVAL),
        (CreateQueueArgs { read_pointer_address: unmapped.va(), ..good }, Errno::INVAL),
        (CreateQueueArgs { read_pointer_address: control.va() + 4, ..good }, Errno::INVAL),
        (CreateQueueArgs { write_pointer_address: unmapped.va(), ..good }, Errno::INVAL),
        (CreateQueueArgs { eop_buffer_address: unmapped.va(), ..good }, Errno::INVAL),
        (CreateQueueArgs { ctx_save_restore_address: unmapped.va(), ..good }, Errno::INVAL),
        (CreateQueueArgs { ctx_save_restore_size: 8192, ..good }, Errno::INVAL),
    ];
    for (mut args, errno) in bad {
        ensure_eq!(runtime.call(command::CREATE_QUEUE, &mut args), Err(errno), "{args:?}");
    }
    // A copy queue has neither buffer nor area, and a small ring counts as the smallest there is.
    let copy = CreateQueueArgs { queue_type: QUEUE_TYPE_SDMA, eop_buffer_address: unmapped.va(), ..good };
    let small = CreateQueueArgs { ring_size: 256, ..good };
    let mut queues = Vec::new();
    for mut args in [good, copy, small] {
        ensure_eq!(runtime.call(command::CREATE_QUEUE, &mut args), Ok(()));
        queues.push(args.queue_id);
    }
    let update = UpdateQueueArgs {
        ring_base_address: ring.va(),
        queue_id: queues[0],
        ring_size: 1024,
        queue_percentage: 100,
        queue_priority: 7,
    };
    for (mut args, errno) in [
        (UpdateQueueArgs { queue_id: 999, ..update }, Errno::FAULT),
        (UpdateQueueArgs { ring_base_address: unmapped.va(), ..update }, Errno::FAULT),
        (UpdateQueueArgs { ring_base_address: none, ..update }, Errno::FAULT),
        (UpdateQueueArgs { ring_size: 1000, ..update }, Errno::INVAL),
        (UpdateQueueArgs { queue_percentage: 101, ..update }, Errno::INVAL),
    ] {
        ensure_eq!(runtime.call(command::UPDATE_QUEUE, &mut args), Err(errno), "{args:?}");
    }
    // None of that left a queue behind.
    ensure_eq!(queues.len(), 3);
    for queue_id in queues {
        ensure_eq!(runtime.call(command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id, pad: 0 }), Ok(()));
    }
    Ok(())
}

fn event_page() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let page = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 8 * PAGE)?;
    let small = runtime.alloc(ALLOC_MEM_FLAGS_GTT, 7 * PAGE)?;
    let vram = runtime.alloc(ALLOC_MEM_FLAGS_VRAM, 8 * PAGE)?;
    for handle in [1, small.handle, vram.handle] {
        ensure_eq!(runtime.event(EVENT_SIGNAL, handle).err(), Some(Errno::INVAL));
    }
    let event = runtime.event(EVENT_SIGNAL, page.handle)?;
    ensure!(event.event_slot_index == event.event_id && event.event_trigger_data == event.event_id);
    ensure_eq!(page.long(8 * u64::from(event.event_slot_index)).load(Ordering::SeqCst), u64::MAX, "an empty slot");
    ensure_eq!(runtime.event(EVENT_SIGNAL, page.handle).err(), Some(Errno::INVAL), "a second page");
    let other = runtime.event(EVENT_MEMORY, 0)?;
    ensure!(other.event_id >= 1 << 30 && other.event_page_offset == 0, "an event without a slot has one");
    Ok(())
}

fn waits() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let (a, b) = (runtime.event(EVENT_SIGNAL, 0)?.event_id, runtime.event(EVENT_SIGNAL, 0)?.event_id);
    let memory = runtime.event(EVENT_MEMORY, 0)?.event_id;
    let set = |event_id| runtime.call(command::SET_EVENT, &mut SetEventArgs { event_id, pad: 0 });
    let outcome = |ids: &[u32], all, timeout| {
        let (result, waited, _) = runtime.wait(ids, all, timeout);
        (result, waited)
    };
    ensure_eq!(outcome(&[], true, u32::MAX), (Ok(()), WAIT_RESULT_COMPLETE));
    ensure_eq!(outcome(&[a, b], false, 0), (Ok(()), WAIT_RESULT_TIMEOUT));
    ensure_eq!(outcome(&[a, b, memory], false, 30), (Ok(()), WAIT_RESULT_TIMEOUT));
    ensure_eq!(set(a), Ok(()));
    ensure_eq!(outcome(&[a, b], true, 0), (Ok(()), WAIT_RESULT_TIMEOUT));
    ensure_eq!(outcome(&[a, b], false, u32::MAX), (Ok(()), WAIT_RESULT_COMPLETE));
    ensure_eq!(outcome(&[a], false, 0), (Ok(()), WAIT_RESULT_TIMEOUT), "it resets itself");
    ensure_eq!(set(memory), Err(Errno::INVAL));
    ensure_eq!(set(12345), Err(Errno::INVAL));
    ensure_eq!(outcome(&[12345], false, 0), (Err(Errno::INVAL), WAIT_RESULT_FAIL));
    let mut nowhere = WaitEventsArgs { events_ptr: 8, num_events: 1, wait_for_all: 0, timeout: 0, wait_result: 77 };
    ensure_eq!(runtime.call(command::WAIT_EVENTS, &mut nowhere), Err(Errno::FAULT));
    ensure_eq!(nowhere.wait_result, WAIT_RESULT_FAIL);
    // From another thread at a time that never comes; destroying the event ends the wait.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| outcome(&[a, b, memory], false, u32::MAX - 1));
        std::thread::sleep(Duration::from_millis(20));
        set(b)?;
        ensure_eq!(waiter.join().ok(), Some((Ok(()), WAIT_RESULT_COMPLETE)));
        let waiter = scope.spawn(|| outcome(&[a, b, memory], false, u32::MAX - 1));
        std::thread::sleep(Duration::from_millis(200));
        runtime.call(command::DESTROY_EVENT, &mut DestroyEventArgs { event_id: b, pad: 0 })?;
        let ended = waiter.join().ok();
        // EINVAL when it had not begun to wait by then.
        ensure!(matches!(ended, Some((Err(Errno::IO | Errno::INVAL), WAIT_RESULT_FAIL))), "{ended:?}");
        Ok(())
    })
}

fn settings() -> Result<(), Stop> {
    let runtime = Runtime::new()?;
    let gpu_id = runtime.gpu;
    let policy = SetMemoryPolicyArgs { gpu_id, ..SetMemoryPolicyArgs::zeroed() };
    for (mut args, result) in [
        (policy, Ok(())),
        (SetMemoryPolicyArgs { default_policy: 2, ..policy }, Err(Errno::INVAL)),
        (SetMemoryPolicyArgs { alternate_policy: 2, ..policy }, Err(Errno::INVAL)),
        (SetMemoryPolicyArgs { gpu_id: 1, ..policy }, Err(Errno::INVAL)),
    ] {
        ensure_eq!(runtime.call(command::SET_MEMORY_POLICY, &mut args), result);
    }
    for (gpu_id, result) in [(gpu_id, Ok(())), (1, Err(Errno::INVAL))] {
        let mut scratch = SetScratchBackingVaArgs { va_addr: 1 << 32, gpu_id, pad: 0 };
        ensure_eq!(runtime.call(command::SET_SCRATCH_BACKING_VA, &mut scratch), result);
        let mut trap = SetTrapHandlerArgs { gpu_id, ..SetTrapHandlerArgs::zeroed() };
        ensure_eq!(runtime.call(command::SET_TRAP_HANDLER, &mut trap), result);
    }
    let since_boot = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills in the local structure.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    let before = since_boot();
    let clocks = runtime.world.client().clocks(runtime.world.gpu(0))?;
    let during = before..=since_boot();
    ensure!(during.contains(&clocks.system_clock_counter), "{} is not in {during:?}", clocks.system_clock_counter);
    ensure_eq!(clocks.system_clock_freq, 1_000_000_000);
    let mut tiles = [u32::MAX; 40];
    let mut tiling = GetTileConfigArgs {
        tile_config_ptr: CpuVa::of(tiles.as_mut_ptr()).0,
        num_tile_configs: 40,
        gpu_id,
        ..GetTileConfigArgs::zeroed()
    };
    ensure_eq!(runtime.call(command::GET_TILE_CONFIG, &mut tiling), Ok(()));
    ensure_eq!((tiling.num_tile_configs, tiles[31], tiles[32]), (32, 0, u32::MAX));
    tiling.tile_config_ptr = 1;
    ensure_eq!(runtime.call(command::GET_TILE_CONFIG, &mut tiling), Err(Errno::FAULT));

    let enable = |mode_mask| {
        let mut args = RuntimeEnableArgs { mode_mask, ..RuntimeEnableArgs::zeroed() };
        runtime.call(command::RUNTIME_ENABLE, &mut args)
    };
    ensure_eq!([enable(0), enable(1), enable(1)], [Ok(()), Ok(()), Err(Errno::BUSY)]);
    ensure_eq!(enable(0), Ok(()));
    let queue = Pm4::new(&runtime)?;
    ensure_eq!(enable(1), Err(Errno::EXIST), "with a queue");

    let mask = [u32::MAX; 2];
    let good = SetCuMaskArgs { queue_id: queue.id, num_cu_mask: 64, cu_mask_ptr: CpuVa::of(mask.as_ptr()).0 };
    for (mut args, result) in [
        (good, Ok(())),
        (SetCuMaskArgs { num_cu_mask: 0, ..good }, Err(Errno::INVAL)),
        (SetCuMaskArgs { num_cu_mask: 33, ..good }, Err(Errno::INVAL)),
        (SetCuMaskArgs { cu_mask_ptr: 1, ..good }, Err(Errno::FAULT)),
        (SetCuMaskArgs { queue_id: 999, ..good }, Err(Errno::FAULT)),
    ] {
        ensure_eq!(runtime.call(command::SET_CU_MASK, &mut args), result, "{args:?}");
    }
    for (queue_id, waves) in [(queue.id, Errno::INVAL), (999, Errno::FAULT)] {
        let mut state = GetQueueWaveStateArgs { queue_id, ..GetQueueWaveStateArgs::zeroed() };
        ensure_eq!(runtime.call(command::GET_QUEUE_WAVE_STATE, &mut state), Err(waves));
    }
    // Global wave sync: one queue of a process has a GPU's.
    for (queue_id, num_gws, result) in [
        (999, 1, Err(Errno::INVAL)),
        (queue.id, 0, Err(Errno::INVAL)),
        (queue.id, 1, Ok(())),
        (queue.id, 1, Err(Errno::BUSY)),
        (queue.id, 0, Ok(())),
        (queue.id, 1, Ok(())),
    ] {
        let mut sync = AllocQueueGwsArgs { queue_id, num_gws, first_gws: 77, ..AllocQueueGwsArgs::zeroed() };
        ensure_eq!(runtime.call(command::ALLOC_QUEUE_GWS, &mut sync), result, "{sync:?}");
        // It is written for any queue that there is.
        ensure_eq!(sync.first_gws, if queue_id == 999 { 77 } else { 0 });
    }
    queue.destroy()?;
    let mut argument = [0_u64; 8];
    ensure_eq!(runtime.call(command::CRIU_OP, &mut argument), Err(Errno::ACCES));
    for refused in [command::DBG_TRAP, command::DBG_REGISTER_DEPRECATED, command::DBG_WAVE_CONTROL_DEPRECATED] {
        ensure_eq!(runtime.call(refused, &mut argument), Err(Errno::PERM));
        ensure_eq!(runtime.send(refused, 8), Err(Errno::FAULT), "its argument is read first");
    }
    Ok(())
}
