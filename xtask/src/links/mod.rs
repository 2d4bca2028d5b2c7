// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask links`: pages that lead nowhere, and lines that are too long.
//!
//! Mechanism: [`page`] reads a markdown file into its headings, links and names of files. What they
//! name must exist in the tree. [`promises`] does the same for the tests that SPECIFICATION.md
//! names. Addresses on the web are not looked at.

mod page;
mod promises;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};

use page::Page;
use xtask_base::{tree, Verdict};

/// Check the pages: links, anchors, names of files, tests of promises, width
///
/// A finding in a .md file is a relative link to a file that is not there, or to a heading that a
/// page does not have. Another is a path of the tree in backticks that is not there; CHANGELOG.md
/// reports the past and is left out. A third is a line of more than 100 characters outside of
/// tables and code, unless a task writes the page. SPECIFICATION.md has one more: a test or a
/// test's file that is not there.
///
/// Exit status: 0 clean, 1 findings, 2 cannot check (no git).
#[derive(clap::Args)]
pub struct Args {
    /// Wrap long lines
    #[arg(long)]
    write: bool,
}

const WIDTH: usize = 100;
const PROMISES: &str = "SPECIFICATION.md";
const HISTORY: &str = "CHANGELOG.md";

/// What can be linked to.
struct Tree {
    files: BTreeSet<String>,
    directories: BTreeSet<String>,
    pages: BTreeMap<String, Page>,
}

impl Tree {
    fn new(files: Vec<String>, pages: BTreeMap<String, Page>) -> Self {
        let parents = |file: &str| file.match_indices('/').map(|(at, _)| file[..at].to_owned()).collect::<Vec<_>>();
        let directories = files.iter().flat_map(|file| parents(file)).collect();
        Self { files: files.into_iter().collect(), directories, pages }
    }

    fn has(&self, path: &str) -> bool {
        self.files.contains(path) || self.directories.contains(path.trim_end_matches('/'))
    }

    /// What is wrong with a page.
    fn check(&self, name: &str, page: &Page) -> Vec<String> {
        let mut findings = Vec::new();
        let mut find = |line: usize, what: String| findings.push(format!("{name}:{line}: {what}"));
        for (line, columns) in &page.long_lines {
            find(*line, format!("{columns} columns, more than {WIDTH}"));
        }
        for (line, target) in &page.links {
            let (path, anchor) = target.split_once('#').map_or((target.as_str(), None), |(path, at)| (path, Some(at)));
            let Some(file) = (if path.is_empty() { Some(name.to_owned()) } else { beside(name, path) }) else {
                find(*line, format!("{target} leads out of the tree"));
                continue;
            };
            if !self.has(&file) {
                find(*line, format!("there is no {file}"));
            } else if let (Some(anchor), Some(page)) = (anchor, self.pages.get(&file)) {
                if !page.anchors.contains(anchor) {
                    find(*line, format!("{file} has no heading #{anchor}"));
                }
            }
        }
        if name != HISTORY {
            for (line, path) in page.paths.iter().filter(|(_, path)| self.is_path(path) && !self.has(path)) {
                find(*line, format!("there is no {path}"));
            }
        }
        findings
    }

    /// Whether a word in backticks means a file: it begins with a directory of the root.
    fn is_path(&self, word: &str) -> bool {
        word.split_once('/').is_some_and(|(first, _)| self.directories.contains(first))
    }
}

/// The path of a link relative to the root. `None` where it leaves the tree.
fn beside(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether a task writes the page as a whole: its lines are that task's.
fn generated(text: &str) -> bool {
    text.lines().take(8).any(|line| line.contains("Made by `cargo xtask"))
}

fn pages_of(files: &[String]) -> Vec<String> {
    files.iter().filter(|file| file.ends_with(".md")).cloned().collect()
}

pub fn run(args: &Args) -> Result<Verdict> {
    let root = tree::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let write = |path: &str, text: &str| fs::write(root.join(path), text).with_context(|| format!("write {path}"));
    let files = tree::files()?;
    let tests = promises::Tests::read(&files, read)?;
    if args.write {
        for file in &pages_of(&files) {
            let text = read(file)?;
            if !generated(&text) {
                write(file, &xtask_base::wrap::wrap(&text, WIDTH))?;
            }
        }
    }
    let promised = tests.check(&read(PROMISES)?);
    let mut findings = promised.findings;
    let mut pages = BTreeMap::new();
    for file in pages_of(&files) {
        let text = read(&file)?;
        let mut page = Page::read(&text, WIDTH);
        if generated(&text) {
            page.long_lines.clear();
        }
        pages.insert(file, page);
    }
    let tree = Tree::new(files, pages);
    findings.extend(tree.pages.iter().flat_map(|(name, page)| tree.check(name, page)));
    let links: usize = tree.pages.values().map(|page| page.links.len()).sum();
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{} pages, {links} links, {} named tests", tree.pages.len(), promised.named)),
        false => Verdict::Findings(findings),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let page = Page::read(text, WIDTH);
        let files = ["docs/a.md", "docs/b.md", "src/lib.rs"].map(String::from).to_vec();
        let pages = [("docs/b.md".to_owned(), Page::read("# Other things, and `code`\n", WIDTH))];
        Tree::new(files, pages.into_iter().collect()).check("docs/a.md", &page)
    }

    #[test]
    fn what_is_there_is_no_finding() {
        let text =
            "[x](b.md) [y](b.md#other-things-and-code) [z](../src/lib.rs) [d](../src/) [w](https://example.org)\n\
                    `src/lib.rs`, `src/lib.rs::name`, `src/`, `other/file.rs`, `sr*/x`\n";
        assert!(findings(text).is_empty(), "{:?}", findings(text));
    }

    #[test]
    fn what_is_not_there_is_one() {
        assert_eq!(findings("\n[x](c.md)"), ["docs/a.md:2: there is no docs/c.md"]);
        assert_eq!(findings("[x](b.md#things)"), ["docs/a.md:1: docs/b.md has no heading #things"]);
        assert_eq!(findings("[x](../../y)"), ["docs/a.md:1: ../../y leads out of the tree"]);
        assert_eq!(findings("[x]: c.md"), ["docs/a.md:1: there is no docs/c.md"]);
        assert_eq!(findings("`src/main.rs::f`"), ["docs/a.md:1: there is no src/main.rs"]);
    }

    #[test]
    fn pages_that_a_task_writes_are_known() {
        assert!(generated("<!-- SPDX -->\n# Operations\n\nWhich. Made by `cargo xtask operations`; do not edit.\n"));
        assert!(!generated("# Working on it\n\n`cargo xtask operations`\n"));
    }

    #[test]
    fn the_history_may_name_what_has_gone() {
        let page = Page::read("`src/main.rs`", WIDTH);
        let tree = Tree::new(vec!["src/lib.rs".into()], BTreeMap::new());
        assert!(tree.check(HISTORY, &page).is_empty());
        assert_eq!(tree.check("README.md", &page).len(), 1);
    }
}
