// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Functions compiled by IREE (PyPI), on Debian 13's HIP 5.7.1, against IREE's own CPU back end.
//!
//! Mechanism: tests/clients/iree/functions.mlir is compiled twice here, for the target and for the
//! CPU. The CPU's module says what a function gives; iree-run-module runs the target's in the root
//! and compares. A case is a function.
//!
//! IREE loads HIP by itself, and a library that stands before `hipMalloc` has to take HIP's place.
//!
//! Limits: IREE has no gfx900 and no gfx1030.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Result};

use super::cache::Cache;
use super::machine::Machine;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};

pub struct Iree;

const PACKAGES: &[&str] = &["iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0"];
/// Functions, with how many inputs each has.
const FUNCTIONS: &[(&str, usize)] =
    &[("activation", 1), ("convolution", 2), ("matmul_f16", 2), ("matmul_f32", 2), ("softmax", 1)];
/// The program that runs modules, below the environment's packages.
const RUNNER: &str = "iree/_runtime_libs/iree-run-module";
/// Where Debian has HIP in the root, and what IREE looks for.
const HIP: (&str, &str) = ("usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "libamdhip64.so");

fn clients() -> PathBuf {
    tree::root().join("tests/clients/iree")
}

/// Where the environment with IREE is.
fn environment() -> Result<PathBuf> {
    Ok(Cache::new()?.environment("iree-3.13.0"))
}

/// The program that runs modules: what is in `bin` is a Python program.
fn runner(environment: &Path) -> Result<PathBuf> {
    let program = venv::packages(environment)?.join(RUNNER);
    ensure!(program.is_file(), "there is no {}", program.display());
    Ok(program)
}

/// A function and its inputs, for iree-run-module.
fn question(function: &str, directory: &str) -> Vec<String> {
    let inputs = FUNCTIONS.iter().find(|(name, _)| *name == function).map_or(0, |(_, inputs)| *inputs);
    let inputs = (0..inputs).map(|number| format!("--input=@{directory}/{number}.npy"));
    [format!("--function={function}")].into_iter().chain(inputs).collect()
}

impl Suite for Iree {
    fn name(&self) -> &'static str {
        "iree"
    }

    fn about(&self) -> &'static str {
        "functions compiled by IREE 3.13.0, on Debian 13's HIP 5.7.1, against its CPU back end"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["python3", "python3-venv"]
    }

    fn source(&self) -> Source {
        Source::Root { suite: "trixie", packages: &["libamdhip64-5"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx90a", "gfx942", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(10 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(FUNCTIONS.iter().map(|&(name, _)| name.into()).collect())
    }

    fn shared(&self, _source: &Path, _root: Option<&Path>, target: &str, at: &Path) -> Result<Vec<Command>> {
        let environment = environment()?;
        venv::python(&environment, PACKAGES)?;
        let compile = |options: &[&str], module: &str| {
            let mut command = Command::new(environment.join("bin/iree-compile"));
            command.args(options).arg(clients().join("functions.mlir")).arg("-o").arg(at.join(module));
            command
        };
        let gpu = ["--iree-hal-target-device=hip", &format!("--iree-rocm-target={target}")];
        let cpu = [
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=generic",
        ];
        Ok(vec![
            venv::made_from(&[clients().join("functions.mlir")])?,
            compile(&gpu, "gpu.vmfb"),
            compile(&cpu, "cpu.vmfb"),
        ])
    }

    fn compile(&self, unit: &Unit<'_>, shared: &Path) -> Result<Vec<Command>> {
        let environment = environment()?;
        let sources = ["functions.mlir", "inputs.py"].map(|name| clients().join(name));
        let mut inputs = Command::new(environment.join("bin/python"));
        inputs.arg(clients().join("inputs.py")).arg(unit.name).arg(unit.at);
        let mut expect = Command::new(environment.join("bin/iree-run-module"));
        expect.arg("--device=local-sync").arg(format!("--module={}", shared.join("cpu.vmfb").display()));
        expect.args(question(unit.name, &unit.at.display().to_string()));
        expect.arg(format!("--output=@{}", unit.at.join("expected.npy").display()));
        let mut copy = Command::new("cp");
        copy.args([shared.join("gpu.vmfb"), runner(&environment)?]).arg(unit.at);
        let (hip, looked_for) = (unit.source.join(HIP.0), unit.at.join(HIP.1));
        let mut place = unit.memory.compile_before(&hip, &looked_for)?;
        if place.is_empty() {
            let mut link = Command::new("ln");
            link.arg("-s").arg(Path::new("/").join(HIP.0)).arg(looked_for);
            place.push(link);
        }
        let commands = vec![venv::made_from(&sources)?, inputs, expect, copy];
        Ok(commands.into_iter().chain(place).collect())
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[("LD_LIBRARY_PATH", WORK)]
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &["*"]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let mut arguments = vec!["--device=hip".into(), format!("--module={WORK}/gpu.vmfb")];
        arguments.extend(question(unit.name, WORK));
        arguments.push(format!("--expected_output=@{WORK}/expected.npy"));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let program = format!("{WORK}/iree-run-module");
        let ran = machine.run_in_root(unit, &program, self.options(unit.name), &arguments, self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code == Some(0) && ran.stdout.contains("[SUCCESS] all function outputs matched") {
            true => Outcome::Passed,
            false => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("cu.handler=v_mov_b32", "activation", "gfx90a")] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_asked_with_its_inputs() {
        assert_eq!(question("matmul_f16", "/d"), ["--function=matmul_f16", "--input=@/d/0.npy", "--input=@/d/1.npy"]);
    }

    #[test]
    fn only_a_comparison_passes() {
        let matched = "EXEC @softmax\n[SUCCESS] all function outputs matched their expected values.\n";
        let ended = |code, stdout: &str| {
            let ran = Ran { code: Some(code), stdout: stdout.into(), ..Ran::default() };
            Iree.judge("softmax", &ran)
        };
        assert_eq!(ended(0, matched), Outcome::Passed);
        assert!(matches!(ended(1, matched), Outcome::Failed(_)));
        assert!(matches!(ended(0, "EXEC @softmax\n"), Outcome::Failed(_)));
    }
}
