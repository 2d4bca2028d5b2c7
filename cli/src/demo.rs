// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd demo`: a guest's scattered buffer, registered as one GPU range, used, changed under the
//! GPU's hands, and measured. [`coherent`] is another demo, of a buffer that moves to a GPU's
//! memory.

mod change;
mod coherent;
mod compute;
mod cost;
mod register;
mod scene;
mod watch;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{json, Value};
use vkfd_host::size;

use crate::format;
use crate::guest::Guest;
use crate::input::{self, InputArgs};
use crate::inspect;
use crate::layout::Layout;
use crate::memory;
use crate::report::{Outcome, Output, Report};
use crate::scatter::{Scatter, DEFAULT};
use crate::session::{Session, SessionArgs};
use scene::Scene;

/// The options of `vkfd demo`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    other: Option<Other>,

    #[command(flatten)]
    session: SessionArgs,

    /// Scatter list: a built-in one (aged-4k-256M, aged-thp-64M, fresh-64M, random-4k-64M) or a
    /// file with lines `start length` (hexadecimal bytes)
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT)]
    list: String,

    /// Run all built-in lists, one after the other
    #[arg(long, conflicts_with = "list")]
    all_lists: bool,

    /// Spread a list over at most so many addresses; longer gaps between its ranges are shortened.
    /// A number alone counts GiB
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = span)]
    span: u64,

    /// Seed for the test pattern, and for the choice of the ranges that are changed
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Rounds of the measurement at the end; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    rounds: u32,

    /// Say what each step has checked, and show the driver's objects and counters after the
    /// registration, as `vkfd inspect` does
    #[arg(long, short)]
    verbose: bool,

    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    input: InputArgs,
}

/// From a GiB to 16 TiB.
fn span(text: &str) -> Result<u64, String> {
    match size::parse_counting(text, 1 << 30)? {
        bytes if (1 << 30..=1 << 44).contains(&bytes) => Ok(bytes),
        _ => Err("from 1G to 16T are possible".into()),
    }
}

/// Demos of something else.
#[derive(Subcommand, Clone, Debug)]
enum Other {
    /// Move a buffer to a GPU's memory, use it there by CPU and GPU, evict it, fetch it again, and
    /// check which pages moved
    ///
    /// Exit code: 0 when every check held, 1 when one did not, 2 for wrong usage or an unusable
    /// KFD. It is also 0 without checks, on a system that cannot move memory; the report has the
    /// reason and the remedy.
    Coherent(coherent::CoherentArgs),
}

const INTRODUCTION: &str = "A GPU normally sees scattered CPU memory as many separate buffers. Here one call makes one contiguous \
    GPU range of thousands of pieces. No page is pinned: the CPU may still unmap, replace or discard any piece at any time. \
    Each step below was done, and checked by comparing the GPU's results with the CPU's; -v says what was checked.";

/// What the largest list takes: its buffer, the GPU's copy of it, and the driver.
const NEEDED: u64 = 560 << 20;

/// Runs it.
///
/// # Errors
///
/// What kept it from starting; what fails later is in the report.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    if let Some(Other::Coherent(args)) = &args.other {
        return coherent::run(args);
    }
    let output = Output::new(args.json).with_checks(args.verbose);
    if args.input.is_given() {
        let session = Session::open(&args.session)?;
        return input::run(&args.input, &session, &output);
    }
    if args.session.device.is_none() {
        memory::require(NEEDED)?;
    }
    let lists = if args.all_lists { Scatter::builtin()? } else { vec![Scatter::load(&args.list)?] };
    let mut guests = Vec::new();
    for list in lists {
        let layout = Layout::new(&list, args.span)?;
        guests.push((list, layout));
    }
    let session = Session::open(&args.session)?;
    output.text(INTRODUCTION)?;
    output.line("")?;
    output.text(&session.describe())?;
    let (mut documents, mut reports) = (Vec::new(), Vec::new());
    for (list, layout) in &guests {
        let (document, report) = run_list(args, &session, &output, list, layout)?;
        documents.push(document);
        reports.push(report);
    }
    let reports: Vec<&Report<'_>> = reports.iter().collect();
    conclude(&output, &reports)?;
    let ok = reports.iter().all(|report| report.ok());
    output.document(&json!({
        "vkfd": env!("CARGO_PKG_VERSION"), "command": "demo", "ok": ok, "seed": args.seed,
        "kfd": session.json(), "lists": documents,
    }))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The last line: whether all checks held.
fn conclude(output: &Output, reports: &[&Report<'_>]) -> Result<()> {
    let count = |outcome| reports.iter().map(|report| report.count(outcome)).sum::<u64>();
    let [fine, failed, skipped] = [Outcome::Ok, Outcome::Failed, Outcome::Skipped].map(count);
    let skipped_words =
        if skipped == 0 { String::new() } else { format!(", {skipped} skipped (the reasons are above)") };
    output.line("")?;
    output.line(&match failed {
        0 if fine == 0 => format!("Nothing could be shown here{skipped_words}."),
        0 => format!("All checks held: {} ok{skipped_words}.", format::counted(fine, "step")),
        n => format!("{} FAILED, {fine} ok{skipped_words}.", format::counted(n, "step")),
    })?;
    Ok(())
}

fn run_list<'a>(
    args: &DemoArgs,
    session: &Session,
    output: &'a Output,
    list: &Scatter,
    layout: &Layout,
) -> Result<(Value, Report<'a>)> {
    let ranges = list.pieces.len() as u64;
    let bytes = list.bytes();
    output.heading(&format!("Buffer {}", list.name))?;
    output.text(&format!(
        "One buffer of {}, contiguous in a guest process, which the guest's kernel has put into {} of its memory \
         (on average {} each); the same pieces of this process's memory, {}.",
        format::bytes(bytes),
        format::counted(ranges, "scattered range"),
        format::bytes(bytes / ranges.max(1)),
        layout.describe()
    ))?;
    let progress = output.progress(format!("filling {} with a pattern", format::bytes(bytes)), 0);
    let guest = Guest::new(list, layout, args.seed).with_context(|| {
        format!("cannot map {} of address space; a smaller --span or --list needs less", format::bytes(layout.span))
    })?;
    drop(progress);
    let mut report = Report::new(output);
    let mut costs = Value::Null;
    output.heading("1. Registration")?;
    let mut scene = Scene::new(session, guest, args.seed)?;
    if register::run(&mut scene, &mut report)? {
        if args.verbose {
            inspect::print(output, &session.client, &inspect::Detail::default())?;
        }
        output.heading("2. Work on the one GPU range")?;
        compute::run(&mut scene, &mut report)?;
        output.heading("3. The CPU changes the memory while it is registered")?;
        output.text(&change_introduction(session))?;
        change::run(&mut scene, &mut report)?;
        watch::run(&mut scene, &mut report)?;
        scene.release(&mut report)?;
        if args.rounds != 0 {
            output.heading("4. What it costs")?;
            costs = cost::run(&scene, &mut report, args.rounds)?;
        }
    }
    let document = json!({
        "list": list.name, "ranges": ranges, "bytes": bytes,
        "layout": {
            "span_bytes": layout.span, "original_span_bytes": layout.original_span,
            "longest_gap_bytes": layout.longest_gap, "shortened_gaps": layout.shortened,
        },
        "ok": report.ok(), "steps": report.steps, "costs": costs,
    });
    Ok((document, report))
}

fn change_introduction(session: &Session) -> String {
    let how = if session.xnack {
        "the driver clears the GPU's entries for it (invalidation), and looks up the pages again when the GPU accesses them."
    } else {
        "the driver stops the GPU's queues (invalidation and eviction), looks up the pages of the changed ranges again, and lets the queues \
         go on (restore)."
    };
    let unseen = session.hears().unseen();
    format!("When a CPU mapping changes, {how} {unseen}")
}

#[cfg(test)]
mod tests;
