// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's connection to a KFD.
//!
//! Mechanism: [`Client`] is a shared handle on one KFD process object. Opening it asks for the
//! version, the topology, the capabilities and the apertures, and binds the process to every GPU
//! (ACQUIRE_VM). Buffers and queues keep it open.
//!
//! Locks: `doorbells` and `events` guard what is set up once for each GPU and for the process; both
//! are leaves.

use std::ffi::c_void;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::GetAvailableMemoryArgs;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::{
    AcquireVmArgs, GetClockCountersArgs, GetProcessAperturesNewArgs, GetVersionArgs, ProcessDeviceApertures,
    SetXnackModeArgs, IOCTL_MAJOR_VERSION,
};
use vkfd_uapi::vkfd::LastErrorArgs;
use vkfd_uapi::{command, vkfd};

use crate::address::{CpuVa, GpuId, GpuVa};
use crate::call::{call_name, refused};
use crate::caps::Caps;
use crate::dev_kfd::DevKfd;
use crate::doorbell::Doorbells;
use crate::error::{ClientError, Errno, Result};
use crate::topology::{GpuInfo, Node};
use crate::transport::Transport;
use crate::va::{Aperture, Reservation};

/// A set of GPUs, for the calls that map memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuSet {
    /// All GPUs of the client.
    #[default]
    All,
    /// Only the GPUs in this list.
    Only(Vec<GpuId>),
}

impl From<GpuId> for GpuSet {
    fn from(gpu: GpuId) -> Self {
        Self::Only(vec![gpu])
    }
}

/// A process's connection to a KFD. Clones share it; it closes with the last of them and of its
/// buffers and queues.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    transport: Arc<dyn Transport>,
    version: (u32, u32),
    caps: Caps,
    nodes: Vec<Node>,
    gpus: Vec<GpuInfo>,
    aperture: Aperture,
    doorbells: Mutex<Vec<Arc<Doorbells>>>,
    events: Mutex<Option<Arc<Reservation>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("version", &self.0.version).field("gpus", &self.0.gpus).finish_non_exhaustive()
    }
}

impl Client {
    /// Opens the system's KFD: `/dev/kfd`, its topology in sysfs and the GPUs' render nodes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Open`] when there is none or it is not permitted, otherwise as
    /// [`Client::with_transport`].
    pub fn open() -> Result<Self> {
        Self::open_at(Path::new("/dev/kfd"))
    }

    /// Opens the KFD at another path.
    ///
    /// # Errors
    ///
    /// As [`Client::open`].
    pub fn open_at(path: &Path) -> Result<Self> {
        Self::with_transport(Arc::new(DevKfd::open(path)?))
    }

    /// Opens the KFD at another path as a process of its own, see [`DevKfd::open_apart`].
    ///
    /// # Errors
    ///
    /// As [`Client::open`] and [`DevKfd::open_apart`].
    pub fn open_apart(path: &Path) -> Result<Self> {
        Self::with_transport(Arc::new(DevKfd::open_apart(path)?))
    }

    /// Uses a KFD that is reached in another way.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unsupported`] when the interface's major version is not 1 or there is no GPU;
    /// what the calls failed with.
    pub fn with_transport(transport: Arc<dyn Transport>) -> Result<Self> {
        let mut version = GetVersionArgs::zeroed();
        send(&*transport, command::GET_VERSION, &mut version).map_err(ClientError::call("GET_VERSION"))?;
        if version.major_version != IOCTL_MAJOR_VERSION {
            return Err(ClientError::Unsupported(format!(
                "KFD interface version {} is not known",
                version.major_version
            )));
        }
        let nodes = transport.topology()?;
        let caps = Caps::query(&*transport)?.with_topology(&nodes);
        let apertures = apertures(&*transport, nodes.iter().filter(|node| node.gpu.is_some()).count())?;
        // A GPU of the topology that the process may not use (device cgroup) has no aperture.
        let usable = |gpu: &&GpuInfo| apertures.iter().any(|a| a.gpu_id == gpu.id.0);
        let gpus: Vec<_> = nodes.iter().filter_map(|node| node.gpu.as_ref()).filter(usable).cloned().collect();
        if gpus.is_empty() {
            return Err(ClientError::Unsupported("this KFD has no GPU that the process may use".into()));
        }
        for gpu in &gpus {
            let mut args = AcquireVmArgs { drm_fd: transport.render_fd(gpu.id)?, gpu_id: gpu.id.0 };
            send(&*transport, command::ACQUIRE_VM, &mut args).map_err(ClientError::call("ACQUIRE_VM"))?;
        }
        let aperture = Aperture {
            base: GpuVa(apertures.iter().map(|a| a.gpuvm_base).max().unwrap_or(0)),
            limit: GpuVa(apertures.iter().map(|a| a.gpuvm_limit).min().unwrap_or(0)),
        };
        Ok(Self(Arc::new(Inner {
            transport,
            version: (version.major_version, version.minor_version),
            caps,
            nodes,
            gpus,
            aperture,
            doorbells: Mutex::new(Vec::new()),
            events: Mutex::new(None),
        })))
    }

    /// What the driver can do.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// The interface's major and minor version.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.0.version
    }

    /// The GPUs that the process can use, in the order of their nodes.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        &self.0.gpus
    }

    /// All nodes, CPUs too.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.0.nodes
    }

    /// The GPU addresses that all GPUs of the process can use.
    #[must_use]
    pub fn aperture(&self) -> Aperture {
        self.0.aperture
    }

    /// One GPU.
    ///
    /// # Errors
    ///
    /// [`ClientError::NoGpu`].
    pub fn gpu(&self, id: GpuId) -> Result<&GpuInfo> {
        self.0.gpus.iter().find(|gpu| gpu.id == id).ok_or(ClientError::NoGpu(id))
    }

    /// Sends an ioctl as it is, for tests and for calls that this library does not wrap.
    ///
    /// # Errors
    ///
    /// What the driver returned.
    ///
    /// # Safety
    ///
    /// `arg` is the argument that `command` declares (at least as large), and its pointers are
    /// valid for the call's accesses. The call removes nothing that buffers or queues of this
    /// client use.
    pub unsafe fn raw_ioctl<T: Pod>(&self, command: Command, arg: &mut T) -> std::result::Result<(), Errno> {
        send(&*self.0.transport, command, arg)
    }

    /// Whether page faults of the GPUs are retried (XNACK).
    ///
    /// # Errors
    ///
    /// What the call failed with.
    pub fn xnack(&self) -> Result<bool> {
        self.xnack_mode(-1)
    }

    /// Switches XNACK. Must be done before the first queue is made.
    ///
    /// # Errors
    ///
    /// What the call failed with: EPERM when a GPU cannot do it, EBUSY when there are queues.
    pub fn set_xnack(&self, on: bool) -> Result {
        self.xnack_mode(i32::from(on)).map(drop)
    }

    fn xnack_mode(&self, mode: i32) -> Result<bool> {
        let mut args = SetXnackModeArgs { xnack_enabled: mode };
        self.ioctl(command::SET_XNACK_MODE, &mut args).map_err(ClientError::call("SET_XNACK_MODE"))?;
        Ok(args.xnack_enabled > 0)
    }

    /// Bytes of a GPU's memory that are free. An allocation may get more, by having SVM memory
    /// moved away.
    ///
    /// # Errors
    ///
    /// What the call failed with.
    pub fn available_vram(&self, gpu: GpuId) -> Result<u64> {
        let mut args = GetAvailableMemoryArgs { available: 0, gpu_id: gpu.0, pad: 0 };
        self.ioctl(command::AVAILABLE_MEMORY, &mut args).map_err(ClientError::call("AVAILABLE_MEMORY"))?;
        Ok(args.available)
    }

    /// A GPU's clock counter and, at about the same moment, the CPU's in nanoseconds.
    ///
    /// # Errors
    ///
    /// What the call failed with.
    pub fn clocks(&self, gpu: GpuId) -> Result<GetClockCountersArgs> {
        let mut args = GetClockCountersArgs { gpu_id: gpu.0, ..GetClockCountersArgs::zeroed() };
        self.ioctl(command::GET_CLOCK_COUNTERS, &mut args).map_err(ClientError::call("GET_CLOCK_COUNTERS"))?;
        Ok(args)
    }

    /// Sends an ioctl of the library's own, whose pointers are valid by construction.
    pub(crate) fn ioctl<T: Pod>(&self, command: Command, arg: &mut T) -> std::result::Result<(), Errno> {
        send(&*self.0.transport, command, arg)
    }

    /// As [`Client::ioctl`], for memory calls: the error has the driver's reason where it tells
    /// one.
    pub(crate) fn memory_ioctl<T: Pod>(&self, command: Command, arg: &mut T) -> Result {
        self.ioctl(command, arg).map_err(|errno| self.memory_error(command, errno))
    }

    pub(crate) fn memory_error(&self, command: Command, errno: Errno) -> ClientError {
        let call = call_name(command);
        match self.last_error(errno) {
            Some(last) => refused(call, errno, &last),
            None => ClientError::Call { call, errno },
        }
    }

    /// The driver's record of this thread's last failed memory call, if it keeps one and it is of
    /// the call that returned `errno`.
    pub(crate) fn last_error(&self, errno: Errno) -> Option<LastErrorArgs> {
        if !self.0.caps.vkfd {
            return None;
        }
        let mut last = LastErrorArgs::zeroed();
        self.ioctl(vkfd::LAST_ERROR, &mut last).ok()?;
        (i64::from(last.errno) == i64::from(errno.0) && last.reason != vkfd::REASON_NONE).then_some(last)
    }

    /// Tells vkfd that a doorbell was written.
    pub(crate) fn ring_hint(&self) -> std::result::Result<(), Errno> {
        // SAFETY: the command has no argument.
        unsafe { self.0.transport.ioctl(vkfd::RINGED.0, std::ptr::null_mut()) }
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    /// The GPUs of a set, all known and at least one.
    pub(crate) fn resolve(&self, set: &GpuSet) -> Result<Vec<GpuId>> {
        match set {
            GpuSet::All => Ok(self.0.gpus.iter().map(|gpu| gpu.id).collect()),
            GpuSet::Only(ids) if ids.is_empty() => Err(ClientError::Invalid("the set of GPUs is empty".into())),
            GpuSet::Only(ids) => ids.iter().map(|&id| self.gpu(id).map(|gpu| gpu.id)).collect(),
        }
    }

    /// The doorbell pages of a GPU, mapped at first use. `offset` comes from CREATE_QUEUE.
    pub(crate) fn doorbells(&self, gpu: GpuId, offset: u64) -> Result<Arc<Doorbells>> {
        let mut all = self.0.doorbells.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(doorbells) = all.iter().find(|d| d.serves(gpu, offset)) {
            return Ok(doorbells.clone());
        }
        let doorbells = Arc::new(Doorbells::map(self.transport(), gpu, offset)?);
        all.push(doorbells.clone());
        Ok(doorbells)
    }

    /// Does `f` with the addresses of the process's page of signal slots. They stay until the
    /// client closes.
    pub(crate) fn with_event_page<R>(&self, f: impl FnOnce(&mut Option<Arc<Reservation>>) -> R) -> R {
        f(&mut self.0.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends an ioctl; one that a signal interrupted is sent again.
fn send<T: Pod>(transport: &dyn Transport, command: Command, arg: &mut T) -> std::result::Result<(), Errno> {
    debug_assert!(size_of::<T>() >= command.size() || command.size() > vkfd_uapi::ioctl::MAX_SIZE);
    loop {
        // SAFETY: `arg` is at least as large as the command declares, and each caller answers for
        // the pointers in it.
        match unsafe { transport.ioctl(command.0, (&raw mut *arg).cast::<c_void>()) } {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn apertures(transport: &dyn Transport, expected: usize) -> Result<Vec<ProcessDeviceApertures>> {
    let mut list = vec![ProcessDeviceApertures::zeroed(); expected.max(1)];
    let mut args = GetProcessAperturesNewArgs {
        kfd_process_device_apertures_ptr: CpuVa::of(list.as_mut_ptr()).0,
        num_of_nodes: u32::try_from(list.len()).unwrap_or(u32::MAX),
        pad: 0,
    };
    send(transport, command::GET_PROCESS_APERTURES_NEW, &mut args)
        .map_err(ClientError::call("GET_PROCESS_APERTURES_NEW"))?;
    list.truncate(usize::try_from(args.num_of_nodes).unwrap_or(0));
    Ok(list)
}
