// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm stress`: many threads on the guest's /dev/kfd, for as long as is wanted.

use std::time::Duration;

use anyhow::Result;
use vkfd_guest::Record;

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::programs::STRESS;
use super::progress::minutes;
use super::{verdict, FlavorArgs};
use xtask_base::Verdict;

/// Run the stress test against the module in a guest
///
/// Runs the test of `cargo xtask stress` on /dev/kfd. Threads register, map, copy, give memory to
/// GPUs by SVM, change it underneath, unmap, free and close processes at random, with injected
/// failures. A checker compares the GPUs' view with the memory. Then memory moves to GPUs and back
/// under threads that write to it. Findings are the test's own, and those of `vm test` in the
/// guest: the kernel's log, allocations that are left, a module that cannot be unloaded.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,

    /// Trips of memory to a GPU and back after that, a quarter of them for each kind of memory,
    /// with XNACK and without
    #[arg(long, default_value_t = 400)]
    trips: u64,

    /// Seed of a run to repeat
    #[arg(long)]
    seed: Option<u64>,

    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// The trips' time is out after so many seconds (with --debug six times as many)
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let flavor = args.flavor.flavor();
    let parts = Parts::build(flavor, Module::Vkfd, &[STRESS])?;
    let (mut initrd, mut job) = parts.guest_for_tests("")?;
    let path = initrd.add_program(parts.programs.path(STRESS)?)?;
    let (minutes_long, trips) = (args.minutes.to_string(), args.trips.to_string());
    let mut arguments = vec!["--verbose", "--minutes", &minutes_long, "--trips", &trips];
    let seed = args.seed.map(|seed| seed.to_string());
    arguments.extend(seed.iter().flat_map(|seed| ["--seed", seed]));
    let time = Duration::from_secs(args.minutes * 60) + parts.scaled(Duration::from_secs(args.seconds));
    job.programs.push(guest::program(&job, STRESS.name, path, &arguments, time));
    job.swap_mib = args.size.memory_mib() / 2;
    println!("booting Linux {} ({}) with {}", parts.kernel.source.version, flavor.name(), parts.acceleration);
    let outcome = parts.boot("stress", initrd, &job, args.size, guest::AROUND_PROGRAMS, |record| {
        if let Record::Output { line, .. } = record {
            println!("    {line}");
        }
    })?;
    let findings = verdict::findings(&outcome, &job, flavor);
    verdict::show_first_sign(&outcome);
    println!("from power-on to the end {}", minutes(outcome.took));
    println!("the kernel's log: {}", outcome.console_path.display());
    Ok(if findings.is_empty() {
        Verdict::Clean(format!(
            "{} minutes, no failure; nothing in the kernel's log, nothing left after the unloading",
            args.minutes
        ))
    } else {
        Verdict::Findings(findings)
    })
}
