// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One GPU as the driver keeps it: the hardware, its VRAM, and the owner of each VMID.
//!
//! The VMID table is guarded by a lock of rank `Vram`.

pub mod damping;
pub mod limit;
pub mod load;
pub mod residency;
pub mod room;
pub mod share;
pub mod smi;
pub mod vmid_owner;
pub mod vram;

use crate::base::addr::PAGE;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::base::lock_rank::Rank;
use crate::device::load::Load;
use crate::device::residency::Residency;
use crate::device::vmid_owner::VmidOwner;
use crate::device::vram::Vram;
use crate::os::{Arc, Mutex, Vec};
use crate::sabotage::FailPoint;
use crate::seams::device_memory;
use crate::seams::gpu::{Gpu, GpuProperties, Vmid};

/// A VMID.
struct Slot {
    owner: Option<Arc<dyn VmidOwner>>,
    /// How often it has been handed out.
    generation: u32,
}

/// The right to one queue of a GPU. Dropping it gives it back.
pub struct QueueShare {
    device: Arc<Device>,
    user: u32,
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        let mut users = self.device.queues.lock();
        let Some(at) = users.iter().position(|(who, _)| *who == self.user) else { return };
        let count = users.get(at).map_or(0, |(_, count)| count.saturating_sub(1));
        match users.get_mut(at) {
            Some(entry) if count > 0 => entry.1 = count,
            // The memory stays.
            _ => {
                users.swap_remove(at);
            }
        }
    }
}

/// A GPU.
pub struct Device {
    index: usize,
    gpu: Arc<dyn Gpu>,
    vram: Arc<Vram>,
    owners: Mutex<Vec<Slot>>,
    /// How many queues each user has; only users who have some.
    queues: Mutex<Vec<(u32, usize)>>,
    smi: smi::Clients,
    residency: Residency,
    load: Load,
    memory_kind: device_memory::Kind,
    svm_pages: u64,
}

impl Device {
    /// Takes a GPU over, of whose VRAM SVM memory may have `svm_vram` bytes, or all.
    pub fn new(
        index: usize,
        gpu: Arc<dyn Gpu>,
        memory_kind: device_memory::Kind,
        svm_vram: Option<u64>,
    ) -> Result<Self> {
        let properties = gpu.properties();
        let mut owners = Vec::with_capacity(properties.vmids as usize)?;
        for _ in 0..properties.vmids.min(Vmid::MAX) {
            owners.push(Slot { owner: None, generation: 0 })?;
        }
        Ok(Self {
            index,
            vram: crate::os::arc(Vram::new(properties.vram_bytes)?)?,
            owners: Mutex::new(Rank::Vram, owners)?,
            queues: Mutex::new(Rank::Vram, Vec::new())?,
            smi: smi::Clients::new()?,
            residency: Residency::new(index)?,
            load: Load::new(crate::os::now().0)?,
            memory_kind,
            svm_pages: svm_vram.map_or(u64::MAX, |bytes| bytes / PAGE),
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

    /// Which SVM memory is in its VRAM.
    pub const fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Whether the CPU uses SVM memory in its VRAM in place.
    pub const fn memory_kind(&self) -> device_memory::Kind {
        self.memory_kind
    }

    /// How many pages of its VRAM SVM memory may have.
    pub const fn svm_pages(&self) -> u64 {
        self.svm_pages
    }

    /// The share of time in which it runs kernels, in percent ([`load`]).
    pub fn busy_percent(&self) -> u32 {
        self.load.percent(crate::os::now().0, self.gpu.work().nanoseconds)
    }

    /// Whether a process's waves are counted. AMD's driver does that on all families but gfx10.
    pub fn counts_waves(&self) -> bool {
        self.properties().gfx_target_version / 10_000 != 10 && self.gpu.waves_of(Vmid(0)).is_some()
    }

    /// The readers of its events.
    pub const fn smi(&self) -> &smi::Clients {
        &self.smi
    }

    /// The right to one queue. ENOSPC when all are taken, or those that are left are for others
    /// ([`share`]).
    pub fn take_queue(self: &Arc<Self>, user: u32) -> Result<QueueShare> {
        let mut users = self.queues.lock();
        let all = self.gpu.max_queues();
        let taken = users.iter().fold(0usize, |sum, (_, count)| sum.saturating_add(*count));
        let own = users.iter().find(|(who, _)| *who == user).map_or(0, |(_, count)| *count);
        if !share::allows(all, all.saturating_sub(taken), own) {
            return Err(Error::new(Errno::ENOSPC, Reason::None));
        }
        match users.iter_mut().find(|(who, _)| *who == user) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => users.push((user, 1))?,
        }
        Ok(QueueShare { device: self.clone(), user })
    }

    /// A VMID for `owner`. ENOSPC when all are taken, or those that are left are for others
    /// ([`share`]).
    pub fn take_vmid(&self, owner: Arc<dyn VmidOwner>) -> Result<Vmid> {
        crate::os::failpoint(FailPoint::Vmid)?;
        let no_vmid = Error::new(Errno::ENOSPC, Reason::BadGpu);
        let mut owners = self.owners.lock();
        // VMID 0 is the driver's own.
        let all = || owners.iter().skip(1);
        let user = owner.user();
        let own = all().filter_map(|slot| slot.owner.as_ref()).filter(|owner| owner.user() == user).count();
        let free = all().filter(|slot| slot.owner.is_none()).count();
        if !share::allows(all().count(), free, own) {
            return Err(no_vmid);
        }
        let slot = owners.iter_mut().enumerate().skip(1).find(|(_, slot)| slot.owner.is_none());
        let (number, slot) = slot.ok_or(no_vmid)?;
        slot.owner = Some(owner);
        let generation = slot.generation;
        slot.generation = generation.wrapping_add(1);
        Ok(Vmid::new(u32::try_from(number).map_err(|_| Errno::ENOSPC)?, generation))
    }

    /// Gives a VMID back. What is still on its way from the device for it is nobody's from now on.
    pub fn give_vmid(&self, vmid: Vmid) {
        let owner = self.owners.lock().get_mut(vmid.number() as usize).and_then(|slot| slot.owner.take());
        drop(owner);
    }

    /// Whose a VMID is; `None` if it is no longer in the use that `vmid` is of.
    pub fn owner(&self, vmid: Vmid) -> Option<Arc<dyn VmidOwner>> {
        let owners = self.owners.lock();
        let slot = owners.get(vmid.number() as usize)?;
        let now = Vmid::new(vmid.number(), slot.generation.wrapping_sub(1));
        slot.owner.clone().filter(|_| now == vmid)
    }
}
