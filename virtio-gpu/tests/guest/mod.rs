// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest without a virtual machine: its memory is a file, its kernel and its library are here.
#![allow(dead_code, missing_docs)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{mpsc, PoisonError};
use std::time::{Duration, Instant};

use vkfd_virtio_gpu::device::ram::Part;
use vkfd_virtio_gpu::device::window::Window;
use vkfd_virtio_gpu::device::{Device, Options};
use vkfd_virtio_gpu::protocol::blob::{Run, FLAG_MAPPABLE, MEM_HOST3D, MEM_HOST3D_GUEST};
use vkfd_virtio_gpu::protocol::capset;
use vkfd_virtio_gpu::protocol::control::{Command, ErrorCode, Header, FLAG_FENCE, FLAG_RING};
use vkfd_virtio_gpu::protocol::hsakmt::memory::{flags, Layout, Memory};
use vkfd_virtio_gpu::protocol::hsakmt::queue::{answer, kind, Create, Queue};
use vkfd_virtio_gpu::protocol::hsakmt::{shared, Request};

pub const PAGE: u64 = 4096;
/// The guest's memory begins here.
pub const RAM_AT: u64 = 1 << 20;
pub const RAM_BYTES: u64 = 64 << 20;
pub const OK: u32 = 0x1100;
pub const MAPPED: u32 = 0x1106;

/// A mapped file.
pub struct Mapped {
    at: *mut libc::c_void,
    bytes: u64,
}

impl Mapped {
    pub fn new(file: &File, bytes: u64) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                usize::try_from(bytes).unwrap(),
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, bytes }
    }

    pub fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0 && at + 8 <= self.bytes);
        // SAFETY: an aligned word of the mapping, accessed atomically.
        unsafe { AtomicU64::from_ptr(self.at.byte_add(usize::try_from(at).unwrap()).cast()) }
    }

    /// madvise of the page at `at`.
    pub fn discard(&self, at: u64, advice: i32) {
        assert!(at % PAGE == 0 && at + PAGE <= self.bytes);
        // SAFETY: a page of the mapping, of which no reference is kept.
        let done = unsafe {
            let at = self.at.byte_add(usize::try_from(at).unwrap());
            libc::madvise(at, usize::try_from(PAGE).unwrap(), advice)
        };
        assert_eq!(done, 0);
    }

    pub fn half(&self, at: u64) -> &AtomicU32 {
        assert!(at % 4 == 0 && at + 4 <= self.bytes);
        // SAFETY: an aligned word of the mapping, accessed atomically.
        unsafe { AtomicU32::from_ptr(self.at.byte_add(usize::try_from(at).unwrap()).cast()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.at, usize::try_from(self.bytes).unwrap()) };
    }
}

/// A guest's kernel.
pub struct Guest {
    pub device: Device,
    pub ram: Mapped,
    /// The file behind `ram`.
    pub file: File,
    pub window: Mapped,
    next_resource: u32,
    next_offset: u64,
}

impl Guest {
    pub fn new(options: Options) -> Self {
        let mut options = Options { window: 256 << 20, ..options };
        options.machine.vram = 64 << 20;
        Self::with_ram(options, RAM_BYTES)
    }

    pub fn with_ram(options: Options, bytes: u64) -> Self {
        let device = Device::new(options).unwrap();
        let memory = Window::new(bytes).unwrap();
        let part = Part { address: RAM_AT, bytes, file: memory.file(), offset: 0 };
        let ram = Mapped::new(memory.file(), bytes);
        {
            let mut table = device.ram().write().unwrap_or_else(PoisonError::into_inner);
            *table = table.replaced(&[part], device.window().file()).unwrap();
        }
        let window = Mapped::new(device.window().file(), device.window().bytes());
        let file = memory.file().try_clone().unwrap();
        Self { device, ram, file, window, next_resource: 1, next_offset: 0 }
    }

    /// Sends a command; the answer when it comes.
    pub fn send(&mut self, header: &Header, command: &Command<'_>) -> mpsc::Receiver<Vec<u8>> {
        self.raw(&command.encode(header))
    }

    pub fn raw(&mut self, bytes: &[u8]) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel();
        self.device.execute(bytes, Box::new(move |answer: &[u8]| drop(sender.send(answer.to_vec()))));
        receiver
    }

    /// The kind of the answer to a command, which comes at once.
    pub fn command(&mut self, context: u32, command: &Command<'_>) -> u32 {
        let header = Header { context, ..Header::default() };
        let answer = self.send(&header, command).try_recv().expect("an answer at once");
        Header::decode(&answer).unwrap().kind
    }

    /// A resource of the context's object `id`, mapped in the window if it can be.
    pub fn host_blob(&mut self, context: u32, id: u64, size: u64, mappable: bool) -> (u32, u64) {
        let resource = self.next_resource;
        self.next_resource += 1;
        let flags = if mappable { FLAG_MAPPABLE } else { 0 };
        let blob = Command::CreateBlob { resource, memory: MEM_HOST3D, flags, id, size, runs: vec![] };
        assert_eq!(self.command(context, &blob), OK);
        let offset = self.next_offset;
        if mappable {
            self.next_offset += size;
            assert_eq!(self.command(context, &Command::Map { resource, offset }), MAPPED);
        }
        (resource, offset)
    }

    /// A resource of guest memory.
    pub fn guest_blob(&mut self, context: u32, runs: Vec<Run>) -> Result<u32, u32> {
        let resource = self.next_resource;
        self.next_resource += 1;
        let size = runs.iter().map(|run| run.bytes).sum();
        let blob = Command::CreateBlob { resource, memory: MEM_HOST3D_GUEST, flags: 0, id: 99, size, runs };
        match self.command(context, &blob) {
            OK => Ok(resource),
            error => Err(error),
        }
    }

    pub fn unref(&mut self, resource: u32) {
        assert_eq!(self.command(0, &Command::Unref { resource }), OK);
    }
}

/// `count` pages of RAM from page `first` on, every second one, backwards: no two are neighbours.
pub fn scattered(first: u64, count: u64) -> Vec<Run> {
    let run = |n: u64| Run { address: RAM_AT + (first + 2 * (count - 1 - n)) * PAGE, bytes: PAGE };
    (0..count).map(run).collect()
}

/// A library in a guest.
pub struct Library {
    pub context: u32,
    pub layout: Layout,
    page: u64,
    sequence: u32,
    blob: u64,
}

/// A copy queue of the guest's.
pub struct Copies {
    ring: u64,
    ring_va: u64,
    fence: u64,
    fence_va: u64,
    pointers: u64,
    doorbell: u64,
    written: u64,
    number: u32,
    pub resources: Vec<u32>,
}

impl Library {
    pub fn open(guest: &mut Guest, context: u32, layout: Layout) -> Self {
        assert_eq!(guest.command(context, &Command::CreateContext { capset: capset::HSAKMT }), OK);
        let (_, page) = guest.host_blob(context, shared::BLOB, shared::BYTES, true);
        Self { context, layout, page, sequence: 0, blob: 100 }
    }

    pub fn submit(&mut self, request: &Request) -> Vec<u8> {
        self.sequence += 1;
        request.encode(self.sequence, 64)
    }

    /// Asks; status and body.
    pub fn ask(&mut self, guest: &mut Guest, request: &Request) -> (i32, Vec<u8>) {
        let payload = self.submit(request);
        self.room(guest, 8192);
        assert_eq!(guest.command(self.context, &Command::Submit { payload: &payload }), OK);
        self.answer(guest)
    }

    pub fn room(&self, guest: &Guest, bytes: u32) {
        guest.window.half(self.page + u64::from(shared::AREA) + 64).store(bytes, Ordering::Release);
    }

    pub fn answer(&self, guest: &Guest) -> (i32, Vec<u8>) {
        assert_eq!(guest.window.half(self.page + shared::SEQUENCE).load(Ordering::Acquire), self.sequence);
        let at = self.page + u64::from(shared::AREA) + 64;
        let status = guest.window.half(at + 4).load(Ordering::Acquire);
        let body = (0..2048).flat_map(|n| guest.window.half(at + 8 + 4 * n).load(Ordering::Relaxed).to_le_bytes());
        (i32::from_le_bytes(status.to_le_bytes()), body.take(8184).collect())
    }

    pub fn memory(&mut self, guest: &mut Guest, memory: Memory) -> i32 {
        self.ask(guest, &Request::Memory(memory, self.layout)).0
    }

    pub fn value(&mut self, guest: &mut Guest, request: &Request) -> u64 {
        let (status, body) = self.ask(guest, request);
        assert_eq!(status, 0, "{request:?}");
        u64::from_le_bytes(body[..8].try_into().unwrap())
    }

    pub fn blob(&mut self) -> u64 {
        self.blob += 1;
        self.blob
    }

    /// Allocates memory that the CPU can reach, on all GPUs. Address, and where in the window it
    /// is, and the resource.
    pub fn alloc(&mut self, guest: &mut Guest, bytes: u64) -> (u64, u64, u32) {
        let blob = self.blob();
        let alloc = Memory::Alloc { node: 1, flags: flags::HOST_ACCESS, bytes, address: 0, alignment: 0, blob };
        let address = self.value(guest, &Request::Memory(alloc, self.layout));
        let (resource, offset) = guest.host_blob(self.context, blob, bytes, true);
        let map = Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] };
        assert_eq!(self.memory(guest, map), 0);
        (address, offset, resource)
    }

    /// Registers guest memory and maps it. Its address on the GPU.
    pub fn register(&mut self, guest: &mut Guest, resource: u32, bytes: u64) -> u64 {
        let address = self.value(guest, &Request::Memory(Memory::MapUserptr { resource }, self.layout));
        let named = if self.layout == Layout::Y2026 { resource } else { 0 };
        assert_eq!(self.memory(guest, Memory::Register { address, bytes, flags: 0, resource: named }), 0);
        let map = Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] };
        assert_eq!(self.memory(guest, map), 0);
        address
    }

    pub fn copies(&mut self, guest: &mut Guest) -> Copies {
        let (ring_va, ring, ring_resource) = self.alloc(guest, 1 << 16);
        let (fence_va, fence, fence_resource) = self.alloc(guest, PAGE);
        let create = Create {
            node: 1,
            kind: kind::SDMA,
            percentage: 100,
            ring: ring_va,
            ring_bytes: 1 << 16,
            blob: self.blob(),
            pointers_blob: self.blob(),
            doorbell_blob: self.blob(),
            ..Create::default()
        };
        let (status, body) = self.ask(guest, &Request::Queue(Queue::Create(create)));
        assert_eq!(status, 0);
        let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        let (doorbells, page) = guest.host_blob(self.context, create.doorbell_blob, 8192, true);
        let (pointers_resource, pointers) = guest.host_blob(self.context, create.pointers_blob, PAGE, true);
        let (queue, _) = guest.host_blob(self.context, create.blob, 1 << 16, false);
        Copies {
            ring,
            ring_va,
            fence,
            fence_va,
            pointers: pointers + long(answer::WRITE_OFFSET),
            doorbell: page + long(answer::DOORBELL_OFFSET),
            written: 0,
            number: 0,
            resources: vec![queue, doorbells, pointers_resource, ring_resource, fence_resource],
        }
    }
}

impl Copies {
    /// Copies up to 1 GiB; whether the GPU has done it in time.
    pub fn copy(&mut self, guest: &Guest, to: u64, from: u64, bytes: u64, limit: Duration) -> bool {
        /// Most bytes of a packet.
        const CHUNK: u64 = 2 << 20;
        let halves = |n: u64| [n & 0xffff_ffff, n >> 32].map(|half| u32::try_from(half).unwrap());
        self.number += 1;
        let mut packets = Vec::new();
        for at in (0..bytes).step_by(usize::try_from(CHUNK).unwrap()) {
            let [from, to] = [from + at, to + at].map(halves);
            let count = u32::try_from((bytes - at).min(CHUNK) - 1).unwrap();
            packets.extend([1, count, 0, from[0], from[1], to[0], to[1]]);
        }
        let fence = halves(self.fence_va);
        packets.extend([5, fence[0], fence[1], self.number]);
        for word in packets {
            guest.window.half(self.ring + self.written % (1 << 16)).store(word, Ordering::Relaxed);
            self.written += 4;
        }
        guest.window.word(self.pointers).store(self.written, Ordering::Release);
        guest.window.word(self.doorbell).store(self.written, Ordering::Release);
        let began = Instant::now();
        while guest.window.half(self.fence).load(Ordering::Acquire) != self.number {
            if began.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    pub fn ring_address(&self) -> u64 {
        self.ring_va
    }
}

/// A header of a fence on a ring.
pub fn fence(context: u32, ring: u8, fence: u64) -> Header {
    Header { kind: 0, flags: FLAG_FENCE | FLAG_RING, fence, context, ring }
}

pub fn code(error: ErrorCode) -> u32 {
    error as u32
}
