// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm amdgpu`: a guest with an unmodified kernel whose driver is AMD's own, on vkfd's
//! GPU as a PCI device.
//!
//! Mechanism: the kernel and its modules come from the distribution ([`parts`]). A boot
//! ([`machine`]) has `vkfd-pci-gpu` beside QEMU, loads amdgpu.ko, and runs [`programs`]. Four sides
//! are looked at: the kernel's log, the programs' output, the [`topology`] beside vkfd's, and the
//! device's account of itself. That has the last accesses, which name what a driver that hangs
//! waits for.

mod bench;
mod calls;
mod machine;
pub mod others;
mod parts;
mod programs;
mod scenarios;
mod series;
mod topology;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use vkfd_guest::{Ending, Record, Stream};

use super::programs::{Programs, SCENARIOS};
use super::progress::minutes;
use super::Flavor;
use bench::Bench;
use machine::{Machine, Ran, Wanted};
use series::Series;
use xtask_base::cargo::Build;
use xtask_base::debian;
use xtask_base::{tree, Verdict};
use xtask_clients::rocminfo;

/// A guest with a stock kernel whose own amdgpu.ko binds to vkfd's GPU as a PCI device
///
/// The first run gets QEMU 11.1 and a kernel (290 MB) from the distribution's newer suites and
/// unpacks them into ~/.cache/vkfd; no root is needed for that. Firmware files and VBIOS are
/// generated. A boot takes some minutes without KVM. Without a command, one boot does all of it:
/// rocminfo, programs, the calls of `compare`, and the scenario suite.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// More parameters for the driver, as `sched_policy=2` (queues without its scheduler)
    #[arg(long, global = true, value_name = "WORDS", default_value = "", hide_default_value = true)]
    parameters: String,
    /// Name the files of the boot also when all is well: the kernel's log, the device's log
    #[arg(long, global = true)]
    keep_log: bool,
    /// Build a kernel with this folder's patches, or this patch, and boot it (docs/series.md)
    #[arg(long, global = true, value_name = "DIR")]
    series: Option<PathBuf>,
    /// With KASAN and lockdep; needs --series, and is several times slower
    #[arg(long, global = true, requires = "series")]
    debug: bool,
}

impl Args {
    fn series(&self) -> Option<Series> {
        let flavor = if self.debug { Flavor::Debug } else { Flavor::Plain };
        self.series.as_ref().map(|path| Series { path: path.clone(), flavor })
    }
}

#[derive(Subcommand, Clone, PartialEq, Eq)]
enum Action {
    /// The driver probes; its rings work; its topology is compared with vkfd's
    Probe {
        /// Write docs/amdgpu-topology.md
        #[arg(long)]
        write: bool,
    },
    /// The same, and the distribution's rocminfo, unmodified
    Rocminfo,
    /// The same, and programs: scattered pages, SVM, ROCR's copies, HIP's copies and kernels, pages
    /// that move under running kernels
    Programs {
        /// Only programs whose command contains this
        #[arg(default_value = "", hide_default_value = true)]
        filter: String,
    },
    /// The same, and the scenario suite
    Scenarios {
        /// Only scenarios whose name contains this
        filter: Option<String>,
    },
    /// The same, rocminfo, and calls on both drivers, right and wrong ones: errors and results
    Compare {
        /// Write docs/amdgpu-calls.md
        #[arg(long)]
        write: bool,
        /// Keep what each driver said in this directory
        #[arg(long, value_name = "DIR")]
        keep: Option<PathBuf>,
        /// Boot nothing: compare what an earlier run has kept in this directory
        #[arg(long, value_name = "DIR", conflicts_with = "programs")]
        from: Option<PathBuf>,
        /// Programs, too: those whose command contains this
        #[arg(long, value_name = "FILTER")]
        programs: Option<String>,
    },
    /// `vkfd bench` on AMD's driver, and with --series on a driver that has batches
    Bench {
        /// What `vkfd bench` is given
        #[arg(default_value = "userptr --quick", value_name = "ARGUMENTS")]
        arguments: String,
    },
    /// Only get QEMU and the kernel
    Setup,
}

/// What the driver says when it is done.
const INITIALIZED: &str = "Initialized amdgpu";
/// The driver's words for a device that does not answer, and for programs' faults.
const DRIVER_SIGNS: [&str; 4] = ["timeout", "timed out", "page fault", "failed to init"];
/// What driver and device say of programs' faults.
const FAULT_SIGNS: [&str; 4] =
    ["retry page fault", "a program's queue has halted", "Illegal opcode in command stream", "sq_intr: error"];
/// Registers that the driver reads and the device does not model.
const UNMODELLED: &str = "asic/unmodelled.txt";
/// Shows the files that programs open.
const DEVICES: &str = "ls -l /dev/kfd /dev/dri/renderD128";
/// A driver that goes to sleep while it still takes a process apart warns of that.
const SETTLE: &str = "while [ -n \"$(ls /sys/class/kfd/kfd/proc)\" ]; do sleep 0.2; done; sleep 1";
/// Accesses that are shown of a guest that did not come to its end.
const LAST: usize = 24;
/// Time for the scenario suite.
const SUITE_SECONDS: u64 = 1800;
/// Lets scenarios make allocations fail that may wait, which are most, without a word in the log.
const FAILURES: &str = "cd /sys/kernel/debug/failslab && \
                        echo N >ignore-gfp-wait && echo 0 >verbose";
const ROCMINFO: &str = "/usr/bin/rocminfo";

/// What one boot does beside the driver's probe.
#[derive(Default)]
struct Plan<'a> {
    /// Names the boot's files.
    name: &'static str,
    rocminfo: bool,
    /// Programs whose command contains this.
    programs: Option<&'a str>,
    /// The command that makes calls for the comparison.
    calls: Option<String>,
    /// The command that runs scenarios.
    scenarios: Option<String>,
}

impl<'a> Plan<'a> {
    fn of(action: Option<&'a Action>) -> Self {
        let suite = |arguments: &str| Some(format!("VKFD_DEVICE=/dev/kfd {} {arguments}", SCENARIOS.name));
        let calls = || suite("calls");
        match action {
            None => {
                Self { name: "all", rocminfo: true, programs: Some(""), calls: calls(), scenarios: suite("run --json") }
            }
            Some(Action::Probe { .. } | Action::Bench { .. } | Action::Setup) => {
                Self { name: "probe", ..Self::default() }
            }
            Some(Action::Rocminfo) => Self { name: "rocminfo", rocminfo: true, ..Self::default() },
            Some(Action::Programs { filter }) => Self { name: "programs", programs: Some(filter), ..Self::default() },
            Some(Action::Scenarios { filter }) => {
                let filter = filter.as_deref().unwrap_or_default();
                let scenarios = suite(format!("run --json {filter}").trim());
                Self { name: "scenarios", scenarios, ..Self::default() }
            }
            Some(Action::Compare { programs, .. }) => {
                let programs = programs.as_deref();
                Self { name: "compare", rocminfo: true, programs, calls: calls(), ..Self::default() }
            }
        }
    }

    /// Whether programs fault on purpose, and look at its end themselves.
    fn faults(&self) -> bool {
        self.calls.is_some() || self.scenarios.is_some()
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let action = args.action.as_ref();
    if let Some(Action::Compare { write, from: Some(directory), .. }) = action {
        return compare_kept(directory, *write);
    }
    let series = args.series();
    if action == Some(&Action::Setup) {
        let (parts, kernel) = series.as_ref().map_or_else(parts::get, Series::get)?;
        let (qemu, version, count) = (parts.qemu_version, kernel.version, kernel.modules.len());
        return Ok(Verdict::Clean(format!("QEMU {qemu} and Linux {version} with {count} modules are there")));
    }
    if let Some(Action::Bench { arguments }) = action {
        return Bench { arguments, parameters: &args.parameters }.run(series.as_ref());
    }
    let plan = Plan::of(action);
    let mut commands = vec![(DEVICES, 60), (topology::SHOW, 60)];
    let mut files: Vec<PathBuf> = Vec::new();
    if plan.rocminfo {
        debian::install(&["rocminfo"])?;
        commands.push(("rocminfo", 120));
        files.push(ROCMINFO.into());
    }
    let suite = match plan.faults() {
        true => Some(Programs::build(Build::of_checks()?, &[SCENARIOS])?.path(SCENARIOS)?.to_owned()),
        false => None,
    };
    files.extend(suite.clone());
    let runs = plan.programs.map_or(Ok(Vec::new()), |filter| programs::runs(filter, series.is_some()))?;
    let libraries = if runs.is_empty() { &[][..] } else { &[Path::new(programs::COMPILER)] };
    for run in &runs {
        commands.push((run.command, run.seconds));
        if !files.contains(&run.program) {
            files.push(run.program.clone());
        }
    }
    if plan.faults() && series.is_some() {
        commands.push((FAILURES, 60));
    }
    for command in [&plan.calls, &plan.scenarios].into_iter().flatten() {
        commands.push((command, SUITE_SECONDS));
    }
    commands.push((SETTLE, 60));
    let machine = Machine::new(series.as_ref())?;
    println!("Linux {} with its own amdgpu.ko, in QEMU {}", machine.kernel.version, machine.parts.qemu_version);
    let (name, parameters) = (plan.name, args.parameters.as_str());
    let wanted = Wanted { name, parameters, programs: &files, libraries, commands: &commands, ..Wanted::default() };
    let ran = machine.boot(&wanted, |record| {
        show(record);
        true
    })?;
    println!("  from power-on to the end {}; {}", minutes(ran.outcome.took), ran.summary.counts);
    let mut findings = findings(&ran, &commands, plan.faults());
    findings.extend(unmodelled(&ran)?);
    let shown = output(&ran, topology::SHOW);
    let write = action == Some(&Action::Probe { write: true });
    let differences = topology::compare(&shown, &machine.topology()?, &machine.kernel.version, write)?;
    if series.is_none() {
        findings.extend(differences);
    } else {
        // Patches may change what a topology has.
        differences.iter().for_each(|difference| println!("  {difference}"));
    }
    for run in &runs {
        let last = output(&ran, run.command).last().copied();
        if last != Some(run.last) {
            findings.push(format!("{}: its last line is {last:?} and not {:?}", run.command, run.last));
        }
    }
    if let (Some(command), Some(program)) = (&plan.calls, &suite) {
        let (write, keep) = match action {
            Some(Action::Compare { write, keep, .. }) => (*write, keep.as_deref()),
            _ => (false, None),
        };
        let amd = output(&ran, command);
        let text = calls::of_vkfd(program)?;
        if let Some(directory) = keep {
            fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
            fs::write(directory.join("amd"), amd.join("\n")).context("keep what AMD's driver said")?;
            fs::write(directory.join("vkfd"), &text).context("keep what vkfd's driver said")?;
        }
        let (amd, vkfd) = (calls::lines(amd.into_iter()), calls::lines(text.lines()));
        findings.extend(calls::compare(&amd, &vkfd, &machine.kernel.version, write)?);
    }
    if let Some(command) = &plan.scenarios {
        let filtered = matches!(action, Some(Action::Scenarios { filter: Some(_) }));
        let whole = !filtered && series.is_none();
        findings.extend(scenarios::judge(&output(&ran, command), whole, series.is_some())?);
    }
    if plan.rocminfo {
        let agents = output(&ran, "rocminfo").iter().filter(|line| rocminfo::is_agent(line, "gfx90a")).count();
        println!("  rocminfo shows {agents} agent gfx90a");
        if agents != 1 {
            findings.push(format!("rocminfo shows {agents} agents gfx90a"));
        }
    }
    if args.keep_log || !findings.is_empty() {
        println!("  logs are in {}", ran.directory.display());
    }
    Ok(if findings.is_empty() {
        Verdict::Clean(format!("{name}: AMD's driver of Linux {} runs on the device", machine.kernel.version))
    } else {
        Verdict::Findings(findings)
    })
}

/// Compares what both drivers have said before.
fn compare_kept(directory: &Path, write: bool) -> Result<Verdict> {
    let read = |name: &str| {
        let file = directory.join(name);
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    };
    let (amd, vkfd) = (read("amd")?, read("vkfd")?);
    let (amd, vkfd) = (calls::lines(amd.lines()), calls::lines(vkfd.lines()));
    let (_, kernel) = parts::get()?;
    let findings = calls::compare(&amd, &vkfd, &kernel.version, write)?;
    Ok(if findings.is_empty() {
        Verdict::Clean("all differences are agreed".into())
    } else {
        Verdict::Findings(findings)
    })
}

fn show(record: &Record) {
    match record {
        Record::Output { program, line, .. } if program.contains(SCENARIOS.name) => {
            match scenarios::Scenario::read(line) {
                Some(scenario) => println!("    {}", scenario.line()),
                // A call.
                None if line.starts_with('{') => {}
                None => println!("    {line}"),
            }
        }
        Record::Booted { release } => println!("  booted {release}"),
        Record::Loaded { module, error: None } if module == parts::DRIVER => println!("  {module} is loaded"),
        Record::Output { program, line, .. } if ![topology::SHOW, "rocminfo"].contains(&program.as_str()) => {
            println!("    {line}");
        }
        Record::Ended { program, ending, seconds } => {
            let name = match program.as_str() {
                topology::SHOW => "the topology",
                SETTLE => "all processes are gone",
                FAILURES => "allocations can be made to fail",
                program => program,
            };
            println!("  {name}: {ending} ({seconds:.1} s)");
        }
        _ => {}
    }
}

/// What a command has printed.
fn output<'a>(ran: &'a Ran, command: &str) -> Vec<&'a str> {
    let lines = ran.outcome.records.iter().filter_map(|record| match record {
        Record::Output { program, stream: Stream::Out, line } if program == command => Some(line.as_str()),
        _ => None,
    });
    lines.collect()
}

/// What is wrong with the guest and with the device. Programs' page faults are, unless they are
/// made on purpose.
fn findings(ran: &Ran, commands: &[(&str, u64)], faults: bool) -> Vec<String> {
    let on_purpose = |line: &str| faults && FAULT_SIGNS.iter().any(|sign| line.contains(sign));
    let mut findings = Vec::new();
    let records = &ran.outcome.records;
    for record in records {
        match record {
            Record::Broken { error } => findings.push(format!("the guest could not go on: {error}")),
            Record::Loaded { module, error: Some(error) } => findings.push(format!("{module}: {error}")),
            Record::Ended { program, ending, .. } if *ending != Ending::Status(0) => {
                findings.push(format!("{program} {ending}"));
            }
            _ => {}
        }
    }
    for (command, _) in commands {
        if !records.iter().any(|record| matches!(record, Record::Ended { program, .. } if program == command)) {
            findings.push(format!("the guest did not come to {command}"));
        }
    }
    if records.last() != Some(&Record::Finished) {
        findings.push(format!("the guest did not come to its end: {:?} {}", ran.outcome.end, ran.outcome.complaints));
        let last = &ran.summary.last;
        let steps = last.get(last.len().saturating_sub(LAST)..).unwrap_or_default();
        findings.push(format!("the driver's last accesses:\n    {}", steps.join("\n    ")));
    }
    if !ran.outcome.console.contains(INITIALIZED) {
        findings.push(format!("the kernel's log has no \"{INITIALIZED}\""));
    }
    let wrong = |line: &&str| {
        let driver = line.contains("amdgpu") && DRIVER_SIGNS.iter().any(|sign| line.contains(sign));
        let kernel = ["Oops", "BUG:", "WARNING:", "*ERROR*", "Call Trace"].iter().any(|sign| line.contains(sign));
        (driver || kernel) && !on_purpose(line)
    };
    findings.extend(ran.outcome.console.lines().filter(wrong).map(|line| format!("the kernel: {}", line.trim())));
    findings.extend(ran.troubles.iter().filter(|trouble| !on_purpose(trouble)).cloned());
    findings.extend(ran.summary.halted.iter().map(|ring| format!("{ring} stands still")));
    findings
}

/// Lines of a file without comments.
fn listed(path: &str) -> Result<Vec<String>> {
    let file = tree::root().join(path);
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(Into::into).collect())
}

/// Registers that were read, are not modelled, and are not in the list of such.
fn unmodelled(ran: &Ran) -> Result<Vec<String>> {
    let known: BTreeSet<String> = listed(UNMODELLED)?.into_iter().collect();
    println!(
        "  {} registers are read and not modelled; {UNMODELLED} has {}",
        ran.summary.unmodelled.len(),
        known.len()
    );
    let new = ran.summary.unmodelled.difference(&known);
    Ok(new.map(|name| format!("register {name} is read, not modelled, and not in {UNMODELLED}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_registers_is_there() {
        assert!(listed(UNMODELLED).is_ok_and(|names| !names.is_empty()));
    }
}
