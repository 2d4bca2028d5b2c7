// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open `/dev/kfd`: the process of the address space that opened it ([`crate::processes`]).
//! After CREATE_PROCESS, it is a process of the file's own, released when the last descriptor of
//! the file is closed.

use crate::address_space::ProcessMemory;
use crate::char_device::CharDevice;
use crate::machine::Machine;
use crate::processes::Opened;
use crate::render_file::Bound;
use crate::{mapping, Vkfd};
use kernel::fs::LocalFile;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::sync::{Arc, SpinLock};
use vkfd_driver::base::addr::CpuVa;
use vkfd_driver::base::errno::Errno;
use vkfd_driver::drm::binding;
use vkfd_driver::process::Process;
use vkfd_uapi::command::{ACQUIRE_VM, CREATE_PROCESS};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;

/// The file.
pub(crate) struct KfdFile {
    machine: Arc<Machine>,
    /// A call that has begun keeps the one that it began with. Lock: a leaf.
    process: Pin<KBox<SpinLock<Arc<Opened>>>>,
}

impl CharDevice for KfdFile {
    type Context = Machine;
    type Module = Vkfd;

    fn open(machine: &Arc<Machine>) -> Result<Self> {
        let memory = ProcessMemory::current(machine.memories.clone())?;
        let opened = Arc::new(machine.processes.open(&machine.kfd, memory)?, GFP_KERNEL)?;
        opened.list()?;
        let process = KBox::pin_init(kernel::new_spinlock!(opened), GFP_KERNEL)?;
        Ok(Self { machine: machine.clone(), process })
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let (command, argument) = (Command(command), CpuVa(argument as u64));
        let process = self.process();
        if command.same_call(ACQUIRE_VM) {
            self.acquire_vm(&process, command, argument)?;
            return Ok(0);
        }
        if command == CREATE_PROCESS {
            self.create_process(&process)?;
            return Ok(0);
        }
        match process.ioctl(command.0, argument) {
            Ok(()) => Ok(0),
            // The call can be made again as it is: a wait has noted how much of it is left.
            Err(error) if error.errno == Errno::EINTR => Err(ERESTARTSYS),
            Err(error) => Err(error.into()),
        }
    }

    fn mmap(&self, vma: &VmaNew) -> Result {
        // Doorbells and events are one process's.
        vma.set_dontcopy();
        mapping::map(&self.machine, &self.process(), vma)
    }
}

impl KfdFile {
    fn process(&self) -> Arc<Opened> {
        self.process.lock().clone()
    }

    /// CREATE_PROCESS: from here on the file's process is one of its own. EINVAL if it has that
    /// already, EBADF in another address space. Unlike KFD's, it can have userptr and SVM memory.
    fn create_process(&self, process: &Opened) -> Result {
        if !process.mm().is_current() {
            return Err(EBADF);
        }
        let memory = ProcessMemory::current(self.machine.memories.clone())?;
        let new = Arc::new(Opened::apart(&self.machine.kfd, memory)?, GFP_KERNEL)?;
        new.list()?;
        let mut current = self.process.lock();
        if current.is_apart() {
            drop(current);
            return Err(EINVAL);
        }
        let before = core::mem::replace(&mut *current, new);
        drop(current);
        drop(before);
        Ok(())
    }

    /// ACQUIRE_VM, whose argument is copied once: the process's memory on that GPU is mapped
    /// through the render node that the call brings. EINVAL if it is none, EBUSY if it is another
    /// process's; then, and where there is no VM to be had, the node is as it was.
    fn acquire_vm(&self, process: &Arc<Process>, command: Command, argument: CpuVa) -> Result {
        if !process.mm().is_current() {
            return Err(EBADF);
        }
        let mut args = AcquireVmArgs::zeroed();
        let declared = args.as_bytes_mut().get_mut(..command.size());
        match declared {
            Some(bytes) => process.mm().read(argument, bytes)?,
            None => process.mm().read(argument, args.as_bytes_mut())?,
        }
        if self.machine.gpu(args.gpu_id).is_none() {
            return Err(EINVAL);
        }
        let file = LocalFile::fget(args.drm_fd).map_err(|_| EINVAL)?;
        let render = self.machine.render_file(args.gpu_id, &file).ok_or(EINVAL)?;
        let bound = Bound { machine: self.machine.clone(), process: process.clone() };
        binding::acquire_vm(render, &bound, || process.acquire_vm(args.gpu_id))?;
        Ok(())
    }
}
