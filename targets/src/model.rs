// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a GPU of each target looks like in the topology: a product of it.
//!
//! The numbers are the product's: runtimes divide by them, and programs size grids and scratch by
//! them. The software GPU goes by the same ones: it takes as many waves in as so many units have
//! room for, and HW_ID names one of them. Of MI200 it is one of a package's two dies, and of MI300X
//! one of eight, as the driver shows them when a package is partitioned. A machine may have fewer
//! units than the product ([`Model::with_units`]); what each unit has stays.

use crate::Target;

/// What shares a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// So many compute units: each has its own if that is one.
    Units(u32),
    /// All units have one.
    Gpu,
}

/// A cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheModel {
    /// 1 to 3.
    pub level: u32,
    pub kib: u32,
    /// Bytes of a line.
    pub line: u32,
    /// Whether it holds data; otherwise instructions.
    pub data: bool,
    /// The units that share it.
    pub sharing: Sharing,
}

/// A target's product.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// `gfx_target_version`.
    pub version: u32,
    /// PCI device number of a product of that target, by which runtimes know it.
    pub device_id: u32,
    /// PCI revision, with which libdrm finds the product's name.
    pub revision: u32,
    /// libdrm's family (`AMDGPU_FAMILY_*`).
    pub family: u32,
    /// Chip revision within the family.
    pub external_revision: u32,
    /// Compute units.
    pub units: u32,
    /// Shader engines, over which they are spread evenly.
    pub engines: u32,
    /// Shader arrays of each engine.
    pub arrays: u32,
    /// SIMDs in each.
    pub simd_per_unit: u32,
    /// Waves on a SIMD.
    pub waves_per_simd: u32,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Scratch slots of a unit.
    pub scratch_slots: u32,
    /// Registers and LDS have ECC (`sramecc+` in a target's name): compilers and runtimes go by it.
    pub register_ecc: bool,
    /// KiB of GDS.
    pub gds_kib: u32,
    /// Copy engines.
    pub sdma_engines: u32,
    /// Copy engines for links between GPUs.
    pub sdma_xgmi_engines: u32,
    /// Queues of a copy engine.
    pub sdma_queues: u32,
    pub clock_mhz: u32,
    /// MHz of the memory.
    pub memory_mhz: u32,
    /// Bits of the memory's bus.
    pub memory_bits: u32,
    /// Compute firmware. Runtimes turn features on by it.
    pub firmware: u32,
    /// Copy engine firmware.
    pub sdma_firmware: u32,
    pub caches: &'static [CacheModel],
}

pub(crate) const fn cache(level: u32, kib: u32, line: u32, data: bool, sharing: Sharing) -> CacheModel {
    CacheModel { level, kib, line, data, sharing }
}

impl Model {
    /// The one of this `gfx_target_version`, or the newest that is not newer than it: a target
    /// without an entry of its own looks like its predecessor.
    pub fn of(version: u32) -> &'static Self {
        let models = Target::ALL.into_iter().rev().map(Target::model);
        models.clone().find(|model| model.version <= version).unwrap_or(Target::ALL[0].model())
    }

    /// SIMDs of all units.
    pub const fn simds(&self) -> u32 {
        self.units * self.simd_per_unit
    }

    /// The same with so many units, at least one and at most the product's, in as many engines and
    /// arrays as they reach.
    #[must_use]
    pub fn with_units(self, units: u32) -> Self {
        let units = units.clamp(1, self.units);
        let arrays = if units < self.engines * self.arrays { 1 } else { self.arrays };
        Self { units, engines: self.engines.min(units), arrays, ..self }
    }

    /// Shader arrays of all engines.
    pub const fn all_arrays(&self) -> u32 {
        self.engines * self.arrays
    }

    /// Units of the fullest array.
    pub const fn array_units(&self) -> u32 {
        self.units.div_ceil(self.all_arrays())
    }

    /// Units of one array: they are handed out to engines first, then to the arrays of each.
    pub const fn units_of(&self, engine: u32, array: u32) -> u32 {
        let before = array * self.engines + engine;
        self.units.saturating_sub(before).div_ceil(self.all_arrays())
    }

    /// How many caches there are, those of each unit counted one by one.
    pub fn cache_count(&self) -> u32 {
        self.caches.iter().map(|cache| self.copies(cache)).sum()
    }

    /// Shader arrays, by engine and number in it, in the driver's order.
    pub fn shader_arrays(&self) -> impl Iterator<Item = (u32, u32)> + Clone + '_ {
        (0..self.engines).flat_map(|engine| (0..self.arrays).map(move |array| (engine, array)))
    }

    /// How many of a cache there are. Units of different arrays share none but the GPU's.
    pub fn copies(&self, cache: &CacheModel) -> u32 {
        match cache.sharing {
            Sharing::Units(together) => {
                self.shader_arrays().map(|(engine, array)| self.units_of(engine, array).div_ceil(together)).sum()
            }
            Sharing::Gpu => 1,
        }
    }

    /// The units of copy number `copy` of a cache that `together` units share: the first, counted
    /// as if all arrays were full, and how many there are.
    pub fn sharers(&self, copy: u32, together: u32) -> (u32, u32) {
        let mut left = copy;
        for (number, (engine, array)) in (0..).zip(self.shader_arrays()) {
            let own = self.units_of(engine, array);
            let copies = own.div_ceil(together);
            if left < copies {
                return (number * self.array_units() + left * together, together.min(own - left * together));
            }
            left -= copies;
        }
        (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_in_arrays_however_many_there_are() {
        for model in Target::ALL.map(Target::model) {
            for units in 1..=model.units {
                let model = model.with_units(units);
                let each = model.shader_arrays().map(|(engine, array)| model.units_of(engine, array));
                assert_eq!(each.clone().sum::<u32>(), units, "{model:?}");
                assert!(each.clone().all(|each| (1..=model.array_units()).contains(&each)), "{model:?}");
            }
            assert_eq!((model.with_units(1000).units, model.with_units(0).units), (model.units, 1));
        }
    }

    #[test]
    fn a_target_without_a_model_looks_like_its_predecessor() {
        for (version, model) in [
            (90_000, 90_000),
            (90_006, 90_000),
            (90_010, 90_010),
            (90_008, 90_000),
            (90_400, 90_010),
            (90_402, 90_402),
            (100_300, 100_300),
            (u32::MAX, Target::ALL[Target::ALL.len() - 1].version()),
        ] {
            assert_eq!(Model::of(version).version, model, "{version}");
        }
    }
}
