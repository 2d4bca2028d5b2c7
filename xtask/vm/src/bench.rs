// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm bench`: the benchmark against the guest's /dev/kfd.

use std::time::Duration;

use anyhow::Result;
use vkfd_guest::Record;

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::programs::VKFD;
use super::qemu::Acceleration;
use super::{verdict, FlavorArgs};
use xtask_base::Verdict;

/// Run the benchmark against the module in a guest
///
/// `vkfd bench userptr --quick --slow 6`, or with the arguments given here; for `migrate` the
/// module has one kind of memory at a time, coherent or, with `--parameters memory=2`, private. In
/// an emulated guest only ratios mean something, and those little.
///
/// Exit status: 0 done, 1 findings (as with `test`), 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Arguments for `vkfd bench`, after `--`
    #[arg(last = true, default_values = ["userptr", "--quick", "--slow", "6"])]
    arguments: Vec<String>,

    /// The module's parameters
    #[arg(long, value_name = "NAME=VALUE ...", default_value = "")]
    parameters: String,

    /// The guest's clock counts instructions, one nanosecond each: ratios do not depend on the
    /// machine's other load, and ignore caches
    #[arg(long)]
    count: bool,

    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// The benchmark is killed after so many seconds
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let flavor = args.flavor.flavor();
    let mut parts = Parts::to_measure(flavor, Module::Vkfd, &[VKFD])?;
    if args.count {
        parts.acceleration = Acceleration::Counted;
    }
    let (mut initrd, mut job) = parts.guest_for_tests(&args.parameters)?;
    let path = initrd.add_program(parts.programs.path(VKFD)?)?;
    let mut arguments = vec!["bench"];
    arguments.extend(args.arguments.iter().map(String::as_str));
    arguments.extend(["--device", "/dev/kfd"]);
    job.programs.push(guest::program(&job, VKFD.name, path, &arguments, Duration::from_secs(args.seconds)));
    let outcome = parts.boot("bench", initrd, &job, args.size, guest::AROUND_PROGRAMS, |record| {
        if let Record::Output { line, .. } = record {
            println!("{line}");
        }
    })?;
    let findings = verdict::findings(&outcome, &job, flavor);
    if !findings.is_empty() {
        return Ok(Verdict::Findings(findings));
    }
    let what = match parts.acceleration {
        Acceleration::Kvm => "with KVM",
        Acceleration::Tcg => "in an emulated guest, where absolute times mean nothing",
        Acceleration::Counted => "in instructions, a nanosecond each",
    };
    Ok(Verdict::Clean(format!("measured {what}")))
}
