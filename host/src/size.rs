// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sizes as people write them: `512M`, `4G`, `2GiB`; without a unit, bytes. Units are powers of
//! 1024.

/// A size in bytes.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text:?} is no size: write for instance 512M or 2G (units K, M, G, T)")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size: write for instance 512M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than 64 bits can count"))
}

/// A size in bytes, of which a number alone counts `unit`s: for options that once had a unit of
/// their own.
///
/// # Errors
/// As [`parse`].
pub fn parse_counting(text: &str, unit: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(number) => number.checked_mul(unit).ok_or_else(|| format!("{text} is more than 64 bits can count")),
        Err(_) => parse(text),
    }
}

/// A number of bytes in the largest unit that it is a whole number of.
pub fn show(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.iter().find(|(_, shift)| bytes != 0 && bytes % (1 << shift) == 0);
    whole.map_or_else(|| format!("{bytes} bytes"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_counting, show};

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("3g", 3 << 30),
            ("4GiB", 4 << 30),
            ("2TB", 2 << 40),
            ("1k", 1024),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "M", "1.5G", "-1", "12X", "99999999T", "é", "1 G", "4iB4", "1MM", "G1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_number_alone_may_count_another_unit() {
        assert_eq!((parse_counting("64", 1 << 20), parse_counting("64K", 1 << 20)), (Ok(64 << 20), Ok(64 << 10)));
        assert!(parse_counting("99999999999999", 1 << 30).is_err() && parse_counting("x", 1).is_err());
    }

    #[test]
    fn the_largest_whole_unit_is_shown() {
        for (bytes, text) in
            [(0, "0 bytes"), (1 << 40, "1 TiB"), (3 << 20, "3 MiB"), (1536 << 20, "1536 MiB"), (5, "5 bytes")]
        {
            assert_eq!(show(bytes), text);
        }
    }
}
