// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a GPU can be: the targets that this machine really is, by the names that compilers have for
//! them (`gfx90a`). Others are refused rather than shown as a relative of theirs: a runtime would
//! believe it.

use crate::error::HostError;
use std::fmt;
use std::str::FromStr;

/// A GPU target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    name: &'static str,
    version: u32,
    family: vkfd_gpu::Family,
    product: &'static str,
}

impl Target {
    /// Vega 10.
    pub const GFX900: Self = Self {
        name: "gfx900",
        version: 90_000,
        family: vkfd_gpu::Family::Gfx9,
        product: "Radeon Vega Frontier Edition",
    };
    pub const GFX90A: Self =
        Self { name: "gfx90a", version: 90_010, family: vkfd_gpu::Family::Gfx9, product: "AMD Instinct MI210" };
    pub const GFX942: Self =
        Self { name: "gfx942", version: 90_402, family: vkfd_gpu::Family::Gfx9, product: "AMD Instinct MI300X" };
    /// Navi 21.
    pub const GFX1030: Self =
        Self { name: "gfx1030", version: 100_300, family: vkfd_gpu::Family::Gfx10, product: "AMD Radeon RX 6900 XT" };
    /// Navi 31.
    pub const GFX1100: Self =
        Self { name: "gfx1100", version: 110_000, family: vkfd_gpu::Family::Gfx11, product: "AMD Radeon RX 7900 XTX" };

    /// All of them.
    pub const ALL: [Self; 5] = [Self::GFX900, Self::GFX90A, Self::GFX942, Self::GFX1030, Self::GFX1100];

    /// Its name, as compilers write it.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// `gfx_target_version` of the topology: major * 10000 + minor * 100 + stepping.
    pub const fn version(self) -> u32 {
        self.version
    }

    /// The packet formats it speaks.
    pub const fn family(self) -> vkfd_gpu::Family {
        self.family
    }

    /// The product whose PCI device number it has.
    pub const fn product(self) -> &'static str {
        self.product
    }
}

impl Target {
    /// What executes its machine code, if that is known.
    pub fn machine_code(self) -> Option<vkfd_gpu::isa::Target> {
        self.to_string().parse().ok()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Target {
    type Err = HostError;

    fn from_str(name: &str) -> Result<Self, HostError> {
        let known = Self::ALL.into_iter().find(|target| target.name == name);
        let names = || Self::ALL.map(|target| target.name).join(", ");
        known.ok_or_else(|| HostError::Option(format!("{name:?} is no target that this GPU can be: {}", names())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_driver::topology::{Model, MODELS};

    #[test]
    fn names_and_versions_agree() {
        for target in Target::ALL {
            let version = target.version;
            let name = format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100);
            assert_eq!(name, target.name);
            assert_eq!(name.parse::<Target>().unwrap(), target);
        }
        for bad in ["", "gfx", "gfx803", "gfx9", "gfx90x", "900", "gfx908", "gfx1201", "gfx10300", "GFX900"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    /// A runtime goes by these: two targets that shared one would be taken for each other.
    #[test]
    fn each_has_a_device_of_its_own() {
        let models = Target::ALL.map(|target| Model::of(target.version));
        assert!(models.iter().zip(Target::ALL).all(|(model, target)| model.version == target.version));
        let devices: std::collections::BTreeSet<_> = models.iter().map(|model| model.device_id).collect();
        assert_eq!((devices.len(), MODELS.len()), (Target::ALL.len(), Target::ALL.len()));
    }
}
