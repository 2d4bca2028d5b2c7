// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm run`: a program of this machine in a guest, on the module.
//!
//! Mechanism: the guest gets this machine's files ([`shown`]), and the program is started in them.
//! So its libraries, and those that these load by themselves, have the same paths as here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use vkfd_guest::{Record, Stream};

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::{shown, verdict, FlavorArgs};
use xtask_base::Verdict;

/// Run a program of this machine in a guest, on the module
///
/// Nothing is between the program and the module's /dev/kfd. It has this machine's files,
/// read-only, and an empty /tmp of its own; so neither the program nor its directory may be in
/// /tmp. What it writes appears here.
///
/// Exit status: 0 the program ended with 0 and the kernel has nothing to say, 1 otherwise, 2 it
/// could not be done.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask vm run --target gfx900 -- ./hip_kernels vectors")]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// Ends the program after so many seconds; where the guest is emulated everything takes longer
    #[arg(long, value_name = "N", default_value_t = 900)]
    seconds: u64,

    /// Sets a variable for the program; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Where the program is, in the guest too; one without a slash is looked for there.
fn absolute(program: &str) -> Result<String> {
    match program.contains('/') {
        true => shown::place(Path::new(program)),
        false => Ok(program.into()),
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let (program, arguments) = args.command.split_first().context("name a program")?;
    let (program, at) = (absolute(program)?, shown::place(Path::new("."))?);
    let flavor = args.flavor.flavor();
    let mut parts = Parts::build(flavor, Module::Vkfd, &[])?;
    parts.shares.push(shown::machine());
    let (initrd, mut job) = parts.guest("")?;

    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let limit = Duration::from_secs(args.seconds);
    let mut started = shown::program(&job, &program, [&at, &program], &arguments, limit);
    for variable in &args.variables {
        let (name, value) = variable.split_once('=').with_context(|| format!("{variable}: it has no `=`"))?;
        started.env.push((name.into(), value.into()));
    }
    job.programs.push(started);
    let outcome = parts.boot("run", initrd, &job, args.size, guest::AROUND_PROGRAMS, |record| match record {
        Record::Output { stream: Stream::Out, line, .. } => println!("{line}"),
        Record::Output { stream: Stream::Err, line, .. } => eprintln!("{line}"),
        _ => {}
    })?;
    let findings = verdict::findings(&outcome, &job, flavor);
    verdict::show_first_sign(&outcome);
    if findings.is_empty() {
        return Ok(Verdict::Clean(format!("{program} has ended with 0, on the module; nothing in the kernel's log")));
    }
    Ok(Verdict::Findings(findings))
}
