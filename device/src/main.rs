// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd-gpu`: a GPU for a virtual machine.
//!
//! Exit codes: 0 the guests have gone (`--once`) or the server has, 1 something failed, 2 wrong
//! usage.

use anyhow::{bail, Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use tracing_subscriber::filter::{dynamic_filter_fn, EnvFilter, FilterExt};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use vkfd_device::device::{Device, Model};
use vkfd_device::ivshmem;
use vkfd_device::ram::{BelowFourGib, GuestRam};
use vkfd_device::server::{device_socket, guest_socket, Options, Server};
use vkfd_gpu::{PhysAddr, VRAM_GRANULE};
use vkfd_host::{size, LogRate, Target};
#[cfg(debug_assertions)]
use vkfd_sabotage::Switches;

/// A software GPU as a PCI device of a QEMU guest
///
/// To the guest it is QEMU's ivshmem device: BAR 2 holds registers and VRAM, the doorbell register
/// wakes the GPU, MSI-X interrupts the guest. The GPU walks page tables in the BAR and accesses the
/// guest's RAM through the file that QEMU keeps it in. The guest's driver is the vkfd kernel
/// module.
///
/// Two processes: a server, which QEMU talks to, and a device process, which runs the GPUs. If the
/// device process dies, the guest's driver is told, its queues end, and the server starts the next
/// one on the same VRAM.
#[derive(Parser)]
#[command(name = "vkfd-gpu", version, after_long_help = EXAMPLES)]
struct Cli {
    /// Where QEMU finds the GPU: a unix socket. With several GPUs they are PATH.0, PATH.1, ...;
    /// PATH.device is for the device process
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// File with the guest's RAM: mem-path of QEMU's memory-backend-file, or /proc/QEMU/fd/N of a
    /// memory-backend-memfd
    ///
    /// It is opened when the guest's driver has found the device. Needed unless --part server.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["part"])]
    ram: Option<PathBuf>,
    /// VRAM of each GPU, a multiple of 2M
    ///
    /// The BAR is the next power of two that holds it and 2M of registers, so a power of two less
    /// 2M wastes no addresses. Memory is used as the guest uses VRAM.
    #[arg(long, value_name = "SIZE", default_value = "254M", value_parser = vram)]
    vram: u64,
    /// VRAM is in the guest's RAM, from this physical address on, one GPU's after the other's: a
    /// multiple of 2M
    ///
    /// As on machines whose firmware reports the GPU's memory as special-purpose memory. The guest
    /// must be kept from using it itself (`memmap=` on a Linux guest's command line). The file with
    /// the RAM must be there, at its size, when this program starts.
    #[arg(long, value_name = "ADDRESS", value_parser = vram_address)]
    vram_in_ram: Option<u64>,
    /// Number of GPUs, a PCI device each, in one fabric
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    gpus: u32,
    /// What they are
    #[arg(long, value_name = "NAME", default_value = "gfx900", value_parser = target())]
    target: Target,
    /// They cannot retry page faults
    #[arg(long)]
    no_xnack: bool,
    /// Threads of each GPU that run kernels [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Compute units of each GPU [default: as many as the target's product has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cus: Option<u32>,
    /// QEMU's -machine: says how much of the RAM is below 4 GiB
    #[arg(long, value_enum, default_value_t = Machine::Pc)]
    machine: Machine,
    /// How much of the RAM is below 4 GiB, for other machines and for max-ram-below-4g
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    below_4g: Option<u64>,
    /// End when the guest has gone. Otherwise wait for the next one, which finds a fresh GPU
    #[arg(long)]
    once: bool,
    /// Do not start another device process when one has died; only when the driver asks for a reset
    #[arg(long)]
    no_restart: bool,
    /// Run only one of the two processes, for instance the device process under a debugger
    #[arg(long, value_enum, default_value_t = Part::All, overrides_with = "part")]
    part: Part,
    /// Break the GPU on purpose, to see that a test notices
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "NAMES", value_parser = sabotage, default_value = "", hide_default_value = true)]
    sabotage: Switches,
}

const EXAMPLES: &str = "\
Examples:
  vkfd-gpu --socket /tmp/gpu --ram /dev/shm/guest --vram 510M &
  qemu-system-x86_64 -m 2G -machine pc,memory-backend=ram \\
      -object memory-backend-file,id=ram,size=2G,mem-path=/dev/shm/guest,share=on \\
      -chardev socket,id=gpu,path=/tmp/gpu -device ivshmem-doorbell,chardev=gpu,vectors=1 ...

  Two GPUs:
  vkfd-gpu --socket /tmp/gpu --gpus 2 ...
      -chardev socket,id=gpu0,path=/tmp/gpu.0 -device ivshmem-doorbell,chardev=gpu0,vectors=1
      -chardev socket,id=gpu1,path=/tmp/gpu.1 -device ivshmem-doorbell,chardev=gpu1,vectors=1

  A device process of your own:
  vkfd-gpu --socket /tmp/gpu --part server &
  gdb --args vkfd-gpu --socket /tmp/gpu --ram /dev/shm/guest --part device

  RUST_LOG=debug shows page faults and refused commands, RUST_LOG=vkfd_device=trace every command.";

#[derive(Clone, Copy, ValueEnum)]
enum Machine {
    /// QEMU's machine type i440FX
    Pc,
    /// QEMU's machine type Q35
    Q35,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Both, the server starting the device process
    All,
    /// The server; somebody else starts the device process
    Server,
    /// The device process
    Device,
}

fn target() -> impl TypedValueParser<Value = Target> {
    let names = Target::ALL.map(|target| PossibleValue::new(target.name()).help(target.product()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Target>())
}

#[cfg(debug_assertions)]
fn sabotage(text: &str) -> Result<Switches, String> {
    let parts = [vkfd_sabotage::Part::Gpu, vkfd_sabotage::Part::Cu];
    vkfd_sabotage::parse(text, &parts, vkfd_gpu::sabotage_value).map_err(|bad| bad.to_string())
}

fn vram(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes == 0 || bytes % VRAM_GRANULE != 0 || bytes > 1 << 40 {
        return Err(format!("{text} is not a multiple of 2M up to 1T"));
    }
    Ok(bytes)
}

fn vram_address(text: &str) -> Result<u64, String> {
    let at = size::parse(text)?;
    if at == 0 || at % VRAM_GRANULE != 0 {
        return Err(format!("{text} is not a multiple of 2M"));
    }
    Ok(at)
}

impl Cli {
    fn model(&self) -> Model {
        Model {
            vram_bytes: self.vram,
            vram_in_ram: self.vram_in_ram.map(PhysAddr),
            target: self.target,
            xnack_capable: !self.no_xnack,
            threads: self.threads.unwrap_or(0).into(),
            units: self.cus,
            #[cfg(debug_assertions)]
            sabotage: self.sabotage,
            ..Model::default()
        }
    }

    fn below_4g(&self) -> BelowFourGib {
        match (self.below_4g, self.machine) {
            (Some(bytes), _) => BelowFourGib::Bytes(bytes),
            (None, Machine::Pc) => BelowFourGib::Pc,
            (None, Machine::Q35) => BelowFourGib::Q35,
        }
    }

    fn serve(&self) -> Result<()> {
        let start: Option<Box<dyn Fn() -> Command>> = match self.part {
            Part::All => {
                let program = std::env::current_exe().context("find this program")?;
                let arguments: Vec<_> = std::env::args_os().skip(1).collect();
                Some(Box::new(move || {
                    let mut command = Command::new(&program);
                    command.args(&arguments).args(["--part", "device"]).stdin(Stdio::null());
                    command
                }))
            }
            _ => None,
        };
        let bar_bytes = self.model().bar_bytes();
        let options = Options {
            socket: self.socket.clone(),
            gpus: self.gpus,
            bar_bytes,
            start,
            restart: !self.no_restart,
            once: self.once,
        };
        let mut server = Server::new(options).context("start the server")?;
        for index in 0..self.gpus {
            let socket = guest_socket(&self.socket, index, self.gpus);
            tracing::info!(socket = %socket.display(), bar_mib = bar_bytes >> 20, "waiting for QEMU");
        }
        server.run().context("serve")
    }

    fn run_device(&self, ram: &Path) -> Result<()> {
        let socket = device_socket(&self.socket);
        let stream = UnixStream::connect(&socket)
            .with_context(|| format!("connect to {}: is a server running there?", socket.display()))?;
        let setups = (0..self.gpus).map(|_| ivshmem::accept_offer(&stream)).collect::<std::io::Result<Vec<_>>>();
        let setups =
            setups.context("get the GPUs from the server: has it a device process already, or another --gpus?")?;
        let ram = Arc::new(GuestRam::new(ram.into(), self.below_4g()));
        let device = Device::start(setups, &self.model(), &ram)?;
        // The server sends nothing more: what comes is its end.
        let end = ivshmem::receive(&stream);
        tracing::info!(?end, "the server has gone");
        drop(device);
        Ok(())
    }
}

fn run(cli: &Cli) -> Result<()> {
    let most = cli.target.model().units;
    if let Some(units) = cli.cus.filter(|units| *units > most) {
        bail!("{units} compute units: {} has {most}", cli.target);
    }
    match (cli.part, &cli.ram) {
        (Part::Device, Some(ram)) => cli.run_device(ram),
        (Part::Server, _) | (Part::All, Some(_)) => cli.serve(),
        (_, None) => bail!("--ram is missing: name the file that the guest's RAM is in"),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let rate = LogRate::default();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(filter.and(dynamic_filter_fn(move |place, _| place.is_span() || rate.admits(place))));
    tracing_subscriber::registry().with(lines).init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vkfd-gpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}
