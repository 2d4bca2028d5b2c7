// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam to the device: the driver's requests to the hardware, and the hardware's reports.
//!
//! Everything here is a register access or a short handshake. [`Gpu::suspend`] and
//! [`Gpu::flush_tlb`] are called from invalidations, that is in memory reclaim. They wait for
//! accesses in flight (bounded by one chunk). They neither allocate nor take a lock that an access
//! holds.

use crate::base::addr::{FabricAddr, GpuVa, PhysAddr, VramOffset};
use crate::base::errno::Result;
use crate::os::Arc;
use vkfd_targets::Model;

/// A VM on its GPU: the number of its address space there, and a generation that tells it from the
/// VMs that had the number before.
///
/// A device works with numbers. It reports with the generation that the queue was made with,
/// because a report may outlive its process. A late report belongs to no process, and not to the
/// next owner. Generations come again after 2^24 VMs with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Vmid(pub u32);

impl Vmid {
    /// Numbers are below 2^8.
    const NUMBER_BITS: u32 = 8;
    /// Most numbers a GPU can have.
    pub const MAX: u32 = 1 << Self::NUMBER_BITS;

    /// `number`, which is below [`MAX`](Self::MAX), in the `generation`th use, which wraps.
    pub const fn new(number: u32, generation: u32) -> Self {
        Self((number & (Self::MAX - 1)) | generation << Self::NUMBER_BITS)
    }

    /// The number of the address space.
    pub const fn number(self) -> u32 {
        self.0 & (Self::MAX - 1)
    }
}

/// A queue's number on its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct HwQueue(pub u32);

/// What kind of packets a queue takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// Copy engine.
    Sdma,
    /// Architected compute packets.
    Aql,
    /// Command processor packets.
    Pm4,
}

/// A queue to run.
#[derive(Clone)]
pub struct QueueSpec {
    /// Address space.
    pub vmid: Vmid,
    pub kind: QueueKind,
    /// Ring buffer.
    pub ring: GpuVa,
    /// Its size in bytes, a power of two.
    pub ring_bytes: u64,
    /// Where the GPU writes its read pointer.
    pub rptr: GpuVa,
    /// Where the client keeps the write pointer.
    pub wptr: GpuVa,
    /// The page that has the doorbell.
    pub doorbells: Arc<dyn DmaMemory>,
    /// Byte offset of the 8-byte doorbell in it.
    pub doorbell: u64,
}

/// What a GPU is.
#[derive(Clone, Debug)]
pub struct GpuProperties {
    /// Identifier in the ABI (`gpu_id`), never 0.
    pub gpu_id: u32,
    /// VRAM size in bytes.
    pub vram_bytes: u64,
    /// Where its VRAM begins in the fabric.
    pub vram_base: FabricAddr,
    /// VMIDs 1..vmids can be used; 0 is the driver's.
    pub vmids: u32,
    /// Target version in `topology` form: major*10000 + minor*100 + stepping (gfx900 = 90000).
    pub gfx_target_version: u32,
    /// The description of its parts for user space.
    pub model: Model,
    /// Whether it can retry page faults.
    pub xnack_capable: bool,
    /// Clock of [`Gpu::clock`], in Hz.
    pub clock_hz: u64,
}

/// Why an access faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultReason {
    /// No valid entry.
    NotPresent,
    /// The entry does not allow it.
    Permission,
    /// The entry names memory that was taken away: an invalidation or a flush was missed.
    Stale,
    /// The entry names no memory at all.
    NoMemory,
}

/// A GPU page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    pub vmid: Vmid,
    /// By which queue.
    pub queue: HwQueue,
    /// Page address.
    pub va: GpuVa,
    /// Whether it was a write.
    pub write: bool,
    pub reason: FaultReason,
    /// The queue waits for [`Gpu::fault_done`]; otherwise it has halted.
    pub retry: bool,
}

impl PageFault {
    /// Whether it was a fetch: every page with an entry may be read.
    pub fn executes(&self) -> bool {
        !self.write && self.reason == FaultReason::Permission
    }
}

/// System memory that the driver owns and device, driver and client share (GTT buffers, doorbells,
/// events).
pub trait DmaMemory: Send + Sync {
    /// Size in bytes, whole pages.
    fn bytes(&self) -> u64;
    /// Physical address of page `index`.
    fn page(&self, index: u64) -> PhysAddr;
    /// Writes a word at a byte offset (8-aligned, inside).
    fn write_u64(&self, at: u64, value: u64);
    /// Reads a word.
    fn read_u64(&self, at: u64) -> u64;
    /// Where it is in the file that clients have open as a device, if the host has such a file: the
    /// offset by which they map it. Otherwise the driver gives it an offset.
    fn mmap_offset(&self) -> Option<u64> {
        None
    }
    /// The host's own type, for its `mmap`.
    fn as_any(&self) -> &dyn core::any::Any;
}

/// How much a device has worked since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Nanoseconds in which a kernel was on it.
    pub nanoseconds: u64,
    /// Whether there is one now.
    pub now: bool,
}

/// How much a device has worked for one VMID since the device was made. Several processes may have
/// had the VMID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Nanoseconds in which a kernel was on it.
    pub kernels: u64,
    /// Nanoseconds that its SDMA queues took for their packets.
    pub copies: u64,
}

/// The device.
pub trait Gpu: Send + Sync {
    /// What it is.
    fn properties(&self) -> &GpuProperties;

    /// Reads a page-table entry.
    fn read_entry(&self, at: VramOffset) -> u64;
    /// Writes `count` consecutive entries: `first`, `first + step`, ...
    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64);
    /// Zeroes VRAM.
    fn clear(&self, at: VramOffset, bytes: u64);

    /// Gives a VMID its page-table root (or takes it away) and says whether its faults are retried.
    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, retry: bool);
    /// Drops cached translations; no access that used one is in flight when it returns.
    fn flush_tlb(&self, vmid: Vmid);
    /// Stops all queues of a VMID; no access of theirs is in flight when it returns.
    fn suspend(&self, vmid: Vmid);
    /// Lets them go on.
    fn resume(&self, vmid: Vmid);
    /// Answers a retry fault: `served` means "translate again", otherwise the queue halts and
    /// reports the fault once more, with `retry` off.
    fn fault_done(&self, vmid: Vmid, va: GpuVa, served: bool);

    /// How many queues there can be at a time.
    fn max_queues(&self) -> usize {
        256
    }
    /// Starts a queue.
    fn add_queue(&self, spec: &QueueSpec) -> Result<HwQueue>;
    /// Changes a queue's ring, or pauses it.
    fn update_queue(&self, queue: HwQueue, ring: GpuVa, ring_bytes: u64, enabled: bool) -> Result;
    /// Ends a queue; nothing of it is in flight when it returns.
    fn remove_queue(&self, queue: HwQueue);
    /// A doorbell was written (a hint for devices that sleep).
    fn ring(&self);
    /// The GPU clock counter.
    fn clock(&self) -> u64;
    /// How much it has worked.
    fn work(&self) -> Work;
    /// How much of it was for a VMID; `None` for a device that does not count that.
    fn work_of(&self, vmid: Vmid) -> Option<Share> {
        let _ = vmid;
        None
    }

    /// How many waves of a VMID's kernels are on it now; `None` for a device that does not count
    /// them. VMID 0 has none, and the device is not asked.
    fn waves_of(&self, vmid: Vmid) -> Option<u64> {
        let _ = vmid;
        None
    }

    /// As [`DmaMemory::mmap_offset`], of the VRAM's first byte.
    fn vram_mmap_offset(&self) -> Option<u64> {
        None
    }
    /// System memory for both sides; zeroed.
    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>>;
    /// The same for doorbells. If it has an `mmap_offset`, the lower 32 bits of that are 0: clients
    /// take them for the place of a doorbell.
    fn alloc_doorbells(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        self.alloc_dma(bytes)
    }
}

/// What a device tells the driver. Called on the device's own thread with no device lock held.
pub trait Interrupts: Send + Sync {
    /// An access faulted.
    fn page_fault(&self, gpu_id: u32, fault: PageFault);
    /// A packet asked to signal an event.
    fn signal_event(&self, gpu_id: u32, vmid: Vmid, event_id: u32);
    /// A queue is about to stop on something it cannot execute. This is the report for a reader;
    /// it comes before [`page_fault`](Self::page_fault) and [`queue_error`](Self::queue_error),
    /// because a client that these wake may end its process, and the driver in it.
    fn queue_stops(&self, gpu_id: u32, vmid: Vmid, queue: HwQueue, message: &str);
    /// A queue stopped on something it cannot execute.
    fn queue_error(&self, gpu_id: u32, vmid: Vmid, queue: HwQueue);
}
