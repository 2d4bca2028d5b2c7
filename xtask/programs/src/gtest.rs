// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a GoogleTest program: from its JSON, which it writes at its end, or from its
//! output, if it had no end.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::suite::Outcome;

#[derive(Deserialize)]
struct Program {
    testsuites: Vec<Suite>,
}

#[derive(Deserialize)]
struct Suite {
    name: String,
    testsuite: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    /// `RUN` or `NOTRUN`.
    status: String,
    /// `COMPLETED`, `SKIPPED` or `SUPPRESSED`.
    result: String,
    #[serde(default)]
    failures: Vec<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    failure: String,
}

/// Tests with their outcome, from the JSON of a program that came to its end.
pub fn of_json(text: &str) -> Result<BTreeMap<String, Outcome>> {
    let program: Program = serde_json::from_str(text).context("read a GoogleTest program's JSON")?;
    let mut cases = BTreeMap::new();
    for suite in program.testsuites {
        for test in suite.testsuite.into_iter().filter(|test| test.status == "RUN") {
            let outcome = match (test.failures.first(), test.result.as_str()) {
                (Some(Failure { failure }), _) => Outcome::Failed(one_line(failure)),
                (None, "COMPLETED") => Outcome::Passed,
                (None, _) => Outcome::Skipped("the test skips itself".into()),
            };
            cases.insert(format!("{}.{}", suite.name, test.name), outcome);
        }
    }
    Ok(cases)
}

/// The tests that a program has, from its list: a suite's name ends in a dot, and its tests stand
/// below it, indented.
pub fn listed(text: &str) -> Vec<String> {
    let mut suite = "";
    let mut names = Vec::new();
    for line in text.lines() {
        // What a parameter is stands behind the name.
        let name = line.split('#').next().unwrap_or_default().trim();
        match line.starts_with("  ") {
            true if !suite.is_empty() => names.push(format!("{suite}{name}")),
            true => {}
            false => suite = if name.ends_with('.') { name } else { "" },
        }
    }
    names
}

/// Whether what a program printed has an end.
pub fn is_whole(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("[==========] ") && line.contains(" ran."))
}

/// Tests in the order in which they began, with their outcome; none for one that has not ended.
pub fn of_lines(text: &str) -> Vec<(String, Option<Outcome>)> {
    let mut cases: Vec<(String, Option<Outcome>)> = Vec::new();
    let mut said = String::new();
    for line in text.lines() {
        // What a test prints may stand before it on the line.
        let mark = |words: &str| line.split_once(words).map(|(_, rest)| rest.trim());
        if let Some(name) = mark("[ RUN      ] ") {
            said.clear();
            cases.push((name.into(), None));
            continue;
        }
        let Some((name, outcome)) = cases.last_mut().filter(|(_, outcome)| outcome.is_none()) else { continue };
        let ends = |rest: Option<&str>| rest.is_some_and(|rest| rest.starts_with(name.as_str()));
        if ends(mark("[       OK ] ")) {
            *outcome = Some(Outcome::Passed);
        } else if ends(mark("[  SKIPPED ] ")) {
            *outcome = Some(Outcome::Skipped("the test skips itself".into()));
        } else if ends(mark("[  FAILED  ] ")) {
            *outcome = Some(Outcome::Failed(one_line(&said)));
        } else if said.len() < 1000 {
            said.push_str(line);
            said.push('\n');
        }
    }
    cases
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_how_each_test_ended() {
        let text = r#"{ "tests": 4, "testsuites": [ { "name": "a/0", "tests": 4, "testsuite": [
            { "name": "one", "type_param": "int", "status": "RUN", "result": "COMPLETED", "time": "0s" },
            { "name": "two/1", "status": "RUN", "result": "COMPLETED",
              "failures": [ { "failure": "x.cpp:7\nExpected: 1\n", "type": "" } ] },
            { "name": "three", "status": "RUN", "result": "SKIPPED" },
            { "name": "DISABLED_four", "status": "NOTRUN", "result": "SUPPRESSED" } ] } ] }"#;
        let seen = of_json(text).expect("JSON");
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        let expected = BTreeMap::from([
            one("a/0.one", Outcome::Passed),
            one("a/0.two/1", Outcome::Failed("x.cpp:7 Expected: 1".into())),
            one("a/0.three", Outcome::Skipped("the test skips itself".into())),
        ]);
        assert_eq!(seen, expected);
        assert!(of_json("").is_err());
    }

    #[test]
    fn a_list_names_suites_and_tests() {
        let text = "Failed to open file.\na.\n  one\n  two/0  # GetParam() = 1\nb/0.  # TypeParam = int\n  one\n";
        assert_eq!(listed(text), ["a.one", "a.two/0", "b/0.one"]);
        assert!(listed("words\n  more words\n").is_empty());
    }

    #[test]
    fn the_last_line_but_one_says_that_all_ran() {
        let text = "[==========] Running 2 tests from 1 test suite.\n[ RUN      ] a.one\n[       OK ] a.one (0 ms)\n";
        assert!(!is_whole(text));
        assert!(is_whole(&format!(
            "{text}[==========] 2 tests from 1 test suite ran. (3 ms total)\n[  PASSED  ] 2 tests.\n"
        )));
    }

    #[test]
    fn lines_say_which_test_was_the_last() {
        let text = "[ RUN      ] a/0.one\nprinted[       OK ] a/0.one (3 ms)\n\
                    [ RUN      ] a/0.two/1\nx.cpp:7\nExpected: 1\n[  FAILED  ] a/0.two/1, where GetParam() = 2 (4 ms)\n\
                    [ RUN      ] a/0.three\n[  SKIPPED ] a/0.three (0 ms)\n[ RUN      ] a/0.four\n";
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        assert_eq!(
            of_lines(text),
            [
                one("a/0.one", Some(Outcome::Passed)),
                one("a/0.two/1", Some(Outcome::Failed("x.cpp:7 Expected: 1".into()))),
                one("a/0.three", Some(Outcome::Skipped("the test skips itself".into()))),
                one("a/0.four", None),
            ]
        );
    }
}
