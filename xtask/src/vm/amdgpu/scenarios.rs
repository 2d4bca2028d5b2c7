// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The scenario suite on AMD's driver.
//!
//! The suite runs each scenario in a process of its own, because AMD's driver has one process for
//! an address space. Scenarios of calls that only vkfd has are skipped there. [`SKIPPED`] has every
//! scenario that may be skipped, with the reason. A scenario that fails is a finding. So is a skip
//! that is not listed, or a listed scenario that passes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::listed;

/// Scenarios that AMD's driver cannot show: `NAME: REASON`.
const SKIPPED: &str = "xtask/src/vm/amdgpu/scenarios.txt";

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

fn skipped() -> Result<BTreeMap<String, String>> {
    let lines = listed(SKIPPED)?;
    let parts = lines.iter().map(|line| {
        let (name, reason) = line.split_once(": ").with_context(|| format!("{SKIPPED}: {line}"))?;
        Ok((name.to_owned(), reason.to_owned()))
    });
    parts.collect()
}

/// What is wrong with the results. `whole`: all scenarios have run.
pub fn judge(lines: &[&str], whole: bool) -> Result<Vec<String>> {
    let results: Vec<Scenario> = lines.iter().filter_map(|line| Scenario::read(line)).collect();
    let count = |result: &str| results.iter().filter(|scenario| scenario.result == result).count();
    println!("  scenarios: {} passed, {} skipped, {} failed", count("passed"), count("skipped"), count("failed"));
    let mut findings = against(&results, &skipped()?, whole);
    if count("passed") == 0 {
        findings.push("no scenario has passed".into());
    }
    Ok(findings)
}

fn against(results: &[Scenario], listed: &BTreeMap<String, String>, whole: bool) -> Vec<String> {
    let mut findings = Vec::new();
    for scenario in results {
        let known = listed.contains_key(&scenario.name);
        match scenario.result.as_str() {
            "passed" if known => findings.push(format!("{} passes, and {SKIPPED} has it", scenario.name)),
            "passed" => {}
            "skipped" if known => {}
            "skipped" => findings.push(format!("not in {SKIPPED}: {}", scenario.line())),
            _ => findings.push(format!("scenario {}", scenario.line())),
        }
    }
    let ran: BTreeSet<&str> = results.iter().map(|scenario| scenario.name.as_str()).collect();
    for name in listed.keys().filter(|name| whole && !ran.contains(name.as_str())) {
        findings.push(format!("{SKIPPED} has {name}, which did not run"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str, result: &str) -> Scenario {
        Scenario { name: name.into(), result: result.into(), reason: None, seconds: 0.0 }
    }

    #[test]
    fn a_skip_must_be_listed_and_a_listed_scenario_must_be_skipped() {
        let listed = BTreeMap::from([("a".to_owned(), "why".to_owned()), ("b".to_owned(), "why".to_owned())]);
        let good = [scenario("a", "skipped"), scenario("b", "skipped"), scenario("c", "passed")];
        assert!(against(&good, &listed, true).is_empty());
        let bad = [scenario("a", "passed"), scenario("c", "skipped"), scenario("d", "failed")];
        assert_eq!(against(&bad, &listed, true).len(), 4);
        assert_eq!(against(&bad, &listed, false).len(), 3);
    }

    #[test]
    fn every_listed_skip_has_a_reason() {
        assert!(skipped().is_ok_and(|all| all.values().all(|reason| reason.len() > 10)));
    }
}
