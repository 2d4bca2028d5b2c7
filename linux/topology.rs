// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the driver tells in sysfs ([`vkfd_driver::topology`]), as kobjects: the topology,
//! `/sys/devices/virtual/kfd/kfd/topology`, and `ip_discovery` of each GPU's device.

use crate::sysfs::{Directory, Text};
use core::fmt::Display;
use kernel::bindings;
use kernel::device::Device;
use kernel::prelude::*;
use vkfd_driver::seams::gpu::GpuProperties;
use vkfd_driver::os::Vec;
use vkfd_driver::topology::{discovery, Gpu, Machine, Name, Processors, Sink};

/// The directories.
pub(crate) struct Topology {
    all: KVec<Directories>,
}

/// Bytes of RAM.
pub(crate) fn ram() -> u64 {
    let mut info = bindings::sysinfo::default();
    // SAFETY: valid for writes.
    unsafe { bindings::si_meminfo(&mut info) };
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// Directories on their way from being made to being removed.
struct Directories {
    /// From the first made to the one that is open, each in the one before.
    open: KVec<Directory>,
    /// Each before the one that it is in.
    closed: KVec<Directory>,
}

impl Drop for Directories {
    /// A directory goes before the one that it is in.
    fn drop(&mut self) {
        drop(core::mem::take(&mut self.closed));
        while self.open.pop().is_some() {}
    }
}

struct Builder<'a> {
    device: &'a Device,
    all: Directories,
}

impl<'a> Builder<'a> {
    fn new(device: &'a Device) -> Self {
        Self { device, all: Directories { open: KVec::new(), closed: KVec::new() } }
    }
}

impl Sink for Builder<'_> {
    type Error = Error;

    fn enter(&mut self, name: Name) -> Result {
        let directory = match (self.all.open.last(), name) {
            (None, Name::Word(word)) => Directory::in_device(self.device, word)?,
            (None, Name::Number(_)) => return Err(EINVAL),
            (Some(around), Name::Word(word)) => around.directory(word)?,
            (Some(around), Name::Number(number)) => around.numbered(number as usize)?,
        };
        Ok(self.all.open.push(directory, GFP_KERNEL)?)
    }

    fn leave(&mut self) -> Result {
        // Room first: a directory that nobody has goes at once, and may have others in it.
        self.all.closed.reserve(1, GFP_KERNEL)?;
        let directory = self.all.open.pop().ok_or(EINVAL)?;
        Ok(self.all.closed.push(directory, GFP_KERNEL)?)
    }

    fn file(&mut self, name: &'static CStr, text: &dyn Display) -> Result {
        let text = Text::new(format_args!("{text}"))?;
        self.all.open.last_mut().ok_or(EINVAL)?.file(name, text)
    }
}

impl Topology {
    /// Makes the directories, in that of `device`. `gpus` in the driver's order, each with its
    /// render node's minor number.
    pub(crate) fn new<'a>(
        device: &Device,
        gpus: impl Iterator<Item = (&'a GpuProperties, u32)> + Clone,
    ) -> Result<Self> {
        let mut nodes = Vec::with_capacity(gpus.clone().count())?;
        for (properties, render_minor) in gpus {
            nodes.push(Gpu { properties, render_minor })?;
        }
        // SAFETY: no preconditions.
        let cores = unsafe { bindings::__num_online_cpus.counter }.unsigned_abs();
        let processors = Processors { cores, first_apic: 0, ram: ram() };
        let mut builder = Builder::new(device);
        Machine { processors, gpus: &nodes, coherent: false, svm: true }.render(&mut builder)?;
        let mut all = KVec::new();
        all.push(builder.all, GFP_KERNEL)?;
        Ok(Self { all: all })
    }

    /// Makes what is in the directory of a GPU's `device`.
    pub(crate) fn add(&mut self, device: &Device, properties: &GpuProperties) -> Result {
        let mut builder = Builder::new(device);
        discovery::render(properties.gfx_target_version, &mut builder)?;
        Ok(self.all.push(builder.all, GFP_KERNEL)?)
    }
}
