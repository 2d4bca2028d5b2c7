// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs scenarios against a KFD: the one in this process, or with `VKFD_DEVICE` the system's.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use serde::Serialize;
use vkfd_scenarios::{Host, Scenario, Stop};

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
    },
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    about: &'static str,
}

#[derive(Serialize)]
struct Outcome {
    name: &'static str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    seconds: f64,
}

fn run(scenario: &Scenario) -> Outcome {
    let start = Instant::now();
    let (result, reason) =
        match std::panic::catch_unwind(scenario.run).map(|ended| ended.map_err(|stop| stop.on(Host::is_stock()))) {
            Ok(Ok(())) => ("passed", None),
            Ok(Err(Stop::Skip(reason))) => ("skipped", Some(reason)),
            Ok(Err(Stop::Fail(error))) => ("failed", Some(format!("{error:#}"))),
            // The panic's own message has gone to the standard error output.
            Err(_) => ("failed", Some("it panicked".into())),
        };
    Outcome { name: scenario.name, result, reason, seconds: start.elapsed().as_secs_f64() }
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
        Command::Run { filter, times, json } => {
            let wanted = |s: &Scenario| filter.as_ref().is_none_or(|f| s.name.contains(f.as_str()));
            let mut counts = [0_u32; 3];
            let scenarios: Vec<_> = vkfd_scenarios::runnable().into_iter().filter(wanted).collect();
            for scenario in (0..times).flat_map(|_| &scenarios) {
                let outcome = run(scenario);
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
