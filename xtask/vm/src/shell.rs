// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm shell`: the guest by hand.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};

use super::boot::Directory;
use super::device::Gpus;
use super::guest::{Parts, Size};
use super::module::Module;
use super::programs::{SCENARIOS, VKFD};
use super::qemu::{Console, Machine, Ram, Share, SHARE_TAG};
use super::FlavorArgs;
use xtask_base::{tree, Verdict};

/// An interactive guest with the module loaded
///
/// A shell on this terminal, with `vkfd`, `vkfd-scenarios` and busybox's tools, and the target
/// directory as /host, so that what is built meanwhile can be run. `exit` unloads the module, says
/// what it has left behind, and powers off; ctrl-a x switches the guest off.
///
/// Exit status: 0 the guest has ended, 2 it could not be started.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// Parameters for the module, `name=value` separated by spaces
    #[arg(long, default_value = "")]
    parameters: String,

    /// The directory that the guest has as /host, read-only (default: the target directory)
    #[arg(long, value_name = "DIR")]
    share: Option<PathBuf>,

    /// More words for the kernel's command line
    #[arg(long, default_value = "quiet")]
    append: String,
}

pub fn run(args: &Args) -> Result<Verdict> {
    ensure!(std::io::stdin().is_terminal(), "a shell needs a terminal; `cargo xtask vm test` does without");
    let parts = Parts::build(args.flavor.flavor(), Module::Vkfd, &[SCENARIOS, VKFD])?;
    let (mut initrd, mut job) = parts.guest_for_tests(&args.parameters)?;
    for program in [SCENARIOS, VKFD] {
        initrd.add_program(parts.programs.path(program)?)?;
    }
    job.shell = true;
    job.share = Some(SHARE_TAG.into());
    job.swap_mib = args.size.memory_mib() / 2;

    let directory = Directory::new(&parts.kernel, "shell")?;
    let archive = directory.path().join("initrd.cpio");
    initrd.write(&job, &archive)?;
    let ram = Ram::new(args.size.memory_mib())?;
    let gpus = parts.gpus(args.size)?.map(|wanted| Gpus::start(&wanted, &ram, directory.path())).transpose()?;
    let image = parts.kernel.image();
    let share = args.share.clone().unwrap_or_else(tree::target);
    let share = share.canonicalize().with_context(|| format!("find {}", share.display()))?;
    let machine = Machine {
        acceleration: parts.acceleration,
        processors: 2,
        kernel: &image,
        initrd: &archive,
        append: &format!("{} {}", args.append, args.size.kernel_words()),
        ram: &ram,
        gpus: gpus.as_ref().map_or(&[], Gpus::sockets),
        console: Console::Terminal,
        shares: &[Share { directory: share, tag: SHARE_TAG }],
    };
    let status = machine.command().status().context("start QEMU")?;
    ensure!(status.success(), "QEMU ended with {status}");
    Ok(Verdict::Clean("the guest has ended".into()))
}
