// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A machine: GPUs with a driver, in this process. [`Machine::open`] is `open("/dev/kfd")`,
//! [`KfdFile`] the open file.
//!
//! After a fork the child has the handles but none of the threads. Calls on its files return EBADF,
//! as KFD's do, and dropping a handle there frees nothing. It can make a machine of its own, as a
//! child can open KFD's device again.

use crate::blocks::Blocks;
use crate::device::{HostBus, HostGpu, InterruptLine};
use crate::device_file::DeviceFile;
use crate::dma::SharedMemory;
use crate::error::HostError;
use crate::files::HostFiles;
use crate::mm::{Mm, Pause};
use crate::shape::Shape;
use crate::source::{Capabilities, Source};
use crate::sys;
use crate::timeline::GpuEvents;
use crate::watch::ProcessMemory;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, FabricAddr, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::device::limit::Limit;
use vkfd_driver::drm;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_driver::seams::gpu::{Gpu, GpuProperties, Interrupts};
use vkfd_driver::targets::Target;
use vkfd_gpu::check::Ledger;

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

/// All GPUs of a machine, paused together.
struct Gate(Vec<Arc<HostGpu>>);

impl Pause for Gate {
    fn pause(&self) {
        self.0.iter().for_each(|gpu| gpu.pause());
    }

    fn unpause(&self) {
        self.0.iter().for_each(|gpu| gpu.unpause());
    }
}

/// What the machine and its open files share.
struct Inner {
    mm: &'static Mm,
    kfd: Arc<Kfd>,
    gate: Arc<Gate>,
    file: Option<Arc<DeviceFile>>,
    timeline: Option<Arc<vkfd_gpu::Timeline>>,
    /// Allocations that checks know.
    ledger: Option<Arc<Ledger>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let gate: Arc<dyn Pause> = self.gate.clone();
        self.mm.remove_gate(&gate);
    }
}

impl Inner {
    /// In a forked child: never drop, because the threads that dropping would wait for are not
    /// there.
    fn keep_in_child(self: &Arc<Self>) -> bool {
        let child = !self.mm.is_current();
        if child {
            std::mem::forget(self.clone());
        }
        child
    }

    /// Maps driver memory, whole pages.
    ///
    /// # Safety
    /// As for mmap.
    unsafe fn map(
        &self,
        mapped: &Mapped,
        hint: *mut c_void,
        bytes: u64,
        prot: i32,
        flags: i32,
    ) -> Result<*mut c_void, i32> {
        let fixed = flags & libc::MAP_FIXED != 0;
        let hint = hint.expose_provenance() as u64;
        if fixed && hint % PAGE != 0 {
            return Err(libc::EINVAL);
        }
        let at = if fixed { hint } else { reserve(hint, bytes, flags)? };
        let span = CpuSpan::new(CpuVa(at), bytes).ok_or(libc::EINVAL)?;
        let mm = self.mm;
        // The host's own calls pass no hook, so what they replace is announced here. userfaultfd
        // shows it by itself.
        let under_way = (mm.source() == Source::Interposed && mm.is_watched(span)).then(|| mm.invalidation(span));
        // SAFETY: the area is reserved for this call, or the caller gave it away with MAP_FIXED.
        let result = unsafe { self.place(mapped, span, prot) };
        if under_way.is_some() {
            mm.memory_gone(span);
        }
        drop(under_way);
        match result {
            Ok(()) => Ok(std::ptr::with_exposed_provenance_mut(index(at))),
            Err(errno) => {
                if !fixed {
                    // SAFETY: the area was reserved by this call, and nobody has seen it.
                    unsafe { sys::unmap(at, bytes) };
                }
                Err(errno)
            }
        }
    }

    /// Maps `mapped` at `span`.
    ///
    /// # Safety
    /// Nothing that Rust relies on is at `span`.
    unsafe fn place(&self, mapped: &Mapped, span: CpuSpan, prot: i32) -> Result<(), i32> {
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOMEM);
        match mapped {
            Mapped::Dma(memory, offset) => {
                let memory = memory.as_any().downcast_ref::<SharedMemory>().ok_or(libc::EINVAL)?;
                // SAFETY: forwarded to the caller.
                unsafe { memory.map_again(*offset, span.bytes(), prot, Some(span.start())) }.map(drop).map_err(errno)
            }
            Mapped::Vram { gpu_id, pieces, .. } => {
                let gpu = self.gate.0.iter().find(|g| g.properties().gpu_id == *gpu_id).ok_or(libc::ENODEV)?;
                let memory = gpu.software().vram();
                let vram = memory.as_fd().as_raw_fd();
                let mut at = span.start().0;
                for (offset, bytes) in pieces.iter() {
                    if at + bytes > span.end().0 {
                        return Err(libc::EINVAL);
                    }
                    let offset = i64::try_from(memory.start() + offset.0).map_err(|_| Errno::EINVAL.0)?;
                    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                    // SAFETY: forwarded to the caller; the piece lies inside `span`.
                    unsafe { sys::mmap(at, *bytes, prot, flags, vram, offset) }.map_err(errno)?;
                    at += bytes;
                }
                Ok(())
            }
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
    inner: Arc<Inner>,
}

impl Machine {
    /// Makes one.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn new(options: &MachineOptions) -> Result<Self, HostError> {
        os::set_log(|message| tracing::warn!("{message}"));
        os::set_spawn(spawn);
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
        Ok(Self { inner: Arc::new(Inner { mm, kfd, gate, file, timeline: options.timeline.clone(), ledger }) })
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
        let memory = os::arc(ProcessMemory::with_gpus(self.inner.mm, self.gpus())).map_err(|e| e.errno.0)?;
        self.open_with(memory, self.inner.kfd.limit().clone())
    }

    /// Opens the device for a process with this memory; what it registers counts in an account.
    pub(crate) fn open_with(&self, memory: Arc<dyn AddressSpace>, registered: Arc<Limit>) -> Result<KfdFile, i32> {
        if !self.inner.mm.is_current() {
            return Err(libc::EBADF);
        }
        let process = self.inner.kfd.open_accounted(memory, registered).map_err(|e| e.errno.0)?;
        if let Some(timeline) = &self.inner.timeline {
            for (gpu, device) in self.inner.kfd.devices().iter().enumerate() {
                let events = GpuEvents { gpu, timeline: timeline.clone() };
                let events = os::arc(events).map_err(|e| e.errno.0)?;
                process.listen(device.id(), events).map_err(|e| e.errno.0)?;
            }
        }
        let blocks = self.inner.ledger.clone().map(Blocks::new);
        Ok(KfdFile { process, blocks, inner: self.inner.clone() })
    }

    /// Opens the render node of GPU number `index`.
    ///
    /// # Errors
    /// The errno.
    pub fn open_render(&self, index: usize) -> Result<RenderFile, i32> {
        if !self.inner.mm.is_current() {
            return Err(libc::EBADF);
        }
        let file = drm::RenderFile::new(&self.inner.kfd, index).map_err(|e| e.errno.0)?;
        Ok(RenderFile { file: ManuallyDrop::new(file), inner: self.inner.clone() })
    }

    /// The driver, to inspect it.
    pub fn driver(&self) -> &Arc<Kfd> {
        &self.inner.kfd
    }

    /// The GPUs, by index.
    pub fn gpus(&self) -> &[Arc<HostGpu>] {
        &self.inner.gate.0
    }

    /// The file with all memory that clients map, if the options asked for it.
    pub fn device_file(&self) -> Option<&Arc<DeviceFile>> {
        self.inner.file.as_ref()
    }

    /// What each GPU has done. `suspends` are the driver's evictions only.
    pub fn counters(&self) -> Vec<vkfd_gpu::Counters> {
        self.gpus().iter().map(|gpu| gpu.counters()).collect()
    }

    /// The process's CPU memory.
    pub fn memory(&self) -> &'static Mm {
        self.inner.mm
    }

    /// Which changes of CPU mappings the driver is notified of.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.mm.capabilities()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.inner.keep_in_child();
    }
}

/// An open device file. Dropping it releases the process: queues, objects, VMs.
pub struct KfdFile {
    process: Arc<Process>,
    /// What checks know of its objects.
    blocks: Option<Blocks>,
    inner: Arc<Inner>,
}

impl KfdFile {
    /// An ioctl. `argument` may be any address: what cannot be accessed is EFAULT.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for ioctl: the command may write to `argument` and to the memory behind its pointers. The
    /// GPU may write to registered memory at any later time.
    pub unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), i32> {
        let at = CpuVa(argument.expose_provenance() as u64);
        let freed = self.blocks.as_ref().and_then(|blocks| blocks.before(self.inner.mm, command, at));
        let result = self.process.ioctl(command, at).map_err(|e| e.errno.0);
        if let Some(blocks) = self.blocks.as_ref().filter(|_| result.is_ok()) {
            blocks.after(self.inner.mm, command, at, freed);
        }
        result
    }

    /// Maps VRAM, GTT memory, doorbells, events or registers, as mmap on the device files does.
    /// `bytes` is rounded up to pages.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for mmap: with `MAP_FIXED`, whatever is at `hint` goes.
    pub unsafe fn mmap(
        &self,
        hint: *mut c_void,
        bytes: usize,
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Result<*mut c_void, i32> {
        if !self.inner.mm.is_current() {
            return Err(libc::EBADF);
        }
        let bytes = (bytes as u64).checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        let mapped = self.process.mmap(offset, bytes).map_err(|e| e.errno.0)?;
        // SAFETY: forwarded to the caller.
        unsafe { self.inner.map(&mapped, hint, bytes, prot, flags) }
    }

    /// Where in the machine's file what [`mmap`](Self::mmap) would map is: places and bytes, in
    /// order.
    ///
    /// # Errors
    /// The errno: mmap's; ENODEV where the machine has no such file.
    pub fn places(&self, offset: u64, bytes: u64) -> Result<Vec<(u64, u64)>, i32> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        match &self.process.mmap(offset, bytes).map_err(|e| e.errno.0)? {
            Mapped::Dma(memory, from) => {
                let memory = memory.as_any().downcast_ref::<SharedMemory>().ok_or(libc::EINVAL)?;
                let start = memory.place().and_then(|at| at.checked_add(*from)).ok_or(libc::ENODEV)?;
                Ok(vec![(start, bytes)])
            }
            Mapped::Vram { gpu_id, pieces, .. } => {
                self.inner.file.as_ref().ok_or(libc::ENODEV)?;
                let gpu = self.inner.gate.0.iter().find(|g| g.properties().gpu_id == *gpu_id).ok_or(libc::ENODEV)?;
                let start = gpu.software().vram().start();
                Ok(pieces.iter().map(|(offset, bytes)| (start + offset.0, *bytes)).collect())
            }
        }
    }

    /// The driver's process, to inspect it.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

/// An area of address space near `hint`, inaccessible.
fn reserve(hint: u64, bytes: u64, flags: i32) -> Result<u64, i32> {
    let wanted = flags & (libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | wanted;
    // SAFETY: without MAP_FIXED nothing that exists is touched.
    unsafe { sys::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) }
        .map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM))
}

impl Drop for KfdFile {
    fn drop(&mut self) {
        if self.inner.keep_in_child() {
            std::mem::forget(self.process.clone());
        } else {
            self.process.release();
        }
    }
}

/// An open render node, with DRM's objects. Dropping it ends them, with their mappings on GPUs.
pub struct RenderFile {
    file: ManuallyDrop<drm::RenderFile>,
    inner: Arc<Inner>,
}

/// The caller of a render node: this process.
struct Caller(ProcessMemory);

impl drm::Caller for Caller {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> vkfd_driver::base::errno::Result {
        self.0.read(from, to)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> vkfd_driver::base::errno::Result {
        self.0.write(to, from)
    }
}

impl RenderFile {
    /// An ioctl; `bound` is the file that ACQUIRE_VM was called on with this one.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for [`KfdFile::ioctl`].
    pub unsafe fn ioctl(&self, bound: Option<&KfdFile>, command: u32, argument: *mut c_void) -> Result<(), i32> {
        if !self.inner.mm.is_current() {
            return Err(libc::EBADF);
        }
        let caller = Caller(ProcessMemory::new(self.inner.mm));
        let at = CpuVa(argument.expose_provenance() as u64);
        self.file.ioctl(&caller, bound.map(KfdFile::process), command, at).map_err(|e| e.errno.0)
    }

    /// Maps an object of this file, as [`KfdFile::mmap`] does; `None` if none is at the offset.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// As for [`KfdFile::mmap`].
    pub unsafe fn mmap(
        &self,
        hint: *mut c_void,
        bytes: usize,
        prot: i32,
        flags: i32,
        offset: u64,
    ) -> Option<Result<*mut c_void, i32>> {
        let bytes = (bytes as u64).checked_next_multiple_of(PAGE)?;
        let mapped = match self.file.mmap(offset, bytes)? {
            Ok(mapped) => mapped,
            Err(error) => return Some(Err(error.errno.0)),
        };
        // SAFETY: forwarded to the caller.
        Some(unsafe { self.inner.map(&mapped, hint, bytes, prot, flags) })
    }
}

impl Drop for RenderFile {
    fn drop(&mut self) {
        if !self.inner.keep_in_child() {
            // SAFETY: here alone, and never used again.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}
