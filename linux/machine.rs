// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine: the driver, its GPUs, and their render nodes.

use crate::bar::PciBar;
use crate::char_device::Registration;
use crate::device_memory::Memories;
use crate::processes::Processes;
use crate::render_file::RenderFile;
use kernel::fs::LocalFile;
use vkfd_driver::gpu::Gpu;
use vkfd_driver::kfd::Kfd;
use vkfd_driver::os::{Arc, Vec};
use vkfd_wire::Remote;

/// A GPU, a process outside of this machine.
pub(crate) type RemoteGpu = Remote<PciBar>;

/// The machine.
pub(crate) struct Machine {
    /// The driver.
    pub(crate) kfd: Arc<Kfd>,
    /// Its GPUs, in its order, with their render nodes.
    pub(crate) gpus: Vec<(Arc<RemoteGpu>, Arc<Registration<RenderFile>>)>,
    /// Their memory, as pages of processes.
    pub(crate) memories: Arc<Memories>,
    /// Those of the address spaces that have it open.
    pub(crate) processes: Arc<Processes>,
}

impl Machine {
    /// The GPU with this identifier.
    pub(crate) fn gpu(&self, gpu_id: u32) -> Option<&RemoteGpu> {
        self.gpus.iter().map(|(gpu, _)| &**gpu).find(|gpu| gpu.properties().gpu_id == gpu_id)
    }

    /// What `file` is, if it is an open render node of GPU `gpu_id`.
    pub(crate) fn render_file<'a>(&self, gpu_id: u32, file: &'a LocalFile) -> Option<&'a RenderFile> {
        let (_, node) = self.gpus.iter().find(|(gpu, _)| gpu.properties().gpu_id == gpu_id)?;
        node.of(file)
    }
}
