// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fuzz targets' code: any bytes as messages, and as a guest's actions on a device.
//!
//! [`device`] makes plausible commands of the bytes, since random ones get no further than the
//! first check. Numbers come from small sets of existing objects, nearly existing ones, and the
//! ends of ranges. After each input nothing must be left. [`forward()`] does the same with contexts
//! whose calls are forwarded. [`hostile()`] is a guest with contexts of both kinds and queues that
//! run, which is after the memory of the host's process.

mod forward;
mod hostile;

use std::cell::RefCell;

use vkfd_raw::memory_file;

pub use self::hostile::{hostile, hostile_to};
use vkfd_remote::protocol::blob::{self, Run};
use vkfd_remote::protocol::control::{Command, Header, FLAG_FENCE, FLAG_RING};
use vkfd_remote::protocol::forward as messages;
use vkfd_remote::protocol::hsakmt::event::Event;
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::queue::{Create, Queue};
use vkfd_remote::protocol::hsakmt::{requests, shared, Request};
use vkfd_remote::protocol::PAGE;

use crate::device::ram::Part;
use crate::device::{Device, Options};

const RAM_PAGES: u64 = 256;
const WINDOW_PAGES: u64 = 1024;
/// Most commands of an input.
const STEPS: usize = 64;

/// The decoders, on any bytes.
pub fn codecs(bytes: &[u8]) {
    if let Ok(header) = Header::decode(bytes) {
        if let Ok(command) = Command::decode(&header, bytes) {
            // What is understood means the same when it is said again.
            let again = command.encode(&header);
            assert_eq!(Command::decode(&header, &again).as_ref(), Ok(&command));
        }
    }
    for (head, request) in requests(bytes).flatten() {
        if let Ok(request) = Request::decode(&head, request) {
            let again = request.encode(head.sequence, head.answer);
            let decoded = requests(&again).next().and_then(Result::ok);
            assert_eq!(decoded.and_then(|(head, bytes)| Request::decode(&head, bytes).ok()), Some(request));
        }
    }
    if let Ok(head) = messages::Head::decode(bytes) {
        if let Ok(mut request) = messages::Request::decode(head, bytes) {
            let again = request.encode(head.sequence, head.answer, head.room);
            let decoded = messages::Head::decode(&again).ok().and_then(|h| messages::Request::decode(h, &again).ok());
            let parts = |request: &messages::Request| {
                (request.argument.clone(), request.contents.clone(), request.pieces.clone())
            };
            assert_eq!(decoded.as_ref().map(parts), Some(parts(&request)));
            let answer = request.answer(0);
            assert_eq!((answer.len(), request.take_answer(&answer)), (request.answer_bytes(), Ok(0)));
        }
    }
}

struct Rig {
    device: Device,
}

thread_local! {
    static RIG: RefCell<Option<Rig>> = const { RefCell::new(None) };
}

fn rig() -> Option<Rig> {
    let mut options = Options { window: WINDOW_PAGES * PAGE, ..Options::default() };
    options.machine.vram = 16 << 20;
    let device = Device::new(options).ok()?;
    let ram = memory_file::sealed(c"vkfd-guest-ram", RAM_PAGES * PAGE).ok()?;
    let part = Part { address: 0, bytes: RAM_PAGES * PAGE, file: &ram, offset: 0 };
    device.ram().replace(&[part], device.window().file()).ok()?;
    Some(Rig { device })
}

/// A guest's row of commands. Panics when something of the guest is left afterwards.
pub fn device(bytes: &[u8]) {
    row(bytes, |input, device| input.step(device));
}

/// The same with contexts whose calls are forwarded.
pub fn forward(bytes: &[u8]) {
    row(bytes, forward::step);
}

fn row(bytes: &[u8], step: impl for<'a> Fn(&mut Input<'a>, &mut Device)) {
    RIG.with_borrow_mut(|slot| {
        let Some(rig) = slot.take().or_else(rig) else { return };
        let device = &mut slot.insert(rig).device;
        let mut input = Input(bytes);
        for _ in 0..STEPS {
            if input.0.is_empty() {
                break;
            }
            step(&mut input, device);
        }
        device.reset();
        // Waits hold their process for as long as they need to notice.
        let began = std::time::Instant::now();
        while device.left() != 0 && began.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        assert_eq!(device.left(), 0, "something of the guest is left");
    });
}

/// Bytes that become choices.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn small(&mut self, below: u8) -> u32 {
        u32::from(self.byte() % below)
    }

    fn blob(&mut self) -> u64 {
        self.small(12).into()
    }

    /// Bytes of something.
    fn size(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => PAGE + 1,
            3 => 1 << 40,
            4 => shared::BYTES,
            n => u64::from(n - 4) * PAGE,
        }
    }

    /// An address of the context, or nearly.
    fn address(&mut self) -> u64 {
        const BASE: u64 = 0x7000_0000_0000;
        match self.byte() % 8 {
            0 => 0,
            1 => u64::MAX - 4095,
            2 => std::ptr::from_ref(self).expose_provenance() as u64,
            n => BASE + u64::from(n - 3) * PAGE + u64::from(self.byte()) * PAGE,
        }
    }

    fn step(&mut self, device: &mut Device) {
        let context = self.small(4);
        let (resource, flags) = (self.small(16), if self.byte() % 4 == 0 { FLAG_FENCE | FLAG_RING } else { 0 });
        let ring = self.byte() % 66;
        let header = Header { kind: 0, flags, fence: self.byte().into(), context, ring };
        let payload;
        let command = match self.byte() % 12 {
            0 => Command::CreateContext { capset: if self.byte() % 8 == 0 { self.small(64) } else { 8 } },
            1 if self.byte() % 4 == 0 => Command::DestroyContext,
            2 => Command::Unref { resource },
            3 => {
                Command::Map { resource, offset: u64::from(self.byte()) * PAGE * 8 + u64::from(self.byte() % 32 == 0) }
            }
            4 => Command::Unmap { resource },
            5 => Command::CreateBlob {
                resource,
                memory: blob::MEM_HOST3D,
                flags: self.small(2),
                id: self.blob(),
                size: self.size(),
                runs: Vec::new(),
            },
            6 => self.guest_blob(resource),
            7 if self.byte() % 4 == 0 => {
                let length = usize::from(self.byte()).min(self.0.len());
                let (raw, rest) = self.0.split_at(length);
                payload = raw.to_vec();
                self.0 = rest;
                Command::Submit { payload: &payload }
            }
            _ => {
                let answer = self.small(4) * 1024;
                payload = self.request().encode(self.byte().into(), answer);
                Command::Submit { payload: &payload }
            }
        };
        let mut bytes = command.encode(&header);
        if self.byte() % 32 == 0 {
            bytes.truncate(usize::from(self.byte()));
        }
        device.execute(&bytes, Box::new(|answer: &[u8]| assert!(answer.len() >= 24)));
    }

    /// A blob of guest memory.
    fn guest_blob(&mut self, resource: u32) -> Command<'static> {
        let count = self.byte() % 8;
        let run = |input: &mut Self| Run {
            address: u64::from(input.byte()) * PAGE + u64::from(input.byte() % 32 == 0),
            bytes: u64::from(input.byte() % 4) * PAGE,
        };
        let runs: Vec<Run> = (0..count).map(|_| run(self)).collect();
        let size = runs.iter().map(|run| run.bytes).sum();
        Command::CreateBlob { resource, memory: blob::MEM_HOST3D_GUEST, flags: 0, id: 1, size, runs }
    }

    fn request(&mut self) -> Request {
        let layout = if self.byte() % 2 == 0 { Layout::Y2025 } else { Layout::Y2026 };
        let (address, resource) = (self.address(), self.small(16));
        let memory = match self.byte() % 24 {
            0..=3 => Memory::Alloc {
                node: self.small(4),
                flags: if self.byte() % 4 == 0 { u32::from(self.byte()) << 6 } else { 1 << 6 },
                bytes: self.size(),
                address: 0,
                alignment: if self.byte() % 8 == 0 { 1 << (self.byte() % 64) } else { 0 },
                blob: self.blob(),
            },
            4 | 5 => Memory::MapToNodes { address, bytes: self.size(), resource: 0, nodes: vec![self.small(3)] },
            6 => Memory::Free { address },
            7 => Memory::Unmap { address },
            8 | 9 => Memory::Register { address, bytes: self.size(), flags: self.byte().into(), resource },
            10 => Memory::Deregister { address, resource },
            11 | 12 => Memory::MapUserptr { resource },
            13 => Memory::Map { address, bytes: self.size(), scratch: self.byte() % 2 == 0 },
            14 => return Request::Query(Query::Caches(self.small(3), u32::MAX)),
            15 => return Request::Query(Query::Pointer(address)),
            16 => return Request::Query(Query::Node(self.small(4))),
            17 | 18 => {
                return Request::Event(Event::Create {
                    kind: self.small(8),
                    node: self.small(3),
                    manual: false,
                    signalled: self.byte() % 2 == 0,
                    blob: self.blob(),
                })
            }
            19 => {
                let events = vec![self.small(5)];
                return Request::Event(Event::Wait { events, all: false, milliseconds: self.small(4) });
            }
            20 => return Request::Event(Event::Destroy(self.small(5))),
            21 => return Request::Queue(Queue::Destroy { queue: self.small(4).into(), resource }),
            _ => {
                return Request::Queue(Queue::Create(Create {
                    node: self.small(3),
                    kind: [2, 21, 1, 9][usize::from(self.byte() % 4)],
                    percentage: 100,
                    ring: address,
                    ring_bytes: 4096,
                    write_pointer: address,
                    read_pointer: address + 0x80,
                    blob: self.blob(),
                    pointers_blob: self.blob(),
                    doorbell_blob: self.blob(),
                    ..Create::default()
                }))
            }
        };
        Request::Memory(memory, layout)
    }
}
