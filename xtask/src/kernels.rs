// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask kernels`: the code objects of the client library and of the benchmark, compiled
//! from their source.
//!
//! Mechanism: clang compiles each source for its processors, without any runtime's library, and
//! what a loader does not need is stripped. One version of clang, so that the same source gives the
//! same bytes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use vkfd_targets::Target;

use xtask_base::{tree, Verdict};

/// Compile the kernels of the client library and of `vkfd bench`, or compare them with the
/// tree's files
///
/// Compiles kernels/src/kernels.cl for each processor with clang-19 (Debian: clang-19, lld-19,
/// llvm-19), and writes kernels/code/PROCESSOR.co. The kernels of the client library's examples and
/// of the scenarios are compiled likewise. bench/src/compute/kernels/launch.cl and
/// bench/src/opencl/nine.cl are compiled for gfx900, to launch.co and nine.co beside them. With
/// --check it writes nothing and compares.
///
/// Exit status: 0 done, or equal; 1 differences; 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with the files in the tree instead of writing them
    #[arg(long)]
    check: bool,
}

/// Without SDWA: on the software GPU it costs steps of its own, hardware gains little by it.
const FLAGS: [&str; 16] = [
    "-x",
    "cl",
    "-cl-std=CL2.0",
    "-target",
    "amdgcn-amd-amdhsa",
    "-nogpulib",
    "-O2",
    "-mcode-object-version=4",
    "-fuse-ld=lld-19",
    "-Xclang",
    "-fdeclare-opencl-builtins",
    "-Xclang",
    "-finclude-default-header",
    "-Wall",
    "-mllvm",
    "-amdgpu-sdwa-peephole=0",
];

pub fn run(args: &Args) -> Result<Verdict> {
    let build = tree::target().join("kernels");
    fs::create_dir_all(&build).with_context(|| format!("make {}", build.display()))?;
    let kernels = tree::root().join("kernels");
    let of_client = Target::ALL.map(Target::name).map(|processor| {
        let place = kernels.join("code").join(processor).with_extension("co");
        (kernels.join("src/kernels.cl"), processor, place)
    });
    let bench = tree::root().join("bench/src/compute/kernels");
    let of_bench = (bench.join("launch.cl"), "gfx900", bench.join("launch.co"));
    let opencl = tree::root().join("bench/src/opencl");
    let of_opencl = (opencl.join("nine.cl"), "gfx900", opencl.join("nine.co"));
    let examples = tree::root().join("client/examples");
    let of_example = (examples.join("triple.cl"), "gfx900", examples.join("triple.gfx900.co"));
    let scenarios = tree::root().join("tests/scenarios/src/stir");
    let of_scenarios = (scenarios.join("stir.cl"), "gfx900", scenarios.join("stir.gfx900.co"));
    let objects: Vec<_> = of_client.into_iter().chain([of_bench, of_opencl, of_example, of_scenarios]).collect();
    let mut findings = Vec::new();
    for (source, processor, place) in &objects {
        let made = build.join(place.file_name().context("a file")?);
        compile(source, processor, &made)?;
        let code = fs::read(&made).with_context(|| format!("read {}", made.display()))?;
        if !args.check {
            fs::write(place, code).with_context(|| format!("write {}", place.display()))?;
        } else if fs::read(place).ok().as_deref() != Some(&code) {
            findings.push(format!("{} is not what its source gives", place.display()));
        }
    }
    if findings.is_empty() {
        Ok(Verdict::Clean(format!("{} code objects", objects.len())))
    } else {
        Ok(Verdict::Findings(findings))
    }
}

fn compile(source: &Path, processor: &str, to: &Path) -> Result<()> {
    let mut clang = Command::new("clang-19");
    // The source's directory, so that no path of this machine gets into the object.
    let (directory, name) = (source.parent().context("a directory")?, source.file_name().context("a file")?);
    clang.current_dir(directory).args(FLAGS).arg(format!("-mcpu={processor}")).arg("-o").arg(to).arg(name);
    finish(clang)?;
    let mut strip = Command::new("llvm-objcopy-19");
    strip.arg("--strip-all").arg(to);
    finish(strip)
}

fn finish(mut command: Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) => {
            ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        }
        Err(error) => bail!("cannot run {program}: {error} (Debian: apt-get install clang-19 lld-19 llvm-19)"),
    }
}
