// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is measured: the way in which a buffer is registered, the GPU's pass over it, and the stage
//! of the job.

use serde::Serialize;

/// How the memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Memory that is one range already: the yardstick.
    NotScattered,
    /// One call for all ranges.
    Batch,
    /// One call per range.
    PerRange,
    /// Moved into one range, which is registered.
    Mremap,
    /// By batch, by a client of the same driver that is no guest.
    Local,
}

impl Way {
    /// The ways through the device.
    pub const ALL: [Self; 4] = [Self::NotScattered, Self::Batch, Self::PerRange, Self::Mremap];
    /// Those of scattered memory.
    pub const SCATTERED: [Self; 3] = [Self::Batch, Self::PerRange, Self::Mremap];

    /// Its name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotScattered => "not scattered",
            Self::Batch => "batch",
            Self::PerRange => "one call per range",
            Self::Mremap => "mremap",
            Self::Local => "a local client",
        }
    }
}

/// What passes over the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// A kernel that adds all words up.
    Kernel,
    /// A copy by SDMA.
    Copy,
    /// A copy by the processor, without a GPU and without a registration: the floor of a copy.
    Processor,
}

impl Pass {
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Copy, Self::Processor];
    /// Those of a whole job.
    pub const JOBS: [Self; 2] = [Self::Kernel, Self::Copy];

    /// Its name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "with a kernel",
            Self::Copy => "with a copy by SDMA",
            Self::Processor => "a plain copy alone",
        }
    }
}

/// A stage of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The blob with its scatter list, and its address.
    Blob,
    /// The registration.
    Register,
    /// Mapping on the GPU.
    Map,
    /// One pass over the buffer.
    Pass,
    /// Unmapping and deregistering.
    Unregister,
    /// The blob goes.
    Unref,
    /// All of it.
    Job,
}

impl Stage {
    /// The stages by themselves, in their order.
    pub const PARTS: [Self; 6] = [Self::Blob, Self::Register, Self::Map, Self::Pass, Self::Unregister, Self::Unref];

    /// Its name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Register => "register",
            Self::Map => "map",
            Self::Pass => "pass",
            Self::Unregister => "unregister",
            Self::Unref => "unref",
            Self::Job => "whole job",
        }
    }
}

/// What a sample is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    pub way: Way,
    /// `None`: of a registration alone.
    pub pass: Option<Pass>,
    /// Which stage.
    pub stage: Stage,
}

impl Cell {
    /// The same of memory that is not scattered.
    pub fn yardstick(self) -> Self {
        Self { way: Way::NotScattered, ..self }
    }
}
