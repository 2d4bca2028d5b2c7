// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random sequences on a real machine. One test, because every machine of a process sees what is
//! done to its mappings.

use proptest::prelude::*;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_hunt::cases::{check, hunt};
use vkfd_hunt::live::{ops, run};

#[test]
fn a_machine_does_what_the_flat_model_says() {
    check(80, &(prop::bool::weighted(0.3), ops()), |(xnack, ops)| run(*xnack, Switches::NONE, ops));
    // A driver that learns of nothing is found out.
    let deaf = Switches::from(Switch::Invalidation);
    let found = hunt(40, 1, &ops(), |ops| run(false, deaf, ops));
    let why = found.expect_err("nobody noticed that invalidations are ignored");
    assert!(["GPU", "fault", "restored"].iter().any(|s| why.contains(s)), "noticed, but as something else: {why}");
}
