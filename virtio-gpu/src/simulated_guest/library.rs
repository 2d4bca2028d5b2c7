// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A library in a guest: what AMD's does of memory and queues, a request at a time.

use std::sync::atomic::Ordering;

use vkfd_remote::protocol::capset;
use vkfd_remote::protocol::control::Command;
use vkfd_remote::protocol::hsakmt::memory::{flags, Layout, Memory};
use vkfd_remote::protocol::hsakmt::queue::{answer, Create, Queue};
use vkfd_remote::protocol::hsakmt::{shared, Request};

use super::{Guest, OK};

/// A library in a guest.
pub struct Library {
    /// Its context.
    pub context: u32,
    /// In which form it asks for memory.
    pub layout: Layout,
    page: u64,
    sequence: u32,
    blob: u64,
    /// Their resource, and where they are in the window.
    doorbells: Option<(u32, u64)>,
}

impl Library {
    /// Makes its context.
    ///
    /// # Panics
    /// When the device refuses it.
    pub fn open(guest: &mut Guest, context: u32, layout: Layout) -> Self {
        assert_eq!(guest.command(context, &Command::CreateContext { capset: capset::HSAKMT }), OK);
        let (_, page) = guest.host_blob(context, shared::BLOB, shared::BYTES, true);
        Self { context, layout, page, sequence: 0, blob: 100, doorbells: None }
    }

    /// The bytes of its next request.
    pub fn submit(&mut self, request: &Request) -> Vec<u8> {
        self.sequence += 1;
        request.encode(self.sequence, 64)
    }

    /// Asks; status and body.
    ///
    /// # Panics
    /// When there is no answer at once.
    pub fn ask(&mut self, guest: &mut Guest, request: &Request) -> (i32, Vec<u8>) {
        let payload = self.submit(request);
        self.room(guest, 8192);
        assert_eq!(guest.command(self.context, &Command::Submit { payload: &payload }), OK);
        self.answer(guest)
    }

    /// Says how many bytes there are for an answer.
    pub fn room(&self, guest: &Guest, bytes: u32) {
        guest.window.half(self.page + u64::from(shared::AREA) + 64).store(bytes, Ordering::Release);
    }

    /// The answer to the last request: status and body.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn answer(&self, guest: &Guest) -> (i32, Vec<u8>) {
        assert_eq!(guest.window.half(self.page + shared::SEQUENCE).load(Ordering::Acquire), self.sequence);
        let at = self.page + u64::from(shared::AREA) + 64;
        let status = guest.window.half(at + 4).load(Ordering::Acquire);
        let body = (0..2048).flat_map(|n| guest.window.half(at + 8 + 4 * n).load(Ordering::Relaxed).to_le_bytes());
        (i32::from_le_bytes(status.to_le_bytes()), body.take(8184).collect())
    }

    /// Asks for something of memory; the status.
    pub fn memory(&mut self, guest: &mut Guest, memory: Memory) -> i32 {
        self.ask(guest, &Request::Memory(memory, self.layout)).0
    }

    /// Asks; the first word of the answer.
    ///
    /// # Panics
    /// When it is refused.
    pub fn value(&mut self, guest: &mut Guest, request: &Request) -> u64 {
        let (status, body) = self.ask(guest, request);
        assert_eq!(status, 0, "{request:?}");
        u64::from_le_bytes(body[..8].try_into().unwrap())
    }

    /// A number for a blob.
    pub fn blob(&mut self) -> u64 {
        self.blob += 1;
        self.blob
    }

    /// Allocates memory that the CPU can reach and the GPU may execute. Address, and where in the
    /// window it is, and the resource.
    ///
    /// # Panics
    /// When it is refused.
    pub fn alloc(&mut self, guest: &mut Guest, bytes: u64) -> (u64, u64, u32) {
        let blob = self.blob();
        let flags = flags::HOST_ACCESS | flags::EXECUTE;
        let alloc = Memory::Alloc { node: 1, flags, bytes, address: 0, alignment: 0, blob };
        let address = self.value(guest, &Request::Memory(alloc, self.layout));
        let (resource, offset) = guest.host_blob(self.context, blob, bytes, true);
        let map = Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] };
        assert_eq!(self.memory(guest, map), 0);
        (address, offset, resource)
    }

    /// Registers guest memory and maps it. Its address on the GPU.
    ///
    /// # Panics
    /// When it is refused.
    pub fn register(&mut self, guest: &mut Guest, resource: u32, bytes: u64) -> u64 {
        let address = self.value(guest, &Request::Memory(Memory::MapUserptr { resource }, self.layout));
        let named = if self.layout == Layout::Y2026 { resource } else { 0 };
        assert_eq!(self.memory(guest, Memory::Register { address, bytes, flags: 0, resource: named }), 0);
        let map = Memory::MapToNodes { address, bytes, resource: 0, nodes: vec![1] };
        assert_eq!(self.memory(guest, map), 0);
        address
    }

    /// One of the library's resources goes. After the doorbells have gone, the next queue has new
    /// ones.
    ///
    /// # Panics
    /// When the device refuses it.
    pub fn unref(&mut self, guest: &mut Guest, resource: u32) {
        guest.unref(resource);
        self.doorbells = self.doorbells.filter(|(doorbells, _)| *doorbells != resource);
    }

    /// A queue on the first GPU with a ring that is there.
    pub(super) fn create(&mut self, kind: u32, ring: u64, ring_bytes: u64) -> Create {
        Create { node: 1, kind, percentage: 100, ring, ring_bytes, blob: self.blob(), ..Create::default() }
    }

    /// Makes a queue, and maps the doorbells with the first. Its resource and, of the first, that
    /// of the doorbells; where its doorbell is in the window; the answer.
    pub(super) fn queue(&mut self, guest: &mut Guest, mut create: Create) -> (Vec<u32>, u64, Vec<u8>) {
        create.doorbell_blob = if self.doorbells.is_some() { 0 } else { self.blob() };
        let (status, body) = self.ask(guest, &Request::Queue(Queue::Create(create)));
        assert_eq!(status, 0, "{create:?}");
        let mut resources = Vec::new();
        let (_, page) = *self.doorbells.get_or_insert_with(|| {
            let (resource, page) = guest.host_blob(self.context, create.doorbell_blob, 8192, true);
            resources.push(resource);
            (resource, page)
        });
        resources.insert(0, guest.host_blob(self.context, create.blob, create.ring_bytes, false).0);
        (resources, page + long(&body, answer::DOORBELL_OFFSET), body)
    }
}

/// The word at `at` of an answer.
pub(super) fn long(body: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(body[at..at + 8].try_into().unwrap())
}
