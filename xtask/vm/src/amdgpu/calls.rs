// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's driver and vkfd's, call by call.
//!
//! Both run the same sequences (`vkfd-scenarios calls`), AMD's driver in the guest and vkfd's in a
//! process here. Each call is a line with its outcome. [`AGREED`] has every step whose lines are
//! different, with a cause and a reason. A difference that is not in it is a finding, and so is one
//! that is gone. [`PAGE`] is made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::listed;
use xtask_base::apt::quiet;
use xtask_base::pattern::matches;
use xtask_base::tree;
use xtask_base::wrap::wrap;

/// Differences that are known: `STEP | CAUSE | REASON`. A `*` in a step stands for any text.
const AGREED: &str = "xtask/vm/src/amdgpu/calls.txt";
/// The same for people.
const PAGE: &str = "docs/amdgpu-calls.md";
/// Why something is different.
const CAUSES: [(&str, &str); 4] = [
    (FIXED, "vkfd was wrong here, and is right now; its test is named"),
    ("AMD", "AMD's driver is wrong: it takes what cannot work, or does not look"),
    ("device", "the device, or a driver in a process, cannot do it"),
    ("decision", "vkfd is different on purpose"),
];
/// The cause of differences that are gone.
const FIXED: &str = "fixed";
/// The reason of the line before.
const AS_ABOVE: &str = "as above";
/// Steps that one line of the table may cover: more would hide new differences.
const MOST: usize = 6;

/// A call, or an observation.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Line {
    pub step: String,
    pub call: String,
    pub result: String,
}

/// The lines of a run, by step.
pub fn lines<'a>(text: impl Iterator<Item = &'a str>) -> BTreeMap<String, Line> {
    text.filter_map(|line| serde_json::from_str::<Line>(line).ok()).map(|line| (line.step.clone(), line)).collect()
}

/// What vkfd's driver says.
pub fn of_vkfd(program: &Path) -> Result<String> {
    quiet(Command::new(program).arg("calls").env_remove("VKFD_DEVICE"))
}

struct Agreed {
    pattern: String,
    cause: String,
    reason: String,
}

impl Agreed {
    /// Each `*` stands for any text.
    fn covers(&self, step: &str) -> bool {
        matches(&self.pattern, step)
    }
}

/// The line of the table that explains a step.
fn first(agreed: &[Agreed], step: &str) -> Option<usize> {
    agreed.iter().position(|one| one.covers(step))
}

fn agreed() -> Result<Vec<Agreed>> {
    let lines = listed(AGREED)?;
    let parts = lines.iter().map(|line| {
        let mut parts = line.splitn(3, " | ").map(ToOwned::to_owned);
        let all = (parts.next(), parts.next(), parts.next());
        let (Some(pattern), Some(cause), Some(reason)) = all else { anyhow::bail!("{AGREED}: {line}") };
        anyhow::ensure!(CAUSES.iter().any(|(known, _)| *known == cause), "{AGREED}: no such cause: {line}");
        Ok(Agreed { pattern, cause, reason })
    });
    parts.collect()
}

/// A step that is not the same: what each has, if it has it.
struct Difference<'a> {
    step: &'a str,
    call: &'a str,
    amd: String,
    vkfd: String,
}

fn differences<'a>(amd: &'a BTreeMap<String, Line>, vkfd: &'a BTreeMap<String, Line>) -> Vec<Difference<'a>> {
    let steps: BTreeSet<&String> = amd.keys().chain(vkfd.keys()).collect();
    let mut found = Vec::new();
    for step in steps {
        let (one, other) = (amd.get(step), vkfd.get(step));
        if one == other {
            continue;
        }
        let call = one.or(other).map_or("", |line| line.call.as_str());
        let same_call = one.zip(other).is_none_or(|(one, other)| one.call == other.call);
        let show = |line: Option<&Line>| match line {
            None => "no such step".to_owned(),
            Some(line) if same_call => line.result.clone(),
            Some(line) => format!("{} → {}", line.call, line.result),
        };
        found.push(Difference { step, call, amd: show(one), vkfd: show(other) });
    }
    found
}

/// What is wrong with the differences, or with the table of those that are agreed.
fn judge(found: &[Difference<'_>], agreed: &[Agreed]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut covered = vec![0; agreed.len()];
    for Difference { step, call, amd, vkfd } in found {
        match first(agreed, step) {
            Some(row) => covered[row] += 1,
            None => wrong.push(format!("{step}: {call}\n    AMD's driver: {amd}\n    vkfd's:       {vkfd}")),
        }
    }
    for (one, covered) in agreed.iter().zip(covered) {
        let pattern = &one.pattern;
        match (one.cause == FIXED, covered) {
            (true, 0) | (false, 1..=MOST) => {}
            (true, _) => wrong.push(format!("{pattern}: fixed, says {AGREED}, and is different")),
            (false, 0) => wrong.push(format!("{pattern}: no difference any more, and {AGREED} has one")),
            (false, _) => wrong.push(format!("{pattern}: covers {covered} differences, and {MOST} are the most")),
        }
    }
    wrong
}

/// Lines about steps that nobody makes: of a mistake that is fixed, nothing else would tell.
fn unseen(made: &BTreeMap<String, Line>, agreed: &[Agreed]) -> Vec<String> {
    let lines = agreed.iter().filter(|one| one.cause == FIXED && !made.keys().any(|step| one.covers(step)));
    lines.map(|one| format!("{}: fixed, says {AGREED}, and no step is like that", one.pattern)).collect()
}

/// Compares; writes the page if `write`. Returns what is wrong.
pub fn compare(
    amd: &BTreeMap<String, Line>,
    vkfd: &BTreeMap<String, Line>,
    version: &str,
    write: bool,
) -> Result<Vec<String>> {
    let agreed = agreed()?;
    let found = differences(amd, vkfd);
    let mut wrong = judge(&found, &agreed);
    wrong.extend(unseen(amd, &agreed));
    println!("  calls: {} steps, {} differences, {} findings", amd.len(), found.len(), wrong.len());
    if amd.is_empty() || vkfd.is_empty() {
        wrong.push("there are no calls to compare".into());
    }
    let page = page(amd, &found, &agreed, version);
    let path = tree::root().join(PAGE);
    if write {
        fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
        println!("  {PAGE} is written");
    } else if fs::read_to_string(&path).unwrap_or_default() != page {
        wrong.push(format!("{PAGE} is not up to date: cargo xtask vm amdgpu compare --write"));
    }
    Ok(wrong)
}

/// Text within a table.
fn cell(text: &str) -> String {
    const LONGEST: usize = 240;
    let text = text.replace('|', "\\|");
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn page(amd: &BTreeMap<String, Line>, found: &[Difference<'_>], agreed: &[Agreed], version: &str) -> String {
    // A newer build of the same kernel answers the same.
    let release = version.split('.').take(2).collect::<Vec<_>>().join(".");
    let mut text = format!(
        "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->\n\
         <!-- Generated by `cargo xtask vm amdgpu compare --write`. -->\n\
         # Calls of AMD's driver and vkfd's\n\n\
         Both drivers were given the same calls on the same GPU, a gfx90a of [the device](amdgpu.md).\n\
         AMD's driver is that of Linux {release}. Of {} steps {} end differently. All others are equal\n\
         in errno and results.\n\n\
         | cause | |\n| --- | --- |\n",
        amd.len(),
        found.len(),
    );
    for (cause, meaning) in CAUSES {
        let _ = writeln!(text, "| {cause} | {meaning} |");
    }
    let mut sequences: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for step in amd.keys() {
        sequences.entry(step.split('/').next().unwrap_or_default()).or_default().0 += 1;
    }
    for difference in found {
        sequences.entry(difference.step.split('/').next().unwrap_or_default()).or_default().1 += 1;
    }
    text += "\n| sequence | steps | different |\n| --- | --- | --- |\n";
    for (name, (all, different)) in sequences {
        let _ = writeln!(text, "| {name} | {all} | {different} |");
    }
    text += "\n## Differences\n";
    // Lines of one reason are one table.
    let mut tables: Vec<(&str, &str, String)> = Vec::new();
    for (row, one) in agreed.iter().enumerate().filter(|(_, one)| one.cause != FIXED) {
        if one.reason != AS_ABOVE || tables.is_empty() {
            tables.push((&one.cause, &one.reason, String::new()));
        }
        let Some((.., table)) = tables.last_mut() else { continue };
        for difference in found.iter().filter(|found| first(agreed, found.step) == Some(row)) {
            let Difference { step, amd, vkfd, .. } = difference;
            let _ = writeln!(table, "| {} | {} | {} |", cell(step), cell(amd), cell(vkfd));
        }
    }
    for (cause, reason, table) in tables {
        let _ =
            writeln!(text, "\n**{cause}**: {reason}.\n\n| step | AMD's driver | vkfd's driver |\n| --- | --- | --- |");
        text += &table;
    }
    text += "\n## Differences that were vkfd's mistakes\n\n| step | what was wrong, and what shows that it is not |\n| --- | --- |\n";
    for one in agreed.iter().filter(|one| one.cause == FIXED) {
        let _ = writeln!(text, "| {} | {} |", cell(&one.pattern), one.reason);
    }
    wrap(&text, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: &str, result: &str) -> String {
        format!("{{\"step\":\"{step}\",\"call\":\"CALL x=1\",\"result\":\"{result}\"}}")
    }

    #[test]
    fn a_difference_is_found_in_results_and_in_missing_steps() {
        let (a, b) =
            ([line("s/1", "ok"), line("s/2", "EINVAL"), line("s/3", "ok")], [line("s/1", "ok"), line("s/2", "ok")]);
        let (amd, vkfd) = (lines(a.iter().map(String::as_str)), lines(b.iter().map(String::as_str)));
        let found = differences(&amd, &vkfd);
        let shown: Vec<_> = found.iter().map(|one| (one.step, one.amd.as_str(), one.vkfd.as_str())).collect();
        assert_eq!(shown, [("s/2", "EINVAL", "ok"), ("s/3", "ok", "no such step")]);
        assert!(differences(&amd, &amd).is_empty());
    }

    #[test]
    fn a_line_less_in_the_table_or_another_answer_is_a_finding() {
        let steps = |results: [&str; 3]| {
            let text = [("s/one", 0), ("s/two", 1), ("s/three", 2)].map(|(step, at)| line(step, results[at]));
            lines(text.iter().map(String::as_str))
        };
        let row =
            |pattern: &str, cause: &str| Agreed { pattern: pattern.into(), cause: cause.into(), reason: "".into() };
        let table = || vec![row("s/two", "AMD"), row("s/three", FIXED)];
        let (amd, vkfd) = (steps(["ok", "ok", "EINVAL"]), steps(["ok", "EINVAL", "EINVAL"]));
        let wrong = |vkfd: &BTreeMap<String, Line>, table: &[Agreed]| judge(&differences(&amd, vkfd), table).len();
        assert_eq!(wrong(&vkfd, &table()), 0);
        assert_eq!(wrong(&vkfd, &table()[1..]), 1, "a difference that no line explains");
        assert_eq!(wrong(&steps(["ENOMEM", "EINVAL", "EINVAL"]), &table()), 1, "a new difference");
        assert_eq!(wrong(&steps(["ok", "ok", "EINVAL"]), &table()), 1, "a line without a difference");
        assert_eq!(wrong(&steps(["ok", "EINVAL", "ok"]), &table()), 1, "what was fixed is different again");
        assert_eq!(unseen(&amd, &table()).len(), 0);
        assert_eq!(unseen(&amd, &[row("s/four", FIXED)]).len(), 1, "a fixed step that nobody makes");
        let numbers: Vec<String> = (0..=MOST).map(|number| format!("s/many {number}")).collect();
        let many = |result: &str| {
            let text: Vec<String> = numbers.iter().map(|step| line(step, result)).collect();
            lines(text.iter().map(String::as_str))
        };
        assert_eq!(judge(&differences(&many("ok"), &many("EINVAL")), &[row("s/many*", "AMD")]).len(), 1, "too many");
    }

    /// All that a directory's sources say.
    fn said(directory: &str) -> String {
        let mut sources = tree::files().unwrap();
        sources.retain(|name| name.starts_with(directory) && name.ends_with(".rs"));
        sources.iter().map(|name| fs::read_to_string(tree::root().join(name)).unwrap()).collect()
    }

    #[test]
    fn a_mistake_of_vkfds_has_a_test() {
        // Mappings of the device's files have tests of the driver, and all else scenarios.
        let (scenarios, tests) = (said("tests/scenarios/src/"), said("driver/tests/it/"));
        let mut before = false;
        for one in agreed().unwrap() {
            let name = one.reason.rsplit_once(": ").map_or("", |(_, name)| name);
            let named = !name.is_empty()
                && (scenarios.contains(&format!("\"{name}\"")) || tests.contains(&format!("fn {name}()")));
            let same = before && one.reason.starts_with("the same");
            before = one.cause == FIXED;
            assert!(!before || named || same, "{}: {}", one.pattern, one.reason);
        }
    }

    #[test]
    fn every_agreed_difference_has_a_cause_and_a_reason() {
        for one in agreed().unwrap() {
            assert!(one.reason.len() > 5, "{}", one.pattern);
            let (sequence, step) = one.pattern.split_once('/').unwrap();
            assert!(!sequence.contains('*') && step.trim_matches('*').len() > 2, "{}: too wide", one.pattern);
        }
        let one = Agreed { pattern: "a/b*".into(), cause: "AMD".into(), reason: String::new() };
        assert!(one.covers("a/b") && one.covers("a/bc") && !one.covers("a/c"));
        let one = Agreed { pattern: "a/*, at*: map".into(), ..one };
        assert!(one.covers("a/x, at 1: map") && !one.covers("a/x, at 1") && !one.covers("a/x: map"));
    }
}
