// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver instance of a machine: its GPUs, its limits, its processes, and what the devices tell
//! it.

pub use crate::base::counters::MAX_GPUS;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::files::{Files, NoFiles};
use crate::device::limit::Limit;
use crate::device::vmid_owner::VmidOwner;
use crate::device::Device;
use crate::machine::listing::Listing;
pub use crate::machine::options::Options;
use crate::os::{self, Arc, Vec};
use crate::seams::gpu::{Gpu, HwQueue, Interrupts, PageFault, Vmid};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The driver.
pub struct Kfd {
    devices: Vec<Arc<Device>>,
    options: Options,
    limit: Arc<Limit>,
    files: Arc<dyn Files>,
    next_process: AtomicU64,
    listing: Listing,
    /// Somebody pins pages to measure that.
    pinning: AtomicBool,
}

/// The right to pin pages, until this is dropped.
pub(crate) struct Pinning<'a>(&'a AtomicBool);

impl Drop for Pinning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Kfd {
    /// A driver for `gpus` on a host that has no files for callers.
    pub fn new(gpus: Vec<Arc<dyn Gpu>>, options: Options) -> Result<Arc<Self>> {
        Self::with_files(gpus, options, os::arc(NoFiles)?)
    }

    /// A driver for `gpus`.
    pub fn with_files(gpus: Vec<Arc<dyn Gpu>>, options: Options, files: Arc<dyn Files>) -> Result<Arc<Self>> {
        if gpus.len() > MAX_GPUS {
            return Err(Errno::EINVAL.into());
        }
        let mut devices = Vec::with_capacity(gpus.len())?;
        for (index, gpu) in gpus.into_iter().enumerate() {
            devices.push(os::arc(Device::new(index, gpu, options.device_memory, options.svm_vram)?)?)?;
        }
        let limit = os::arc(Limit::new(options.gtt.unwrap_or(Limit::of_ram(options.ram))))?;
        os::arc(Self {
            devices,
            options,
            limit,
            files,
            next_process: AtomicU64::new(1),
            listing: Listing::new()?,
            pinning: AtomicBool::new(false),
        })
    }

    /// The right to pin pages; one at a time.
    pub(crate) fn begin_pinning(&self) -> Option<Pinning<'_>> {
        (!self.pinning.swap(true, Ordering::AcqRel)).then(|| Pinning(&self.pinning))
    }

    /// The GPUs.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// The GPU with this `gpu_id`. EINVAL when there is none.
    pub fn device(&self, gpu_id: u32) -> Result<&Arc<Device>> {
        let found = self.devices.iter().find(|d| d.id() == gpu_id);
        found.ok_or(Error::new(Errno::EINVAL, Reason::BadGpu))
    }

    /// How it behaves.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The system-memory limit of all processes.
    pub const fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Processes and render nodes that monitors are shown.
    pub const fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Files for callers.
    pub(crate) fn files(&self) -> &dyn Files {
        &*self.files
    }

    /// A number for a process that opens the device.
    pub(crate) fn next_process(&self) -> u64 {
        self.next_process.fetch_add(1, Ordering::Relaxed)
    }

    fn owner(&self, gpu_id: u32, vmid: Vmid) -> Option<(usize, Arc<dyn VmidOwner>)> {
        let device = self.device(gpu_id).ok()?;
        Some((device.index(), device.owner(vmid)?))
    }
}

impl Interrupts for Kfd {
    fn page_fault(&self, gpu_id: u32, fault: PageFault) {
        if let Some((gpu, process)) = self.owner(gpu_id, fault.vmid) {
            process.page_fault(gpu, fault);
        }
    }

    fn signal_event(&self, gpu_id: u32, vmid: Vmid, event_id: u32) {
        if let Some((_, process)) = self.owner(gpu_id, vmid) {
            process.signal_event(event_id);
        }
    }

    fn queue_stops(&self, gpu_id: u32, vmid: Vmid, queue: HwQueue, message: &str) {
        if self.owner(gpu_id, vmid).is_some() {
            os::warn(format_args!("gpu {gpu_id:#x}: queue {} stopped: {message}", queue.0));
        }
    }

    fn queue_error(&self, gpu_id: u32, vmid: Vmid, queue: HwQueue) {
        if let Some((gpu, process)) = self.owner(gpu_id, vmid) {
            process.queue_error(gpu, gpu_id, queue);
        }
    }
}
