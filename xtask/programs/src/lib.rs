// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask programs`: test programs that nobody here wrote, under `vkfd run`.
//!
//! Mechanism: a [`Suite`] says where it comes from, how a program of it is compiled, and how the
//! program's own output is read. Four suites have no package: their user builds them ([`built`]).
//! The expected end of each case stands in `xtask/programs/SUITE.toml` ([`expected`]); a case that
//! ends otherwise, better or worse, is a finding. Programs are compiled once a target and kept in
//! `~/.cache/vkfd/programs` ([`cache`]). Negative controls run some of the programs on a machine
//! that is broken on purpose ([`controls`]). PyTorch is built from its source first ([`pytorch`]).
//!
//! Limits: only programs that the expectation file names are run, unless `--only` asks for others.
//! The packages come from Debian 12 and from Debian 13, in a root of its own ([`root`]).

mod built;
pub mod cache;
mod catch;
mod checked;
mod controls;
mod cts;
mod expected;
mod frameworks;
mod gcc_torture;
mod ggml;
mod ggml_output;
mod gtest;
mod guest;
mod hip_catch;
mod hip_samples;
mod iree;
mod kfdtest;
mod machine;
mod memory;
mod monitors;
mod opencl_cts;
mod piglit;
mod place;
mod pytest;
mod pytorch;
mod ran;
mod report;
mod results;
mod rocm_examples;
mod rocm_libraries;
pub mod root;
mod runtimes;
mod select;
mod session;
mod source;
mod suite;
mod thrust;
mod tinygrad;
mod tinygrad_models;
mod triton;
mod unit;
mod whisper;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use self::cache::Cache;
use self::checked::Checks;
use self::expected::Expectations;
use self::guest::Guest;
use self::machine::Machine;
use self::memory::Memory;
use self::place::Place;
use self::report::Report;
use self::select::{Selection, Shard};
use self::session::Session;
use self::source::{Found, Places, Source, Unpacked};
use self::suite::Suite;
use self::unit::Observed;
use xtask_base::debian;
use xtask_base::pattern::matches;
use xtask_base::Verdict;
use xtask_vm::others::Like;

/// Run test programs that others wrote under `vkfd run`, and compare with the expectations
///
/// Installs Debian packages that are missing (as root), and takes the suites' sources from Debian,
/// `--sources` or `--built`. Compiles the programs that xtask/programs/SUITE.toml names, and runs
/// each on a machine of its own. The program's own output has the verdict. A case that ends
/// otherwise than that file says, better or worse, is a finding.
///
/// Exit status: 0 all ended as expected, 1 findings, 2 a suite that was asked for cannot be had
/// here.
#[derive(clap::Args)]
pub struct Args {
    /// Which suites: all whose source is here by default
    suites: Vec<String>,
    /// Only on these targets [default: those of each suite]
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Only programs whose name matches (`*` stands for anything), also such as the expectation
    /// file does not name
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Only a selection of each suite, on its first target: a minute or two each
    #[arg(long, conflicts_with = "only")]
    short: bool,
    /// Only part I of N of each suite's programs
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Instead of the suite that is named, run a script of Python in its root
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "short", "shard", "list", "propose", "json"])]
    script: Option<PathBuf>,
    /// Where the suites' sources are: archives or checkouts [default:
    /// ~/.cache/vkfd/programs/sources]
    #[arg(long, value_name = "DIRECTORY", env = "VKFD_PROGRAM_SOURCES")]
    sources: Option<PathBuf>,
    /// Build the suite that is named from its source: `pytorch`, in some hours. A run that is ended
    /// is gone on with by the next one
    #[arg(long, conflicts_with_all = ["built", "only", "short", "shard", "script", "list", "propose", "json", "guest", "controls"])]
    build: bool,
    /// Where the suite that is named was built by its own README; for suites that no package has
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "guest")]
    built: Option<PathBuf>,
    /// Begin no program of a suite after so long [default: what the suite says]
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Programs at the same time [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Write what was seen to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fetch the packages of suites that nobody names, too: some 20 GB unpacked
    #[arg(long)]
    fetch: bool,
    /// Say what there is, and run nothing; sources are fetched
    #[arg(long)]
    list: bool,
    /// Print what was seen in the form of an expectation file
    #[arg(long)]
    propose: bool,
    /// Run them in a guest, on the kernel module. `cargo xtask vm setup` comes first
    #[arg(long, conflicts_with = "jobs")]
    guest: bool,
    /// In the guest, keep their pages moving: to swap and back, by compaction, by merging (KSM)
    #[arg(long, requires = "guest")]
    pressure: bool,
    /// Run them in a guest on AMD's own driver, on the device of `cargo xtask vm amdgpu`
    #[arg(long, conflicts_with_all = ["guest", "jobs", "controls", "check", "memory"])]
    amdgpu: bool,
    /// With --amdgpu, build a kernel with this folder's patches, or this patch (docs/series.md)
    #[arg(long, value_name = "DIR", requires = "amdgpu")]
    series: Option<PathBuf>,
    /// With --amdgpu, more parameters for the driver, as `sched_policy=2`
    #[arg(long, value_name = "WORDS", requires = "amdgpu", default_value = "", hide_default_value = true)]
    parameters: String,
    /// What the programs' device memory is; for suites of packages of a newer Debian
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    memory: Memory,
    /// Look for bugs in the programs' kernels, as `vkfd run --check LIST` does; each is a finding
    ///
    /// Programs run at least ten times as long. The file SUITE.accepted beside the expectations
    /// names those that are known.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["guest", "controls"])]
    check: Option<String>,
    /// Print docs/results.md and the table of README.md, made from xtask/programs/results.toml; run
    /// nothing
    #[arg(long, conflicts_with_all = ["list", "controls", "propose", "json"])]
    table: bool,
    /// With --table, write both
    #[arg(long, requires = "table")]
    write: bool,
    /// Run the negative controls instead: machines that are broken must be noticed
    #[arg(long, conflicts_with_all = ["only", "short", "shard", "list", "propose", "json", "guest", "memory"])]
    controls: bool,
    /// A vkfd that is built already
    #[arg(long, value_name = "FILE", hide = true)]
    vkfd: Option<PathBuf>,
}

impl Args {
    /// The guest that is asked for.
    fn like(&self) -> Like {
        match self.amdgpu {
            true => Like::Amd { series: self.series.clone(), parameters: self.parameters.clone() },
            false => Like::Vkfd { pressure: self.pressure, parameters: self.memory.parameters() },
        }
    }
}

const SUITES: &[&dyn Suite] = &[
    &rocm_examples::RocmExamples,
    &hip_samples::HipSamples,
    &hip_catch::HipCatch,
    &gcc_torture::GccTorture,
    &kfdtest::Kfdtest,
    &runtimes::Runtimes,
    &monitors::Monitors,
    &opencl_cts::OpenclCts,
    &piglit::Piglit,
    &rocm_libraries::ROCRAND,
    &rocm_libraries::HIPRAND,
    &rocm_libraries::ROCPRIM,
    &rocm_libraries::ROCTHRUST,
    &rocm_libraries::HIPCUB,
    &rocm_libraries::ROCBLAS,
    &rocm_libraries::ROCFFT,
    &rocm_libraries::HIPBLAS,
    &rocm_libraries::ROCSOLVER,
    &rocm_libraries::HIPSOLVER,
    &rocm_libraries::ROCSPARSE,
    &rocm_libraries::HIPSPARSE,
    &rocm_libraries::HIPFFT,
    &rocm_libraries::MIOPEN,
    &rocm_libraries::ROCRTST,
    &tinygrad::HARDWARE,
    &tinygrad::BACKEND,
    &ggml::Ggml,
    &whisper::Whisper,
    &tinygrad_models::TinygradModels,
    &triton::Triton,
    &iree::Iree,
    &frameworks::CUPY,
    &frameworks::CUPY_OWN,
    &frameworks::ONNXRUNTIME,
    &frameworks::TENSORFLOW,
    &frameworks::JAX,
    &frameworks::TRANSFORMERS,
    &frameworks::DIFFUSERS,
    &frameworks::STABLE_DIFFUSION,
    &frameworks::PYTORCH,
    &frameworks::PYTORCH_OWN,
    &rocm_libraries::RCCL,
    &rocm_libraries::RCCL_PROCESSES,
    &rocm_libraries::RCCL_FOUR,
];

/// A suite with its sources and expectations.
struct Ready {
    suite: &'static dyn Suite,
    found: Unpacked,
    expectations: Expectations,
}

/// What is wrong with docs/results.md and the table of README.md.
pub fn check_results() -> Result<Vec<String>> {
    results::check(false)
}

pub fn run(args: &Args) -> Result<Verdict> {
    if args.table {
        if args.write {
            results::check(true)?;
        } else {
            print!("{}", results::text()?);
        }
        return Ok(Verdict::Clean("docs/results.md and the table of README.md".into()));
    }
    for name in &args.suites {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name()).collect();
        ensure!(names.contains(&name.as_str()), "{name:?} is none of {}", names.join(", "));
    }
    let is_named = |suite: &&dyn Suite| args.suites.iter().any(|name| name == suite.name());
    if args.built.is_some() {
        let of: Vec<_> = SUITES.iter().filter(|suite| suite.source().is_built()).map(|suite| suite.name()).collect();
        let is_one = args.suites.len() == 1 && args.suites.iter().all(|name| of.contains(&name.as_str()));
        ensure!(is_one, "--built is where one of these was built, which is to be named: {}", of.join(", "));
    }
    let cache = Cache::new()?;
    if args.build {
        ensure!(args.suites == [pytorch::NAME], "--build is for {}, which is to be named", pytorch::NAME);
        return pytorch::build(&cache, args.jobs);
    }
    let built = args.built.as_deref().map(std::path::absolute).transpose().context("make --built absolute")?;
    let sources = args.sources.clone().unwrap_or_else(|| cache.sources());
    let place = match (args.guest, args.amdgpu) {
        (true, _) => Place::Guest,
        (_, true) => Place::Amdgpu,
        _ => Place::Process,
    };
    let mut ready = Vec::new();
    for suite in SUITES.iter().copied().filter(|suite| args.suites.is_empty() || is_named(suite)) {
        let source = suite.source();
        let is_ours = matches!(
            source,
            Source::Root { .. }
                | Source::WheelInRoot { .. }
                | Source::LibraryInRoot { .. }
                | Source::BuiltLibrary { .. }
        );
        if args.memory != Memory::Device && !is_ours {
            ensure!(!is_named(&suite), "{}: its programs' memory is as they ask for it", suite.name());
            continue;
        }
        if suite.runs_at(place).is_empty() {
            ensure!(!is_named(&suite), "{}: it has no programs for such a guest", suite.name());
            println!("{}: left out: it has no programs for such a guest", suite.name());
            continue;
        }
        if matches!(source, Source::Debian { .. } | Source::Upstream { .. }) {
            // What unpacks it is among them.
            debian::install(suite.packages())?;
        }
        let places = Places { sources: &sources, built: built.as_deref() };
        match source.find(&places, &cache, is_named(&suite) || args.fetch)? {
            Found::Here(found) => {
                let expectations = Expectations::read(suite.name())?.at(place, args.memory);
                if let Source::Built { how } | Source::BuiltInRoot { how, .. } = source {
                    if let Some(absent) = built::absent(suite, &found.source, how, &expectations)? {
                        println!("{absent}");
                    }
                }
                ready.push(Ready { suite, found, expectations });
            }
            Found::Missing(how) => {
                ensure!(!is_named(&suite), "{}: {how}", suite.name());
                println!("{}: left out: {how}", suite.name());
            }
        }
    }
    if args.list {
        for Ready { suite, found, expectations } in &ready {
            let units = suite.units(&found.source)?;
            let chosen = units.iter().filter(|unit| expectations.names_unit(unit)).count();
            let targets = suite.targets().join(", ");
            println!("{}: {}; {chosen} of {} programs; {targets}", suite.name(), suite.about(), units.len());
        }
        return Ok(Verdict::Clean(format!("{} suites", ready.len())));
    }
    for target in &args.targets {
        let has = ready.iter().any(|ready| ready.suite.targets_at(place).contains(&target.as_str()));
        ensure!(has, "{target}: none of these suites has programs for it");
    }
    let wanted: Vec<_> = ready.iter().flat_map(|ready| ready.suite.packages()).copied().collect();
    debian::install(&wanted)?;
    debian::install(args.memory.packages())?;
    if args.controls {
        let wanted =
            ready.iter().flat_map(|ready| ready.suite.controls()).flat_map(|control| control.memory.packages());
        debian::install(&wanted.copied().collect::<Vec<_>>())?;
        return controls::run(&ready, &cache, args.vkfd.as_deref());
    }
    let checks = args.check.clone().map(Checks);
    let is_here = place == Place::Process;
    let here = is_here.then(|| Machine::sound(args.vkfd.as_deref(), checks)).transpose()?;
    if args.script.is_some() {
        ensure!(is_here, "--script runs in the process");
        ensure!(ready.len() == 1, "--script runs in one suite's root, which is to be named");
    }
    let mut report = Report::default();
    for Ready { suite, found, expectations } in &ready {
        let short = if args.short { expectations.short.clone() } else { Vec::new() };
        let selection = Selection { only: args.only.clone(), short, shard: args.shard };
        let targets = suite.targets_at(place);
        let targets = if args.short && args.targets.is_empty() { &targets[..1] } else { targets };
        for target in targets {
            if !args.targets.is_empty() && !args.targets.iter().any(|wanted| wanted == target) {
                continue;
            }
            let patience = args.minutes.map_or(suite.budget(), |minutes| Duration::from_secs(60 * minutes));
            let guest = Machine::Guest(Guest::new(args.like()));
            let machine = here.as_ref().unwrap_or(&guest);
            let (suite, expected, cache) = (*suite, expectations, &cache);
            let Unpacked { source, root } = found;
            let root = root.as_deref();
            let (memory, observed) = (args.memory, Observed::default());
            let session = Session { suite, source, root, target, machine, expected, cache, patience, memory, observed };
            if let Some(script) = &args.script {
                let ran = session.script(script)?;
                eprint!("{}", ran.stderr);
                print!("{}", ran.stdout);
                return Ok(match ran.code {
                    Some(0) => Verdict::Clean(format!("{} on {target}", script.display())),
                    _ => Verdict::Findings(vec![ran.why()]),
                });
            }
            let seen = session.run(&selection, args.jobs.map(usize::from))?;
            report.add(suite, target, &seen, expectations, &selection);
        }
    }
    if args.propose {
        print!("{}", report.proposal());
    }
    if let Some(file) = &args.json {
        report.write_json(file)?;
    }
    print!("{}", report.table());
    Ok(report.verdict())
}
