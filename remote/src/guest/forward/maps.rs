// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `/proc/self/maps`: the truth about the program's mappings, whatever it or its C library did
//! without anybody seeing it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use super::super::FileId;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub protection: i32,
    pub shared: bool,
    /// The kernel's own pages, such as the vDSO.
    pub special: bool,
    pub file: FileId,
    pub offset: u64,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.as_bytes();
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let name = words.next().unwrap_or("");
        let mut protection = libc::PROT_NONE;
        for (place, letter, bit) in
            [(0, b'r', libc::PROT_READ), (1, b'w', libc::PROT_WRITE), (2, b'x', libc::PROT_EXEC)]
        {
            if permissions.get(place) == Some(&letter) {
                protection |= bit;
            }
        }
        let device = libc::makedev(u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            protection,
            shared: permissions.get(3) == Some(&b's'),
            special: name.starts_with("[v"),
            file: (device, inode),
            offset,
        })
    }
}

/// All mappings of this process, in order.
pub fn all() -> io::Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for line in BufReader::with_capacity(1 << 16, File::open("/proc/self/maps")?).lines() {
        mappings.extend(Mapping::parse(&line?));
    }
    Ok(mappings)
}

/// The mappings that share a byte with `[start, end)`, each with its part of it. `None` if there is
/// a hole.
pub fn within(mappings: &[Mapping], start: u64, end: u64) -> Option<Vec<(Mapping, u64, u64)>> {
    let mut found = Vec::new();
    let mut at = start;
    let first = mappings.partition_point(|mapping| mapping.end <= start);
    for mapping in &mappings[first..] {
        if at >= end {
            break;
        }
        if mapping.start > at {
            return None;
        }
        let last = mapping.end.min(end);
        found.push((*mapping, at, last));
        at = last;
    }
    (at >= end).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = "7f0000001000-7f0000003000 rw-s 100a30000 00:06 320 /dev/dri/renderD128";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f00_0000_1000, 0x7f00_0000_3000, 0x1_00a3_0000));
        assert_eq!((mapping.protection, mapping.shared), (libc::PROT_READ | libc::PROT_WRITE, true));
        assert_eq!(mapping.file, (libc::makedev(0, 6), 320));
        let line = "7ffd1000-7ffd3000 r-xp 00000000 00:00 0                          [vdso]";
        assert!(Mapping::parse(line).unwrap().special);
        let none = Mapping::parse("1000-2000 ---p 00000000 00:00 0").unwrap();
        assert_eq!((none.protection, none.special, none.shared), (libc::PROT_NONE, false, false));
    }

    #[test]
    fn a_hole_is_noticed() {
        let mapping = |start, end| Mapping { start, end, ..Mapping::parse("0-0 rw-p 0 00:00 0").unwrap() };
        let all = [mapping(1, 4), mapping(4, 6), mapping(7, 9)];
        let spans = |start, end| within(&all, start, end).map(|l| l.iter().map(|m| (m.1, m.2)).collect::<Vec<_>>());
        assert_eq!(spans(2, 5), Some(vec![(2, 4), (4, 5)]));
        assert_eq!(spans(1, 6), Some(vec![(1, 4), (4, 6)]));
        assert!(spans(5, 8).is_none() && spans(0, 2).is_none() && spans(8, 10).is_none() && spans(20, 21).is_none());
    }
}
