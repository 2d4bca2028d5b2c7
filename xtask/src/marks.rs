// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The places that a new GPU target must touch beside its row: comments `NEW TARGET: WHAT` in the
//! source, and the table of them in docs/extending.md. A part of `stray`.
//!
//! Mechanism: each mark is a row of the page, with its file and its words, and each row is a mark.
//! Code outside of tests that compares with single targets has a mark above it. A match over
//! targets needs none if it has no default: a new target does not compile there.
//!
//! Limits: a mark counts for the [`NEAR`] lines below it. A target that is compared by a constant's
//! name is not seen.

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

/// How far below its mark a comparison may be.
const NEAR: usize = 8;
/// Where a comparison with one target needs no mark: what is not run by users.
const TESTS: [&str; 3] = ["tests", "examples", "bench"];

/// The findings in one file: comparisons with single targets that have no mark.
pub fn unmarked(path: &str, text: &str) -> Vec<String> {
    if path.split('/').any(|part| TESTS.contains(&part)) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.split("#[cfg(test)]").next().unwrap_or(text).lines().collect();
    let marked = |at: usize| lines[at.saturating_sub(NEAR)..=at].iter().any(|line| line.contains("NEW TARGET:"));
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if compares(line) && !marked(at) || is_arm(line) && has_default(&lines, at) && !marked(above(&lines, at)) {
            let at = at + 1;
            findings.push(format!("{path}:{at}: code that only one target decides, without \"{MARK}WHAT\" above it"));
        }
    }
    findings
}

fn compares(line: &str) -> bool {
    let one = |start: &str| line.contains(&format!("{start}Target::Gfx"));
    one("== ") || one("!= ") || line.contains("matches!") && line.contains("Target::Gfx") || one("if let ")
}

fn is_arm(line: &str) -> bool {
    line.trim_start().starts_with("Target::Gfx") && line.contains("=>")
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The first line of the match with the arm at `at`.
fn above(lines: &[&str], at: usize) -> usize {
    let inside = |line: &&str| line.trim().is_empty() || indentation(line) >= indentation(lines[at]);
    at.saturating_sub(1 + lines[..at].iter().rev().take_while(|line| inside(line)).count())
}

/// Whether the match with the arm at `at` has an arm for all other targets.
fn has_default(lines: &[&str], at: usize) -> bool {
    let inside = |line: &&&str| line.trim().is_empty() || indentation(line) >= indentation(lines[at]);
    let arms = lines[at..].iter().take_while(inside).filter(|line| indentation(line) == indentation(lines[at]));
    arms.map(|line| line.trim_start()).any(|arm| arm.starts_with("_ ") || arm.starts_with("other "))
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
    fn what_one_target_decides_has_a_mark() {
        let compared = "fn f() {\n    if target == Target::Gfx942 {\n        g()\n    }\n}\n";
        let marked = compared.replace("    if", "    // NEW TARGET: what g does\n    if");
        let all = "match target {\n    Target::Gfx942 => {\n        a\n    }\n    Target::Gfx900 => b,\n}\nmatch c {\n    _ => d,\n}\n";
        let default = all.replace("Target::Gfx900", "_");
        let found = |text: &str| unmarked("cu/src/a.rs", text).len();
        assert_eq!([found(compared), found(&marked), found(all), found(&default)], [1, 0, 0, 1]);
        assert_eq!(found(&format!("// NEW TARGET: a\n{default}")), 0);
        assert_eq!(found(&format!("#[cfg(test)]\n{compared}")), 0);
        assert_eq!(unmarked("cu/tests/a.rs", compared), [""; 0]);
    }

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
