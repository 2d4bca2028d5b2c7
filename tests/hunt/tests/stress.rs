// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A few seconds of stress. `vkfd-stress --minutes N` goes on for longer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_hunt::cases::seed;
use vkfd_hunt::stress::{run, Plan};

fn plan(seconds: u64) -> Plan {
    Plan {
        time: Duration::from_secs(seconds),
        threads: 6,
        machines: 2,
        processes: 2,
        seed: seed(),
        failures: true,
        sabotage: Switches::NONE,
    }
}

/// One at a time: each takes all processors there are.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn nothing_fails_under_stress() {
    let _alone = alone();
    let plan = plan(5);
    let report = run(plan).unwrap();
    assert!(report.failures.is_empty(), "seed {}: {}", plan.seed, report.failures.join("\n"));
    assert!(report.operations > 0);
}

/// Calls that look at others' memory in the same 2 MiB fail for it, and pages that nobody was
/// notified of are found.
#[test]
fn what_is_broken_is_found_under_stress() {
    let _alone = alone();
    for sabotage in [Switches::from(Switch::OthersErrors), Switches::from(Switch::Invalidation)] {
        // As long as it takes; the failure ends it.
        let report = run(Plan { sabotage, failures: false, ..plan(300) }).unwrap();
        assert!(!report.failures.is_empty(), "nobody noticed: {sabotage:?}");
    }
}
