// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The registers that PM4 packets set: written down, read back, and otherwise without effect.
//!
//! A queue has its own. Two spaces exist, as PM4 counts them in 32-bit words: the shader's
//! (SET_SH_REG) and the user configuration (SET_UCONFIG_REG). Only what was written takes memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// The shader's registers.
pub(crate) const SHADER: Range<u32> = 0x2c00..0x3000;
/// The user configuration.
pub(crate) const USER_CONFIG: Range<u32> = 0xc000..0x1_0000;

/// Address of the compute shader's first instruction, in units of 256 bytes: low and high half.
const PROGRAM: [u32; 2] = [SHADER.start + 0x20c, SHADER.start + 0x20d];

/// Registers of a compute launch, as offsets into [`SHADER`].
pub(crate) mod compute {
    /// First work-group in each dimension.
    pub(crate) const START: u32 = 0x204;
    /// Work-items of a work-group in each dimension.
    pub(crate) const NUM_THREAD: u32 = 0x207;
    /// Address of scratch, in units of 256 bytes, two halves.
    pub(crate) const SCRATCH_BASE: u32 = 0x210;
    /// The hardware's words about the program; the third lies elsewhere.
    pub(crate) const RSRC1: u32 = 0x212;
    pub(crate) const RSRC2: u32 = 0x213;
    pub(crate) const TMPRING_SIZE: u32 = 0x218;
    /// The third, where gfx9 and where later GPUs have it.
    pub(crate) const RSRC3_GFX9: u32 = 0x22d;
    pub(crate) const RSRC3: u32 = 0x228;
    /// The first of sixteen user SGPRs.
    pub(crate) const USER_DATA: u32 = 0x240;
}

/// A queue's registers.
#[derive(Default)]
pub(crate) struct Registers(BTreeMap<u32, u32>);

impl Registers {
    /// Whether there is a register of this number.
    pub(crate) fn exists(number: u32) -> bool {
        SHADER.contains(&number) || USER_CONFIG.contains(&number)
    }

    /// Sets one; the caller has checked that it exists.
    pub(crate) fn set(&mut self, number: u32, value: u32) {
        self.0.insert(number, value);
    }

    /// What was set; 0 before.
    pub(crate) fn get(&self, number: u32) -> u32 {
        self.0.get(&number).copied().unwrap_or(0)
    }

    /// The value of a shader register, by its offset into [`SHADER`].
    pub(crate) fn shader(&self, number: u32) -> u32 {
        self.get(SHADER.start + number)
    }

    /// Where the compute shader's code begins; `None` if that was not set.
    pub(crate) fn program(&self) -> Option<u64> {
        let [low, high] = PROGRAM.map(|number| u64::from(self.get(number)));
        Some((low | (high & 0xff) << 32) << 8).filter(|&at| at != 0)
    }
}
