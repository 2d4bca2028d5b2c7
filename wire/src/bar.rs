// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam to the code that maps the BAR: a kernel module over a PCI device, a test over a memfd.

use vkfd_driver::base::addr::PhysAddr;
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os::Arc;
use vkfd_driver::seams::gpu::DmaMemory;

/// The PCI device as the driver reaches it.
///
/// The mapping of BAR 2 must be cacheable (write-back): the device uses the same memory from a
/// processor of the same computer. Another process writes there at any time: volatile accesses
/// only.
///
/// Everything but [`Bar::alloc_dma`] may be called in memory reclaim, from many threads at once: it
/// neither allocates nor takes a lock that allocates.
pub trait Bar: Send + Sync {
    /// Size of BAR 2 in bytes.
    fn bytes(&self) -> u64;

    /// Maps `bytes` of physical memory at `phys`, which the machine keeps for the device, as long
    /// as `self` exists. They follow BAR 2: the methods below take them from the offset on that is
    /// returned. Once.
    ///
    /// # Errors
    /// ENODEV if there is no such memory, EBUSY if it is in use as RAM, ENOMEM.
    fn map_memory(&mut self, phys: PhysAddr, bytes: u64) -> Result<u64> {
        let _ = (phys, bytes);
        Err(Errno::ENODEV.into())
    }

    /// Reads the word at byte `at` of BAR 2, in one access, with acquire ordering. The caller has
    /// checked that it is aligned to 8 and inside.
    fn read(&self, at: u64) -> u64;

    /// Writes a word, in one access, with release ordering. As [`Bar::read`].
    fn write(&self, at: u64, value: u64);

    /// Zeroes `bytes` from `at` on; both are multiples of 8 and inside.
    fn zero(&self, at: u64, bytes: u64);

    /// A full memory barrier: what was written is visible before anything is read after it
    /// (`smp_mb`).
    fn fence(&self);

    /// Writes the ivshmem doorbell register (offset 12 of BAR 0).
    fn doorbell(&self, value: u32);

    /// Called between two looks while a call waits for the device; `turn` counts them from 0. Lets
    /// the processor rest for some nanoseconds in the first hundred turns, and gives it to others
    /// later (with a sleep of some microseconds where the context allows).
    fn relax(&self, turn: u32);

    /// Zeroed guest memory whose [`page`](DmaMemory::page)s are guest-physical addresses of RAM,
    /// pinned as long as it lives.
    ///
    /// # Errors
    /// ENOMEM.
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>>;
}
