// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench`: the cost of the driver's work, beside other ways to do the job. `userptr`
//! registers scattered memory, in one call and in one call per range. [`migrate`] measures memory
//! that moves to a GPU and back, or is used there in place. [`compute`] measures the code that the
//! GPU executes, [`opencl`] kernels beside PoCL's, and [`native`] a virtual machine's memory.
//!
//! Everything runs in this process, on the software GPU (or, with `--device`, on another KFD): what
//! is measured is the driver's work and the host's, not silicon. The machine may have other work,
//! so only ratios of things measured in turn in the same round count, as medians.
//!
//! [`hotpath`] has the driver's inner loops for the criterion benches and for instruction counts.

mod arena;
mod baseline;
mod budget;
pub mod compute;
mod copies;
mod date;
mod footprint;
pub mod format;
mod goal;
mod host;
pub mod hotpath;
mod invalidate;
mod job;
mod kernels;
pub mod list;
pub mod migrate;
pub mod native;
pub mod opencl;
mod page;
mod page_file;
mod parts;
mod peer;
mod plan;
mod plot;
pub mod predict;
mod progress;
mod render;
mod report;
mod restore;
mod rig;
mod run;
mod spread;
mod subject;
mod sweep;
mod text;

use std::process::ExitCode;

use anyhow::Result;

use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
use crate::rig::Rig;
use crate::run::Options;

/// Measure what registering scattered CPU memory costs: in one call, in one call per range, and by
/// other means
///
/// Four strategies use the driver. contiguous: one range of the same size, the best that can be
/// reached. multi: one call per range. batch: one call for all ranges, which share notifiers.
/// batch, one notifier per range. Beside them, on the same ranges: io_uring's registered buffers,
/// memcpy to a bounce buffer, mremap into a contiguous window. All take turns in every round. Each
/// ratio is of two times of the same round, and the median of the rounds counts.
///
/// With --json the output is one object: schema (2), version, date, host, parameters. The host has
/// cpu, cores, kernel, memory_bytes, transparent_huge_pages, max_map_count, load and
/// notification_source. The lists are targets (what, bound, measured, met), scores (subject,
/// spread), parts (what, batch, contiguous, ratio), doubts (section, why), left_out (what, why).
/// Two more are footprints (ranges, pages, driver_bytes, allowed_bytes) and measurements. A
/// measurement has section, label, ranges, bytes, touched, subject, operation, seconds and
/// relative_to_contiguous. A number is ranges_invalidated_per_call. With --baseline there is
/// comparison (file, date, differences, targets, measurements, compared). A spread is median, q1,
/// q3 (quartiles) and the number of samples; times are in seconds.
///
/// The environment variable VKFD_NOTIFY (uffd, interpose, none) chooses how the driver learns that
/// mappings changed.
///
/// Exit code: 0 when the run completed, 3 with --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Only the main comparison: the life of 4,096 ranges of 64 KiB, and where its time goes
    #[arg(long)]
    main: bool,
}

/// Runs the benchmark and reports.
///
/// # Errors
///
/// When the driver cannot be started, it refuses something, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.options.run(|| measure(&args.options, args.main))
}

fn measure(options: &Options, main: bool) -> Result<Report> {
    let budget = options.budget();
    let mut plan = Plan::new(options.quick, budget, options.rounds(), options.slow())?;
    if main {
        plan.shapes.truncate(1);
    }
    let mut rig = Rig::new(options.device.as_deref())?;
    let progress = Progress::new();
    let mut report = Report {
        head: options.head(budget, rig.source()),
        scores: Vec::new(),
        parts: Vec::new(),
        measurements: Vec::new(),
        footprints: Vec::new(),
        doubts: Vec::new(),
        ranges_invalidated_per_call: None,
    };
    sweep::run(&mut rig, &plan, &mut report, &progress)?;
    if main {
        return Ok(report);
    }
    job::run(&mut rig, &plan, &mut report, &progress)?;
    invalidate::run(&mut rig, &plan, &mut report, &progress)?;
    restore::run(&mut rig, &plan, &mut report, &progress)?;
    copies::run(&mut rig, &plan, &mut report, &progress)?;
    kernels::run(&mut rig, &plan, &mut report, &progress)?;
    footprint::run(&mut rig, &plan, &mut report)?;
    Ok(report)
}
