// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm`: the kernel module in a real kernel, in a virtual machine.
//!
//! Mechanism: everything that takes long (the kernel's source, bindgen, the built kernel) lives in
//! a cache outside of the tree, see [`cache`], and is made once. A boot takes an initrd with the
//! module, the programs and a job. It gives records (from the guest's first process, `vm/guest`)
//! and the kernel's log, and [`verdict`] finds their faults. The GPU is a process outside of the
//! guest that has the guest's memory and an ivshmem connection.

mod accelerator;
mod amdgpu;
mod bench;
mod bindgen;
mod boot;
mod cache;
mod clients;
mod config;
mod controls;
mod device;
mod elf;
mod guest;
mod initrd;
mod kernel;
mod kernel_log;
mod module;
mod native;
pub mod others;
mod packages;
mod patch;
mod programs;
mod progress;
mod qemu;
mod run;
mod sabotage;
mod setup;
mod shell;
mod shown;
mod source;
mod stress;
mod suite;
mod tools;
mod verdict;

use anyhow::Result;
use clap::Subcommand;

use xtask_base::Verdict;

/// The kernel module in a virtual machine: set up, build, test, measure, try by hand
///
/// `setup` comes first and takes a quarter of an hour on two processors, once: it installs
/// packages, gets the kernel's source and builds it into ~/.cache/vkfd (VKFD_CACHE names another
/// place). After that `test` takes as long as its scenarios.
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Setup(setup::Args),
    Build(module::Args),
    Test(suite::Args),
    Stress(stress::Args),
    Controls(controls::Args),
    Bench(bench::Args),
    Clients(clients::Args),
    Run(run::Args),
    Shell(shell::Args),
    Native(native::Args),
    Amdgpu(amdgpu::Args),
}

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// As fast as emulation allows.
    Plain,
    /// With KASAN, lockdep and debug assertions.
    Debug,
}

impl Flavor {
    /// In paths and messages.
    fn name(self) -> &'static str {
        match self {
            Flavor::Plain => "plain",
            Flavor::Debug => "debug",
        }
    }

    /// The option that chooses it, with the space before it.
    fn option(self) -> &'static str {
        match self {
            Flavor::Plain => "",
            Flavor::Debug => " --debug",
        }
    }
}

/// The choice of the kernel on the command line.
#[derive(clap::Args, Clone, Copy)]
struct FlavorArgs {
    /// Uses the sanitizer kernel (KASAN, lockdep, debug assertions), which is several times slower
    #[arg(long)]
    debug: bool,
}

impl FlavorArgs {
    fn flavor(self) -> Flavor {
        if self.debug {
            Flavor::Debug
        } else {
            Flavor::Plain
        }
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    match &args.action {
        Action::Setup(args) => setup::run(args),
        Action::Build(args) => module::run(args),
        Action::Test(args) => suite::run(args),
        Action::Stress(args) => stress::run(args),
        Action::Controls(args) => controls::run(args),
        Action::Bench(args) => bench::run(args),
        Action::Clients(args) => clients::run(args),
        Action::Run(args) => run::run(args),
        Action::Shell(args) => shell::run(args),
        Action::Native(args) => native::run(args),
        Action::Amdgpu(args) => amdgpu::run(args),
    }
}
