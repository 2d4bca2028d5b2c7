// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The GPU targets that this tree knows: one row of facts each.
//!
//! Mechanism: `table` has a row for each target: name, number, product, encodings and packet
//! formats, features, blocks of the discovery table. The row's [`Model`] has the numbers of the
//! topology. The decoder, the engines, the driver and the programs ask [`Target`]. Asserts at
//! compile time check that names, numbers and order agree.
//!
//! Facts that need a crate's own types are not here. Their places carry a comment `NEW TARGET:`,
//! and docs/extending.md lists them.
//!
//! Limits: this crate is below all others, also in a kernel: no dependencies, no allocation, no
//! state and no lock.
#![no_std]

mod model;
mod table;

use core::fmt;
use core::str::FromStr;

pub use model::{CacheModel, Model, Sharing};
pub use table::Target;
use table::ROWS;

/// Generation of encodings and packet formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Vega and CDNA: 64 lanes.
    Gfx9,
    /// Navi; adds the cache request packet (GCR_REQ) to SDMA, and a word to PM4's ACQUIRE_MEM.
    Gfx10,
    /// Navi 3 and later; SDMA's copies have 30 bits of count.
    Gfx11,
}

/// Features that some targets of a family have.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// CDNA2 and later: one file of VGPRs and AccVGPRs.
    pub cdna: bool,
    /// The hardware sets up FLAT_SCRATCH, and stack accesses are `scratch_*` instructions.
    pub architected_scratch: bool,
    /// Work-item ids are packed into v0, ten bits each.
    pub packed_work_item_ids: bool,
}

/// Versions of hardware blocks in the discovery table: major, minor, revision.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Graphics core.
    pub core: [u32; 3],
    /// Copy engine.
    pub copy: [u32; 3],
    /// Bus interface.
    pub bus: [u32; 3],
}

/// The facts of a target.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The compilers' name.
    pub name: &'static str,
    /// The product whose PCI device number it has.
    pub product: &'static str,
    /// `EF_AMDGPU_MACH` in the flags of ELF headers.
    pub elf_machine: u8,
    pub family: Family,
    pub features: Features,
    pub blocks: Blocks,
    pub model: Model,
}

impl Target {
    /// Its row.
    #[inline]
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The compilers' name.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// `gfx_target_version` of the topology: major * 10000 + minor * 100 + stepping.
    pub const fn version(self) -> u32 {
        self.row().model.version
    }

    /// The target of this `gfx_target_version`.
    pub fn of_version(version: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.version() == version)
    }

    /// `EF_AMDGPU_MACH` in the flags of ELF headers.
    pub const fn elf_machine(self) -> u8 {
        self.row().elf_machine
    }

    /// The target with this number in ELF headers.
    pub fn of_elf_machine(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.elf_machine() == number)
    }

    /// The product whose PCI device number it has.
    pub const fn product(self) -> &'static str {
        self.row().product
    }

    /// The encodings and packet formats.
    #[inline]
    pub const fn family(self) -> Family {
        self.row().family
    }

    /// Its numbers in the topology.
    pub const fn model(self) -> &'static Model {
        &self.row().model
    }

    /// GCN5 and CDNA: encodings of gfx9, 64 lanes.
    #[inline]
    pub const fn is_gfx9(self) -> bool {
        matches!(self.family(), Family::Gfx9)
    }

    /// CDNA2 and later: one file of VGPRs and AccVGPRs, packed work-item ids.
    #[inline]
    pub const fn is_cdna(self) -> bool {
        self.row().features.cdna
    }

    /// RDNA: 32 or 64 lanes.
    #[inline]
    pub const fn is_rdna(self) -> bool {
        !self.is_gfx9()
    }

    /// The hardware sets up FLAT_SCRATCH, and stack accesses are `scratch_*` instructions.
    #[inline]
    pub const fn has_architected_scratch(self) -> bool {
        self.row().features.architected_scratch
    }

    /// Work-item ids are packed into v0, ten bits each.
    #[inline]
    pub const fn packs_work_item_ids(self) -> bool {
        self.row().features.packed_work_item_ids
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no [`Target`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTarget;

impl fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a target that is known here (")?;
        for (number, target) in Target::ALL.into_iter().enumerate() {
            f.write_str(if number == 0 { "" } else { ", " })?;
            f.write_str(target.name())?;
        }
        f.write_str(")")
    }
}

impl core::error::Error for UnknownTarget {}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Self, UnknownTarget> {
        Self::ALL.into_iter().find(|target| target.name() == name).ok_or(UnknownTarget)
    }
}

/// Whether `name` is `gfx`, the major number, and minor and stepping as hexadecimal digits.
const fn is_name_of(name: &str, version: u32) -> bool {
    const DIGITS: &[u8] = b"0123456789abcdef";
    let name = name.as_bytes();
    let mut expected = [0; 8];
    let mut length = 0;
    let major = version / 10_000;
    let digits = [major / 10, major % 10, version / 100 % 100, version % 100];
    let mut at = 0;
    while at < digits.len() {
        // gfx900 has one digit for its major number, gfx1030 two.
        if at > 0 || digits[at] > 0 {
            expected[length] = DIGITS[digits[at] as usize];
            length += 1;
        }
        at += 1;
    }
    if name.len() != 3 + length || name[0] != b'g' || name[1] != b'f' || name[2] != b'x' {
        return false;
    }
    while length > 0 {
        length -= 1;
        if name[3 + length] != expected[length] {
            return false;
        }
    }
    true
}

// Names and numbers agree, targets ascend, and each has a device of its own: runtimes would take
// two with one PCI device number for each other.
const _: () = {
    let mut at = 0;
    while at < ROWS.len() {
        let row = &ROWS[at];
        assert!(is_name_of(row.name, row.model.version), "a target's name does not fit its number");
        let mut before = 0;
        while before < at {
            let other = &ROWS[before].model;
            assert!(other.version < row.model.version, "targets do not ascend");
            assert!(other.device_id != row.model.device_id, "two targets share a PCI device number");
            before += 1;
        }
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_name_one_target() {
        for target in Target::ALL {
            assert_eq!(target.name().parse(), Ok(target));
            assert_eq!(Target::of_version(target.version()), Some(target));
        }
        for bad in ["", "gfx", "gfx803", "gfx9", "gfx90x", "900", "gfx908", "gfx1201", "gfx10300", "GFX900"] {
            assert_eq!(bad.parse::<Target>(), Err(UnknownTarget), "{bad}");
        }
        assert_eq!(Target::of_version(90_008), None);
        assert!(is_name_of("gfx90a", 90_010) && !is_name_of("gfx90a", 90_011) && !is_name_of("gfx900a", 90_010));
        assert!(is_name_of("gfx1030", 100_300) && !is_name_of("gfx103", 100_300) && !is_name_of("gfx1030", 10_300));
    }
}
