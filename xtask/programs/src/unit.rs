// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program of a suite.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::Mutex;

use super::memory::Memory;

/// A program as it is compiled and run.
pub struct Unit<'a> {
    pub name: &'a str,
    pub suite: &'static str,
    pub target: &'a str,
    /// The suite's source.
    pub source: &'a Path,
    /// The root that it runs in, if it needs one.
    pub root: Option<&'a Path>,
    /// Where it works; one that is compiled here is compiled to it.
    pub at: &'a Path,
    pub program: &'a Path,
    /// Patterns of its cases that are not to be begun.
    pub left_out: Vec<&'a str>,
    /// Its cases that the expectation file names in full.
    pub named: &'a [&'a str],
    /// Set when it runs.
    pub environment: &'static [(&'static str, &'static str)],
    /// What its device memory is.
    pub memory: Memory,
    pub observed: &'a Observed,
}

/// What was seen of a session's programs besides their verdicts.
#[derive(Default)]
pub struct Observed {
    /// How often they had the memory that they were to have.
    pub memory: AtomicUsize,
    /// Launches of kernels that were checked.
    pub launches: AtomicU64,
    /// What checks of their kernels found, with the program's name.
    pub findings: Mutex<Vec<String>>,
    /// Lines of the accepted findings that none of the programs has had.
    pub unused: Mutex<Option<BTreeSet<String>>>,
}

/// What is set when a program of a root runs.
pub fn environment(unit: &Unit<'_>) -> impl Iterator<Item = (&'static str, &'static str)> {
    unit.environment.iter().chain(unit.memory.environment()).copied()
}
