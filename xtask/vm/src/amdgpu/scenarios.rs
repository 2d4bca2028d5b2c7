// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scenario suite on AMD's driver.
//!
//! The suite runs each scenario in a process of its own, because AMD's driver has one process for
//! an address space. [`KNOWN`] has each scenario that passes, and each reason for which others are
//! skipped, with its cause. Anything else is a finding. It may be a failure, a scenario that passes
//! no more or for the first time, a skip for another reason, or a reason that no scenario gives.

use std::collections::BTreeSet;

use anyhow::Result;
use serde::Deserialize;

use super::listed;
use xtask_base::pattern::matches;

/// `passes | NAME`, and `skips | REASON | CAUSE | EXPLANATION`; a `*` in a reason stands for any
/// text.
const KNOWN: &str = "xtask/vm/src/amdgpu/scenarios.txt";
/// Why a scenario cannot run there.
const CAUSES: [(&str, &str); 4] = [
    ("AMD", "AMD's driver is wrong, as the table of calls says"),
    ("device", "the device cannot do it"),
    ("guest", "the guest, or its kernel, has not what it needs"),
    ("decision", "vkfd has more, or is different on purpose"),
];

/// What the suite says of a scenario with `--json`.
#[derive(Deserialize)]
pub struct Scenario {
    pub name: String,
    pub result: String,
    pub reason: Option<String>,
    pub seconds: f64,
}

impl Scenario {
    /// Reads a line of the suite.
    pub fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// For people.
    pub fn line(&self) -> String {
        let Self { name, result, reason, seconds } = self;
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{result:7} {name} ({seconds:.2} s){reason}")
    }
}

/// What is known of the suite on AMD's driver.
#[derive(Default)]
struct Known {
    passes: BTreeSet<String>,
    reasons: Vec<String>,
}

impl Known {
    fn read(lines: &[String]) -> Result<Self> {
        let mut known = Self::default();
        for line in lines {
            let parts: Vec<&str> = line.split(" | ").collect();
            match parts[..] {
                ["passes", name] => drop(known.passes.insert(name.to_owned())),
                ["skips", reason, cause, why] if why.len() > 10 && CAUSES.iter().any(|(known, _)| *known == cause) => {
                    known.reasons.push(reason.to_owned());
                }
                _ => anyhow::bail!("{KNOWN}: {line}"),
            }
        }
        Ok(known)
    }

    /// The place of the line that has a reason.
    fn reason(&self, given: &str) -> Option<usize> {
        self.reasons.iter().position(|reason| matches(reason, given))
    }
}

/// What is wrong with the results. `whole`: all scenarios have run. `more`: the driver may have
/// more than the distribution's, so that more of them pass.
pub fn judge(lines: &[&str], whole: bool, more: bool) -> Result<Vec<String>> {
    let results: Vec<Scenario> = lines.iter().filter_map(|line| Scenario::read(line)).collect();
    let count = |result: &str| results.iter().filter(|scenario| scenario.result == result).count();
    println!("  scenarios: {} passed, {} skipped, {} failed", count("passed"), count("skipped"), count("failed"));
    let mut findings = against(&results, &Known::read(&listed(KNOWN)?)?, whole, more);
    if count("passed") == 0 {
        findings.push("no scenario has passed".into());
    }
    Ok(findings)
}

fn against(results: &[Scenario], known: &Known, whole: bool, more: bool) -> Vec<String> {
    let mut findings = Vec::new();
    let mut given = BTreeSet::new();
    for scenario in results {
        let passes = known.passes.contains(&scenario.name);
        let reason = scenario.reason.as_deref().and_then(|reason| known.reason(reason));
        match (scenario.result.as_str(), passes, reason) {
            ("passed", true, _) => {}
            ("passed" | "skipped", false, _) if more => {}
            ("passed", false, _) => findings.push(format!("{} passes, and {KNOWN} does not have it", scenario.name)),
            ("skipped", false, Some(reason)) => drop(given.insert(reason)),
            ("skipped", ..) => findings.push(format!("not in {KNOWN}: {}", scenario.line())),
            _ => findings.push(format!("scenario {}", scenario.line())),
        }
    }
    if whole {
        let ran: BTreeSet<&str> = results.iter().map(|scenario| scenario.name.as_str()).collect();
        let gone = known.passes.iter().filter(|name| !ran.contains(name.as_str()));
        findings.extend(gone.map(|name| format!("{KNOWN} has {name}, which did not run")));
        let unused = known.reasons.iter().enumerate().filter(|(place, _)| !given.contains(place));
        findings.extend(unused.map(|(_, reason)| format!("{KNOWN}: nothing is skipped because it {reason}")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str, result: &str, reason: &str) -> Scenario {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Scenario { name: name.into(), result: result.into(), reason, seconds: 0.0 }
    }

    #[test]
    fn what_is_not_listed_is_a_finding() {
        let table = ["passes | a", "skips | needs * GPUs | device | there is one GPU"].map(ToOwned::to_owned);
        let known = Known::read(&table).unwrap();
        let good = [scenario("a", "passed", ""), scenario("b", "skipped", "needs 2 GPUs")];
        assert_eq!(against(&good, &known, true, false), Vec::<String>::new());
        let wrong = |results: &[Scenario], whole| against(results, &known, whole, false).len();
        assert_eq!(wrong(&[scenario("a", "failed", "x")], false), 1);
        assert_eq!(wrong(&[scenario("a", "skipped", "needs 2 GPUs")], false), 1, "it passed before");
        assert_eq!(wrong(&[scenario("b", "passed", "")], false), 1, "it did not pass before");
        assert_eq!(wrong(&[scenario("b", "skipped", "needs swap")], false), 1, "another reason");
        assert_eq!(wrong(&good[..1], true), 1, "a reason that nobody gives");
        assert_eq!(wrong(&good[1..], true), 1, "a scenario that is gone");
        assert_eq!(against(&good, &Known::read(&table[..1]).unwrap(), true, false).len(), 1, "a line less");
        // A driver with patches may do more, and not less.
        let more = |result| against(&[scenario("b", result, "x")], &known, false, true).len();
        assert_eq!((more("passed"), more("skipped"), more("failed")), (0, 0, 1));
        assert_eq!(against(&[scenario("a", "skipped", "x")], &known, false, true).len(), 1);
        assert!(Known::read(&["skips | needs swap | nobody | there is none".to_owned()]).is_err());
    }

    #[test]
    fn the_table_can_be_read() {
        let known = Known::read(&listed(KNOWN).unwrap()).unwrap();
        assert!(known.passes.len() > 10 && !known.reasons.is_empty());
    }
}
