// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask test`: all tests of the workspace.
//!
//! Mechanism: cargo-nextest, where it is installed, runs each test in a process of its own and ends
//! one that hangs, by name (.config/nextest.toml). Where it is not, cargo runs them. Examples in
//! the documentation are cargo's in both cases. All is built first, by one call of cargo, with the
//! programs that other checks run.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{cargo, Verdict};

/// Run all tests of the workspace, by cargo-nextest where that is installed
///
/// The results of cargo-nextest are also in target/nextest/ci/junit.xml. A report of the compiled
/// crates is in cargo-timings/ of cargo's target directory.
///
/// Exit status: 0 all passed, 1 some failed or do not build, 2 cannot run.
#[derive(clap::Args)]
pub struct Args {
    /// Only build
    #[arg(long)]
    no_run: bool,
    /// Leave cargo-nextest alone
    #[arg(long)]
    plain: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let mut build = cargo::cargo();
    build.args(["test", "--workspace", "--locked", "--no-run", "--quiet", "--timings"]);
    if !succeeds(&mut build)? {
        return Ok(Verdict::Findings(vec!["the tests do not build".into()]));
    }
    if args.no_run {
        return Ok(Verdict::Clean("all tests are built".into()));
    }
    let nextest = cargo::cargo().args(["nextest", "--version"]).output();
    let nextest = !args.plain && nextest.is_ok_and(|output| output.status.success());
    let mut tests = cargo::cargo();
    match nextest {
        true => tests.args(["nextest", "run", "--profile", "ci"]),
        // What fails first does not keep the others from being run.
        false => tests.args(["test", "--lib", "--bins", "--tests", "--no-fail-fast"]),
    };
    let mut examples = cargo::cargo();
    examples.args(["test", "--doc"]);
    let mut findings = Vec::new();
    for (command, what) in [(&mut tests, "tests"), (&mut examples, "examples of the documentation")] {
        if !succeeds(command.args(["--workspace", "--locked"]))? {
            findings.push(format!("{what} have failed; they are named above"));
        }
    }
    Ok(match (findings.is_empty(), nextest) {
        (true, true) => Verdict::Clean("all tests have passed".into()),
        (true, false) => {
            Verdict::Clean("all tests have passed; with cargo-nextest one that hangs would be named".into())
        }
        (false, _) => Verdict::Findings(findings),
    })
}

fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.status().context("start cargo")?.success())
}
