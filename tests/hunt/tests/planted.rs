// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The model finds bugs: one after the other is planted, and must be found within as many cases as
//! the sound driver passes.

use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_hunt::cases::hunt;
use vkfd_hunt::model::{run, steps, Shape};

/// Most cases that a planted bug may take.
const CASES: u32 = 400;

fn find(sabotage: Switches) -> Result<(), String> {
    let shape = Shape { sabotage, ..Shape::default() };
    hunt(CASES, 7, &steps(shape), |steps| run(shape, steps))
}

fn must_find(sabotage: Switches, symptoms: &[&str]) {
    let found = find(sabotage).expect_err("a planted bug was not found");
    assert!(symptoms.iter().any(|s| found.contains(s)), "found, but as something else: {found}");
}

#[test]
fn the_sound_driver_passes() {
    find(Switches::NONE).unwrap();
}

#[test]
fn a_lost_invalidation() {
    must_find(Switches::from(Switch::Invalidation), &["dead frame", "not Range"]);
}

#[test]
fn a_lost_flush() {
    must_find(Switches::from(Switch::TlbFlush), &["dead frame", "not Nothing", "of the window"]);
}

#[test]
fn a_generation_that_is_not_compared_under_the_lock() {
    must_find(Switches::from(Switch::GenerationCheck), &["dead frame", "not Range", "of the window"]);
}

#[test]
fn a_notifier_that_stays_registered() {
    must_find(Switches::from(Switch::Unregister), &["notifiers"]);
}

#[test]
fn a_range_that_ends_a_page_early_for_invalidations() {
    must_find(Switches::from(Switch::RangeEnd), &["dead frame", "not Range"]);
}

#[test]
fn a_wrong_prefix_sum() {
    must_find(Switches::from(Switch::PrefixSum), &["of the window", "instead of", "is RangeInfo", "memory before"]);
}
