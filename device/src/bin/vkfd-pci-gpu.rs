// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd-pci-gpu`: a GPU for a virtual machine whose driver is AMD's own.
//!
//! Exit codes: 0 the guest has gone (`--once`) or the files are written, 1 something failed, 2
//! wrong usage.

use anyhow::{Context, Result};
use clap::Parser;
use std::convert::Infallible;
use std::ffi::CStr;
use std::io::IsTerminal;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{fmt, fs};
use tracing_subscriber::filter::EnvFilter;
use vkfd_asic::{ucode, Asic, Shape};
use vkfd_device::vfio_user::server::{Guest, Server};
use vkfd_driver::base::addr::FabricAddr;
use vkfd_driver::seams::gpu::GpuProperties;
use vkfd_driver::topology::{self, Name, Processors, Sink};
use vkfd_gpu::{Config, Vram, CLOCK_HZ, VRAM_GRANULE};
use vkfd_host::{size, Target};

/// A software GPU as a PCI device that Linux's amdgpu binds to
///
/// It is an MI210 (gfx90a) behind vfio-user. The guest's memory must be shared, and the guest's
/// kernel needs the firmware files that `--write-firmware` makes.
#[derive(Parser)]
#[command(name = "vkfd-pci-gpu", version, after_long_help = EXAMPLES)]
struct Cli {
    /// Where QEMU finds the device: a unix socket
    #[arg(long, value_name = "PATH", required_unless_present_any = ["write_firmware", "topology"])]
    socket: Option<PathBuf>,
    /// VRAM, a multiple of 2M; all of it is in a BAR, so it has to be a power of two
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = vram)]
    vram: u64,
    /// Threads that run kernels [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// End when the guest has gone. Otherwise wait for the next one, which finds a fresh device
    #[arg(long)]
    once: bool,
    /// Write what the device has done into this file when a guest has gone
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Write the firmware files that amdgpu asks for into this directory, and end
    #[arg(long, value_name = "DIR")]
    write_firmware: Option<PathBuf>,
    /// Print the topology's files as vkfd's own driver shows them, each after its path, and end
    #[arg(long)]
    topology: bool,
}

const EXAMPLES: &str = "\
Example:
  vkfd-pci-gpu --socket /tmp/gpu &
  qemu-system-x86_64 -machine q35,memory-backend=ram -m 2G \\
      -object memory-backend-memfd,id=ram,size=2G,share=on \\
      -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/gpu\"}}' ...

  In the guest: modprobe amdgpu fw_load_type=0 ip_block_mask=0x1f gpu_recovery=0

  RUST_LOG=debug shows page faults, queues and refused requests.";

fn vram(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if !bytes.is_power_of_two() || bytes % VRAM_GRANULE != 0 || !(1 << 28..=1 << 40).contains(&bytes) {
        return Err(format!("{text} is not a power of two from 256M to 1T"));
    }
    Ok(bytes)
}

fn write_firmware(directory: &Path, shape: &Shape) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    for file in ucode::files(shape) {
        let path = directory.join(file.name);
        fs::write(&path, &file.bytes).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// A topology's files as one text.
#[derive(Default)]
struct Files {
    path: Vec<String>,
    text: String,
}

impl Sink for Files {
    type Error = Infallible;

    fn enter(&mut self, name: Name) -> Result<(), Infallible> {
        self.path.push(match name {
            Name::Word(word) => word.to_string_lossy().into_owned(),
            Name::Number(number) => number.to_string(),
        });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Infallible> {
        self.path.pop();
        Ok(())
    }

    fn file(&mut self, name: &'static CStr, text: &dyn fmt::Display) -> Result<(), Infallible> {
        // As find names them in the topology's directory.
        let directories = self.path.get(1..).unwrap_or_default();
        let directory: String = directories.iter().map(|name| format!("{name}/")).collect();
        self.text += &format!("== ./{directory}{}\n{text}", name.to_string_lossy());
        Ok(())
    }
}

/// The topology of a machine with such a GPU.
fn topology(target: Target, vram_bytes: u64) -> String {
    let properties = GpuProperties {
        gpu_id: 1,
        vram_bytes,
        vram_base: FabricAddr(0),
        vmids: 16,
        gfx_target_version: target.version(),
        model: *target.model(),
        xnack_capable: true,
        clock_hz: CLOCK_HZ,
    };
    let gpus = [topology::Gpu { properties: &properties, render_minor: topology::FIRST_RENDER_MINOR }];
    let processors = Processors { cores: 1, first_apic: 0, ram: 1 << 30 };
    let mut sink = Files::default();
    let machine = topology::Machine { processors, gpus: &gpus, coherent: false, svm: true };
    let Ok(()) = machine.render(&mut sink);
    sink.text
}

fn run(cli: &Cli) -> Result<()> {
    let target = Target::Gfx90a;
    let shape = Shape::of(target.model()).context("PCI numbers")?;
    if cli.topology {
        print!("{}", topology(target, cli.vram));
        return Ok(());
    }
    if let Some(directory) = &cli.write_firmware {
        return write_firmware(directory, &shape);
    }
    let path = cli.socket.as_deref().context("--socket is missing")?;
    let guest = Arc::new(Guest::default());
    let config = Config {
        family: target.family(),
        target: Some(target),
        threads: cli.threads.unwrap_or(0).into(),
        name: target.to_string(),
        ..Config::default()
    };
    let vram = Vram::create(cli.vram)?;
    let asic = Asic::new(shape, config, vram, guest.clone(), guest.clone())?;
    let server = Server::new(asic, guest);
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listen at {}", path.display()))?;
    tracing::info!(socket = %path.display(), vram_mib = cli.vram >> 20, "waiting for QEMU");
    loop {
        let (stream, _) = listener.accept().context("accept a connection")?;
        // A VMM that breaks the protocol loses its device; the next one finds a fresh one.
        let (served, summary) = server.serve(&stream);
        if let Err(error) = &served {
            tracing::warn!(%error, "the connection ends");
        }
        tracing::info!("the guest has gone");
        if let Some(path) = &cli.summary {
            fs::write(path, summary.to_string()).with_context(|| format!("write {}", path.display()))?;
        }
        if cli.once {
            return served.context("serve");
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vkfd-pci-gpu: {error:#}");
            ExitCode::FAILURE
        }
    }
}
