// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers in words: counts, bytes, times.

use std::fmt::Display;
use std::time::Duration;

/// A count with its thousands apart: `16,384`.
pub fn count(n: impl Display) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count and its noun, with a plural by `s`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Bytes in the largest binary unit of which there is at least one: exact where it divides, else
/// with one decimal.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && n >> (10 * (unit + 1)) != 0 {
        unit += 1;
    }
    let size = 1_u64 << (10 * unit);
    if n % size == 0 {
        return format!("{} {}", n / size, UNITS[unit]);
    }
    let tenths = u128::from(n) * 10 / u128::from(size);
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// A duration with three digits or so.
pub fn duration(t: Duration) -> String {
    time(t.as_secs_f64())
}

/// Seconds with three digits or so.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "us"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", number(value))
}

/// A number with three digits or so.
pub fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A time in seconds or a rate, whatever its size.
pub fn number_with_power(value: f64) -> String {
    if (0.01..10_000.0).contains(&value) {
        number(value)
    } else {
        format!("{value:.2e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_their_thousands_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (16_384, "16,384"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
        assert_eq!(counted(1, "range"), "1 range");
        assert_eq!(counted(2000, "range"), "2,000 ranges");
    }

    #[test]
    fn sizes_use_the_largest_unit_that_fits() {
        for (n, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (4096, "4 KiB"),
            (5000, "4.8 KiB"),
            (256 << 20, "256 MiB"),
            ((256 << 20) - 1, "255.9 MiB"),
            (3 << 40, "3 TiB"),
            (5 << 50, "5120 TiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(bytes(u64::MAX), "16777215.9 TiB");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!(duration(Duration::from_nanos(70)), "70.0 ns");
        assert_eq!(duration(Duration::from_micros(7)), "7.00 us");
        assert_eq!(duration(Duration::from_micros(7250)), "7.25 ms");
        assert_eq!(duration(Duration::from_millis(7250)), "7.25 s");
    }
}
