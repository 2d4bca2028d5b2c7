// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why a machine could not be made.

use crate::source::{BadVariable, Source};

/// Why a machine could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostError {
    /// The frame table or another large reservation was refused.
    #[error(
        "cannot reserve address space for the frame table: {0} (is RLIMIT_AS or vm.overcommit_memory=2 in the way?)"
    )]
    AddressSpace(String),
    /// The file with all memory that clients map could not be made.
    #[error("cannot make the file with the machine's memory: {0}")]
    DeviceFile(String),
    /// The notification source asked for is not to be had.
    #[error("notification source {wanted} is not available: {why}")]
    Source {
        /// What was asked for.
        wanted: Source,
        /// Why it cannot be had.
        why: String,
    },
    /// The process already has an address-space watcher with another source.
    #[error("this process already uses notification source {has}, {wanted} was asked for")]
    SourceTaken {
        /// What it uses.
        has: Source,
        /// What was asked for.
        wanted: Source,
    },
    /// `VKFD_NOTIFY` has a value that means nothing.
    #[error(transparent)]
    BadVariable(#[from] BadVariable),
    /// The process uses the memory of the one that it comes from (vfork), or was made past the C
    /// library (a raw `clone`).
    #[error("this process has its memory from another in a way that the C library does not know of: exec first")]
    Borrowed,
    /// A GPU could not be made.
    #[error("cannot make GPU {index}: {why}")]
    Gpu {
        /// Its position.
        index: u32,
        why: String,
    },
    /// The driver refused to start.
    #[error("the driver did not start: {0}")]
    Driver(String),
    /// An option has no meaning.
    #[error("{0}")]
    Option(String),
}
