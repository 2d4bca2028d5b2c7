// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many cases a property is tried on, and from which seed. The same ones every time, unless
//! `VKFD_HUNT_SEED` (a number) or `VKFD_HUNT_CASES` say otherwise: a long hunt is
//! `VKFD_HUNT_SEED=$RANDOM VKFD_HUNT_CASES=100000 cargo test --release -p vkfd-hunt`.

use std::fmt::Debug;
use std::str::FromStr;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of this run.
#[must_use]
pub fn seed() -> u64 {
    variable("VKFD_HUNT_SEED").unwrap_or(1)
}

/// Tries `property` on `cases` values. `Err` has the seed, the smallest value that fails, and why.
///
/// # Errors
///
/// The failure.
pub fn hunt<S: Strategy>(
    cases: u32,
    seed: u64,
    values: &S,
    property: impl Fn(&S::Value) -> Result<(), String>,
) -> Result<(), String>
where
    S::Value: Debug,
{
    let config = Config { cases, max_shrink_iters: 4000, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    runner.run(values, |value| property(&value).map_err(TestCaseError::fail)).map_err(|error| match error {
        TestError::Fail(why, value) => format!("seed {seed} of {cases} cases: {why}\nsmallest case: {value:?}"),
        TestError::Abort(why) => format!("seed {seed}: {why}"),
    })
}

/// [`hunt`] as a test does it: with the environment's seed and number of cases, and a panic for a
/// failure.
///
/// # Panics
///
/// When a case fails.
pub fn check<S: Strategy>(cases: u32, values: &S, property: impl Fn(&S::Value) -> Result<(), String>)
where
    S::Value: Debug,
{
    let cases = variable("VKFD_HUNT_CASES").unwrap_or(cases);
    if let Err(failure) = hunt(cases, seed(), values, property) {
        panic!("{failure}");
    }
}
