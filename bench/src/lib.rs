// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd bench userptr`: what registering scattered memory costs, in one call, in one call a range, and beside what else does the job.
//!
//! Everything runs in this process, on the software GPU (or, with `--device`, on another KFD): what is measured is the driver's work and the
//! host's, not silicon. The machine may have other work, so only ratios of things measured in turn in the same round count, as medians.
//!
//! [`hotpath`] has the driver's inner loops for the criterion benches and for instruction counts.

mod arena;
mod budget;
mod copies;
mod footprint;
mod goal;
mod host;
pub mod hotpath;
mod invalidate;
mod job;
mod kernels;
mod list;
mod page;
mod peer;
mod plan;
mod plot;
pub mod predict;
mod progress;
mod report;
mod restore;
mod rig;
mod spread;
mod subject;
mod sweep;
mod text;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::host::Host;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::{Parameters, Report, SCHEMA};
use crate::rig::Rig;

/// Measure what registering scattered CPU memory costs: batch, a call a range, and what else there is
///
/// Strategies: contiguous (one range of the same size, what there is to reach), multi (a call a range), batch (one call, notifiers
/// shared by neighbours), and batch with a notifier a range. Peers on the same ranges: io_uring's registered buffers, memcpy to a
/// bounce buffer, mremap into a contiguous window. All take turns in every round; ratios are of the same round, and their medians count.
///
/// With --json the output is one object: schema (1), version, host (cpu, cores, kernel, memory_bytes, transparent_huge_pages, max_map_count,
/// load, notification_source), parameters, targets (what, bound, measured, met), scores (subject, spread), measurements (section, label,
/// ranges, bytes, touched, subject, operation, seconds, by_contiguous), footprints (ranges, pages, driver_bytes, allowed_bytes),
/// ranges_invalidated_a_call, left_out (what, why). A spread is median, q1, q3 (quartiles) and the number of samples; times are in seconds.
///
/// The environment variable VKFD_NOTIFY (uffd, interpose, none) chooses where the driver hears of changed mappings from.
///
/// Exit code: 0 when the run completed, 3 with --check when a target was missed.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A short run, under a minute: fewer shapes and samples
    #[arg(long)]
    quick: bool,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Also write a page with plots to this file; it needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Use this KFD device (such as /dev/kfd) instead of the driver and the software GPU in this process
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,

    /// Use at most this much memory at a time, such as 2G (default: a third of what is available, at most 6G)
    #[arg(long, value_name = "SIZE", value_parser = budget::parse)]
    memory: Option<u64>,

    /// Samples of each thing (default: 11, quick 5)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,

    /// Do not repeat a sample that takes longer than this, nor try it on more ranges (default: 15, quick 1.5)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    slow: Option<u64>,

    /// Exit with 3 when a target was missed
    #[arg(long)]
    check: bool,
}

/// The exit code for a missed target.
const MISSED: u8 = 3;

/// Runs the benchmark and reports.
///
/// # Errors
///
/// When the driver cannot be started, it refuses something, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Before the long run, not after it.
    let page = args
        .html
        .as_ref()
        .map(|path| std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let page = page.transpose()?;
    let report = measure(args)?;
    if let Some(mut file) = page {
        file.write_all(page::render(&report).as_bytes()).context("cannot write the page")?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(text::report(&report).as_bytes())?;
    }
    let missed = args.check && report.targets.iter().any(|goal| !goal.met);
    Ok(if missed { ExitCode::from(MISSED) } else { ExitCode::SUCCESS })
}

fn measure(args: &Args) -> Result<Report> {
    let start = Instant::now();
    let budget = args.memory.unwrap_or_else(budget::compute);
    let plan = Plan::new(args.quick, budget, args.rounds.unwrap_or(0).into(), args.slow.unwrap_or(0))?;
    let mut rig = Rig::new(args.device.as_deref())?;
    let progress = Progress::new();
    let mut report = Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        host: Host::describe(rig.source()),
        parameters: Parameters {
            quick: args.quick,
            rounds: plan.rounds,
            slow_seconds: plan.slow.as_secs_f64(),
            memory_budget: budget,
            took_seconds: 0.0,
        },
        targets: Vec::new(),
        scores: Vec::new(),
        measurements: Vec::new(),
        footprints: Vec::new(),
        ranges_invalidated_a_call: None,
        left_out: Vec::new(),
    };
    sweep::run(&mut rig, &plan, &mut report, &progress)?;
    job::run(&mut rig, &plan, &mut report, &progress)?;
    invalidate::run(&mut rig, &plan, &mut report, &progress)?;
    restore::run(&mut rig, &plan, &mut report, &progress)?;
    copies::run(&mut rig, &plan, &mut report, &progress)?;
    kernels::run(&mut rig, &plan, &mut report, &progress)?;
    footprint::run(&mut rig, &plan, &mut report)?;
    report.parameters.took_seconds = start.elapsed().as_secs_f64();
    Ok(report)
}
