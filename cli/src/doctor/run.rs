// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whether `vkfd run` works: it is tried.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::{Check, State};
use crate::run::probe;

/// Opens the device, and names the GPU. The shell is there on every system. This program is no such
/// client: it has hooks of its own for its calls.
const SCRIPT: &str = "exec 3<>/dev/kfd && cat /sys/class/kfd/kfd/topology/nodes/1/name";

/// Runs a shell under this program, which opens /dev/kfd there.
pub(super) fn check() -> Check {
    match tried() {
        Ok(gpu) => Check::new(
            "run",
            State::Good,
            format!("a program under `vkfd run` opened /dev/kfd and found its GPU, {gpu}"),
        ),
        Err(error) => Check::new("run", State::Bad, format!("{error:#}"))
            .means("Programs find no GPU. `vkfd demo` may work all the same.")
            .advice("see what is limited or missing below"),
    }
}

fn tried() -> Result<String> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(&this);
    command.args(["run", "--vram", "64M", "--", "sh", "-c", SCRIPT]);
    let ran = command.output().context("cannot run this program")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{}", said.trim().trim_start_matches("vkfd: "));
    let name = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    ensure!(name.starts_with("gfx"), "a program under `vkfd run` found no GPU");
    Ok(name)
}

/// Where what is loaded into programs is.
pub(super) fn library() -> Check {
    match probe() {
        Ok((path, true)) => Check::new("library", State::Good, format!("kept in {}", path.display())),
        Ok((path, false)) => {
            let place = path.parent().and_then(|place| place.parent()).unwrap_or(&path);
            Check::new("library", State::Limited, format!("written anew for each run, below {}", place.display()))
                .means("The cache directory is not there, others can write to it, or it is mounted noexec.")
                .advice("set XDG_CACHE_HOME to a directory of yours that nobody else can write to")
        }
        Err(error) => Check::new("library", State::Bad, format!("{error:#}")),
    }
}
