// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is expected of a suite's cases: `xtask/programs/SUITE.toml`.
//!
//! The file has `pass`, a list of cases, and the lists `[[fails]]`, `[[not-applicable]]` and
//! `[[left-out]]`. Each of these has `cases` and a `reason`. `targets` limits it to some targets,
//! `machine` to "process", "guest" or "amdgpu", and `memory` to a kind of [`Memory`]. Names in
//! these three may have `*`. `short` has patterns of the programs that a short run takes; all if it
//! is not there. An entry for a target goes before `pass`. Cases that are left out are not begun.
//!
//! For thousands of cases, `[[passes]]` has a table from a program's name, or a pattern of its
//! cases, to the number of them that pass. `[[skips]]`, with a `reason`, has the number of those
//! that report nothing to test here. Any other list goes before them, and the first pattern that
//! matches counts a case.
//!
//! There is no "unknown": a case that is not in the file is a finding, and so is another number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::memory::Memory;
use super::place::Place;
use super::select::matches;
use super::suite::{unit_of, Case, Outcome};
use xtask_base::tree;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Expectations {
    /// Patterns of the programs of a short run; all if there is none.
    #[serde(default)]
    pub short: Vec<String>,
    #[serde(default)]
    pass: Vec<String>,
    #[serde(default)]
    fails: Vec<Group>,
    #[serde(default)]
    not_applicable: Vec<Group>,
    #[serde(default)]
    left_out: Vec<Group>,
    #[serde(default)]
    passes: Vec<Counted>,
    #[serde(default)]
    skips: Vec<Counted>,
}

/// How many cases of programs pass, or skip themselves.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    /// All if empty.
    #[serde(default)]
    targets: Vec<String>,
    /// All if it is not said.
    machine: Option<Place>,
    /// Any if it is not said.
    memory: Option<Memory>,
    cases: BTreeMap<String, usize>,
    /// Of those that skip themselves.
    #[serde(default)]
    reason: String,
}

/// Cases that do not pass, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    cases: Vec<String>,
    /// All if empty.
    #[serde(default)]
    targets: Vec<String>,
    /// All if it is not said.
    machine: Option<Place>,
    /// Any if it is not said.
    memory: Option<Memory>,
    reason: String,
}

impl Group {
    fn says(&self, case: &str, target: &str) -> bool {
        holds(&self.targets, target) && self.cases.iter().any(|pattern| matches(pattern, case))
    }
}

/// Whether a list of targets, where an empty one is all, has this one.
fn holds(targets: &[String], target: &str) -> bool {
    targets.is_empty() || targets.iter().any(|name| name == target)
}

/// Whether a pattern that is counted, which may be a program's name alone, has this case.
fn counts(pattern: &str, case: &str) -> bool {
    match pattern.contains(": ") {
        true => matches(pattern, case),
        false => unit_of(case) == pattern,
    }
}

/// Patterns that are counted on a target.
fn counted<'a>(groups: &'a [Counted], target: &'a str) -> impl Iterator<Item = (&'a str, usize)> {
    let groups = groups.iter().filter(move |counted| holds(&counted.targets, target));
    groups.flat_map(|counted| &counted.cases).map(|(pattern, count)| (pattern.as_str(), *count))
}

/// The pattern that counts a case.
fn counted_by<'a>(groups: &'a [Counted], case: &str, target: &'a str) -> Option<&'a str> {
    counted(groups, target).map(|(pattern, _)| pattern).find(|pattern| counts(pattern, case))
}

/// What is expected of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected<'a> {
    Pass,
    Fails(&'a str),
    NotApplicable(&'a str),
    LeftOut(&'a str),
}

/// The relation of an outcome to the expectation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    AsExpected,
    NewFailure,
    NewPass,
    NotInFile,
}

impl Expectations {
    pub fn read(suite: &str) -> Result<Expectations> {
        let file = file(suite);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", file.display()))
    }

    fn parse(text: &str) -> Result<Expectations> {
        let read: Expectations = toml::from_str(text)?;
        let groups = read.fails.iter().chain(&read.not_applicable).chain(&read.left_out);
        let groups = groups.map(|group| (group.cases.clone(), &group.reason));
        let skipping = read.skips.iter().map(|counted| (counted.cases.keys().cloned().collect(), &counted.reason));
        for (cases, reason) in groups.chain(skipping) {
            ensure!(reason.trim().len() > 10, "{cases:?} need a reason that a user would accept, not {reason:?}");
        }
        for pattern in read.passes.iter().chain(&read.skips).flat_map(|counted| counted.cases.keys()) {
            ensure!(!unit_of(pattern).contains('*'), "{pattern:?}: cases are counted by program");
        }
        Ok(read)
    }

    /// Without the entries for other places.
    pub fn at(mut self, place: Place, memory: Memory) -> Expectations {
        let here = |at: Option<Place>, with: Option<Memory>| {
            at.is_none_or(|at| at == place) && with.is_none_or(|with| with == memory)
        };
        for groups in [&mut self.fails, &mut self.not_applicable, &mut self.left_out] {
            groups.retain(|group| here(group.machine, group.memory));
        }
        for groups in [&mut self.passes, &mut self.skips] {
            groups.retain(|counted| here(counted.machine, counted.memory));
        }
        self
    }

    /// What is expected, if the file says so.
    pub fn of(&self, case: &str, target: &str) -> Option<Expected<'_>> {
        let said = |groups: &'_ [Group]| groups.iter().position(|group| group.says(case, target));
        // A group that says "any" by its pattern says less than a list with the case's name.
        let passes = self.names(case);
        let named = |group: &Group| !passes || !group.targets.is_empty() || group.cases.iter().any(|name| name == case);
        if let Some(group) = said(&self.fails).map(|at| &self.fails[at]).filter(|group| named(group)) {
            return Some(Expected::Fails(&group.reason));
        }
        if let Some(group) = said(&self.not_applicable).map(|at| &self.not_applicable[at]).filter(|group| named(group))
        {
            return Some(Expected::NotApplicable(&group.reason));
        }
        if let Some(group) = said(&self.left_out).map(|at| &self.left_out[at]).filter(|group| named(group)) {
            return Some(Expected::LeftOut(&group.reason));
        }
        (passes || counted_by(&self.passes, case, target).is_some()).then_some(Expected::Pass)
    }

    /// Patterns of these programs of which another number of cases showed than passes or skips
    /// itself: the pattern, how many showed, and how many are to show.
    pub fn miscounted<'a>(&'a self, units: &[&str], target: &'a str, cases: &[Case]) -> Vec<(&'a str, usize, usize)> {
        let is_counted = |case: &&Case| self.of(&case.name, target) == Some(Expected::Pass) && !self.names(&case.name);
        let (skipped, ended): (Vec<_>, Vec<_>) =
            cases.iter().filter(is_counted).partition(|case| matches!(case.outcome, Outcome::Skipped(_)));
        let mut wrong = Vec::new();
        for (groups, shown) in [(&self.passes, ended), (&self.skips, skipped)] {
            for (pattern, count) in counted(groups, target).filter(|(pattern, _)| units.contains(&unit_of(pattern))) {
                let mine = |case: &&&Case| counted_by(groups, &case.name, target) == Some(pattern);
                let seen = shown.iter().filter(mine).count();
                if seen != count {
                    wrong.push((pattern, seen, count));
                }
            }
        }
        wrong
    }

    /// Whether a case is in the list of those that pass.
    fn names(&self, case: &str) -> bool {
        self.pass.iter().any(|name| name == case)
    }

    /// Whether a case may say that it has nothing to test on a target, although it is counted.
    fn skips(&self, case: &str, target: &str) -> bool {
        !self.names(case) && counted_by(&self.skips, case, target).is_some()
    }

    /// Patterns of a program's cases that are not to be begun on a target.
    pub fn left_out(&self, unit: &str, target: &str) -> Vec<&str> {
        let groups = self.left_out.iter().filter(|group| holds(&group.targets, target));
        let mine = groups.flat_map(|group| &group.cases).filter_map(|pattern| pattern.split_once(": "));
        mine.filter(|(of, _)| matches(of, unit)).map(|(_, case)| case).collect()
    }

    /// The cases of a program that a list names in full.
    pub fn named(&self, unit: &str) -> Vec<&str> {
        let groups = self.fails.iter().chain(&self.not_applicable).chain(&self.left_out);
        let all = self.pass.iter().chain(groups.flat_map(|group| &group.cases));
        let cases = all.filter_map(|case| case.split_once(": "));
        let mut mine: Vec<_> =
            cases.filter(|(of, case)| *of == unit && !case.contains('*')).map(|(_, case)| case).collect();
        mine.sort_unstable();
        mine.dedup();
        mine
    }

    /// The programs that a list names in full, each once.
    pub fn units(&self) -> BTreeSet<&str> {
        let groups = self.fails.iter().chain(&self.not_applicable).chain(&self.left_out);
        let counted = self.passes.iter().flat_map(|counted| counted.cases.keys());
        let all = self.pass.iter().chain(groups.flat_map(|group| &group.cases)).chain(counted);
        all.map(|case| unit_of(case)).filter(|unit| !unit.contains('*')).collect()
    }

    /// The cases of these programs that must show on a target: those that pass, and those that fail
    /// and are named in full.
    pub fn cases<'a>(&'a self, units: &[&str], target: &str) -> BTreeSet<&'a str> {
        let failing = self.fails.iter().flat_map(|group| &group.cases).filter(|name| !name.contains('*'));
        let all = self.pass.iter().chain(failing).map(String::as_str).filter(|case| units.contains(&unit_of(case)));
        all.filter(|case| matches!(self.of(case, target), Some(Expected::Pass | Expected::Fails(_)))).collect()
    }

    /// Whether any case of the program is expected to end.
    pub fn names_unit(&self, unit: &str) -> bool {
        let failing = self.fails.iter().flat_map(|group| &group.cases);
        let counted = self.passes.iter().flat_map(|counted| counted.cases.keys());
        self.pass.iter().chain(failing).chain(counted).any(|case| unit_of(case) == unit)
    }

    /// Whether any case of the program is expected to end on a target.
    pub fn runs(&self, unit: &str, target: &str) -> bool {
        !self.cases(&[unit], target).is_empty()
            || counted(&self.passes, target).any(|(pattern, _)| unit_of(pattern) == unit)
    }

    /// What a case's end means.
    pub fn compare(&self, case: &str, target: &str, outcome: &Outcome) -> Standing {
        match (self.of(case, target), outcome) {
            (None | Some(Expected::LeftOut(_)), _) => Standing::NotInFile,
            (Some(Expected::Pass), Outcome::Passed) => Standing::AsExpected,
            (Some(Expected::Pass), Outcome::Skipped(_)) if self.skips(case, target) => Standing::AsExpected,
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
pub fn file(suite: &str) -> PathBuf {
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
    fn what_is_counted_must_show_in_its_number() {
        let file = Expectations::parse(
            r#"
            [[left-out]]
            cases = ["a: slow*", "b: x"]
            reason = "takes an hour on a GPU in software"
            [[fails]]
            cases = ["a: bad"]
            reason = "the engine has no such thing"
            [[passes]]
            [passes.cases]
            "a" = 2
            [[skips]]
            cases = { "a: skip*" = 1 }
            reason = "it is for wavefronts of another size"
            [[passes]]
            targets = ["gfx90a"]
            cases = { "c: d/*" = 1 }
            "#,
        );
        let file = file.expect("a file");
        assert_eq!(file.left_out("a", "gfx900"), ["slow*"]);
        assert!(file.runs("a", "gfx900") && file.runs("c", "gfx90a") && !file.runs("c", "gfx900"));
        assert!(file.names_unit("c") && !file.names_unit("b"));
        let (passed, skipped) = (Outcome::Passed, Outcome::Skipped("no".into()));
        let case = |(name, outcome): &(&str, &Outcome)| Case { name: (*name).into(), outcome: (*outcome).clone() };
        let count = |shown: &[(&str, &Outcome)]| {
            let cases: Vec<_> = shown.iter().map(case).collect();
            file.miscounted(&["a"], "gfx900", &cases)
        };
        let (one, two, bad) = (("a: one", &passed), ("a: two", &passed), ("a: bad", &passed));
        assert_eq!(count(&[one, two, bad, ("a: skips", &skipped)]), []);
        assert_eq!(count(&[one, bad, ("a: skips", &skipped)]), [("a", 1, 2)]);
        assert_eq!(count(&[one, two, ("a: three", &passed), ("a: skips", &skipped)]), [("a", 3, 2)]);
        assert_eq!(count(&[one, two]), [("a: skip*", 0, 1)]);
        let failed = Outcome::Failed("no".into());
        for (case, outcome, standing) in [
            ("a: one", &Outcome::Passed, Standing::AsExpected),
            ("a: one", &failed, Standing::NewFailure),
            ("a: one", &skipped, Standing::NewFailure),
            ("a: skips", &skipped, Standing::AsExpected),
            ("a: bad", &failed, Standing::AsExpected),
            ("a: slow one", &Outcome::Passed, Standing::NotInFile),
            ("c: d/one", &Outcome::Passed, Standing::NotInFile),
        ] {
            assert_eq!(file.compare(case, "gfx900", outcome), standing, "{case}: {outcome:?}");
        }
        assert_eq!(file.compare("c: d/one", "gfx90a", &Outcome::Passed), Standing::AsExpected);
        assert!(Expectations::parse("[[passes]]\ncases = { \"a*\" = 1 }\n").is_err());
    }

    #[test]
    fn what_holds_in_a_guest_does_not_hold_elsewhere() {
        let text = r#"
            pass = ["a"]
            [[fails]]
            cases = ["a"]
            machine = "guest"
            reason = "a guest's GPUs have less memory"
            [[passes]]
            machine = "process"
            cases = { "b" = 1 }
        "#;
        for (place, case, expected) in [
            (Place::Process, "a", Some(Expected::Pass)),
            (Place::Guest, "a", Some(Expected::Fails("a guest's GPUs have less memory"))),
            (Place::Process, "b: c", Some(Expected::Pass)),
            (Place::Guest, "b: c", None),
            (Place::Amdgpu, "a", Some(Expected::Pass)),
        ] {
            let file = Expectations::parse(text).expect("a file").at(place, Memory::Device);
            assert_eq!(file.of(case, "gfx900"), expected, "{case}, {place:?}");
        }
    }

    #[test]
    fn what_holds_with_some_memory_does_not_hold_with_other() {
        let text = r#"
            [[not-applicable]]
            cases = ["a: *"]
            memory = "batch"
            reason = "the memory is not HIP's own"
            [[passes]]
            memory = "device"
            cases = { "a" = 1 }
        "#;
        let with = |memory| Expectations::parse(text).expect("a file").at(Place::Process, memory);
        assert!(with(Memory::Device).runs("a", "gfx900"));
        assert_eq!(
            with(Memory::Batch).of("a: b", "gfx900"),
            Some(Expected::NotApplicable("the memory is not HIP's own"))
        );
        assert!(!with(Memory::Batch).runs("a", "gfx900") && !with(Memory::Oversubscribed).runs("a", "gfx900"));
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
            assert!(!read.pass.is_empty() || !read.passes.is_empty(), "{}: nothing passes", suite.name());
        }
    }
}
