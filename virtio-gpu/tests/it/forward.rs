// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Forwarded calls without a virtual machine: our client library on one end of a socket, the device
//! on the other. All that the library does of a KFD goes through messages, and the program's memory
//! through scatter lists of the guest's file.

use crate::program;

use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::{call, client, options, register, size, way, Memory, Way, MIB, PAGE, SOON};
use vkfd_client::{AllocOptions, CopyQueue, Errno, UserptrRange};
use vkfd_remote::guest::forward::{File, Process};
use vkfd_remote::guest::socket::Connection;
use vkfd_remote::protocol::blob::Run;
use vkfd_remote::protocol::capset;
use vkfd_remote::protocol::control::Command;
use vkfd_remote::protocol::forward::{BlobKind, Piece, Request, SLOTS, SLOT_BYTES};
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EventData, SetEventArgs, WaitEventsArgs, EVENT_SIGNAL, WAIT_RESULT_COMPLETE};
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::{AcquireVmArgs, SetXnackModeArgs};
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{fence, Guest, MAPPED, OK, RAM_AT};
use vkfd_virtio_gpu::socket_server;

#[test]
fn memory_goes_to_the_gpu_and_back() {
    let (client, host) = client(options()).unwrap();
    let gpu = client.gpus()[0].id;
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    let (source, target) = (Memory::new(2 * MIB), Memory::new(2 * MIB));
    source.fill(1000);
    // VRAM with and without a mapping: the window's, and the host's own.
    for cpu_map in [true, false] {
        let vram = client.alloc(&AllocOptions { cpu_map, ..AllocOptions::vram(gpu, 2 * MIB) }).unwrap();
        let from = register(&client, &[source.range(0, 512)]).unwrap();
        let to = register(&client, &[target.range(0, 512)]).unwrap();
        assert_eq!(source.wrong(1000), None, "contents stay when the memory becomes a blob");
        queue.copy_now(vram.gpu_va(), from.gpu_va(), 2 * MIB, SOON).unwrap();
        if cpu_map {
            let mut word = [0; 8];
            vram.read(MIB, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), 1000 + MIB / 8);
        }
        queue.copy_now(to.gpu_va(), vram.gpu_va(), 2 * MIB, SOON).unwrap();
        assert_eq!(target.wrong(1000), None);
        target.fill(7);
    }
    // What the processor writes now, the GPU reads.
    source.fill(5);
    let from = register(&client, &[source.range(0, 512)]).unwrap();
    let to = register(&client, &[target.range(0, 512)]).unwrap();
    queue.copy_now(to.gpu_va(), from.gpu_va(), 2 * MIB, SOON).unwrap();
    assert_eq!(target.wrong(5), None);
    drop((from, to, queue, client));
    host.finish();
}

#[test]
fn batches_of_a_program_and_ranges_that_overlap_keep_their_order() {
    let (client, host) = client(options()).unwrap();
    let gpu = client.gpus()[0].id;
    let mut queue = CopyQueue::new(&client, gpu).unwrap();
    let memory = Memory::new(64 * PAGE);
    memory.fill(0);
    // A part first, so that later ranges are in two blobs and in none.
    let part = register(&client, &[memory.range(10, 7)]).unwrap();
    let order: Vec<u64> = (0..32).map(|n| (n * 37) % 64).collect();
    let ranges: Vec<_> = order.iter().map(|page| memory.range(*page, 1)).collect();
    let batch = register(&client, &ranges).unwrap();
    let vram = client.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(gpu, 32 * PAGE) }).unwrap();
    queue.copy_now(vram.gpu_va(), batch.gpu_va(), 32 * PAGE, SOON).unwrap();
    for (place, page) in (0..).zip(&order) {
        let mut word = [0; 8];
        vram.read(place * PAGE, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), page * PAGE / 8, "place {place}");
    }
    let whole = register(&client, &[memory.range(0, 64)]).unwrap();
    queue.copy_now(vram.gpu_va(), whole.gpu_va().offset(8 * PAGE), 32 * PAGE, SOON).unwrap();
    let mut word = [0; 8];
    vram.read(0, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 8 * PAGE / 8);
    drop((part, batch, whole, vram, queue, client));
    host.finish();
}

#[test]
fn memory_that_cannot_be_registered_is_refused_and_left_alone() {
    let (client, host) = client(options()).unwrap();
    let memory = Memory::new(16 * PAGE);
    memory.fill(3);
    let refused = |ranges: &[UserptrRange]| register(&client, ranges).unwrap_err().errno();
    // SAFETY: the mapping is the test's own.
    unsafe { libc::munmap(memory.0.as_ptr().byte_add(size(8 * PAGE)).cast(), size(PAGE)) };
    assert_eq!(refused(&[memory.range(0, 16)]), Some(Errno(libc::EFAULT)), "a hole");
    // SAFETY: as above.
    unsafe { libc::mprotect(memory.0.as_ptr().cast(), size(PAGE), libc::PROT_READ) };
    assert_eq!(refused(&[memory.range(0, 4)]), Some(Errno(libc::EFAULT)), "memory that is only read");
    let shared = {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), size(PAGE), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        Memory(NonNull::new(at.cast()).unwrap(), PAGE)
    };
    assert_eq!(refused(&[shared.range(0, 1)]), Some(Errno(libc::EOPNOTSUPP)), "memory that others share");
    let host_memory = client.alloc(&AllocOptions::gtt(PAGE)).unwrap();
    let at = host_memory.cpu_ptr().unwrap().as_ptr().expose_provenance() as u64;
    assert_eq!(refused(&[UserptrRange { start: at, size: PAGE }]), Some(Errno(libc::EFAULT)), "the host's memory");
    assert_eq!(memory.word(size_of::<u64>() as u64), 3 + 8);
    drop((host_memory, shared, client));
    host.finish();
}

#[test]
fn a_wait_holds_up_nothing_and_ends_with_its_event() {
    let (way, host) = way(options());
    let mut event = CreateEventArgs { event_type: EVENT_SIGNAL, auto_reset: 1, ..CreateEventArgs::zeroed() };
    call(&way, c::CREATE_EVENT, &mut event).unwrap();
    let wait = |timeout: u32| {
        let mut events = [EventData { event_id: event.event_id, ..EventData::zeroed() }];
        let mut args = WaitEventsArgs {
            events_ptr: events.as_mut_ptr().expose_provenance() as u64,
            num_events: 1,
            wait_for_all: 1,
            timeout,
            wait_result: 9,
        };
        call(&way, c::WAIT_EVENTS, &mut args).map(|()| args.wait_result)
    };
    assert_ne!(wait(0).unwrap(), WAIT_RESULT_COMPLETE);
    assert_ne!(wait(120).unwrap(), WAIT_RESULT_COMPLETE, "longer than a slice of the host's");
    std::thread::scope(|scope| {
        // More than there are rings for waits.
        let waits: Vec<_> = (0..60).map(|_| scope.spawn(|| wait(u32::MAX))).collect();
        let began = Instant::now();
        while waits.iter().any(|wait| !wait.is_finished()) && began.elapsed() < SOON {
            let mut set = SetEventArgs { event_id: event.event_id, pad: 0 };
            call(&way, c::SET_EVENT, &mut set).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Ok(WAIT_RESULT_COMPLETE));
        }
    });
    drop(way);
    host.finish();
}

#[test]
fn what_is_not_forwarded_has_its_errno() {
    for xnack in [false, true] {
        let mut options = options();
        options.machine.xnack = xnack;
        refuses_what_is_not_forwarded(options);
    }
}

fn refuses_what_is_not_forwarded(options: Options) {
    let (way, host) = way(options);
    assert_eq!(call(&way, c::SVM, &mut [0_u64; 3]), Err(libc::EPERM));
    assert_eq!(call(&way, c::EXPORT_DMABUF, &mut [0_u64; 2]), Err(libc::ENOTTY));
    assert_eq!(call(&way, c::SET_XNACK_MODE, &mut SetXnackModeArgs { xnack_enabled: 1 }), Err(libc::EPERM));
    call(&way, c::SET_XNACK_MODE, &mut SetXnackModeArgs { xnack_enabled: -1 }).unwrap();
    let mut events = WaitEventsArgs { events_ptr: 8, num_events: 1, ..WaitEventsArgs::zeroed() };
    assert_eq!(call(&way, c::WAIT_EVENTS, &mut events), Err(libc::EFAULT), "a pointer to nothing");
    let mut user = AllocMemoryOfGpuArgs {
        va_addr: 1 << 40,
        size: PAGE,
        mmap_offset: 0x1000,
        gpu_id: way.nodes[1].gpu.as_ref().unwrap().id.0,
        flags: ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE,
        ..AllocMemoryOfGpuArgs::zeroed()
    };
    assert_eq!(call(&way, c::ALLOC_MEMORY_OF_GPU, &mut user), Err(libc::EFAULT), "memory that is not there");
    let mut before = AllocMemoryOfGpuArgs { flags: ALLOC_MEM_FLAGS_GTT, ..user };
    assert_eq!(call(&way, c::ALLOC_MEMORY_OF_GPU, &mut before), Err(libc::ENODEV), "no VM yet");
    // SAFETY: a mapping of nothing is refused.
    let nothing = unsafe { way.process.mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, 1 << 41) };
    assert_eq!(nothing, Err(libc::EINVAL));
    let name = [0_u8; 64];
    let mut version = [0_u64; 8];
    (version[2], version[3]) = (64, name.as_ptr().expose_provenance() as u64);
    // SAFETY: DRM's argument, with room for a name.
    unsafe { way.process.ioctl(File::Render(0), 0xc040_6400, version.as_mut_ptr().cast()) }.unwrap();
    // SAFETY: as above; the node is none.
    let none = unsafe { way.process.ioctl(File::Render(7), 0xc040_6400, version.as_mut_ptr().cast()) };
    assert_eq!(none, Err(libc::ENODEV));
    assert_eq!(version[2], 6);
    drop(way);
    host.finish();
}

#[test]
fn a_program_that_vanishes_leaves_nothing() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let wire = ours.try_clone().unwrap();
    let host = std::thread::spawn(move || socket_server::connection(&theirs, options()));
    let process = Process::new(Arc::new(Connection::over(ours).unwrap())).unwrap();
    let way = Way { process, nodes: vec![] };
    let memory = Memory::new(MIB);
    let machine = options().machine.options();
    let gpu_id = machine.gpu_properties(0).gpu_id;
    call(&way, c::ACQUIRE_VM, &mut AcquireVmArgs { drm_fd: 0, gpu_id }).unwrap();
    for (number, flags) in (1..).zip([ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_GTT]) {
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: number << 40,
            size: MIB,
            mmap_offset: if flags == ALLOC_MEM_FLAGS_USERPTR { memory.address() } else { 0 },
            gpu_id,
            flags: flags | ALLOC_MEM_FLAGS_WRITABLE,
            ..AllocMemoryOfGpuArgs::zeroed()
        };
        call(&way, c::ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
    }
    let mut event = CreateEventArgs { event_type: EVENT_SIGNAL, ..CreateEventArgs::zeroed() };
    call(&way, c::CREATE_EVENT, &mut event).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut events = [EventData { event_id: event.event_id, ..EventData::zeroed() }];
            let mut args = WaitEventsArgs {
                events_ptr: events.as_mut_ptr().expose_provenance() as u64,
                num_events: 1,
                wait_for_all: 1,
                timeout: u32::MAX,
                wait_result: 9,
            };
            call(&way, c::WAIT_EVENTS, &mut args)
        });
        // Mostly it waits by then; if not, the call finds nobody.
        std::thread::sleep(Duration::from_millis(100));
        // As when it is killed: the connection ends, and nothing was given back. The host says
        // whether something is left.
        wire.shutdown(std::net::Shutdown::Both).unwrap();
        host.join().unwrap().unwrap();
        assert_eq!(waiting.join().unwrap(), Err(libc::EIO));
    });
}

/// A guest that writes messages by itself.
struct Hostile {
    guest: Guest,
    /// Where in the window the answers are.
    answers: u64,
    sequence: u64,
    gpu: u32,
}

impl Hostile {
    fn new() -> Self {
        let mut guest = Guest::new(Options::default());
        assert_eq!(guest.command(1, &Command::CreateContext { capset: capset::KFD }), OK);
        let (_, answers) = guest.host_blob(1, BlobKind::Responses.id(), (SLOTS * SLOT_BYTES) as u64, true);
        let gpu = options().machine.options().gpu_properties(0).gpu_id;
        let mut hostile = Self { guest, answers, sequence: 0, gpu };
        assert_eq!(hostile.ask(c::ACQUIRE_VM, &AcquireVmArgs { drm_fd: 7, gpu_id: gpu }, &[]), 0);
        hostile
    }

    /// The errno, or -1 when there is no answer.
    fn ask<T: Pod>(&mut self, command: vkfd_uapi::ioctl::Command, args: &T, pieces: &[Piece]) -> i32 {
        let arrays = vkfd_remote::protocol::forward::calls::arrays(File::Kfd, command, args.as_bytes()).unwrap();
        let contents = arrays.iter().map(|array| vec![0; array.bytes]).collect();
        let request = Request::new(File::Kfd, command, args.as_bytes().to_vec(), contents, pieces.to_vec()).unwrap();
        self.sequence += 1;
        let payload = request.encode(self.sequence, 0, 4096);
        assert_eq!(self.guest.command(1, &Command::Submit { payload: &payload }), OK);
        self.errno()
    }

    fn errno(&self) -> i32 {
        match self.guest.window.word(self.answers).load(Ordering::Acquire) == self.sequence {
            true => i32::from_le_bytes(self.guest.window.half(self.answers + 8).load(Ordering::Acquire).to_le_bytes()),
            false => -1,
        }
    }

    fn alloc(&mut self, va: u64, bytes: u64, flags: u32, pieces: &[Piece]) -> i32 {
        let args = AllocMemoryOfGpuArgs {
            va_addr: va,
            size: bytes,
            gpu_id: self.gpu,
            flags: flags | ALLOC_MEM_FLAGS_WRITABLE,
            ..AllocMemoryOfGpuArgs::zeroed()
        };
        self.ask(c::ALLOC_MEMORY_OF_GPU, &args, pieces)
    }

    fn finish(mut self) {
        assert_eq!(self.guest.command(1, &Command::DestroyContext), OK);
        self.guest.device.reset();
        let began = Instant::now();
        while self.guest.device.left() != 0 && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.guest.device.left(), 0);
    }
}

#[test]
fn pieces_are_of_the_context_or_refused() {
    let mut hostile = Hostile::new();
    let run = |page: u64, pages: u64| Run { address: RAM_AT + page * PAGE, bytes: pages * PAGE };
    let ours = hostile.guest.guest_blob(1, vec![run(0, 2), run(8, 2)]).unwrap();
    assert_eq!(hostile.guest.command(2, &Command::CreateContext { capset: capset::KFD }), OK);
    let theirs = hostile.guest.guest_blob(2, vec![run(16, 4)]).unwrap();
    let piece = |resource, offset, bytes| Piece { resource, offset, bytes };
    let user = ALLOC_MEM_FLAGS_USERPTR;
    for (number, pieces) in [
        vec![piece(theirs, 0, PAGE)],
        vec![piece(77, 0, PAGE)],
        vec![piece(ours, 4 * PAGE, PAGE)],
        vec![piece(ours, u64::MAX - 4095, PAGE)],
        vec![piece(ours, 1, PAGE)],
        vec![piece(ours, 0, 0)],
        vec![piece(ours, 0, 2 * PAGE)],
        vec![piece(ours, 0, PAGE / 2), piece(ours, 0, PAGE / 2)],
        // The response memory is nobody's to register.
        vec![piece(1, 0, PAGE)],
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(hostile.alloc(1 << 40, PAGE, user, pieces), libc::EINVAL, "{number}");
    }
    assert_eq!(hostile.alloc(1 << 40, PAGE, user, &[]), libc::EFAULT, "an address of the host's process");
    assert_eq!(hostile.ask(c::GET_VERSION, &[0_u32; 2], &[piece(ours, 0, PAGE)]), libc::EINVAL);
    // In another order than they are in the blob, and over the border of two runs.
    let pieces = [piece(ours, 3 * PAGE, PAGE), piece(ours, PAGE, 2 * PAGE)];
    assert_eq!(hostile.alloc(1 << 40, 3 * PAGE, user, &pieces), 0);
    // The blob goes, and the registration with it: the address is free again.
    hostile.guest.unref(ours);
    assert_eq!(hostile.alloc(1 << 40, PAGE, ALLOC_MEM_FLAGS_GTT, &[]), 0);
    hostile.finish();
}

#[test]
fn memory_of_the_window_goes_when_it_is_unmapped() {
    let mut hostile = Hostile::new();
    let (resource, offset) = hostile.guest.host_blob(1, BlobKind::Memory.id(), 4 * PAGE, true);
    let piece = [Piece { resource, offset: 0, bytes: 4 * PAGE }];
    assert_eq!(hostile.alloc(1 << 40, 4 * PAGE, ALLOC_MEM_FLAGS_GTT, &piece), 0);
    hostile.guest.window.word(offset).store(9, Ordering::Release);
    assert_eq!(hostile.guest.command(1, &Command::Unmap { resource }), OK);
    assert_eq!(hostile.alloc(1 << 41, 4 * PAGE, ALLOC_MEM_FLAGS_GTT, &piece), libc::EINVAL, "it is not there");
    assert_eq!(hostile.guest.command(1, &Command::Map { resource, offset }), MAPPED);
    assert_eq!(hostile.guest.window.word(offset).load(Ordering::Acquire), 0, "and comes back empty");
    assert_eq!(hostile.alloc(1 << 40, 4 * PAGE, ALLOC_MEM_FLAGS_GTT, &piece), 0, "the address was free");
    hostile.finish();
}

#[test]
fn answers_stay_in_the_response_memory() {
    let mut hostile = Hostile::new();
    let end = (SLOTS * SLOT_BYTES) as u64;
    let (_, beyond) = hostile.guest.host_blob(1, BlobKind::Memory.id(), PAGE, true);
    assert_eq!(beyond, hostile.answers + end, "the next thing in the window");
    let request = Request::new(File::Kfd, c::GET_VERSION, vec![0; 8], vec![], vec![]).unwrap();
    let last = u32::try_from(end).unwrap();
    for (at, room) in [(last, 64), (last - 8, 64), (last - 16, 4096), (u32::MAX - 7, 64), (3, 64), (0, 0), (0, 8)] {
        let payload = request.encode(u64::MAX, at, room);
        assert_eq!(hostile.guest.command(1, &Command::Submit { payload: &payload }), OK);
        assert_eq!(hostile.guest.window.word(beyond).load(Ordering::Acquire), 0, "{at} {room}");
        assert_ne!(hostile.guest.window.word(hostile.answers).load(Ordering::Acquire), u64::MAX, "{at} {room}");
    }
    // Room for a refusal alone.
    let payload = request.encode(5, last - 16, 16);
    assert_eq!(hostile.guest.command(1, &Command::Submit { payload: &payload }), OK);
    let at = hostile.answers + end - 16;
    assert_eq!(hostile.guest.window.word(at).load(Ordering::Acquire), 5);
    assert_eq!(hostile.guest.window.half(at + 8).load(Ordering::Acquire), libc::ENOMEM.unsigned_abs());
    hostile.finish();
}

#[test]
fn a_context_that_ends_ends_its_waits_and_others_go_on() {
    let mut hostile = Hostile::new();
    let args = CreateEventArgs { event_type: EVENT_SIGNAL, auto_reset: 1, ..CreateEventArgs::zeroed() };
    assert_eq!(hostile.ask(c::CREATE_EVENT, &args, &[]), 0);
    // After the answer's head, where the argument has it.
    let event_id = hostile.guest.window.half(hostile.answers + 16 + 24).load(Ordering::Acquire);
    let event = EventData { event_id, ..EventData::zeroed() };
    let args = WaitEventsArgs { events_ptr: 8, num_events: 1, timeout: u32::MAX, ..WaitEventsArgs::zeroed() };
    let contents = vec![event.as_bytes().to_vec()];
    let request = Request::new(File::Kfd, c::WAIT_EVENTS, args.as_bytes().to_vec(), contents, vec![]).unwrap();
    let waits: Vec<_> = (0..4_u8)
        .map(|ring| {
            let payload = request.encode(100, u32::from(ring) * 4096 + 8192, 4096);
            hostile.guest.send(&fence(1, ring, 1), &Command::Submit { payload: &payload })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(120));
    assert!(waits.iter().all(|wait| wait.try_recv().is_err()), "nothing has happened yet");
    assert_eq!(hostile.ask(c::GET_VERSION, &[0_u32; 2], &[]), 0, "calls go on meanwhile");
    assert_eq!(hostile.guest.command(1, &Command::DestroyContext), OK);
    for wait in waits {
        wait.recv_timeout(SOON).unwrap();
    }
    assert_eq!(hostile.guest.command(1, &Command::CreateContext { capset: capset::KFD }), OK);
    hostile.finish();
}
