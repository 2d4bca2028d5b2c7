// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open render node (`/dev/dri/renderD128` and following).
//!
//! KFD gives a process's memory out through the render node of its ACQUIRE_VM. Clients map VRAM and
//! GTT objects here, at the offsets that allocations return. Of DRM's own calls there are those
//! with which libdrm asks what the device is, and those for memory objects ([`vkfd_driver::drm`]).

use crate::char_device::CharDevice;
use crate::machine::{Machine, RemoteGpu};
use crate::{mapping, Vkfd};
use core::fmt;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::sync::{Arc, SetOnce};
use kernel::uaccess::{UserPtr, UserSlice};
use vkfd_driver::base::addr::{index, CpuVa};
use vkfd_driver::drm;
use vkfd_driver::drm::binding::Binding;
use vkfd_driver::base::errno;
use vkfd_driver::seams::gpu::Gpu;
use vkfd_driver::machine::kfd::Kfd;
use vkfd_driver::process::Process;

/// The process that a file is bound to.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) machine: Arc<Machine>,
    pub(crate) process: Arc<Process>,
}

/// A GPU's render node.
pub(crate) struct RenderNode {
    /// The driver.
    pub(crate) kfd: Arc<Kfd>,
    /// The GPU's number in it.
    pub(crate) index: usize,
    /// All GPUs, whose memory a file's objects may be.
    pub(crate) gpus: Arc<KVec<Arc<RemoteGpu>>>,
}

impl RenderNode {
    fn gpu(&self, gpu_id: u32) -> Option<&RemoteGpu> {
        self.gpus.iter().map(|gpu| &**gpu).find(|gpu| gpu.properties().gpu_id == gpu_id)
    }
}

/// The file. Bound once, to one process.
pub(crate) struct RenderFile {
    file: drm::RenderFile,
    node: Arc<RenderNode>,
    bound: SetOnce<Bound>,
}

/// The process that makes the current call.
struct Current;

impl drm::Caller for Current {
    fn read(&self, from: CpuVa, to: &mut [u8]) -> errno::Result {
        Ok(slice(from, to.len()).reader().read_slice(to)?)
    }

    fn write(&self, to: CpuVa, from: &[u8]) -> errno::Result {
        Ok(slice(to, from.len()).writer().write_slice(from)?)
    }

    fn sees_others(&self) -> bool {
        false
    }
}

fn slice(at: CpuVa, bytes: usize) -> UserSlice {
    UserSlice::new(UserPtr::from_addr(index(at.0)), bytes)
}

impl RenderFile {
    fn is_of(&self, process: &Arc<Process>) -> bool {
        self.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(&bound.process, process))
    }
}

/// A process, and the machine that it is one of.
impl Binding for RenderFile {
    type Process = Bound;

    fn is_anothers(&self, process: &Bound) -> bool {
        self.bound.as_ref().is_some() && !self.is_of(&process.process)
    }

    fn bind(&self, process: &Bound) -> bool {
        self.bound.populate(process.clone());
        self.is_of(&process.process)
    }
}

impl CharDevice for RenderFile {
    type Context = RenderNode;
    type Module = Vkfd;

    fn open(node: &Arc<RenderNode>) -> Result<Self> {
        Ok(Self { file: drm::RenderFile::new(&node.kfd, node.index)?, node: node.clone(), bound: SetOnce::new() })
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let bound = self.bound.as_ref().map(|bound| &bound.process);
        self.file.ioctl(&Current, bound, command, CpuVa(argument as u64))?;
        Ok(0)
    }

    fn fdinfo(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        self.file.fdinfo(self.bound.as_ref().map(|bound| &bound.process), to)
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        let (offset, bytes) = mapping::place(vma);
        if let Some(object) = self.file.mmap(offset, bytes) {
            return mapping::map_as(object?, &|gpu_id| self.node.gpu(gpu_id), vma);
        }
        let bound = self.bound.as_ref().ok_or(EINVAL)?;
        mapping::map(&bound.machine, &bound.process, vma)
    }
}
