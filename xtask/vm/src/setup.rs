// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm setup`: everything that boots need, once.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};

use super::accelerator;
use super::cache::{self, Cache};
use super::guest::{self, Parts};
use super::kernel::Kernel;
use super::module::Module;
use super::progress::minutes;
use super::{bindgen, packages, source, tools, FlavorArgs};
use xtask_base::Verdict;

/// Install packages, get the kernel's source, build bindgen and the kernel
///
/// Needs root (or the packages), Debian's archive, crates.io and 5 GB of room. Finished steps are
/// not repeated, and an interrupted setup continues. A whole one takes about 10 minutes on two
/// processors, 20 with --debug, and a second one some seconds. In the end a guest boots and loads a
/// module in Rust, which shows that all of it works, and whether the guest can have KVM.
///
/// Exit status: 0 ready, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,
}

pub fn run(args: &Args) -> Result<Verdict> {
    let flavor = args.flavor.flavor();
    let cache = Cache::open()?;
    let began = Instant::now();
    let _lock = cache.lock()?;
    packages::install(flavor, tools::rustc().is_some()).context("install packages")?;
    let source = source::get(&cache).context("get the kernel's source")?;
    bindgen::install(&cache).context("install bindgen")?;
    let kernel = Kernel::build(&cache, flavor, source).context("build the kernel")?;
    // What follows finds the kernel by its stamp, as every later task does.
    drop(kernel);
    let parts = Parts::build(flavor, Module::Probe, &[])?;
    prove(&parts)?;
    Ok(Verdict::Clean(format!(
        "ready after {}: Linux {} ({}), guests with {}; go on with `cargo xtask vm test{}`",
        minutes(began.elapsed()),
        parts.kernel.source.version,
        flavor.name(),
        parts.acceleration,
        flavor.option()
    )))
}

/// Boots an emulated guest once a kernel, so that what is wrong with the tools shows here and not
/// in the first test.
fn prove(parts: &Parts) -> Result<()> {
    let directory = parts.kernel.build.join("vkfd-proof");
    let key = cache::made_for(&parts.kernel.build).unwrap_or_default();
    if cache::is_made(&directory, &key) {
        return Ok(());
    }
    let (initrd, job) = parts.guest("fault=0")?;
    accelerator::prove_emulation(&parts.kernel, initrd, &job, parts.scaled(guest::AROUND_PROGRAMS))?;
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    cache::mark(&directory, &key)
}
