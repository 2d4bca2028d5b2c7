// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd serve`: one machine for several programs (`vkfd run --shared`).
//!
//! This process has the machine, and is ended by SIGTERM, SIGINT or SIGHUP: programs' calls fail
//! with ENODEV from then on.

pub mod place;

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;
use vkfd_host::size;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::shared_machine::Host;

use self::place::Place;
use crate::log;
use crate::run::{granules, MachineArgs};

#[derive(clap::Args)]
pub struct ServeArgs {
    /// What programs call the machine: up to 32 letters, digits, -, _ and .
    #[arg(default_value = "default")]
    name: String,
    #[command(flatten)]
    machine: MachineArgs,
    /// Most system memory that the machine gives all programs together. Without it: what KFD allows
    /// on this computer, all RAM but 1/64 of it and 1.5 GiB. Memory of the programs' own that they
    /// register does not count
    #[arg(long, value_name = "SIZE", value_parser = granules)]
    gtt: Option<u64>,
}

const ENDS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// A descriptor that can be read when a signal says that it is over. Before any thread is made,
/// which would get the signal.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before use; the descriptor is checked before it is owned.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDS {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// As many descriptors as this process may have at all: each program takes some, and each buffer
/// that has a file.
fn more_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes the local structure.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

pub fn run(args: &ServeArgs) -> Result<ExitCode> {
    log::start(LevelFilter::WARN);
    let stop = signals().context("signals")?;
    more_descriptors();
    let place = Place::take(&args.name)?;
    let machine = args.machine.description()?;
    let host =
        Host::new(Options { machine, gtt: args.gtt, ..Options::default() }).context("the machine cannot be made")?;
    let (gpus, plural) = (machine.gpus, if machine.gpus == 1 { "" } else { "s" });
    println!(
        "{}: {gpus} {} GPU{plural} with {} each. Programs join with: vkfd run --shared {} -- PROGRAM",
        args.name,
        machine.target,
        size::show(machine.vram),
        args.name
    );
    host.serve(&place.listener, stop.as_fd()).with_context(|| place.path().display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
