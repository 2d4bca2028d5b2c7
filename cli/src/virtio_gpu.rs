// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd virtio-gpu`: the machine as a virtio-gpu of a virtual machine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tracing_subscriber::filter::LevelFilter;
use vkfd_sabotage::Switches;
use vkfd_virtio_gpu::device::register::Method;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::{socket_server, vhost_user};

use crate::log;
use crate::run::{granules, MachineArgs};

#[derive(clap::Args)]
pub struct VirtioGpuArgs {
    /// The unix socket on which the VMM finds the device; it is created
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Serve programs here instead of a VMM: those of `vkfd run --forward=PATH`. For tests
    #[arg(long)]
    loopback: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// How the guest's scattered memory is registered
    #[arg(long, value_enum, default_value = "batch")]
    register: Register,
    /// Size of the window for host memory that the guest maps; memory is used only where the guest
    /// uses it
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = granules)]
    window: u64,
    /// Most system memory that the host gives the guest beyond the window. Without it: as much as
    /// the guest has memory of its own, and at most a quarter of the host's memory. The guest's own
    /// memory that its programs register does not count
    #[arg(long, value_name = "SIZE", value_parser = granules)]
    gtt: Option<u64>,
    /// End when the VMM disconnects. Otherwise wait for the next one, which finds a fresh machine
    #[arg(long)]
    once: bool,
    /// Break the device on purpose, to see that a test notices
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "NAMES", value_parser = sabotage, default_value = "", hide_default_value = true)]
    sabotage: Switches,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Register {
    /// One batch call
    Batch,
    /// One call per range
    PerRange,
    /// Moved into one range first (mremap), which is registered
    Remap,
}

impl VirtioGpuArgs {
    /// What is broken: nothing, in a build that cannot be.
    fn sabotage(&self) -> Switches {
        #[cfg(debug_assertions)]
        return self.sabotage;
        #[cfg(not(debug_assertions))]
        Switches::NONE
    }
}

#[cfg(debug_assertions)]
fn sabotage(text: &str) -> Result<Switches, String> {
    vkfd_sabotage::parse(text, &[vkfd_sabotage::Part::VirtioGpu], |_, _| None).map_err(|bad| bad.to_string())
}

pub fn run(args: &VirtioGpuArgs) -> anyhow::Result<ExitCode> {
    log::start(LevelFilter::INFO);
    let options = Options {
        machine: args.machine.description()?,
        window: args.window,
        gtt: args.gtt,
        method: match args.register {
            Register::Batch => Method::Batch,
            Register::PerRange => Method::PerRange,
            Register::Remap => Method::Remap,
        },
        sabotage: args.sabotage(),
    };
    let served = match args.loopback {
        true => socket_server::serve(&args.socket, options, args.once),
        false => vhost_user::serve(&args.socket, options, args.once),
    };
    served.with_context(|| args.socket.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
