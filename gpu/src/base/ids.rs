// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Numbers of address spaces and queues.

use std::fmt;

/// Number of queues a GPU can have at a time.
pub const MAX_QUEUES: usize = 256;

/// A GPU address space: an index into the GPU's table of page-table roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vmid(pub u32);

impl fmt::Display for Vmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VMID {}", self.0)
    }
}

/// A queue of one GPU. Not reused while the GPU lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}
