// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The world of a scenario: a machine, a process on it, and its GPUs at work.
//!
//! Lock: `engines` guards the queues that the helper methods use, one per GPU, made at first use;
//! held while the GPU works.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vkfd_client::{
    Client, ClientError, GpuId, GpuVa, Machine, MachineOptions, ProcessInfo, Result as ClientResult, Transport,
};
use vkfd_driver::base::hook::Hook;
use vkfd_driver::sabotage::Switches;
use vkfd_driver::seams::device_memory;
use vkfd_driver::userptr::window::WindowPolicy;

use crate::engine::Engine;
use crate::host::Host;
use crate::module;
use crate::verdict::Stop;

/// How long [`World::until`] waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a scenario needs.
#[derive(Clone, Copy, Debug)]
pub struct WorldSpec {
    pub gpus: u32,
    /// VRAM of each, in bytes.
    pub vram_bytes: u64,
    /// The process runs with XNACK on.
    pub xnack: bool,
    /// One notifier per range instead of clustered windows.
    pub per_range_windows: bool,
    /// RAM that the memory limit is made of, in bytes; the computer's if not given.
    pub ram: Option<u64>,
    /// How long a registration may retry.
    pub register_deadline: Option<Duration>,
    /// What memory on a GPU is to the CPU.
    pub device_memory: device_memory::Kind,
    /// Moves not further apart than this are to and fro. A kernel's driver has what it has.
    pub bounce: Option<Duration>,
    /// Whether there are the calls for tests and benchmarks (MOVE and its like). Off is how a
    /// driver is shipped.
    pub diagnosis: bool,
    /// What is broken on purpose.
    pub sabotage: Switches,
    /// What [`Switch::BeforeCommit`](vkfd_driver::sabotage::Switch::BeforeCommit) calls.
    pub before_commit: Hook,
}

impl Default for WorldSpec {
    fn default() -> Self {
        Self {
            gpus: 1,
            vram_bytes: 256 << 20,
            xnack: false,
            per_range_windows: false,
            ram: None,
            register_deadline: None,
            device_memory: device_memory::Kind::Coherent,
            bounce: None,
            diagnosis: true,
            sabotage: Switches::NONE,
            before_commit: Hook::default(),
        }
    }
}

impl WorldSpec {
    /// The options that a kernel module needs for it. None when there are no such options.
    fn module_options(&self) -> Option<String> {
        let mut options = Vec::new();
        if self.per_range_windows {
            options.push("per_range_windows=1".to_owned());
        }
        options.extend(self.ram.map(|bytes| format!("ram={bytes}")));
        options.extend(self.register_deadline.map(|d| format!("register_deadline_ms={}", d.as_millis())));
        options.extend((self.device_memory == device_memory::Kind::Private).then(|| "memory=2".to_owned()));
        // The suite's runner has loaded the module with it on.
        options.extend((!self.diagnosis).then(|| "diagnosis=0".to_owned()));
        (self.sabotage == Switches::NONE).then(|| options.join(" "))
    }

    /// AMD's driver has no options that could make it so.
    fn of_stock(&self) -> Result<(), Stop> {
        if self.module_options().is_none_or(|options| !options.is_empty()) {
            return Err(Stop::Skip("needs an option of vkfd's driver".into()));
        }
        Ok(())
    }

    fn machine(&self) -> Result<Machine, Stop> {
        let mut options = MachineOptions { gpus: self.gpus, vram_bytes: self.vram_bytes, ..MachineOptions::default() };
        if self.per_range_windows {
            options.driver.windows = WindowPolicy::PerRange;
        }
        if let Some(ram) = self.ram {
            options.driver.ram = ram;
        }
        if let Some(deadline) = self.register_deadline {
            options.driver.register_deadline = deadline;
        }
        options.driver.device_memory = self.device_memory;
        if let Some(bounce) = self.bounce {
            options.driver.damping.window = bounce;
        }
        options.driver.diagnosis = self.diagnosis;
        options.driver.sabotage = self.sabotage;
        options.driver.before_commit = self.before_commit;
        Ok(Machine::new(&options).map_err(|error| anyhow::anyhow!("the machine: {error}"))?)
    }
}

/// A change of CPU mappings that a driver is notified of, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// munmap, and mmap over a mapping.
    Unmap,
    Remap,
    /// MADV_DONTNEED and its kin.
    Discard,
    Protect,
    Fork,
    /// MADV_PAGEOUT.
    Pageout,
}

/// A machine and a first process on it.
pub struct World {
    // In the order in which they must go.
    engines: Mutex<Vec<Option<Engine>>>,
    client: Client,
    host: Host,
    spec: WorldSpec,
}

impl World {
    /// A world as specified.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the system's KFD is not like that.
    pub fn new(spec: WorldSpec) -> Result<Self, Stop> {
        let host = Self::host(&spec)?;
        let client = host.open(spec.xnack)?;
        let gpus = client.gpus().len();
        if gpus < usize::try_from(spec.gpus)? {
            return Err(Stop::Skip(format!("needs {} GPUs, there are {gpus}", spec.gpus)));
        }
        let engines = Mutex::new((0..gpus).map(|_| None).collect());
        Ok(Self { engines, client, host, spec })
    }

    fn host(spec: &WorldSpec) -> Result<Host, Stop> {
        match Host::of_the_system() {
            None => Ok(Host::InProcess(spec.machine()?)),
            Some(stock @ Host::Stock(_)) => {
                spec.of_stock()?;
                Ok(stock)
            }
            Some(device) => {
                let options = spec.module_options();
                module::with_options(
                    &options.ok_or(Stop::Skip("only a driver in this process can be broken".into()))?,
                )?;
                Ok(device)
            }
        }
    }

    /// A process in which nothing has been called, and its first GPU.
    pub(crate) fn unbound(spec: WorldSpec) -> Result<(Arc<dyn Transport>, GpuId, Host), Stop> {
        let host = Self::host(&spec)?;
        let transport = host.transport()?;
        let gpu = transport.topology()?.iter().find_map(|node| node.gpu.as_ref().map(|gpu| gpu.id));
        Ok((transport, gpu.ok_or(Stop::Skip("there is no GPU".into()))?, host))
    }

    /// The first process.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Another process object: as if another process had opened the device.
    ///
    /// # Errors
    ///
    /// What the calls failed with.
    pub fn open(&self) -> Result<Client, Stop> {
        self.host.open(self.spec.xnack)
    }

    /// A way to the machine without a client: nothing has been called yet.
    pub(crate) fn transport(&self) -> Result<Arc<dyn Transport>, Stop> {
        self.host.transport()
    }

    /// A GPU's identifier.
    ///
    /// # Panics
    ///
    /// When there are not so many: ask for them in the [`WorldSpec`].
    #[must_use]
    pub fn gpu(&self, i: usize) -> GpuId {
        self.client.gpus()[i].id
    }

    /// As [`World::transport`], of another process object than the client's.
    pub(crate) fn transport_beside(&self) -> Result<Arc<dyn Transport>, Stop> {
        self.host.transport_beside()
    }

    /// Skips the scenario when the driver is not notified of such a change.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`].
    pub fn sees(&self, change: Seen) -> Result<(), Stop> {
        // The kernel's notifiers see everything.
        let Host::InProcess(machine) = &self.host else { return Ok(()) };
        let shown = machine.capabilities();
        let seen = match change {
            Seen::Unmap => shown.unmap,
            Seen::Remap => shown.remap,
            Seen::Discard => shown.discard,
            Seen::Protect => shown.protect,
            Seen::Fork => shown.fork,
            Seen::Pageout => shown.pageout,
        };
        if seen {
            return Ok(());
        }
        Err(Stop::Skip(format!("the notification source ({}) does not show {change:?}", machine.memory().source())))
    }

    /// Whether the driver is notified of changes to mappings of files; a kernel's is.
    #[must_use]
    pub fn sees_files(&self) -> bool {
        match &self.host {
            Host::InProcess(machine) => machine.capabilities().files,
            Host::Device(_) | Host::Stock(_) => true,
        }
    }

    /// Whether the driver is in this process: its host gives adjacent pages adjacent frames, where
    /// a kernel may not.
    #[must_use]
    pub fn in_process(&self) -> bool {
        matches!(self.host, Host::InProcess(_))
    }

    /// Waits until the driver has been notified of every change that was made by calls which have
    /// returned.
    pub fn told(&self) {
        self.host.told();
    }

    /// Waits until the first process is not evicted and, with XNACK off, no mapped range is
    /// invalid.
    ///
    /// # Errors
    ///
    /// When that does not come to pass within five minutes.
    pub fn settle(&self) -> Result<(), Stop> {
        self.until("the process is restored", |info| info.evicted == 0 && self.invalid_ranges().is_ok_and(|n| n == 0))
    }

    /// Mapped ranges that wait for a restore; with XNACK on that is the GPU's next fault's to do,
    /// and none counts.
    fn invalid_ranges(&self) -> ClientResult<u64> {
        if self.spec.xnack {
            return Ok(0);
        }
        Ok(self.client.bos()?.iter().filter(|bo| bo.mapped_gpus != 0).map(|bo| bo.invalid_ranges).sum())
    }

    /// Waits until the first process is in some state.
    ///
    /// # Errors
    ///
    /// When that does not come to pass within five minutes.
    pub fn until(&self, what: &str, mut reached: impl FnMut(&ProcessInfo) -> bool) -> Result<(), Stop> {
        self.told();
        let start = Instant::now();
        loop {
            let info = self.client.snapshot()?;
            if reached(&info) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("waited {PATIENCE:?} until {what}, but: {info:?}");
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Runs `call` with the driver's n-th failpoint on its way (from 0) failing. Returns what it
    /// returned, and whether the point was reached.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel was built without fault injection.
    pub fn fail_nth<R>(&self, n: u64, call: impl FnOnce() -> R) -> Result<(R, bool), Stop> {
        self.host.fail_nth(n, call)
    }

    /// Does `f` with the engine of GPU number `gpu`. One that has failed is replaced at the next
    /// use.
    ///
    /// # Errors
    ///
    /// What `f` returned.
    pub fn with_engine<R>(&self, gpu: usize, f: impl FnOnce(&mut Engine) -> ClientResult<R>) -> ClientResult<R> {
        let id = self.client.gpus().get(gpu).map(|info| info.id).ok_or(ClientError::NoGpu(GpuId(0)))?;
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut engines[gpu];
        if slot.is_none() {
            *slot = Some(Engine::new(&self.client, id)?);
        }
        let result = slot.as_mut().map_or(Err(ClientError::NoGpu(id)), f);
        if result.is_err() {
            *slot = None;
        }
        result
    }

    /// Copies on the first GPU and waits.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy`].
    pub fn copy(&self, dst: GpuVa, src: GpuVa, bytes: u64) -> ClientResult {
        self.with_engine(0, |engine| engine.copy(dst, src, bytes))
    }

    /// What the first GPU reads.
    ///
    /// # Errors
    ///
    /// As [`Engine::read`].
    pub fn read_gpu(&self, va: GpuVa, bytes: u64) -> ClientResult<Vec<u8>> {
        self.with_engine(0, |engine| engine.read(va, bytes))
    }

    /// Lets the first GPU write.
    ///
    /// # Errors
    ///
    /// As [`Engine::write`].
    pub fn write_gpu(&self, va: GpuVa, bytes: &[u8]) -> ClientResult {
        self.with_engine(0, |engine| engine.write(va, bytes))
    }

    /// The sum of 64-bit words that the first GPU's compute unit reads.
    ///
    /// # Errors
    ///
    /// As [`Engine::sum64`].
    pub fn sum64(&self, va: GpuVa, bytes: u64) -> ClientResult<u64> {
        self.with_engine(0, |engine| engine.sum64(va, bytes))
    }
}
