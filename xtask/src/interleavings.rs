// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask interleavings`: the driver's code under a scheduler that explores thread orders.
//!
//! Mechanism: the driver is built once more with `--cfg vkfd_shuttle`, which puts its locks and
//! threads on shuttle's. A separate target directory leaves the ordinary build as it is.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use xtask_base::{tree, Verdict};

/// Run the driver's concurrency tests in many interleavings (shuttle)
///
/// Invalidations, restores, GPU faults, mapping, freeing and the end of a process run against each
/// other, each test in the given number of thread orders. On failure shuttle prints the schedule,
/// which repeats the run (`shuttle::replay`).
///
/// Exit status: 0 no failure, 1 a failure, 2 cannot run.
#[derive(clap::Args)]
pub struct Args {
    /// Thread orders to try for each test
    #[arg(long, default_value_t = 2000)]
    runs: u32,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(tree::root())
        .args(["test", "--locked", "--package", "vkfd-driver", "--test", "interleavings"])
        .env("RUSTFLAGS", format!("{flags} --cfg vkfd_shuttle"))
        .env("CARGO_TARGET_DIR", tree::target().join("interleavings"))
        .env("VKFD_INTERLEAVINGS", args.runs.to_string())
        .status()
        .context("start cargo")?;
    Ok(if status.success() {
        Verdict::Clean(format!("{} interleavings of each test, no failure", args.runs))
    } else {
        Verdict::Findings(vec!["an interleaving failed; its schedule is above".into()])
    })
}
