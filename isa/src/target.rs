// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The processors whose machine code is known.

use std::fmt;
use std::str::FromStr;

/// A processor, by the name that compilers have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Vega 10: GCN5.
    Gfx900,
    /// MI200: CDNA2.
    Gfx90a,
    /// MI300: CDNA3.
    Gfx942,
    /// Navi 21: RDNA2.
    Gfx1030,
    /// Navi 31: RDNA3.
    Gfx1100,
}

impl Target {
    /// All of them, oldest first.
    pub const ALL: [Target; 5] = [Target::Gfx900, Target::Gfx90a, Target::Gfx942, Target::Gfx1030, Target::Gfx1100];

    /// The compilers' name.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Gfx900 => "gfx900",
            Target::Gfx90a => "gfx90a",
            Target::Gfx942 => "gfx942",
            Target::Gfx1030 => "gfx1030",
            Target::Gfx1100 => "gfx1100",
        }
    }

    /// GCN5 and CDNA: encodings of gfx9, 64 lanes.
    pub const fn is_gfx9(self) -> bool {
        matches!(self, Target::Gfx900 | Target::Gfx90a | Target::Gfx942)
    }

    /// CDNA2 and later: one file of VGPRs and AccVGPRs, packed work-item ids.
    pub const fn is_cdna(self) -> bool {
        matches!(self, Target::Gfx90a | Target::Gfx942)
    }

    /// RDNA: 32 or 64 lanes.
    pub const fn is_rdna(self) -> bool {
        matches!(self, Target::Gfx1030 | Target::Gfx1100)
    }

    /// The hardware sets up FLAT_SCRATCH, and stack accesses are `scratch_*` instructions.
    pub const fn has_architected_scratch(self) -> bool {
        matches!(self, Target::Gfx942 | Target::Gfx1100)
    }

    /// Work-item ids are packed into v0, ten bits each.
    pub const fn packs_work_item_ids(self) -> bool {
        matches!(self, Target::Gfx90a | Target::Gfx942 | Target::Gfx1100)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`Target`]'s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a target that is known here (gfx900, gfx90a, gfx942, gfx1030, gfx1100)")]
pub struct UnknownTarget(String);

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Target, UnknownTarget> {
        Target::ALL.into_iter().find(|target| target.name() == name).ok_or_else(|| UnknownTarget(name.into()))
    }
}
