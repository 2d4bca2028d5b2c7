// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The name of a kernel, from the code object that it was loaded with.
//!
//! Loaders copy a code object's segments as they stand, the first with the ELF header and the
//! dynamic symbols in it. So the header is some pages below the kernel, and the symbol table says
//! what is at its address. Nothing of that is certain: memory is looked at without faulting,
//! everything is bounded, and no name is a good answer.

use crate::base::queue_error::Stop;
use crate::state::access::Port;

/// How far below the kernel the header is looked for: code objects of this size have been seen,
/// larger ones get no name.
const REACH: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Program headers and dynamic entries that are looked at.
const MAX_ENTRIES: u64 = 64;
/// Symbols that are looked at.
const MAX_SYMBOLS: u64 = 1 << 16;
/// Largest function that is read.
const MAX_CODE: u64 = 4 << 20;
/// Longest name, in bytes; of a longer one this much is given.
const MAX_NAME: usize = 160;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const EM_AMDGPU: u64 = 224;
const PT_DYNAMIC: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const SYMBOL_BYTES: u64 = 24;

/// The name of the symbol at `at`: a kernel descriptor's (without its `.kd`) or a function's.
/// `None` when it cannot be found.
pub(crate) fn name(port: &mut Port, at: u64) -> Result<Option<String>, Stop> {
    Ok(find(port, at)?.and_then(|(_, name)| name))
}

/// The address of the code object that has `at`, and the symbol's name.
pub(crate) fn find(port: &mut Port, at: u64) -> Result<Option<(u64, Option<String>)>, Stop> {
    let mut base = at & !(PAGE - 1);
    let lowest = base.saturating_sub(REACH);
    loop {
        let mut magic = [0; 4];
        if !port.peek(base, &mut magic)? {
            // What is loaded together is mapped together.
            return Ok(None);
        }
        if magic == ELF_MAGIC {
            let mut image = Image { port, base };
            let name = image.find(at)?;
            return Ok(Some((base, name)));
        }
        if base <= lowest {
            return Ok(None);
        }
        base -= PAGE;
    }
}

/// The flags of the code object at `image`, and the version of its ABI.
pub(crate) fn flags(port: &mut Port, image: u64) -> Result<Option<(u32, u8)>, Stop> {
    let mut image = Image { port, base: image };
    let (flags, version) = (image.number::<4>(48)?, image.number::<1>(8)?);
    Ok(flags.zip(version).and_then(|(flags, version)| Some((flags.try_into().ok()?, version.try_into().ok()?))))
}

/// The bytes of the function at `at` in the code object at `image`.
pub(crate) fn size(port: &mut Port, image: u64, at: u64) -> Result<Option<u64>, Stop> {
    let mut image = Image { port, base: image };
    let Some((symbols, count, _)) = image.tables()? else { return Ok(None) };
    let wanted = at.wrapping_sub(image.base);
    for index in 0..count {
        let symbol = symbols.wrapping_add(index * SYMBOL_BYTES);
        let Some(value) = image.number::<8>(symbol.wrapping_add(8))? else { break };
        if value == wanted {
            return Ok(image.number::<8>(symbol.wrapping_add(16))?.filter(|bytes| (1..=MAX_CODE).contains(bytes)));
        }
    }
    Ok(None)
}

struct Image<'a> {
    port: &'a mut Port,
    base: u64,
}

impl Image<'_> {
    /// A little-endian number of `N` bytes at an address of the image; `None` if it is not mapped.
    fn number<const N: usize>(&mut self, offset: u64) -> Result<Option<u64>, Stop> {
        let mut bytes = [0; 8];
        let Some(part) = bytes.get_mut(..N) else { return Ok(None) };
        let mapped = self.port.peek(self.base.wrapping_add(offset), part)?;
        Ok(mapped.then(|| u64::from_le_bytes(bytes)))
    }

    fn find(&mut self, at: u64) -> Result<Option<String>, Stop> {
        if self.number::<2>(18)? != Some(EM_AMDGPU) {
            return Ok(None);
        }
        let Some((symbols, count, strings)) = self.tables()? else { return Ok(None) };
        let wanted = at - self.base;
        let mut function = None;
        for index in 0..count {
            let symbol = symbols.wrapping_add(index * SYMBOL_BYTES);
            let Some(value) = self.number::<8>(symbol.wrapping_add(8))? else { break };
            if value != wanted {
                continue;
            }
            let Some(text) = self.number::<4>(symbol)? else { break };
            let Some(found) = self.text(strings.wrapping_add(text))? else { continue };
            match found.strip_suffix(".kd") {
                Some(kernel) => return Ok(Some(kernel.to_owned())),
                None if !found.is_empty() => function = Some(found),
                None => {}
            }
        }
        Ok(function)
    }

    /// Offsets of the dynamic symbols and of their strings, and how many symbols there are.
    fn tables(&mut self) -> Result<Option<(u64, u64, u64)>, Stop> {
        let (Some(headers), Some(size), Some(count)) =
            (self.number::<8>(32)?, self.number::<2>(54)?, self.number::<2>(56)?)
        else {
            return Ok(None);
        };
        let mut dynamic = None;
        for index in 0..count.min(MAX_ENTRIES) {
            let header = headers.wrapping_add(index * size);
            if self.number::<4>(header)? == Some(PT_DYNAMIC) {
                dynamic = self.number::<8>(header.wrapping_add(16))?;
                break;
            }
        }
        let Some(dynamic) = dynamic else { return Ok(None) };
        let (mut hash, mut strings, mut symbols) = (None, None, None);
        for index in 0..MAX_ENTRIES {
            let entry = dynamic.wrapping_add(index * 16);
            let Some(tag) = self.number::<8>(entry)? else { return Ok(None) };
            let value = self.number::<8>(entry.wrapping_add(8))?;
            match tag {
                0 => break,
                DT_HASH => hash = value,
                DT_STRTAB => strings = value,
                DT_SYMTAB => symbols = value,
                _ => {}
            }
        }
        let (Some(strings), Some(symbols)) = (strings, symbols) else { return Ok(None) };
        // The hash table knows their number; without one they end where the strings begin.
        let count = match hash {
            Some(hash) => self.number::<4>(hash.wrapping_add(4))?.unwrap_or(0),
            None => strings.saturating_sub(symbols) / SYMBOL_BYTES,
        };
        Ok(Some((symbols, count.min(MAX_SYMBOLS), strings)))
    }

    /// The text at an address of the image, as far as it can be printed.
    fn text(&mut self, offset: u64) -> Result<Option<String>, Stop> {
        let mut text = String::new();
        while text.len() < MAX_NAME {
            match self.number::<1>(offset.wrapping_add(text.len() as u64))? {
                Some(byte @ 0x20..=0x7e) => text.push(char::from(u8::try_from(byte).unwrap_or(b'?'))),
                Some(0) => return Ok(Some(text)),
                _ => return Ok(None),
            }
        }
        Ok(Some(text))
    }
}
