// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest without a virtual machine, for tests and benchmarks: its memory is a file, and its
//! kernel and its library are in this process.
//!
//! | | what |
//! | --- | --- |
//! | [`Guest`] | a guest's kernel: memory, the window, commands to a device |
//! | [`Library`] | a library in it: a context of capset 8, its requests and answers |
//! | [`Forwarded`] | a context whose calls are forwarded: any call |
//! | [`Copies`] | a queue of copies, which the guest fills and rings itself |
//! | [`Kernels`] | a queue of AQL packets, and kernels on it |
//! | [`Mapped`] | a mapped file |
//!
//! Its users want to know at once when the device answers wrongly: what cannot fail on
//! a sound device asserts, and panics. Where a caller wants to see the answer, it is the result.

mod copies;
mod forwarded;
mod kernels;
mod library;
mod mapped;

use std::fs::File;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use vkfd_raw::memory_file;

pub use self::copies::Copies;
pub use self::forwarded::{Brought, Forwarded};
pub use self::kernels::Kernels;
pub use self::library::Library;
pub use self::mapped::Mapped;
use crate::device::ram::Part;
use crate::device::{Device, Options};
use vkfd_remote::protocol::blob::{Run, FLAG_MAPPABLE, MEM_HOST3D, MEM_HOST3D_GUEST};
use vkfd_remote::protocol::control::{Command, ErrorCode, Header, FLAG_FENCE, FLAG_RING};
pub use vkfd_remote::protocol::PAGE;

/// The guest's memory begins here.
pub const RAM_AT: u64 = 1 << 20;
/// The memory of a guest made by [`Guest::new`].
pub const RAM_BYTES: u64 = 64 << 20;
/// The kind of an answer without data.
pub const OK: u32 = 0x1100;
/// The kind of the answer to a mapped blob.
pub const MAPPED: u32 = 0x1106;

/// A guest's kernel.
pub struct Guest {
    /// Its virtio-gpu.
    pub device: Device,
    /// Its memory, from [`RAM_AT`] on.
    pub ram: Mapped,
    /// The file behind `ram`.
    pub file: File,
    /// The host-visible window.
    pub window: Mapped,
    target: u32,
    next_resource: u32,
    next_offset: u64,
}

impl Guest {
    /// A small one, with a device of its own.
    ///
    /// # Panics
    /// When there is no such device.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut options = Options { window: 256 << 20, ..options };
        options.machine.vram = 64 << 20;
        Self::with_ram(options, RAM_BYTES)
    }

    /// One with so much memory.
    ///
    /// # Panics
    /// When there is no such device, or not so much memory.
    #[must_use]
    pub fn with_ram(options: Options, bytes: u64) -> Self {
        let file = memory_file::sealed(c"vkfd-guest-ram", bytes).unwrap();
        Self::of(Device::new(options).unwrap(), &options, file, bytes)
    }

    /// Another one with the same memory, whose device is another on the same machine: with another
    /// way of registering, for instance.
    ///
    /// # Panics
    /// When there is no such device.
    #[must_use]
    pub fn beside(&self, options: Options) -> Self {
        let device = Device::on(self.device.machine().clone(), None, options).unwrap();
        Self::of(device, &options, self.file.try_clone().unwrap(), self.ram.bytes())
    }

    fn of(device: Device, options: &Options, file: File, bytes: u64) -> Self {
        let part = Part { address: RAM_AT, bytes, file: &file, offset: 0 };
        let ram = Mapped::new(&file, bytes);
        device.ram().replace(&[part], device.window().file()).unwrap();
        let window = Mapped::new(device.window().file(), device.window().bytes());
        let target = options.machine.target.version();
        Self { device, ram, file, window, target, next_resource: 1, next_offset: 0 }
    }

    /// Sends a command; the answer when it comes.
    pub fn send(&mut self, header: &Header, command: &Command<'_>) -> mpsc::Receiver<Vec<u8>> {
        self.raw(&command.encode(header))
    }

    /// Sends any bytes; the answer when it comes.
    pub fn raw(&mut self, bytes: &[u8]) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel();
        self.device.execute(bytes, Box::new(move |answer: &[u8]| drop(sender.send(answer.to_vec()))));
        receiver
    }

    /// The kind of the answer to a command, which comes at once.
    ///
    /// # Panics
    /// When it does not.
    pub fn command(&mut self, context: u32, command: &Command<'_>) -> u32 {
        let header = Header { context, ..Header::default() };
        let answer = self.send(&header, command).try_recv().expect("an answer at once");
        Header::decode(&answer).unwrap().kind
    }

    /// A resource of the context's object `id`, mapped in the window if it is `mappable`: its
    /// number, and where it is.
    ///
    /// # Panics
    /// When the device refuses it.
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
    ///
    /// # Errors
    /// The kind of the answer.
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

    /// Forgets all that it has made, as when it is switched off and on.
    pub fn restart(&mut self) {
        self.device.reset();
        (self.next_resource, self.next_offset) = (1, 0);
    }

    /// A resource goes.
    ///
    /// # Panics
    /// When the device refuses it.
    pub fn unref(&mut self, resource: u32) {
        assert_eq!(self.command(0, &Command::Unref { resource }), OK);
    }
}

/// `count` pages of RAM from page `first` on, every second one, backwards: no two are neighbours.
#[must_use]
pub fn scattered(first: u64, count: u64) -> Vec<Run> {
    let run = |n: u64| Run { address: RAM_AT + (first + 2 * (count - 1 - n)) * PAGE, bytes: PAGE };
    (0..count).map(run).collect()
}

/// Waits for the GPU; whether it has done it in time.
fn wait(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

/// A header of a fence on a ring.
#[must_use]
pub fn fence(context: u32, ring: u8, fence: u64) -> Header {
    Header { kind: 0, flags: FLAG_FENCE | FLAG_RING, fence, context, ring }
}

/// The kind of an answer that is an error.
#[must_use]
pub fn code(error: ErrorCode) -> u32 {
    error as u32
}
