// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects: functions, and the settings of kernels that the checks depend on.

use std::collections::HashMap;

use object::read::elf::ElfFile64;
use object::{elf, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use thiserror::Error;
use vkfd_isa::Target;

use crate::lines::Lines;

/// A code object.
pub struct Object {
    pub target: Target,
    /// Whether memory instructions may be replayed. Code that runs with either setting counts as
    /// replayed.
    pub xnack: bool,
    /// In the order of their addresses.
    pub functions: Vec<Function>,
    /// The line table, if there is one.
    pub lines: Option<Lines>,
}

/// A function, or a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Where its code begins in the object's bytes.
    pub offset: u64,
    pub code: Vec<u8>,
    /// Of kernels.
    pub kernel: Option<Kernel>,
}

/// Settings of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Waves of 64 lanes.
    pub wave64: bool,
    /// Waves of a work-group may be on several compute units, and FLAT does not reach LDS.
    pub split: bool,
}

impl Kernel {
    /// Those that a descriptor has.
    #[must_use]
    pub fn of(target: Target, descriptor: &[u8; 64]) -> Kernel {
        let word =
            |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| descriptor.get(at + byte).copied().unwrap_or(0)));
        let wave64 = target.is_gfx9() || word(56) >> 10 & 1 == 0;
        Kernel { wave64, split: target.is_cdna() && word(44) >> 16 & 1 == 1 }
    }
}

/// A file that is no code object, or none that is known here.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ReadError {
    #[error("not an ELF file of 64 bits: {0}")]
    NotElf(String),
    #[error("an ELF file for another machine than AMDGPU")]
    NotGpu,
    #[error("code object version 2, whose kernels are not known here")]
    Version2,
    #[error("code for machine {0:#x}; known are gfx900, gfx90a, gfx942, gfx1030 and gfx1100")]
    Unknown(u32),
    #[error("{0} is outside of its section")]
    Outside(String),
}

/// The target of the number in an ELF header's flags.
fn target(machine: u32) -> Option<Target> {
    // NEW TARGET: its number in ELF headers
    Some(match machine {
        0x2c => Target::Gfx900,
        0x3f => Target::Gfx90a,
        0x4c => Target::Gfx942,
        0x36 => Target::Gfx1030,
        0x41 => Target::Gfx1100,
        _ => return None,
    })
}

/// The setting of XNACK in the flags: off, on, or either, from version 4 on.
fn xnack(target: Target, flags: u32, version: u8) -> bool {
    if !target.is_gfx9() {
        return false;
    }
    match version {
        0..=3 => flags >> 8 & 1 == 1,
        _ => matches!(flags >> 8 & 3, 1 | 3),
    }
}

impl Object {
    /// The same object's settings, without functions and lines.
    #[must_use]
    pub fn settings(&self) -> Object {
        Object { target: self.target, xnack: self.xnack, functions: Vec::new(), lines: None }
    }

    /// A function of an object that is loaded, with the flags and the ABI's version of its header.
    #[must_use]
    pub fn loaded(target: Target, flags: u32, version: u8, function: Function) -> Object {
        let xnack = xnack(target, flags, version.saturating_add(2));
        Object { target, xnack, functions: vec![function], lines: None }
    }

    /// Reads a code object.
    ///
    /// # Errors
    ///
    /// If the bytes are none, or one of a target that is not known.
    pub fn read(bytes: &[u8]) -> Result<Object, ReadError> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| ReadError::NotElf(error.to_string()))?;
        let header = file.elf_header();
        let endian = file.endian();
        if header.e_machine.get(endian) != elf::EM_AMDGPU {
            return Err(ReadError::NotGpu);
        }
        let version = header.e_ident.abi_version.saturating_add(2);
        if version < 3 {
            return Err(ReadError::Version2);
        }
        let flags = header.e_flags.get(endian);
        let target = target(flags & 0xff).ok_or(ReadError::Unknown(flags & 0xff))?;
        let kernels = kernels(&file, target);
        let mut starts = Vec::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Text {
                if let (Some(section), Ok(name)) = (symbol.section_index(), symbol.name()) {
                    starts.push((section, symbol.address(), symbol.size(), name.to_string()));
                }
            }
        }
        starts.sort_by_key(|(section, address, size, _)| (section.0, *address, std::cmp::Reverse(*size)));
        starts.dedup_by_key(|(section, address, ..)| (section.0, *address));
        let mut functions = Vec::new();
        for (n, (section, address, size, name)) in starts.iter().enumerate() {
            let outside = || ReadError::Outside(name.clone());
            let next = starts.get(n + 1).filter(|(other, ..)| other == section).map(|(_, next, ..)| *next);
            let section = file.section_by_index(*section).map_err(|_| outside())?;
            let data = section.data().map_err(|_| outside())?;
            let place = address.checked_sub(section.address()).ok_or_else(outside)?;
            let end = match (size, next) {
                (0, Some(next)) => next.saturating_sub(section.address()),
                (0, None) => data.len() as u64,
                (size, _) => place.saturating_add(*size).min(data.len() as u64),
            };
            let range = usize::try_from(place).map_err(|_| outside())?..usize::try_from(end).map_err(|_| outside())?;
            let code = data.get(range).ok_or_else(outside)?.to_vec();
            let offset = section.file_range().map_or(0, |(begin, _)| begin.saturating_add(place));
            let kernel = kernels.get(name.as_str()).copied();
            functions.push(Function { name: name.clone(), address: *address, offset, code, kernel });
        }
        functions.sort_by_key(|function| function.address);
        Ok(Object { target, xnack: xnack(target, flags, version), functions, lines: Lines::read(&file) })
    }
}

/// The kernels by their descriptors, which have their names and `.kd` behind them.
fn kernels<'data>(file: &ElfFile64<'data, Endianness>, target: Target) -> HashMap<&'data str, Kernel> {
    let mut kernels = HashMap::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let Some(name) = symbol.name().ok().and_then(|name| name.strip_suffix(".kd")) else { continue };
        let bytes = symbol.section_index().and_then(|index| {
            let section = file.section_by_index(index).ok()?;
            let offset = usize::try_from(symbol.address().checked_sub(section.address())?).ok()?;
            section.data().ok()?.get(offset..)?.first_chunk::<64>()
        });
        let Some(bytes) = bytes else { continue };
        kernels.insert(name, Kernel::of(target, bytes));
    }
    kernels
}
