// SPDX-License-Identifier: GPL-2.0 OR MIT
//! tinygrad from PyPI: copies to one and two GPUs and back, and operations on them, compiled by
//! LLVM. It speaks to KFD itself, with queues of PM4 and SDMA.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use vkfd_sabotage::Switch;

use super::{Client, Report, Stand};
use crate::tree;

pub(crate) const CLIENT: Client =
    Client { name: "tinygrad", packages: &["python3", "python3-venv", "libllvm19"], check };

const PACKAGES: [&str; 2] = ["tinygrad==0.14.0", "numpy<3"];

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let python = environment()?;
    let script = tree::root().join("tests/clients/tinygrad/copies.py").display().to_string();
    for gpus in ["1", "2"] {
        let ran = stand.run(&["--target", "gfx1100", "--gpus", gpus], &python, &[&script, gpus], &[])?;
        let right = ran.succeeded() && ran.stdout.contains("all bytes right") && ran.stdout.ends_with("ok\n");
        report.expect(right, &format!("tinygrad, gfx1100, {gpus} GPUs: copies to each and back"), &ran);
    }
    let script_of_kernels = tree::root().join("tests/clients/tinygrad/compute.py").display().to_string();
    let compiler = &[("DEV", "AMD:LLVM")][..];
    for gpus in ["1", "2"] {
        let options = ["--target", "gfx1100", "--gpus", gpus];
        let ran = stand.run(&options, &python, &[&script_of_kernels, gpus], compiler)?;
        let right = ran.succeeded() && ran.stdout.ends_with("ok\n");
        report.expect(right, &format!("tinygrad, gfx1100, {gpus} GPUs: operations, as numpy has them"), &ran);
    }
    let options = ["--target", "gfx1100"];
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &options, &python, &[&script, "1"])?;
    report.expect(sound.succeeded(), "tinygrad: copies with the library of the controls, nothing broken", &sound);
    let ran = stand.broken(Switch::ShortCopy.name(), &options, &python, &[&script, "1"])?;
    let noticed = ran.code == Some(1) && ran.stdout.contains("FAILED: ");
    report.expect(noticed, "control: a GPU that leaves the last byte of a copy out is noticed", &ran);
    Ok(())
}

/// A Python with tinygrad, made once.
fn environment() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").context("there is no $HOME to keep tinygrad in")?;
    let at = Path::new(&home).join(".cache/vkfd/tinygrad-0.14.0");
    let python = at.join("bin/python");
    let has = |python: &Path| {
        let mut probe = Command::new(python);
        probe.args(["-c", "import numpy, importlib.metadata as m; assert m.version('tinygrad') == '0.14.0'"]);
        probe.output().is_ok_and(|output| output.status.success())
    };
    if !has(&python) {
        println!("installing {} from PyPI", PACKAGES.join(" "));
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&at))?;
        run(Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(PACKAGES))?;
        ensure!(has(&python), "{} has no tinygrad 0.14.0 although pip has installed it", at.display());
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: PyPI must be reachable the first time");
    Ok(())
}
