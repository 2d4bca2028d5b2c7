// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernel objects: the targets of a dispatch packet's `kernel_object`.
//!
//! Code objects of version 3 and later have descriptors of 64 bytes, those of version 2 an
//! `amd_kernel_code_t` of 256. The words that the packet processor needs lie at the same offsets in
//! both. Sizes of LDS and scratch come from the packet. Only words that a later version reused need
//! a distinction ([`Preload`]).

use super::program::{LaunchError, Program};
use vkfd_isa::Target;

/// Bytes of a kernel object that are read.
pub const DESCRIPTOR_BYTES: usize = 64;

const ENTRY: usize = 16;
const RSRC3: usize = 44;
const RSRC1: usize = 48;
const RSRC2: usize = 52;
const PROPERTIES: usize = 56;
const PRELOAD: usize = 58;

/// Bytes of code with which programs begin that can do without preloaded arguments, by loading
/// them.
const PRELOAD_PROLOGUE: u64 = 256;

/// Arguments that the packet processor loads into user SGPRs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preload {
    /// The first, in words from the arguments' begin.
    pub offset: u16,
    /// How many words.
    pub words: u16,
}

/// A kernel object, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The program.
    pub program: Program,
    /// Which user SGPRs it wants, in this order: [`Descriptor::PRIVATE_BUFFER`] and so on.
    pub properties: u16,
    /// Arguments that follow them.
    pub preload: Preload,
}

impl Descriptor {
    /// Four registers: the buffer descriptor of scratch.
    pub const PRIVATE_BUFFER: u16 = 1 << 0;
    /// Two: address of the dispatch packet.
    pub const DISPATCH_PTR: u16 = 1 << 1;
    /// Two: address of the queue.
    pub const QUEUE_PTR: u16 = 1 << 2;
    /// Two: address of the arguments.
    pub const KERNARG_PTR: u16 = 1 << 3;
    /// Two: index of the packet.
    pub const DISPATCH_ID: u16 = 1 << 4;
    /// Two: address of scratch.
    pub const FLAT_SCRATCH: u16 = 1 << 5;
    /// One: bytes of scratch of a work-item.
    pub const PRIVATE_SIZE: u16 = 1 << 6;
    const WAVE32: u16 = 1 << 10;

    /// Reads the kernel object at address `at`.
    ///
    /// # Errors
    /// [`LaunchError::Code`].
    pub fn parse(target: Target, at: u64, bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<Descriptor, LaunchError> {
        let word =
            |offset: usize| bytes.get(offset..offset + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let half = |offset: usize| bytes.get(offset..offset + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let properties = half(PROPERTIES);
        let mut entry = at.wrapping_add(u64::from(word(ENTRY)) | u64::from(word(ENTRY + 4)) << 32);
        if entry % 256 != 0 {
            return Err(LaunchError::Code("the code is not aligned to 256 bytes"));
        }
        // Version 2 begins with its version, 1.0 to 1.2, and the kind of machine, 1.
        let version2 = word(0) == 1 && word(4) <= 2 && half(8) == 1;
        let mut preload = Preload::default();
        if target.is_cdna() && !version2 {
            let field = half(PRELOAD);
            preload = Preload { offset: field >> 7, words: field & 0x7f };
            if preload.words != 0 {
                entry = entry.wrapping_add(PRELOAD_PROLOGUE);
            }
        }
        let wave32 = target.is_rdna() && properties & Self::WAVE32 != 0;
        let rsrc = [word(RSRC1), word(RSRC2), word(RSRC3)];
        let program = Program::new(target, entry, rsrc, wave32)?;
        if target.has_architected_scratch()
            && properties & (Self::PRIVATE_BUFFER | Self::FLAT_SCRATCH) != 0
            && !version2
        {
            return Err(LaunchError::Code("registers for scratch, which this target sets up itself"));
        }
        let descriptor = Descriptor { program, properties, preload };
        match descriptor.user_words() {
            words if words > 16 => Err(LaunchError::Code("more than 16 user SGPRs")),
            words if words > u32::from(descriptor.program.user_sgprs) => {
                Err(LaunchError::Code("fewer user SGPRs than its properties need"))
            }
            _ => Ok(descriptor),
        }
    }

    /// Whether the program wants a register for `property`.
    pub fn wants(&self, property: u16) -> bool {
        self.properties & property != 0
    }

    fn user_words(&self) -> u32 {
        let sizes = [4, 2, 2, 2, 2, 2, 1];
        let wanted = sizes.iter().enumerate().filter(|(bit, _)| self.properties >> bit & 1 != 0);
        wanted.map(|(_, size)| *size).sum::<u32>() + u32::from(self.preload.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[(usize, u32)]) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for &(at, word) in words {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn both_versions_read_alike() {
        let common = [(16, 0x100), (48, 3), (52, 2 << 1), (56, 8)];
        let v3 = Descriptor::parse(Target::Gfx900, 0x1000, &bytes(&common)).unwrap();
        let head = [(0, 1), (4, 1), (8, 1 | 9 << 16)];
        let v2 = Descriptor::parse(Target::Gfx900, 0x1000, &bytes(&[&head[..], &common[..]].concat())).unwrap();
        assert_eq!(v3, v2);
        assert_eq!((v3.program.entry, v3.program.vgprs), (0x1100, 16));
        assert!(v3.wants(Descriptor::KERNARG_PTR) && !v3.wants(Descriptor::QUEUE_PTR));
    }

    #[test]
    fn preloaded_arguments_are_not_a_version_2s_pointer_size() {
        // IS_PTR64 of version 2 is bit 19 of the word whose upper half says what to preload later.
        let common = [(16, 0x100), (52, 10 << 1), (56, 8 | 8 << 16)];
        let v3 = Descriptor::parse(Target::Gfx90a, 0, &bytes(&common)).unwrap();
        assert_eq!((v3.preload, v3.program.entry), (Preload { offset: 0, words: 8 }, 0x200));
        let head = [(0, 1), (4, 2), (8, 1 | 9 << 16)];
        let v2 = Descriptor::parse(Target::Gfx90a, 0, &bytes(&[&head[..], &common[..]].concat())).unwrap();
        assert_eq!((v2.preload, v2.program.entry), (Preload::default(), 0x100));
    }

    #[test]
    fn any_bytes_are_a_program_or_an_error() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            let mut object = [0; DESCRIPTOR_BYTES];
            for byte in &mut object {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                *byte = state.to_le_bytes()[6];
            }
            object[16] = 0;
            for target in Target::ALL {
                if let Ok(read) = Descriptor::parse(target, state << 8, &object) {
                    assert!(read.program.vgprs <= 512 && read.program.user_sgprs < 32);
                }
            }
        }
    }
}
