// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What was seen, by suite and target: the table, the findings, JSON, and the form of an
//! expectation file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::expected::{Expectations, Expected, Standing};
use super::memory::Memory;
use super::place::Place;
use super::select::Selection;
use super::session::Seen;
use super::suite::{Case, Outcome, Suite};
use xtask_base::Verdict;

/// See the module.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    findings: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    suite: &'static str,
    target: String,
    /// Where they ran.
    machine: Place,
    /// What their device memory was.
    memory: Memory,
    /// That were run.
    programs: usize,
    passed: usize,
    /// Expected to.
    failed: usize,
    not_applicable: usize,
    /// Ended otherwise than expected, or did not end.
    unexpected: usize,
    seconds: u64,
    cases: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    case: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    standing: String,
}

/// An outcome's name, and the words with it.
fn words(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(detail) => ("failed", detail),
        Outcome::Skipped(detail) => ("skipped", detail),
        Outcome::NotBuilt(detail) => ("not built", detail),
    }
}

/// The machine on which programs ran.
pub fn place(target: &str, at: Place, memory: Memory) -> String {
    let words = [Some(target), at.name(), memory.name()];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl Report {
    pub fn add(
        &mut self,
        suite: &dyn Suite,
        target: &str,
        seen: &Seen,
        expected: &Expectations,
        selection: &Selection,
    ) {
        let mut row = Row {
            suite: suite.name(),
            target: target.into(),
            machine: seen.place,
            memory: seen.memory,
            programs: seen.units.len(),
            passed: 0,
            failed: 0,
            not_applicable: 0,
            unexpected: 0,
            seconds: seen.took.as_secs(),
            cases: Vec::new(),
        };
        let place = format!("{}, {}", suite.name(), place(target, seen.place, seen.memory));
        self.findings.extend(seen.findings.iter().map(|finding| format!("{place}: {finding}")));
        for Case { name, outcome } in &seen.cases {
            let standing = expected.compare(name, target, outcome);
            let (word, detail) = words(outcome);
            row.cases.push(Line {
                case: name.clone(),
                outcome: word,
                detail: detail.into(),
                standing: format!("{standing:?}"),
            });
            let told = match (standing, expected.of(name, target)) {
                (Standing::AsExpected, Some(Expected::Pass)) if *outcome == Outcome::Passed => {
                    row.passed += 1;
                    continue;
                }
                (Standing::AsExpected, Some(Expected::Fails(_))) => {
                    row.failed += 1;
                    continue;
                }
                (Standing::AsExpected, _) => {
                    row.not_applicable += 1;
                    continue;
                }
                (Standing::NewFailure, _) => format!("new failure: {word}: {detail}"),
                (Standing::NewPass, Some(Expected::Fails(reason) | Expected::NotApplicable(reason))) => {
                    format!("new pass; the file says: {reason}")
                }
                _ => format!("not in the expectation file: {word} {detail}"),
            };
            row.unexpected += 1;
            self.findings.push(format!("{place}: {name}: {}", told.trim_end()));
        }
        let units: Vec<_> = seen.units.iter().map(String::as_str).collect();
        for missing in
            expected.cases(&units, target).into_iter().filter(|case| !seen.cases.iter().any(|seen| seen.name == *case))
        {
            row.unexpected += 1;
            self.findings.push(format!("{place}: {missing}: is in the expectation file, and did not show"));
        }
        for (pattern, shown, count) in expected.miscounted(&units, target, &seen.cases) {
            row.unexpected += shown.abs_diff(count);
            self.findings.push(format!("{place}: {pattern}: {count} cases are to show, and {shown} did"));
        }
        if !seen.late.is_empty() {
            row.unexpected += seen.late.len();
            let some = seen.late.first().map_or("", String::as_str);
            self.findings.push(format!("{place}: no time was left for {} programs ({some}, ...)", seen.late.len()));
        }
        if seen.units.is_empty() && selection.only.is_empty() && selection.short.is_empty() && selection.shard.is_none()
        {
            self.findings.push(format!("{place}: no program was run"));
        }
        self.rows.push(row);
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "suite            target                programs   pass  fail as expected  not applicable  otherwise  seconds\n",
        );
        for Row {
            suite, target, machine, memory, programs, passed, failed, not_applicable, unexpected, seconds, ..
        } in &self.rows
        {
            let target = place(target, *machine, *memory);
            let _ = writeln!(
                text,
                "{suite:<16} {target:<21} {programs:>8} {passed:>6} {failed:>17} {not_applicable:>15} {unexpected:>10} {seconds:>8}"
            );
        }
        text
    }

    /// What was seen as an expectation file has it; a reason has to be found.
    pub fn proposal(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut by: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
            for Line { case, outcome, detail, .. } in &row.cases {
                by.entry((outcome, detail)).or_default().push(case);
            }
            let _ = writeln!(text, "# {} on {}", row.suite, row.target);
            for ((outcome, detail), cases) in by {
                let list: String = cases.iter().fold(String::new(), |list, case| list + &format!("    {case:?},\n"));
                let _ = match outcome {
                    "passed" => writeln!(text, "pass = [\n{list}]"),
                    "failed" => writeln!(text, "[[fails]]\ncases = [\n{list}]\nreason = {detail:?}"),
                    _ => writeln!(text, "[[not-applicable]]\ncases = [\n{list}]\nreason = {detail:?}"),
                };
            }
        }
        text
    }

    pub fn write_json(&self, file: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct All<'a> {
            suites: &'a [Row],
            findings: &'a [String],
        }
        let all = All { suites: &self.rows, findings: &self.findings };
        let text = serde_json::to_string_pretty(&all).context("write JSON")?;
        fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
    }

    pub fn verdict(self) -> Verdict {
        let (programs, cases) =
            self.rows.iter().fold((0, 0), |(programs, cases), row| (programs + row.programs, cases + row.cases.len()));
        match self.findings.is_empty() {
            true => Verdict::Clean(format!("{cases} cases of {programs} programs ended as expected")),
            false => Verdict::Findings(self.findings),
        }
    }
}
