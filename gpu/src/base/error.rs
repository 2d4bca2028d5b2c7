// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why a call to the GPU failed.

use crate::base::ids::{QueueId, Vmid, MAX_QUEUES};
use crate::raw;
use std::io;

/// Why a call to the GPU failed.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The configuration does not fit the fabric, or has no or too many VMIDs.
    #[error("bad GPU configuration: {0}")]
    BadConfig(&'static str),
    /// There is no such VMID.
    #[error("{0} does not exist")]
    BadVmid(Vmid),
    /// The ring is not aligned to 64 bytes, not a power of two, or smaller than 256 bytes.
    #[error("bad ring of {bytes:#x} bytes at GPU address {va:#x}")]
    BadRing {
        /// GPU address.
        va: u64,
        bytes: u64,
    },
    /// A read or write pointer is not aligned to 8 bytes.
    #[error("queue pointer at GPU address {0:#x} is not aligned to 8 bytes")]
    BadPointer(u64),
    /// All queues are in use.
    #[error("all {MAX_QUEUES} queues are in use")]
    NoQueue,
    /// There is no such queue.
    #[error("{0} does not exist")]
    BadQueue(QueueId),
    /// The doorbell's memory is gone.
    #[error("the doorbell cannot be written: {0}")]
    Doorbell(raw::Faulted),
    /// The queue's thread cannot be started.
    #[error("cannot start a queue thread: {0}")]
    Thread(#[source] io::Error),
}
