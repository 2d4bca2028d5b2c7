// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: programs of the suites on a machine that is broken on purpose must not end as
//! on a sound one.
//!
//! Mechanism: each program that a suite names for a sabotage runs with the library of the controls,
//! first with nothing broken (then all is as expected), then broken: some case must end otherwise.
//! A sabotage has to be noticed by two programs at least, unless suites are left out.
//!
//! Limits: programs of others seldom change memory that a GPU has. Only hip-catch, with its managed
//! memory, notices ignored invalidations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anyhow::{ensure, Result};

use super::cache::Cache;
use super::expected::Standing;
use super::machine::Machine;
use super::memory::Memory;
use super::session::Session;
use super::suite::Control;
use super::{Ready, SUITES};
use crate::Verdict;

pub(crate) fn run(ready: &[Ready], cache: &Cache, vkfd: Option<&Path>, library: Option<&Path>) -> Result<Verdict> {
    let sound = Machine::broken("", vkfd, library)?;
    let mut findings = Vec::new();
    let mut noticed: BTreeMap<&str, usize> = BTreeMap::new();
    for Ready { suite, found, expectations } in ready {
        for Control { sabotage, unit, target } in suite.controls() {
            let broken = Machine::broken(sabotage, vkfd, library)?;
            let otherwise = |machine| {
                let (suite, patience) = (*suite, Duration::MAX);
                let (memory, used) = (Memory::Device, AtomicUsize::new(0));
                let (source, root, expected) = (&found.source, found.root.as_deref(), expectations);
                let session = Session { suite, source, root, target, machine, expected, cache, patience, memory, used };
                let seen = session.unit_alone(unit)?;
                let as_expected = |name, outcome| expectations.compare(name, target, outcome) == Standing::AsExpected;
                Ok::<_, anyhow::Error>(seen.iter().any(|case| !as_expected(&case.name, &case.outcome)))
            };
            let what = format!("{}, {target}: {unit} with {sabotage} broken", suite.name());
            match (otherwise(&sound)?, otherwise(&broken)?) {
                (false, true) => {
                    println!("  ok: {what} is noticed");
                    *noticed.entry(*sabotage).or_default() += 1;
                }
                (true, _) => findings.push(format!("{what}: with nothing broken it does not end as expected")),
                (false, false) => findings.push(format!("{what}: is not noticed")),
            }
        }
    }
    ensure!(!noticed.is_empty() || !findings.is_empty(), "none of these suites has a control");
    for (sabotage, programs) in &noticed {
        if *programs < 2 && ready.len() == SUITES.len() {
            findings.push(format!("{sabotage} broken is noticed by one program alone"));
        }
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{} ways to be broken are noticed", noticed.len())),
        false => Verdict::Findings(findings),
    })
}
