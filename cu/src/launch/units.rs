// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The compute units of a GPU: how many there are, in which shader engines and arrays, and what
//! each has room for.
//!
//! The machine's description has the same numbers for programs. Launches take in as many groups as
//! fit the units' waves, registers and LDS, and HW_ID names one of the units to a wave. So a
//! program that indexes by its unit, or sizes a grid by the units, finds one GPU.
//!
//! Limits: groups are not packed into single units: what is counted is the whole GPU's room.

use crate::group::Place;
use vkfd_isa::Target;

/// Bytes of LDS of a compute unit; two units that run a group together have both.
const LDS_BYTES: u64 = 64 << 10;

/// The units of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// How many there are.
    pub count: u32,
    /// Shader engines that have them.
    pub engines: u32,
    /// Shader arrays of each engine.
    pub arrays: u32,
    /// Waves that a unit takes.
    pub waves: u32,
}

impl Units {
    /// Vega 10's.
    pub const VEGA10: Units = Units { count: 64, engines: 4, arrays: 1, waves: 40 };

    /// Where a unit is. Numbers count over the arrays first, as hardware hands out groups.
    pub fn place(&self, number: u32) -> Place {
        let number = number % self.count.max(1);
        let (engines, arrays) = (self.engines.max(1), self.arrays.max(1));
        let (engine, rest) = (number % engines, number / engines);
        Place { engine, array: rest % arrays, unit: rest / arrays }
    }

    /// Groups that all units have room for at once, of `waves` waves with `vgprs` registers each
    /// and so much LDS: at least one.
    pub(super) fn resident(&self, target: Target, lanes: u8, waves: u32, vgprs: u16, lds: u32) -> u64 {
        let waves = u64::from(waves.max(1));
        let count = u64::from(self.count);
        let slots = count * u64::from(self.waves) / waves;
        let words = u64::from(simd_words(target)) * u64::from(simds(target));
        let registers = count * words / (waves * u64::from(vgprs.max(1)) * u64::from(lanes.max(1)));
        let local = count * LDS_BYTES / u64::from(lds.max(1));
        slots.min(registers).min(local).max(1)
    }
}

/// Words of the vector registers of a SIMD.
pub(super) const fn simd_words(target: Target) -> u32 {
    match target {
        Target::Gfx900 => 256 * 64,
        Target::Gfx90a | Target::Gfx942 => 512 * 64,
        Target::Gfx1030 => 1024 * 32,
        Target::Gfx1100 => 1536 * 32,
    }
}

/// Bytes of LDS that a work-group gets for a launch of so many: hardware gives it in steps.
pub(super) fn lds_given(target: Target, bytes: u32) -> u32 {
    let step = match target {
        // NEW TARGET: the steps in which LDS is given
        Target::Gfx900 | Target::Gfx90a | Target::Gfx942 | Target::Gfx1030 | Target::Gfx1100 => 512,
    };
    bytes.div_ceil(step).saturating_mul(step)
}

/// SIMDs of a unit.
const fn simds(target: Target) -> u32 {
    if target.is_gfx9() {
        4
    } else {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_unit_has_a_place_of_its_own() {
        for units in [
            Units::VEGA10,
            Units { count: 104, engines: 8, arrays: 1, waves: 32 },
            Units { count: 38, engines: 4, arrays: 1, waves: 32 },
            Units { count: 80, engines: 4, arrays: 2, waves: 32 },
            Units { count: 1, engines: 1, arrays: 1, waves: 32 },
        ] {
            let places: HashSet<_> = (0..units.count).map(|n| format!("{:?}", units.place(n))).collect();
            assert_eq!(places.len(), units.count as usize, "{units:?}");
            let most = units.count.div_ceil(units.engines * units.arrays);
            for number in 0..2 * units.count {
                let Place { engine, array, unit } = units.place(number);
                assert!(engine < units.engines && array < units.arrays && unit < most, "{units:?} {number}");
            }
        }
    }

    #[test]
    fn lds_is_given_in_steps() {
        let given = [0, 1, 512, 513, 65536].map(|bytes| lds_given(Target::Gfx900, bytes));
        assert_eq!(given, [0, 512, 512, 1024, 65536]);
    }

    #[test]
    fn what_is_scarce_decides_how_many_groups_there_are() {
        let resident = |waves, vgprs, lds| Units::VEGA10.resident(Target::Gfx900, 64, waves, vgprs, lds);
        assert_eq!(resident(1, 24, 0), 2560, "waves");
        assert_eq!(resident(4, 24, 0), 640);
        assert_eq!(resident(1, 256, 0), 256, "a wave of each SIMD");
        assert_eq!(resident(1, 24, 65536), 64, "one of each unit");
        assert_eq!(resident(16, 64, 65536), 64);
        let navi = Units { count: 80, engines: 4, arrays: 2, waves: 32 };
        assert_eq!(navi.resident(Target::Gfx1030, 32, 1, 256, 0), 640);
        assert_eq!(navi.resident(Target::Gfx1030, 64, 1, 256, 0), 320);
    }
}
