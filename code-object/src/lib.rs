// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects in a file: which processor they are for, and where their functions are.
//!
//! A code object is an ELF file for AMDGPU, alone or in a bundle that clang puts into a program
//! ([`places`]). [`CodeObject::read`] lists its functions by their symbols. A kernel is a function
//! with a descriptor: since version 3 a symbol of its own (`NAME.kd`), in version 2 the bytes
//! before its code. Source: LLVM's *User Guide for AMDGPU Backend*, "ELF Code Object".
//!
//! Nothing is copied: functions and descriptors are parts of the file's bytes. All positions are
//! checked, and a damaged file is an error.
//!
//! Limits: ELF of 64 bits for AMD's HSA runtime. `vkfd-kernels` lays an object out for execution,
//! and `vkfd-gpu` looks at one in a GPU's memory, which no file is.

mod bundle;
mod machine;

pub use bundle::places;
pub use machine::{Machine, Setting};

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{
    elf, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SectionIndex, SymbolFlags, SymbolKind,
};
use thiserror::Error;

/// OS ABI of AMD's runtime.
const OSABI_AMDGPU_HSA: u8 = 64;
/// Symbol type of kernels in version 2.
const STT_AMDGPU_HSA_KERNEL: u8 = 10;
/// Bytes of a kernel's descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Bytes of `amd_kernel_code_t`, the descriptor in version 2.
pub const HEADER_BYTES: usize = 256;

/// A code object.
pub struct CodeObject<'data> {
    /// The processor.
    pub machine: Machine,
    /// 2 to 6.
    pub version: u8,
    /// In the order of their addresses.
    pub functions: Vec<Function<'data>>,
    /// The file, of which a caller may read more: its line tables, for instance.
    pub file: ElfFile64<'data, Endianness>,
}

/// A function, or a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'data> {
    pub name: &'data str,
    pub address: u64,
    /// Where its code begins in the object's bytes.
    pub offset: u64,
    pub code: &'data [u8],
    /// Of kernels.
    pub descriptor: Option<Descriptor<'data>>,
}

/// A kernel's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'data> {
    pub address: u64,
    pub bytes: Bytes<'data>,
}

/// A descriptor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes<'data> {
    Descriptor(&'data [u8; DESCRIPTOR_BYTES]),
    /// In version 2: `amd_kernel_code_t`.
    Header(&'data [u8; HEADER_BYTES]),
}

/// A file that cannot be read as a code object.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ReadError {
    #[error("not an ELF file of 64 bits: {0}")]
    NotElf(String),
    #[error("an ELF file for another machine than AMDGPU")]
    NotGpu,
    #[error("OS ABI {0} version {1}, which is not AMD's runtime of code object version 2 to 6")]
    NotHsa(u8, u8),
    #[error("{0} is outside of its section")]
    Outside(String),
    #[error("no symbol names a function: nothing says where code is")]
    NoFunction,
    #[error("the bundle at byte {0:#x} ends early")]
    Bundle(usize),
    #[error("its code objects are compressed, which is not supported")]
    Compressed,
    #[error("neither a code object of AMDGPU nor a file with some in it")]
    NoObject,
}

/// A symbol of a function.
struct Start<'data> {
    section: SectionIndex,
    address: u64,
    size: u64,
    name: &'data str,
    /// A kernel of version 2: its descriptor comes first.
    has_header: bool,
}

impl<'data> CodeObject<'data> {
    /// Reads the code object that `bytes` are. O(its size, and n log n of its symbols).
    ///
    /// # Errors
    ///
    /// If they are none, or damaged.
    pub fn read(bytes: &'data [u8]) -> Result<CodeObject<'data>, ReadError> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| ReadError::NotElf(error.to_string()))?;
        let (header, endian) = (file.elf_header(), file.endian());
        if header.e_machine.get(endian) != elf::EM_AMDGPU {
            return Err(ReadError::NotGpu);
        }
        let version = match (header.e_ident.os_abi, header.e_ident.abi_version) {
            (OSABI_AMDGPU_HSA, version @ 0..=4) => version + 2,
            (abi, version) => return Err(ReadError::NotHsa(abi, version)),
        };
        let machine = Machine::of(header.e_flags.get(endian), version);
        let starts = starts(&file, version);
        let descriptors = descriptors(&file);
        let mut functions = Vec::with_capacity(starts.len());
        for (n, start) in starts.iter().enumerate() {
            let next = starts.get(n + 1).filter(|next| next.section == start.section).map(|next| next.address);
            functions.push(function(&file, start, next, &descriptors)?);
        }
        if functions.is_empty() {
            return Err(ReadError::NoFunction);
        }
        functions.sort_by_key(|function| function.address);
        Ok(CodeObject { machine, version, functions, file })
    }
}

/// The functions' symbols, by section and address. Of several at one address the longest counts.
fn starts<'data>(file: &ElfFile64<'data, Endianness>, version: u8) -> Vec<Start<'data>> {
    let mut starts = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
        let Some(section) = symbol.section_index() else { continue };
        let has_header = version == 2 && st_info & 15 == STT_AMDGPU_HSA_KERNEL;
        if symbol.kind() == SymbolKind::Text || has_header {
            let name = symbol.name().unwrap_or("?");
            starts.push(Start { section, address: symbol.address(), size: symbol.size(), name, has_header });
        }
    }
    starts.sort_by_key(|start| (start.section.0, start.address, std::cmp::Reverse(start.size)));
    starts.dedup_by_key(|start| (start.section.0, start.address));
    starts
}

fn function<'data>(
    file: &ElfFile64<'data, Endianness>,
    start: &Start<'data>,
    next: Option<u64>,
    descriptors: &HashMap<&'data str, Option<Descriptor<'data>>>,
) -> Result<Function<'data>, ReadError> {
    let outside = || ReadError::Outside(start.name.to_string());
    let section = file.section_by_index(start.section).map_err(|_| outside())?;
    let data = section.data().map_err(|_| outside())?;
    let place = |address: u64| address.checked_sub(section.address()).and_then(|at| usize::try_from(at).ok());
    let begin = place(start.address).ok_or_else(outside)?;
    let end = match (start.size, next) {
        (0, Some(next)) => place(next).ok_or_else(outside)?,
        (0, None) => data.len(),
        (size, _) => begin.saturating_add(usize::try_from(size).map_err(|_| outside())?).min(data.len()),
    };
    let code = data.get(begin..end).ok_or_else(outside)?;
    let offset = section.file_range().map_or(0, |(first, _)| first.saturating_add(begin as u64));
    if start.has_header {
        let header = code.first_chunk::<HEADER_BYTES>().ok_or_else(outside)?;
        let after = HEADER_BYTES as u64;
        return Ok(Function {
            name: start.name,
            address: start.address.saturating_add(after),
            offset: offset.saturating_add(after),
            code: code.get(HEADER_BYTES..).unwrap_or_default(),
            descriptor: Some(Descriptor { address: start.address, bytes: Bytes::Header(header) }),
        });
    }
    let descriptor = match descriptors.get(start.name) {
        Some(None) => return Err(ReadError::Outside(format!("{}.kd", start.name))),
        Some(descriptor) => *descriptor,
        None => None,
    };
    Ok(Function { name: start.name, address: start.address, offset, code, descriptor })
}

/// The kernels' descriptors by the kernels' names. `None`: it does not lie in its section.
fn descriptors<'data>(file: &ElfFile64<'data, Endianness>) -> HashMap<&'data str, Option<Descriptor<'data>>> {
    let mut descriptors = HashMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let Some(name) = symbol.name().ok().and_then(|name| name.strip_suffix(".kd")) else { continue };
        let bytes = symbol.section_index().and_then(|index| {
            let section = file.section_by_index(index).ok()?;
            let offset = usize::try_from(symbol.address().checked_sub(section.address())?).ok()?;
            section.data().ok()?.get(offset..)?.first_chunk()
        });
        let found = bytes.map(|bytes| Descriptor { address: symbol.address(), bytes: Bytes::Descriptor(bytes) });
        let known = descriptors.entry(name).or_insert(found);
        *known = known.or(found);
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_targets::Target;

    #[test]
    fn a_compiled_object_has_its_kernels() {
        let file = vkfd_kernels::code(90_010).expect("one for gfx90a");
        let object = CodeObject::read(file).expect("a code object");
        assert_eq!(object.machine.target(), Some(Target::Gfx90a));
        assert!((4..=6).contains(&object.version));
        let kernels: Vec<_> = object.functions.iter().filter(|function| function.descriptor.is_some()).collect();
        assert!(kernels.iter().any(|kernel| kernel.name == "saxpy"));
        for kernel in kernels {
            let at = usize::try_from(kernel.offset).expect("a position");
            assert_eq!(file.get(at..at + kernel.code.len()), Some(kernel.code), "{}", kernel.name);
            let Some(Descriptor { address, bytes: Bytes::Descriptor(bytes) }) = kernel.descriptor else { panic!() };
            // Where the code begins, seen from the descriptor.
            let entry = bytes[16..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).expect("8 bytes");
            assert_eq!(address.wrapping_add(entry), kernel.address, "{}", kernel.name);
        }
    }

    #[test]
    fn a_damaged_object_is_an_error_and_no_panic() {
        let file = vkfd_kernels::code(90_010).expect("one for gfx90a");
        for cut in (0..file.len()).step_by(61) {
            // Short forms of the file may be whole enough to be read.
            CodeObject::read(&file[..cut]).ok();
        }
        for at in 0..file.len().min(4096) {
            let mut damaged = file.to_vec();
            damaged[at] ^= 0xff;
            CodeObject::read(&damaged).ok();
        }
        assert!(matches!(CodeObject::read(b"text"), Err(ReadError::NotElf(_))));
        let mut other = file.to_vec();
        other[18] = 62;
        assert!(matches!(CodeObject::read(&other), Err(ReadError::NotGpu)));
        other = file.to_vec();
        other[7] = 0;
        assert!(matches!(CodeObject::read(&other), Err(ReadError::NotHsa(0, _))));
    }
}
