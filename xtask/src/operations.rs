// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask operations`: docs/operations.md, made from the code.
//!
//! Mechanism: the example `operations` of `vkfd-cu` asks the engines and prints the document.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use xtask_base::{cargo, tree, Verdict};

/// Write the table of operations by target and fidelity, or compare it with the tree's
///
/// Exit status: 0 written, or equal; 1 with --check: the table in the tree is not what the code
/// says; 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with docs/operations.md instead of writing it
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let output =
        Command::new(cargo::example("operations")?).stderr(Stdio::inherit()).output().context("start the example")?;
    ensure!(output.status.success(), "the example ended with {}", output.status);
    let text = String::from_utf8(output.stdout).context("the document")?;
    let lines = text.lines().filter(|line| line.starts_with("| ")).count();
    ensure!(lines > 300, "a document of {lines} lines is not whole");
    let place = tree::root().join("docs/operations.md");
    if !args.check {
        fs::write(&place, text).with_context(|| format!("write {}", place.display()))?;
    } else if fs::read_to_string(&place).ok().as_deref() != Some(&text) {
        let finding = format!("{} is not what the code says: cargo xtask operations", place.display());
        return Ok(Verdict::Findings(vec![finding]));
    }
    Ok(Verdict::Clean(format!("{lines} lines of operations")))
}
