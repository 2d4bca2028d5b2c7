// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the GPU needs from outside: system memory ([`Bus`]) and someone to interrupt ([`Interrupts`]).

use crate::queue::{QueueError, QueueId};
use std::fmt;

/// System physical address, as in a page-table entry with the SYSTEM bit. Only the host knows what is behind
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "physical {:#x}", self.0)
    }
}

/// A GPU address space: an index into the GPU's table of page-table roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vmid(pub u32);

impl fmt::Display for Vmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VMID {}", self.0)
    }
}

/// Host memory behind a physical address.
#[derive(Clone, Copy, Debug)]
pub struct HostSpan {
    /// First byte.
    pub ptr: *mut u8,
    /// Contiguous bytes from there, at least 1.
    pub len: usize,
}

/// Why a physical address has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusError {
    /// The frame was there and was taken away: the driver left a stale entry.
    Stale,
    /// There is no such frame.
    NoMemory,
}

/// System memory. The host implements it.
pub trait Bus: Send + Sync {
    /// Host pointer to `pa` and the number of contiguous bytes from there (1 to `max`).
    ///
    /// Runs within an access: it must be quick and must not call back into the GPU, where suspending would
    /// wait for this very access. Likewise, whoever serves a host page fault on the memory returned here must
    /// not suspend or flush before the fault is served. The span is used until the access ends, which
    /// [`Gpu::suspend`](crate::Gpu::suspend) and [`Gpu::flush_tlb`](crate::Gpu::flush_tlb) wait for.
    ///
    /// # Errors
    /// [`BusError`], which faults the access.
    fn resolve(&self, pa: PhysAddr, max: usize, write: bool) -> Result<HostSpan, BusError>;

    /// `pa` will be resolved soon: a chance to fetch what that reads. A hint; it does nothing else.
    fn prefetch(&self, pa: PhysAddr) {
        let _ = pa;
    }

    /// The bytes at `pa` resolved but could not be touched: the host's memory vanished. Runs outside any
    /// access and may block, for instance for the notification that explains it. The GPU translates again
    /// when it returns.
    fn lost(&self, pa: PhysAddr, write: bool);
}

/// What an access wanted to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
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

/// Interrupts to the driver. Called from queue threads, outside any access and with no GPU lock held; any
/// method of the GPU may be called from within.
pub trait Interrupts: Send + Sync {
    /// A page fault. Unless `fault.retry`, [`Interrupts::queue_error`] follows.
    fn page_fault(&self, fault: PageFault);
    /// A queue signalled an event.
    fn signal_event(&self, vmid: Vmid, event_id: u32);
    /// A queue met an error and has halted; it stays until it is removed.
    fn queue_error(&self, vmid: Vmid, queue: QueueId, error: QueueError);
}
