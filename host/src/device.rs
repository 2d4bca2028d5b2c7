// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The software GPU as the driver's device: [`vkfd_gpu::Gpu`] behind
//! [`vkfd_driver::seams::gpu::Gpu`], the frame table as its bus, and its interrupts on their way to
//! the driver.
//!
//! Two parties hold up a VMID's accesses: the driver (eviction), and the notification source
//! ([`Pause`]). The GPU's own suspension does not count, so `holds` does: accesses run when neither
//! holds them. Its lock, one per VMID, is taken in the notification path; under it nothing is
//! allocated.

use crate::device_file::DeviceFile;
use crate::dma::SharedMemory;
use crate::mm::{Mm, Pause};
use std::any::Any;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use vkfd_driver::base::addr::{index, FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os;
use vkfd_driver::sabotage::{FailPoint, Switch};
use vkfd_driver::seams::gpu as seam;
use vkfd_driver::seams::gpu::{DmaMemory, GpuProperties, HwQueue, QueueSpec, Vmid};
use vkfd_gpu::{BusError, GpuError, HostSpan, QueueError, QueueId};

/// System memory as the GPU reaches it: through the frame table.
pub struct HostBus {
    mm: &'static Mm,
}

impl HostBus {
    /// The bus.
    pub fn new(mm: &'static Mm) -> Self {
        Self { mm }
    }
}

impl vkfd_gpu::Bus for HostBus {
    fn resolve(&self, pa: vkfd_gpu::PhysAddr, max: usize, _write: bool) -> std::result::Result<HostSpan, BusError> {
        use crate::frame::Resolved;
        match self.mm.frames().resolve(PhysAddr(pa.0), max as u64) {
            Resolved::Live(va, bytes) => {
                Ok(HostSpan { ptr: std::ptr::with_exposed_provenance_mut(index(va.0)), len: index(bytes) })
            }
            Resolved::Stale => Err(BusError::Stale),
            Resolved::Unknown => Err(BusError::NoMemory),
        }
    }

    fn settle(&self) {
        if !crate::sabotage::has(Switch::AheadOfChanges) {
            self.mm.settle_told();
        }
    }

    fn prefetch(&self, pa: vkfd_gpu::PhysAddr) {
        self.mm.frames().prefetch(PhysAddr(pa.0));
    }

    fn lost(&self, pa: vkfd_gpu::PhysAddr, _write: bool) {
        self.mm.lost(PhysAddr(pa.0));
    }
}

/// A GPU's line to the driver, which is connected after both were made. Weak, because the driver
/// owns the GPU.
pub struct InterruptLine {
    gpu_id: u32,
    driver: OnceLock<Weak<dyn seam::Interrupts>>,
    /// By the number of the address space: the [`Vmid`] of the VM that has made queues there last.
    vms: [AtomicU32; Vmid::MAX as usize],
}

impl InterruptLine {
    /// A line that leads nowhere yet.
    pub fn new(gpu_id: u32) -> Self {
        Self { gpu_id, driver: OnceLock::new(), vms: [const { AtomicU32::new(0) }; Vmid::MAX as usize] }
    }

    /// A queue of this VM is about to be made: what comes from its address space from now on is of
    /// it. All queues of the VM before have ended.
    fn begin(&self, vmid: Vmid) {
        if let Some(vm) = self.vms.get(vmid.number() as usize) {
            vm.store(vmid.0, Ordering::Release);
        }
    }

    /// The VM of an address space.
    fn vm(&self, vmid: vkfd_gpu::Vmid) -> Vmid {
        let vm = self.vms.get(vmid.0 as usize).map_or(0, |vm| vm.load(Ordering::Acquire));
        // Without a queue, only a test reports from there.
        if vm == 0 {
            Vmid(vmid.0)
        } else {
            Vmid(vm)
        }
    }

    /// Connects it; the first call counts.
    pub fn connect(&self, driver: Weak<dyn seam::Interrupts>) {
        let _ = self.driver.set(driver);
    }

    fn driver(&self) -> Option<Arc<dyn seam::Interrupts>> {
        self.driver.get()?.upgrade()
    }
}

impl vkfd_gpu::Interrupts for InterruptLine {
    fn page_fault(&self, fault: vkfd_gpu::PageFault) {
        let reason = match fault.reason {
            vkfd_gpu::FaultReason::NotPresent => seam::FaultReason::NotPresent,
            vkfd_gpu::FaultReason::Permission => seam::FaultReason::Permission,
            vkfd_gpu::FaultReason::Stale => seam::FaultReason::Stale,
            vkfd_gpu::FaultReason::NoMemory => seam::FaultReason::NoMemory,
        };
        let fault = seam::PageFault {
            vmid: self.vm(fault.vmid),
            queue: HwQueue(fault.queue.0),
            va: GpuVa(fault.va / PAGE * PAGE),
            write: fault.access == vkfd_gpu::Access::Write,
            reason,
            retry: fault.retry,
        };
        if let Some(driver) = self.driver() {
            driver.page_fault(self.gpu_id, fault);
        }
    }

    fn signal_event(&self, vmid: vkfd_gpu::Vmid, event_id: u32) {
        if let Some(driver) = self.driver() {
            driver.signal_event(self.gpu_id, self.vm(vmid), event_id);
        }
    }

    fn queue_stops(&self, vmid: vkfd_gpu::Vmid, queue: QueueId, error: &QueueError) {
        if let Some(driver) = self.driver() {
            driver.queue_stops(self.gpu_id, self.vm(vmid), HwQueue(queue.0), &error.to_string());
        }
    }

    fn queue_error(&self, vmid: vkfd_gpu::Vmid, queue: QueueId, _error: QueueError) {
        if let Some(driver) = self.driver() {
            driver.queue_error(self.gpu_id, self.vm(vmid), HwQueue(queue.0));
        }
    }
}

/// The holders that stop a VMID's accesses.
#[derive(Default)]
struct Holds {
    /// It has a page-table root: only then can there be accesses.
    used: bool,
    driver: bool,
    pauses: u32,
}

/// A GPU on the host.
pub struct HostGpu {
    mm: &'static Mm,
    gpu: Arc<vkfd_gpu::Gpu>,
    line: Arc<InterruptLine>,
    properties: GpuProperties,
    /// Where its VRAM and its DMA memory are, if clients open it by path.
    file: Option<Arc<DeviceFile>>,
    /// By VMID.
    holds: Box<[Mutex<Holds>]>,
    /// Suspensions by the driver; the GPU's own counter has the pauses in it as well.
    suspends: AtomicU64,
}

impl HostGpu {
    /// Puts `gpu`, whose interrupts go through `line`, behind the driver's interface.
    pub fn new(
        mm: &'static Mm,
        gpu: Arc<vkfd_gpu::Gpu>,
        line: Arc<InterruptLine>,
        properties: GpuProperties,
        file: Option<Arc<DeviceFile>>,
    ) -> Self {
        let holds = (0..properties.vmids).map(|_| Mutex::default()).collect();
        Self { mm, gpu, line, properties, file, holds, suspends: AtomicU64::new(0) }
    }

    /// What it has done. `suspends` are the driver's.
    pub fn counters(&self) -> vkfd_gpu::Counters {
        vkfd_gpu::Counters { suspends: self.suspends.load(Ordering::Relaxed), ..self.gpu.counters() }
    }

    /// The software GPU itself, to inspect it.
    pub fn software(&self) -> &Arc<vkfd_gpu::Gpu> {
        &self.gpu
    }

    fn holds(&self, vmid: Vmid) -> Option<MutexGuard<'_, Holds>> {
        let holds = self.holds.get(vmid.number() as usize)?;
        Some(holds.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pause for HostGpu {
    fn pause(&self) {
        for vmid in (0..self.properties.vmids).map(Vmid) {
            let Some(mut holds) = self.holds(vmid) else {
                continue;
            };
            holds.pauses += 1;
            // Also when the driver holds it already: its call may still be waiting for the last
            // access.
            if holds.used {
                self.gpu.suspend(vkfd_gpu::Vmid(vmid.number()));
            }
        }
    }

    fn unpause(&self) {
        for vmid in (0..self.properties.vmids).map(Vmid) {
            let Some(mut holds) = self.holds(vmid) else {
                continue;
            };
            holds.pauses = holds.pauses.saturating_sub(1);
            if holds.used && holds.pauses == 0 && !holds.driver {
                self.gpu.resume(vkfd_gpu::Vmid(vmid.number()));
            }
        }
    }
}

/// What a call that the GPU refused returns.
pub fn errno_of(error: &GpuError) -> Errno {
    match error {
        GpuError::NoQueue => Errno::ENOSPC,
        GpuError::Thread(_) => Errno::ENOMEM,
        GpuError::Doorbell(_) => Errno::EFAULT,
        GpuError::BadConfig(_)
        | GpuError::BadVmid(_)
        | GpuError::BadRing { .. }
        | GpuError::BadPointer(_)
        | GpuError::BadQueue(_) => Errno::EINVAL,
    }
}

fn refused(error: &GpuError) -> vkfd_driver::base::errno::Error {
    tracing::debug!(%error, "refused by the GPU");
    errno_of(error).into()
}

/// VRAM accesses of the driver are within the VRAM; failing, the machine is out of memory or the
/// driver is wrong.
fn check(what: &str, at: VramOffset, result: std::result::Result<(), vkfd_gpu::VramError>) {
    if let Err(error) = result {
        tracing::error!(%error, %at, what, "VRAM access failed");
    }
}

impl seam::Gpu for HostGpu {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn read_entry(&self, at: VramOffset) -> u64 {
        self.gpu.vram().read_u64(at.0).unwrap_or_else(|error| {
            tracing::error!(%error, %at, "VRAM access failed");
            0
        })
    }

    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        check("entries", at, self.gpu.vram().write_entries(at.0, first, step, count));
    }

    fn clear(&self, at: VramOffset, bytes: u64) {
        check("clear", at, self.gpu.vram().clear(at.0, bytes));
    }

    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, retry: bool) {
        if let Some(mut holds) = self.holds(vmid) {
            self.gpu.set_root(vkfd_gpu::Vmid(vmid.number()), root.map(|at| vkfd_gpu::FabricAddr(at.0)), retry);
            // From here on it takes part in pauses; before, one may have begun.
            holds.used = root.is_some();
            if holds.used && (holds.pauses != 0 || holds.driver) {
                self.gpu.suspend(vkfd_gpu::Vmid(vmid.number()));
            } else {
                self.gpu.resume(vkfd_gpu::Vmid(vmid.number()));
            }
        }
    }

    fn flush_tlb(&self, vmid: Vmid) {
        self.gpu.flush_tlb(vkfd_gpu::Vmid(vmid.number()));
    }

    fn suspend(&self, vmid: Vmid) {
        if let Some(mut holds) = self.holds(vmid) {
            self.suspends.fetch_add(1, Ordering::Relaxed);
            holds.driver = true;
            self.gpu.suspend(vkfd_gpu::Vmid(vmid.number()));
        }
    }

    fn resume(&self, vmid: Vmid) {
        if let Some(mut holds) = self.holds(vmid) {
            holds.driver = false;
            if holds.pauses == 0 {
                self.gpu.resume(vkfd_gpu::Vmid(vmid.number()));
            }
        }
    }

    fn fault_done(&self, vmid: Vmid, va: GpuVa, served: bool) {
        let outcome = if served { vkfd_gpu::FaultOutcome::Retry } else { vkfd_gpu::FaultOutcome::Fail };
        self.gpu.fault_done(vkfd_gpu::Vmid(vmid.number()), va.0, outcome);
    }

    fn max_queues(&self) -> usize {
        vkfd_gpu::MAX_QUEUES
    }

    fn add_queue(&self, spec: &QueueSpec) -> Result<HwQueue> {
        os::failpoint(FailPoint::AddQueue)?;
        let memory = spec.doorbells.as_any().downcast_ref::<SharedMemory>().ok_or(Errno::EINVAL)?;
        let doorbell = memory.word_pointer(spec.doorbell).ok_or(Errno::EINVAL)?;
        let keeper: Arc<dyn Any + Send + Sync> = Arc::new(spec.doorbells.clone());
        let config = vkfd_gpu::QueueConfig {
            vmid: vkfd_gpu::Vmid(spec.vmid.number()),
            kind: match spec.kind {
                seam::QueueKind::Sdma => vkfd_gpu::QueueKind::Sdma,
                seam::QueueKind::Aql => vkfd_gpu::QueueKind::Aql,
                seam::QueueKind::Pm4 => vkfd_gpu::QueueKind::Pm4,
            },
            ring_va: spec.ring.0,
            ring_bytes: spec.ring_bytes,
            rptr_va: spec.rptr.0,
            wptr_va: spec.wptr.0,
            // SAFETY: `word_pointer` checked the place and its alignment, and the keeper holds the
            // memory that has it.
            doorbell: unsafe { vkfd_gpu::DoorbellPtr::new(doorbell, keeper) },
            enabled: true,
        };
        self.line.begin(spec.vmid);
        self.gpu.add_queue(config).map(|id| HwQueue(id.0)).map_err(|e| refused(&e))
    }

    fn update_queue(&self, queue: HwQueue, ring: GpuVa, ring_bytes: u64, enabled: bool) -> Result {
        self.gpu.update_queue(QueueId(queue.0), ring.0, ring_bytes, enabled).map_err(|e| refused(&e))
    }

    fn remove_queue(&self, queue: HwQueue) {
        if let Err(error) = self.gpu.remove_queue(QueueId(queue.0)) {
            tracing::error!(%error, "removing a queue");
        }
    }

    fn ring(&self) {
        self.gpu.ring();
    }

    fn clock(&self) -> u64 {
        vkfd_gpu::clock()
    }

    fn work(&self) -> seam::Work {
        let vkfd_gpu::Work { nanoseconds, now } = self.gpu.work();
        seam::Work { nanoseconds, now }
    }

    fn work_of(&self, vmid: Vmid) -> Option<seam::Share> {
        let (work, copies) = self.gpu.work_of(vkfd_gpu::Vmid(vmid.number()));
        Some(seam::Share { kernels: work.nanoseconds, copies })
    }

    fn waves_of(&self, vmid: Vmid) -> Option<u64> {
        Some(self.gpu.waves_of(vkfd_gpu::Vmid(vmid.number())))
    }

    fn vram_mmap_offset(&self) -> Option<u64> {
        self.file.as_ref().map(|_| self.gpu.vram().start())
    }

    fn alloc_doorbells(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::AllocDma)?;
        debug_assert_eq!(bytes, vkfd_driver::gpuvm::vm::DOORBELL_BYTES);
        Ok(os::arc(SharedMemory::doorbells(self.mm, self.file.as_ref())?)?)
    }

    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::AllocDma)?;
        Ok(os::arc(SharedMemory::new(self.mm, self.file.as_ref(), bytes)?)?)
    }
}
