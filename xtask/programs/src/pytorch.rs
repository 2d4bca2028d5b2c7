// SPDX-License-Identifier: GPL-2.0 OR MIT
//! PyTorch for ROCm, which no registry has, from Debian's source package.
//!
//! Mechanism: apt fetches the source of Debian 13's `pytorch`, with its signature. It is unpacked
//! once, and compiled in a root of sid, whose HIP has all the libraries that PyTorch wants. The
//! steps are `xtask/programs/pytorch/build.py`, which runs in the root: the fixes, the
//! configuration, the compiler's order. All state is below one directory of the cache. A run goes
//! on from the last one's objects, however that one ended.
//!
//! Lock: one run builds at a time ([`lock::hold`]). Pruning leaves the directory of a running build
//! alone ([`xtask_base::cache::used`]), and takes an unfinished one last.
//!
//! Limits: some three hours of a processor. The code is for one target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};

use super::cache::Cache;
use super::root::{Root, WORK};
use xtask_base::apt::Apt;
use xtask_base::made::once;
use xtask_base::{debian, lock, tree, venv, Verdict};

pub const NAME: &str = "pytorch";
/// What the source is from, and its version.
const SOURCE: (&str, &str, &str) = ("trixie", "pytorch", "2.6.0+dfsg-7");
/// What it is compiled in.
pub const ROOT: &str = "sid";
pub const PYTHON: &str = "3.13";
pub const WHEELS: &str = "pytorch.txt";
/// The compilers, and what PyTorch is compiled with.
pub const PACKAGES: &[&str] = &[
    "ccache",
    "cmake",
    "coreutils",
    "dash",
    "flatbuffers-compiler",
    "flatbuffers-compiler-dev",
    "g++",
    "grep",
    "hipcc",
    "libamdhip64-dev",
    "libconcurrentqueue-dev",
    "libcpp-httplib-dev",
    "libcpuinfo-dev",
    "libeigen3-dev",
    "libflatbuffers-dev",
    "libfmt-dev",
    "libfp16-dev",
    "libfxdiv-dev",
    "libhipblas-dev",
    "libhipblaslt-dev",
    "libhipcub-dev",
    "libhipfft-dev",
    "libhiprand-dev",
    "libhipsolver-dev",
    "libhipsparse-dev",
    "liblapack-dev",
    "libmiopen-dev",
    "libonnx-dev",
    "libopenblas-pthread-dev",
    "libprotobuf-dev",
    "libprotoc-dev",
    "libpsimd-dev",
    "libpthreadpool-dev",
    "librocblas-dev",
    "librocfft-dev",
    "librocprim-dev",
    "librocrand-dev",
    "librocsolver-dev",
    "librocsparse-dev",
    "librocthrust-dev",
    "libroctx-dev",
    "libsleef-dev",
    "ninja-build",
    "nlohmann-json3-dev",
    "protobuf-compiler",
    "pybind11-dev",
    "python3.13",
    "python3.13-dev",
    "rocm-cmake",
    "sed",
];
/// What makes the source from Debian's archives.
const TOOLS: &[&str] = &["dpkg-dev", "python3", "python3-venv"];
/// The steps, below `xtask/programs`.
const STEPS: &str = "xtask/programs/pytorch";
/// Compilers at a time: one takes up to 1.7 GB.
const JOBS: u16 = 2;

/// Where PyTorch is once it is built: a directory for `PYTHONPATH`.
pub fn library(cache: &Cache) -> Option<PathBuf> {
    let library = cache.build(NAME).join("library");
    library.join("torch/.whole").exists().then_some(library)
}

/// Builds it, or goes on.
pub fn build(cache: &Cache, jobs: Option<u16>) -> Result<Verdict> {
    debian::install(TOOLS)?;
    let state = cache.build(NAME);
    let _lock = lock::hold(&state, "cargo xtask programs pytorch --build")?;
    // The time of use is left in the directory, which may have been made just now.
    xtask_base::cache::used(&state);
    let root = Root::get(cache, ROOT, PACKAGES)?;
    let source = state.join("source");
    unpack(&state, &source)?;
    let library = state.join("library");
    let wheels = tree::root().join("xtask/programs").join(WHEELS);
    let text = fs::read_to_string(&wheels).with_context(|| format!("read {}", wheels.display()))?;
    once(&library, &format!("{PYTHON}\n{text}"), || venv::library(&library, PYTHON, &wheels))?;
    let steps = state.join("steps");
    fs::create_dir_all(&steps).with_context(|| format!("make {}", steps.display()))?;
    for file in fs::read_dir(tree::root().join(STEPS)).context("list the steps")? {
        let file = file?.path();
        let to = steps.join(file.file_name().context("a step without a name")?);
        fs::copy(&file, &to).with_context(|| format!("copy {}", file.display()))?;
    }
    let mut build = root.program(&state, &library);
    build.arg(format!("/usr/bin/python{PYTHON}")).arg(format!("{WORK}/steps/build.py"));
    build.arg(jobs.unwrap_or(JOBS).to_string());
    // Nothing of this machine's compilers is to be seen there.
    build.env("PYTHONPATH", "/source").env("PYTHONDONTWRITEBYTECODE", "1").env("LC_ALL", "C.UTF-8");
    let status = build.stdin(Stdio::null()).status().context("run unshare")?;
    xtask_base::cache::used(&state);
    Ok(match status.success() {
        true => Verdict::Clean(format!("{} is built: {}", SOURCE.1, library.display())),
        false => Verdict::Findings(vec![format!("{} is not built: what failed is above", SOURCE.1)]),
    })
}

/// The source, as Debian's package unpacks it.
fn unpack(state: &Path, source: &Path) -> Result<()> {
    let (suite, package, version) = SOURCE;
    // dpkg-source makes the directory, so that it is not the one with the stamp.
    let made = state.join("unpacked");
    let archives = made.join("apt");
    once(&made, version, || {
        println!("fetching the source of {package} {version}");
        let apt = Apt::new(archives.clone(), &[suite])?.of_any_date().with_sources()?;
        apt.run("apt-get", &["update"])?;
        apt.run("apt-get", &["source", "--download-only", &format!("{package}={version}")])?;
        for old in [source, &state.join("originals"), &state.join("stamps")] {
            if old.exists() {
                fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
            }
        }
        let mut unpack = Command::new("dpkg-source");
        unpack.arg("--no-check").arg("--extract").arg(archives.join(format!("{package}_{version}.dsc"))).arg(source);
        let status = unpack.stdin(Stdio::null()).stdout(Stdio::null()).status().context("run dpkg-source")?;
        ensure!(status.success(), "{unpack:?} failed");
        fs::remove_dir_all(&archives).with_context(|| format!("remove {}", archives.display()))
    })
}
