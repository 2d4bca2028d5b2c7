// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Several processes on one machine: their connections, without the processes. What takes real ones
//! is in `cli/tests/it/shared.rs`.

use crate::program;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::{call, options, register, size, way_over, Memory, Way, MIB, PAGE, SOON};
use vkfd_client::{AllocOptions, Buffer, Client, CopyQueue, Errno, GpuId, GpuVa};
use vkfd_raw::memory_file;
use vkfd_remote::guest::file_message::{receive, send};
use vkfd_remote::guest::forward::File as Device;
use vkfd_remote::guest::sharing::Change;
use vkfd_remote::guest::socket::{hello, HELLO_BYTES};
use vkfd_remote::protocol::forward::sharing::{IPC_EXPORT, IPC_IMPORT};
use vkfd_uapi::command as c;
use vkfd_uapi::event::{CreateEventArgs, EventData, WaitEventsArgs, EVENT_MEMORY, WAIT_RESULT_COMPLETE};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, ExportDmabufArgs, FreeMemoryOfGpuArgs, GetAvailableMemoryArgs, GetDmabufInfoArgs,
    ImportDmabufArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs, ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_PUBLIC,
    ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::pod::Pod;
use vkfd_virtio_gpu::shared_machine::Host;

fn host() -> Arc<Host> {
    Host::new(options()).unwrap()
}

/// A process of the machine.
struct Program {
    way: Arc<Way>,
    client: Client,
    gpu: GpuId,
}

fn join(host: &Arc<Host>) -> Program {
    let (ours, theirs) = UnixStream::pair().unwrap();
    host.take_in(theirs);
    let way = Arc::new(way_over(ours, options()));
    let client = Client::with_transport(way.clone()).unwrap();
    let gpu = client.gpus()[0].id;
    Program { way, client, gpu }
}

/// Waits until all programs but `left` have gone.
fn gone(host: &Host, left: usize) {
    let begun = Instant::now();
    while host.connections() > left {
        assert!(begun.elapsed() < SOON, "{} connections are left", host.connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Addresses that nothing has.
fn window(bytes: u64) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new reservation, which stays.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size(bytes), libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance() as u64
}

impl Program {
    fn call<T: Pod>(&self, command: Command, args: &mut T) -> Result<(), i32> {
        call(&self.way, command, args)
    }

    /// VRAM as a handle of KFD, with its address.
    fn vram(&self, bytes: u64) -> (u64, GpuVa) {
        let va_addr = window(bytes);
        let flags =
            ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_PUBLIC | ALLOC_MEM_FLAGS_WRITABLE | ALLOC_MEM_FLAGS_EXECUTABLE;
        let mut args =
            AllocMemoryOfGpuArgs { va_addr, size: bytes, handle: 0, mmap_offset: 0, gpu_id: self.gpu.0, flags };
        self.call(c::ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
        self.map(args.handle);
        (args.handle, GpuVa(va_addr))
    }

    fn map(&self, handle: u64) {
        let gpus = [self.gpu.0];
        let device_ids_array_ptr = gpus.as_ptr().expose_provenance() as u64;
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 };
        self.call(c::MAP_MEMORY_TO_GPU, &mut args).unwrap();
    }

    fn free(&self, handle: u64) {
        let gpus = [self.gpu.0];
        let device_ids_array_ptr = gpus.as_ptr().expose_provenance() as u64;
        let mut args = UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 };
        self.call(c::UNMAP_MEMORY_FROM_GPU, &mut args).unwrap();
        self.call(c::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle }).unwrap();
    }

    fn export(&self, handle: u64) -> File {
        let mut args = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
        self.call(c::EXPORT_DMABUF, &mut args).unwrap();
        // SAFETY: the call gave the descriptor to its caller.
        unsafe { File::from_raw_fd(i32::try_from(args.dmabuf_fd).unwrap()) }
    }

    fn import(&self, file: &File) -> Result<(u64, GpuVa), i32> {
        let dmabuf_fd = u32::try_from(file.as_raw_fd()).unwrap();
        let mut info = GetDmabufInfoArgs { dmabuf_fd, ..GetDmabufInfoArgs::zeroed() };
        self.call(c::GET_DMABUF_INFO, &mut info)?;
        assert_eq!(info.dmabuf_fd, dmabuf_fd);
        let va_addr = window(info.size);
        let mut args = ImportDmabufArgs { va_addr, handle: 0, gpu_id: self.gpu.0, dmabuf_fd };
        self.call(c::IMPORT_DMABUF, &mut args)?;
        self.map(args.handle);
        Ok((args.handle, GpuVa(va_addr)))
    }

    fn name(&self, handle: u64) -> Result<[u64; 2], i32> {
        let mut args = [handle, 0, 0, self.gpu.0.into()];
        self.raw(IPC_EXPORT, &mut args)?;
        Ok([args[1], args[2]])
    }

    /// By its name: the handle, the address, and where the processors see it.
    fn open(&self, name: [u64; 2], bytes: u64) -> Result<(u64, GpuVa, u64), i32> {
        let va = window(bytes);
        let mut args = [0, va, 0, name[0], name[1], self.gpu.0.into()];
        self.raw(IPC_IMPORT, &mut args)?;
        self.map(args[0]);
        Ok((args[0], GpuVa(va), args[2]))
    }

    fn raw<const N: usize>(&self, command: Command, args: &mut [u64; N]) -> Result<(), i32> {
        // SAFETY: the argument is as long as the command says and has no pointers.
        unsafe { self.way.process.ioctl(Device::Kfd, command.0, args.as_mut_ptr().cast()) }
    }

    /// MiB, to the nearest: page tables take some as well.
    fn available(&self) -> u64 {
        let mut args = GetAvailableMemoryArgs { available: 0, gpu_id: self.gpu.0, pad: 0 };
        self.call(c::AVAILABLE_MEMORY, &mut args).unwrap();
        (args.available + MIB / 2) / MIB
    }

    fn registered(&self, memory: &Memory) -> Buffer {
        register(&self.client, &[memory.range(0, memory.1 / PAGE)]).unwrap()
    }
}

#[test]
fn what_one_process_writes_the_other_reads_by_a_file_and_by_a_name() {
    let host = host();
    let (giving, taking) = (join(&host), join(&host));
    let mut copies =
        [CopyQueue::new(&giving.client, giving.gpu).unwrap(), CopyQueue::new(&taking.client, taking.gpu).unwrap()];
    let bytes = 2 * MIB;
    let (sent, got) = (Memory::new(bytes), Memory::new(bytes));
    let from = giving.registered(&sent);
    let to = taking.registered(&got);
    let (handle, at) = giving.vram(bytes);
    let file = giving.export(handle);
    let name = giving.name(handle).unwrap();
    assert_eq!(giving.name(handle), Ok(name), "the same object has the same name");
    assert_eq!(host.names(), 1);
    let (by_file, file_at) = taking.import(&file).unwrap();
    let (by_name, name_at, mmap_offset) = taking.open(name, bytes).unwrap();
    for (seed, there) in [(1, file_at), (2, name_at)] {
        sent.fill(seed);
        copies[0].copy_now(at, from.gpu_va(), bytes, SOON).unwrap();
        got.fill(99);
        copies[1].copy_now(to.gpu_va(), there, bytes, SOON).unwrap();
        assert_eq!(got.wrong(seed), None);
    }
    // The other way, and by the processors.
    got.fill(3);
    copies[1].copy_now(file_at, to.gpu_va(), bytes, SOON).unwrap();
    copies[0].copy_now(from.gpu_va(), at, bytes, SOON).unwrap();
    assert_eq!(sent.wrong(3), None);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of memory that both GPUs' queues have done with.
    let seen = unsafe {
        let process = &taking.way.process;
        process.mmap(std::ptr::null_mut(), size(bytes), protection, libc::MAP_SHARED, mmap_offset).unwrap()
    };
    // SAFETY: within the mapping.
    let word = unsafe { seen.cast::<u64>().add(1000).read_volatile() };
    assert_eq!(word, 3 + 1000);
    // SAFETY: the mapping is this test's.
    unsafe { libc::munmap(seen, size(bytes)) };
    // It goes with the last that has it: here the giver ends first, and with it the name.
    giving.free(handle);
    assert_eq!(host.names(), 0);
    assert_eq!(taking.open(name, bytes).unwrap_err(), libc::EINVAL, "a name of nothing");
    let [first, second] = copies;
    drop((first, from, giving));
    gone(&host, 1);
    let mut second = second;
    got.fill(5);
    second.copy_now(to.gpu_va(), name_at, bytes, SOON).unwrap();
    assert_eq!(got.wrong(3), None);
    drop((second, to));
    taking.free(by_file);
    taking.free(by_name);
    drop((taking, file));
    gone(&host, 0);
}

#[test]
fn files_that_are_no_buffers_are_refused() {
    let host = host();
    let program = join(&host);
    let other = File::open("/proc/self/status").unwrap();
    assert_eq!(program.import(&other).unwrap_err(), libc::EINVAL);
    let (handle, _) = program.vram(PAGE);
    let file = program.export(handle);
    let elsewhere = self::host();
    let stranger = join(&elsewhere);
    assert_eq!(stranger.import(&file).unwrap_err(), libc::EINVAL, "another machine's");
    let mut args = ImportDmabufArgs { va_addr: window(PAGE), handle: 0, gpu_id: program.gpu.0, dmabuf_fd: 9999 };
    assert_eq!(program.call(c::IMPORT_DMABUF, &mut args), Err(libc::EBADF));
    assert_eq!(program.name(handle + 1).unwrap_err(), libc::EINVAL);
    assert_eq!(program.open([1, 2], PAGE).unwrap_err(), libc::EINVAL);
    // And the socket for files is as it was.
    let (again, _) = program.import(&file).unwrap();
    program.free(again);
    // Registered memory is the program's own.
    let memory = Memory::new(PAGE);
    let mut own = AllocMemoryOfGpuArgs {
        va_addr: window(PAGE),
        size: PAGE,
        handle: 0,
        mmap_offset: memory.address(),
        gpu_id: program.gpu.0,
        flags: ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_WRITABLE,
    };
    program.call(c::ALLOC_MEMORY_OF_GPU, &mut own).unwrap();
    let mut export = ExportDmabufArgs { handle: own.handle, flags: 0, dmabuf_fd: 0 };
    assert_eq!(program.call(c::EXPORT_DMABUF, &mut export), Err(libc::EPERM));
    assert_eq!(program.name(own.handle).unwrap_err(), libc::EPERM);
}

#[test]
fn free_memory_is_one_number_for_all() {
    let host = host();
    let (one, other) = (join(&host), join(&host));
    let before = one.available();
    assert_eq!(other.available(), before);
    let used = || {
        let left = one.available();
        assert_eq!(other.available(), left);
        before - left
    };
    let (handle, _) = one.vram(8 * MIB);
    assert_eq!(used(), 8);
    let (_kept, _) = one.vram(4 * MIB);
    one.free(handle);
    assert_eq!(used(), 4);
    drop(one);
    gone(&host, 1);
    assert_eq!(other.available(), before, "what a process had goes with it");
}

/// Between users the driver shares them; these processes are one user's.
#[test]
fn queues_are_the_machines_and_come_back() {
    let host = host();
    let (greedy, modest) = (join(&host), join(&host));
    let memory = Memory::new(PAGE);
    memory.fill(7);
    let from = modest.registered(&memory);
    let vram = modest.client.alloc(&AllocOptions::vram(modest.gpu, PAGE)).unwrap();
    let mut own = CopyQueue::new(&modest.client, modest.gpu).unwrap();
    let mut queues = Vec::new();
    let refused = loop {
        match CopyQueue::new(&greedy.client, greedy.gpu) {
            Ok(queue) => queues.push(queue),
            Err(error) => break error,
        }
        assert!(queues.len() < 100_000, "no limit");
    };
    assert_eq!(refused.errno(), Some(Errno(libc::ENOSPC)));
    let more = CopyQueue::new(&modest.client, modest.gpu).err().unwrap();
    assert_eq!(more.errno(), Some(Errno(libc::ENOSPC)), "there are as many as the machine has");
    own.copy_now(vram.gpu_va(), from.gpu_va(), PAGE, SOON).unwrap();
    drop((queues, greedy));
    gone(&host, 1);
    let mut more = CopyQueue::new(&modest.client, modest.gpu).unwrap();
    more.copy_now(vram.gpu_va(), from.gpu_va(), PAGE, SOON).unwrap();
    drop((own, more, vram, from));
}

/// A GPU copies a process's registered memory after `change` was announced, and done or not.
/// Returns the word that the copy brought, and whether there was a fault instead.
fn copied_after(change: Option<Change>) -> (u64, bool) {
    let host = host();
    let program = join(&host);
    let memory = Memory::new(4 * PAGE);
    memory.fill(1000);
    let source = program.registered(&memory);
    let target =
        program.client.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(program.gpu, 4 * PAGE) }).unwrap();
    let mut queue = CopyQueue::new(&program.client, program.gpu).unwrap();
    queue.copy_now(target.gpu_va(), source.gpu_va(), 4 * PAGE, SOON).unwrap();
    target.write(0, &[0; 4 * 4096]).unwrap();
    let mut event = CreateEventArgs { event_type: EVENT_MEMORY, ..CreateEventArgs::zeroed() };
    program.call(c::CREATE_EVENT, &mut event).unwrap();
    let (start, end) = (memory.address(), memory.address() + 4 * PAGE);
    let machine = program.way.process.shared_machine().unwrap();
    if let Some(change) = change {
        assert!(machine.before(change, start, end), "it is registered");
        assert!(!machine.before(change, end + 64 * PAGE, end + 65 * PAGE) || change == Change::Protect(3));
    }
    let fence = queue.copy(target.gpu_va(), source.gpu_va(), 4 * PAGE).submit().unwrap();
    // Either the copy is done, or there is a fault.
    let begun = Instant::now();
    let faulted = loop {
        if fence.wait(Duration::from_millis(20)).is_ok() {
            break false;
        }
        let mut events = [EventData { event_id: event.event_id, ..EventData::zeroed() }];
        let mut wait = WaitEventsArgs {
            events_ptr: events.as_mut_ptr().expose_provenance() as u64,
            num_events: 1,
            wait_for_all: 1,
            timeout: 0,
            wait_result: 9,
        };
        program.call(c::WAIT_EVENTS, &mut wait).unwrap();
        if wait.wait_result == WAIT_RESULT_COMPLETE {
            break true;
        }
        assert!(begun.elapsed() < SOON, "neither");
    };
    let mut word = [0; 8];
    target.read(0, &mut word).unwrap();
    let seen = u64::from_le_bytes(word);
    if change == Some(Change::Discard) {
        assert_eq!(memory.word(0), 0, "the processor sees it at once, too");
    } else {
        assert_eq!(memory.word(0), 1000);
    }
    (seen, faulted)
}

#[test]
fn what_a_program_takes_away_no_gpu_reaches() {
    // The control: without a note the GPU goes on with the pages.
    assert_eq!(copied_after(None), (1000, false));
    assert_eq!(copied_after(Some(Change::Unmap)), (0, true));
    assert_eq!(copied_after(Some(Change::Protect(libc::PROT_NONE))), (0, true));
    assert_eq!(copied_after(Some(Change::Move)), (0, true));
    // Emptied memory is still memory.
    assert_eq!(copied_after(Some(Change::Discard)), (0, false));
    assert_eq!(copied_after(Some(Change::Protect(libc::PROT_READ | libc::PROT_WRITE))), (1000, false));
}

#[test]
fn memory_that_is_mapped_anew_is_registered_anew() {
    let host = host();
    let program = join(&host);
    let memory = Memory::new(64 * PAGE);
    memory.fill(1);
    let target =
        program.client.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(program.gpu, 64 * PAGE) }).unwrap();
    let mut queue = CopyQueue::new(&program.client, program.gpu).unwrap();
    let machine = program.way.process.shared_machine().unwrap().clone();
    for round in 0..20 {
        memory.fill(round);
        let source = program.registered(&memory);
        queue.copy_now(target.gpu_va(), source.gpu_va(), 64 * PAGE, SOON).unwrap();
        let mut word = [0; 8];
        target.read(63 * PAGE, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), round + 63 * PAGE / 8);
        drop(source);
        // As the hooks do it.
        machine.before(Change::Unmap, memory.address(), memory.address() + 64 * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the test's own memory, of which there are no references.
        let at = unsafe {
            let at = memory.0.as_ptr().cast();
            libc::mmap(at, size(64 * PAGE), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
    }
}

/// Pages where the calling thread is on its stack, and below.
#[test]
fn a_threads_own_stack_is_registered_under_it() {
    let host = host();
    let program = join(&host);
    let words = [7_u64; 512];
    let here = words.as_ptr().expose_provenance() as u64 / PAGE * PAGE;
    let range = vkfd_client::UserptrRange { start: here - 16 * PAGE, size: 17 * PAGE };
    let target =
        program.client.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(program.gpu, 17 * PAGE) }).unwrap();
    let mut queue = CopyQueue::new(&program.client, program.gpu).unwrap();
    let source = register(&program.client, &[range]).unwrap();
    queue.copy_now(target.gpu_va(), source.gpu_va(), 17 * PAGE, SOON).unwrap();
    let mut word = [0; 8];
    target.read(16 * PAGE + words.as_ptr().expose_provenance() as u64 % PAGE, &mut word).unwrap();
    assert_eq!((u64::from_le_bytes(word), words), (7, [7; 512]));
}

#[test]
fn a_machine_that_ends_is_no_device_and_memory_stays() {
    let host = host();
    let program = join(&host);
    let memory = Memory::new(4 * PAGE);
    memory.fill(4);
    let source = program.registered(&memory);
    host.end();
    assert_eq!(host.connections(), 0);
    let mut args = GetAvailableMemoryArgs { available: 0, gpu_id: program.gpu.0, pad: 0 };
    assert_eq!(program.call(c::AVAILABLE_MEMORY, &mut args), Err(libc::ENODEV));
    assert_eq!(program.name(1).unwrap_err(), libc::ENODEV);
    let refused = program.client.alloc(&AllocOptions::vram(program.gpu, PAGE)).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno(libc::ENODEV)));
    assert_eq!(memory.wrong(4), None);
    // What empties memory still does.
    let machine = program.way.process.shared_machine().unwrap();
    machine.before(Change::Discard, memory.address(), memory.address() + PAGE);
    assert_eq!((memory.word(0), memory.word(PAGE / 8)), (0, 4 + PAGE / 8));
    drop(source);
    // And it takes nobody in any more.
    let (ours, theirs) = UnixStream::pair().unwrap();
    host.take_in(theirs);
    (&ours).write_all(&hello(PAGE)).ok();
    assert!(receive(&ours, &mut [0; HELLO_BYTES]).is_err());
}

/// The files that a host gives a program of its own making: the window, the machine's file, two
/// sockets.
fn introduced(host: &Arc<Host>) -> (UnixStream, Vec<File>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    host.take_in(theirs);
    let memory = memory_file::sealed(c"program", MIB).unwrap();
    send(&ours, &hello(MIB), memory.as_fd()).unwrap();
    let files = (0..4).map(|_| receive(&ours, &mut [0; HELLO_BYTES]).unwrap()).collect();
    (ours, files)
}

/// A program that cuts a file short which others map could end them all.
#[test]
fn no_file_that_a_program_gets_can_be_cut_short() {
    let host = host();
    let victim = join(&host);
    let memory = Memory::new(PAGE);
    memory.fill(9);
    let source = victim.registered(&memory);
    let (stream, files) = introduced(&host);
    for file in &files[..2] {
        let bytes = file.metadata().unwrap().len();
        for cut in [0, PAGE, bytes - PAGE, bytes + PAGE] {
            assert_eq!(file.set_len(cut).unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes:#x} to {cut:#x}");
        }
        assert!(memory_file::stays_long(file));
    }
    // A file that stands for a buffer has the buffer's size for everybody.
    let (vram, va) = victim.vram(PAGE);
    let buffer = victim.export(vram);
    assert_eq!(buffer.set_len(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(buffer.metadata().unwrap().len(), PAGE);
    drop((files, stream));
    // The machine is as it was.
    let mut queue = CopyQueue::new(&victim.client, victim.gpu).unwrap();
    queue.copy_now(va, source.gpu_va(), PAGE, SOON).unwrap();
    gone(&host, 1);
}

#[test]
fn memory_that_could_be_cut_short_is_not_taken() {
    let host = host();
    let (ours, theirs) = UnixStream::pair().unwrap();
    host.take_in(theirs);
    // SAFETY: a C string; the descriptor is new.
    let memory = unsafe { File::from_raw_fd(libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC)) };
    memory.set_len(MIB).unwrap();
    send(&ours, &hello(MIB), memory.as_fd()).unwrap();
    assert!(receive(&ours, &mut [0; HELLO_BYTES]).is_err());
    gone(&host, 0);
}
