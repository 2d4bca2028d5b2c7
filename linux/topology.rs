// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The topology in sysfs, `/sys/devices/virtual/kfd/kfd/topology`: the driver's
//! ([`vkfd_driver::topology`]), as kobjects.

use crate::sysfs::{Directory, Text};
use core::fmt::Display;
use kernel::bindings;
use kernel::device::Device;
use kernel::prelude::*;
use vkfd_driver::gpu::GpuProperties;
use vkfd_driver::os::Vec;
use vkfd_driver::topology::{Gpu, Machine, Name, Processors, Sink};

/// The directories.
pub(crate) struct Topology {
    _all: Directories,
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
        let all = Directories { open: KVec::new(), closed: KVec::new() };
        let mut builder = Builder { device, all };
        Machine { processors, gpus: &nodes, coherent: false, svm: true }.render(&mut builder)?;
        Ok(Self { _all: builder.all })
    }
}
