// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine: the driver, its GPUs, and their nodes.

use crate::bar::PciBar;
use crate::char_device::Registration;
use crate::device_memory::Memories;
use crate::gpu_device::GpuDevice;
use crate::processes::Processes;
use crate::render_file::RenderFile;
use kernel::fs::LocalFile;
use vkfd_driver::seams::gpu::Gpu;
use vkfd_driver::machine::kfd::Kfd;
use vkfd_driver::os::{Arc, Vec};
use vkfd_wire::Remote;

/// A GPU, a process outside of this machine.
pub(crate) type RemoteGpu = Remote<PciBar>;

/// A GPU and what programs find of it. The nodes are in the device's directory and go before it.
pub(crate) struct Place {
    /// The GPU.
    pub(crate) gpu: Arc<RemoteGpu>,
    /// Its render node and its primary node. There is no display, so nobody is a primary node's
    /// master, and it does what the render node does.
    pub(crate) nodes: [Arc<Registration<RenderFile>>; 2],
    /// Its device.
    pub(crate) device: GpuDevice,
}

/// The machine.
pub(crate) struct Machine {
    /// The driver.
    pub(crate) kfd: Arc<Kfd>,
    /// Its GPUs, in its order.
    pub(crate) gpus: Vec<Place>,
    /// Their memory, as pages of processes.
    pub(crate) memories: Arc<Memories>,
    /// Those of the address spaces that have it open.
    pub(crate) processes: Arc<Processes>,
}

impl Machine {
    /// The GPU with this identifier.
    pub(crate) fn gpu(&self, gpu_id: u32) -> Option<&RemoteGpu> {
        self.gpus.iter().map(|place| &*place.gpu).find(|gpu| gpu.properties().gpu_id == gpu_id)
    }

    /// What `file` is, if it is an open node of GPU `gpu_id`.
    pub(crate) fn render_file<'a>(&self, gpu_id: u32, file: &'a LocalFile) -> Option<&'a RenderFile> {
        let place = self.gpus.iter().find(|place| place.gpu.properties().gpu_id == gpu_id)?;
        place.nodes.iter().find_map(|node| node.of(file))
    }
}
