// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers, sizes, times and tables for people.

use std::time::Duration;
pub use vkfd_bench::format::{bytes, count, counted, duration as time};

/// Columns of text. Longer lines are hard to read, and fewer columns have no room for the labels at
/// the start of lines.
const WIDEST: usize = 100;
const NARROWEST: usize = 40;

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
    fn rates_and_milliseconds() {
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
