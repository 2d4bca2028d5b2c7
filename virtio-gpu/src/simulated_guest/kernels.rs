// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue of AQL packets, and kernels on it: machine code that the guest puts into memory and
//! dispatches itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vkfd_kernels::{Image, Kernel, Step};
use vkfd_remote::protocol::hsakmt::queue::{kind, Create};
use vkfd_remote::protocol::PAGE;

use super::{wait, Guest, Library};

/// Bytes of the ring, and of a packet.
const RING_BYTES: u64 = 1 << 16;
const PACKET_BYTES: u64 = 64;

// The layout of the page beside the ring: the queue's pointers, a signal, arguments, a result.
const READ_POINTER: u64 = 0x80;
const SIGNAL: u64 = 0x100;
const ARGUMENTS: u64 = 0x200;
const ARGUMENT_BYTES: u64 = 0x100;
const RESULT: u64 = 0x800;

/// A queue of kernels of the guest.
pub struct Kernels {
    ring: u64,
    control: u64,
    control_va: u64,
    doorbell: u64,
    written: u64,
    image: Image,
    code_va: u64,
}

impl Library {
    /// A queue of kernels, and their code, on the first GPU. `None`: there is no code for it.
    ///
    /// # Panics
    /// When the queue is refused.
    pub fn kernels(&mut self, guest: &mut Guest) -> Option<Kernels> {
        let image = Image::new(vkfd_kernels::code(guest.target)?).expect("a code object");
        let (code_va, code, _) = self.alloc(guest, image.len());
        guest.window.write(code, &image.at(code_va));
        let (ring_va, ring, _) = self.alloc(guest, RING_BYTES);
        let (control_va, control, _) = self.alloc(guest, PAGE);
        let (write_pointer, read_pointer) = (control_va, control_va + READ_POINTER);
        let create = Create { write_pointer, read_pointer, ..self.create(kind::COMPUTE_AQL, ring_va, RING_BYTES) };
        let (_, doorbell, _) = self.queue(guest, create);
        Some(Kernels { ring, control, control_va, doorbell, written: 0, image, code_va })
    }
}

impl Kernels {
    /// The sum of the 64-bit words at `address`, wrapping; `None` when the GPU has not done it in
    /// time.
    pub fn sum(&mut self, guest: &Guest, address: u64, bytes: u64, limit: Duration) -> Option<u64> {
        let out = self.control_va + RESULT;
        let done = self.run(guest, &Kernel::Sum64 { src: address, count: bytes / 8, out }, limit);
        done.then(|| guest.window.word(self.control + RESULT).load(Ordering::Acquire))
    }

    /// Dispatches what a kernel is made of, with any addresses; whether it is done in time.
    pub fn run(&mut self, guest: &Guest, kernel: &Kernel, limit: Duration) -> bool {
        let signal = guest.window.word(self.control + SIGNAL + 8);
        // `amd_signal_t`: a user signal with the value 1.
        guest.window.word(self.control + SIGNAL).store(1, Ordering::Relaxed);
        signal.store(1, Ordering::Relaxed);
        let steps = kernel.steps();
        for (step, place) in steps.iter().zip(0_u64..) {
            self.dispatch(guest, step, ARGUMENTS + place * ARGUMENT_BYTES, place + 1 == steps.len() as u64);
        }
        guest.window.word(self.control).store(self.written, Ordering::Release);
        guest.window.word(self.doorbell).store(self.written - 1, Ordering::Release);
        wait(limit, || signal.load(Ordering::Acquire) == 0)
    }

    /// Puts a packet; the last counts the signal down.
    fn dispatch(&mut self, guest: &Guest, step: &Step, arguments: u64, last: bool) {
        let entry = self.image.kernel(step.name).expect("a kernel of the code object");
        guest.window.write(self.control + arguments, &step.args);
        let signal = if last { self.control_va + SIGNAL } else { 0 };
        let packet = step.packet(entry, self.code_va, self.control_va + arguments, signal);
        let at = self.ring + self.written * PACKET_BYTES % RING_BYTES;
        for (word, place) in packet.iter().zip(0_u64..).skip(1) {
            guest.window.half(at + 4 * place).store(*word, Ordering::Relaxed);
        }
        guest.window.half(at).store(packet[0], Ordering::Release);
        self.written += 1;
    }
}
