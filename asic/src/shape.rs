// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device is: the numbers that a driver reads of its VBIOS, firmware and registers.

use vkfd_gpu::Units;
use vkfd_targets::Model;

/// Fields of a product.
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
    /// A row of the tree's one table of targets, as the device has it. `None` where a number is
    /// none of PCI.
    pub fn of(model: &Model) -> Option<Self> {
        let waves = model.simd_per_unit * model.waves_per_simd;
        Some(Self {
            device_id: u16::try_from(model.device_id).ok()?,
            revision: u8::try_from(model.revision).ok()?,
            units: Units { count: model.units, engines: model.engines, arrays: model.arrays, waves },
            waves_per_simd: model.waves_per_simd,
            wave_size: model.wave_size,
            scratch_slots: model.scratch_slots,
            shader_mhz: model.clock_mhz,
            memory_mhz: model.memory_mhz,
            compute_firmware: model.firmware,
            copy_firmware: model.sdma_firmware,
        })
    }

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
        Shape::of(vkfd_targets::Target::Gfx90a.model()).unwrap()
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
