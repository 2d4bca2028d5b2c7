// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program of a suite.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::Mutex;

use super::memory::Memory;

/// A program as it is compiled and run.
pub(crate) struct Unit<'a> {
    pub(crate) name: &'a str,
    pub(crate) suite: &'static str,
    pub(crate) target: &'a str,
    /// The suite's source.
    pub(crate) source: &'a Path,
    /// The root that it runs in, if it needs one.
    pub(crate) root: Option<&'a Path>,
    /// Where it works; one that is compiled here is compiled to it.
    pub(crate) at: &'a Path,
    pub(crate) program: &'a Path,
    /// Patterns of its cases that are not to be begun.
    pub(crate) left_out: Vec<&'a str>,
    /// Its cases that the expectation file names in full.
    pub(crate) named: &'a [&'a str],
    /// Set when it runs.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// What its device memory is.
    pub(crate) memory: Memory,
    pub(crate) observed: &'a Observed,
}

/// What was seen of a session's programs besides their verdicts.
#[derive(Default)]
pub(crate) struct Observed {
    /// How often they had the memory that they were to have.
    pub(crate) memory: AtomicUsize,
    /// Launches of kernels that were checked.
    pub(crate) launches: AtomicU64,
    /// What checks of their kernels found, with the program's name.
    pub(crate) findings: Mutex<Vec<String>>,
}

/// What is set when a program of a root runs.
pub(crate) fn environment(unit: &Unit<'_>) -> impl Iterator<Item = (&'static str, &'static str)> {
    unit.environment.iter().chain(unit.memory.environment()).copied()
}
