// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The tests that SPECIFICATION.md names.
//!
//! Mechanism: a word in backticks names a test if it is a scenario's name, `file.rs`, or
//! `file.rs::name`; either may end or begin with a star. Scenarios are found in the sources of the
//! suite, other tests as functions and modules in a file of that name. A name without a test is a
//! finding. The page has no links to the files: `git grep NAME` finds them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

/// What is in one file.
#[derive(Default)]
struct Source {
    /// Functions and modules.
    names: BTreeSet<String>,
}

/// What tests there are.
pub(super) struct Tests {
    sources: BTreeMap<String, Source>,
    scenarios: BTreeSet<String>,
}

/// What the page names.
pub(super) struct Promised {
    pub(super) findings: Vec<String>,
    /// The number of different names.
    pub(super) named: usize,
}

impl Tests {
    pub(super) fn read(files: &[String], read: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let mut tests = Self { sources: BTreeMap::new(), scenarios: BTreeSet::new() };
        for file in files.iter().filter(|file| file.ends_with(".rs") && !file.contains("/tables/")) {
            tests.enter(file, &read(file)?);
        }
        Ok(tests)
    }

    fn enter(&mut self, file: &str, text: &str) {
        let mut source = Source::default();
        let prefix = text.split_once("concat!(\"").and_then(|(_, rest)| rest.split_once('"')).map(|(prefix, _)| prefix);
        for line in text.lines().map(str::trim_start) {
            let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
            for keyword in ["fn ", "mod "] {
                if let Some(at) = line.find(keyword).filter(|at| line[..*at].is_empty() || line[..*at].ends_with(' ')) {
                    source.names.insert(name(&line[at + keyword.len()..]));
                }
            }
            if !file.starts_with("tests/scenarios/src/") {
                continue;
            }
            // `name: "NAME",` in full, or `scenarios! { NAME: function, "about"; }` with the
            // module's prefix.
            if let Some((full, _)) = line.strip_prefix("name: \"").and_then(|rest| rest.split_once('"')) {
                self.scenarios.insert(full.to_owned());
                continue;
            }
            let entry = name(line);
            if line[entry.len()..].starts_with(':') {
                if let Some(prefix) = prefix {
                    self.scenarios.insert(format!("{prefix}{entry}"));
                }
            }
        }
        self.sources.insert(file.to_owned(), source);
    }

    /// Whether the test that a word names is there: `None` if it names no test, an error with the
    /// finding if there is none.
    fn find(&self, word: &str) -> Option<Result<(), String>> {
        let (file, name) = word.split_once("::").unwrap_or((word, ""));
        if file.ends_with(".rs") {
            let ends = |path: &&String| path.as_str() == file || path.ends_with(&format!("/{file}"));
            let has = |path: &String| name.is_empty() || self.sources[path].names.iter().any(|n| fits(name, n));
            let found = self.sources.keys().filter(ends).any(has);
            return Some(if found { Ok(()) } else { Err(format!("there is no test {word}")) });
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '*');
        if !word.chars().all(plain)
            || word.trim_end_matches('*').matches('_').count() < 3 && !word.starts_with("kernel_")
        {
            return None;
        }
        let found = self.scenarios.iter().any(|name| fits(word, name));
        Some(if found { Ok(()) } else { Err(format!("there is no scenario {word}")) })
    }

    /// Looks for the tests that a page names.
    pub(super) fn check(&self, page: &str) -> Promised {
        let mut named = BTreeSet::new();
        let mut findings = Vec::new();
        let mut line = 1_usize;
        for (n, part) in page.split('`').enumerate() {
            let number = line;
            line += part.matches('\n').count();
            if n % 2 == 0 {
                continue;
            }
            match self.find(part) {
                None => {}
                Some(Ok(())) => {
                    named.insert(part);
                }
                Some(Err(finding)) => findings.push(format!("{}:{number}: {finding}", super::PROMISES)),
            }
        }
        Promised { findings, named: named.len() }
    }
}

/// Whether a name is one that a word with stars means.
fn fits(word: &str, name: &str) -> bool {
    match word.split_once('*') {
        None => word == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            let mut ends = (0..=tail.len()).filter(|at| tail.is_char_boundary(*at));
            ends.any(|at| fits(rest, &tail[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests() -> Tests {
        let mut tests = Tests { sources: BTreeMap::new(), scenarios: BTreeSet::new() };
        tests.enter("driver/tests/it/svm.rs", "#[test]\nfn faults_bring_pages() {}\npub(crate) mod planted {\n");
        tests.enter("hunt/tests/svm.rs", "fn threads_share_blocks() {}\n");
        tests.enter("tests/scenarios/src/kernel/kill.rs", "concat!(\"kernel_\", x)\n    reaped: f, \"about\";\n");
        tests.enter("tests/scenarios/src/abi/batch.rs", "    name: \"batch_checks_come_in_their_order\",\n");
        tests
    }

    #[test]
    fn names_are_counted_once() {
        let page =
            "T: driver: `svm.rs::faults_*`, `cargo x`. S: `kernel_reaped`,\n`batch_checks_come_*`, `kernel_reaped`.\n";
        let promised = tests().check(page);
        assert!(promised.findings.is_empty(), "{:?}", promised.findings);
        assert_eq!(promised.named, 3);
    }

    #[test]
    fn tests_that_are_not_there_are_found() {
        let findings = |page: &str| tests().check(page).findings;
        assert_eq!(findings("\n`svm.rs::no_test`"), ["SPECIFICATION.md:2: there is no test svm.rs::no_test"]);
        assert_eq!(findings("`kernel_killed_*`"), ["SPECIFICATION.md:1: there is no scenario kernel_killed_*"]);
        assert_eq!(
            findings("`batch_checks_come_in`"),
            ["SPECIFICATION.md:1: there is no scenario batch_checks_come_in"]
        );
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(
            fits("a_*", "a_b")
                && fits("*_b", "a_b")
                && fits("a*c", "abc")
                && fits("*_threads_*", "x_threads_y")
                && fits("*b", "abab")
        );
        assert!(!fits("a_*", "b_a_") && !fits("a", "ab") && !fits("*b", "abc") && !fits("b", "ab"));
    }
}
