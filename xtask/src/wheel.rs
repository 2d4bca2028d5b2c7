// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask wheel`: the Python package, built by maturin and used in a fresh environment.
//!
//! Mechanism: maturin comes from PyPI into an environment of its own. It builds the program by
//! cargo, decides the manylinux tag by the symbols that the program needs, and puts the modules of
//! `python/` beside it. With `--check` the wheel is installed into an environment that is made for
//! this run, and the plugin's own tests run there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::{tree, venv, Verdict};

/// The packages that build the wheel, and those that test it.
const BUILDER: &[&str] = &["maturin==1.16.0"];
const TESTER: &[&str] = &["pytest==9.2.0", "pytest-xdist==3.8.0"];

/// Make the Python package: a wheel with the program, `python -m vkfd` and a pytest plugin
///
/// The wheel is in DIR afterwards (by default `dist-packages` in cargo's target directory). PyPI
/// must be reachable the first time.
///
/// With --check the wheel is installed into a new environment: the program runs there by its name
/// and as a module, and the plugin passes its own tests.
///
/// Exit status: 0 made (and all checks held), 1 a check did not hold, 2 cannot make it.
#[derive(clap::Args)]
pub struct Args {
    /// Where to
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Cargo's profile
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Install the wheel into a new environment and use it
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let target = std::path::absolute(tree::target())?;
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| target.join("dist-packages")))?;
    let builder = venv::python(&target.join("wheel-builder"), BUILDER)?;
    let wheels = tempfile::tempdir()?;
    let mut build = Command::new(&builder);
    build.args(["-m", "maturin", "build", "--quiet", "--locked", "--profile", &args.profile, "--out"]);
    build.arg(wheels.path()).env("CARGO_TARGET_DIR", &target).current_dir(tree::root());
    succeeds(&mut build)?;
    let made = only_file(wheels.path())?;
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let wheel = out.join(made.file_name().context("a wheel has a name")?);
    fs::copy(&made, &wheel).with_context(|| format!("write {}", wheel.display()))?;
    if args.check {
        let findings = check(&wheel)?;
        if !findings.is_empty() {
            return Ok(Verdict::Findings(findings));
        }
        return Ok(Verdict::Clean(format!("installed and used: {}", wheel.display())));
    }
    Ok(Verdict::Clean(wheel.display().to_string()))
}

/// Uses the wheel as its users do. The result lists what did not hold.
fn check(wheel: &Path) -> Result<Vec<String>> {
    let scratch = tempfile::tempdir()?;
    let python = venv::python(&scratch.path().join("venv"), TESTER)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"];
    succeeds(Command::new(&python).args(pip).arg(wheel))?;
    let mut findings = Vec::new();
    let script = python.with_file_name("vkfd");
    let name = "/sys/class/kfd/kfd/topology/nodes/1/name";
    for start in [vec![script.into_os_string()], vec![python.clone().into(), "-m".into(), "vkfd".into()]] {
        let mut command = Command::new(&start[0]);
        command.args(&start[1..]).args(["run", "--target", "gfx90a", "--", "cat", name]).current_dir(scratch.path());
        let ran = command.output().with_context(|| format!("run {command:?}"))?;
        if ran.stdout != b"gfx90a\n" {
            findings.push(format!("{command:?}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr)));
        }
    }
    // Outside of the tree, where `import vkfd` could find the sources instead of the wheel.
    let tests = scratch.path().join("tests");
    fs::create_dir(&tests)?;
    fs::copy(tree::root().join("python/tests/test_plugin.py"), tests.join("test_plugin.py"))?;
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(&tests).current_dir(&tests);
    if !pytest.status().context("run pytest")?.success() {
        findings.push("the plugin's own tests fail in a new environment".into());
    }
    Ok(findings)
}

/// The only file of a directory.
fn only_file(directory: &Path) -> Result<PathBuf> {
    let files: Vec<_> = fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    ensure!(files.len() == 1, "maturin made {} files, not one wheel", files.len());
    Ok(files[0].path())
}

fn succeeds(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
