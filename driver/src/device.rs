// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One GPU as the driver keeps it: the hardware, its VRAM, and who has which VMID.
//!
//! The VMID table is guarded by a lock of rank `Vram`.

use crate::device_memory;
use crate::errno::{Errno, Error, Reason, Result};
use crate::gpu::{DmaMemory, Gpu, GpuProperties, Vmid};
use crate::lock_rank::Rank;
use crate::os::{Arc, Mutex, Vec};
use crate::process::Process;
use crate::smi;
use crate::svm::residency::Residency;
use crate::vram::Vram;
use vkfd_uapi::mmap;

/// A GPU.
pub struct Device {
    index: usize,
    gpu: Arc<dyn Gpu>,
    vram: Arc<Vram>,
    /// The page that MMIO_REMAP maps (the HDP flush registers).
    mmio: Arc<dyn DmaMemory>,
    owners: Mutex<Vec<Option<Arc<Process>>>>,
    smi: smi::Clients,
    residency: Residency,
    memory_kind: device_memory::Kind,
}

impl Device {
    /// Takes a GPU over.
    pub fn new(index: usize, gpu: Arc<dyn Gpu>, memory_kind: device_memory::Kind) -> Result<Self> {
        let properties = gpu.properties();
        let mut owners = Vec::with_capacity(properties.vmids as usize)?;
        for _ in 0..properties.vmids {
            owners.push(None)?;
        }
        Ok(Self {
            index,
            vram: crate::os::arc(Vram::new(properties.vram_bytes)?)?,
            mmio: gpu.alloc_dma(crate::addr::PAGE)?,
            owners: Mutex::new(Rank::Vram, owners)?,
            smi: smi::Clients::new()?,
            residency: Residency::new(index)?,
            memory_kind,
            gpu,
        })
    }

    /// Its number on this machine, from 0.
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The hardware.
    pub const fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// What it is.
    pub fn properties(&self) -> &GpuProperties {
        self.gpu.properties()
    }

    /// Its `gpu_id`.
    pub fn id(&self) -> u32 {
        self.properties().gpu_id
    }

    /// Its VRAM.
    pub const fn vram(&self) -> &Arc<Vram> {
        &self.vram
    }

    /// Its remapped registers.
    pub const fn mmio(&self) -> &Arc<dyn DmaMemory> {
        &self.mmio
    }

    /// Which SVM memory is in its VRAM.
    pub const fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Whether the CPU uses SVM memory in its VRAM in place.
    pub const fn memory_kind(&self) -> device_memory::Kind {
        self.memory_kind
    }

    /// Who reads its events.
    pub const fn smi(&self) -> &smi::Clients {
        &self.smi
    }

    /// Where clients map them.
    pub fn mmio_mmap_offset(&self) -> u64 {
        self.mmio.mmap_offset().unwrap_or(mmap::encode(mmap::MMAP_TYPE_MMIO, self.id()))
    }

    /// A VMID for `process`. ENOSPC when all are taken.
    pub fn take_vmid(&self, process: &Arc<Process>) -> Result<Vmid> {
        crate::os::failpoint("vmid")?;
        let mut owners = self.owners.lock();
        // VMID 0 is the driver's own.
        let free = (1..owners.len()).find(|i| owners[*i].is_none());
        let Some(vmid) = free else { return Err(Error::new(Errno::ENOSPC, Reason::BadGpu)) };
        owners[vmid] = Some(process.clone());
        Ok(Vmid(u32::try_from(vmid).map_err(|_| Errno::ENOSPC)?))
    }

    /// Gives a VMID back.
    pub fn give_vmid(&self, vmid: Vmid) {
        let owner = self.owners.lock().get_mut(vmid.0 as usize).and_then(Option::take);
        drop(owner);
    }

    /// Whose a VMID is.
    pub fn owner(&self, vmid: Vmid) -> Option<Arc<Process>> {
        self.owners.lock().get(vmid.0 as usize).and_then(Clone::clone)
    }
}
