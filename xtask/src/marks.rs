// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The places that a new GPU target must touch beside its row: comments `NEW TARGET: WHAT` in the
//! source, and the table of them in docs/extending.md. A part of `stray`.
//!
//! Mechanism: each mark is a row of the page, with its file and its words, and each row is a mark.

use std::fs;

use anyhow::{Context, Result};

use xtask_base::tree;

const MARK: &str = "// NEW TARGET: ";
const PAGE: &str = "docs/extending.md";

/// The rows of the marks in one file.
pub fn rows(path: &str, text: &str) -> Vec<String> {
    let marks = text.lines().filter_map(|line| line.trim_start().strip_prefix(MARK));
    marks.map(|what| format!("| [{path}](../{path}) | {what} |")).collect()
}

/// The findings of `stray`: marks without a row, and rows without a mark.
pub fn check(rows: &[String]) -> Result<Vec<String>> {
    let page = fs::read_to_string(tree::root().join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    Ok(compare(rows, &page))
}

fn count<'a>(all: impl Iterator<Item = &'a str>, one: &str) -> usize {
    all.filter(|other| *other == one).count()
}

fn compare(marks: &[String], page: &str) -> Vec<String> {
    let table = page.split("## A target").nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| [")).collect();
    let mut findings = Vec::new();
    for mark in marks {
        if count(rows.iter().copied(), mark) < count(marks.iter().map(String::as_str), mark) {
            findings.push(format!("{PAGE}: its section \"A target\" lacks the row {mark}"));
        }
    }
    let gone = rows.iter().filter(|row| !marks.iter().any(|mark| mark == *row));
    findings.extend(gone.map(|row| format!("{PAGE}: no comment {MARK:?} in the source is the row {row}")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_rows_agree() {
        let text = "fn f() {\n    // NEW TARGET: its words\n    g(); // NEW TARGET: no mark\n}\n";
        let marks = rows("a/b.rs", text);
        assert_eq!(marks, ["| [a/b.rs](../a/b.rs) | its words |"]);
        let page = format!("# X\n\n## A target\n\n{}\n\n## Other\n\n| [c](../c) | d |\n", marks[0]);
        assert_eq!(compare(&marks, &page), [""; 0]);
        assert_eq!(compare(&[], &page).len(), 1);
        assert_eq!(compare(&marks, "## A target\n").len(), 1);
    }
}
