// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A machine as the clients of another memory have it: guests, and programs of other processes.
//!
//! A process that is opened here has the memory that it was granted ([`Grants`]), and no other of
//! this process. There is no way from a [`Confined`] to a process that has more.

use crate::address_space::ProcessMemory;
use crate::device::HostGpu;
use crate::grants::{GrantedMemory, Grants};
use crate::kfd_file::KfdFile;
use crate::machine::Machine;
use crate::render_file::RenderFile;
use std::sync::Arc;
use vkfd_driver::os;
use vkfd_sabotage::{Switch, Switches};

/// See the module.
pub struct Confined {
    machine: Arc<Machine>,
    grants: Arc<Grants>,
    sabotage: Switches,
    pid: u32,
}

impl Confined {
    /// `machine`, for processes that have what `grants` has.
    pub const fn new(machine: Arc<Machine>, grants: Arc<Grants>, sabotage: Switches) -> Self {
        Self { machine, grants, sabotage, pid: 0 }
    }

    /// The same, for the process of this system with this number: it is shown to monitors.
    #[must_use]
    pub fn of_process(self, pid: u32) -> Self {
        Self { pid, ..self }
    }

    /// The memory that its processes have.
    pub const fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// Opens the device, as [`Machine::open`] does, with granted memory alone. The process is not
    /// in the list of processes before [`KfdFile::list`].
    ///
    /// # Errors
    /// The errno.
    pub fn open(&self) -> Result<KfdFile, i32> {
        if self.sabotage.has(Switch::WholeMemory) {
            return self.machine.open();
        }
        let memory = ProcessMemory::new(self.machine.memory());
        let memory = os::arc(GrantedMemory::new(memory, self.grants.clone(), self.pid)).map_err(|e| e.errno.0)?;
        self.machine.open_with(memory, self.grants.registered().clone())
    }

    /// Opens a render node, as [`Machine::open_render`] does.
    ///
    /// # Errors
    /// The errno.
    pub fn open_render(&self, index: usize) -> Result<RenderFile, i32> {
        self.machine.open_render_of(index, self.pid)
    }

    /// The GPUs, by index.
    pub fn gpus(&self) -> &[Arc<HostGpu>] {
        self.machine.gpus()
    }
}
