// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A machine: GPUs with a driver, in this process. [`Machine::open`] is `open("/dev/kfd")`,
//! [`KfdFile`] the open file.
//!
//! After a fork the child has the handles but none of the threads. Calls on its files return EBADF,
//! as KFD's do, and dropping a handle there frees nothing. It can make a machine of its own, as a
//! child can open KFD's device again.

use crate::address_space::ProcessMemory;
use crate::blocks::Blocks;
use crate::device::{HostBus, HostGpu, InterruptLine};
use crate::device_file::DeviceFile;
use crate::devices::{Devices, Gate};
use crate::error::HostError;
use crate::files::HostFiles;
use crate::kfd_file::KfdFile;
use crate::mm::Mm;
use crate::render_file::RenderFile;
use crate::shape::Shape;
use crate::source::{Capabilities, Source};
use crate::timeline::GpuEvents;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};
use vkfd_driver::base::addr::{index, FabricAddr, PAGE};
use vkfd_driver::device::limit::Limit;
use vkfd_driver::drm;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os;
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_driver::seams::gpu::{Gpu, GpuProperties, Interrupts};
use vkfd_driver::targets::Target;
use vkfd_rt::word::Word;

/// The ranks of the driver's locks that a thread holds.
static RANKS: Word = Word::new();
/// `gpu_id` of the first GPU; the others count up.
const FIRST_GPU_ID: u32 = 0x4b01;

/// What machine to make: how many GPUs, which, with how much memory. The defaults do for a first
/// try.
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// GPUs, 1 to 32.
    pub gpus: u32,
    /// VRAM of each in bytes, a multiple of 2 MiB. Costs memory only where it is used.
    pub vram_bytes: u64,
    /// What they are.
    pub target: Target,
    /// Their parts with another description than their target's.
    pub shape: Shape,
    /// Whether they can retry page faults.
    pub xnack_capable: bool,
    /// Where notifications of changed CPU mappings come from. One for all machines of a process.
    pub source: Source,
    /// Whether all memory that clients map is in one file ([`Machine::device_file`]), for clients
    /// that open devices by path.
    pub device_file: bool,
    /// Threads of each GPU that run a kernel; 0 for as many as there are processors.
    pub threads: usize,
    /// What hardware does not do, and the engine could, ends a kernel.
    pub strict: bool,
    /// Whether hot code of kernels is translated to code of the host.
    pub translate: vkfd_gpu::Translate,
    /// Whether translated code is listed for perf.
    pub perf_map: bool,
    /// In which order kernels' work-groups and waves run.
    pub schedule: vkfd_gpu::Schedule,
    /// What kernels are checked for, and where that is reported.
    pub checking: Option<vkfd_gpu::Checking>,
    /// Where kernels' costs are added up.
    pub profile: Arc<vkfd_gpu::Profile>,
    /// Where it is recorded when kernels and copies ran and what the driver reported, if that is
    /// wanted.
    pub timeline: Option<Arc<vkfd_gpu::Timeline>>,
    /// The driver's own options.
    pub driver: Options,
}

impl Default for MachineOptions {
    /// One gfx900 with 1 GiB, XNACK capable; the driver's memory limit follows this computer's RAM.
    fn default() -> Self {
        let mut driver = Options::default();
        // SAFETY: no preconditions.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
        if let Some(ram) = u64::try_from(pages).ok().filter(|p| *p != 0).and_then(|p| p.checked_mul(PAGE)) {
            driver.ram = ram;
        }
        Self {
            gpus: 1,
            vram_bytes: 1 << 30,
            target: Target::Gfx900,
            shape: Shape::default(),
            xnack_capable: true,
            source: Source::Auto,
            device_file: false,
            threads: 0,
            strict: false,
            translate: vkfd_gpu::Translate::default(),
            perf_map: false,
            schedule: vkfd_gpu::Schedule::Usual,
            checking: None,
            profile: Arc::new(vkfd_gpu::Profile::new(None)),
            timeline: None,
            driver,
        }
    }
}

impl MachineOptions {
    /// The properties of GPU number `index` of such a machine. Only the machine knows its VRAM's
    /// address in the fabric.
    pub fn gpu_properties(&self, index: u32) -> GpuProperties {
        GpuProperties {
            gpu_id: FIRST_GPU_ID + index,
            vram_bytes: self.vram_bytes,
            vram_base: FabricAddr(0),
            vmids: vkfd_gpu::Config::default().vmids,
            gfx_target_version: self.target.version(),
            model: self.shape.of(self.target),
            xnack_capable: self.xnack_capable,
            clock_hz: vkfd_gpu::CLOCK_HZ,
        }
    }
}

struct WorkThread(vkfd_rt::thread::Thread);

impl os::HostThread for WorkThread {
    fn is_current(&self) -> bool {
        self.0.is_current()
    }

    fn join(self: Box<Self>) {
        self.0.join();
    }
}

/// The driver's threads.
fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> Option<Box<dyn os::HostThread>> {
    Some(Box::new(WorkThread(vkfd_rt::thread::spawn(name, run).ok()?)))
}

/// Software GPUs with a driver of their own, in this process. Several clients may open one machine,
/// each as a process of its own; make it by itself when you want that, or want to look into the
/// driver. For a single client `Client::embedded` of vkfd-client is enough.
pub struct Machine {
    devices: Arc<Devices>,
}

impl Machine {
    /// Makes one.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn new(options: &MachineOptions) -> Result<Self, HostError> {
        os::set_log(|message| tracing::warn!("{message}"));
        os::set_spawn(spawn);
        os::set_place_of_ranks((|| RANKS.get(), |ranks| _ = RANKS.set(ranks)));
        if options.gpus == 0 {
            return Err(HostError::Option("a machine has at least one GPU".into()));
        }
        let mm = Mm::get(options.source)?;
        let no_vram = |e: vkfd_gpu::VramError| HostError::Option(e.to_string());
        let file = match options.device_file {
            true => Some(Arc::new(DeviceFile::new().map_err(|e| HostError::DeviceFile(e.to_string()))?)),
            false => None,
        };
        let vram = |gpu| match &file {
            Some(file) => file.vram(gpu, options.vram_bytes),
            None => vkfd_gpu::Vram::create(options.vram_bytes),
        };
        let vrams = (0..options.gpus).map(vram).collect::<Result<_, _>>().map_err(no_vram)?;
        let fabric = vkfd_gpu::Fabric::with_vrams(vrams).map_err(no_vram)?;
        let bus = Arc::new(HostBus::new(mm));
        let mut lines = Vec::new();
        let mut gpus = Vec::new();
        for i in 0..options.gpus {
            let model = options.gpu_properties(i).model;
            let line = Arc::new(InterruptLine::new(FIRST_GPU_ID + i));
            let config = vkfd_gpu::Config {
                vram_bytes: options.vram_bytes,
                family: options.target.family(),
                target: Some(options.target),
                units: vkfd_gpu::Units {
                    count: model.units,
                    engines: model.engines,
                    arrays: model.arrays,
                    waves: model.simd_per_unit * model.waves_per_simd,
                },
                shader_mhz: model.clock_mhz,
                threads: options.threads,
                strict: options.strict,
                translate: options.translate,
                perf_map: options.perf_map,
                schedule: options.schedule,
                checking: options.checking.clone(),
                profile: options.profile.clone(),
                timeline: options.timeline.clone(),
                name: options.target.to_string(),
                ..vkfd_gpu::Config::default()
            };
            let vram_base = FabricAddr(fabric.base(index(i.into())).0);
            let properties = GpuProperties { vram_base, vmids: config.vmids, ..options.gpu_properties(i) };
            let gpu = vkfd_gpu::Gpu::new(config, index(i.into()), fabric.clone(), bus.clone(), line.clone())
                .map_err(|e| HostError::Gpu { index: i, why: e.to_string() })?;
            gpu.sabotage().set(options.driver.sabotage);
            lines.push(line.clone());
            gpus.push(Arc::new(HostGpu::new(mm, gpu, line, properties, file.clone())));
        }
        let kfd = Self::start_driver(&gpus, options.driver).map_err(|e| HostError::Driver(e.errno.name().into()))?;
        for line in lines {
            let driver: Weak<Kfd> = Arc::downgrade(&kfd);
            line.connect(driver as Weak<dyn Interrupts>);
        }
        let gate = Arc::new(Gate(gpus));
        if !mm.add_gate(gate.clone()) {
            return Err(HostError::Option("too many machines in one process".into()));
        }
        let ledger = options.checking.as_ref().map(|checking| checking.ledger.clone());
        Ok(Self { devices: Arc::new(Devices { mm, kfd, gate, file, timeline: options.timeline.clone(), ledger }) })
    }

    fn start_driver(gpus: &[Arc<HostGpu>], options: Options) -> vkfd_driver::base::errno::Result<Arc<Kfd>> {
        let mut seam = os::Vec::with_capacity(gpus.len())?;
        for gpu in gpus {
            let gpu: Arc<dyn Gpu> = gpu.clone();
            seam.push(gpu)?;
        }
        Kfd::with_files(seam, options, os::arc(HostFiles::default())?)
    }

    /// Opens the device: a new process object of the driver, without a VM.
    ///
    /// # Errors
    /// The errno.
    pub fn open(&self) -> Result<KfdFile, i32> {
        let memory = os::arc(ProcessMemory::with_gpus(self.devices.mm, self.gpus())).map_err(|e| e.errno.0)?;
        let file = self.open_with(memory, self.devices.kfd.limit().clone())?;
        file.list()?;
        Ok(file)
    }

    /// Opens the device for a process with this memory; what it registers counts in an account.
    pub(crate) fn open_with(&self, memory: Arc<dyn AddressSpace>, registered: Arc<Limit>) -> Result<KfdFile, i32> {
        if !self.devices.mm.is_current() {
            return Err(libc::EBADF);
        }
        let process = self.devices.kfd.open_accounted(memory, registered).map_err(|e| e.errno.0)?;
        if let Some(timeline) = &self.devices.timeline {
            for (gpu, device) in self.devices.kfd.devices().iter().enumerate() {
                let events = GpuEvents { gpu, timeline: timeline.clone() };
                let events = os::arc(events).map_err(|e| e.errno.0)?;
                process.listen(device.id(), events).map_err(|e| e.errno.0)?;
            }
        }
        let blocks = self.devices.ledger.clone().map(Blocks::new);
        Ok(KfdFile { process, blocks, devices: self.devices.clone() })
    }

    /// Opens the render node of GPU number `index`.
    ///
    /// # Errors
    /// The errno.
    pub fn open_render(&self, index: usize) -> Result<RenderFile, i32> {
        self.open_render_of(index, std::process::id())
    }

    /// The same, for the process with this number; 0 for one elsewhere.
    pub(crate) fn open_render_of(&self, index: usize, pid: u32) -> Result<RenderFile, i32> {
        if !self.devices.mm.is_current() {
            return Err(libc::EBADF);
        }
        let file = drm::RenderFile::of(&self.devices.kfd, index, pid).map_err(|e| e.errno.0)?;
        Ok(RenderFile { file: ManuallyDrop::new(file), devices: self.devices.clone() })
    }

    /// The driver, to inspect it.
    pub fn driver(&self) -> &Arc<Kfd> {
        &self.devices.kfd
    }

    /// The GPUs, by index.
    pub fn gpus(&self) -> &[Arc<HostGpu>] {
        &self.devices.gate.0
    }

    /// The file with all memory that clients map, if the options asked for it.
    pub fn device_file(&self) -> Option<&Arc<DeviceFile>> {
        self.devices.file.as_ref()
    }

    /// What each GPU has done. `suspends` are the driver's evictions only.
    pub fn counters(&self) -> Vec<vkfd_gpu::Counters> {
        self.gpus().iter().map(|gpu| gpu.counters()).collect()
    }

    /// The process's CPU memory.
    pub fn memory(&self) -> &'static Mm {
        self.devices.mm
    }

    /// Which changes of CPU mappings the driver is notified of.
    pub fn capabilities(&self) -> Capabilities {
        self.devices.mm.capabilities()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.devices.keep_in_child();
    }
}
