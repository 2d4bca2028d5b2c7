// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SPECIFICATION.md names no scenario that does not exist.
#![allow(missing_docs)]

/// What looks like a scenario's name: four words or more, perhaps cut off with a star.
fn is_name(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.trim_end_matches('*').chars().all(plain) && word.matches('_').count() >= 3
}

#[test]
fn every_scenario_that_a_promise_rests_on_exists() {
    let text = include_str!("../../../SPECIFICATION.md");
    let scenarios = [vkfd_scenarios::all(), vkfd_scenarios::kernel()].concat();
    let names: Vec<_> = scenarios.iter().map(|s| s.name).collect();
    let mut found = 0;
    for word in text.split('`').skip(1).step_by(2).filter(|w| is_name(w)) {
        let known = match word.strip_suffix('*') {
            Some(start) => names.iter().any(|n| n.starts_with(start)),
            None => names.contains(&word),
        };
        assert!(known, "no scenario is called {word}");
        found += 1;
    }
    assert!(found > 30, "only {found} names were found: has the format changed?");
}
