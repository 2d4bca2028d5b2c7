// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The interrupt handler (IH): a ring of entries in the guest's memory, and a message when it has
//! some.
//!
//! An entry goes to the ring before its message. What does not fit waits in a backlog, as hardware
//! holds its sources back; the driver's read pointer, which comes by doorbell or register, makes
//! room. The backlog is bounded: what comes after that is dropped with a line in the log.
//!
//! Rings 1 and 2 are storage: the driver gives them memory, and hardware sends nothing there that
//! this device has.

use crate::host::Host;
use crate::registers::file::RegisterFile;
use crate::registers::system::osssys as reg;
use crate::registers::Dword;
use std::collections::VecDeque;
use vkfd_gpu::{clock, PhysAddr};

/// Bytes of an entry.
const ENTRY_BYTES: u32 = 32;
/// Entries that wait at most: 2 MiB.
const BACKLOG: usize = 65_536;

/// Bits of the ring's control.
const ENABLE: u32 = 1;
const ENABLE_INTERRUPT: u32 = 1 << 17;
/// Bits of a doorbell register.
const DOORBELL_ENABLE: u32 = 1 << 28;
const DOORBELL_OFFSET: u32 = 0x03ff_ffff;

/// Sources of interrupts, by the numbers of their clients.
pub mod client {
    /// The memory hub of the copy engines.
    pub const VMC: u8 = 0x12;
    /// The command processor.
    pub const GRBM_CP: u8 = 0x14;
    /// The memory hub of compute units.
    pub const UTCL2: u8 = 0x1b;
    /// The compute units of the first shader engine.
    pub const SE0SH: u8 = 0x0a;
    /// The copy engines.
    pub const SDMA: [u8; 5] = [8, 9, 1, 4, 5];
}

/// What has happened, by the numbers of a client.
pub mod source {
    /// A page fault, of a hub.
    pub const FAULT: u8 = 0;
    /// A fence has been written, of the command processor.
    pub const END_OF_PIPE: u8 = 181;
    /// A packet that is none, of the command processor.
    pub const BAD_OPCODE: u8 = 183;
    /// A trap packet, of a copy engine.
    pub const TRAP: u8 = 224;
    /// A message of a wave, or of the handler of its traps.
    pub const WAVE: u8 = 239;
}

/// An interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupt {
    pub client: u8,
    pub source: u8,
    /// Which ring of the client.
    pub ring: u8,
    pub vmid: u8,
    /// The VMID is one of the copy engines' hub.
    pub mmhub: bool,
    pub pasid: u16,
    pub data: [u32; 4],
}

impl Interrupt {
    fn encode(&self) -> [u8; 32] {
        let now = clock().to_le_bytes();
        let mut bytes = [0; 32];
        let mut put = |at: usize, part: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
        };
        put(0, &[self.client, self.source, self.ring, self.vmid & 0xf | u8::from(self.mmhub) << 7]);
        put(4, now.get(..6).unwrap_or_default());
        put(12, &self.pasid.to_le_bytes());
        for (index, word) in self.data.iter().enumerate() {
            put(16 + 4 * index, &word.to_le_bytes());
        }
        bytes
    }
}

/// Ring 0, and what waits for it.
#[derive(Default)]
pub struct InterruptRing {
    wptr: u32,
    backlog: VecDeque<[u8; 32]>,
    raised: u64,
    dropped: u64,
}

impl InterruptRing {
    /// Interrupts so far, and how many of them were dropped.
    pub fn counts(&self) -> (u64, u64) {
        (self.raised, self.dropped)
    }

    /// Puts an interrupt into the ring.
    pub fn raise(&mut self, file: &mut RegisterFile, host: &dyn Host, interrupt: &Interrupt) {
        if file.get(reg::IH_RB_CNTL) & ENABLE == 0 {
            return;
        }
        self.raised += 1;
        if self.backlog.len() >= BACKLOG {
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                tracing::warn!(dropped = self.dropped, "the driver takes no interrupts: some are lost");
            }
            return;
        }
        self.backlog.push_back(interrupt.encode());
        self.flush(file, host);
    }

    /// Moves what waits into the ring, as far as there is room.
    fn flush(&mut self, file: &mut RegisterFile, host: &dyn Host) {
        let control = file.get(reg::IH_RB_CNTL);
        let base = file.wide(reg::IH_RB_BASE, reg::IH_RB_BASE_HI) << 8;
        let Some(size) = 4u32.checked_shl(control >> 1 & 0x1f).filter(|size| *size >= 2 * ENTRY_BYTES) else { return };
        let mut moved = false;
        while let Some(entry) = self.backlog.front() {
            let rptr = file.get(reg::IH_RB_RPTR) & (size - 1);
            let next = (self.wptr + ENTRY_BYTES) & (size - 1);
            // One stays free: a full ring would look empty.
            if next == rptr & !(ENTRY_BYTES - 1) {
                break;
            }
            if !host.write(PhysAddr(base + u64::from(self.wptr)), entry) {
                tracing::warn!("the interrupt ring at {base:#x} is not in the guest's memory");
                self.backlog.clear();
                return;
            }
            self.backlog.pop_front();
            self.wptr = next;
            moved = true;
        }
        if moved {
            file.set(reg::IH_RB_WPTR, self.wptr);
            let report = file.wide(reg::IH_RB_WPTR_ADDR_LO, reg::IH_RB_WPTR_ADDR_HI);
            if report != 0 {
                host.write(PhysAddr(report), &self.wptr.to_le_bytes());
            }
            if control & ENABLE_INTERRUPT != 0 {
                host.interrupt();
            }
        }
    }

    /// The driver has written a register of the ring.
    pub fn written(&mut self, file: &mut RegisterFile, host: &dyn Host, at: Dword, value: u32) {
        match at {
            reg::IH_RB_WPTR => self.wptr = value & !(ENTRY_BYTES - 1),
            reg::IH_RB_RPTR => self.read_to(file, host, value),
            reg::IH_RB_CNTL if value & ENABLE == 0 => self.backlog.clear(),
            _ => {}
        }
    }

    /// The driver has read up to `rptr`.
    fn read_to(&mut self, file: &mut RegisterFile, host: &dyn Host, rptr: u32) {
        file.set(reg::IH_RB_RPTR, rptr);
        let control = file.get(reg::IH_RB_CNTL);
        if control & ENABLE == 0 {
            return;
        }
        self.flush(file, host);
        // The driver may have looked before the last entry came: its message is sent again.
        if rptr != self.wptr && control & ENABLE_INTERRUPT != 0 {
            host.interrupt();
        }
    }

    /// A doorbell was written. Whether it belongs to this ring, or to ring 1 or 2.
    pub fn doorbell(&mut self, file: &mut RegisterFile, host: &dyn Host, at: Dword, value: u32) -> bool {
        let is = |file: &RegisterFile, register: Dword| {
            let own = file.get(register);
            own & DOORBELL_ENABLE != 0 && own & DOORBELL_OFFSET == at
        };
        if is(file, reg::IH_DOORBELL_RPTR) {
            self.read_to(file, host, value);
            return true;
        }
        for (doorbell, rptr) in
            [(reg::IH_DOORBELL_RPTR_RING1, reg::IH_RB_RPTR_RING1), (reg::IH_DOORBELL_RPTR_RING2, reg::IH_RB_RPTR_RING2)]
        {
            if is(file, doorbell) {
                file.set(rptr, value);
                return true;
            }
        }
        false
    }

    /// Whether a doorbell is the one that answers retry faults.
    pub fn is_retry_doorbell(file: &RegisterFile, at: Dword) -> bool {
        let own = file.get(reg::IH_DOORBELL_RETRY_CAM);
        own & DOORBELL_ENABLE != 0 && own & DOORBELL_OFFSET == at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::Memory;

    fn ring(words: u32) -> (RegisterFile, InterruptRing, Memory) {
        let mut file = RegisterFile::default();
        file.set_wide(reg::IH_RB_BASE, reg::IH_RB_BASE_HI, 0x1000 >> 8);
        file.set(reg::IH_RB_WPTR_ADDR_LO, 0x800);
        file.set(reg::IH_RB_CNTL, ENABLE | ENABLE_INTERRUPT | words.ilog2() << 1);
        file.set(reg::IH_DOORBELL_RPTR, DOORBELL_ENABLE | 0x2f0);
        (file, InterruptRing::default(), Memory::new(0x4000))
    }

    #[test]
    fn an_entry_has_the_kernels_layout() {
        let (mut file, mut ih, memory) = ring(64);
        let fault = Interrupt {
            client: client::VMC,
            vmid: 5,
            mmhub: true,
            pasid: 0x8001,
            data: [1, 2, 3, 4],
            ring: 7,
            source: 9,
        };
        ih.raise(&mut file, &memory, &fault);
        let entry = memory.read(0x1000, 32);
        assert_eq!(entry[..4], [0x12, 9, 7, 0x85]);
        assert_eq!((&entry[12..16], &entry[16..24]), (&[1, 0x80, 0, 0][..], &[1, 0, 0, 0, 2, 0, 0, 0][..]));
        assert_eq!((memory.read(0x800, 4), memory.interrupts()), (vec![32, 0, 0, 0], 1));
    }

    #[test]
    fn a_full_ring_holds_entries_back_until_the_driver_reads() {
        let (mut file, mut ih, memory) = ring(32);
        // 128 bytes have room for three entries.
        for number in 0..5 {
            ih.raise(&mut file, &memory, &Interrupt { data: [number, 0, 0, 0], ..Interrupt::default() });
        }
        assert_eq!((file.get(reg::IH_RB_WPTR), memory.interrupts()), (96, 3));
        assert!(ih.doorbell(&mut file, &memory, 0x2f0, 64));
        assert_eq!((file.get(reg::IH_RB_WPTR), memory.read(0x1060, 32)[16]), (32, 3));
        assert_eq!(memory.read(0x1000, 32)[16], 4, "the fifth is where the first was");
        assert!(!ih.doorbell(&mut file, &memory, 0x2f1, 64));
    }

    #[test]
    fn nothing_is_sent_before_the_driver_wants_it_or_to_memory_that_is_not_there() {
        let (mut file, mut ih, memory) = ring(64);
        file.set(reg::IH_RB_CNTL, 6 << 1);
        ih.raise(&mut file, &memory, &Interrupt::default());
        assert_eq!((memory.interrupts(), ih.counts()), (0, (0, 0)));
        file.set(reg::IH_RB_CNTL, ENABLE | ENABLE_INTERRUPT | 6 << 1);
        file.set(reg::IH_RB_BASE_HI, 0xff);
        ih.raise(&mut file, &memory, &Interrupt::default());
        assert_eq!(memory.interrupts(), 0);
    }
}
