// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The tests that SPECIFICATION.md names, and where they are.
//!
//! Mechanism: a word in backticks names a test if it is a scenario's name, `file.rs`, or
//! `file.rs::name`; either may end or begin with a star. Scenarios are found in the sources of the
//! suite, other tests as functions and modules in a file of that name; where several files have it,
//! the crate decides that the text named last (`T: driver: ...`). Each name becomes a link, whose
//! target is in a list at the end of the page.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

/// Begins the list at the end.
const LIST: &str = "<!-- Where the tests are: written by `cargo xtask links --write`. -->";

/// What is in one file.
#[derive(Default)]
struct Source {
    /// Functions and modules.
    names: BTreeSet<String>,
}

/// What tests there are.
pub(super) struct Tests {
    sources: BTreeMap<String, Source>,
    /// Scenarios, and the file of each.
    scenarios: BTreeMap<String, String>,
}

/// SPECIFICATION.md with links.
pub(super) struct Promised {
    pub(super) text: String,
    pub(super) findings: Vec<String>,
    pub(super) named: usize,
}

impl Tests {
    pub(super) fn read(files: &[String], read: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let mut tests = Self { sources: BTreeMap::new(), scenarios: BTreeMap::new() };
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
                self.scenarios.insert(full.to_owned(), file.to_owned());
                continue;
            }
            let entry = name(line);
            if line[entry.len()..].starts_with(':') {
                if let Some(prefix) = prefix {
                    self.scenarios.insert(format!("{prefix}{entry}"), file.to_owned());
                }
            }
        }
        self.sources.insert(file.to_owned(), source);
    }

    /// The file of what a word names: `None` if it names no test, an error if it names one that is
    /// not there.
    fn find(&self, word: &str, package: &str) -> Option<Result<String, String>> {
        let (file, name) = word.split_once("::").unwrap_or((word, ""));
        if file.ends_with(".rs") {
            let ends = |path: &&String| path.as_str() == file || path.ends_with(&format!("/{file}"));
            let has = |path: &&String| name.is_empty() || self.sources[*path].names.iter().any(|n| fits(name, n));
            let all: Vec<_> = self.sources.keys().filter(ends).filter(has).collect();
            // A crate's tests before its sources, the crate that was named before all others.
            let order =
                |path: &&&String| (!path.starts_with(&format!("{package}/")), !path.contains("tests/"), path.len());
            let found = all.iter().min_by_key(order).map(|path| (*path).clone());
            return Some(found.ok_or_else(|| format!("there is no test {word}")));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '*');
        if !word.chars().all(plain)
            || word.trim_end_matches('*').matches('_').count() < 3 && !word.starts_with("kernel_")
        {
            return None;
        }
        let found = self.scenarios.iter().find(|(name, _)| fits(word, name)).map(|(_, file)| file.clone());
        Some(found.ok_or_else(|| format!("there is no scenario {word}")))
    }

    /// Makes the tests that a page names links.
    pub(super) fn link(&self, page: &str) -> Promised {
        let body = page.split(LIST).next().unwrap_or_default().trim_end();
        let mut list = BTreeMap::new();
        let mut findings = Vec::new();
        let mut text = String::new();
        let mut package = String::new();
        let mut line = 1_usize;
        // Whether the code before was made a link, whose bracket is still in the text if it was one
        // already.
        let mut linked = false;
        for (n, part) in body.split('`').enumerate() {
            let number = line;
            line += part.matches('\n').count();
            if n % 2 == 0 {
                package = last_package(part).unwrap_or(package);
                let closed = part.strip_prefix(']').filter(|rest| linked && !rest.starts_with('('));
                text.push_str(closed.unwrap_or(part));
                continue;
            }
            linked = false;
            match self.find(part, &package) {
                None => text.push_str(&format!("`{part}`")),
                Some(Err(finding)) => {
                    findings.push(format!("{}:{number}: {finding}", super::PROMISES));
                    text.push_str(&format!("`{part}`"));
                }
                Some(Ok(file)) => {
                    let known = list.entry(part.to_owned()).or_insert_with(|| file.clone());
                    if *known != file {
                        findings.push(format!("{}:{number}: {part} is in {known} and in {file}", super::PROMISES));
                    }
                    if text.ends_with('[') {
                        text.pop();
                    }
                    text.push_str(&format!("[`{part}`]"));
                    linked = true;
                }
            }
        }
        text.push_str(&format!("\n\n{LIST}\n\n"));
        text.extend(list.iter().map(|(name, file)| format!("[`{name}`]: {file}\n")));
        Promised { text, findings, named: list.len() }
    }
}

/// The directory of the last package that a text names, as in `T: driver:`.
fn last_package(text: &str) -> Option<String> {
    let words = text.split_whitespace().rev().filter_map(|word| word.strip_suffix([':', ',']));
    let plain = |word: &&str| word.len() > 1 && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let word = words.into_iter().find(plain)?;
    // A package is called after its directory.
    Some(word.strip_prefix("vkfd-").unwrap_or(word).to_owned())
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
        let mut tests = Tests { sources: BTreeMap::new(), scenarios: BTreeMap::new() };
        tests.enter("driver/tests/svm.rs", "#[test]\nfn faults_bring_pages() {}\npub(crate) mod planted {\n");
        tests.enter("hunt/tests/svm.rs", "fn threads_share_blocks() {}\n");
        tests.enter("tests/scenarios/src/kernel/kill.rs", "concat!(\"kernel_\", x)\n    reaped: f, \"about\";\n");
        tests.enter("tests/scenarios/src/abi/batch.rs", "    name: \"batch_checks_come_in_their_order\",\n");
        tests
    }

    #[test]
    fn names_become_links_once() {
        let page = "T: driver: `svm.rs::faults_*`, `cargo x`. S: `kernel_reaped`,\n`batch_checks_come_*`.\n";
        let linked = tests().link(page);
        assert!(linked.findings.is_empty(), "{:?}", linked.findings);
        let body = "T: driver: [`svm.rs::faults_*`], `cargo x`. S: [`kernel_reaped`],\n[`batch_checks_come_*`].\n\n";
        let list =
            "[`batch_checks_come_*`]: tests/scenarios/src/abi/batch.rs\n[`kernel_reaped`]: tests/scenarios/src/kernel/kill.rs\n\
                    [`svm.rs::faults_*`]: driver/tests/svm.rs\n";
        assert_eq!(linked.text, format!("{body}{LIST}\n\n{list}"));
        assert_eq!(tests().link(&linked.text).text, linked.text);
    }

    #[test]
    fn the_crate_that_was_named_has_the_file() {
        let list = |page: &str| tests().link(page).text.lines().last().map(str::to_owned);
        assert_eq!(list("T: hunt: `svm.rs`").as_deref(), Some("[`svm.rs`]: hunt/tests/svm.rs"));
        assert_eq!(list("T: driver: `svm.rs`").as_deref(), Some("[`svm.rs`]: driver/tests/svm.rs"));
    }

    #[test]
    fn tests_that_are_not_there_are_found() {
        let findings = |page: &str| tests().link(page).findings;
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
