// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: programs of the suites on a machine that is broken on purpose must not end as
//! on a sound one.
//!
//! Mechanism: each program that a suite names for a sabotage runs on a machine that can be broken.
//! First nothing is broken, and all is as expected. Then the machine is broken, and some case must
//! end otherwise. Each kind of damage has to be noticed by three suites at least, unless suites are
//! left out.
//!
//! Limits: programs of others seldom change memory that a GPU has. Ignored invalidations are
//! noticed by those that have managed memory, or are given it ([`Memory::Oversubscribed`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Result};

use super::cache::Cache;
use super::expected::{Expectations, Standing};
use super::machine::Machine;
#[cfg(doc)]
use super::memory::Memory;
use super::place::Place;
use super::report;
use super::session::Session;
use super::suite::{Control, Suite};
use super::unit::Observed;
use super::{Ready, SUITES};
use xtask_base::Verdict;

/// So many suites notice each kind of damage.
const WITNESSES: usize = 3;
/// What `vkfd run` makes for programs: few read it.
const FOR_ONE: &str = "program.";

/// A sabotage without its limits: any broken operation is one kind.
fn kind(sabotage: &str) -> &str {
    sabotage.split('=').next().unwrap_or(sabotage)
}

fn list(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

pub fn run(ready: &[Ready], cache: &Cache, vkfd: Option<&Path>) -> Result<Verdict> {
    let sound = Machine::broken("", vkfd)?;
    let mut findings = Vec::new();
    let mut noticed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Ready { suite, found, .. } in ready {
        for &Control { sabotage, unit, target, memory } in suite.controls() {
            let broken = Machine::broken(sabotage, vkfd)?;
            let expectations = Expectations::read(suite.name())?.at(Place::Process, memory);
            let otherwise = |machine| {
                let (suite, patience, observed) = (*suite, Duration::MAX, Observed::default());
                let (source, root, expected) = (&found.source, found.root.as_deref(), &expectations);
                let session =
                    Session { suite, source, root, target, machine, expected, cache, patience, memory, observed };
                let seen = session.unit_alone(unit)?;
                let as_expected = |name, outcome| expectations.compare(name, target, outcome) == Standing::AsExpected;
                Ok::<_, anyhow::Error>(seen.iter().any(|case| !as_expected(&case.name, &case.outcome)))
            };
            let place = report::place(target, Place::Process, memory);
            let what = format!("{}, {place}: {unit} with {sabotage} broken", suite.name());
            match (otherwise(&sound)?, otherwise(&broken)?) {
                (false, true) => {
                    println!("  ok: {what} is noticed");
                    noticed.entry(kind(sabotage)).or_default().insert(suite.name());
                }
                (true, _) => findings.push(format!("{what}: with nothing broken it does not end as expected")),
                (false, false) => findings.push(format!("{what}: is not noticed")),
            }
        }
    }
    ensure!(!noticed.is_empty() || !findings.is_empty(), "none of these suites has a control");
    let has = |suite: &&&dyn Suite| ready.iter().any(|ready| ready.suite.name() == suite.name());
    // Suites that are built first come one at a time, and are not among all.
    let all_ready = SUITES.iter().filter(|suite| !suite.source().is_built_first()).all(|suite| has(&suite));
    for (kind, suites) in &noticed {
        if suites.len() < WITNESSES && all_ready && !kind.starts_with(FOR_ONE) {
            findings.push(format!("{kind} broken is noticed by {} alone", list(suites)));
        }
        println!("  {kind}: {} suites notice: {}", suites.len(), list(suites));
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{} ways to be broken are noticed", noticed.len())),
        false => Verdict::Findings(findings),
    })
}
