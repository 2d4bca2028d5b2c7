// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Packages of PyPI in a virtual environment of their own, made once and kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::{cache, lock};

/// A Python with exactly these packages, each `NAME==VERSION`, made in `at` unless it is there. pip
/// gets them from its usual index.
pub fn python(at: &Path, packages: &[&str]) -> Result<PathBuf> {
    cache::used(at);
    let python = at.join("bin/python");
    if !has(&python, packages)? {
        let shelf = at.parent().with_context(|| format!("{} has no directory", at.display()))?;
        let _lock = lock::hold(shelf, "cargo xtask")?;
        // Another run may have made it meanwhile.
        if has(&python, packages)? {
            return Ok(python);
        }
        println!("installing {} from PyPI", packages.join(" "));
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(at))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(&python).args(pip).args(packages))?;
        ensure!(has(&python, packages)?, "{} lacks some of {packages:?} although pip has installed them", at.display());
    }
    cache::used(at);
    Ok(python)
}

/// The wheels that a file names, each `NAME==VERSION`, for another Python than this machine's: in
/// `at`, as a directory for `PYTHONPATH`. The file names dependencies, too.
pub fn library(at: &Path, python: &str, wheels: &Path) -> Result<()> {
    println!("installing the wheels of {} from PyPI", wheels.display());
    let installer = installer()?;
    let mut pip = Command::new(installer.path().join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]);
    // An older pip compares a wheel's wish with the Python that pip itself runs on.
    pip.args(["--only-binary=:all:", "--ignore-requires-python", "--python-version", python]);
    for platform in PLATFORMS {
        pip.args(["--platform", platform]);
    }
    run(pip.arg("--target").arg(at).arg("--requirement").arg(wheels))
}

/// Parts of a package's source, `NAME==VERSION`, in `at`. pip gets no source without building it,
/// so that a script asks pip's own parts for it (`sdist.py`).
pub fn source(at: &Path, package: &str, parts: &[&str]) -> Result<()> {
    println!("fetching the source of {package} from PyPI");
    let (installer, script) = (installer()?, at.join("sdist.py"));
    fs::write(&script, include_str!("sdist.py")).with_context(|| format!("write {}", script.display()))?;
    run(Command::new(installer.path().join("bin/python")).arg(&script).arg(at).arg(package).args(parts))
}

/// A pip of this machine's Python, only for now.
fn installer() -> Result<tempfile::TempDir> {
    let installer = tempfile::tempdir().context("make a directory for pip")?;
    run(Command::new("python3").args(["-m", "venv"]).arg(installer.path()))?;
    Ok(installer)
}

/// Of wheels for glibc up to Debian 12's.
const PLATFORMS: &[&str] = &[
    "manylinux_2_34_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
];

/// Where the packages of an environment are.
pub fn packages(environment: &Path) -> Result<PathBuf> {
    let library = environment.join("lib");
    let pythons = fs::read_dir(&library).with_context(|| format!("read {}", library.display()))?;
    let mut packages = pythons.flatten().map(|python| python.path().join("site-packages"));
    packages.find(|at| at.is_dir()).with_context(|| format!("{} has no packages", environment.display()))
}

/// A command that does nothing: what is kept under the words of commands is made anew when these
/// files change.
pub fn made_from(files: &[PathBuf]) -> Result<Command> {
    let mut command = Command::new("true");
    for file in files {
        command.arg(fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(command)
}

/// Whether an environment has all of these, in these versions.
fn has(python: &Path, packages: &[&str]) -> Result<bool> {
    let mut versions = String::new();
    for package in packages {
        let (name, version) = package.split_once("==").with_context(|| format!("{package} has no version"))?;
        versions.push_str(&format!("; assert version({name:?}) == {version:?}"));
    }
    let mut probe = Command::new(python);
    probe.arg("-c").arg(format!("from importlib.metadata import version{versions}"));
    Ok(probe.output().is_ok_and(|output| output.status.success()))
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: PyPI must be reachable the first time");
    Ok(())
}
