// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program of a suite.

use std::path::Path;
use std::sync::atomic::AtomicUsize;

use super::memory::Memory;

/// A program as it is compiled and run.
pub(crate) struct Unit<'a> {
    pub(crate) name: &'a str,
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
    /// How often programs were seen to have that memory.
    pub(crate) seen_memory: &'a AtomicUsize,
}

/// What is set when a program of a root runs.
pub(crate) fn environment(unit: &Unit<'_>) -> impl Iterator<Item = (&'static str, &'static str)> {
    unit.environment.iter().chain(unit.memory.environment()).copied()
}
