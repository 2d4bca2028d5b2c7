// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernels compiled by Triton (PyPI), on Debian 13's HIP 5.7.1, against NumPy.
//!
//! Mechanism: tests/clients/triton/compile.py compiles a kernel here, for a GPU that is not here;
//! run.py launches it in the root by HIP's module interface, and compares what it wrote with NumPy.
//! A case is a kernel. One of matrices that was compiled without the target's matrix instruction is
//! not built.
//!
//! Limits: Triton has no gfx900 and no gfx1030. Its own launcher, which wants PyTorch, is not used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cache::Cache;
use super::machine::Machine;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{self, Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};

pub struct Triton;

const PACKAGES: &[&str] = &["triton==3.9.0"];
const KERNELS: &[&str] = &[
    "add",
    "atomics",
    "attention",
    "functions",
    "gather",
    "histogram",
    "integers",
    "layer_norm",
    "linear_i8",
    "lock",
    "matmul_bf16",
    "matmul_bf8",
    "matmul_f16",
    "matmul_f32",
    "matmul_f64",
    "matmul_f8",
    "matmul_i8",
    "matmul_xf32",
    "random",
    "reduce",
    "scan",
    "softmax",
    "sort",
    "transpose",
];
/// What is compiled, and what runs in the root.
const COMPILED: [&str; 2] = ["compile.py", "kernels.py"];
const RUN: &[&str] = &["run.py", "hip.py"];
const HIP: &str = "libamdhip64.so.5";

fn clients() -> PathBuf {
    tree::root().join("tests/clients/triton")
}

/// Where the environment with Triton is.
fn environment() -> Result<PathBuf> {
    Ok(Cache::new()?.environment("triton-3.9.0"))
}

impl Suite for Triton {
    fn name(&self) -> &'static str {
        "triton"
    }

    fn about(&self) -> &'static str {
        "kernels compiled by Triton 3.9.0, on Debian 13's HIP 5.7.1, against NumPy"
    }

    fn packages(&self) -> &'static [&'static str] {
        // Triton compiles a small module of its own at the first import.
        &["python3", "python3-venv", "gcc", "libc6-dev"]
    }

    fn source(&self) -> Source {
        Source::Root { suite: "trixie", packages: &["libamdhip64-5", "python3-numpy"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx90a", "gfx942", "gfx1100"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(20 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(KERNELS.iter().map(|&name| name.into()).collect())
    }

    fn shared(&self, _source: &Path, _root: Option<&Path>, _target: &str, _at: &Path) -> Result<Vec<Command>> {
        // For all targets: what is kept for one is elsewhere.
        venv::python(&environment()?, PACKAGES)?;
        Ok(Vec::new())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let source = venv::made_from(&COMPILED.map(|name| clients().join(name)))?;
        let mut compile = Command::new(environment()?.join("bin/python"));
        compile.arg(clients().join("compile.py")).args([unit.name, unit.target]).arg(unit.at);
        compile.envs([("PYTHONDONTWRITEBYTECODE", "1"), ("TRITON_DEFAULT_FP_FUSION", "1")]);
        compile.env("TRITON_CACHE_DIR", unit.at.join("cache"));
        Ok(vec![source, compile])
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        // Debian's alternatives are not configured in a root.
        &[
            ("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ]
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &["*"]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        for name in RUN {
            let from = clients().join(name);
            fs::copy(&from, unit.at.join(name)).with_context(|| format!("copy {}", from.display()))?;
        }
        let program = format!("{WORK}/run.py");
        let arguments = [program.as_str(), unit.name, WORK, HIP];
        let ran =
            machine.run_in_root(unit, "/usr/bin/python3", self.options(unit.name), &arguments, self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        suite::compared(unit, " are right\nok\n", ran)
    }

    fn controls(&self) -> &'static [Control] {
        // Of whole numbers: the lowest bit of a sum that is rounded is not noticed.
        const {
            &[
                Control::new("cu.handler=v_mfma_i32_32x32x8i8", "matmul_i8", "gfx90a"),
                Control::new("cu.handler=v_mfma_i32_32x32x8i8", "linear_i8", "gfx90a"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_comparison_passes() {
        let ended = |code, stdout: &str| {
            let ran = Ran { code: Some(code), stdout: stdout.into(), ..Ran::default() };
            Triton.judge("add", &ran)
        };
        assert_eq!(ended(0, "add: 5000 values are right\nok\n"), Outcome::Passed);
        assert_eq!(ended(1, "FAILED: add: 1 of 2\n"), Outcome::Failed("add: 1 of 2".into()));
        for (code, stdout) in [(0, ""), (0, "ok\n"), (1, "add: 5000 values are right\nok\n"), (0, "add: 5000")] {
            assert!(matches!(ended(code, stdout), Outcome::Failed(_)), "{code} {stdout}");
        }
    }
}
