// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The PM4 packet processor: compute queues of PM4, and the indirect buffers of AQL vendor packets.
//!
//! Packets are those of `soc15d.h` (gfx9) and `nvd.h` (gfx10 and later). Implemented: NOP,
//! INDIRECT_BUFFER (nested twice, chained), WRITE_DATA, COPY_DATA, WAIT_REG_MEM, RELEASE_MEM.
//! SET_SH_REG and SET_UCONFIG_REG are written down ([`registers`](crate::packets::registers));
//! ACQUIRE_MEM, PFP_SYNC_ME and EVENT_WRITE of events without data do nothing, as there are no
//! caches and no work is ever outstanding. DISPATCH_DIRECT and DISPATCH_INDIRECT launch what the
//! registers describe ([`compute`]). Everything else halts the queue.
//!
//! A queue of PM4 counts 32-bit words: its doorbell is words since the beginning, and only grows.
//! The read pointer that it reports is the place in the ring, in 32 bits, as the hardware's is also
//! where doorbells have 64.

use crate::base::clock::clock;
use crate::base::queue_error::{QueueError, Stop};
use crate::kernels::compute::{self, Compute};
use crate::kernels::hsa_queue::ring_size;
use crate::packets::poll;
use crate::packets::registers::{compute as registers, Registers, SHADER, USER_CONFIG};
use crate::packets::stream::{Stream, Words};
use crate::state::access::Port;
use crate::state::config::Family;
use vkfd_cu::check;
use vkfd_cu::launch::{Launch, Program, Scratch, Sizes, DESCRIPTOR_BYTES};

mod op {
    pub const NOP: u32 = 0x10;
    pub const DISPATCH_DIRECT: u32 = 0x15;
    pub const DISPATCH_INDIRECT: u32 = 0x16;
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
}

/// A type-2 packet: one word of filler.
const FILLER: u32 = 0x8000_0000;
/// The count of a NOP that has no body.
const NO_BODY: u32 = 0x3fff;
/// How deep indirect buffers may call others: the ring, one, and one more.
const MAX_DEPTH: u32 = 2;
/// In the size of an indirect buffer: it takes the place of the one that has this packet.
const CHAIN: u32 = 1 << 20;

/// Bits of a dispatch's initiator.
const FORCE_START_AT_000: u32 = 1 << 2;
const USE_THREAD_DIMENSIONS: u32 = 1 << 5;
const WAVE32: u32 = 1 << 15;

/// What follows a packet.
enum Next {
    /// The packet so many words on.
    Words(u64),
    /// Nothing: not all of it has been submitted.
    Wait,
    /// The buffer of so many words at this address, instead of the rest of this one.
    Chain(u64, u64),
}

/// State of a queue that executes PM4.
pub(crate) struct Pm4 {
    family: Family,
    registers: Registers,
    /// Words of the ring processed.
    rptr: u64,
}

impl Pm4 {
    /// Begins at word `start`.
    pub(crate) fn new(family: Family, start: u64) -> Pm4 {
        Pm4 { family, registers: Registers::default(), rptr: start }
    }

    /// The doorbell that says that all packets before it are done.
    pub(crate) fn done(&self) -> Option<u64> {
        Some(self.rptr)
    }

    /// Processes one packet of the ring; false if there is none, or not the whole of it.
    pub(crate) fn step(&mut self, port: &mut Port, compute: &mut Compute) -> Result<bool, Stop> {
        let wptr = port.control.doorbell.load()?;
        let ring = port.ring();
        let pending = wptr.wrapping_sub(self.rptr);
        if pending == 0 {
            return Ok(false);
        }
        if pending > ring.bytes / 4 {
            return Err(QueueError::BadDoorbell { doorbell: wptr, rptr: self.rptr, ring_bytes: ring.bytes }.into());
        }
        let (pos, end) = (self.rptr.wrapping_mul(4), wptr.wrapping_mul(4));
        let stream = Stream { va: ring.va, pos, end, wrap: Some(ring.bytes), offset: pos & (ring.bytes - 1) };
        let Next::Words(words) = self.packet(port, compute, stream, 0)? else {
            return Ok(false);
        };
        self.rptr = self.rptr.wrapping_add(words);
        if port.control.rptr_va != 0 {
            let place = self.rptr & (ring.bytes / 4 - 1);
            port.store_u32(port.control.rptr_va, u32::try_from(place).unwrap_or(0))?;
        }
        Ok(true)
    }

    /// Executes the indirect buffer of `words` words at `va`. `offset` is that of the packet in the
    /// ring that called it.
    pub(crate) fn indirect(
        &mut self,
        port: &mut Port,
        compute: &mut Compute,
        va: u64,
        words: u64,
        offset: u64,
        depth: u32,
    ) -> Result<(), Stop> {
        let mut stream = Stream::indirect(va, words * 4, offset);
        while stream.left() > 0 {
            port.check_removed()?;
            match self.packet(port, compute, stream, depth)? {
                Next::Words(words) => stream.pos += words * 4,
                Next::Chain(va, words) => stream = Stream::indirect(va, words * 4, offset),
                // A buffer is all there: what does not fit is an error.
                Next::Wait => break,
            }
        }
        Ok(())
    }

    /// Executes the packet at the start of `stream`.
    fn packet(&mut self, port: &mut Port, compute: &mut Compute, stream: Stream, depth: u32) -> Result<Next, Stop> {
        let words = stream.fetch(port, 0)?;
        let header = words.get(0);
        if header == FILLER {
            return Ok(Next::Words(1));
        }
        let (op, count) = (header >> 8 & 0xff, header >> 16 & NO_BODY);
        if header >> 30 != 3 {
            return Err(stream.bad(format!("PM4 header {header:#010x} is not of type 3")));
        }
        if op == op::NOP && count == NO_BODY {
            return Ok(Next::Words(1));
        }
        let body = u64::from(count) + 1;
        if !stream.holds(&format!("PM4 opcode {op:#x}"), body + 1)? {
            return Ok(Next::Wait);
        }
        let least = match op {
            op::WRITE_DATA => 4,
            op::WAIT_REG_MEM => 6,
            op::RELEASE_MEM => 7,
            op::COPY_DATA => 5,
            op::INDIRECT_BUFFER => 3,
            op::DISPATCH_DIRECT => 4,
            op::DISPATCH_INDIRECT => 3,
            op::SET_SH_REG | op::SET_UCONFIG_REG => 2,
            op::ACQUIRE_MEM if self.family == Family::Gfx9 => 6,
            op::ACQUIRE_MEM => 7,
            _ => 1,
        };
        if body < least {
            return Err(stream.bad(format!("PM4 opcode {op:#x} with a body of {body} words instead of {least}")));
        }
        let control = words.get(1);
        let refused = || stream.bad(format!("PM4 opcode {op:#x} is not supported (control {control:#010x})"));
        match op {
            op::NOP | op::ACQUIRE_MEM | op::PFP_SYNC_ME => {}
            // Indices 1 to 3 would write counters to memory.
            op::EVENT_WRITE if !(1..=3).contains(&(control >> 8 & 0xf)) => {}
            op::WRITE_DATA => self.write_data(port, &stream, &words, body - 3)?.ok_or_else(refused)?,
            op::COPY_DATA => self.copy_data(port, &words)?.ok_or_else(refused)?,
            op::WAIT_REG_MEM => self.wait(port, &stream, &words)?.ok_or_else(refused)?,
            op::RELEASE_MEM => release(port, &words)?.ok_or_else(refused)?,
            op::SET_SH_REG => self.set(port, &stream, SHADER.start, body - 1)?,
            op::SET_UCONFIG_REG => self.set(port, &stream, USER_CONFIG.start, body - 1)?,
            op::INDIRECT_BUFFER => {
                let (va, size) = (words.wide(1) & !3, words.get(3));
                let count = u64::from(size & 0xf_ffff);
                if size & CHAIN != 0 && depth > 0 {
                    return Ok(Next::Chain(va, count));
                }
                if depth >= MAX_DEPTH {
                    return Err(stream.bad(format!("indirect buffers nested more than {MAX_DEPTH} deep")));
                }
                self.indirect(port, compute, va, count, stream.offset, depth + 1)?;
            }
            op::DISPATCH_DIRECT => {
                let dimensions = [1, 2, 3].map(|index| words.get(index));
                self.dispatch(port, compute, &stream, dimensions, words.get(4))?;
            }
            op::DISPATCH_INDIRECT => {
                let mut dimensions = [0; 3];
                for (size, index) in dimensions.iter_mut().zip(0..) {
                    *size = port.load_u32(words.wide(1).wrapping_add(4 * index))?;
                }
                self.dispatch(port, compute, &stream, dimensions, words.get(3))?;
            }
            _ => return Err(refused()),
        }
        Ok(Next::Words(body + 1))
    }

    /// Launches the program that the registers describe.
    fn dispatch(
        &mut self,
        port: &mut Port,
        compute: &mut Compute,
        stream: &Stream,
        dimensions: [u32; 3],
        initiator: u32,
    ) -> Result<(), Stop> {
        let Some(object) = self.registers.program() else {
            return Err(stream.bad("a dispatch without a program".into()));
        };
        let target = compute.target(port, object)?;
        let register = |number| self.registers.shader(number);
        let three = |first: u32| [first, first + 1, first + 2].map(register);
        let rsrc3 = if target.is_gfx9() { registers::RSRC3_GFX9 } else { registers::RSRC3 };
        let rsrc = [registers::RSRC1, registers::RSRC2, rsrc3].map(register);
        // The upper halves are the sizes of partial groups, which follow from the grid.
        let group = three(registers::NUM_THREAD).map(|size| size & 0xffff);
        let start = match initiator & FORCE_START_AT_000 {
            0 => three(registers::START),
            _ => [0; 3],
        };
        let grid = match initiator & USE_THREAD_DIMENSIONS {
            0 => [0, 1, 2].map(|axis: usize| dimensions[axis].saturating_mul(group[axis])),
            _ => dimensions,
        };
        if dimensions.contains(&0) {
            // Hardware has nothing to do, and does it.
            return Ok(());
        }
        let launch = Program::new(target, object, rsrc, initiator & WAVE32 != 0).and_then(|program| {
            let (waves, wave_bytes) = ring_size(target, register(registers::TMPRING_SIZE));
            let [low, high] = [registers::SCRATCH_BASE, registers::SCRATCH_BASE + 1].map(register).map(u64::from);
            let base = (low | (high & 0xff) << 32) << 8;
            let user = (0..u32::from(program.user_sgprs).min(16)).map(|index| register(registers::USER_DATA + index));
            Ok(Launch {
                sizes: Sizes::new(3, grid, group)?,
                start,
                user: user.collect(),
                lds: program.lds,
                scratch: (program.scratch && waves > 0).then_some(Scratch { base, wave_bytes, waves }),
                apertures: compute::APERTURES,
                watch: None,
                program,
            })
        });
        match launch {
            Ok(launch) => {
                // What tells the program from another that is loaded there later.
                let mut code = [0; DESCRIPTOR_BYTES];
                port.peek(object, &mut code)?;
                let watch = compute.watch(port, object, &code, 0)?.map(|watch| check::watch(&watch, &launch));
                let launch = Launch { watch, ..launch };
                compute.run(port, object, &code, launch)
            }
            Err(error) => Err(compute::refused(port, object, error)?),
        }
    }

    /// SET_*_REG: the registers' number, counted from `base`, then their values.
    fn set(&mut self, port: &mut Port, stream: &Stream, base: u32, count: u64) -> Result<(), Stop> {
        let first = u64::from(base) + u64::from(stream.fetch(port, 4)?.get(0) & 0xffff);
        for index in 0..count {
            let number = u32::try_from(first + index).unwrap_or(u32::MAX);
            if !Registers::exists(number) {
                return Err(stream.bad(format!("there is no register {number:#x}")));
            }
            let value = stream.fetch(port, 8 + index * 4)?.get(0);
            self.registers.set(number, value);
        }
        Ok(())
    }

    /// WRITE_DATA of `count` words. `None`: to a place that is not supported.
    fn write_data(&mut self, port: &mut Port, stream: &Stream, words: &Words, count: u64) -> Result<Option<()>, Stop> {
        let control = words.get(1);
        // Bit 16 would write all data to one address.
        if control >> 16 & 1 != 0 {
            return Ok(None);
        }
        match control >> 8 & 0xf {
            0 if Registers::exists(words.get(2) & 0x3_ffff) && count == 1 => {
                self.registers.set(words.get(2) & 0x3_ffff, words.get(4));
                Ok(Some(()))
            }
            // Memory: through the bus, through L2, directly.
            1 | 2 | 5 => stream.copy_out(port, 16, words.wide(2) & !3, count * 4).map(Some),
            _ => Ok(None),
        }
    }

    /// COPY_DATA. `None`: from or to a place that is not supported.
    fn copy_data(&mut self, port: &mut Port, words: &Words) -> Result<Option<()>, Stop> {
        let control = words.get(1);
        let wide = control >> 16 & 1 != 0;
        let (from, to) = (words.wide(2), words.wide(4));
        let value = match control & 0xf {
            0 if Registers::exists(words.get(2) & 0x3_ffff) && !wide => {
                u64::from(self.registers.get(words.get(2) & 0x3_ffff))
            }
            1 | 2 if wide => port.load_u64(from)?,
            1 | 2 => u64::from(port.load_u32(from)?),
            5 => from,
            9 => clock(),
            _ => return Ok(None),
        };
        // Cut to half where only that is asked for.
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
        match control >> 8 & 0xf {
            0 if Registers::exists(words.get(4) & 0x3_ffff) && !wide => {
                self.registers.set(words.get(4) & 0x3_ffff, low);
            }
            1 | 2 | 5 if wide => port.store_u64(to, value)?,
            1 | 2 | 5 => port.store_u32(to, low)?,
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// WAIT_REG_MEM. `None`: on something that is not supported.
    fn wait(&mut self, port: &mut Port, stream: &Stream, words: &Words) -> Result<Option<()>, Stop> {
        let control = words.get(1);
        let Some(holds) = poll::comparison(control) else {
            return Err(stream.bad("WAIT_REG_MEM with function 7".into()));
        };
        let (reference, mask) = (words.get(4), words.get(5));
        match (control >> 4 & 3, control >> 6 & 3) {
            // Memory: only wait.
            (1, 0 | 3) => poll::wait(port, holds, words.wide(2) & !3, reference, mask).map(Some),
            // A register: write it, wait for another, write again. That is the HDP flush, and there
            // is nothing to flush.
            (0, 1) => Ok(Some(())),
            // A register that nobody changes but this queue: now or never.
            (0, 0) if Registers::exists(words.get(2) & 0x3_ffff) => {
                let value = self.registers.get(words.get(2) & 0x3_ffff);
                if !holds(value & mask, reference) {
                    return Err(stream.bad(format!("WAIT_REG_MEM on a register that stays {value:#x}")));
                }
                Ok(Some(()))
            }
            _ => Ok(None),
        }
    }
}

/// RELEASE_MEM. `None`: data that are not supported.
fn release(port: &mut Port, words: &Words) -> Result<Option<()>, Stop> {
    let (select, va) = (words.get(2), words.wide(3));
    match select >> 29 {
        0 => {}
        1 => port.store_u32(va, words.get(5))?,
        2 => port.store_u64(va, words.wide(5))?,
        // The GPU's clock, and the system's, which is the same one here.
        3 | 4 => port.store_u64(va, clock())?,
        _ => return Ok(None),
    }
    if select >> 24 & 7 != 0 {
        port.signal_event(words.get(7) & 0x0fff_ffff);
    }
    Ok(Some(()))
}
