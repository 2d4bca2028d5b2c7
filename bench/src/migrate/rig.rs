// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The drivers under test: a machine with coherent and one with private memory in this process; or
//! the KFD of a device file, which has one of the two.

use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use vkfd_client::{Client, GpuId, Location, Machine, MachineOptions, Strategy, SvmAccess, SvmSet, UserptrRange};
use vkfd_driver::seams::device_memory::Kind;

use super::cell::Memory;
use crate::rig::Seat;

/// A driver whose memory is of one kind.
pub struct Place {
    /// Its kind.
    pub memory: Memory,
    driver: Driver,
}

enum Driver {
    Here(Machine),
    Device(PathBuf),
}

/// All drivers.
pub struct Rig {
    /// Those that can move memory.
    pub places: Vec<Place>,
    /// Where notifications of changed mappings come from.
    pub source: String,
    /// Why memory cannot be moved in this process, for people, if it cannot.
    pub why_not: Option<String>,
}

/// A client of a place, with a queue, that has memory moved.
pub struct Mover {
    /// The client and its queues.
    pub seat: Seat,
    /// The GPU.
    pub gpu: GpuId,
    /// Bytes of its memory.
    pub vram: u64,
}

impl Rig {
    /// Starts the machines, or opens `device`.
    ///
    /// # Errors
    ///
    /// When they cannot be started or opened.
    pub fn new(device: Option<&Path>) -> Result<Self> {
        let mut rig = Self { places: Vec::new(), source: "kernel".into(), why_not: None };
        let drivers = match device {
            Some(path) => vec![Driver::Device(path.into())],
            None => [Kind::Coherent, Kind::Private].into_iter().map(Driver::here).collect::<Result<_>>()?,
        };
        for driver in drivers {
            if let Driver::Here(machine) = &driver {
                rig.source = machine.memory().source().to_string();
                let why = vkfd_host::migrate::why_not_moved(machine.memory());
                rig.why_not = (!why.is_empty()).then(|| format!("memory cannot be moved in this process: {why}"));
            }
            let memory = Memory::of(driver.open()?.svm().context("this driver does not show SVM memory")?.memory);
            rig.places.extend(memory.map(|memory| Place { memory, driver }));
        }
        Ok(rig)
    }

    /// Whether the driver is a kernel's.
    pub fn in_kernel(&self) -> bool {
        self.places.iter().any(|place| matches!(place.driver, Driver::Device(_)))
    }
}

impl Driver {
    fn here(kind: Kind) -> Result<Self> {
        let mut options = MachineOptions::default();
        options.driver.device_memory = kind;
        Ok(Self::Here(Machine::new(&options).context("cannot start the driver in this process")?))
    }

    fn open(&self) -> Result<Client> {
        match self {
            Self::Here(machine) => Client::on(machine).context("cannot open the driver in this process"),
            Self::Device(path) => Client::open_apart(path).with_context(|| format!("cannot use {}", path.display())),
        }
    }
}

impl Place {
    /// Whether its GPUs can retry page faults.
    ///
    /// # Errors
    ///
    /// When the driver cannot be opened.
    pub fn retries(&self) -> Result<bool> {
        Ok(self.driver.open()?.caps().xnack)
    }

    /// A new client, which retries page faults if `xnack` says so.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn mover(&self, xnack: bool) -> Result<Mover> {
        let client = self.driver.open()?;
        client.set_xnack(xnack).context("cannot switch retrying of page faults")?;
        let gpu = client.gpus().first().context("the machine has no GPU")?;
        let (gpu, vram) = (gpu.id, gpu.vram_bytes);
        Ok(Mover { seat: Seat::new(client, Strategy::Auto)?, gpu, vram })
    }
}

impl Mover {
    /// Says how the GPU may use memory.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn set(&self, memory: UserptrRange, list: &[SvmSet]) -> Result<()> {
        // SAFETY: the benchmark's memory is accessed by raw pointers only.
        unsafe { self.seat.client.svm_set(memory, list)? };
        Ok(())
    }

    /// Memory may move to the GPU.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn give(&self, memory: UserptrRange) -> Result<()> {
        self.set(memory, &[SvmSet::Access(self.gpu, SvmAccess::Migrate)])
    }

    /// Moves memory to the GPU by one request.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn to_gpu(&self, memory: UserptrRange) -> Result<()> {
        Ok(self.seat.client.prefetch(memory, Location::Gpu(self.gpu))?)
    }

    /// Moves memory back by one request.
    ///
    /// # Errors
    ///
    /// What the driver refused.
    pub fn to_system(&self, memory: UserptrRange) -> Result<()> {
        Ok(self.seat.client.prefetch(memory, Location::System)?)
    }

    /// Fails unless as many bytes of the client's memory are on GPUs. What is measured of a move
    /// that did not happen means nothing. Less than a thousandth may be missing: Linux leaves a
    /// page where it is that somebody holds just then, another processor's list of new pages for
    /// example.
    ///
    /// # Errors
    ///
    /// When it is not so.
    pub fn expect_on_gpu(&self, bytes: u64) -> Result<()> {
        let there = self.seat.client.svm()?.vram_pages * vkfd_client::PAGE;
        let right = there <= bytes && bytes - there <= bytes / 1024;
        ensure!(right, "{there:#x} bytes are in the GPU's memory, and {bytes:#x} should be");
        Ok(())
    }
}
