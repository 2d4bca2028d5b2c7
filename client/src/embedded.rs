// SPDX-License-Identifier: GPL-2.0 OR MIT
//! vkfd in this process: a machine of software GPUs, and its driver, without a device file.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub use vkfd_driver::machine::options::Options as DriverOptions;
use vkfd_driver::seams::gpu::Gpu;
use vkfd_host::device::HostGpu;
use vkfd_host::KfdFile;
pub use vkfd_host::{Confined, Machine, MachineOptions, Source, Target};

use crate::address::GpuId;
use crate::client::Client;
use crate::error::{ClientError, Errno};
use crate::topology::{GpuInfo, Node};
use crate::transport::{MmapFile, Transport};

/// An open device of a machine in this process.
pub struct Embedded {
    file: KfdFile,
    nodes: Vec<Node>,
}

impl Embedded {
    /// Opens the machine's device: a new process object of its driver.
    ///
    /// # Errors
    ///
    /// What the driver returned.
    pub fn open(machine: &Machine) -> Result<Self, ClientError> {
        Self::of(machine.open(), machine.gpus())
    }

    /// Opens the device for a client of another memory: its process has what it was granted, and
    /// nothing else of this process.
    ///
    /// # Errors
    ///
    /// What the driver returned.
    pub fn open_confined(machine: &Confined) -> Result<Self, ClientError> {
        Self::of(machine.open(), machine.gpus())
    }

    fn of(opened: Result<KfdFile, c_int>, gpus: &[Arc<HostGpu>]) -> Result<Self, ClientError> {
        let file = opened.map_err(|errno| ClientError::Call { call: "open", errno: Errno(errno) })?;
        Ok(Self { file, nodes: topology(gpus) })
    }

    /// The open file, to inspect it.
    #[must_use]
    pub fn file(&self) -> &KfdFile {
        &self.file
    }
}

impl Client {
    /// Makes a machine in this process and opens it. The machine ends with the client.
    ///
    /// # Errors
    ///
    /// [`ClientError::Machine`] when the machine cannot be made; otherwise as
    /// [`Client::with_transport`].
    pub fn embedded(options: MachineOptions) -> Result<Self, ClientError> {
        let machine = Machine::new(&options).map_err(|error| ClientError::Machine(error.to_string()))?;
        Self::on(&machine)
    }

    /// Opens a machine in this process: as if by another process, with an address space of its own
    /// on the GPUs.
    ///
    /// # Errors
    ///
    /// As [`Client::with_transport`].
    pub fn on(machine: &Machine) -> Result<Self, ClientError> {
        Self::with_transport(Arc::new(Embedded::open(machine)?))
    }
}

/// A CPU node and one for each GPU. There is no save area: the GPUs have no waves.
fn topology(gpus: &[Arc<HostGpu>]) -> Vec<Node> {
    let cores = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
    // SAFETY: sysconf has no preconditions.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = |n| u64::try_from(n).unwrap_or(0);
    let memory_bytes = bytes(pages).saturating_mul(bytes(page));
    let mut nodes = vec![Node { number: 0, cpu_cores: cores, memory_bytes, gpu: None }];
    for (number, gpu) in (1..).zip(gpus) {
        let properties = gpu.properties();
        let version = properties.gfx_target_version;
        let info = GpuInfo {
            id: GpuId(properties.gpu_id),
            node: number,
            name: format!("gfx{}{}{:x}", version / 10_000, version / 100 % 100, version % 100),
            vram_bytes: properties.vram_bytes,
            gfx_target_version: version,
            xcc: 1,
            ..GpuInfo::default()
        };
        nodes.push(Node { number, gpu: Some(info), ..Node::default() });
    }
    nodes
}

impl Transport for Embedded {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.file.ioctl(command, arg) }.map_err(Errno)
    }

    unsafe fn mmap(
        &self,
        _what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // The driver tells the files apart by the offsets, which do not overlap.
        // SAFETY: promised by the caller.
        unsafe { self.file.mmap(addr, len, prot, flags, offset) }.map_err(Errno)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        Ok(self.nodes.clone())
    }

    fn render_fd(&self, _gpu: GpuId) -> Result<u32, ClientError> {
        // There is no render node; the driver looks at the gpu_id alone.
        Ok(0)
    }
}
