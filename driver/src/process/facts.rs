// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What monitors are shown of a process ([`crate::machine::listing`]): memory by GPU, queues, the
//! time in evictions, SVM faults and migrations.
//!
//! Memory is summed up when somebody asks, in steps of [`STEP`] objects under the process lock.
//! An object counts on the GPU that it was allocated for. Memory of an object that was made at the
//! same time may be missing. A thread that is being killed does not look at the rest.
//!
//! Compute units are counted as AMD's driver counts them: as many as the process's waves would
//! fill. The device is asked for them, so they are no part of the other facts.

use super::owner::Owned;
use super::Process;
use crate::base::addr::PAGE;
use crate::base::errno::Result;
use crate::buffers::bo::{Backing, Bo, Origin};
use crate::machine::listing::{Listed, OnGpu, QueueFacts};
use crate::os::{self, Arc};
use crate::sabotage::Switch;
use crate::seams::gpu::{Share, Vmid};
use vkfd_uapi::memory as memory_abi;
use vkfd_uapi::queue as queue_abi;

/// Objects that are looked at together.
const STEP: usize = 256;

/// A queue's type in KFD's files, which is a number of the kernel's own (`KFD_QUEUE_TYPE_*`).
const fn kind_of(queue_type: u32) -> u32 {
    match queue_type {
        queue_abi::QUEUE_TYPE_SDMA => 1,
        queue_abi::QUEUE_TYPE_SDMA_XGMI => 3,
        queue_abi::QUEUE_TYPE_SDMA_BY_ENG_ID => 4,
        // PM4 and AQL are both compute.
        _ => 0,
    }
}

impl Process {
    /// Shows it in the list of processes, until its release; again is no error. Nothing is shown of
    /// a process that is none of this system.
    pub fn list(self: &Arc<Self>) -> Result {
        if self.mm().identity().is_none() {
            return Ok(());
        }
        self.kfd().listing().enter(os::arc(Owned(self.clone()))?)?;
        // It may have ended meanwhile, and found nothing to take out.
        if self.lock().check_open().is_err() {
            self.kfd().listing().leave(self.number());
        }
        Ok(())
    }

    /// What it has of GPU number `gpu`.
    pub fn on_gpu(&self, gpu: usize) -> OnGpu {
        let mut facts = OnGpu::default();
        let Some(device) = self.kfd().devices().get(gpu) else { return facts };
        self.add_objects(gpu, &mut facts);
        let mut at = 0;
        while let Some(block) = self.svm().next_block(at, u64::MAX).filter(|_| os::interrupted().is_ok()) {
            let pages = device.residency().pages(block.granule()).count();
            facts.vram = facts.vram.saturating_add(pages.saturating_mul(PAGE));
            at = block.span().end().0;
        }
        if self.sabotage().has(Switch::EveryonesMemory) {
            facts.vram = device.vram().used();
        }
        facts.stopped = self.eviction().stopped(device.id());
        let svm = self.svm().counters().on(gpu).filter(|_| self.mm().has_svm());
        facts.svm = svm.map(|on| [on.faults.get(), on.pages_in.get(), on.pages_out.get()]);
        match self.vm(gpu) {
            Ok(vm) => (facts.tables, facts.work) = (vm.table_bytes(), vm.work()),
            // Nothing was done for it.
            Err(_) => facts.work = device.gpu().work_of(Vmid(0)).map(|_| Share::default()),
        }
        facts
    }

    /// How many compute units of GPU number `gpu` its waves would fill.
    pub fn occupied(&self, gpu: usize) -> Option<u64> {
        let device = self.kfd().devices().get(gpu).filter(|device| device.counts_waves())?;
        let model = &device.properties().model;
        let room = u64::from(model.simd_per_unit).saturating_mul(model.waves_per_simd.into()).max(1);
        // Without a VM it has no waves.
        let waves = self.vm(gpu).map_or(Some(0), |vm| vm.waves())?;
        Some(waves.div_ceil(room))
    }

    fn add_objects(&self, gpu: usize, facts: &mut OnGpu) {
        let mut next = Some(0);
        while let Some(first) = next.filter(|_| os::interrupted().is_ok()) {
            next = None;
            let inner = self.lock();
            for (looked, (number, bo)) in inner.bos.iter_from(first).enumerate() {
                if looked == STEP {
                    next = Some(number);
                    break;
                }
                if bo.is_ready() && bo.device().index() == gpu {
                    add(bo, facts);
                }
            }
        }
    }
}

/// Adds an object's memory. A mapping of a DRM object is that object's.
fn add(bo: &Bo, facts: &mut OnGpu) {
    let own = |flag: u32| bo.flags() & flag != 0;
    let sum = match (bo.backing(), bo.origin()) {
        (_, Origin::Gem) => return,
        (Backing::Vram(_), Origin::Imported) => &mut facts.imported_vram,
        (Backing::Vram(_), Origin::Allocated) => &mut facts.vram,
        // Doorbells and registers are no memory.
        (Backing::Dma(_), _) if own(memory_abi::ALLOC_MEM_FLAGS_GTT) => &mut facts.gtt,
        (Backing::Dma(_), _) => return,
        (Backing::Userptr(_), _) if bo.mapped_gpus() != 0 => &mut facts.gtt,
        (Backing::Userptr(_), _) => &mut facts.cpu,
    };
    *sum = sum.saturating_add(bo.span().bytes());
}

impl Listed for Owned {
    fn number(&self) -> u64 {
        self.0.number()
    }

    fn pid(&self) -> u32 {
        self.0.who().pid
    }

    fn on_gpu(&self, gpu: usize) -> OnGpu {
        self.0.on_gpu(gpu)
    }

    fn occupied(&self, gpu: usize) -> Option<u64> {
        self.0.occupied(gpu)
    }

    fn queue_from(&self, number: u32) -> Option<QueueFacts> {
        let inner = self.0.lock();
        let (number, queue) = inner.queues.queues.iter_from(number).next()?;
        let (gpu_id, bytes) = (queue.vm.device().id(), queue.ring_bytes);
        Some(QueueFacts { number, gpu_id, bytes, kind: kind_of(queue.kind) })
    }
}
