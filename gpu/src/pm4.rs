// SPDX-License-Identifier: GPL-2.0 OR MIT
//! PM4 as far as AQL queues need it: the indirect buffers of vendor packets.
//!
//! Packets are those of gfx9 (`soc15d.h`). Implemented: NOP, WRITE_DATA to memory, RELEASE_MEM, WAIT_REG_MEM
//! on memory; ACQUIRE_MEM and EVENT_WRITE do nothing, as there are no caches and no work is ever outstanding.
//! The rest, with it all that dispatches or touches registers, halts the queue.

use crate::access::{Port, Stop};
use crate::gpu::clock;
use crate::poll;
use crate::queue::QueueError;

mod op {
    pub const NOP: u32 = 0x10;
    pub const WRITE_DATA: u32 = 0x37;
    pub const WAIT_REG_MEM: u32 = 0x3c;
    pub const EVENT_WRITE: u32 = 0x46;
    pub const RELEASE_MEM: u32 = 0x49;
    pub const ACQUIRE_MEM: u32 = 0x58;
}

/// A type-2 packet: one word of filler.
const FILLER: u32 = 0x8000_0000;
/// The count of a NOP that has no body.
const NO_BODY: u32 = 0x3fff;

fn wide(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Executes the indirect buffer of `words` 32-bit words at `va`. `offset` is that of the packet that called
/// it.
pub(crate) fn execute(port: &mut Port, va: u64, words: u64, offset: u64) -> Result<(), Stop> {
    let bad = |message: String| Stop::from(QueueError::BadPacket { offset, message });
    let mut at = 0;
    while at < words {
        let packet = va.wrapping_add(at * 4);
        let header = port.load_u32(packet)?;
        at += 1;
        if header == FILLER {
            continue;
        }
        let (op, count) = (header >> 8 & 0xff, header >> 16 & NO_BODY);
        if header >> 30 != 3 {
            return Err(bad(format!("PM4 header {header:#010x} is not of type 3")));
        }
        if op == op::NOP && count == NO_BODY {
            continue;
        }
        let length = u64::from(count) + 1;
        if length > words - at {
            return Err(bad(format!("PM4 opcode {op:#x} of {length} words leaves its indirect buffer")));
        }
        at += length;
        let mut body = [0u32; 7];
        for (word, index) in body.iter_mut().zip(1..=length) {
            *word = port.load_u32(packet.wrapping_add(index * 4))?;
        }
        let [control, b1, b2, b3, b4, b5, b6] = body;
        let least = match op {
            op::WRITE_DATA => 4,
            op::WAIT_REG_MEM => 6,
            op::RELEASE_MEM => 7,
            _ => 0,
        };
        if length < least {
            return Err(bad(format!("PM4 opcode {op:#x} with a body of {length} words instead of {least}")));
        }
        match op {
            op::NOP | op::ACQUIRE_MEM | op::EVENT_WRITE => {}
            // Destinations 2 (through L2) and 5 are memory; bit 16 would write all data to one address.
            op::WRITE_DATA if matches!(control >> 8 & 0xf, 2 | 5) && control >> 16 & 1 == 0 => {
                port.copy(wide(b1, b2), packet.wrapping_add(16), (length - 3) * 4)?;
            }
            // Memory space 1, and operation 0: only wait.
            op::WAIT_REG_MEM if control >> 4 & 0xf == 1 => {
                let holds = poll::comparison(control);
                let holds = holds.ok_or_else(|| bad("WAIT_REG_MEM with function 7".into()))?;
                poll::wait(port, holds, wide(b1, b2), b3, b4)?;
            }
            op::RELEASE_MEM => {
                let va = wide(b2, b3);
                match b1 >> 29 {
                    0 => {}
                    1 => port.store_u32(va, b4)?,
                    2 => port.store_u64(va, wide(b4, b5))?,
                    3 => port.store_u64(va, clock())?,
                    select => return Err(bad(format!("RELEASE_MEM with data selection {select}"))),
                }
                if b1 >> 24 & 7 != 0 {
                    port.signal_event(b6 & 0x0fff_ffff);
                }
            }
            _ => return Err(bad(format!("PM4 opcode {op:#x} is not supported (control {control:#010x})"))),
        }
    }
    Ok(())
}
