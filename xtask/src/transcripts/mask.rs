// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What may differ between two runs of a command: numbers, with their units.

/// Units that a number may change with its size.
const UNITS: [&str; 12] = ["ns", "us", "ms", "s", "B", "bytes", "KiB", "MiB", "GiB", "KB/s", "MB/s", "GB/s"];

/// `line` with `#` for each number and its unit, and one space for any number of them.
pub(super) fn mask(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let masked = numbers(word);
        let bare = masked.trim_end_matches([',', ';', '.', ')', ':']);
        let after_number = words.last().is_some_and(|last| last.ends_with('#'));
        match words.last_mut() {
            Some(last) if after_number && UNITS.contains(&bare) => last.push_str(&masked[bare.len()..]),
            _ => words.push(masked),
        }
    }
    words.join(" ")
}

/// A word with `#` for each number in it: digits with commas, points and minus signs, or
/// hexadecimal after `0x`. Digits of a name (`gfx900`) stay.
fn numbers(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let in_name = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = if in_name { 0 } else { number(rest) };
        if length > 0 {
            out.push('#');
            rest = &rest[length..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// The length of the number at the begin of `text`.
fn number(text: &str) -> usize {
    let plain = text.strip_prefix('-').unwrap_or(text);
    let sign = text.len() - plain.len();
    if let Some(hex) = plain.strip_prefix("0x") {
        let digits = hex.len() - hex.trim_start_matches(|c: char| c.is_ascii_hexdigit()).len();
        return if digits > 0 { sign + 2 + digits } else { 0 };
    }
    if !plain.starts_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    let all = plain.len() - plain.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c == '.').len();
    sign + plain[..all].trim_end_matches([',', '.']).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_units_are_masked() {
        assert_eq!(mask("moved 64 MiB in 75.34 ms (0.89 GB/s)"), "moved # in # (#)");
        assert_eq!(mask("4,096 ranges,   889 us, 0x7f12 and -14"), "# ranges, #, # and #");
        assert_eq!(mask("33.5 times faster."), "# times faster.");
    }

    #[test]
    fn names_stay() {
        assert_eq!(mask("gfx900 _Z6triplePii is right"), "gfx900 _Z6triplePii is right");
        assert_ne!(mask("gfx900"), mask("gfx90a"));
    }
}
