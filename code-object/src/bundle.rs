// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects in a program: clang's bundles.
//!
//! A bundle is a table of positions, sizes and names, and the objects of all processors and of the
//! host. A program has one for each translation unit, anywhere.

use object::read::elf::FileHeader as _;
use object::{elf, Endianness};

use crate::ReadError;

/// What clang puts before the code objects of a program.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";

/// Where code objects begin in `file`, and their bytes: the whole file if it is one, or the
/// objects of its bundles. O(the file's size).
///
/// # Errors
///
/// If there are none, or a bundle is damaged.
pub fn places(file: &[u8]) -> Result<Vec<(usize, &[u8])>, ReadError> {
    if let Ok(header) = elf::FileHeader64::<Endianness>::parse(file) {
        if header.e_machine.get(Endianness::Little) == elf::EM_AMDGPU {
            return Ok(vec![(0, file)]);
        }
    }
    let mut objects = Vec::new();
    let mut at = 0;
    while let Some(begin) = find(&file[at..], BUNDLE) {
        at += begin;
        let entries = entries(&file[at..]).ok_or(ReadError::Bundle(at))?;
        objects.extend(entries.into_iter().map(|(offset, object)| (at + offset, object)));
        at += BUNDLE.len();
    }
    match (objects.is_empty(), find(file, COMPRESSED)) {
        (false, _) => Ok(objects),
        (true, Some(_)) => Err(ReadError::Compressed),
        (true, None) => Err(ReadError::NoObject),
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// The ELF files of the bundle that `bytes` begins with, and where they are in it. `None`: it ends
/// early.
fn entries(bytes: &[u8]) -> Option<Vec<(usize, &[u8])>> {
    let word = |at: usize| usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok();
    let mut objects = Vec::new();
    let mut at = BUNDLE.len();
    let count = word(at)?;
    at += 8;
    for _ in 0..count {
        let (offset, size, name) = (word(at)?, word(at + 8)?, word(at + 16)?);
        at = at.checked_add(24)?.checked_add(name)?;
        let object = bytes.get(offset..offset.checked_add(size)?)?;
        if object.starts_with(&elf::ELFMAG) {
            objects.push((offset, object));
        }
    }
    Some(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> &'static [u8] {
        vkfd_kernels::code(90_000).expect("one for gfx900")
    }

    fn bundled(objects: &[&[u8]]) -> Vec<u8> {
        let name = b"hipv4-amdgcn-amd-amdhsa--gfx900";
        let mut offset = BUNDLE.len() + 8 + objects.len() * (24 + name.len());
        let mut bundle = [BUNDLE, &(objects.len() as u64).to_le_bytes()].concat();
        for object in objects {
            for number in [offset, object.len(), name.len()] {
                bundle.extend((number as u64).to_le_bytes());
            }
            bundle.extend(name);
            offset += object.len();
        }
        objects.iter().for_each(|object| bundle.extend(*object));
        bundle
    }

    #[test]
    fn objects_are_found_alone_and_in_bundles() {
        assert_eq!(places(object()), Ok(vec![(0, object())]));
        let program = [&b"a program"[..], &bundled(&[b"host", object()]), b"more", &bundled(&[object()])].concat();
        let found = places(&program).expect("two bundles");
        assert_eq!(found.len(), 2);
        for (offset, object) in found {
            assert!(object == self::object() && program[offset..].starts_with(self::object()));
        }
    }

    #[test]
    fn what_has_no_object_says_why() {
        assert_eq!(places(b"text"), Err(ReadError::NoObject));
        assert_eq!(places(b"text CCOB"), Err(ReadError::Compressed));
        let program = [&b"12345"[..], &bundled(&[object()])].concat();
        assert_eq!(places(&program[..100]), Err(ReadError::Bundle(5)));
    }
}
