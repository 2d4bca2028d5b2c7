// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a GPU of each target looks like in the topology: a product of it.
//!
//! The numbers are the product's: runtimes divide by them, and programs size grids and scratch by
//! them. The software GPU goes by the same ones: it takes as many waves in as so many units have
//! room for, and HW_ID names one of them. Of MI200 it is one of a package's two dies, and of MI300X
//! one of eight, as the driver shows them when a package is partitioned. A machine may have fewer
//! units than the product ([`Model::with_units`]); what each unit has stays.
#![expect(clippy::arithmetic_side_effects, reason = "of the machine's description, no part of which is a client's")]

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

impl Model {
    /// Whether registers and LDS have ECC (`sramecc+` in a target's name): compilers and runtimes
    /// go by it.
    pub const fn has_register_ecc(&self) -> bool {
        matches!(self.version, 90_010 | 90_402)
    }
}

const fn cache(level: u32, kib: u32, line: u32, data: bool, sharing: Sharing) -> CacheModel {
    CacheModel { level, kib, line, data, sharing }
}

/// Vega 10.
pub const GFX900: Model = Model {
    version: 90_000,
    device_id: 0x6863,
    revision: 0,
    family: 141,
    external_revision: 0x01,
    units: 64,
    engines: 4,
    arrays: 1,
    simd_per_unit: 4,
    waves_per_simd: 10,
    wave_size: 64,
    scratch_slots: 32,
    gds_kib: 64,
    sdma_engines: 2,
    sdma_xgmi_engines: 0,
    sdma_queues: 2,
    clock_mhz: 1600,
    memory_mhz: 945,
    memory_bits: 2048,
    firmware: 468,
    sdma_firmware: 432,
    caches: &[
        cache(1, 16, 64, true, Sharing::Units(1)),
        cache(1, 32, 64, false, Sharing::Units(3)),
        cache(2, 4096, 64, true, Sharing::Gpu),
    ],
};

/// A die of MI200.
pub const GFX90A: Model = Model {
    version: 90_010,
    device_id: 0x740f,
    revision: 2,
    family: 141,
    external_revision: 0x3c,
    units: 104,
    engines: 8,
    arrays: 1,
    simd_per_unit: 4,
    waves_per_simd: 8,
    wave_size: 64,
    scratch_slots: 32,
    gds_kib: 0,
    sdma_engines: 2,
    sdma_xgmi_engines: 3,
    sdma_queues: 8,
    clock_mhz: 1700,
    memory_mhz: 1600,
    memory_bits: 4096,
    firmware: 78,
    sdma_firmware: 8,
    caches: &[
        cache(1, 16, 64, true, Sharing::Units(1)),
        cache(1, 32, 64, false, Sharing::Units(2)),
        cache(2, 8192, 128, true, Sharing::Gpu),
    ],
};

/// A die of MI300X.
pub const GFX942: Model = Model {
    version: 90_402,
    device_id: 0x74a1,
    revision: 0,
    family: 141,
    external_revision: 0x47,
    units: 38,
    engines: 4,
    arrays: 1,
    simd_per_unit: 4,
    waves_per_simd: 8,
    wave_size: 64,
    scratch_slots: 32,
    gds_kib: 0,
    sdma_engines: 2,
    sdma_xgmi_engines: 14,
    sdma_queues: 8,
    clock_mhz: 2100,
    memory_mhz: 1300,
    memory_bits: 8192,
    firmware: 166,
    sdma_firmware: 22,
    caches: &[
        cache(1, 32, 128, true, Sharing::Units(1)),
        cache(1, 64, 128, false, Sharing::Units(2)),
        cache(2, 4096, 128, true, Sharing::Gpu),
        cache(3, 262_144, 64, true, Sharing::Gpu),
    ],
};

/// Navi 21.
pub const GFX1030: Model = Model {
    version: 100_300,
    device_id: 0x73bf,
    revision: 0xc0,
    family: 143,
    external_revision: 0x28,
    units: 80,
    engines: 4,
    arrays: 2,
    simd_per_unit: 2,
    waves_per_simd: 16,
    wave_size: 32,
    scratch_slots: 32,
    gds_kib: 0,
    sdma_engines: 2,
    sdma_xgmi_engines: 0,
    sdma_queues: 8,
    clock_mhz: 2250,
    memory_mhz: 1000,
    memory_bits: 256,
    firmware: 115,
    sdma_firmware: 83,
    caches: &[
        cache(1, 16, 128, true, Sharing::Units(1)),
        cache(1, 32, 64, false, Sharing::Units(2)),
        cache(2, 4096, 128, true, Sharing::Gpu),
        cache(3, 131_072, 64, true, Sharing::Gpu),
    ],
};

/// Navi 31.
pub const GFX1100: Model = Model {
    version: 110_000,
    device_id: 0x744c,
    revision: 0xc8,
    family: 145,
    external_revision: 0x01,
    units: 96,
    engines: 6,
    arrays: 2,
    simd_per_unit: 2,
    waves_per_simd: 16,
    wave_size: 32,
    scratch_slots: 32,
    gds_kib: 0,
    sdma_engines: 2,
    sdma_xgmi_engines: 0,
    sdma_queues: 6,
    clock_mhz: 2500,
    memory_mhz: 1250,
    memory_bits: 384,
    firmware: 550,
    sdma_firmware: 19,
    caches: &[
        cache(1, 32, 128, true, Sharing::Units(1)),
        cache(1, 32, 128, false, Sharing::Units(2)),
        cache(2, 6144, 128, true, Sharing::Gpu),
        cache(3, 98_304, 64, true, Sharing::Gpu),
    ],
};

/// All of them, oldest first.
pub const MODELS: [&Model; 5] = [&GFX900, &GFX90A, &GFX942, &GFX1030, &GFX1100];

impl Model {
    /// The one of this `gfx_target_version`, or the newest that is not newer than it: a target
    /// without an entry of its own looks like its predecessor.
    pub fn of(version: u32) -> &'static Self {
        MODELS.iter().rev().find(|model| model.version <= version).unwrap_or(&MODELS[0])
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

    /// How many of a cache there are.
    pub const fn copies(&self, cache: &CacheModel) -> u32 {
        match cache.sharing {
            Sharing::Units(together) => self.units.div_ceil(together),
            Sharing::Gpu => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_in_arrays_however_many_there_are() {
        for model in MODELS {
            for units in 1..=model.units {
                let model = model.with_units(units);
                let arrays = (0..model.engines).flat_map(|engine| (0..model.arrays).map(move |array| (engine, array)));
                let each = arrays.map(|(engine, array)| model.units_of(engine, array));
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
            (120_001, 110_000),
        ] {
            assert_eq!(Model::of(version).version, model, "{version}");
        }
    }
}
