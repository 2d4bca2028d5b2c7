// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Source lines from a code object's line table.

use addr2line::Context;
use gimli::{Dwarf, EndianRcSlice, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _};
use vkfd_findings::Source;

type Reader = EndianRcSlice<LittleEndian>;

/// The line table.
pub struct Lines(Context<Reader>);

impl Lines {
    /// The table of a code object that was compiled with one.
    pub(crate) fn read(file: &ElfFile64<'_, Endianness>) -> Option<Lines> {
        file.section_by_name(".debug_line")?;
        let load = |id: SectionId| -> Result<Reader, gimli::Error> {
            let data = file.section_by_name(id.name()).and_then(|section| section.data().ok()).unwrap_or(&[]);
            Ok(Reader::new(data.into(), LittleEndian))
        };
        let dwarf = Dwarf::load(load).ok()?;
        Context::from_dwarf(dwarf).ok().map(Lines)
    }

    /// The line of an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Source> {
        let location = self.0.find_location(address).ok()??;
        let file = location.file?.to_string();
        Some(Source { file, line: location.line.unwrap_or(0), column: location.column.unwrap_or(0) })
    }
}
