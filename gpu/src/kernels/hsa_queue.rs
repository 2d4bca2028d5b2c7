// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The HSA runtime's structure of a queue, `amd_queue_t` of `amd_hsa_queue.h`: what firmware reads
//! of it and tells through it.
//!
//! It lies around the queue's two pointers, and says itself where the second is. Where that does
//! not agree, there is none: the client library's queues have none.
//!
//! # Scratch
//!
//! A queue begins without scratch. If a packet needs more than the structure describes, firmware
//! sets a bit in the structure's signal and waits. The runtime allocates, describes the memory in
//! the structure, and sets the signal to zero. Then firmware reads the structure again. Memory that
//! the runtime wants back after one launch is told by another bit when the launch is over.

use crate::base::queue_error::Stop;
use crate::kernels::signal;
use crate::state::access::Port;
use vkfd_cu::launch::Scratch;
use vkfd_isa::Target;

/// Byte offsets.
const WRITE_INDEX: u64 = 56;
const READ_INDEX: u64 = 128;
const READ_INDEX_OFFSET: u64 = 136;
const TMPRING_SIZE: u64 = 140;
const SCRATCH_BUFFER: u64 = 144;
const SCRATCH_LOCATION: u64 = 160;
const SCRATCH_WAVE64_LANE_BYTES: u64 = 176;
const PROPERTIES: u64 = 180;
const INACTIVE_SIGNAL: u64 = 192;

/// The runtime takes scratch back after one launch.
const USE_SCRATCH_ONCE: u32 = 1 << 4;

/// Codes of the signal.
const MORE_SCRATCH_WAVE64: u64 = 1;
const MORE_SCRATCH_WAVE32: u64 = 0x400;
const SCRATCH_USED: u64 = 512;

/// How often the runtime is asked for the same scratch.
const ATTEMPTS: u32 = 4;

/// Scratch memory as the runtime describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) scratch: Scratch,
    /// The buffer descriptor with which programs reach it.
    pub(crate) buffer: [u32; 4],
}

/// A queue's structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HsaQueue {
    base: u64,
}

impl HsaQueue {
    /// The structure of this port's queue, if it has one. Waits for memory that is not there at the
    /// moment.
    pub(crate) fn of(port: &mut Port) -> Result<Option<HsaQueue>, Stop> {
        let Some(queue) = HsaQueue::at(port) else { return Ok(None) };
        let own_offset = port.load_u32(queue.base + READ_INDEX_OFFSET)?;
        Ok((u64::from(own_offset) == READ_INDEX).then_some(queue))
    }

    /// The same. Does not fault.
    pub(crate) fn peek(port: &mut Port) -> Result<Option<HsaQueue>, Stop> {
        let Some(queue) = HsaQueue::at(port) else { return Ok(None) };
        let mut own_offset = [0; 4];
        let found = port.peek(queue.base + READ_INDEX_OFFSET, &mut own_offset)?;
        let agrees = u64::from(u32::from_le_bytes(own_offset)) == READ_INDEX;
        Ok((found && agrees).then_some(queue))
    }

    /// Where it would be: the two pointers are as far from each other as in one.
    fn at(port: &Port) -> Option<HsaQueue> {
        let (rptr, wptr) = (port.control.rptr_va, port.control.wptr_va);
        let apart = rptr.checked_sub(wptr)? == READ_INDEX - WRITE_INDEX;
        let base = rptr.checked_sub(READ_INDEX)?;
        apart.then_some(HsaQueue { base })
    }

    /// Its address.
    pub(crate) fn base(self) -> u64 {
        self.base
    }

    /// The signal through which the runtime learns of errors, if there is one. Does not fault.
    pub(crate) fn inactive_signal(self, port: &mut Port) -> Result<Option<u64>, Stop> {
        let mut signal = [0; 8];
        let found = port.peek(self.base + INACTIVE_SIGNAL, &mut signal)?;
        Ok(Some(u64::from_le_bytes(signal)).filter(|&signal| found && signal != 0))
    }

    /// Scratch for waves of `lanes` that use `bytes` in each; waits until the runtime has provided
    /// it. `None`: it does not.
    pub(crate) fn scratch(
        self,
        port: &mut Port,
        target: Target,
        bytes: u32,
        lanes: u32,
    ) -> Result<Option<Memory>, Stop> {
        let needed = u64::from(bytes) * u64::from(lanes);
        for _ in 0..ATTEMPTS {
            let memory = self.described(port, target, lanes)?;
            let lane_bytes = port.load_u32(self.base + SCRATCH_WAVE64_LANE_BYTES)?;
            let room = u64::from(lane_bytes) * 64;
            let fits = memory.scratch.waves > 0 && u64::from(memory.scratch.wave_bytes) >= needed && room >= needed;
            if fits {
                return Ok(Some(memory));
            }
            let code = if lanes == 32 { MORE_SCRATCH_WAVE32 } else { MORE_SCRATCH_WAVE64 };
            if !self.ask(port, code)? {
                break;
            }
        }
        Ok(None)
    }

    /// A launch that used scratch is over.
    pub(crate) fn scratch_used(self, port: &mut Port) -> Result<(), Stop> {
        if port.load_u32(self.base + PROPERTIES)? & USE_SCRATCH_ONCE != 0 {
            self.ask(port, SCRATCH_USED)?;
        }
        Ok(())
    }

    /// What the structure says now.
    fn described(self, port: &mut Port, target: Target, lanes: u32) -> Result<Memory, Stop> {
        let ring = port.load_u32(self.base + TMPRING_SIZE)?;
        let base = port.load_u64(self.base + SCRATCH_LOCATION)?;
        let mut buffer = [0; 4];
        for (word, index) in buffer.iter_mut().zip(0..) {
            *word = port.load_u32(self.base + SCRATCH_BUFFER + 4 * index)?;
        }
        // NEW TARGET: how a scratch descriptor tells the lanes of a wave
        if target == Target::Gfx1030 {
            // Firmware says of how many lanes a wave is: index stride 32 or 64.
            let stride = if lanes == 32 { 2 } else { 3 };
            buffer[3] = buffer[3] & !(3 << 21) | stride << 21;
        }
        let (waves, wave_bytes) = ring_size(target, ring);
        Ok(Memory { scratch: Scratch { base, wave_bytes, waves }, buffer })
    }

    /// Sets the signal to `code` and waits until the runtime has set it to zero. False: there is no
    /// signal.
    fn ask(self, port: &mut Port, code: u64) -> Result<bool, Stop> {
        let Some(signal) = self.inactive_signal(port)? else { return Ok(false) };
        signal::raise(port, signal, code)?;
        port.poll(|port| Ok(port.load_u64(signal.wrapping_add(signal::VALUE))? == 0))?;
        Ok(true)
    }
}

/// Waves, and bytes of each, in a value of COMPUTE_TMPRING_SIZE.
pub(crate) fn ring_size(target: Target, value: u32) -> (u32, u32) {
    let waves = value & 0xfff;
    match target {
        Target::Gfx1100 => (waves, (value >> 12 & 0x7fff) * 256),
        Target::Gfx900 | Target::Gfx90a | Target::Gfx942 | Target::Gfx1030 => (waves, (value >> 12 & 0x1fff) * 1024),
    }
}
