// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The decoder against `llvm-mc`: starts the example `sweep` of `vkfd-isa`, which compares.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use xtask_base::{tree, Verdict};

/// What is compared.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Compare the decoder and the disassembler with llvm-mc-19
    #[arg(long, conflicts_with_all = ["write", "llvm", "json"])]
    pub sweep: bool,
    /// Every encoding, not a sample
    #[arg(long, requires = "sweep")]
    whole: bool,
    /// LLVM's own tests, too: the directory llvm/test/MC of its source
    #[arg(long, value_name = "DIR", requires = "sweep")]
    vectors: Option<PathBuf>,
    /// Which sample, and which random numbers
    #[arg(long, default_value_t = 0, requires = "sweep")]
    seed: u64,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let mut sweep = Command::new("cargo");
    sweep.current_dir(tree::root()).args(["run", "--quiet", "--locked", "--package", "vkfd-isa", "--example", "sweep"]);
    sweep.args(["--", "--seed", &args.seed.to_string()]);
    if args.whole {
        sweep.args(["--words", "100000", "--faults", "200"]);
    } else {
        sweep.args(["--stride", "40", "--random", "10", "--words", "2000", "--faults", "20"]);
    }
    if let Some(vectors) = &args.vectors {
        sweep.arg("--vectors").arg(vectors);
    }
    let status = sweep.status().context("start cargo")?;
    Ok(if status.success() {
        Verdict::Clean("the decoder agrees with llvm-mc".into())
    } else {
        Verdict::Findings(
            vec!["the decoder differs from llvm-mc, or a planted fault was not noticed: see above".into()],
        )
    })
}
