// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is measured: ways to let a device, or a program, use scattered memory as if it were
//! contiguous.

use serde::Serialize;

/// Why what only a batch can do is not measured.
pub const NO_BATCH: &str = "this driver has one call per range and no other";

/// A way to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// One range of the same size that is contiguous already: what there is to reach.
    Contiguous,
    /// The same once more, to see how far repeats differ.
    ContiguousAgain,
    /// One call per range.
    Multi,
    /// One call for all ranges, which share notifiers.
    Batch,
    /// One call for all ranges, each with a notifier of its own.
    BatchPerRange,
    /// io_uring's registered buffers: pinned, and not contiguous for the device.
    IoUring,
    /// Copying into a contiguous buffer and back, by memcpy.
    Memcpy,
    /// Moving the pages into a contiguous window and back, by mremap.
    Mremap,
    /// memcpy from one contiguous block to another: the limit for copies.
    MemcpyContiguous,
    /// Faulting the pages in as the driver does, and nothing else: the floor of a registration.
    Fault,
    /// The same for one contiguous range.
    FaultContiguous,
    /// The kernel's own call for faulting pages in, once per range.
    FaultBare,
    /// Pinning the pages, as a driver without notifiers has to.
    Pin,
    /// Memory that is registered nowhere.
    Unregistered,
}

impl Subject {
    /// The ways through vkfd's driver.
    pub const STRATEGIES: [Self; 4] = [Self::Contiguous, Self::Multi, Self::Batch, Self::BatchPerRange];
    /// What else the machine has.
    pub const PEERS: [Self; 7] =
        [Self::Fault, Self::FaultContiguous, Self::FaultBare, Self::Pin, Self::IoUring, Self::Memcpy, Self::Mremap];

    /// Its name in tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Multi => "multi",
            Self::Batch => "batch",
            Self::ContiguousAgain => "contiguous, again",
            Self::BatchPerRange => "batch, one notifier per range",
            Self::IoUring => "io_uring buffers",
            Self::Memcpy => "memcpy to a bounce buffer",
            Self::Mremap => "mremap linearisation",
            Self::MemcpyContiguous => "memcpy, contiguous",
            Self::Fault => "faulting the pages in",
            Self::FaultContiguous => "faulting in, contiguous",
            Self::FaultBare => "bare hmm_range_fault per range",
            Self::Pin => "pinning the pages",
            Self::Unregistered => "unregistered",
        }
    }

    /// Whether it leaves the memory in many mappings for a while where userfaultfd is the source:
    /// each watch has a registration of its own.
    pub fn splits_mappings(self) -> bool {
        matches!(self, Self::Multi | Self::BatchPerRange | Self::Mremap)
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Registration (io_uring: the same; memcpy: copying in; mremap: moving in).
    Register,
    /// Mapping on the GPU.
    Map,
    /// The first kernel over all of it: every translation is walked.
    FirstAccess,
    /// The same kernel again.
    Access,
    /// Unmapping from the GPU.
    Unmap,
    /// Freeing (io_uring: unregistering; memcpy: copying back; mremap: moving back).
    Free,
    /// Register, map, unmap and free together.
    Lifetime,
    /// Register, map, compute, invalidate 1%, compute, free.
    Job,
    /// The system call that changes the memory, as the program sees it.
    Invalidate,
    /// From the end of that call until the queues run again.
    Restore,
    /// Out of the ranges into a contiguous buffer.
    CopyOut,
    /// From a contiguous buffer into the ranges.
    CopyIn,
    /// A kernel.
    Kernel,
}

impl Operation {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Map => "map",
            Self::FirstAccess => "first access",
            Self::Access => "access",
            Self::Unmap => "unmap",
            Self::Free => "free",
            Self::Lifetime => "register + map + free",
            Self::Job => "whole job",
            Self::Invalidate => "invalidate",
            Self::Restore => "restore",
            Self::CopyOut => "copy out",
            Self::CopyIn => "copy in",
            Self::Kernel => "kernel",
        }
    }
}
