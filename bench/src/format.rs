// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers in words: counts, bytes, times.

/// A count with its thousands apart.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the largest binary unit of which there is at least one.
pub fn bytes(n: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| n >> shift != 0) else { return format!("{n} bytes") };
    let whole = n as f64 / (1_u64 << shift) as f64;
    if whole.fract() == 0.0 {
        format!("{whole:.0} {unit}")
    } else {
        format!("{whole:.1} {unit}")
    }
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
