// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a program of the OpenCL CTS: from its JSON, which it writes at its end, or from
//! its output, if it had no end.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::suite::Outcome;

#[derive(Deserialize)]
struct Program {
    results: BTreeMap<String, Word>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Pass,
    Fail,
    Skip,
}

/// The tests that a program has, from its output with `--list`.
pub fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix('\t')).filter(|name| !name.is_empty() && !name.contains(' '))
}

/// Tests with their outcome, from the JSON of a program that came to its end; the reasons are in
/// its output.
pub fn of_json(json: &str, printed: &str) -> Result<BTreeMap<String, Outcome>> {
    let program: Program = serde_json::from_str(json).context("read an OpenCL CTS program's JSON")?;
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    for (name, why, _) in tests(printed, |name| program.results.contains_key(name)) {
        said.insert(name, why);
    }
    let outcome = |(name, word)| {
        let why = || said.get(&name).map_or_else(|| "it says no more".into(), |lines| reason(lines));
        let outcome = match word {
            Word::Pass => Outcome::Passed,
            Word::Fail => Outcome::Failed(why()),
            Word::Skip => Outcome::Skipped(why()),
        };
        (name, outcome)
    };
    Ok(program.results.into_iter().map(outcome).collect())
}

/// Tests in the order in which they began, with their outcome; none for one that has not ended.
/// `is_test` says which names are those of tests that the program was asked for.
pub fn of_lines(printed: &str, is_test: impl Fn(&str) -> bool) -> Vec<(String, Option<Outcome>)> {
    let outcome = |(name, lines, word): (String, String, Option<Word>)| {
        let outcome = word.map(|word| match word {
            Word::Pass => Outcome::Passed,
            Word::Fail => Outcome::Failed(reason(&lines)),
            Word::Skip => Outcome::Skipped(reason(&lines)),
        });
        (name, outcome)
    };
    tests(printed, is_test).into_iter().map(outcome).collect()
}

/// Tests with their output and their outcome. `NAME...` stands on a line of its own when one
/// begins, and `NAME passed`, or the like, on one when it has ended.
fn tests(printed: &str, is_test: impl Fn(&str) -> bool) -> Vec<(String, String, Option<Word>)> {
    let mut tests: Vec<(String, String, Option<Word>)> = Vec::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_suffix("...").filter(|name| is_test(name)) {
            tests.push((name.into(), String::new(), None));
            continue;
        }
        let Some((name, said, word)) = tests.last_mut().filter(|(_, _, word)| word.is_none()) else { continue };
        // What a test prints may stand before it on the line.
        let ends = |end: &str| line.strip_suffix(end).is_some_and(|line| line.ends_with(name.as_str()));
        if ends(" passed") {
            *word = Some(Word::Pass);
        } else if ends(" FAILED") {
            *word = Some(Word::Fail);
        } else if ends(" test not supported") || line.starts_with(&format!("{name} skipped (")) {
            *word = Some(Word::Skip);
        }
        if !line.starts_with(name.as_str()) || line.contains("skipped (") {
            said.push_str(line);
            said.push('\n');
        }
    }
    tests
}

/// The first line that calls itself an error, or the last one.
fn reason(lines: &str) -> String {
    let mut lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_error = |line: &&str| ["ERROR", "FAIL", "failed", "rror:"].iter().any(|word| line.contains(word));
    let line = lines.clone().find(is_error).or_else(|| lines.next_back());
    line.map_or_else(|| "it says no more".into(), |line| line.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "Compute Device Name = gfx900\none...\none passed\ntwo...\nhalfway\nERROR: 3 is not 4\n\
                           two FAILED\nthree...\nno images here\nthree test not supported\nfour...\n\
                           four skipped (requires at least OpenCL version 3.0, but the device reports OpenCL version 2.0)\n\
                           five...\nvarious...\n";

    fn is_test(name: &str) -> bool {
        ["one", "two", "three", "four", "five"].contains(&name)
    }

    #[test]
    fn lines_say_which_test_was_the_last() {
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        let too_old = "four skipped (requires at least OpenCL version 3.0, but the device reports OpenCL version 2.0)";
        let expected = [
            one("one", Some(Outcome::Passed)),
            one("two", Some(Outcome::Failed("ERROR: 3 is not 4".into()))),
            one("three", Some(Outcome::Skipped("no images here".into()))),
            one("four", Some(Outcome::Skipped(too_old.into()))),
            one("five", None),
        ];
        assert_eq!(of_lines(PRINTED, is_test), expected);
    }

    #[test]
    fn json_says_how_each_test_ended() {
        let json =
            r#"{ "cmd": "/work/program", "args": "", "results": { "one": "pass", "two": "fail", "five": "skip" } }"#;
        let seen = of_json(json, PRINTED).expect("JSON");
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        let expected = BTreeMap::from([
            one("one", Outcome::Passed),
            one("two", Outcome::Failed("ERROR: 3 is not 4".into())),
            one("five", Outcome::Skipped("various...".into())),
        ]);
        assert_eq!(seen, expected);
        assert!(of_json(r#"{ "results": { "one": "perhaps" } }"#, "").is_err());
    }

    #[test]
    fn a_list_is_names_after_tabs() {
        assert_eq!(Vec::from_iter(listed("Test names:\n\tone\n\ttwo_3\nfour\n\n")), ["one", "two_3"]);
    }
}
