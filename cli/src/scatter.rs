// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scatter lists: how one buffer, contiguous in a guest process, lies in guest-physical memory.
//!
//! The format is text: `#` starts a comment, every other line has a guest-physical start and a
//! length, both hexadecimal bytes and whole pages. The order of the lines is the order of the
//! buffer. Four lists that were recorded in real guests are built in.
//!
//! Limit: ranges must not overlap. A buffer that has a page twice could not be checked piece by
//! piece.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{anyhow, bail, Context, Result};
use vkfd_client::PAGE;

/// The longest guest-physical address space there is: 52 bits.
const LIMIT: u64 = 1 << 52;

/// The lists that are built in, with their names.
pub use vkfd_bench::list::RECORDED as BUILTIN;

/// The list that is used when none is asked for.
pub const DEFAULT: &str = "aged-4k-256M";

/// A piece of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Guest-physical address.
    pub start: u64,
    pub bytes: u64,
}

/// A scatter list.
#[derive(Clone, Debug)]
pub struct Scatter {
    /// Its name.
    pub name: String,
    /// Its pieces, in the order of the buffer.
    pub pieces: Vec<Piece>,
}

impl Scatter {
    /// A built-in list by its name, or a file's.
    ///
    /// # Errors
    ///
    /// When it is neither, or the file is not a list.
    pub fn load(name: &str) -> Result<Self> {
        if let Some((name, text)) = BUILTIN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let text = std::fs::read_to_string(Path::new(name)).with_context(|| {
            let known: Vec<_> = BUILTIN.iter().map(|(name, _)| *name).collect();
            format!("cannot read the list {name:?} (built-in lists: {})", known.join(", "))
        })?;
        Self::parse(name, &text)
    }

    /// All built-in lists.
    ///
    /// # Errors
    ///
    /// Never for the lists as they are.
    pub fn builtin() -> Result<Vec<Self>> {
        BUILTIN.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// Reads a list.
    ///
    /// # Errors
    ///
    /// Names the first line at fault.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut pieces = Vec::new();
        // By start: end and line number.
        let mut seen: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let content = line.split('#').next().unwrap_or("").trim();
            if content.is_empty() {
                continue;
            }
            let piece = parse_line(content).map_err(|why| anyhow!("{name}, line {number}: {why}"))?;
            let end = piece.start + piece.bytes;
            if let Some((_, (_, other))) = seen.range(..end).next_back().filter(|(_, (other, _))| *other > piece.start)
            {
                bail!("{name}, line {number}: overlaps the range of line {other}");
            }
            seen.insert(piece.start, (end, number));
            pieces.push(piece);
        }
        if pieces.is_empty() {
            bail!("{name}: the list has no range (a line is: start length, hexadecimal bytes)");
        }
        Ok(Self { name: name.to_owned(), pieces })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

fn parse_line(content: &str) -> std::result::Result<Piece, String> {
    let words: Vec<&str> = content.split_whitespace().collect();
    let [start, bytes] = words[..] else {
        return Err(format!("a start and a length are expected, there are {} words", words.len()));
    };
    let hex = |what: &str, word: &str| {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        // from_str_radix would take a sign.
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let value = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        let value = value.ok_or_else(|| format!("the {what} {word:?} is not a hexadecimal number of up to 64 bits"))?;
        if value % PAGE != 0 {
            return Err(format!("the {what} {value:#x} is not a multiple of the page size, {PAGE:#x}"));
        }
        Ok(value)
    };
    let piece = Piece { start: hex("start", start)?, bytes: hex("length", bytes)? };
    if piece.bytes == 0 {
        return Err("the length is 0".into());
    }
    match piece.start.checked_add(piece.bytes) {
        Some(end) if end <= LIMIT => Ok(piece),
        _ => Err(format!("the range {:#x}+{:#x} ends beyond 52 bits of address", piece.start, piece.bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_lists_are_what_their_heads_say() {
        for list in Scatter::builtin().unwrap() {
            let text = BUILTIN.iter().find(|(name, _)| *name == list.name).unwrap().1;
            let numbers: Vec<u64> = text
                .lines()
                .filter(|line| line.starts_with('#'))
                .flat_map(str::split_whitespace)
                .filter_map(|word| word.parse().ok())
                .collect();
            assert!(numbers.contains(&list.bytes()), "{}: {numbers:?}", list.name);
            assert!(numbers.contains(&u64::try_from(list.pieces.len()).unwrap()), "{}: {numbers:?}", list.name);
        }
        assert_eq!(Scatter::load(DEFAULT).unwrap().pieces[0], Piece { start: 0x4a6b_1000, bytes: 0x1_2000 });
    }

    #[test]
    fn comments_blanks_and_prefixes_are_taken() {
        let list = Scatter::parse("l", "# head\n\n 0x3000 1000 # tail\n1000\t2000\n").unwrap();
        let expected = [Piece { start: 0x3000, bytes: 0x1000 }, Piece { start: 0x1000, bytes: 0x2000 }];
        assert_eq!(list.pieces, expected);
        assert_eq!(list.bytes(), 0x3000);
    }

    #[test]
    fn bad_lines_are_refused_with_their_number() {
        for (text, line, word) in [
            ("1000 1000\n1001 1000", 2, "page size"),
            ("1000 1000\n\n4000 800", 3, "page size"),
            ("1000", 1, "1 words"),
            ("1000 1000 1000", 1, "3 words"),
            ("# x\n1000 0", 2, "length is 0"),
            ("-1000 1000", 1, "hexadecimal"),
            ("+1000 1000", 1, "hexadecimal"),
            ("0x 1000", 1, "hexadecimal"),
            ("zz 1000", 1, "hexadecimal"),
            ("10000000000000000 1000", 1, "hexadecimal"),
            ("fffffffffffff000 1000", 1, "52 bits"),
            ("1000 fffffffffffff000", 1, "52 bits"),
            ("1000 3000\n8000 1000\n3000 1000", 3, "overlaps the range of line 1"),
            ("8000 1000\n7000 2000", 2, "overlaps the range of line 1"),
            ("8000 1000\n1000 100000", 2, "overlaps"),
            ("8000 1000\n8000 1000", 2, "overlaps"),
        ] {
            let error = Scatter::parse("list", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("list, line {line}: ")) && error.contains(word), "{text:?}: {error}");
        }
        for empty in ["", "# nothing\n", "\n\n"] {
            assert!(Scatter::parse("list", empty).unwrap_err().to_string().contains("no range"));
        }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        assert_eq!(Scatter::parse("l", "2000 1000\n1000 1000\n3000 1000").unwrap().pieces.len(), 3);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = format!("{:#}", Scatter::load("no-such-list").unwrap_err());
        assert!(error.contains("no-such-list") && error.contains("fresh-64M"), "{error}");
    }
}
