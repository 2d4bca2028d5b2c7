// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is measured.

use serde::Serialize;
use vkfd_client::uapi::vkfd::{SVM_MEMORY_COHERENT, SVM_MEMORY_PRIVATE};

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// System memory alone, with no GPU: the yardstick.
    System,
    /// A GPU's, which the CPU uses in place.
    Coherent,
    /// A GPU's, which comes back when the CPU touches it.
    Private,
}

impl Memory {
    /// What a driver's snapshot says that it moves; `None` when it moves nothing.
    pub fn of(kind: u32) -> Option<Self> {
        match kind {
            SVM_MEMORY_COHERENT => Some(Self::Coherent),
            SVM_MEMORY_PRIVATE => Some(Self::Private),
            _ => None,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Coherent => "coherent",
            Self::Private => "private",
        }
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// memcpy from memory that is there to memory that is there.
    Copy,
    /// Prefetch to the GPU, which can use it when the call returns.
    ToGpu,
    /// Prefetch back.
    ToSystem,
    /// A kernel that reads one word, which is mapped.
    Access,
    /// The same where the driver has to map the page's 2 MiB first.
    FaultMaps,
    /// The same where it has to move them to the GPU.
    FaultMoves,
    /// The CPU reads a word of a page that it has, but not in its page tables.
    CpuTouch,
    /// The CPU reads pages that are spread over the buffer evenly.
    ReadSpread,
    /// The CPU reads pages from the buffer's start on.
    ReadStart,
    /// A buffer object is allocated in memory that is free.
    Allocate,
    /// A buffer object is allocated in memory that SVM memory has to leave first.
    Evict,
    /// A kernel reads memory by page faults, and all of it has room on the GPU.
    Fits,
    /// The same with twice as much as there is room for.
    Twice,
}

impl Step {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "memcpy",
            Self::ToGpu => "to the GPU",
            Self::ToSystem => "back",
            Self::Access => "GPU access, mapped",
            Self::FaultMaps => "GPU fault that maps",
            Self::FaultMoves => "GPU fault that moves",
            Self::CpuTouch => "CPU touch",
            Self::ReadSpread => "pages spread evenly",
            Self::ReadStart => "pages in a row",
            Self::Allocate => "buffer, room is free",
            Self::Evict => "buffer, room is made",
            Self::Fits => "working set that fits",
            Self::Twice => "working set of twice the room",
        }
    }
}

/// One thing that is measured, a sample a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    /// What is done.
    pub step: Step,
    /// Whose memory.
    pub memory: Memory,
    /// Bytes of one request, or that one fault moves or maps.
    pub granule: u64,
    /// How much of the buffer the CPU reads, in percent.
    pub percent: u64,
}

impl Cell {
    /// Of whole buffers.
    pub const fn new(step: Step, memory: Memory, granule: u64) -> Self {
        Self { step, memory, granule, percent: 100 }
    }
}
