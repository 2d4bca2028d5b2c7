// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects in a file: ELF of AMDGPU, alone or bundled.

use anyhow::{bail, ensure, Context, Result};
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{elf, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolFlags, SymbolKind};
use vkfd_isa::Target;

use super::descriptor::Descriptor;

/// What clang puts before the code objects of a program.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";
/// OS ABI of AMD's runtime.
const OSABI_AMDGPU_HSA: u8 = 64;
/// Symbol type of kernels in version 2.
const STT_AMDGPU_HSA_KERNEL: u8 = 10;
const V2_HEADER: usize = 256;

/// A code object.
pub struct CodeObject {
    /// The processor, with its settings (`gfx90a:xnack+`).
    pub machine: String,
    /// 2 to 6.
    pub version: u8,
    /// Where it begins in the file.
    pub offset: usize,
    /// In the order of their addresses.
    pub functions: Vec<Function>,
}

/// A function, or a kernel.
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Where its code begins in the file.
    pub offset: u64,
    pub code: Vec<u8>,
    /// Of kernels.
    pub descriptor: Option<Descriptor>,
}

impl CodeObject {
    /// The target, if it is known here.
    pub fn target(&self) -> Result<Target> {
        let name = self.machine.split(':').next().unwrap_or("");
        name.parse().with_context(|| format!("{name:?}"))
    }
}

/// The code objects in `file`.
pub fn all(file: &[u8]) -> Result<Vec<CodeObject>> {
    let read = |(offset, bytes): (usize, &[u8])| {
        read(bytes, offset).with_context(|| format!("the code object at byte {offset:#x}"))
    };
    match places(file)?.as_slice() {
        [(0, bytes)] => Ok(vec![self::read(bytes, 0)?]),
        places => places.iter().copied().map(read).collect(),
    }
}

/// Where code objects begin in `file`, and their bytes.
pub fn places(file: &[u8]) -> Result<Vec<(usize, &[u8])>> {
    if let Ok(header) = elf::FileHeader64::<Endianness>::parse(file) {
        if header.e_machine.get(Endianness::Little) == elf::EM_AMDGPU {
            return Ok(vec![(0, file)]);
        }
    }
    let mut objects = Vec::new();
    let mut at = 0;
    while let Some(begin) = find(&file[at..], BUNDLE) {
        at += begin;
        for (offset, entry) in bundle(&file[at..]).with_context(|| format!("the bundle at byte {at:#x}"))? {
            objects.push((at + offset, entry));
        }
        at += BUNDLE.len();
    }
    if objects.is_empty() {
        ensure!(find(file, COMPRESSED).is_none(), "its code objects are compressed, which is not supported");
        bail!("neither a code object of AMDGPU nor a file with some in it");
    }
    Ok(objects)
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// The AMDGPU objects of the bundle that `bytes` begins with, and where they are in it.
fn bundle(bytes: &[u8]) -> Result<Vec<(usize, &[u8])>> {
    let word = |at: usize| -> Result<usize> {
        let bytes = bytes.get(at..at + 8).context("a bundle that ends early")?;
        Ok(usize::try_from(u64::from_le_bytes(bytes.try_into()?))?)
    };
    let mut objects = Vec::new();
    let mut at = BUNDLE.len();
    let count = word(at)?;
    at += 8;
    for _ in 0..count {
        let (offset, size, name) = (word(at)?, word(at + 8)?, word(at + 16)?);
        at = at.checked_add(24).and_then(|at| at.checked_add(name)).context("a bundle that ends early")?;
        let end = offset.checked_add(size).context("a bundle that ends early")?;
        let object = bytes.get(offset..end).context("a bundle that ends early")?;
        if object.starts_with(&elf::ELFMAG) {
            objects.push((offset, object));
        }
    }
    Ok(objects)
}

fn read(bytes: &[u8], offset: usize) -> Result<CodeObject> {
    let file = ElfFile64::<Endianness>::parse(bytes).context("a damaged ELF file")?;
    let header = file.elf_header();
    let endian = file.endian();
    ensure!(header.e_machine.get(endian) == elf::EM_AMDGPU, "not for AMDGPU");
    let ident = header.e_ident;
    let version = match (ident.os_abi, ident.abi_version) {
        (OSABI_AMDGPU_HSA, version @ 0..=4) => version + 2,
        (abi, version) => {
            bail!("OS ABI {abi} version {version}, which is not AMD's runtime of code object version 2 to 6")
        }
    };
    let mut object =
        CodeObject { machine: machine(header.e_flags.get(endian), version), version, offset, functions: Vec::new() };
    let mut starts = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
        let old_kernel = version == 2 && st_info & 15 == STT_AMDGPU_HSA_KERNEL;
        let Some(section) = symbol.section_index() else { continue };
        if symbol.kind() == SymbolKind::Text || old_kernel {
            let name = symbol.name().unwrap_or("?").to_string();
            starts.push((section, symbol.address(), symbol.size(), name, old_kernel));
        }
    }
    starts.sort_by_key(|(section, address, ..)| (section.0, *address));
    starts.dedup_by_key(|(section, address, ..)| (section.0, *address));
    for (n, (section, address, size, name, old_kernel)) in starts.iter().enumerate() {
        let next = starts.get(n + 1).filter(|(other, ..)| other == section).map(|(_, next, ..)| *next);
        let section = file.section_by_index(*section).with_context(|| format!("the section of {name}"))?;
        let data = section.data().with_context(|| format!("the code of {name}"))?;
        let at = |address: u64| {
            let offset = address.checked_sub(section.address()).and_then(|offset| usize::try_from(offset).ok());
            offset.with_context(|| format!("{name} is not in its section"))
        };
        let end = match (*size, next) {
            (0, Some(next)) => at(next)?,
            (0, None) => data.len(),
            (size, _) => at(address.saturating_add(size))?.min(data.len()),
        };
        let mut code = data.get(at(*address)?..end).unwrap_or_default();
        let begin = section.file_range().map_or(0, |(begin, _)| begin.saturating_add(at(*address).unwrap_or(0) as u64));
        let mut begin = begin.saturating_add(offset as u64);
        let mut address = *address;
        let descriptor = if *old_kernel {
            let header = code.get(..V2_HEADER).with_context(|| format!("{name} is shorter than its descriptor"))?;
            let descriptor = Descriptor::version2(address, header);
            object.machine = descriptor.machine().unwrap_or(object.machine);
            code = &code[V2_HEADER..];
            address += V2_HEADER as u64;
            begin = begin.saturating_add(V2_HEADER as u64);
            Some(descriptor)
        } else {
            descriptor_of(&file, name)?
        };
        let name = name.clone();
        object.functions.push(Function { name, address, offset: begin, code: code.to_vec(), descriptor });
    }
    ensure!(!object.functions.is_empty(), "no symbol names a function: nothing says where code is");
    Ok(object)
}

/// The descriptor of the kernel `name`: the symbol with `.kd` after its name.
fn descriptor_of(file: &ElfFile64<'_, Endianness>, name: &str) -> Result<Option<Descriptor>> {
    let wanted = format!("{name}.kd");
    let Some(symbol) = file.symbols().chain(file.dynamic_symbols()).find(|symbol| symbol.name() == Ok(wanted.as_str()))
    else {
        return Ok(None);
    };
    let index = symbol.section_index().with_context(|| format!("{wanted} is in no section"))?;
    let section = file.section_by_index(index)?;
    let data = section.data()?;
    let offset = symbol.address().checked_sub(section.address()).and_then(|offset| usize::try_from(offset).ok());
    let bytes = offset
        .and_then(|offset| data.get(offset..)?.get(..64))
        .with_context(|| format!("{wanted} is not in its section"))?;
    Ok(Some(Descriptor::new(symbol.address(), bytes)))
}

/// The processor that the header's flags name.
fn machine(flags: u32, version: u8) -> String {
    let name = match flags & 0xff {
        0x20 => "gfx600",
        0x21 => "gfx601",
        0x22 => "gfx700",
        0x23 => "gfx701",
        0x24 => "gfx702",
        0x25 => "gfx703",
        0x26 => "gfx704",
        0x28 => "gfx801",
        0x29 => "gfx802",
        0x2a => "gfx803",
        0x2b => "gfx810",
        0x2c => "gfx900",
        0x2d => "gfx902",
        0x2e => "gfx904",
        0x2f => "gfx906",
        0x30 => "gfx908",
        0x31 => "gfx909",
        0x32 => "gfx90c",
        0x33 => "gfx1010",
        0x34 => "gfx1011",
        0x35 => "gfx1012",
        0x36 => "gfx1030",
        0x37 => "gfx1031",
        0x38 => "gfx1032",
        0x39 => "gfx1033",
        0x3d => "gfx1035",
        0x3e => "gfx1034",
        0x3f => "gfx90a",
        0x40 => "gfx940",
        0x41 => "gfx1100",
        0x43 => "gfx1150",
        0x44 => "gfx1103",
        0x45 => "gfx1036",
        0x46 => "gfx1101",
        0x47 => "gfx1102",
        0x48 => "gfx1200",
        0x4a => "gfx1151",
        0x4b => "gfx941",
        0x4c => "gfx942",
        0x4e => "gfx1201",
        0x4f => "gfx950",
        other => return format!("machine {other:#x}"),
    };
    let mut text = name.to_string();
    if version >= 4 {
        let setting = |name: &str, value: u32| match value {
            2 => format!(":{name}-"),
            3 => format!(":{name}+"),
            _ => String::new(),
        };
        text += &setting("sramecc", flags >> 10 & 3);
        text += &setting("xnack", flags >> 8 & 3);
    } else if version == 3 {
        for (bit, name) in [(9, ":sramecc+"), (8, ":xnack+")] {
            if flags >> bit & 1 != 0 {
                text += name;
            }
        }
    }
    text
}
