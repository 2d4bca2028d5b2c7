// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a program or library is linked with, and what it exports.

use anyhow::{bail, Context, Result};
use object::read::elf::{Dyn, ElfFile64, SectionHeader};
use object::{elf, Endianness, Object, ObjectSymbol};

type File<'data> = ElfFile64<'data, Endianness>;

fn file(data: &[u8]) -> Result<File<'_>> {
    File::parse(data).context("read an ELF file that was just built")
}

/// The strings that dynamic entries of a kind name.
fn dynamic(data: &[u8], kind: i64) -> Result<Vec<String>> {
    let file = file(data)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let Some((entries, link)) = sections.dynamic(endian, data)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, data, link)?;
    let named = entries.iter().filter(|entry| entry.tag(endian) == kind);
    let names = named.map(|entry| Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned()));
    names.collect::<Result<_, object::Error>>().context("read what an ELF file is linked with")
}

/// Its name for the loader.
pub(super) fn soname(data: &[u8]) -> Result<Option<String>> {
    Ok(dynamic(data, elf::DT_SONAME)?.pop())
}

/// Libraries that the loader brings with it.
pub(super) fn needed(data: &[u8]) -> Result<Vec<String>> {
    dynamic(data, elf::DT_NEEDED)
}

/// What it exports.
pub(super) fn exports(data: &[u8]) -> Result<Vec<String>> {
    let symbols = file(data)?;
    let symbols = symbols.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    symbols.map(|symbol| Ok(symbol.name()?.to_owned())).collect()
}

/// Vector instructions of x86 that are functions of their own, and not part of the function that
/// uses them. That costs a call for each. It happens where the user has not the processor's
/// feature, as a closure has not that of the function around it. Nothing without symbols.
pub(super) fn lone_instructions(data: &[u8]) -> Result<Option<Vec<String>>> {
    let symbols = file(data)?;
    let mut names = symbols.symbols().filter_map(|symbol| symbol.name().ok()).peekable();
    if names.peek().is_none() {
        return Ok(None);
    }
    let is_lone = |name: &str| name.contains("core_arch3x86") && !name.contains("xsave") && !name.contains("cpuid");
    Ok(Some(names.filter(|name| is_lone(name)).map(ToOwned::to_owned).collect()))
}

/// The newest version of the C library whose symbols it uses.
fn glibc(data: &[u8]) -> Result<Option<[u32; 2]>> {
    let file = file(data)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut newest = None;
    for section in sections.iter() {
        let Some((mut needs, link)) = section.gnu_verneed(endian, data)? else { continue };
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?).into_owned();
                let Some((major, minor)) = name.strip_prefix("GLIBC_").and_then(|number| number.split_once('.')) else {
                    continue;
                };
                let minor = minor.split('.').next().unwrap_or_default();
                newest = newest.max(Some([major.parse()?, minor.parse()?]));
            }
        }
    }
    Ok(newest)
}

/// The Debian packages of the libraries that it is linked with.
pub(super) fn packages(data: &[u8]) -> Result<Vec<String>> {
    let mut packages = Vec::new();
    for library in needed(data)? {
        let package = match library.as_str() {
            "libgcc_s.so.1" => "libgcc-s1 (>= 4.2)".to_owned(),
            name if name.starts_with("ld-linux") => continue,
            "libc.so.6" | "libm.so.6" | "libpthread.so.0" | "libdl.so.2" | "librt.so.1" => {
                let [major, minor] = glibc(data)?.unwrap_or([2, 17]);
                format!("libc6 (>= {major}.{minor})")
            }
            other => bail!("which Debian package has {other} is not known here"),
        };
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    Ok(packages)
}
