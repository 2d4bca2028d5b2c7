// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Models by tinygrad (PyPI), with weights from a seed: tokens of a transformer, steps of diffusion
//! and of training, products on two GPUs. A program is a model, and one case.
//!
//! Mechanism: tests/clients/tinygrad/models.py runs a model on tinygrad's AMD device and on its
//! CPU's, in the root, and compares. tinygrad speaks to KFD itself. If its memory is not the GPU's
//! own, tests/clients/tinygrad/memory.py provides it.
//!
//! Limits: hardware of gfx1100 has no XNACK; `vkfd run --xnack` gives it to any target.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::machine::Machine;
use super::memory::Memory;
use super::ran::Ran;
use super::root::WORK;
use super::source::Source;
use super::suite::{self, Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};
use xtask_clients::tinygrad::{BROKEN, WHEEL};

pub struct TinygradModels;

const MODELS: &[&str] = &["transformer", "unet", "resnet", SHARDED];
/// The one that is for two GPUs.
const SHARDED: &str = "sharded";
const SCRIPTS: [&str; 3] = ["models.py", "networks.py", "memory.py"];

fn scripts() -> [PathBuf; 3] {
    SCRIPTS.map(|name| tree::root().join("tests/clients/tinygrad").join(name))
}

impl Suite for TinygradModels {
    fn name(&self) -> &'static str {
        "tinygrad-models"
    }

    fn about(&self) -> &'static str {
        "a transformer's tokens, diffusion and training by tinygrad 0.13, against its CPU's device"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["python3", "python3-venv"]
    }

    fn source(&self) -> Source {
        let packages = &["python3", "python3-numpy", "libllvm19", "libatomic1"];
        Source::WheelInRoot { wheel: WHEEL, suite: "trixie", packages }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx1100", "gfx942"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(20 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(900)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(MODELS.iter().map(|&name| name.into()).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let mut copy = Command::new("cp");
        copy.args(scripts()).arg(unit.at);
        Ok(vec![venv::made_from(&scripts())?, copy])
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("LLVM_PATH", "/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1"),
            // Packages in a root are not configured: these two have no links.
            ("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack"),
            ("PYTHONPATH", "/source"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("HOME", "/tmp"),
            // A kernel may take longer than on a GPU.
            ("HCQDEV_WAIT_TIMEOUT_MS", "600000"),
        ]
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        match unit {
            SHARDED => &["--gpus", "2"],
            _ => &[],
        }
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let program = format!("{WORK}/{}", SCRIPTS[0]);
        let arguments = [program.as_str(), unit.name];
        let ran =
            machine.run_in_root(unit, "/usr/bin/python3", self.options(unit.name), &arguments, self.patience())?;
        Ok(vec![Case { name: unit.name.into(), outcome: self.judge(unit.name, &ran) }])
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        suite::compared(unit, "\nok\n", ran)
    }

    fn controls(&self) -> &'static [Control] {
        const {
            &[
                Control::new(BROKEN, "transformer", "gfx1100"),
                Control::new("driver.invalidation", "unet", "gfx942").on(Memory::Oversubscribed),
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
            TinygradModels.judge("unet", &ran)
        };
        let compared = "unet: 256 image: differ by 1.0e-07 of the largest\nunet: 2.0 s\nok\n";
        assert_eq!(ended(0, compared), Outcome::Passed);
        assert_eq!(ended(1, "FAILED: unet: the image\n"), Outcome::Failed("unet: the image".into()));
        for (code, stdout) in [(0, ""), (0, "ok\n"), (1, compared), (0, "unet: 256 image")] {
            assert!(matches!(ended(code, stdout), Outcome::Failed(_)), "{code} {stdout}");
        }
    }
}
