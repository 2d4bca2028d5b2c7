// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The topology that user space reads in sysfs, `/sys/devices/virtual/kfd/kfd/topology`: a node for
//! the processors and one for each GPU. The nodes have memory banks, caches and links, in KFD's
//! files and form.
//!
//! [`Machine::render`] walks through the directories and gives each file's text to a [`Sink`]:
//! kobjects in the kernel, files of a private directory for `vkfd run`. Nothing is allocated here;
//! a sink returns its own errors.
//!
//! The keys, their order and the meaning of their numbers are KFD's (`kfd_topology.c`,
//! `kfd_crat.h`).
#![expect(clippy::arithmetic_side_effects, reason = "of the machine's description, no part of which is a client's")]

pub mod discovery;
mod node;

pub use vkfd_targets::{CacheModel, Model, Sharing};

use crate::seams::gpu::GpuProperties;
use core::ffi::CStr;
use core::fmt;
use node::{Bank, Cache, Line, Link, Node};

/// DRM's major number, and the minor number of the first render node.
pub const DRM_MAJOR: u32 = 226;
/// See [`DRM_MAJOR`].
pub const FIRST_RENDER_MINOR: u32 = 128;
/// AMD's PCI vendor number.
pub const VENDOR: u32 = 0x1002;

/// Where the topology is written to.
pub trait Sink {
    /// Why something could not be written.
    type Error;

    /// Makes a directory in the one that is open, and opens it.
    ///
    /// # Errors
    /// The sink's.
    fn enter(&mut self, name: Name) -> Result<(), Self::Error>;

    /// Closes the directory that is open: the one around it is open again.
    ///
    /// # Errors
    /// The sink's.
    fn leave(&mut self) -> Result<(), Self::Error>;

    /// Makes a file in the directory that is open.
    ///
    /// # Errors
    /// The sink's.
    fn file(&mut self, name: &'static CStr, text: &dyn fmt::Display) -> Result<(), Self::Error>;
}

/// A directory's name.
#[derive(Clone, Copy, Debug)]
pub enum Name {
    /// A word.
    Word(&'static CStr),
    /// A number.
    Number(u32),
}

/// The processors.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// How many.
    pub cores: u32,
    /// The APIC number of the first, by which runtimes find its name in `/proc/cpuinfo`.
    pub first_apic: u32,
    /// Bytes of RAM.
    pub ram: u64,
}

/// A GPU and where user space finds it.
#[derive(Clone, Copy)]
pub struct Gpu<'a> {
    /// What it is.
    pub properties: &'a GpuProperties,
    /// Minor number of its render node.
    pub render_minor: u32,
}

/// What there is.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Node 0.
    pub processors: Processors,
    /// Nodes 1 and up.
    pub gpus: &'a [Gpu<'a>],
    /// Whether processors and GPUs are in one coherent address space, as on a node whose GPUs are
    /// attached by XGMI.
    pub coherent: bool,
    /// Whether runtimes may make SVM calls.
    pub svm: bool,
}

/// The bus, device and function of GPU number `index` (from 0), as `location_id` has them.
pub const fn location(index: u32) -> u32 {
    (index + 3) << 8
}

impl Machine<'_> {
    /// Writes all of it, `topology` itself included.
    ///
    /// # Errors
    /// The sink's first.
    pub fn render<S: Sink>(&self, sink: &mut S) -> Result<(), S::Error> {
        sink.enter(Name::Word(c"topology"))?;
        // AMD's driver counts up when it has found the processors, with each GPU, and when it says
        // of a GPU that it has SVM.
        let gpus = self.gpus.len() as u64;
        let steps = if self.svm { 2 } else { 1 };
        sink.file(c"generation_id", &Line(gpus.saturating_mul(steps).saturating_add(1)))?;
        sink.file(c"system_properties", &node::System)?;
        sink.enter(Name::Word(c"nodes"))?;
        let nodes = u32::try_from(self.gpus.len()).unwrap_or(0) + 1;
        for number in 0..nodes {
            let gpu = number.checked_sub(1).and_then(|index| self.gpus.get(index as usize));
            self.node(&Node { machine: self, number, nodes, gpu }, sink)?;
        }
        sink.leave()?;
        sink.leave()
    }

    fn node<S: Sink>(&self, node: &Node<'_>, sink: &mut S) -> Result<(), S::Error> {
        sink.enter(Name::Number(node.number))?;
        sink.file(c"gpu_id", &Line(node.gpu.map_or(0, |gpu| gpu.properties.gpu_id.into())))?;
        sink.file(c"name", &node.name())?;
        sink.file(c"properties", node)?;
        group(sink, c"mem_banks", 1, |_| Bank(node))?;
        group(sink, c"caches", node.caches(), |index| Cache { node, index })?;
        group(sink, c"io_links", node.links(), |index| Link { node, to: node.peer(index) })?;
        group(sink, c"p2p_links", 0, |_| Line(0))?;
        group(sink, c"perf", 0, |_| Line(0))?;
        sink.leave()
    }
}

/// A directory with `count` numbered ones, each with its `properties`.
fn group<S: Sink, T: fmt::Display>(
    sink: &mut S,
    name: &'static CStr,
    count: u32,
    member: impl Fn(u32) -> T,
) -> Result<(), S::Error> {
    sink.enter(Name::Word(name))?;
    for number in 0..count {
        sink.enter(Name::Number(number))?;
        sink.file(c"properties", &member(number))?;
        sink.leave()?;
    }
    sink.leave()
}

#[cfg(test)]
mod tests;
