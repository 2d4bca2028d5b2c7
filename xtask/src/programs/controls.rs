// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: programs of the suites on a machine that is broken on purpose must not end as on a sound one.
//!
//! Mechanism: each program that a suite names for a sabotage runs with the library of the controls, first with nothing broken (then all is as
//! expected), then broken: some case must end otherwise. A sabotage has to be noticed by two suites at least, where two are here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{ensure, Result};

use super::cache::Cache;
use super::expected::Standing;
use super::machine::Machine;
use super::session::Session;
use super::suite::Control;
use super::Ready;
use crate::Verdict;

pub(crate) fn run(ready: &[Ready], cache: &Cache) -> Result<Verdict> {
    let sound = Machine::broken("")?;
    let mut findings = Vec::new();
    let mut noticed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Ready { suite, source, expectations } in ready {
        for Control { sabotage, unit, target } in suite.controls() {
            let broken = Machine::broken(sabotage)?;
            let otherwise = |machine| {
                let session = Session { suite: *suite, source, target, machine, cache, patience: Duration::MAX };
                let seen = session.unit_alone(unit)?;
                let as_expected = |name, outcome| expectations.compare(name, target, outcome) == Standing::AsExpected;
                Ok::<_, anyhow::Error>(seen.iter().any(|case| !as_expected(&case.name, &case.outcome)))
            };
            let what = format!("{}, {target}: {unit} with {sabotage} broken", suite.name());
            match (otherwise(&sound)?, otherwise(&broken)?) {
                (false, true) => {
                    println!("  ok: {what} is noticed");
                    noticed.entry(*sabotage).or_default().push(suite.name());
                }
                (true, _) => findings.push(format!("{what}: with nothing broken it does not end as expected")),
                (false, false) => findings.push(format!("{what}: is not noticed")),
            }
        }
    }
    ensure!(!noticed.is_empty() || !findings.is_empty(), "none of these suites has a control");
    for (sabotage, suites) in &mut noticed {
        suites.dedup();
        if suites.len() < 2 && ready.len() > 1 {
            findings.push(format!("{sabotage} broken is noticed by {} alone", suites.join(", ")));
        }
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{} ways to be broken are noticed", noticed.len())),
        false => Verdict::Findings(findings),
    })
}
