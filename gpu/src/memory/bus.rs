// SPDX-License-Identifier: GPL-2.0 OR MIT
//! System memory, which the GPU has from outside ([`Bus`]).

use std::fmt;

/// System physical address, as in a page-table entry with the SYSTEM bit. Only the host knows what
/// is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "physical {:#x}", self.0)
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
    /// Runs within an access: it must be quick and must not call back into the GPU, where
    /// suspending would wait for this very access. Likewise, a thread that serves a host page fault
    /// on the memory returned here must not suspend or flush before the fault is served. The span
    /// is used until the access ends, which [`Gpu::suspend`](crate::Gpu::suspend) and
    /// [`Gpu::flush_tlb`](crate::Gpu::flush_tlb) wait for.
    ///
    /// # Errors
    /// [`BusError`], which faults the access.
    fn resolve(&self, pa: PhysAddr, max: usize, write: bool) -> Result<HostSpan, BusError>;

    /// An access is about to begin. Returns when the page tables reflect all changes of memory that
    /// were over by now, because the requester of the access may have made them. Runs outside any
    /// access, each time: it must be quick where nothing is changing.
    fn settle(&self) {}

    /// `pa` will be resolved soon: a chance to fetch what that reads. A hint; it does nothing else.
    fn prefetch(&self, pa: PhysAddr) {
        let _ = pa;
    }

    /// The bytes at `pa` resolved but could not be touched: the host's memory vanished. Runs
    /// outside any access and may block, for instance for the notification that explains it. The
    /// GPU translates again when it returns.
    fn lost(&self, pa: PhysAddr, write: bool);
}
