// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask stress`: many threads on one driver, for as long as is wanted.

use std::process::Command;

use anyhow::{Context, Result};

use xtask_base::cargo::{self, Build};
use xtask_base::Verdict;

/// Run the stress test for some time
///
/// Threads register, map, copy, change memory underneath, unmap, free and close processes at
/// random, with injected failures, while a checker compares the GPUs' view with the memory. Then
/// memory moves to GPUs and back 3,600 times under threads that write to it, which look for every
/// write. Silent on success; on failure it prints the seed and the last operations.
///
/// Exit status: 0 no failure, 1 a failure, 2 cannot run.
#[derive(clap::Args)]
pub struct Args {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u32,

    /// Seed of a run to repeat
    #[arg(long)]
    seed: Option<u64>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let mut command = Command::new(cargo::program(Build::of_checks()?, "vkfd-hunt", "vkfd-stress")?);
    command.args(["--minutes", &args.minutes.to_string()]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    let status = command.status().context("start the stress test")?;
    Ok(if status.success() {
        Verdict::Clean(format!("{} minutes, no failure", args.minutes))
    } else {
        Verdict::Findings(vec!["the stress test failed; its seed and trace are above".into()])
    })
}
