// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask lint`: the static checks against a compiler's code.
//!
//! Mechanism: clang compiles random kernels for each target. The example `alarms` of `vkfd-lint`
//! checks them, where a finding is a false alarm, and takes waits and wait states away in turn.

mod program;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use anyhow::{ensure, Context, Result};
use vkfd_targets::Target;

use program::Random;
use xtask_base::{cargo, tree, Verdict};

/// Check that `vkfd lint` is silent on a compiler's code, and notices what is taken out of it
///
/// Compiles random OpenCL kernels with clang-19 (Debian: clang-19, lld-19) for each target, in
/// files of eight, and checks them together with the client library's. Every finding is a
/// false alarm, or clang's bug. In a sample, each s_waitcnt and s_nop is taken away in turn.
///
/// With --table it compares the table of rules in docs/checking.md with the rules instead, and with
/// --write it writes it.
///
/// Exit status: 0 silent, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Kernels per target
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// Which random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only this target
    #[arg(long)]
    target: Option<String>,
    /// Take waits away in each N-th kernel
    #[arg(long, default_value_t = 8)]
    remove: usize,
    /// Print each removal that is not noticed and whose neighbours do not say why
    #[arg(long)]
    show: bool,
    /// Compare the table of rules in the page
    #[arg(long)]
    table: bool,
    /// Write the table of rules into the page
    #[arg(long, requires = "table")]
    write: bool,
}

const KERNELS: u64 = 8;

pub fn run(args: &Args) -> Result<Verdict> {
    if args.table {
        let mut alarms = alarms()?;
        alarms.arg("--page").arg(tree::root().join("docs/checking.md"));
        if args.write {
            alarms.arg("--write");
        }
        let status = alarms.status().context("start the example")?;
        return Ok(verdict(status.success(), "the page has the rules", "the page differs from the rules"));
    }
    let build = tree::target().join("lint");
    fs::create_dir_all(&build).with_context(|| format!("make {}", build.display()))?;
    let targets: Vec<Target> = Target::ALL
        .into_iter()
        .filter(|target| args.target.as_deref().is_none_or(|name| name == target.name()))
        .collect();
    ensure!(!targets.is_empty(), "no target has that name");
    let files = args.count.div_ceil(KERNELS);
    let mut jobs = Vec::new();
    for n in 0..files {
        for (of, target) in (0..).zip(&targets) {
            let seed = args.seed.wrapping_mul(1 << 32).wrapping_add(n * 8 + of);
            jobs.push((*target, seed, build.join(format!("{}-{seed:x}.co", target.name()))));
        }
    }
    let objects = compile(&jobs)?;
    let kernels = tree::root().join("kernels/code");
    let own = targets.iter().map(|target| kernels.join(target.name()).with_extension("co"));
    let mut alarms = alarms()?;
    alarms.args(["--remove", &args.remove.to_string()]);
    if args.show {
        alarms.arg("--show");
    }
    let list = build.join("objects");
    let all: Vec<String> = objects.iter().cloned().chain(own).map(|path| path.display().to_string()).collect();
    fs::write(&list, all.join("\n"))?;
    let status = alarms.arg("--list").arg(&list).status().context("start the example")?;
    let silent = format!("silent on {} kernels for each of {} targets", files * KERNELS, targets.len());
    Ok(verdict(status.success(), &silent, "findings in a compiler's code, or removals that are not noticed: see above"))
}

fn alarms() -> Result<Command> {
    let mut alarms = Command::new(cargo::example("alarms")?);
    alarms.current_dir(tree::root());
    Ok(alarms)
}

fn verdict(good: bool, clean: &str, finding: &str) -> Verdict {
    if good {
        Verdict::Clean(clean.into())
    } else {
        Verdict::Findings(vec![finding.into()])
    }
}

/// Compiles a file for each job. Some statements make clang give up on a file in rare mixtures;
/// such a file is left out, and more than a tenth of them is an error.
fn compile(jobs: &[(Target, u64, PathBuf)]) -> Result<Vec<PathBuf>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeSet::new());
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((target, seed, to)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match one(*target, *seed, to) {
                        Ok(()) => drop(done.lock().map(|mut done| done.insert(to.clone()))),
                        Err(error) => drop(failed.lock().map(|mut failed| failed.push(format!("{error:#}")))),
                    }
                }
            });
        }
    });
    let (done, failed) = (done.into_inner().unwrap_or_default(), failed.into_inner().unwrap_or_default());
    if let Some(first) = failed.first() {
        println!("clang gave up on {} of {} files, the first: {first}", failed.len(), jobs.len());
    }
    ensure!(failed.len() * 10 <= jobs.len(), "clang-19 (Debian: apt-get install clang-19 lld-19) fails too often");
    Ok(done.into_iter().collect())
}

fn one(target: Target, seed: u64, to: &Path) -> Result<()> {
    let (text, options) = program::file(&mut Random::new(seed), target, KERNELS);
    let source = to.with_extension("cl");
    fs::write(&source, text).with_context(|| format!("write {}", source.display()))?;
    let mut clang = Command::new("clang-19");
    clang.args(["-x", "cl", "-cl-std=CL2.0", "-target", "amdgcn-amd-amdhsa", "-nogpulib", "-w"]);
    clang.args(["-Xclang", "-fdeclare-opencl-builtins", "-Xclang", "-finclude-default-header"]);
    clang.args(["-mcode-object-version=5", "-fuse-ld=lld-19", "-ferror-limit=2"]);
    clang.arg(format!("-mcpu={}", target.name())).args(&options).arg("-o").arg(to).arg(&source);
    let output = clang.output().context("run clang-19 (Debian: apt-get install clang-19 lld-19)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let first: Vec<&str> = text.lines().filter(|line| line.contains("error")).take(2).collect();
    ensure!(output.status.success(), "{}: {}", source.display(), first.join("; "));
    Ok(())
}
