// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue of AQL packets, and kernels on it: machine code that the guest puts into memory and
//! dispatches itself.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use vkfd_kernels::{Image, Kernel, Step};
use vkfd_remote::protocol::blob::MEM_HOST3D;
use vkfd_remote::protocol::hsakmt::queue::{kind, Create};

use crate::drm::Gem;
use crate::library::{halves, poll, ring_doorbell, Allocation, Session, RING_BYTES};

// Offsets in the page beside the ring: the queue's pointers, a signal, arguments, a kernel's
// operands.
const READ_POINTER: u64 = 0x80;
const SIGNAL: u64 = 0x100;
const ARGUMENTS: u64 = 0x200;
const ARGUMENT_BYTES: u64 = 0x100;
const RESULT: u64 = 0x800;
const SEGMENT: u64 = 0x880;

/// A packet's first word: a barrier with the barrier bit, and fences of system scope before and
/// after.
const BARRIER_AND: u32 = 3 | 1 << 8 | 2 << 9 | 2 << 11;

/// A ring of AQL packets.
pub struct AqlQueue {
    ring: Allocation,
    control: Allocation,
    doorbell: u64,
    number: u64,
    image: Image,
    code: Allocation,
    _object: Gem,
}

impl AqlQueue {
    /// On the first GPU.
    pub fn new(session: &mut Session) -> Result<Self> {
        let node = session.gpus[0];
        let ring = session.alloc(node, RING_BYTES, true)?;
        let control = session.alloc(node, 4096, true)?;
        let file = vkfd_kernels::code(session.target)
            .with_context(|| format!("there are no kernels for target {}", session.target))?;
        let image = Image::new(file)?;
        let code = session.alloc(node, image.len(), true)?;
        code.cpu()?.write(0, &image.at(code.address));
        let blob = session.blob();
        let (write_pointer, read_pointer) = (control.address, control.address + READ_POINTER);
        let create = Create { write_pointer, read_pointer, ..session.create(node, kind::COMPUTE_AQL, &ring, blob) };
        let (_, doorbell) = session.queue(create)?;
        let object = session.node.blob(MEM_HOST3D, 0, RING_BYTES, blob).context("blob of a queue")?;
        Ok(Self { ring, control, doorbell, number: 0, image, code, _object: object })
    }

    /// Puts a packet.
    fn put(&mut self, packet: [u32; 16]) -> Result<()> {
        const PACKETS: u64 = RING_BYTES / 64;
        let ring = self.ring.cpu()?;
        let at = self.number % PACKETS * 64;
        for (word, place) in packet[1..].iter().zip(1_u64..) {
            ring.half(at + 4 * place).store(*word, Ordering::Relaxed);
        }
        ring.half(at).store(packet[0], Ordering::Release);
        self.number += 1;
        Ok(())
    }

    /// Has the packets done.
    fn finish(&self, what: &str) -> Result<()> {
        let control = self.control.cpu()?;
        control.word(0).store(self.number, Ordering::Release);
        ring_doorbell(self.doorbell, self.number - 1);
        poll(what, || control.word(SIGNAL + 8).load(Ordering::Acquire) == 0)
    }

    fn begin(&self) -> Result<()> {
        let control = self.control.cpu()?;
        // `amd_signal_t`: a user signal with the value 1.
        control.word(SIGNAL).store(1, Ordering::Relaxed);
        control.word(SIGNAL + 8).store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Puts a barrier and waits until it has decremented its signal.
    pub fn barrier(&mut self) -> Result<()> {
        self.begin()?;
        let mut packet = [0; 16];
        packet[0] = BARRIER_AND;
        packet[14..].copy_from_slice(&halves(self.control.address + SIGNAL));
        self.put(packet)?;
        self.finish("a barrier")
    }

    /// The sum of the 64-bit words at `address`, by a kernel.
    pub fn sum(&mut self, address: u64, bytes: u64) -> Result<u64> {
        let out = self.control.address + RESULT;
        self.run(&Kernel::Sum64 { src: address, count: bytes / 8, out })?;
        Ok(self.control.cpu()?.word(RESULT).load(Ordering::Acquire))
    }

    /// CRC-32 of the memory at `address`, by a kernel.
    pub fn crc(&mut self, address: u64, bytes: u64) -> Result<u32> {
        let control = self.control.cpu()?;
        control.word(SEGMENT).store(address, Ordering::Relaxed);
        control.word(SEGMENT + 8).store(bytes, Ordering::Relaxed);
        let (segments, out) = (self.control.address + SEGMENT, self.control.address + RESULT);
        self.run(&Kernel::Crc32 { segments, count: 1, out })?;
        Ok(self.control.cpu()?.half(RESULT).load(Ordering::Acquire))
    }

    fn run(&mut self, kernel: &Kernel) -> Result<()> {
        self.begin()?;
        let steps = kernel.steps();
        for (step, place) in steps.iter().zip(0_u64..) {
            self.dispatch(step, ARGUMENTS + place * ARGUMENT_BYTES, place + 1 == steps.len() as u64)?;
        }
        self.finish("a kernel")
    }

    fn dispatch(&mut self, step: &Step, arguments: u64, last: bool) -> Result<()> {
        let entry = self.image.kernel(step.name).with_context(|| format!("no kernel {}", step.name))?;
        self.control.cpu()?.write(arguments, &step.args);
        let signal = if last { self.control.address + SIGNAL } else { 0 };
        self.put(step.packet(entry, self.code.address, self.control.address + arguments, signal))
    }
}
