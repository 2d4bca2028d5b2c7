// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm build`: kernel modules, out of the kernel's tree and with their objects outside
//! of this one.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Context, Result};

use super::cache::Cache;
use super::kernel::{run_logged, Kernel};
use super::FlavorArgs;
use xtask_base::{tree, Verdict};

/// Build the module
///
/// For the kernel that `cargo xtask vm setup` has built. The result is below the target directory,
/// and its path is printed.
///
/// Exit status: 0 built, 1 it does not compile, 2 there is nothing to build with.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,
}

/// A module's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// The driver.
    Vkfd,
    /// The driver, built so that it can be told to be wrong.
    Sabotaged,
    /// The one with faults on request.
    Probe,
}

impl Module {
    /// As the kernel calls it.
    pub fn name(self) -> &'static str {
        match self {
            Module::Vkfd | Module::Sabotaged => "vkfd",
            Module::Probe => "vkfd_probe",
        }
    }

    /// Whether it is a driver, of which there are GPUs.
    pub fn drives(self) -> bool {
        self != Module::Probe
    }

    fn source(self) -> PathBuf {
        tree::root().join(match self {
            Module::Vkfd | Module::Sabotaged => "linux",
            Module::Probe => "vm/probe",
        })
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let kernel = Kernel::find(&Cache::open()?, args.flavor.flavor())?;
    let began = Instant::now();
    Ok(match build(&kernel, Module::Vkfd) {
        Ok(path) => Verdict::Clean(format!("{} in {:.1} s", path.display(), began.elapsed().as_secs_f64())),
        Err(error) => Verdict::Findings(vec![format!("{error:#}")]),
    })
}

/// Builds `module` for `kernel`; the path is that of the `.ko`.
pub fn build(kernel: &Kernel, module: Module) -> Result<PathBuf> {
    let source = module.source();
    ensure!(source.join("Kbuild").exists(), "{} has no Kbuild: there is no module to build", source.display());
    let output = std::path::absolute(tree::target()).context("make the target directory absolute")?;
    let output = output.join("vm").join(kernel.flavor.name()).join(match module {
        Module::Sabotaged => "vkfd_sabotaged",
        other => other.name(),
    });
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let mut make = kernel.tools.make(&kernel.source.directory, &kernel.build);
    make.arg(format!("M={}", source.display())).arg(format!("MO={}", output.display())).arg("modules");
    if module == Module::Sabotaged {
        make.arg("VKFD_SABOTAGE=1");
    }
    run_logged(&mut make, &output.join("build.log"), |_| ()).with_context(|| format!("build {}", module.name()))?;
    let path = output.join(module.name()).with_extension("ko");
    ensure!(path.exists(), "make has ended well but left no {}", path.display());
    Ok(path)
}
