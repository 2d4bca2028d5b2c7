// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Forwarded calls without a virtual machine: our client library on one end of a socket, the device on the other. All that the library does of a
//! KFD goes through messages, and the program's memory through scatter lists of the guest's file.

use std::ffi::{c_int, c_void};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vkfd_client::{
    AllocOptions, Buffer, Client, ClientError, CopyQueue, Errno, GpuId, GpuInfo, MmapFile, Node, RegisterOptions,
    Transport, UserptrRange,
};
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EventData, SetEventArgs, WaitEventsArgs, EVENT_SIGNAL, WAIT_RESULT_COMPLETE};
use vkfd_uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::SetXnackModeArgs;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::guest::forward::{File, Process};
use vkfd_virtio_gpu::guest::loopback::Connection;
use vkfd_virtio_gpu::loopback;

const PAGE: u64 = 4096;
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

fn options() -> Options {
    let mut options = Options { window: 256 << 20, ..Options::default() };
    options.machine.vram = 64 << 20;
    options
}

/// The client library's way to a forwarded KFD.
struct Way {
    process: Process,
    nodes: Vec<Node>,
}

impl Transport for Way {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.process.ioctl(File::Kfd, command, arg) }.map_err(Errno)
    }

    unsafe fn mmap(
        &self,
        _what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.process.mmap(addr, len, prot, flags, offset) }.map_err(Errno)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        Ok(self.nodes.clone())
    }

    fn render_fd(&self, _gpu: GpuId) -> Result<u32, ClientError> {
        Ok(0)
    }
}

/// A device at the other end of a socket.
struct Host(Option<JoinHandle<std::io::Result<()>>>);

impl Host {
    /// Waits for its end: all that programs had must be gone by then.
    fn finish(mut self) {
        self.0.take().unwrap().join().unwrap().unwrap();
    }
}

fn way(options: Options) -> (Way, Host) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = std::thread::spawn(move || loopback::connection(&theirs, options));
    let process = Process::new(Arc::new(Connection::over(ours).unwrap())).unwrap();
    let machine: vkfd_host::Description = process.machine().parse().unwrap();
    assert_eq!(machine, options.machine);
    let gpu = |number: u32| {
        let properties = machine.options().gpu_properties(number);
        let gfx_target_version = properties.gfx_target_version;
        let info = GpuInfo {
            id: GpuId(properties.gpu_id),
            node: number + 1,
            vram_bytes: properties.vram_bytes,
            gfx_target_version,
            xcc: 1,
            ..GpuInfo::default()
        };
        Node { number: number + 1, gpu: Some(info), ..Node::default() }
    };
    let first = Node { number: 0, cpu_cores: 1, memory_bytes: 1 << 30, gpu: None };
    let nodes = std::iter::once(first).chain((0..machine.gpus).map(gpu)).collect();
    (Way { process, nodes }, Host(Some(host)))
}

fn client(options: Options) -> (Client, Host) {
    let (way, host) = way(options);
    (Client::with_transport(Arc::new(way)).unwrap(), host)
}

/// Anonymous memory of the test's.
struct Memory(NonNull<u64>, u64);

impl Memory {
    fn new(bytes: u64) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), size(bytes), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(NonNull::new(at.cast()).unwrap(), bytes)
    }

    fn fill(&self, seed: u64) {
        for word in 0..self.1 / 8 {
            // SAFETY: within the mapping, of which no reference exists.
            unsafe { self.0.as_ptr().add(size(word)).write_volatile(seed + word) };
        }
    }

    fn word(&self, word: u64) -> u64 {
        assert!(word < self.1 / 8);
        // SAFETY: as above.
        unsafe { self.0.as_ptr().add(size(word)).read_volatile() }
    }

    /// The first word that is not as `fill` leaves it.
    fn wrong(&self, seed: u64) -> Option<u64> {
        (0..self.1 / 8).find(|word| self.word(*word) != seed + word)
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn range(&self, first_page: u64, pages: u64) -> UserptrRange {
        UserptrRange { start: self.address() + first_page * PAGE, size: pages * PAGE }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size(self.1)) };
    }
}

fn register(client: &Client, ranges: &[UserptrRange]) -> Result<Buffer, ClientError> {
    // SAFETY: the memory outlives the buffer, and nothing has a reference to it.
    unsafe { client.register_ranges(ranges, &RegisterOptions::default()) }
}

#[test]
fn memory_goes_to_the_gpu_and_back() {
    let (client, host) = client(options());
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
    let (client, host) = client(options());
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
    let (client, host) = client(options());
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

fn call<T: Pod>(way: &Way, command: vkfd_uapi::ioctl::Command, args: &mut T) -> Result<(), i32> {
    // SAFETY: the argument is the command's own, with pointers to live memory of the sizes in it.
    unsafe { way.process.ioctl(File::Kfd, command.0, std::ptr::from_mut(args).cast()) }
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
    let (way, host) = way(options());
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
    let host = std::thread::spawn(move || loopback::connection(&theirs, options()));
    let process = Process::new(Arc::new(Connection::over(ours).unwrap())).unwrap();
    let way = Way { process, nodes: vec![] };
    let memory = Memory::new(MIB);
    let machine = options().machine.options();
    let gpu_id = machine.gpu_properties(0).gpu_id;
    call(&way, c::ACQUIRE_VM, &mut vkfd_uapi::process::AcquireVmArgs { drm_fd: 0, gpu_id }).unwrap();
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
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut event = CreateEventArgs { event_type: EVENT_SIGNAL, ..CreateEventArgs::zeroed() };
            call(&way, c::CREATE_EVENT, &mut event).unwrap();
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
        std::thread::sleep(Duration::from_millis(100));
        // As when it is killed: the connection ends, and nothing was given back. The host says whether something is left.
        wire.shutdown(std::net::Shutdown::Both).unwrap();
        host.join().unwrap().unwrap();
        assert_eq!(waiting.join().unwrap(), Err(libc::EIO));
    });
}
