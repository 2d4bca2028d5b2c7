// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a program of Thrust's own test framework, from its output with `--verbose`.
//!
//! Mechanism: `Running NAME...` stands on a line of its own when a test begins, and `[PASS]`,
//! `[FAILURE]`, `[KNOWN FAILURE]` or `[ERROR]` after it when it has ended. Why tests failed stands
//! at the end, before the totals.

use super::suite::Outcome;

/// What the last line but one begins with.
const TOTALS: &str = "Totals: ";

/// Whether the program came to its end.
pub fn is_whole(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(TOTALS))
}

/// Tests in the order in which they began, with their outcome; none for one that has not ended.
pub fn cases(text: &str) -> Vec<(String, Option<Outcome>)> {
    let mut cases: Vec<(String, Option<Outcome>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = begun(line) {
            cases.push((name.into(), None));
        }
        let Some((name, outcome)) = cases.last_mut().filter(|(_, outcome)| outcome.is_none()) else { continue };
        if line.contains("[PASS] ") {
            *outcome = Some(Outcome::Passed);
        } else if ["[FAILURE] ", "[KNOWN FAILURE] ", "[ERROR] "].iter().any(|mark| line.contains(mark)) {
            *outcome = Some(Outcome::Failed(why(text, name)));
        }
    }
    cases
}

/// The test that a line says has begun. The first line says how many there are.
fn begun(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("Running ")?.split_once("...")?;
    (!name.contains(char::is_whitespace)).then_some(name)
}

fn why(text: &str, name: &str) -> String {
    let mut lines = text.lines().skip_while(|line| line.split_once(": ").is_none_or(|(_, of)| of.trim() != name));
    lines.nth(1).map_or("it says no more".into(), |line| line.trim().chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_its_end() {
        let text = "Running 4 unit tests.\nRunning TestOne...[PASS]    1.5 ms TestOne\n\
                    Running TestTwo...[FAILURE]            TestTwo\nRunning TestThree...printed\n[PASS]    2 ms TestThree\n\
                    Running TestFour...";
        let one = |name: &str, outcome| (name.to_owned(), outcome);
        let failed = |why: &str| Some(Outcome::Failed(why.into()));
        let cut = [
            one("TestOne", Some(Outcome::Passed)),
            one("TestTwo", failed("it says no more")),
            one("TestThree", Some(Outcome::Passed)),
            one("TestFour", None),
        ];
        assert_eq!(cases(text), cut);
        assert!(!is_whole(text));
        let end = "[PASS]  1 ms TestFour\n\n====\nFAILURE: TestTwo\n[copy.cu:5] values are not equal: 99 0\n====\n\
                   Totals: 1 failures, 0 known failures, 0 errors, and 3 passes.\n";
        let whole = format!("{text}{end}");
        assert!(is_whole(&whole));
        assert_eq!(cases(&whole)[1].1, failed("[copy.cu:5] values are not equal: 99 0"));
        assert_eq!(cases(&whole)[3].1, Some(Outcome::Passed));
    }
}
