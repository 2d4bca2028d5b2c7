// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd-stress`: see [`vkfd_hunt::stress`] and [`vkfd_hunt::moving`]. On the system's KFD where
//! `VKFD_DEVICE` names it. Silent when nothing fails; otherwise the seed, the last operations, and
//! status 1. A run that hangs says where each thread is, and fails.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use vkfd_driver::sabotage::Switches;
use vkfd_driver::seams::device_memory::Kind;
use vkfd_hunt::compaction::Compaction;
use vkfd_hunt::moving::{self, HOUR};
use vkfd_hunt::stress::{run, Plan};
use vkfd_hunt::watchdog;
use vkfd_scenarios::Host;

/// Many threads, many processes, failures on purpose, and a checker that never stops.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// How long, in minutes; added to the seconds.
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// How long, in seconds; 10 when neither is given.
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of threads
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Machines, of two GPUs each; one, the system's, with VKFD_DEVICE.
    #[arg(long, default_value_t = 2)]
    machines: usize,
    /// Processes on each machine.
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// Seed; by default from the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// No failures on purpose.
    #[arg(long)]
    no_failures: bool,
    /// Trips of memory to a GPU and back under its writers, after the rest: an hour's worth of one
    /// per second.
    #[arg(long, default_value_t = HOUR)]
    trips: u64,
    /// Say how much was done.
    #[arg(short, long)]
    verbose: bool,
    /// Most seconds that it may take longer than that: then it hangs.
    #[arg(long, default_value_t = 900)]
    patience: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let clock =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs());
    let seed = args.seed.unwrap_or_else(clock);
    let default = if args.minutes == 0 { 10 } else { 0 };
    let plan = Plan {
        time: Duration::from_secs(args.minutes * 60 + args.seconds.unwrap_or(default)),
        threads: args.threads,
        machines: args.machines,
        processes: args.processes,
        seed,
        failures: !args.no_failures,
        sabotage: Switches::NONE,
    };
    watchdog::start(plan.time + Duration::from_secs(args.patience))?;
    let report = run(plan)?;
    for failure in &report.failures {
        eprintln!("{failure}");
    }
    if !report.failures.is_empty() {
        eprintln!("seed {seed}; again with: vkfd-stress --seed {seed} --threads {}", args.threads);
    }
    if args.verbose || !report.failures.is_empty() {
        eprintln!("{} operations, {} failed", report.operations, report.failures.len());
    }
    let moved = moving(&args, seed)?;
    Ok(if report.failures.is_empty() && moved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether no write was lost. Half of the trips with coherent, half with private memory; of each,
/// half with XNACK. Where it is this host that moves pages, the kernel does so at the same time.
fn moving(args: &Args, seed: u64) -> anyhow::Result<bool> {
    let mut fine = true;
    // Without the privilege for it there is none.
    let _compaction = Host::of_the_system().is_none().then(Compaction::start);
    for kind in [Kind::Coherent, Kind::Private] {
        for xnack in [false, true] {
            let plan = moving::Plan { trips: args.trips.div_ceil(4), writers: 2, kind, xnack, seed };
            let Some(report) = moving::run(plan)? else {
                eprintln!("this host moves no memory to GPUs");
                return Ok(fine);
            };
            let lost = report.lost != 0;
            fine &= !lost;
            if lost || args.verbose {
                let first = report.first.map_or_else(String::new, |first| format!("; the first: {first}"));
                eprintln!(
                    "{kind:?}, XNACK {xnack}: {} trips, {} pages moved to GPUs, {} evictions, {} words written, {} lost{first}",
                    report.trips, report.pages_in, report.evictions, report.written, report.lost
                );
            }
        }
    }
    Ok(fine)
}
