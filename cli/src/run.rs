// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd run -- PROGRAM ARGUMENTS`: a program on a machine of its own.
//!
//! Mechanism: a private directory has KFD's and DRM's files in `/sys`, `/dev` and `/proc`. The
//! program runs with a library that leads these paths there and has the machine (the crate
//! `vkfd-preload`). This process waits for it, passes signals on to it, and removes the directory.

mod check;
mod directory;
mod explore;
mod forward;
mod library;
mod lines;
mod marks;
mod other_users;
pub mod preset;
mod profile;
mod program;
mod shared;
mod summary;
mod timeline;
mod tree;
mod wait;

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{ensure, Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use vkfd_gpu::{Schedule, Translate, VRAM_GRANULE};
use vkfd_host::description::{
    Description, ACQUIRED_FILE, DIRECTORY_VARIABLE, FINDINGS_VARIABLE, FORWARD_VARIABLE, LOG_LEVELS, LOG_VARIABLE,
    MACHINE_VARIABLE, OPENED_FILE, PROFILE_VARIABLE, SPIN_VARIABLE, TIMELINE_VARIABLE, TOOLS_VARIABLE,
    TRACE_JSON_VARIABLE, TRACE_VARIABLE, USED_FILE,
};
use vkfd_host::device_file::VRAM_ROOM;
use vkfd_host::{size, Source, Target};

use crate::report::Output;

use self::directory::PrivateDirectory;
use self::preset::Preset;

/// Exit codes of `env`, `nohup` and `timeout`: for this command's own failure, a program that
/// cannot be run, and one that does not exist.
pub const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("said").args(["trace", "profile", "fidelity"]).multiple(true)))]
pub struct RunArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// In a virtual machine whose virtio-gpu is `vkfd virtio-gpu`: run on the host's machine
    ///
    /// WHERE is the render node, by default the first that has one behind it, or the socket of
    /// `vkfd virtio-gpu --loopback`. That command has the options for GPUs.
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, conflicts_with_all = OF_THIS_PROCESS)]
    forward: Option<Option<PathBuf>>,
    /// Run on the GPUs of `vkfd serve NAME`, with the other programs there
    ///
    /// That command has the options for GPUs. These programs can pass memory to each other: HIP's
    /// IPC handles, exported buffers. SVM and XNACK are not offered.
    #[arg(long, value_name = "NAME", conflicts_with = "forward", conflicts_with_all = OF_THIS_PROCESS)]
    shared: Option<String>,
    /// Let AMD's runtime spin while it waits for the GPU, as it does beside hardware
    ///
    /// Otherwise a wait that asks for spinning sleeps after 200 us, because the GPU's threads want
    /// the processors. A thread of the runtime that repeats a wait for events (WAIT_EVENTS) without
    /// a new signal sleeps for a millisecond each time.
    #[arg(long)]
    spin: bool,
    /// At the end, show each kernel's cost: time, waves, instructions and bytes, and which
    /// instructions the slow reference engine executed, and why
    #[arg(long)]
    profile: bool,
    /// Afterwards, say which instructions executed only approximate hardware's, or are missing
    #[arg(long)]
    fidelity: bool,
    /// Record every call on the devices in FILE
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write when each call, kernel, copy, page fault, migration and eviction happened to FILE, for
    /// ui.perfetto.dev
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    timeline: Option<PathBuf>,
    /// Append a summary of the run to FILE, in Markdown, as GitHub's job summaries are: kernels,
    /// fidelity, faults
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Record as JSON, an object a line; say what `--profile` and `--fidelity` say as one object
    #[arg(long, requires = "said")]
    json: bool,
    /// Run the program in the usual order of its waves and in N others, until one changes what it
    /// prints
    ///
    /// The program has a bug then: it lacks a barrier, a wait, or an atomic operation. The exit
    /// code is 1 if that is found, and else the program's. Each run is as with `--schedule`, and
    /// what the program prints is not shown.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = [
        "schedule", "forward", "shared", "said", "timeline", "summary"])]
    explore: Option<u32>,
    #[command(flatten)]
    check: check::Args,
    /// The library to load, for tests
    #[arg(long, hide = true)]
    preload: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What a machine elsewhere cannot be told or asked.
const OF_THIS_PROCESS: [&str; 18] = [
    "preset",
    "gpus",
    "target",
    "vram",
    "svm_vram",
    "xnack",
    "threads",
    "cus",
    "strict",
    "no_translate",
    "check_translation",
    "perf_map",
    "schedule",
    "profile",
    "fidelity",
    "timeline",
    "summary",
    "checks",
];

/// What machine to make.
#[derive(clap::Args)]
pub struct MachineArgs {
    /// A machine by name, or a file that describes one (`vkfd targets --show default` is such a
    /// file); the options below change it
    #[arg(long, value_name = "NAME|FILE", value_parser = preset::Parser)]
    preset: Option<Preset>,
    /// GPUs [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    gpus: Option<u32>,
    /// The GPUs' target; `vkfd targets` lists them [default: gfx900]
    #[arg(long, value_parser = target())]
    target: Option<Target>,
    /// Memory of each GPU, such as 512M or 4G, 2M to 512G; the computer's is used as far as the
    /// program uses it [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = vram)]
    vram: Option<u64>,
    /// The part of this for managed memory (SVM). If it is too small for a program's data, the
    /// driver evicts data; code and buffers are not affected [default: all]
    #[arg(long, value_name = "SIZE", value_parser = vram)]
    svm_vram: Option<u64>,
    /// GPUs that can retry page faults; the program turns that on
    #[arg(long)]
    xnack: bool,
    /// Threads of each GPU that run a kernel: 1 for the same order each time [default: as many as
    /// there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Compute units of each GPU: programs that size their work by them do less of it with few
    /// [default: as many as the target's product has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(preset::MOST_UNITS)))]
    cus: Option<u32>,
    /// Where hardware does nothing and vkfd would be kinder, end the kernel with a message that
    /// names it: docs/rocm.md has the list
    #[arg(long)]
    strict: bool,
    /// Interpret all code of kernels, instead of translating what is hot to code of this processor:
    /// the same results, later
    #[arg(long, conflicts_with = "check_translation")]
    no_translate: bool,
    /// Have the reference engine repeat all that is translated: slow. Differences go to the log,
    /// and --profile counts them
    #[arg(long)]
    check_translation: bool,
    /// List translated code in /tmp/perf-PID.map, where perf finds the names of its samples
    #[arg(long)]
    perf_map: bool,
    /// In which order waves run: `usual`, or `random:N`, which is another one for each number N
    ///
    /// Results of loads arrive as late as the kernel's waits allow in that. The same number gives
    /// the same order: each GPU has one thread then, unless --threads says otherwise. The slow
    /// engine of --check runs the kernels. `vkfd run --explore` tries many.
    #[arg(long, value_name = "ORDER", value_parser = schedule)]
    schedule: Option<Schedule>,
}

/// Bytes in whole 2 MiB.
pub fn granules(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes != 0 && bytes % VRAM_GRANULE == 0 => Ok(bytes),
        _ => Err(format!("a size in whole {} is wanted", size::show(VRAM_GRANULE))),
    }
}

/// A GPU's memory: whole 2 MiB, as far as the machine has room.
fn vram(text: &str) -> Result<u64, String> {
    room(size::parse(text)?)
}

/// A number of bytes that a GPU's memory may have.
fn room(bytes: u64) -> Result<u64, String> {
    if bytes == 0 || bytes % VRAM_GRANULE != 0 || bytes > VRAM_ROOM {
        let (least, most) = (size::show(VRAM_GRANULE), size::show(VRAM_ROOM));
        return Err(format!("a GPU has {least} to {most} of memory, in whole {least}"));
    }
    Ok(bytes)
}

/// An order of waves.
fn schedule(text: &str) -> Result<Schedule, String> {
    text.parse().map_err(|_| "expected usual, or random:N with a number N".into())
}

/// The targets, so that completions offer them.
fn target() -> impl TypedValueParser<Value = Target> {
    let names = Target::ALL.map(|target| PossibleValue::new(target.name()).help(target.product()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Target>())
}

/// What is said in the environment and would fail only once the program runs.
fn check_environment() -> Result<()> {
    Source::Auto.or_from_environment()?;
    if let Some(level) = std::env::var_os(LOG_VARIABLE) {
        let known = level.to_str().is_some_and(|level| LOG_LEVELS.iter().any(|name| name.eq_ignore_ascii_case(level)));
        ensure!(known, "{LOG_VARIABLE}={level:?}: expected one of {}", LOG_LEVELS.join(", "));
    }
    Ok(())
}

impl MachineArgs {
    /// The machine in words.
    pub fn description(&self) -> Result<Description> {
        let mut machine = self.preset.as_ref().map_or_else(Description::default, |preset| preset.machine);
        machine.gpus = self.gpus.unwrap_or(machine.gpus);
        machine.target = self.target.unwrap_or(machine.target);
        machine.vram = self.vram.unwrap_or(machine.vram);
        machine.svm_vram = self.svm_vram.or(machine.svm_vram);
        machine.xnack |= self.xnack;
        machine.strict |= self.strict;
        machine.perf_map |= self.perf_map;
        machine.translate = match (self.check_translation, self.no_translate) {
            (true, _) => Translate::Checked,
            (false, true) => Translate::Off,
            (false, false) => machine.translate,
        };
        machine.schedule = self.schedule.unwrap_or(machine.schedule);
        let threads = if machine.schedule == Schedule::Usual { machine.threads } else { 1 };
        machine.threads = self.threads.map_or(threads, usize::from);
        machine.shape.units = self.cus.or(machine.shape.units);
        if let Some(units) = machine.shape.units {
            let most = machine.target.model().units;
            ensure!(units <= most, "{units} compute units: {} has {most}", machine.target);
        }
        Ok(machine)
    }
}

/// Where the library for programs would be, and whether it stays there after a run.
pub fn probe() -> Result<(PathBuf, bool)> {
    let directory = PrivateDirectory::new()?;
    library::find(None, directory.path()).map(|library| library.place())
}

/// Runs it. What fails before the program does has an exit code of its own.
pub fn run(args: &RunArgs) -> ExitCode {
    let failed = |code: u8, error: &anyhow::Error| {
        eprintln!("vkfd: {error:#}");
        ExitCode::from(code)
    };
    let [name, arguments @ ..] = &args.program[..] else { return ExitCode::from(FAILED) };
    // Before anything is made: a program that cannot be reached runs without a word of ours
    // otherwise.
    let program = match program::find(name) {
        Ok(program) => program,
        Err(error) => return failed(NOT_FOUND, &error),
    };
    if let Err(error) = program::check(&program) {
        return failed(CANNOT_RUN, &error);
    }
    if let Some(orders) = args.explore {
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        let bar = Output::new(false).progress("orders", u64::from(orders) + 2);
        let explored = explore::explore(orders, &own, args.program.len(), &bar);
        return explored.unwrap_or_else(|error| failed(FAILED, &error));
    }
    match start(args, &program, name, arguments) {
        Ok(code) => code,
        Err(error) => {
            let refused = error.downcast_ref::<wait::CannotStart>().is_some();
            failed(if refused { CANNOT_RUN } else { FAILED }, &error)
        }
    }
}

fn start(args: &RunArgs, program: &Path, name: &OsStr, arguments: &[OsString]) -> Result<ExitCode> {
    let forward = match (&args.forward, &args.shared) {
        (_, Some(name)) => Some(shared::find(name)?),
        (Some(place), None) => Some(forward::find(place.as_deref())?),
        (None, None) => None,
    };
    let machine = forward.as_ref().map_or_else(|| args.machine.description(), |(_, machine)| Ok(*machine))?;
    let machine = Description { checks: args.check.checks(), ..machine };
    // Read before the program runs: a file with an error would cost a run.
    let list = args.check.list()?;
    check_environment()?;
    vkfd_host::description::sabotage_from_environment()?;
    let size_signal = wait::ignore_size_signal();
    let directory = PrivateDirectory::new()?;
    let write = || tree::write(directory.path(), &machine, forward.is_none());
    let (library, written) =
        other_users::readable(|| (library::find(args.preload.as_deref(), directory.path()), write()));
    written.context("cannot write the machine's files")?;
    let library = library?;
    marks::prepare(directory.path()).context("cannot prepare the private directory")?;
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    let mut before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if let Some(runtime) = program::sanitizer(program).filter(|_| before.is_empty()) {
        before = runtime.into();
    }
    let preload = library.preload(directory.path(), Some(before));
    command.env("LD_PRELOAD", preload.context("cannot give the library another name")?);
    command.env(DIRECTORY_VARIABLE, directory.path()).env(MACHINE_VARIABLE, machine.to_string());
    // libudev asks the kernel whether a device's directory is in sysfs, and says "no device".
    command.env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0");
    command.env_remove(FORWARD_VARIABLE);
    if let Some((way, _)) = &forward {
        command.env(FORWARD_VARIABLE, way);
    }
    command.env_remove(TRACE_VARIABLE).env_remove(TRACE_JSON_VARIABLE);
    if let Some(trace) = &args.trace {
        let trace = std::path::absolute(trace)?;
        std::fs::write(&trace, "").with_context(|| format!("cannot write the trace {}", trace.display()))?;
        command.env(TRACE_VARIABLE, &trace);
        if args.json {
            command.env(TRACE_JSON_VARIABLE, "1");
        }
    }
    let costs = directory.path().join("profile");
    command.env_remove(PROFILE_VARIABLE);
    if args.profile || args.fidelity || args.summary.is_some() {
        profile::make(&costs).context("cannot make the profile's directory")?;
        command.env(PROFILE_VARIABLE, &costs);
    }
    let times = directory.path().join("timeline");
    command.env_remove(TIMELINE_VARIABLE);
    if args.timeline.is_some() || args.summary.is_some() {
        profile::make(&times).context("cannot make the timeline's directory")?;
        command.env(TIMELINE_VARIABLE, &times);
    }
    // Found out before the program runs, which may take hours.
    for file in [&args.timeline, &args.summary].into_iter().flatten() {
        let open = OpenOptions::new().create(true).append(true).open(file);
        open.with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.timeline.is_some() {
        let calls = times.join(timeline::CALLS);
        other_users::readable(|| std::fs::write(&calls, "")).context("cannot record calls")?;
        command.env(TRACE_VARIABLE, &calls).env(TRACE_JSON_VARIABLE, "1");
    }
    let findings = check::directory(directory.path());
    command.env_remove(FINDINGS_VARIABLE);
    if machine.checks.any() {
        profile::make(&findings).context("cannot make the directory for findings")?;
        command.env(FINDINGS_VARIABLE, &findings);
    }
    command.env_remove(SPIN_VARIABLE);
    if args.spin {
        command.env(SPIN_VARIABLE, "1");
    }
    if machine.checks.any() || !args.spin {
        command.env(TOOLS_VARIABLE, library.tools(directory.path()));
    }
    let wait::Ended { code, signal } =
        wait::run(command, size_signal).with_context(|| format!("cannot run {}", program.display()))?;
    let has = |mark: &str| marks::has(directory.path(), mark);
    let name = name.to_string_lossy();
    if !has(USED_FILE) {
        eprintln!("vkfd: {name} opened no device and read nothing of the machine's");
    } else if has(OPENED_FILE) && !has(ACQUIRED_FILE) {
        // A program that was ended may have waited for something else.
        let target = machine.target;
        match signal {
            Some(signal) => eprintln!("vkfd: {name} had opened /dev/kfd and used no GPU when signal {signal} ended it"),
            None => eprintln!(
                "vkfd: {name} opened /dev/kfd and used no GPU: its runtime may not know {target} (see `vkfd targets`)"
            ),
        }
    }
    if args.profile || args.fidelity {
        let report = profile::read(&costs).context("cannot read what the kernels have cost")?;
        if args.json {
            eprintln!("{}", profile::document(&report, args.profile, args.fidelity));
        }
        if args.profile && !args.json {
            eprint!("{}", profile::kernels(&report));
        }
        if args.fidelity && !args.json {
            eprint!("{}", profile::fidelity(&report));
        }
    }
    if args.timeline.is_some() || args.summary.is_some() {
        let recorded = timeline::Recorded::read(&times).context("cannot read what was recorded")?;
        let sums = recorded.sums();
        if let Some(path) = &args.timeline {
            recorded.write(path, machine.target.name())?;
            if sums.left_out != 0 {
                eprintln!("vkfd: {} has no room for {} later records", path.display(), sums.left_out);
            }
        }
        if let Some(path) = &args.summary {
            let report = profile::read(&costs).context("cannot read what the kernels have cost")?;
            let text = summary::text(&name, &machine, &report, &sums);
            let written =
                OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write the summary {}", path.display()))?;
        }
    }
    if machine.checks.any() {
        let code = args.check.report(list, &findings, &lines::Lines::read(program, machine.target), code)?;
        drop(directory);
        return Ok(code);
    }
    drop(directory);
    Ok(code)
}
