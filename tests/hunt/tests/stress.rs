// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A few seconds of stress. `vkfd-stress --minutes N` goes on for longer.

use std::time::Duration;

use vkfd_hunt::cases::seed;
use vkfd_hunt::stress::{run, Plan};

#[test]
fn nothing_fails_under_stress() {
    let plan =
        Plan { time: Duration::from_secs(5), threads: 6, machines: 2, processes: 2, seed: seed(), failures: true };
    let report = run(plan).unwrap();
    assert!(report.failures.is_empty(), "seed {}: {}", plan.seed, report.failures.join("\n"));
    assert!(report.operations > 0);
}
