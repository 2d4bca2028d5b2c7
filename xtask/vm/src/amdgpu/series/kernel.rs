// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel of `--series`: AMD's driver as a module, and only what it needs.
//!
//! Mechanism: as [`super::super::super::kernel`], without Rust, and always by the C compiler of the
//! machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{ensure, Context, Result};

use super::super::super::cache;
use super::super::super::config::Config;
use super::super::super::kernel::run_logged;
use super::super::super::progress::Progress;
use super::super::super::{tools, Flavor};
use super::super::parts::{in_order, Kernel, DRIVER};
use super::patches::Patch;
use xtask_base::tree;

/// What make prints of a whole build.
const STEPS: u64 = 1800;
const LOG: &str = "vkfd-build.log";

/// What a flavor's kernel is configured with.
pub fn config(flavor: Flavor) -> Result<Config> {
    let read = |name: &str| Config::read(&tree::root().join("vm").join(name));
    let config = read("amdgpu.config")?;
    Ok(match flavor {
        Flavor::Plain => config,
        Flavor::Debug => config.with(read("amdgpu-debug.config")?),
    })
}

/// Changes when something does that the kernel is made of.
pub fn key(version: &str, config: &Config, patches: &[Patch]) -> Result<String> {
    let compiler = Command::new("gcc").arg("--version").output().context("start gcc")?;
    let compiler = String::from_utf8_lossy(&compiler.stdout).lines().next().unwrap_or_default().to_owned();
    let patches: String = patches.iter().map(|patch| format!("{}\n", String::from_utf8_lossy(&patch.text))).collect();
    Ok(format!("{version}\n{compiler}\n{}{patches}", config.text()))
}

/// Configures and builds.
pub fn build(source: &Path, build: &Path, config: &Config) -> Result<()> {
    fs::create_dir_all(build).with_context(|| format!("create {}", build.display()))?;
    cache::unmark(build)?;
    let fragment = build.join("vkfd.config");
    fs::write(&fragment, config.text()).with_context(|| format!("write {}", fragment.display()))?;
    let mut configure = tools::plain_make(source, build);
    configure.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &fragment).stdin(Stdio::null());
    let configured = configure.output().context("start make")?;
    ensure!(configured.status.success(), "make allnoconfig: {}", String::from_utf8_lossy(&configured.stderr).trim());
    config.ensure_in(&Config::read(&build.join(".config"))?)?;
    let mut progress = Progress::new("kernel", STEPS);
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let mut make = tools::plain_make(source, build);
    make.arg(format!("-j{processors}")).args(["vmlinux", "modules"]);
    run_logged(&mut make, &build.join(LOG), |line| progress.step(line))?;
    progress.finish();
    Ok(())
}

/// A kernel that is built.
pub fn built(build: &Path) -> Result<Kernel> {
    let read = |name: &str| {
        let path = build.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let version = read("include/config/kernel.release")?.trim().to_owned();
    let mut files = std::collections::BTreeMap::new();
    for line in read("modules.order")?.lines() {
        let path = build.join(line).with_extension("ko");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
        files.insert(name, path);
    }
    let modules = in_order(DRIVER, &files)?;
    Ok(Kernel { image: build.join("vmlinux"), version, modules, sharing: Vec::new() })
}
