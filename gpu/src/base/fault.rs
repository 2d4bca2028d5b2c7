// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page faults: what an access wanted, and why it could not.

use crate::base::ids::{QueueId, Vmid};
use std::fmt;

/// What an access wanted to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Write, or an atomic operation.
    Write,
    /// Fetch a kernel.
    Execute,
}

/// Why an access faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReason {
    /// No valid entry at some level.
    NotPresent,
    /// The entry does not permit the access.
    Permission,
    /// The entry points at system memory that was taken away: a driver bug.
    Stale,
    /// The entry points at memory that does not exist, or that the host cannot provide.
    NoMemory,
}

/// A GPU page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// Address space.
    pub vmid: Vmid,
    /// First byte that could not be accessed.
    pub va: u64,
    /// What was attempted.
    pub access: Access,
    /// Why it failed.
    pub reason: FaultReason,
    /// The queue waits for [`Gpu::fault_done`](crate::Gpu::fault_done); otherwise it has halted.
    pub retry: bool,
    /// The queue that faulted.
    pub queue: QueueId,
}

impl fmt::Display for PageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PageFault { vmid, va, access, reason, queue, .. } = self;
        write!(f, "{access:?} of GPU address {va:#x} in {vmid} by {queue}: {reason:?}")
    }
}
