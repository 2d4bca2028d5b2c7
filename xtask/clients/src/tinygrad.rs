// SPDX-License-Identifier: GPL-2.0 OR MIT
//! tinygrad from PyPI: copies to one and two GPUs and back, operations on them, and small models
//! with weights from a seed, compiled by LLVM. It speaks to KFD itself, by queues of PM4 and SDMA.
//!
//! A model runs on the AMD device and on the CPU's in one program, which compares.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use vkfd_sabotage::Switch;

use super::profile;
use super::stand::Ran;
use super::{Client, Report, Stand};
use xtask_base::{tree, venv};

pub const CLIENT: Client = Client { name: "tinygrad", packages: &["python3", "python3-venv", "libllvm19"], check };

/// The last one whose models of language can be imported from the wheel.
pub const WHEEL: &str = "tinygrad==0.13.0";
/// An operation that a model chooses with, and what is said where its results are not the CPU's.
pub const BROKEN: &str = "cu.handler=v_cndmask_b32";
pub const DIFFERS: &str = "FAILED: transformer: the tokens";
/// Models, and the GPUs that each is for.
const MODELS: [(&str, &str); 4] = [("transformer", "1"), ("unet", "1"), ("resnet", "1"), ("sharded", "2")];

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
    models(stand, report, &python)?;
    let options = ["--target", "gfx1100"];
    // The same library unbroken: what follows is the sabotage's doing.
    let sound = stand.broken("", &options, &python, &[&script, "1"])?;
    report.expect(sound.succeeded(), "tinygrad: copies with the library of the controls, nothing broken", &sound);
    let ran = stand.broken(Switch::ShortCopy.name(), &options, &python, &[&script, "1"])?;
    let noticed = ran.code == Some(1) && ran.stdout.contains("FAILED: ");
    report.expect(noticed, "control: a GPU that leaves the last byte of a copy out is noticed", &ran);
    Ok(())
}

/// Models on gfx1100, one of them on gfx942, and with a handler that is broken.
fn models(stand: &Stand, report: &mut Report, python: &Path) -> Result<()> {
    let script = tree::root().join("tests/clients/tinygrad/models.py").display().to_string();
    let on_targets = MODELS.iter().map(|model| ("gfx1100", model)).chain([("gfx942", &MODELS[0])]);
    for (target, (model, gpus)) in on_targets {
        let options = ["--target", target, "--gpus", gpus, "--profile"];
        let ran = stand.run(&options, python, &[&script, model], &[])?;
        let right = ran.succeeded() && ran.stdout.ends_with("ok\n");
        report.expect(right, &format!("tinygrad, {target}, a model as on the CPU: {}", took(model, &ran)), &ran);
    }
    let (sabotage, model) = (BROKEN, MODELS[0].0);
    let sound = stand.broken("", &["--target", "gfx1100"], python, &[&script, model])?;
    report.expect(sound.succeeded(), "tinygrad: a model with the library of the controls, nothing broken", &sound);
    let ran = stand.broken(sabotage, &["--target", "gfx1100"], python, &[&script, model])?;
    let noticed = ran.code == Some(1) && ran.stdout.contains(DIFFERS);
    report.expect(noticed, &format!("control: a GPU with {sabotage} gives other tokens"), &ran);
    Ok(())
}

/// What a model's program says of its time, and how much of that was in kernels.
fn took(model: &str, ran: &Ran) -> String {
    let line = ran.stdout.lines().find(|line| line.starts_with(model) && line.ends_with(" times"));
    format!("{}; {:.2} s in kernels", line.unwrap_or(model), profile::in_kernels(&ran.stderr).as_secs_f64())
}

/// A Python with tinygrad, made once.
pub fn environment() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").context("there is no $HOME to keep tinygrad in")?;
    let at = Path::new(&home).join(".cache/vkfd").join(WHEEL.replace("==", "-"));
    venv::python(&at, &[WHEEL, "numpy==2.4.6"])
}
