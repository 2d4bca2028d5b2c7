// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scatter lists that were recorded in real guests: how one buffer, contiguous there, lies in
//! guest-physical memory.
//!
//! A line is a guest-physical start and a length in hexadecimal bytes, `#` starts a comment, and
//! the order is the buffer's.

use anyhow::{bail, Context, Result};
use vkfd_client::PAGE;

macro_rules! recorded {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../guest-scatter/", $name, ".ranges")))),+]
    };
}

/// Their names and texts.
pub const RECORDED: &[(&str, &str)] = recorded!["fresh-64M" "aged-thp-64M" "random-4k-64M" "aged-4k-256M"];

/// Reads a list: offsets from its lowest address, and lengths.
///
/// # Errors
///
/// Names the first line at fault.
pub fn parse(text: &str) -> Result<Vec<(u64, u64)>> {
    let mut pieces = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.split('#').next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        let bad = || format!("line {number}: {content:?} is not a start and a length in whole pages, hexadecimal");
        let (start, bytes) = content.split_once(char::is_whitespace).with_context(bad)?;
        let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok().filter(|n| n % PAGE == 0);
        match (hex(start), hex(bytes)) {
            (Some(start), Some(bytes)) if bytes > 0 => pieces.push((start, bytes)),
            _ => bail!(bad()),
        }
    }
    let lowest = pieces.iter().map(|(start, _)| *start).min().context("the list is empty")?;
    Ok(pieces.into_iter().map(|(start, bytes)| (start - lowest, bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_lists_have_the_size_in_their_names() {
        for (name, text) in RECORDED {
            let pieces = parse(text).unwrap();
            let megabytes: u64 = name.rsplit('-').next().unwrap().trim_end_matches('M').parse().unwrap();
            assert_eq!(pieces.iter().map(|(_, bytes)| bytes).sum::<u64>(), megabytes << 20, "{name}");
            assert!(pieces.iter().any(|(start, _)| *start == 0));
        }
    }

    #[test]
    fn bad_lines_are_refused() {
        for text in ["", "1000", "1000 0", "1001 1000", "1000 800", "x 1000", "1000 1000 1000"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse("# head\n3000 1000\n1000 2000 # tail").unwrap(), [(0x2000, 0x1000), (0, 0x2000)]);
    }
}
