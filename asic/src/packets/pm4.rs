// SPDX-License-Identifier: GPL-2.0 OR MIT
//! PM4 packets of the driver's own rings: of the kernel interface queue (KIQ), KFD's (HIQ), and the
//! compute rings.
//!
//! Packets are those of `soc15d.h` and `kfd_pm4_headers_ai.h`. A packet that writes a register
//! writes the same file as the driver does. Kernels are not launched from here: a dispatch halts
//! the ring by name, as everything else does that is not in the list of [`op`].

use super::{holds, is_whole, PacketError, Processor, Step, Words};
use crate::interrupts::{client, source, Interrupt};
use crate::queues::hqd::HqdId;
use crate::queues::user::{space, VMIDS};
use crate::ring::{Buffer, Ring};

pub(crate) mod op {
    pub const NOP: u32 = 0x10;
    pub const CONTEXT_CONTROL: u32 = 0x28;
    pub const WRITE_DATA: u32 = 0x37;
    pub const WAIT_REG_MEM: u32 = 0x3c;
    pub const INDIRECT_BUFFER: u32 = 0x3f;
    pub const COPY_DATA: u32 = 0x40;
    pub const PFP_SYNC_ME: u32 = 0x42;
    pub const EVENT_WRITE: u32 = 0x46;
    pub const RELEASE_MEM: u32 = 0x49;
    pub const ACQUIRE_MEM: u32 = 0x58;
    pub const SET_SH_REG: u32 = 0x76;
    pub const SET_UCONFIG_REG: u32 = 0x79;
    pub const INVALIDATE_TLBS: u32 = 0x98;
    pub const SET_RESOURCES: u32 = 0xa0;
    pub const MAP_PROCESS: u32 = 0xa1;
    pub const MAP_QUEUES: u32 = 0xa2;
    pub const UNMAP_QUEUES: u32 = 0xa3;
    pub const QUERY_STATUS: u32 = 0xa4;
    pub const RUN_LIST: u32 = 0xa5;
    pub const RUN_CLEANER_SHADER: u32 = 0xd2;
}

/// The packet's name, for counts and messages.
pub(crate) fn op_name(op: u32) -> String {
    let name = match op {
        op::NOP => "NOP",
        op::CONTEXT_CONTROL => "CONTEXT_CONTROL",
        op::WRITE_DATA => "WRITE_DATA",
        op::WAIT_REG_MEM => "WAIT_REG_MEM",
        op::INDIRECT_BUFFER => "INDIRECT_BUFFER",
        op::COPY_DATA => "COPY_DATA",
        op::PFP_SYNC_ME => "PFP_SYNC_ME",
        op::EVENT_WRITE => "EVENT_WRITE",
        op::RELEASE_MEM => "RELEASE_MEM",
        op::ACQUIRE_MEM => "ACQUIRE_MEM",
        op::SET_SH_REG => "SET_SH_REG",
        op::SET_UCONFIG_REG => "SET_UCONFIG_REG",
        op::INVALIDATE_TLBS => "INVALIDATE_TLBS",
        op::SET_RESOURCES => "SET_RESOURCES",
        op::MAP_PROCESS => "MAP_PROCESS",
        op::MAP_QUEUES => "MAP_QUEUES",
        op::UNMAP_QUEUES => "UNMAP_QUEUES",
        op::QUERY_STATUS => "QUERY_STATUS",
        op::RUN_LIST => "RUN_LIST",
        op::RUN_CLEANER_SHADER => "RUN_CLEANER_SHADER",
        _ => return format!("PM4 {op:#x}"),
    };
    format!("PM4 {name}")
}

/// The count of a NOP that has no body.
const NO_BODY: u32 = 0x3fff;
/// Where the registers of SET_* packets begin.
const SHADER: u32 = 0x2c00;
const USER_CONFIG: u32 = 0xc000;
/// A register's number in packets.
const REGISTER: u32 = 0x3_ffff;

fn bad<T>(message: String) -> Result<T, PacketError> {
    Err(PacketError::Bad(message))
}

/// Words of the packet with this header.
pub(crate) fn length(header: u32) -> Result<u64, PacketError> {
    let count = header >> 16 & 0x3fff;
    match header >> 30 {
        2 => Ok(1),
        3 if count == NO_BODY && header >> 8 & 0xff == op::NOP => Ok(1),
        3 => Ok(u64::from(count) + 2),
        _ => bad(format!("{header:#010x} is no header of a packet")),
    }
}

impl Processor {
    /// Executes the packet at a ring's read pointer.
    pub(crate) fn pm4(&mut self, ring: &mut Ring, hqd: HqdId) -> Result<Step, PacketError> {
        let header = self.word(ring, 0)?;
        let length = length(header)?;
        if header >> 30 == 2 || length == 1 {
            return Ok(Step::Done(1));
        }
        if !is_whole(ring, length)? {
            return Ok(Step::Empty);
        }
        let words = self.words(ring)?;
        let op = header >> 8 & 0xff;
        if !ring.wrote {
            self.count(&op_name(op));
        }
        match op {
            op::NOP | op::CONTEXT_CONTROL | op::PFP_SYNC_ME | op::EVENT_WRITE | op::ACQUIRE_MEM => {}
            // There is nothing to clean: engines give each wave its own registers and LDS.
            op::RUN_CLEANER_SHADER => {}
            op::SET_SH_REG => self.set_registers(ring, SHADER, length)?,
            op::SET_UCONFIG_REG => self.set_registers(ring, USER_CONFIG, length)?,
            op::WRITE_DATA => self.write_data(ring, &words, length)?,
            op::COPY_DATA => self.copy_data(ring, &words)?,
            op::WAIT_REG_MEM => {
                if !self.wait_reg_mem(ring, &words)? {
                    return Ok(Step::Wait);
                }
            }
            op::INDIRECT_BUFFER => return self.indirect(ring, &words, length),
            op::RELEASE_MEM => self.release_mem(ring, hqd, &words)?,
            op::INVALIDATE_TLBS => self.invalidate_tlbs(words.get(1)),
            op::SET_RESOURCES => self.scheduler.set_resources(words.get(1)),
            op::MAP_QUEUES => self.map_queues(&words)?,
            op::UNMAP_QUEUES => self.unmap_queues(&words)?,
            op::RUN_LIST => self.run_list(words.wide(1) & !3, u64::from(words.get(3) & 0xf_ffff))?,
            op::QUERY_STATUS => self.store_wide(ring.vmid, words.wide(3) & !7, words.wide(5))?,
            _ => return bad(format!("{} is not supported (header {header:#010x})", op_name(op))),
        }
        Ok(Step::Done(length))
    }

    fn set_registers(&mut self, ring: &Ring, base: u32, length: u64) -> Result<(), PacketError> {
        let first = base + (self.word(ring, 1)? & 0xffff);
        for (at, index) in (first..).zip(2..length) {
            let value = self.word(ring, index)?;
            self.write_register(at, value);
        }
        Ok(())
    }

    fn write_data(&mut self, ring: &Ring, words: &Words, length: u64) -> Result<(), PacketError> {
        let control = words.get(1);
        let fixed = control >> 16 & 1 != 0;
        let step = |index: u64| if fixed { 0 } else { index };
        for index in 0..length.saturating_sub(4) {
            let value = self.word(ring, 4 + index)?;
            match control >> 8 & 0xf {
                0 => self.write_register((words.get(2) & REGISTER) + u32::try_from(step(index)).unwrap_or(0), value),
                1 | 2 | 5 => self.store(ring.space(), (words.wide(2) & !3).wrapping_add(4 * step(index)), value)?,
                target => return bad(format!("WRITE_DATA to target {target}")),
            }
        }
        Ok(())
    }

    fn copy_data(&mut self, ring: &Ring, words: &Words) -> Result<(), PacketError> {
        let control = words.get(1);
        let wide = control >> 16 & 1 != 0;
        let halves = if wide { 2 } else { 1 };
        for half in 0..halves {
            let value = match control & 0xf {
                0 => self.read_register((words.get(2) & REGISTER) + half),
                1 | 2 => self.load(ring.space(), (words.wide(2) & !3).wrapping_add(u64::from(4 * half)))?,
                5 => words.get(if half == 0 { 2 } else { 3 }),
                from => return bad(format!("COPY_DATA from source {from}")),
            };
            match control >> 8 & 0xf {
                0 => self.write_register((words.get(4) & REGISTER) + half, value),
                1 | 2 | 5 => self.store(ring.space(), (words.wide(4) & !3).wrapping_add(u64::from(4 * half)), value)?,
                target => return bad(format!("COPY_DATA to target {target}")),
            }
        }
        Ok(())
    }

    /// Whether what the packet waits for is there. The form that writes first does so once.
    fn wait_reg_mem(&mut self, ring: &mut Ring, words: &Words) -> Result<bool, PacketError> {
        let control = words.get(1);
        let (function, in_memory, operation) = (control & 7, control >> 4 & 3, control >> 6 & 3);
        let (reference, mask) = (words.get(4), words.get(5));
        if operation == 1 {
            if !ring.wrote {
                self.write_register(words.get(2) & REGISTER, reference);
                ring.wrote = true;
            }
            let value = self.read_register(words.get(3) & REGISTER);
            return Ok(value & mask == reference & mask);
        }
        let value = match in_memory {
            0 => self.read_register(words.get(2) & REGISTER),
            _ => self.load(ring.space(), words.wide(2) & !3)?,
        };
        match holds(function, value & mask, reference) {
            Some(holds) => {
                ring.wrote = !holds;
                Ok(holds)
            }
            None => bad(format!("WAIT_REG_MEM with function {function}")),
        }
    }

    fn indirect(&mut self, ring: &mut Ring, words: &Words, length: u64) -> Result<Step, PacketError> {
        if ring.buffer.is_some() {
            return bad("INDIRECT_BUFFER within an indirect buffer".into());
        }
        let control = words.get(3);
        let own = u8::try_from(control >> 24 & 0xf).unwrap_or(0);
        let buffer =
            Buffer { vmid: space(own, false), va: words.wide(1) & !3, words: u64::from(control & 0xf_ffff), done: 0 };
        // The ring goes on after the packet when the buffer is done.
        ring.advance(length);
        ring.buffer = (buffer.words != 0).then_some(buffer);
        Ok(Step::Done(0))
    }

    /// The fence first, the interrupt afterwards.
    fn release_mem(&mut self, ring: &Ring, hqd: HqdId, words: &Words) -> Result<(), PacketError> {
        let select = words.get(2);
        let (space, va) = (ring.space(), words.wide(3) & !3);
        match select >> 29 {
            0 => {}
            1 => self.store(space, va, words.get(5))?,
            2 => self.store_wide(space, va, words.wide(5))?,
            3 | 4 => self.store_clock(space, va)?,
            data => return bad(format!("RELEASE_MEM with data {data}")),
        }
        if select >> 24 & 7 != 0 {
            let interrupt = Interrupt {
                client: client::GRBM_CP,
                source: source::END_OF_PIPE,
                ring: hqd.ring(),
                data: [words.get(7), 0, 0, 0],
                ..Interrupt::default()
            };
            self.shared.interrupt(&interrupt);
        }
        Ok(())
    }

    /// INVALIDATE_TLBS, of a process.
    fn invalidate_tlbs(&mut self, control: u32) {
        let (all_hubs, wanted) = (control >> 4 & 1 != 0, control >> 5 & 0xffff);
        let hubs: &[bool] = if all_hubs { &[false, true] } else { &[false] };
        for &mmhub in hubs {
            for vmid in 1..VMIDS {
                let own = self.shared.lock().pasid(vmid, mmhub);
                if u32::from(own) == wanted {
                    self.shared.flush(1 << vmid, mmhub);
                }
            }
        }
    }
}
