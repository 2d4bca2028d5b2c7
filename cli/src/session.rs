// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The KFD that a command works on: one in this process, or a device file's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::{Args, ValueEnum};
use serde_json::{json, Value};
use vkfd_client::{Client, Machine, MachineOptions};
use vkfd_driver::seams::device_memory::Kind;
use vkfd_driver::userptr::window::WindowPolicy;
use vkfd_host::{Capabilities, HostError};

use crate::format;

/// How long the GPU may take for one piece of work before a command gives up.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How ranges share notifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Windows {
    /// A few notifiers, each for ranges that are near each other.
    Clustered,
    /// A notifier for each range.
    PerRange,
}

/// Which KFD.
#[derive(Args, Clone, Debug)]
pub struct SessionArgs {
    /// Use this KFD device (such as /dev/kfd) instead of the driver and the software GPU in this
    /// process
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,

    /// Number of software GPUs; memory is mapped on all of them
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "device", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub gpus: u32,

    /// Let the GPUs retry page faults: changed memory is then looked up again when it is accessed,
    /// and no queue is stopped
    #[arg(long)]
    pub xnack: bool,

    /// How the driver watches the ranges for changes
    #[arg(long, value_enum, default_value = "clustered", conflicts_with = "device")]
    pub windows: Windows,
}

/// An open KFD.
pub struct Session {
    /// The connection.
    pub client: Client,
    /// The machine, when it is in this process.
    pub machine: Option<Machine>,
    /// Whether the GPUs retry page faults.
    pub xnack: bool,
}

impl Session {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// When it cannot be opened or has not what was asked for.
    pub fn open(args: &SessionArgs) -> Result<Self> {
        Self::with_memory(args, Kind::default())
    }

    /// As [`Session::open`], with the kind of memory that GPUs have, if the driver is in this
    /// process.
    ///
    /// # Errors
    ///
    /// As [`Session::open`].
    pub fn with_memory(args: &SessionArgs, memory: Kind) -> Result<Self> {
        let (client, machine) = match &args.device {
            Some(path) => {
                let client = Client::open_at(path).with_context(|| {
                    format!("{} cannot be used; without --device the driver runs in this process", path.display())
                })?;
                (client, None)
            }
            None => {
                let mut options = MachineOptions { gpus: args.gpus, ..MachineOptions::default() };
                options.driver.device_memory = memory;
                if args.windows == Windows::PerRange {
                    options.driver.windows = WindowPolicy::PerRange;
                }
                let machine = Machine::new(&options).map_err(|error| {
                    let hint = match error {
                        HostError::BadVariable(_) | HostError::Source { .. } | HostError::SourceTaken { .. } => "",
                        _ => "; it needs a few GiB of addresses (see ulimit -v)",
                    };
                    anyhow::Error::new(error).context(format!("cannot start the driver in this process{hint}"))
                })?;
                (Client::on(&machine).context("cannot open the driver in this process")?, Some(machine))
            }
        };
        if args.xnack {
            if client.caps().vkfd && !client.caps().xnack {
                bail!("this driver's GPUs cannot retry page faults: leave --xnack out");
            }
            client.set_xnack(true).context("cannot switch XNACK (retrying page faults) on; leave --xnack out")?;
        }
        Ok(Self { client, machine, xnack: args.xnack })
    }

    /// What the driver learns of changed mappings: all, if it is a kernel's.
    pub fn hears(&self) -> Capabilities {
        match &self.machine {
            Some(machine) => machine.capabilities(),
            None => Capabilities {
                unmap: true,
                remap: true,
                discard: true,
                protect: true,
                fork: true,
                pageout: true,
                raw_system_calls: true,
                files: true,
                before_change: true,
            },
        }
    }

    /// Where it learns of them from.
    pub fn source(&self) -> String {
        match &self.machine {
            Some(machine) => machine.memory().source().to_string(),
            None => "kernel".to_owned(),
        }
    }

    /// One or two sentences about the KFD and its GPUs.
    pub fn describe(&self) -> String {
        let gpus = self.client.gpus();
        let names = gpus.first().map_or("", |gpu| gpu.name.as_str());
        let vram = format::bytes(gpus.iter().map(|gpu| gpu.vram_bytes).sum());
        let what = if self.machine.is_some() { "software GPU" } else { "GPU" };
        let how = match (&self.machine, self.source().as_str()) {
            (None, _) => "The kernel tells its driver of all changes of CPU mappings.".to_owned(),
            (_, "userfaultfd") => "The driver learns of changes of CPU mappings from the kernel's userfaultfd.".to_owned(),
            (_, "interpose") => {
                "userfaultfd is refused here, so the driver learns of changes of CPU mappings from this program's own libc calls."
                    .to_owned()
            }
            _ => "The driver does not learn of changes of CPU mappings; it finds them when a GPU access fails.".to_owned(),
        };
        let many = format::counted(gpus.len() as u64, what);
        format!("{many} ({names}, {vram} of memory), XNACK (retry of page faults) {}. {how}", on(self.xnack))
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let hears = self.hears();
        json!({
            "in_process": self.machine.is_some(),
            "gpus": self.client.gpus().iter().map(|gpu| json!({
                "gpu_id": gpu.id.to_string(), "name": gpu.name, "vram_bytes": gpu.vram_bytes,
            })).collect::<Vec<_>>(),
            "xnack": self.xnack,
            "batch": self.client.caps().batch || self.client.caps().batch_flag,
            "notifications": {
                "source": self.source(), "unmap": hears.unmap, "remap": hears.remap, "discard": hears.discard,
                "protect": hears.protect, "pageout": hears.pageout, "raw_system_calls": hears.raw_system_calls,
                "files": hears.files,
            },
        })
    }
}

/// `on` or `off`.
pub fn on(yes: bool) -> &'static str {
    if yes {
        "on"
    } else {
        "off"
    }
}
