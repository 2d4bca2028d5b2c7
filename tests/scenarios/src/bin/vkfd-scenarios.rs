// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs scenarios against a KFD: the one in this process, or with `VKFD_DEVICE` the system's.

use std::io::Write;
use std::process::{self, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::{Deserialize, Serialize};
use vkfd_scenarios::{calls, stock, Host, Scenario, Stop};

/// Seconds that a scenario may take in a process of its own.
const LIMIT: u64 = 120;

/// Scenarios for a KFD with batch userptr.
#[derive(Parser)]
#[command(
    version,
    after_help = "Environment: VKFD_DEVICE=/dev/kfd uses that KFD instead of one in this process, and runs also the scenarios that only \
    a kernel can show (kernel_*); \
    VKFD_NOTIFY=uffd|interpose|none selects the notification source of the one in this process."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the scenarios.
    List {
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Makes calls that are right and calls that are wrong, and says what came of each, to compare
    /// one KFD with another. One JSON object a line.
    Calls {
        /// Runs only the sequences whose name contains this.
        filter: Option<String>,
        /// Only the sequence of just this name, in this process.
        #[arg(long, hide = true)]
        exactly: bool,
    },
    /// Runs scenarios; fails if one fails.
    Run {
        /// Runs only those whose name contains this.
        filter: Option<String>,
        /// So many times, all of them each time.
        #[arg(long, default_value_t = 1)]
        times: u32,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
        /// Only the scenario of just this name.
        #[arg(long, hide = true)]
        exactly: bool,
        /// Each in a process of its own, which is ended after this many seconds. On AMD's driver,
        /// which has one process for an address space, that is always done.
        #[arg(long)]
        apart: Option<u64>,
    },
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    about: &'static str,
}

#[derive(Serialize, Deserialize)]
struct Outcome {
    name: String,
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    seconds: f64,
}

fn run(scenario: &Scenario) -> Outcome {
    let start = Instant::now();
    if let Some(reason) = Host::is_stock().then(|| stock::lacks(scenario.name)).flatten() {
        let (name, result, reason) = (scenario.name.into(), "skipped".into(), Some(reason.into()));
        return Outcome { name, result, reason, seconds: 0.0 };
    }
    let (result, reason) =
        match std::panic::catch_unwind(scenario.run).map(|ended| ended.map_err(|stop| stop.on(Host::is_stock()))) {
            Ok(Ok(())) => ("passed", None),
            Ok(Err(Stop::Skip(reason))) => ("skipped", Some(reason)),
            Ok(Err(Stop::Fail(error))) => ("failed", Some(format!("{error:#}"))),
            // The panic's own message has gone to the standard error output.
            Err(_) => ("failed", Some("it panicked".into())),
        };
    let seconds = start.elapsed().as_secs_f64();
    Outcome { name: scenario.name.into(), result: result.into(), reason, seconds }
}

/// Runs this program again with other arguments, for some time at most: what it has printed, or how
/// it has ended.
fn again(arguments: &[&str], limit: Duration) -> anyhow::Result<Result<String, String>> {
    let start = Instant::now();
    let program = std::env::current_exe()?;
    let mut child = process::Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().map(|out| std::thread::spawn(|| std::io::read_to_string(out)));
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if start.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                return Ok(Err(format!("not done after {} s", limit.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let said = out.and_then(|out| out.join().ok()).transpose()?.unwrap_or_default();
    Ok(if said.is_empty() { Err(format!("it died: {status}")) } else { Ok(said) })
}

/// Runs a scenario in a process of its own.
fn run_apart(scenario: &Scenario, limit: Duration) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let said = again(&["run", scenario.name, "--exactly", "--json"], limit)?;
    let outcome = said.and_then(|said| {
        let outcome = said.lines().find_map(|line| serde_json::from_str(line).ok());
        outcome.ok_or_else(|| format!("it says {said:?}"))
    });
    Ok(outcome.unwrap_or_else(|reason| {
        let seconds = start.elapsed().as_secs_f64();
        Outcome { name: scenario.name.into(), result: "failed".into(), reason: Some(reason), seconds }
    }))
}

/// Runs sequences of calls, each in a process of its own.
fn run_calls(out: &mut impl Write, filter: Option<&str>) -> anyhow::Result<()> {
    for sequence in calls::ALL.iter().filter(|sequence| filter.is_none_or(|part| sequence.name.contains(part))) {
        match again(&["calls", sequence.name, "--exactly"], Duration::from_secs(LIMIT))? {
            Ok(said) => write!(out, "{said}")?,
            Err(reason) => {
                let (step, call) = (format!("{}/the end", sequence.name), "the sequence".to_owned());
                writeln!(out, "{}", serde_json::to_string(&calls::Line { step, call, result: reason })?)?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some(status) = vkfd_scenarios::run_role() {
        return Ok(status);
    }
    let mut out = std::io::stdout().lock();
    match Cli::parse().command {
        Command::List { json } => {
            for Scenario { name, about, .. } in [vkfd_scenarios::all(), vkfd_scenarios::kernel()].concat() {
                if json {
                    writeln!(out, "{}", serde_json::to_string(&Entry { name, about })?)?;
                } else {
                    writeln!(out, "{name}\n    {about}")?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Calls { filter: Some(name), exactly: true } => {
            let sequence = calls::ALL.iter().find(|sequence| sequence.name == name);
            let sequence = sequence.with_context(|| format!("there is no sequence {name}"))?;
            match calls::run(sequence) {
                Ok(lines) => {
                    for line in lines {
                        writeln!(out, "{}", serde_json::to_string(&line)?)?;
                    }
                    Ok(ExitCode::SUCCESS)
                }
                Err(Stop::Skip(reason)) => anyhow::bail!("{reason}"),
                Err(Stop::Fail(error)) => Err(error),
            }
        }
        Command::Calls { filter, .. } => {
            run_calls(&mut out, filter.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run { filter, times, json, exactly, apart } => {
            let wanted = |s: &Scenario| match &filter {
                Some(name) if exactly => s.name == name,
                Some(part) => s.name.contains(part.as_str()),
                None => true,
            };
            let apart = apart.or((Host::is_stock() && !exactly).then_some(LIMIT)).map(Duration::from_secs);
            let mut counts = [0_u32; 3];
            let scenarios: Vec<_> = vkfd_scenarios::runnable().into_iter().filter(wanted).collect();
            for scenario in (0..times).flat_map(|_| &scenarios) {
                let outcome = match apart {
                    Some(limit) => run_apart(scenario, limit)?,
                    None => run(scenario),
                };
                counts[["passed", "skipped", "failed"].iter().position(|r| *r == outcome.result).unwrap_or(2)] += 1;
                if json {
                    writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
                } else {
                    let reason = outcome.reason.map(|r| format!(": {r}")).unwrap_or_default();
                    writeln!(out, "{:8}{:7.2} s  {}{reason}", outcome.result, outcome.seconds, outcome.name)?;
                }
                out.flush()?;
            }
            vkfd_scenarios::leave_module_as_found()?;
            let [passed, skipped, failed] = counts;
            if !json {
                writeln!(out, "{passed} passed, {skipped} skipped, {failed} failed")?;
            }
            if passed + skipped + failed == 0 {
                anyhow::bail!("no scenario that can run here has that in its name (kernel_* need VKFD_DEVICE)");
            }
            Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
