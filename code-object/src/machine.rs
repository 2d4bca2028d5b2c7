// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The processor of a code object, from the flags in its header.

use std::fmt;

use vkfd_targets::Target;

/// A processor, and what its code needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `EF_AMDGPU_MACH`.
    pub number: u8,
    /// Whether memory instructions may be replayed.
    pub xnack: Setting,
    /// Whether registers have ECC.
    pub sramecc: Setting,
}

/// A setting of the processor that code depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The processor has it not, or versions 2 and 3 do not say.
    None,
    Any,
    Off,
    On,
}

impl Machine {
    /// The processor that the flags of an ELF header name, in an object of `version` (2 to 6).
    #[must_use]
    pub fn of(flags: u32, version: u8) -> Machine {
        let setting = |bit: u32, field: u32| match (version, flags >> bit & 1, flags >> field & 3) {
            (0..=3, 1, _) | (4.., _, 3) => Setting::On,
            (4.., _, 2) => Setting::Off,
            (4.., _, 1) => Setting::Any,
            _ => Setting::None,
        };
        Machine { number: flags.to_le_bytes()[0], xnack: setting(8, 8), sramecc: setting(9, 10) }
    }

    /// The target, if it is known here.
    #[must_use]
    pub fn target(self) -> Option<Target> {
        Target::of_elf_machine(self.number)
    }

    /// The compilers' name.
    fn name(self) -> Option<&'static str> {
        self.target().map(Target::name).or_else(|| {
            let other = OTHERS.iter().find(|(number, _)| *number == self.number);
            other.map(|(_, name)| *name)
        })
    }
}

/// As compilers write it: `gfx90a:sramecc+:xnack-`.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => return write!(f, "machine {:#x}", self.number),
        }
        for (name, setting) in [("sramecc", self.sramecc), ("xnack", self.xnack)] {
            match setting {
                Setting::None | Setting::Any => {}
                Setting::Off => write!(f, ":{name}-")?,
                Setting::On => write!(f, ":{name}+")?,
            }
        }
        Ok(())
    }
}

/// Processors that are no targets here. From LLVM's `EF_AMDGPU_MACH`.
const OTHERS: &[(u8, &str)] = &[
    (0x20, "gfx600"),
    (0x21, "gfx601"),
    (0x22, "gfx700"),
    (0x23, "gfx701"),
    (0x24, "gfx702"),
    (0x25, "gfx703"),
    (0x26, "gfx704"),
    (0x28, "gfx801"),
    (0x29, "gfx802"),
    (0x2a, "gfx803"),
    (0x2b, "gfx810"),
    (0x2d, "gfx902"),
    (0x2e, "gfx904"),
    (0x2f, "gfx906"),
    (0x30, "gfx908"),
    (0x31, "gfx909"),
    (0x32, "gfx90c"),
    (0x33, "gfx1010"),
    (0x34, "gfx1011"),
    (0x35, "gfx1012"),
    (0x37, "gfx1031"),
    (0x38, "gfx1032"),
    (0x39, "gfx1033"),
    (0x3d, "gfx1035"),
    (0x3e, "gfx1034"),
    (0x40, "gfx940"),
    (0x43, "gfx1150"),
    (0x44, "gfx1103"),
    (0x45, "gfx1036"),
    (0x46, "gfx1101"),
    (0x47, "gfx1102"),
    (0x48, "gfx1200"),
    (0x4a, "gfx1151"),
    (0x4b, "gfx941"),
    (0x4e, "gfx1201"),
    (0x4f, "gfx950"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_as_compilers_do() {
        assert_eq!(Machine::of(0x53f, 4).to_string(), "gfx90a");
        assert_eq!(Machine::of(0xe3f, 4).to_string(), "gfx90a:sramecc+:xnack-");
        assert_eq!(Machine::of(0x32c, 5).to_string(), "gfx900:xnack+");
        assert_eq!(Machine::of(0x13f, 3).to_string(), "gfx90a:xnack+");
        assert_eq!(Machine::of(0x30, 4).to_string(), "gfx908");
        assert_eq!(Machine::of(0xff, 4).to_string(), "machine 0xff");
    }

    #[test]
    fn a_number_is_a_targets_or_anothers() {
        for target in Target::ALL {
            assert!(OTHERS.iter().all(|(number, name)| *number != target.elf_machine() && *name != target.name()));
            assert_eq!(Target::of_elf_machine(target.elf_machine()), Some(target));
        }
    }
}
