// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is expected of a suite's cases: `xtask/programs/SUITE.toml`.
//!
//! The file has `pass`, a list of cases; `[[fails]]` and `[[not-applicable]]`, each with `cases`, a
//! `reason`, and `targets` where it holds for some only. Names in these two may have `*`. What is
//! said for a target goes before `pass`. There is no "unknown": a case that is not in the file is a
//! finding.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::select::matches;
use super::suite::{unit_of, Outcome};
use crate::tree;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Expectations {
    #[serde(default)]
    pass: Vec<String>,
    #[serde(default)]
    fails: Vec<Group>,
    #[serde(default)]
    not_applicable: Vec<Group>,
}

/// Cases that do not pass, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    cases: Vec<String>,
    /// All if empty.
    #[serde(default)]
    targets: Vec<String>,
    reason: String,
}

impl Group {
    fn says(&self, case: &str, target: &str) -> bool {
        let on = self.targets.is_empty() || self.targets.iter().any(|name| name == target);
        on && self.cases.iter().any(|pattern| matches(pattern, case))
    }
}

/// What is expected of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected<'a> {
    Pass,
    Fails(&'a str),
    NotApplicable(&'a str),
}

/// How what was seen stands to what was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    AsExpected,
    NewFailure,
    NewPass,
    NotInFile,
}

impl Expectations {
    pub(crate) fn read(suite: &str) -> Result<Expectations> {
        let file = file(suite);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", file.display()))
    }

    fn parse(text: &str) -> Result<Expectations> {
        let read: Expectations = toml::from_str(text)?;
        for Group { cases, reason, .. } in read.fails.iter().chain(&read.not_applicable) {
            ensure!(reason.trim().len() > 10, "{cases:?} need a reason that a user would accept, not {reason:?}");
        }
        Ok(read)
    }

    /// What is expected, if the file says so.
    pub(crate) fn of(&self, case: &str, target: &str) -> Option<Expected<'_>> {
        let said = |groups: &'_ [Group]| groups.iter().position(|group| group.says(case, target));
        // A group that says "any" by its pattern says less than a list with the case's name.
        let passes = self.pass.iter().any(|name| name == case);
        let named = |group: &Group| !passes || !group.targets.is_empty() || group.cases.iter().any(|name| name == case);
        if let Some(group) = said(&self.fails).map(|at| &self.fails[at]).filter(|group| named(group)) {
            return Some(Expected::Fails(&group.reason));
        }
        if let Some(group) = said(&self.not_applicable).map(|at| &self.not_applicable[at]).filter(|group| named(group))
        {
            return Some(Expected::NotApplicable(&group.reason));
        }
        passes.then_some(Expected::Pass)
    }

    /// The cases of these programs that must show on a target: those that pass, and those that fail
    /// and are named in full.
    pub(crate) fn cases<'a>(&'a self, units: &[&str], target: &str) -> BTreeSet<&'a str> {
        let failing = self.fails.iter().flat_map(|group| &group.cases).filter(|name| !name.contains('*'));
        let all = self.pass.iter().chain(failing).map(String::as_str).filter(|case| units.contains(&unit_of(case)));
        all.filter(|case| matches!(self.of(case, target), Some(Expected::Pass | Expected::Fails(_)))).collect()
    }

    /// Whether any case of the program is expected to end.
    pub(crate) fn names_unit(&self, unit: &str) -> bool {
        let failing = self.fails.iter().flat_map(|group| &group.cases);
        self.pass.iter().chain(failing).any(|case| unit_of(case) == unit)
    }

    /// Whether any case of the program is expected to end on a target.
    pub(crate) fn runs(&self, unit: &str, target: &str) -> bool {
        !self.cases(&[unit], target).is_empty()
    }

    /// What a case's end means.
    pub(crate) fn compare(&self, case: &str, target: &str, outcome: &Outcome) -> Standing {
        match (self.of(case, target), outcome) {
            (None, _) => Standing::NotInFile,
            (Some(Expected::Pass), Outcome::Passed) => Standing::AsExpected,
            (Some(Expected::Pass), _) => Standing::NewFailure,
            (Some(Expected::Fails(_)), Outcome::Failed(_) | Outcome::NotBuilt(_)) => Standing::AsExpected,
            (Some(Expected::NotApplicable(_)), Outcome::Skipped(_) | Outcome::NotBuilt(_) | Outcome::Failed(_)) => {
                Standing::AsExpected
            }
            (Some(Expected::Fails(_)), Outcome::Skipped(_)) => Standing::NotInFile,
            (Some(Expected::Fails(_) | Expected::NotApplicable(_)), Outcome::Passed) => Standing::NewPass,
        }
    }
}

/// Where a suite's expectations are.
pub(crate) fn file(suite: &str) -> PathBuf {
    tree::root().join("xtask/programs").join(suite).with_extension("toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        pass = ["a", "b: one", "b: two"]
        [[fails]]
        cases = ["b: two"]
        targets = ["gfx1030"]
        reason = "the engine has no such thing"
        [[fails]]
        cases = ["b: three"]
        reason = "the engine has no such thing"
        [[not-applicable]]
        cases = ["c*", "b: *"]
        reason = "there are no images on this GPU"
    "#;

    #[test]
    fn each_difference_is_told() {
        let file = Expectations::parse(FILE).expect("a file");
        let (failed, skipped) = (Outcome::Failed("no".into()), Outcome::Skipped("no".into()));
        for (case, target, outcome, standing) in [
            ("a", "gfx900", &Outcome::Passed, Standing::AsExpected),
            ("a", "gfx900", &failed, Standing::NewFailure),
            ("a", "gfx900", &skipped, Standing::NewFailure),
            ("b: two", "gfx900", &Outcome::Passed, Standing::AsExpected),
            ("b: two", "gfx1030", &Outcome::Passed, Standing::NewPass),
            ("b: two", "gfx1030", &failed, Standing::AsExpected),
            ("b: three", "gfx900", &Outcome::Passed, Standing::NewPass),
            ("b: four", "gfx900", &skipped, Standing::AsExpected),
            ("cc", "gfx900", &Outcome::Passed, Standing::NewPass),
            ("d", "gfx900", &Outcome::Passed, Standing::NotInFile),
        ] {
            assert_eq!(file.compare(case, target, outcome), standing, "{case} on {target}: {outcome:?}");
        }
    }

    #[test]
    fn what_must_show_is_what_ends() {
        let file = Expectations::parse(FILE).expect("a file");
        assert_eq!(Vec::from_iter(file.cases(&["b"], "gfx900")), ["b: one", "b: three", "b: two"]);
        assert!(file.runs("a", "gfx900") && !file.runs("cc", "gfx900") && !file.names_unit("d"));
    }

    #[test]
    fn a_reason_is_asked_for() {
        assert!(Expectations::parse("[[fails]]\ncases = [\"a\"]\nreason = \"TODO\"\n").is_err());
        assert!(Expectations::parse("[[unknown]]\ncases = [\"a\"]\n").is_err());
    }

    #[test]
    fn the_tree_has_a_file_for_each_suite() {
        for suite in super::super::SUITES {
            let read = Expectations::read(suite.name()).expect("a file that can be read");
            assert!(!read.pass.is_empty(), "{}: nothing passes", suite.name());
        }
    }
}
