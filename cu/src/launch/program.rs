// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program's description for the hardware: its address, its registers, its modes.
//!
//! Source: the registers COMPUTE_PGM_RSRC1 to 3. Every kernel descriptor has their values, and PM4
//! sets them one by one. Fields without a meaning for a functional GPU (priority, WGP mode, memory
//! ordering, prefetch) are ignored.

use super::units::simd_words;
use crate::wave::Mode;
use vkfd_isa::Target;

/// A program cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A dimension is missing, zero or too many.
    #[error("grid {grid:?} in work-groups of {group:?} has no meaning in {dimensions} dimensions")]
    Dimensions {
        /// Work-items.
        grid: [u32; 3],
        /// Work-items of a group.
        group: [u32; 3],
        /// How many of them count.
        dimensions: u32,
    },
    /// More work-items than a compute unit takes.
    #[error("a work-group of {0} work-items is larger than {max}", max = super::MAX_GROUP)]
    GroupTooLarge(u64),
    /// More LDS than there is.
    #[error("{0} bytes of LDS are more than a work-group's {max}", max = super::MAX_LDS)]
    Lds(u64),
    /// The work-group's waves need more registers than a compute unit has.
    #[error("{waves} waves of {vgprs} VGPRs are more than a compute unit has room for")]
    Registers {
        /// Waves of a work-group.
        waves: u32,
        /// Registers of each.
        vgprs: u32,
    },
    /// The descriptor makes no sense.
    #[error("the kernel descriptor is invalid: {0}")]
    Code(&'static str),
}

/// A program, as its registers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose instructions it has.
    pub target: Target,
    /// Address of the first one.
    pub entry: u64,
    /// 32 or 64.
    pub lanes: u8,
    /// Vector registers, accumulation registers included.
    pub vgprs: u16,
    /// The first accumulation register among them.
    pub acc: u16,
    /// Scalar registers.
    pub sgprs: u8,
    /// Initial MODE.
    pub mode: Mode,
    /// Scalar registers that the packet processor fills; the others follow them.
    pub user_sgprs: u8,
    /// Which indices of the work-group follow.
    pub group_ids: [bool; 3],
    /// Whether the work-group's size in waves follows.
    pub group_info: bool,
    /// Whether there is scratch, and with it the wave's offset where hardware does not add it.
    pub scratch: bool,
    /// Dimensions of work-item ids in vector registers: 1 to 3.
    pub item_ids: u8,
    /// LDS in bytes, for launches that say it nowhere else.
    pub lds: u32,
}

impl Program {
    /// A program at `entry` with the values of COMPUTE_PGM_RSRC1 to 3.
    ///
    /// # Errors
    /// [`LaunchError::Code`] for a request that hardware cannot meet.
    pub fn new(target: Target, entry: u64, rsrc: [u32; 3], wave32: bool) -> Result<Program, LaunchError> {
        let [rsrc1, rsrc2, rsrc3] = rsrc;
        let field = |word: u32, at: u32, bits: u32| word >> at & ((1 << bits) - 1);
        let bit = |word: u32, at: u32| word >> at & 1 != 0;
        if entry % 4 != 0 {
            return Err(LaunchError::Code("the code is not aligned"));
        }
        if wave32 && !target.is_rdna() {
            return Err(LaunchError::Code("waves of 32 on a target that has none"));
        }
        // TG_SPLIT lets waves of a group run on several compute units, without LDS and barriers.
        if target.is_cdna() && bit(rsrc3, 16) {
            return Err(LaunchError::Code("TG_SPLIT is not supported"));
        }
        let granule = match (target.is_cdna(), wave32) {
            (true, _) | (_, true) => 8,
            _ => 4,
        };
        let vgprs = (field(rsrc1, 0, 6) + 1) * granule;
        let sgprs = match target.is_gfx9() {
            // Encoded in eights, given out in sixteens; the last addressable one is 101.
            true => ((field(rsrc1, 6, 4) + 1) * 8).next_multiple_of(16).min(102),
            false => 106,
        };
        let acc = if target.is_cdna() { ((field(rsrc3, 0, 6) + 1) * 4).min(vgprs) } else { vgprs };
        let item_ids = field(rsrc2, 11, 2) + 1;
        if item_ids > 3 {
            return Err(LaunchError::Code("work-item ids in four dimensions"));
        }
        let mut mode = field(rsrc1, 12, 8) | field(rsrc2, 24, 7) << 12;
        for (at, to) in [(21, 8), (23, 9), (26, 23)] {
            mode |= field(rsrc1, at, 1) << to;
        }
        let narrow = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let wide = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        Ok(Program {
            target,
            entry,
            lanes: if wave32 { 32 } else { 64 },
            vgprs: wide(vgprs),
            acc: wide(acc),
            sgprs: narrow(sgprs),
            mode: Mode(mode),
            user_sgprs: narrow(field(rsrc2, 1, 5)),
            group_ids: [7, 8, 9].map(|at| bit(rsrc2, at)),
            group_info: bit(rsrc2, 10),
            scratch: bit(rsrc2, 0),
            item_ids: narrow(item_ids),
            lds: field(rsrc2, 15, 9) * 512,
        })
    }

    /// Whether a compute unit has registers for `waves` waves at once.
    pub(super) fn fits(&self, waves: u32) -> bool {
        // A work-group has the SIMDs of a unit of gfx9, or of two units of the others.
        let file = simd_words(self.target) / u32::from(self.lanes.max(1));
        waves.div_ceil(4) * u32::from(self.vgprs) <= file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_counted_in_the_targets_granules() {
        let program = |target, rsrc1, wave32| Program::new(target, 0x100, [rsrc1, 0, 3], wave32).unwrap();
        let blocks = 5 | 4 << 6;
        let vgprs = |target, wave32| program(target, blocks, wave32).vgprs;
        assert_eq!(vgprs(Target::Gfx900, false), 24);
        assert_eq!(vgprs(Target::Gfx90a, false), 48);
        assert_eq!(vgprs(Target::Gfx1030, false), 24);
        assert_eq!(vgprs(Target::Gfx1100, true), 48);
        assert_eq!(program(Target::Gfx900, blocks, false).sgprs, 48);
        assert_eq!(program(Target::Gfx900, 15 << 6, false).sgprs, 102);
        assert_eq!(program(Target::Gfx1030, 0, true).sgprs, 106);
        assert_eq!(program(Target::Gfx90a, blocks, false).acc, 16);
    }

    #[test]
    fn what_compilers_ask_for_is_the_default_mode() {
        let rsrc1 = 0xf << 16 | 1 << 21 | 1 << 23;
        assert_eq!(Program::new(Target::Gfx900, 0, [rsrc1, 0, 0], false).unwrap().mode, Mode::DEFAULT);
    }

    #[test]
    fn what_hardware_cannot_do_is_refused() {
        let code = |target, entry, rsrc, wave32| {
            matches!(Program::new(target, entry, rsrc, wave32), Err(LaunchError::Code(_)))
        };
        assert!(code(Target::Gfx900, 2, [0; 3], false));
        assert!(code(Target::Gfx900, 0, [0; 3], true));
        assert!(code(Target::Gfx900, 0, [0, 3 << 11, 0], false));
        assert!(code(Target::Gfx90a, 0, [0, 0, 1 << 16], false));
        assert!(!code(Target::Gfx900, 0, [0, 0, 1 << 16], false));
    }
}
