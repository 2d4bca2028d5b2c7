// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask fuzz`: the fuzz targets, each for a bounded time.
//!
//! Mechanism: cargo-fuzz without sanitizers works on a stable compiler when it is told so
//! (RUSTC_BOOTSTRAP). New inputs go to a folder of the build output; the corpus in the repository
//! is only read.

use std::fs;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::{tree, Verdict};

const TARGETS: [&str; 14] = [
    "ioctl_decode",
    "call_sequence",
    "sdma_packets",
    "aql_packets",
    "pm4_packets",
    "asic_accesses",
    "page_walk",
    "machine_code",
    "kernel_descriptors",
    "kernel_arguments",
    "virtio_gpu_codecs",
    "virtio_gpu_device",
    "virtio_gpu_forward",
    "virtio_gpu_hostile",
];

/// Run the fuzz targets (needs cargo-fuzz and a C++ compiler)
///
/// Command decoding, sequences of calls, SDMA, AQL and PM4 packets, the page walker, machine code,
/// kernel descriptors and arguments, and virtio-gpu's messages and guests. An input that fails is
/// kept below tests/fuzz/artifacts, and cargo-fuzz says how to repeat it.
///
/// Exit status: 0 no failure, 1 a failure, 2 cannot run.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,

    /// Only this target
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let fuzz = tree::root().join("tests/fuzz");
    let found = Command::new("cargo").args(["fuzz", "--version"]).output().is_ok_and(|out| out.status.success());
    ensure!(found, "cargo-fuzz is missing: cargo install cargo-fuzz --locked");
    let mut findings = Vec::new();
    for target in TARGETS.iter().filter(|t| args.target.as_ref().is_none_or(|only| only == *t)) {
        let inputs = tree::target().join("fuzz-inputs").join(target);
        fs::create_dir_all(&inputs).with_context(|| format!("create {}", inputs.display()))?;
        println!("{target}: {} s", args.seconds);
        let status = Command::new("cargo")
            .current_dir(&fuzz)
            .env("RUSTC_BOOTSTRAP", "1")
            // cargo-fuzz keeps its own target directory.
            .env_remove("CARGO_TARGET_DIR")
            .args(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir"])
            .arg(&fuzz)
            .arg(target)
            .arg(&inputs)
            .arg(fuzz.join("corpus").join(target))
            // Without a line for each new input, of which there are thousands.
            .args([
                "--",
                &format!("-max_total_time={}", args.seconds),
                "-verbosity=0",
                "-print_funcs=0",
                "-print_final_stats=1",
            ])
            .status()
            .context("start cargo fuzz")?;
        if !status.success() {
            findings.push(format!("{target}: a failing input, see above"));
        }
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{} s of each target, no failure", args.seconds))
    } else {
        Verdict::Findings(findings)
    })
}
