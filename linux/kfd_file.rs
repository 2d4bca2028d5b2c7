// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open `/dev/kfd`: one process object of the driver's, released when the last descriptor of the
//! file is closed.

use crate::address_space::ProcessMemory;
use crate::char_device::CharDevice;
use crate::machine::Machine;
use crate::{mapping, Vkfd};
use kernel::fs::LocalFile;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::sync::Arc;
use vkfd_driver::addr::CpuVa;
use vkfd_driver::errno::Errno;
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_uapi::command::ACQUIRE_VM;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;

/// The file.
pub(crate) struct KfdFile {
    machine: Arc<Machine>,
    process: Arc<Process>,
}

impl CharDevice for KfdFile {
    type Context = Machine;
    type Module = Vkfd;

    fn open(machine: &Arc<Machine>) -> Result<Self> {
        let memory = os::arc(ProcessMemory::current(machine.memories.clone())?)?;
        let process = machine.kfd.open(memory)?;
        Ok(Self { machine: machine.clone(), process })
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let argument = CpuVa(argument as u64);
        if Command(command).same_call(ACQUIRE_VM) {
            self.acquire_vm(Command(command), argument)?;
            return Ok(0);
        }
        match self.process.ioctl(command, argument) {
            Ok(()) => Ok(0),
            // The call can be made again as it is: a wait has noted how much of it is left.
            Err(error) if error.errno == Errno::EINTR => Err(ERESTARTSYS),
            Err(error) => Err(error.into()),
        }
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        // Doorbells and events are one process's.
        vma.set_dontcopy();
        mapping::map(&self.machine, &self.process, vma)
    }
}

impl KfdFile {
    /// ACQUIRE_VM, whose argument is copied once: the process's memory on that GPU is mapped
    /// through the render node that the call brings. EINVAL if it is none, EBUSY if it is another
    /// process's; then, and where there is no VM to be had, the node is as it was.
    fn acquire_vm(&self, command: Command, argument: CpuVa) -> Result {
        if !self.process.mm().is_current() {
            return Err(EBADF);
        }
        let mut args = AcquireVmArgs::zeroed();
        let declared = args.as_bytes_mut().get_mut(..command.size());
        match declared {
            Some(bytes) => self.process.mm().read(argument, bytes)?,
            None => self.process.mm().read(argument, args.as_bytes_mut())?,
        }
        if self.machine.gpu(args.gpu_id).is_none() {
            return Err(EINVAL);
        }
        let file = LocalFile::fget(args.drm_fd).map_err(|_| EINVAL)?;
        let render = self.machine.render_file(args.gpu_id, &file).ok_or(EINVAL)?;
        if render.is_anothers(&self.process) {
            return Err(EBUSY);
        }
        self.process.acquire_vm(args.gpu_id)?;
        render.bind(&self.machine, &self.process)
    }
}

impl Drop for KfdFile {
    fn drop(&mut self) {
        self.process.release();
    }
}
