// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All GPUs of a device process: one fabric, one RAM, an executor a GPU, and a heart.
//!
//! The driver relies on the order of starting: everything is in place before READY is written.

use crate::executor::{Executor, Parts};
use crate::interrupts::{signal, InterruptLine, Names};
use crate::ivshmem::Setup;
use crate::ram::{GuestRam, RamError};
use crate::registers::Registers;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vkfd_gpu::{Config, Fabric, Gpu, GpuError, PhysAddr, Vram, VramError, CLOCK_HZ};
use vkfd_host::Target;
use vkfd_sabotage::Switches;
use vkfd_wire::layout;

/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(20);

/// Why GPUs cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The server's BAR is of another version.
    #[error("the server's BAR is of another version: run server and device from one build")]
    Version,
    /// No eventfd to interrupt the guest.
    #[error("the server sent no eventfd for the guest")]
    NoGuest,
    /// The guest's RAM, where VRAM is to be in it.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// There is no RAM where VRAM is to be.
    #[error("the guest has no {bytes:#x} bytes of RAM at {at}: give --vram-in-ram another address, or the guest more memory")]
    NoRam {
        at: PhysAddr,
        /// How much.
        bytes: u64,
    },
    #[error(transparent)]
    Vram(#[from] VramError),
    /// A GPU.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Mapping, or a thread.
    #[error("cannot start the GPUs: {0}")]
    Os(#[from] io::Error),
}

/// What the GPUs are.
#[derive(Clone, Debug)]
pub struct Model {
    /// `gpu_id` of the first; the others count up.
    pub first_gpu_id: u32,
    /// VRAM of each in bytes.
    pub vram_bytes: u64,
    /// Where in the guest's RAM the VRAM of the first is, the others' following; `None`: in the
    /// BAR.
    pub vram_in_ram: Option<PhysAddr>,
    pub target: Target,
    /// Whether they can retry page faults.
    pub xnack_capable: bool,
    /// Threads of each that run kernels; 0 for as many as there are processors.
    pub threads: usize,
    /// Compute units of each, at most the product's; `None`: as many.
    pub units: Option<u32>,
    /// What is broken of each on purpose.
    pub sabotage: Switches,
}

impl Default for Model {
    /// A gfx900 with 254 MiB, which makes a BAR of 256 MiB.
    fn default() -> Self {
        Self {
            first_gpu_id: 0x4b01,
            vram_bytes: 254 << 20,
            vram_in_ram: None,
            target: Target::Gfx900,
            xnack_capable: true,
            threads: 0,
            units: None,
            sabotage: Switches::NONE,
        }
    }
}

impl Model {
    /// Bytes of the BAR of such a GPU: a power of two.
    pub fn bar_bytes(&self) -> u64 {
        let vram = if self.vram_in_ram.is_some() { 0 } else { self.vram_bytes };
        (layout::VRAM_ALIGN + vram).next_power_of_two()
    }

    /// Where in the guest's RAM the VRAM of GPU number `index` is.
    fn vram_phys(&self, index: usize) -> Option<PhysAddr> {
        self.vram_in_ram.map(|first| PhysAddr(first.0 + index as u64 * self.vram_bytes))
    }

    /// The VRAM of GPU number `index`, whose BAR is in `memory`.
    fn vram(&self, index: usize, memory: OwnedFd, ram: &GuestRam) -> Result<Vram, DeviceError> {
        let Some(at) = self.vram_phys(index) else {
            return Ok(Vram::from_fd_at(memory, layout::VRAM_ALIGN, self.vram_bytes)?);
        };
        // The machine's maker has made the file already: there is no driver yet that could tell
        // when it is there.
        ram.open()?;
        let bytes = self.vram_bytes;
        let (file, offset) = ram.part(at, bytes)?.ok_or(DeviceError::NoRam { at, bytes })?;
        Ok(Vram::from_fd_at(file, offset, bytes)?)
    }
}

/// A GPU that runs.
struct Unit {
    registers: Arc<Registers>,
    gpu: Arc<Gpu>,
    line: Arc<InterruptLine>,
    kick: Arc<OwnedFd>,
    executor: Option<JoinHandle<()>>,
}

/// The GPUs. Dropping them stops them.
pub struct Device {
    units: Vec<Unit>,
    stop: Arc<AtomicBool>,
    heart: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts one GPU for each setup, in the epoch that their server has announced.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn start(setups: Vec<Setup>, model: &Model, ram: &Arc<GuestRam>) -> Result<Self, DeviceError> {
        let mut vrams = Vec::new();
        let mut bars = Vec::new();
        for (index, setup) in setups.into_iter().enumerate() {
            let registers = Arc::new(Registers::map(&setup.memory)?);
            let version = (registers.read(layout::MAGIC), registers.read(layout::VERSION));
            if version != (layout::MAGIC_VALUE, layout::VERSION_VALUE) {
                return Err(DeviceError::Version);
            }
            let Setup { memory, interrupt: kick, mut peers, .. } = setup;
            let guest = peers.remove(&layout::GUEST_PEER).ok_or(DeviceError::NoGuest)?;
            vrams.push(model.vram(index, memory, ram)?);
            bars.push((registers, Arc::new(kick), guest));
        }
        let fabric = Fabric::with_vrams(vrams)?;
        // From here on dropping `this` stops what has been started.
        let mut this = Self { units: Vec::new(), stop: Arc::default(), heart: None };
        for (index, (registers, kick, guest)) in bars.into_iter().enumerate() {
            this.start_unit(index, registers, kick, guest, model, &fabric, ram)?;
        }
        let (stop, all) = (this.stop.clone(), this.units.iter().map(|unit| unit.registers.clone()).collect::<Vec<_>>());
        this.heart = Some(std::thread::Builder::new().name("heart".into()).spawn(move || beat(&all, &stop))?);
        for unit in &this.units {
            unit.registers.write(layout::READY, unit.registers.read(layout::EPOCH));
            unit.line.nudge();
        }
        Ok(this)
    }

    #[allow(clippy::too_many_arguments)] // each of them once
    fn start_unit(
        &mut self,
        index: usize,
        registers: Arc<Registers>,
        kick: Arc<OwnedFd>,
        guest: OwnedFd,
        model: &Model,
        fabric: &Arc<Fabric>,
        ram: &Arc<GuestRam>,
    ) -> Result<(), DeviceError> {
        let names = Arc::new(Names::default());
        let line = Arc::new(InterruptLine::new(registers.clone(), guest, names.clone())?);
        // The guest's driver shows the same model.
        let product = *model.target.model();
        let product = model.units.map_or(product, |units| product.with_units(units));
        let config = Config {
            vram_bytes: model.vram_bytes,
            family: model.target.family(),
            target: Some(model.target),
            units: vkfd_gpu::Units {
                count: product.units,
                engines: product.engines,
                arrays: product.arrays,
                waves: product.simd_per_unit * product.waves_per_simd,
            },
            shader_mhz: product.clock_mhz,
            threads: model.threads,
            name: model.target.to_string(),
            ..Config::default()
        };
        let vmids = config.vmids;
        let gpu = Gpu::new(config, index, fabric.clone(), ram.clone(), line.clone())?;
        gpu.sabotage().set(model.sabotage);
        let gpu_id = u64::from(model.first_gpu_id) + index as u64;
        for (register, value) in [
            (layout::HEARTBEAT, 0),
            (layout::ASLEEP, 0),
            (layout::INTERRUPTS, 0),
            (layout::GPU_ID, gpu_id),
            (layout::VRAM_AT, layout::VRAM_ALIGN),
            (layout::VRAM_PHYS, model.vram_phys(index).map_or(0, |at| at.0)),
            (layout::VRAM_BYTES, model.vram_bytes),
            (layout::VRAM_BASE, fabric.base(index).0),
            (layout::VMIDS, vmids.into()),
            (layout::GFX_TARGET, model.target.version().into()),
            (layout::FLAGS, if model.xnack_capable { layout::CAN_RETRY } else { 0 }),
            (layout::CLOCK_HZ, CLOCK_HZ),
            (layout::UNITS, product.units.into()),
        ] {
            registers.write(register, value);
        }
        let epoch = registers.read(layout::EPOCH);
        let parts = Parts {
            registers: registers.clone(),
            gpu: gpu.clone(),
            ram: ram.clone(),
            line: line.clone(),
            names,
            kick: kick.clone(),
            vmids,
            epoch,
        };
        let executor = Executor::new(parts);
        let stop = self.stop.clone();
        let thread = std::thread::Builder::new().name(format!("gpu{index}")).spawn(move || executor.run(&stop))?;
        tracing::info!(
            index,
            epoch,
            "GPU {gpu_id:#x}: {}, {} MiB of VRAM, fabric {:#x}",
            model.target,
            model.vram_bytes >> 20,
            fabric.base(index).0
        );
        self.units.push(Unit { registers, gpu, line, kick, executor: Some(thread) });
        Ok(())
    }

    /// The GPUs themselves, to inspect them.
    pub fn gpus(&self) -> impl Iterator<Item = &Arc<Gpu>> {
        self.units.iter().map(|unit| &unit.gpu)
    }
}

fn beat(all: &[Arc<Registers>], stop: &AtomicBool) {
    let mut count = 0u64;
    while !stop.load(Ordering::SeqCst) {
        count += 1;
        for registers in all {
            registers.write(layout::HEARTBEAT, count);
        }
        std::thread::sleep(HEARTBEAT);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for unit in &mut self.units {
            signal(&unit.kick);
            if let Some(thread) = unit.executor.take() {
                let _ = thread.join();
            }
        }
        if let Some(thread) = self.heart.take() {
            let _ = thread.join();
        }
        for Unit { registers, gpu, line, .. } in self.units.drain(..) {
            let ended = Arc::downgrade(&gpu);
            // Ends its queues.
            drop(gpu);
            let epoch = registers.read(layout::EPOCH);
            if ended.strong_count() == 0 && registers.read(layout::READY) == epoch {
                // An orderly end is one that the guest can rely on, also when there is no server
                // any more to confirm it.
                registers.write(layout::DEAD, epoch);
                line.nudge();
            }
        }
    }
}
