// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The lanes' values around a vector operation: sources with their modifiers, and results on their
//! way into registers.

use super::dpp::{permutation, Permutation};
use super::float::Fpu;
use super::kind::{low32, Kind};
use super::operand::{self, NO_REGISTER};
use super::sdwa;
use super::semantics::Env;
use crate::exit::Exit;
use crate::group::Group;
use crate::wave::{Mode, Wave, LANES};
use vkfd_isa::{Extension, Inst, Mods, Operand};

/// One value a lane.
pub(crate) type Values = [u64; LANES];

/// A vector result that is not written yet.
pub(crate) struct Pending {
    row: usize,
    words: u16,
    values: Values,
    active: u64,
}

impl Pending {
    /// Results of `kind` for the instruction's destination.
    pub(crate) fn new(wave: &Wave, dst: Operand, kind: Kind, values: Values, active: u64) -> Result<Pending, Exit> {
        Ok(Pending { row: operand::row(wave, dst, kind.words())?, words: kind.words(), values, active })
    }

    pub(crate) fn write(self, wave: &mut Wave) {
        for (lane, value) in self.values.into_iter().enumerate() {
            if self.active >> lane & 1 == 0 {
                continue;
            }
            operand::set_lane(wave, self.row, lane, low32(value));
            if self.words > 1 {
                operand::set_lane(wave, self.row + 1, lane, low32(value >> 32));
            }
        }
    }
}

/// A result in its register, of which it may be a part.
pub(crate) fn placed(inst: &Inst, wave: &Wave, kind: Kind, clears: bool, old: u32, result: u64) -> u64 {
    match inst.extension {
        // Of two registers nothing is chosen.
        Extension::Sdwa(sdwa) if kind.words() == 1 => sdwa::insert(old, result, sdwa.dst, sdwa.unused).into(),
        _ if kind.bits() == 8 => bytes(old, result, inst.mods),
        _ if kind.bits() == 16 => halves(old, result, inst.mods, clears && wave.target.is_gfx9()),
        _ => result,
    }
}

/// A result of eight bits in its register, in the byte that two bits of `op_sel` number.
fn bytes(old: u32, result: u64, mods: Mods) -> u64 {
    let by = 8 * (mods.op_sel >> 2 & 3);
    u64::from(old) & !(0xff << by) | result << by
}

/// A 16-bit result in its register.
pub(crate) fn halves(old: u32, result: u64, mods: Mods, clears: bool) -> u64 {
    let (result, old) = (result & 0xffff, u64::from(old));
    if mods.op_sel & 8 != 0 {
        result << 16 | old & 0xffff
    } else if clears {
        result
    } else {
        result | old & 0xffff_0000
    }
}

/// What a lane's function may ask for.
pub(crate) fn env(wave: &Wave, lane: usize, vcc: u64) -> Env {
    Env { mode: wave.mode, target: wave.target, lane: u32::try_from(lane).unwrap_or(0), vcc: vcc >> lane & 1 == 1 }
}

/// Output multiplier and clamp.
pub(crate) fn finish(result: u64, kind: Kind, mods: &Mods, mode: Mode) -> u64 {
    let Some(format) = kind.format() else {
        return result;
    };
    let fpu = Fpu::new(format, mode);
    let mut result = result;
    // The multiplier works only without denormals and without IEEE mode, and knows no negative
    // zero.
    if mods.omod != 0 && !mode.ieee() && !fpu.denorm_out {
        let by = match mods.omod {
            1 => 1,
            2 => 2,
            _ => -1,
        };
        result = fpu.mul(result, format.power(by));
        if format.is_zero(result) {
            result = 0;
        }
    }
    if mods.clamp {
        result = if format.is_nan(result) {
            if mode.dx10_clamp() {
                0
            } else {
                result
            }
        } else if format.negative(result) {
            0
        } else {
            result.min(format.one())
        };
    }
    result
}

/// Modified sources of an instruction.
pub(crate) struct Sources {
    values: [Values; 3],
    /// Lanes that DPP lets be written.
    pub(crate) write: u64,
}

impl Sources {
    pub(crate) fn lane(&self, lane: usize) -> [u64; 3] {
        let [a, b, c] = &self.values;
        [a, b, c].map(|values| values.get(lane).copied().unwrap_or(0))
    }

    /// Reads `count` sources; the third of a tied operation is its destination.
    pub(crate) fn read(
        inst: &Inst,
        wave: &Wave,
        group: &Group,
        kinds: &[Kind; 3],
        count: usize,
        tied: bool,
    ) -> Result<Sources, Exit> {
        let mut sources = Sources { values: [[0; LANES]; 3], write: u64::MAX };
        let mut permuted: Option<Permutation> = None;
        if let Extension::Dpp(dpp) = &inst.extension {
            let permutation = permutation(dpp, wave);
            sources.write = permutation.write;
            permuted = Some(permutation);
        }
        for (n, values) in sources.values.iter_mut().enumerate().take(count) {
            let (Some(&kind), Some(&src)) = (kinds.get(n), inst.src.get(n)) else {
                return Err(NO_REGISTER);
            };
            let src = if tied && n == 2 { inst.dst } else { src };
            let mut all = operand::source(wave, group, src, kind)?;
            if let (0, Some(permutation)) = (n, &permuted) {
                all = permutation.apply(&all);
            }
            for value in &mut all {
                *value = modified(*value, n, kind, inst);
            }
            *values = all;
        }
        Ok(sources)
    }
}

/// Source `n` after part selection, absolute value and negation.
fn modified(value: u64, n: usize, kind: Kind, inst: &Inst) -> u64 {
    let mods = &inst.mods;
    let mut value = value;
    if let Extension::Sdwa(sdwa) = &inst.extension {
        if let (Some(&which), Some(&sext)) = (sdwa.src.get(n), sdwa.sext.get(n)) {
            value = sdwa::select(value, which, sext);
        }
    } else if kind.bits() == 16 && mods.op_sel >> n & 1 == 1 {
        value >>= 16;
    }
    value &= kind.mask();
    if let Some(format) = kind.format() {
        if mods.abs >> n & 1 == 1 {
            value = format.magnitude(value);
        }
        if mods.neg >> n & 1 == 1 {
            value ^= format.sign_bit();
        }
    }
    value
}
