// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How the driver learns that a program's queue has halted.
//!
//! Errors of packets come from the command processor, with the number of the exception
//! (`enum kfd_dbg_trap_exception_code` of kfd_ioctl.h). Errors of waves come from the handler of
//! traps, which sends a message with a mask of exceptions. Both have the number of the queue's
//! doorbell among its process's. The layouts are those that kfd_int_process_v9.c reads.

use crate::interrupts::{client, source};
use crate::queues::hqd::HqdId;
use crate::registers::Dword;
use vkfd_gpu::Exception;

/// Where the exception begins, in both.
const SHIFT: u32 = 10;
/// Doorbells of a process, of 64 bits each.
const DOORBELLS: u32 = 1024;
/// A message that an instruction has sent, from the handler of traps.
const INSTRUCTION: u32 = 1 << 26;
const PRIVILEGED: u32 = 1 << 13;

/// KFD's first hardware queue. The driver takes other numbers for its own rings, and fails their
/// jobs.
pub(crate) const RING: u8 = HqdId { me: 1, pipe: 0, queue: 2 }.ring();

/// The number of an exception, and whether it is a wave's.
const fn number(exception: Exception) -> (u32, bool) {
    match exception {
        Exception::Trap => (2, true),
        Exception::Instruction => (4, true),
        Exception::Aperture => (6, true),
        Exception::Dimension => (16, false),
        Exception::GroupMemory => (17, false),
        Exception::Code => (18, false),
        Exception::Packet => (20, false),
        Exception::GroupSize => (21, false),
        Exception::Registers => (22, false),
    }
}

/// Client, source and words of the interrupt for an exception of the queue with a doorbell.
pub(crate) const fn told(exception: Exception, doorbell: Dword) -> (u8, u8, [u32; 4]) {
    let doorbell = doorbell / 2 % DOORBELLS;
    match number(exception) {
        (number, false) => (client::GRBM_CP, source::BAD_OPCODE, [number << SHIFT | doorbell, 0, 0, 0]),
        (number, true) => {
            let message = 1 << (number - 1) << SHIFT | doorbell;
            // Its 24 bits are in three places.
            let first = message & 0xfff | (message & 0xf000) << 16 | INSTRUCTION | PRIVILEGED;
            (client::SE0SH, source::WAVE, [first, message >> 16, 0, 0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_reads_queue_and_exception() {
        // As kfd_int_process_v9.c takes them apart.
        let (client, source, [first, ..]) = told(Exception::GroupMemory, 0x800 + 2 * 5);
        assert_eq!((client, source, first & 0x3ff, first >> 10 & 0xffff), (0x14, 183, 5, 17));
        // A packet that is none is EC_QUEUE_PACKET_UNSUPPORTED. Number 19 is reserved, and ROCR
        // ends its process at a number that it does not know.
        let [packet, ..] = told(Exception::Packet, 0).2;
        assert_eq!(packet >> 10, 20);
        for (exception, mask) in [(Exception::Trap, 2), (Exception::Instruction, 8), (Exception::Aperture, 0x20)] {
            let (client, source, [first, second, ..]) = told(exception, 2 * 1023);
            let message = first & 0xfff | first >> 16 & 0xf000 | second << 16 & 0xff_0000;
            assert_eq!((client, source, message & 0x3ff, (message & 0x7_fc00) >> 10), (0x0a, 239, 1023, mask));
            assert_eq!((first >> 26 & 3, first >> 13 & 1), (1, 1), "an instruction's, privileged");
        }
    }
}
