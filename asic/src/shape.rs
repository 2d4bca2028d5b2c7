// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device is: the numbers that a driver reads of its VBIOS, firmware and registers.

use vkfd_gpu::Units;

/// Fields of a product. They come from the tree's one table of targets.
#[derive(Clone, Debug)]
pub struct Shape {
    /// PCI device number.
    pub device_id: u16,
    /// PCI revision.
    pub revision: u8,
    /// Compute units.
    pub units: Units,
    /// Waves that a SIMD takes.
    pub waves_per_simd: u32,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Scratch slots of a unit.
    pub scratch_slots: u32,
    /// Shader clock in MHz.
    pub shader_mhz: u32,
    /// Memory clock in MHz.
    pub memory_mhz: u32,
    /// Version of the compute firmware.
    pub compute_firmware: u32,
    /// Version of the copy engines' firmware.
    pub copy_firmware: u32,
}

impl Shape {
    /// Units of each shader array, counted with those that are missing in some.
    pub fn units_per_array(&self) -> u32 {
        let arrays = (self.units.engines * self.units.arrays).max(1);
        self.units.count.div_ceil(arrays)
    }

    /// Bits of the units that array number `index` does not have.
    pub fn missing_units(&self, index: u32) -> u32 {
        let arrays = (self.units.engines * self.units.arrays).max(1);
        let own = self.units.count / arrays + u32::from(index < self.units.count % arrays);
        let all = u32::MAX.checked_shr(32 - self.units_per_array().min(32)).unwrap_or(0);
        let there = u32::MAX.checked_shr(32 - own.min(32)).unwrap_or(0);
        all & !there
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An MI210.
    pub(crate) fn mi210() -> Shape {
        Shape {
            device_id: 0x740f,
            revision: 2,
            units: Units { count: 104, engines: 8, arrays: 1, waves: 32 },
            waves_per_simd: 8,
            wave_size: 64,
            scratch_slots: 32,
            shader_mhz: 1700,
            memory_mhz: 1600,
            compute_firmware: 78,
            copy_firmware: 8,
        }
    }

    #[test]
    fn every_unit_is_in_one_array() {
        for (count, engines, arrays) in [(104, 8, 1), (110, 8, 1), (64, 4, 1), (60, 2, 2), (1, 8, 1)] {
            let shape = Shape { units: Units { count, engines, arrays, waves: 32 }, ..mi210() };
            let there = |index| shape.units_per_array() - shape.missing_units(index).count_ones();
            assert_eq!((0..engines * arrays).map(there).sum::<u32>(), count, "{count} in {engines} engines");
        }
    }
}
