// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device as the driver sees it: [`Gpu`] in terms of the BAR and of commands.
#![expect(clippy::arithmetic_side_effects, reason = "entries lie in VRAM, which is checked before")]

use super::{Phase, Remote};
use crate::bar::Bar;
use crate::command::{self, Command, NewQueue};
use crate::layout;
use crate::Condition;
use vkfd_driver::base::addr::{FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::os::{self, Arc};
use vkfd_driver::sabotage::FailPoint;
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, GpuProperties, HwQueue, QueueSpec, Vmid, Work};

/// From this size on VRAM is zeroed by the device, which gives the memory back instead of writing
/// it.
const CLEAR_REMOTELY: u64 = 256 << 10;

impl<B: Bar> Remote<B> {
    /// Where in the BAR `count` page-table entries from `at` on are.
    fn entries(&self, at: VramOffset, count: u64) -> Option<u64> {
        let bytes = count.checked_mul(8)?;
        let inside = at.0 % 8 == 0 && at.0.checked_add(bytes)? <= self.properties.vram_bytes;
        debug_assert!(inside, "{count} entries at {at} of VRAM");
        inside.then_some(self.vram_at + at.0)
    }
}

/// The address space alone, as the device has it. Only with queues it learns whose it is.
const fn space(vmid: Vmid) -> Vmid {
    Vmid::new(vmid.number(), 0)
}

impl<B: Bar> Gpu for Remote<B> {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn read_entry(&self, at: VramOffset) -> u64 {
        self.entries(at, 1).map_or(0, |at| self.bar.read(at))
    }

    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        let Some(at) = self.entries(at, count) else { return };
        let mut value = first;
        for i in 0..count {
            self.bar.write(at + 8 * i, value);
            value = value.wrapping_add(step);
        }
    }

    fn clear(&self, at: VramOffset, bytes: u64) {
        let Some(in_bar) = self.entries(at, bytes / 8) else { return };
        if bytes >= CLEAR_REMOTELY {
            if let (epoch, Phase::Live) = self.life.now() {
                if self.call(epoch, &Command::Clear { at, bytes }).is_ok() {
                    return;
                }
            }
        }
        self.bar.zero(in_bar, bytes / 8 * 8);
    }

    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, retry: bool) {
        self.set_vmid(vmid, |state| state.with_root(root, retry));
    }

    fn flush_tlb(&self, vmid: Vmid) {
        // Entries were written before: either they are seen here, or by a device that starts with
        // an empty TLB.
        self.bar.fence();
        self.tell_any(&Command::FlushTlb { vmid: space(vmid) });
    }

    fn suspend(&self, vmid: Vmid) {
        self.set_vmid(vmid, |state| state.with_suspended(true));
    }

    fn resume(&self, vmid: Vmid) {
        self.set_vmid(vmid, |state| state.with_suspended(false));
    }

    fn fault_done(&self, vmid: Vmid, va: GpuVa, served: bool) {
        self.tell_any(&Command::FaultDone { vmid: space(vmid), va, served });
    }

    fn max_queues(&self) -> usize {
        layout::MAX_QUEUES as usize
    }

    fn add_queue(&self, spec: &QueueSpec) -> Result<HwQueue> {
        os::failpoint(FailPoint::AddQueue)?;
        let inside =
            spec.doorbell % 8 == 0 && spec.doorbell.checked_add(8).is_some_and(|end| end <= spec.doorbells.bytes());
        if !inside {
            return Err(Errno::EINVAL.into());
        }
        let (epoch, Phase::Live) = self.life.now() else { return Err(Errno::ENODEV.into()) };
        let page = spec.doorbells.page(spec.doorbell / PAGE);
        let queue = self.queues.add(spec.vmid, epoch)?;
        let new = NewQueue {
            queue,
            vmid: spec.vmid,
            kind: spec.kind,
            ring: spec.ring,
            ring_bytes: spec.ring_bytes,
            rptr: spec.rptr,
            wptr: spec.wptr,
            doorbell: PhysAddr(page.0 + spec.doorbell % PAGE),
        };
        match self.call(epoch, &Command::AddQueue(new)) {
            Ok(_) => Ok(queue),
            Err(failed) => {
                self.queues.remove(queue);
                Err(Errno::from(failed).into())
            }
        }
    }

    fn update_queue(&self, queue: HwQueue, ring: GpuVa, ring_bytes: u64, enabled: bool) -> Result {
        let epoch = self.queues.epoch(queue).ok_or(Errno::EINVAL)?;
        if self.life.now() != (epoch, Phase::Live) {
            return Err(Errno::ENODEV.into());
        }
        let update = Command::UpdateQueue { queue, ring, ring_bytes, enabled };
        self.call(epoch, &update).map(drop).map_err(|failed| Errno::from(failed).into())
    }

    fn remove_queue(&self, queue: HwQueue) {
        let Some(epoch) = self.queues.epoch(queue) else { return };
        match self.life.now() {
            (now, Phase::Live | Phase::Replaying) if now == epoch => self.tell(epoch, &Command::RemoveQueue { queue }),
            (now, Phase::Dying) => self.wait_dying(now),
            _ => {}
        }
        self.queues.remove(queue);
    }

    fn ring(&self) {
        if self.life.reachable().is_some() {
            self.bar.doorbell(layout::KICK);
        }
    }

    fn clock(&self) -> u64 {
        match self.life.now() {
            (epoch, Phase::Live) => self.call(epoch, &Command::Clock).unwrap_or(0),
            _ => 0,
        }
    }

    fn work(&self) -> Work {
        match self.life.now() {
            (epoch, Phase::Live) => self.call(epoch, &Command::Work).map_or(Work::default(), command::work),
            _ => Work::default(),
        }
    }

    fn waves_of(&self, vmid: Vmid) -> Option<u64> {
        Some(match self.life.now() {
            (epoch, Phase::Live) if vmid.number() != 0 => self.call(epoch, &Command::Waves { vmid }).unwrap_or(0),
            _ => 0,
        })
    }

    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        os::failpoint(FailPoint::AllocDma)?;
        if self.condition() == Condition::Lost {
            return Err(Errno::ENODEV.into());
        }
        self.bar.alloc_dma(bytes)
    }
}
