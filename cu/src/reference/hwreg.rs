// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hardware registers, as `s_getreg` and `s_setreg` see them.

use crate::group::Group;
use crate::wave::{Mode, Wave};

const MODE: u32 = 1;
const STATUS: u32 = 2;
const TRAPSTS: u32 = 3;
const HW_ID: u32 = 4;
const GPR_ALLOC: u32 = 5;
const LDS_ALLOC: u32 = 6;
const MEM_BASES: u32 = 15;
const FLAT_SCR_LO: u32 = 20;
const FLAT_SCR_HI: u32 = 21;
const HW_ID1: u32 = 23;
const SHADER_CYCLES: u32 = 29;

/// A field of a register: `size << 11 | offset << 6 | register`, the size less one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    register: u32,
    offset: u32,
    size: u32,
}

impl Field {
    pub(crate) fn new(imm: i32) -> Field {
        let bits = u32::from(u16::try_from(imm & 0xffff).unwrap_or(0));
        Field { register: bits & 63, offset: bits >> 6 & 31, size: (bits >> 11 & 31) + 1 }
    }

    fn mask(self) -> u32 {
        u32::try_from((1u64 << self.size) - 1).unwrap_or(u32::MAX)
    }

    /// The field's value.
    pub(crate) fn get(self, wave: &Wave, group: &Group, cycles: u64) -> u32 {
        read(self.register, wave, group, cycles) >> self.offset & self.mask()
    }

    /// Sets the field. Registers that programs cannot write stay.
    pub(crate) fn set(self, wave: &mut Wave, group: &Group, value: u32) {
        let mask = self.mask() << self.offset;
        let old = read(self.register, wave, group, 0);
        let new = old & !mask | value << self.offset & mask;
        match self.register {
            MODE => wave.mode = Mode(new),
            TRAPSTS => wave.trapsts = new,
            FLAT_SCR_LO if wave.target.is_rdna() => wave.flat_scratch = wave.flat_scratch >> 32 << 32 | u64::from(new),
            FLAT_SCR_HI if wave.target.is_rdna() => {
                wave.flat_scratch = wave.flat_scratch & 0xffff_ffff | u64::from(new) << 32
            }
            _ => {}
        }
    }
}

fn read(register: u32, wave: &Wave, group: &Group, cycles: u64) -> u32 {
    let low = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or(0);
    let (index, place) = (u32::from(wave.index), group.place);
    match register {
        MODE => wave.mode.0,
        STATUS => {
            let empty = |mask: u64| u32::from(mask & wave.all() == 0);
            // SCC, EXECZ, VCCZ, VALID.
            u32::from(wave.scc) | empty(wave.exec()) << 9 | empty(wave.vcc()) << 10 | 1 << 16
        }
        TRAPSTS => wave.trapsts,
        // Wave, SIMD, unit, array, engine; engines have three bits from gfx908 on.
        HW_ID => {
            let engine = if wave.target.is_cdna() { place.engine & 7 } else { place.engine & 3 };
            (index / 4) & 15 | (index & 3) << 4 | (place.unit & 15) << 8 | (place.array & 1) << 12 | engine << 13
        }
        // Wave, SIMD, pair of units, array, engine.
        HW_ID1 => {
            let unit = ((place.unit / 2) & 15) << 10 | (place.array & 1) << 16 | (place.engine & 7) << 18;
            (index / 4) & 31 | (index & 3) << 8 | unit
        }
        GPR_ALLOC => {
            let rows = u32::try_from(wave.rows.len()).unwrap_or(0);
            ((rows.div_ceil(4).max(1) - 1) & 0x3f) << 8 | ((u32::from(wave.sgprs).div_ceil(16).max(1) - 1) & 15) << 24
        }
        LDS_ALLOC => (u32::try_from(group.lds.len()).unwrap_or(0).div_ceil(512) & 0x1ff) << 12,
        MEM_BASES => group.apertures.private >> 16 | group.apertures.shared >> 16 << 16,
        FLAT_SCR_LO if wave.target.is_rdna() => low(wave.flat_scratch),
        FLAT_SCR_HI if wave.target.is_rdna() => low(wave.flat_scratch >> 32),
        SHADER_CYCLES => low(cycles) & 0xf_ffff,
        _ => 0,
    }
}
