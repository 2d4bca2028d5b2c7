// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench migrate`: what it costs to have memory on a GPU: moving it there and back, faults,
//! the CPU's accesses, and pressure.
//!
//! | module | measures |
//! | --- | --- |
//! | `transfer` | a buffer by requests of several sizes, against memcpy |
//! | `fault` | one page fault, of the GPU and of the CPU |
//! | `touch` | the CPU reading k percent of a buffer: coherent against private |
//! | `pressure` | eviction, and working sets of twice the room |

mod cell;
mod fault;
mod page;
mod pressure;
mod render;
mod report;
mod rig;
mod text;
mod touch;
mod transfer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::progress::Progress;
use crate::run::Options;
use report::Report;
use rig::Rig;

/// Measure what memory on a GPU costs: moving it, faults, CPU accesses, running out of room
///
/// Two kinds of memory: coherent, which the CPU uses where it is, and private, which comes back
/// when the CPU touches it. In this process both are measured, each on a machine of its own; a
/// kernel's driver is loaded with one of them. The yardsticks are memcpy of the same bytes, and the
/// same accesses to system memory. All take turns in every round; each ratio is of two times of the
/// same round, and the median of the rounds counts.
///
/// With --json the output is one object: schema (2), and version, date, host and parameters as of
/// `vkfd bench userptr`. Its lists are targets (what, bound, measured, met), left_out (what, why),
/// measurements and oversubscription. A measurement has section, step, memory, granule, percent,
/// bytes, seconds and relative_to_yardstick. A line of oversubscription has memory, passes, bytes,
/// evictions, pages_in, pages_out, bounces and damped. A spread is median, q1, q3 (quartiles) and
/// the number of samples; times are in seconds.
///
/// Moving memory in this process needs userfaultfd and Linux 6.11; without, nothing is measured,
/// and the report says so.
///
/// Exit code: 0 when the run completed, 3 with --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    options: Options,
}

/// How much is measured.
struct Plan {
    quick: bool,
    rounds: usize,
    slow: Duration,
    budget: u64,
}

/// Runs the benchmark and reports.
///
/// # Errors
///
/// When the driver cannot be started, it refuses something, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.options.run(|| measure(&args.options))
}

fn measure(options: &Options) -> Result<Report> {
    let plan = Plan { quick: options.quick, rounds: options.rounds(), slow: options.slow(), budget: options.budget() };
    let rig = Rig::new(options.device.as_deref())?;
    let progress = Progress::new();
    let head = options.head(plan.budget, rig.source.clone());
    let mut report = Report { head, measurements: Vec::new(), oversubscription: Vec::new() };
    if rig.places.is_empty() {
        let why = rig
            .why_not
            .as_deref()
            .unwrap_or("this driver moves no memory: load it with the parameter memory=1 or memory=2");
        report.head.leave_out("everything", why);
        return Ok(report);
    }
    transfer::run(&rig, &plan, &mut report, &progress)?;
    fault::run(&rig, &plan, &mut report, &progress)?;
    touch::run(&rig, &plan, &mut report, &progress)?;
    pressure::run(&rig, &plan, &mut report, &progress)?;
    Ok(report)
}
