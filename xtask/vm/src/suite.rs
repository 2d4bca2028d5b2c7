// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm test`: the scenario suite against the guest's /dev/kfd.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use vkfd_guest::{Record, Stream};

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::programs::SCENARIOS;
use super::progress::minutes;
use super::{verdict, FlavorArgs};
use xtask_base::Verdict;

/// Run the scenarios against the module in a guest
///
/// Builds the module and the programs, boots, loads, runs every scenario against /dev/kfd, and
/// unloads. Findings are scenarios that fail or are skipped without being expected to, programs
/// that crash or hang, and a guest that panics or hangs. Others are warnings, oopses, lockdep and
/// KASAN reports in the kernel's log, allocations that are left after the unloading, and a module
/// that cannot be unloaded.
///
/// The kernel's log is kept below the target directory; a finding names the file.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Runs only the scenarios whose name contains this
    filter: Option<String>,

    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// The suite is killed after so many seconds (with --debug six times as many)
    #[arg(long, default_value_t = 1800)]
    seconds: u64,

    /// Runs them so many times in one guest
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,

    /// Parameters for the module, `name=value` separated by spaces
    #[arg(long, default_value = "")]
    parameters: String,
}

/// What the suite says of a scenario with `--json`.
#[derive(Deserialize)]
struct Scenario {
    name: String,
    result: String,
    reason: Option<String>,
    seconds: f64,
}

/// Counts of results, and what is wrong with them.
#[derive(Default)]
struct Results {
    counts: BTreeMap<String, usize>,
    failures: Vec<String>,
    skipped: Vec<String>,
}

impl Results {
    fn take(&mut self, scenario: &Scenario) {
        let Scenario { name, result, reason, seconds } = scenario;
        let reason = reason.as_deref().unwrap_or_default();
        let colon = if reason.is_empty() { "" } else { ": " };
        println!("  {result:7} {name} ({seconds:.2} s){colon}{reason}");
        *self.counts.entry(result.clone()).or_default() += 1;
        if result == "skipped" {
            self.skipped.push(format!("scenario {name} was skipped: {reason}"));
        }
        if result != "passed" && result != "skipped" {
            self.failures.push(format!("scenario {name} {result}{colon}{reason}"));
        }
    }

    /// A suite in which nothing passed has shown nothing. `usual`: the guest has all that any
    /// scenario wants, so that none may be skipped.
    fn findings(self, usual: bool) -> Vec<String> {
        let mut findings = self.failures;
        if usual {
            findings.extend(self.skipped);
        }
        if !self.counts.contains_key("passed") {
            findings.push("no scenario has passed".into());
        }
        findings
    }

    fn summary(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(|(result, count)| format!("{count} {result}")).collect();
        counts.join(", ")
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let flavor = args.flavor.flavor();
    let parts = Parts::build(flavor, Module::Vkfd, &[SCENARIOS])?;
    let (mut initrd, mut job) = parts.guest_for_tests(&args.parameters)?;
    let path = initrd.add_program(parts.programs.path(SCENARIOS)?)?;
    let times = args.times.to_string();
    let mut arguments = vec!["run", "--json", "--times", &times];
    arguments.extend(args.filter.as_deref());
    job.programs.push(guest::program(
        &job,
        SCENARIOS.name,
        path,
        &arguments,
        parts.scaled(Duration::from_secs(args.seconds)),
    ));
    job.swap_mib = args.size.memory_mib() / 2;
    println!("booting Linux {} ({}) with {}", parts.kernel.source.version, flavor.name(), parts.acceleration);

    let mut results = Results::default();
    let outcome =
        parts.boot("test", initrd, &job, args.size, guest::AROUND_PROGRAMS, |record| show(record, &mut results))?;

    let mut findings = verdict::findings(&outcome, &job, flavor);
    verdict::show_first_sign(&outcome);
    let summary = results.summary();
    findings.extend(results.findings(args.size.is_usual() && args.parameters.is_empty()));
    println!("{summary}; from power-on to the end {}", minutes(outcome.took));
    println!("the kernel's log: {}", outcome.console_path.display());
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{summary}; nothing in the kernel's log, nothing left after the unloading"))
    } else {
        Verdict::Findings(findings)
    })
}

/// Prints what happens as it happens.
fn show(record: &Record, results: &mut Results) {
    match record {
        Record::Booted { release } => println!("booted {release}"),
        Record::Loaded { module, error: None } => println!("{module} is loaded"),
        Record::Unloaded { module, error: None } => println!("{module} is unloaded"),
        Record::Output { line, stream, .. } => match serde_json::from_str::<Scenario>(line) {
            Ok(scenario) if *stream == Stream::Out => results.take(&scenario),
            _ => println!("    {line}"),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(lines: &[&str], usual: bool) -> Vec<String> {
        let mut results = Results::default();
        for line in lines {
            let record = Record::Output { program: SCENARIOS.name.into(), stream: Stream::Out, line: (*line).into() };
            show(&record, &mut results);
        }
        results.findings(usual)
    }

    const PASSED: &str = r#"{"name":"a","result":"passed","seconds":0.1}"#;
    const FAILED: &str = r#"{"name":"c","result":"failed","reason":"stale","seconds":0.0}"#;
    const SKIPPED: &str = r#"{"name":"b","result":"skipped","reason":"no second GPU","seconds":0.0}"#;

    #[test]
    fn only_a_suite_in_which_something_passed_and_nothing_failed_is_clean() {
        assert!(findings(&[PASSED], true).is_empty());
        assert_eq!(findings(&[PASSED, FAILED], true), ["scenario c failed: stale"]);
        assert_eq!(findings(&[SKIPPED], false), ["no scenario has passed"]);
        assert_eq!(findings(&[], true), ["no scenario has passed"]);
        assert_eq!(findings(&["thread panicked"], true), ["no scenario has passed"]);
    }

    #[test]
    fn nothing_may_be_skipped_in_a_guest_that_has_all() {
        assert_eq!(findings(&[PASSED, SKIPPED], true), ["scenario b was skipped: no second GPU"]);
        assert!(findings(&[PASSED, SKIPPED], false).is_empty());
    }
}
