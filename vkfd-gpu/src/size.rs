// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sizes as QEMU writes them: `512M`, `2G`; without a unit, bytes.

/// Parses a size in bytes.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = text.chars().last().and_then(|last| units.iter().find(|(name, _)| last.eq_ignore_ascii_case(name)));
    let (digits, shift) = match unit {
        Some((_, shift)) => (&text[..text.len() - 1], *shift),
        None => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size: write for instance 512M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than 64 bits can count"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("3g"), Ok(3 << 30));
        for bad in ["", "M", "1.5G", "-1", "12X", "99999999T", "é"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
