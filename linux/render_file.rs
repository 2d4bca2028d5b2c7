// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open render node (`/dev/dri/renderD128` and following).
//!
//! KFD gives the memory of a process out through the render node that it was bound to with ACQUIRE_VM: VRAM and GTT objects are mapped
//! here, at the offsets that allocations return. Of DRM's own calls there is none.

use crate::char_device::CharDevice;
use crate::machine::Machine;
use crate::{mapping, Vkfd};
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::sync::{Arc, SetOnce};
use vkfd_driver::process::Process;

struct Bound {
    machine: Arc<Machine>,
    process: Arc<Process>,
}

/// The file. Bound once, to one process.
pub(crate) struct RenderFile(SetOnce<Bound>);

impl RenderFile {
    /// Binds it. EBUSY if it is another process's.
    pub(crate) fn bind(&self, machine: &Arc<Machine>, process: &Arc<Process>) -> Result {
        self.0.populate(Bound { machine: machine.clone(), process: process.clone() });
        match self.0.as_ref() {
            Some(bound) if Arc::ptr_eq(&bound.process, process) => Ok(()),
            _ => Err(EBUSY),
        }
    }
}

impl CharDevice for RenderFile {
    type Context = ();
    type Module = Vkfd;

    fn open(_: &Arc<()>) -> Result<Self> {
        Ok(Self(SetOnce::new()))
    }

    fn ioctl(&self, _command: u32, _argument: usize) -> Result<isize> {
        Err(ENOTTY)
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        let bound = self.0.as_ref().ok_or(EINVAL)?;
        mapping::map(&bound.machine, &bound.process, vma)
    }
}
