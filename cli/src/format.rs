// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers, sizes, times and tables for people.

use std::time::Duration;

/// Columns of text. Longer lines are hard to read, and fewer columns have no room for the labels at
/// the start of lines.
const WIDEST: usize = 100;
const NARROWEST: usize = 40;

/// A count with its thousands apart: `16,384`.
pub fn count(n: u64) -> String {
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

/// A duration with three significant digits or so.
pub fn time(t: Duration) -> String {
    let seconds = t.as_secs_f64();
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 0.001 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{:.0} us", seconds * 1e6)
    }
}

/// Bytes per second in decimal gigabytes; `-` for no time at all.
pub fn rate(bytes: u64, t: Duration) -> String {
    gigabytes_per_second(bytes, t).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2} GB/s"))
}

/// 10^9 bytes per second.
#[allow(clippy::cast_precision_loss)] // for display
pub fn gigabytes_per_second(bytes: u64, t: Duration) -> Option<f64> {
    (!t.is_zero()).then(|| bytes as f64 / t.as_secs_f64() / 1e9)
}

/// Milliseconds, for JSON.
pub fn milliseconds(t: Duration) -> f64 {
    (t.as_secs_f64() * 1e6).round() / 1e3
}

/// Columns for text: the terminal's, or those of a page.
pub fn width() -> usize {
    // SAFETY: zeros are a size, and the call fills it or not.
    let columns = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        usize::from(size.ws_col)
    };
    if columns == 0 {
        WIDEST
    } else {
        columns.clamp(NARROWEST, WIDEST)
    }
}

/// Breaks text into lines of at most `width` characters, at spaces; a longer word has a line of its
/// own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// A table with aligned columns, each as wide as its widest cell.
pub struct Table {
    head: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one with these columns.
    pub fn new(head: &[(&str, Align)]) -> Self {
        Self { head: head.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Its lines, the head first.
    pub fn lines(&self) -> Vec<String> {
        let names: Vec<String> = self.head.iter().map(|(name, _)| name.clone()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&names).chain(&self.rows).collect();
        let width = |column: usize| {
            all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let mut text = String::new();
            for (column, ((_, align), width)) in self.head.iter().zip(&widths).enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column != 0 {
                    text.push_str("  ");
                }
                text.push_str(&match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                });
            }
            text.trim_end().to_owned()
        };
        all.into_iter().map(line).collect()
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
    fn times_and_rates() {
        assert_eq!(time(Duration::from_micros(7)), "7 us");
        assert_eq!(time(Duration::from_micros(7250)), "7.25 ms");
        assert_eq!(time(Duration::from_millis(7250)), "7.25 s");
        assert_eq!(rate(2_000_000_000, Duration::from_secs(1)), "2.00 GB/s");
        assert_eq!(rate(1, Duration::ZERO), "-");
        assert!((milliseconds(Duration::from_nanos(1_234_567)) - 1.235).abs() < 1e-9);
    }

    #[test]
    fn text_breaks_at_spaces() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible if", 4), ["incomprehensible", "if"]);
        assert!(wrap("", 4).is_empty());
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right), ("note", Align::Left)]);
        table.row(vec!["a".into(), "100".into(), "x".into()]);
        table.row(vec!["longer".into(), "7".into()]);
        assert_eq!(table.lines(), ["name      n  note", "a       100  x", "longer    7"]);
    }
}
