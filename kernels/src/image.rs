// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects: ELF files of AMD's GPUs, as they lie in memory.
//!
//! A code object is a shared object that is loaded as one piece: its segments at their addresses
//! relative to wherever the loader puts it. A kernel is named by its descriptor (`NAME.kd`, 64
//! bytes), whose address is the packet's kernel object. Source: LLVM's *User Guide for AMDGPU
//! Backend*, "Code Object" and "Kernel Descriptor".
//!
//! Limits: of relocations only `R_AMDGPU_RELATIVE64`; external symbols are refused.

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, RelocationFlags, RelocationTarget};

const R_AMDGPU_RELATIVE64: u32 = 13;
const EM_AMDGPU: u16 = 224;
/// The segments' alignment, and the least that an image may be aligned to.
const PAGE: u64 = 4096;
/// More than any program has; a header that says more is refused.
const LARGEST: u64 = 1 << 30;

/// What is wrong with a code object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No ELF file, or a damaged one.
    #[error("not a readable ELF file: {0}")]
    Elf(String),
    /// An ELF file of another machine.
    #[error("ELF machine {0} is not an AMD GPU")]
    Machine(u16),
    /// A segment that does not lie within the file, or within what an image may have.
    #[error("the segment at {va:#x} does not fit: {bytes:#x} bytes in memory")]
    Segment {
        /// Its address in the image.
        va: u64,
        /// Its size.
        bytes: u64,
    },
    /// A relocation that is not supported.
    #[error("relocation of type {kind} at {va:#x} is not supported")]
    Relocation {
        /// Its type.
        kind: u32,
        /// Its place in the image.
        va: u64,
    },
}

/// A kernel in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where its descriptor is in the image, in bytes.
    pub descriptor: u64,
    /// LDS that its workgroups need, in bytes.
    pub group_bytes: u32,
    /// Scratch that a work-item needs, in bytes.
    pub private_bytes: u32,
    /// Bytes of its arguments.
    pub kernarg_bytes: u32,
}

/// A code object, laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
    relative: Vec<(u64, u64)>,
    kernels: Vec<Entry>,
}

impl Image {
    /// Lays a code object out. O(its size).
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn new(file: &[u8]) -> Result<Image, ImageError> {
        let unreadable = |error: object::Error| ImageError::Elf(error.to_string());
        let elf = ElfFile::<FileHeader64<Endianness>>::parse(file).map_err(unreadable)?;
        let endian = elf.endian();
        let machine = elf.elf_header().e_machine(endian);
        if machine != EM_AMDGPU {
            return Err(ImageError::Machine(machine));
        }
        let mut bytes = Vec::new();
        for segment in elf.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
            let (va, size) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            let refused = ImageError::Segment { va, bytes: size };
            let data = segment.data(endian, file).map_err(|()| refused.clone())?;
            let end = va.checked_add(size).filter(|&end| end <= LARGEST && data.len() as u64 <= size);
            let end = end.and_then(|end| usize::try_from(end.next_multiple_of(PAGE)).ok()).ok_or(refused.clone())?;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            let start = usize::try_from(va).map_err(|_| refused.clone())?;
            bytes.get_mut(start..start + data.len()).ok_or(refused)?.copy_from_slice(data);
        }
        let mut image = Image { bytes, relative: Vec::new(), kernels: Vec::new() };
        for (va, relocation) in elf.dynamic_relocations().into_iter().flatten() {
            let kind = match relocation.flags() {
                RelocationFlags::Elf { r_type } => r_type,
                _ => 0,
            };
            if kind != R_AMDGPU_RELATIVE64 || relocation.target() != RelocationTarget::Absolute {
                return Err(ImageError::Relocation { kind, va });
            }
            image.relative.push((va, u64::from_le_bytes(relocation.addend().to_le_bytes())));
        }
        for symbol in elf.dynamic_symbols() {
            let Some(name) = symbol.name().ok().and_then(|name| name.strip_suffix(".kd")) else { continue };
            let at = symbol.address();
            let Some([group_bytes, private_bytes, kernarg_bytes]) = image.words(at) else { continue };
            let name = name.to_owned();
            image.kernels.push(Entry { name, descriptor: at, group_bytes, private_bytes, kernarg_bytes });
        }
        Ok(image)
    }

    fn words(&self, at: u64) -> Option<[u32; 3]> {
        let at = usize::try_from(at).ok()?;
        let descriptor = self.bytes.get(at..at.checked_add(64)?)?;
        let word = |n: usize| descriptor.get(n..n + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
        Some([word(0)?, word(4)?, word(8)?])
    }

    /// The image as it lies in memory at `base`, a multiple of 4 KiB. Whole pages.
    #[must_use]
    pub fn at(&self, base: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(va, addend) in &self.relative {
            let place = usize::try_from(va).ok().and_then(|at| bytes.get_mut(at..at.checked_add(8)?));
            if let Some(place) = place {
                place.copy_from_slice(&base.wrapping_add(addend).to_le_bytes());
            }
        }
        bytes
    }

    /// Bytes of the image: whole pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether nothing is loaded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All kernels.
    #[must_use]
    pub fn kernels(&self) -> &[Entry] {
        &self.kernels
    }

    /// The kernel of that name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Entry> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_targets_object_has_all_kernels() {
        for version in [90_000, 90_010, 90_402, 100_300, 110_000] {
            let image = Image::new(crate::code(version).unwrap()).unwrap();
            let mut names: Vec<_> = image.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
            names.sort_unstable();
            let all = ["copy64", "crc32_add", "crc32_begin", "fill64", "iota64", "matmul", "saxpy", "sum64", "watch"];
            assert_eq!(names, all, "{version}");
            // The client's queues have no scratch to give.
            assert!(image.kernels().iter().all(|kernel| kernel.private_bytes == 0), "{version}");
            assert_eq!(image.at(0x1000).len() as u64, image.len());
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let file = crate::code(90_000).unwrap();
        for len in [0, 10, 64, 300] {
            assert!(Image::new(&file[..len]).is_err(), "{len}");
        }
        let mut other = file.to_vec();
        other[18] = 62;
        assert_eq!(Image::new(&other), Err(ImageError::Machine(62)));
        // Whatever a byte of the headers says, nothing panics and nothing is larger than it may be.
        for at in 0..512 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut other = file.to_vec();
                other[at] = value;
                if let Ok(image) = Image::new(&other) {
                    assert!(image.len() <= LARGEST + PAGE);
                }
            }
        }
    }
}
