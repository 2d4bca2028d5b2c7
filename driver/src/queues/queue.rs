// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process's queues: a doorbell each, and the hardware queue behind.
//!
//! Guarded by the process lock, except that a hardware queue is ended without it: that waits for
//! the queue.

use crate::base::addr::GpuVa;
use crate::base::errno::Result;
use crate::collections::handle::Handles;
use crate::device::QueueShare;
use crate::gpuvm::vm::Vm;
use crate::os::{Arc, Vec};
use crate::seams::gpu::{FaultReason, HwQueue, PageFault};
use vkfd_uapi::vkfd as abi_vkfd;

/// Whether a queue takes packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Running,
    Off,
    /// Stopped for good by a page fault.
    Faulted(PageFault),
    /// Stopped for good by something it cannot execute.
    Broken,
}

/// A queue of a process.
pub struct Queue {
    pub(crate) vm: Arc<Vm>,
    pub(crate) hw: HwQueue,
    pub(crate) kind: u32,
    pub(crate) doorbell: u32,
    pub(crate) ring: GpuVa,
    pub(crate) ring_bytes: u64,
    pub(crate) state: State,
    /// It has the GPU's global wave sync.
    pub(crate) gws: bool,
    pub(crate) _share: QueueShare,
}

/// A process's queues.
#[derive(Default)]
pub struct Queues {
    pub(crate) queues: Handles<Queue>,
    /// Doorbells in use, by GPU number.
    pub(crate) doorbells: Vec<Handles<()>>,
}

impl Queues {
    /// None, on `gpus` GPUs.
    pub fn new(gpus: usize) -> Result<Self> {
        let mut doorbells = Vec::with_capacity(gpus)?;
        for _ in 0..gpus {
            doorbells.push(Handles::new())?;
        }
        Ok(Self { queues: Handles::new(), doorbells })
    }

    /// How many.
    pub const fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Gives a doorbell back.
    pub(crate) fn give_doorbell(&mut self, gpu: usize, doorbell: u32) {
        if let Some(doorbells) = self.doorbells.get_mut(gpu) {
            doorbells.remove(doorbell);
        }
    }

    /// Ends all of them. Without any lock.
    pub fn destroy_all(mut self) {
        for queue in self.queues.iter_mut() {
            queue.vm.gpu().remove_queue(queue.hw);
        }
    }
}

impl Queues {
    /// The first queue from number `number` on, with its number.
    pub(crate) fn info_from(&self, number: u32) -> Option<(u32, abi_vkfd::QueueInfo)> {
        let (number, queue) = self.queues.iter_from(number).next()?;
        let mut info = abi_vkfd::QueueInfo {
            queue_id: number,
            gpu_id: queue.vm.device().id(),
            queue_type: queue.kind,
            state: abi_vkfd::QUEUE_STATE_RUNNING,
            fault: 0,
            pad: 0,
            ring: queue.ring.0,
            ring_size: queue.ring_bytes,
            fault_va: 0,
        };
        match queue.state {
            State::Running => {}
            State::Off => info.state = abi_vkfd::QUEUE_STATE_OFF,
            State::Broken => info.state = abi_vkfd::QUEUE_STATE_BROKEN,
            State::Faulted(fault) => {
                info.state = abi_vkfd::QUEUE_STATE_FAULTED;
                info.fault_va = fault.va.0;
                info.fault = match (fault.reason, fault.write) {
                    (FaultReason::Permission, true) => abi_vkfd::QUEUE_FAULT_READ_ONLY,
                    (FaultReason::Permission, false) => 0,
                    _ => abi_vkfd::QUEUE_FAULT_NOT_PRESENT,
                };
            }
        }
        Some((number, info))
    }
}
