// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues: KFD's checks, a doorbell each, and the hardware queue behind.
//!
//! Guarded by the process lock, except that a hardware queue is ended without it: that waits for the queue.

use crate::addr::GpuVa;
use crate::errno::{Errno, Error, Reason, Result};
use crate::gpu::{FaultReason, HwQueue, PageFault, QueueKind, QueueSpec};
use crate::handle::Handles;
use crate::os::{self, Arc, Vec};
use crate::process::Process;
use crate::vm::{Vm, DOORBELL_BYTES};
use vkfd_uapi::queue as abi;
use vkfd_uapi::vkfd as abi_vkfd;

/// Whether a queue takes packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Off,
    /// Stopped for good by a page fault.
    Faulted(PageFault),
    /// Stopped for good by something it cannot execute.
    Broken,
}

/// A queue of a process.
pub struct Queue {
    vm: Arc<Vm>,
    hw: HwQueue,
    kind: u32,
    doorbell: u32,
    ring: GpuVa,
    ring_bytes: u64,
    state: State,
}

/// A process's queues.
#[derive(Default)]
pub struct Queues {
    queues: Handles<Queue>,
    /// Doorbells in use, by GPU number.
    doorbells: Vec<Handles<()>>,
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

fn check_ring(ring_size: u32, percentage: u32, priority: u32) -> Result {
    let fits = ring_size.is_power_of_two() && ring_size >= abi::MIN_QUEUE_RING_SIZE;
    // A ring of size 0 is a queue that is turned off.
    if percentage > abi::MAX_QUEUE_PERCENTAGE || priority > abi::MAX_QUEUE_PRIORITY || (ring_size != 0 && !fits) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

impl Process {
    /// Creates a queue and fills in its number and doorbell.
    pub(crate) fn create_queue(self: &Arc<Self>, args: &mut abi::CreateQueueArgs) -> Result {
        check_ring(args.ring_size, args.queue_percentage, args.queue_priority)?;
        let pointers = [args.read_pointer_address, args.write_pointer_address];
        let bad = args.ring_base_address == 0 || args.ring_base_address % 256 != 0;
        if bad || args.ring_size == 0 || pointers.iter().any(|p| *p == 0 || p % 8 != 0) {
            return Err(Errno::EINVAL.into());
        }
        let kind = match args.queue_type {
            abi::QUEUE_TYPE_SDMA | abi::QUEUE_TYPE_SDMA_XGMI | abi::QUEUE_TYPE_SDMA_BY_ENG_ID => QueueKind::Sdma,
            abi::QUEUE_TYPE_COMPUTE_AQL => QueueKind::Aql,
            abi::QUEUE_TYPE_COMPUTE => QueueKind::Pm4,
            _ => return Err(Errno::EINVAL.into()),
        };
        let device = self.kfd().device(args.gpu_id)?.clone();
        let vm = self.vm(device.index())?;
        let (number, doorbell) = {
            let mut inner = self.lock();
            let doorbell = inner.queues.doorbells.get_mut(device.index()).ok_or(Errno::EINVAL)?.reserve()?;
            let number = inner.queues.queues.reserve();
            if number.is_err() || u64::from(doorbell) * 8 >= DOORBELL_BYTES {
                if let Ok(number) = number {
                    inner.queues.queues.remove(number);
                }
                inner.queues.doorbells[device.index()].remove(doorbell);
                return Err(number.err().unwrap_or(Error::new(Errno::ENOSPC, Reason::None)));
            }
            (number?, doorbell)
        };
        vm.doorbells().write_u64(u64::from(doorbell) * 8, 0);
        let spec = QueueSpec {
            vmid: vm.vmid(),
            kind,
            ring: GpuVa(args.ring_base_address),
            ring_bytes: args.ring_size.into(),
            rptr: GpuVa(args.read_pointer_address),
            wptr: GpuVa(args.write_pointer_address),
            doorbells: vm.doorbells().clone(),
            doorbell: u64::from(doorbell) * 8,
        };
        let offset = vm.doorbells_mmap_offset();
        let hw = os::failpoint("queue").and_then(|()| vm.gpu().add_queue(&spec));
        let mut inner = self.lock();
        match hw {
            Ok(hw) => {
                let (kind, ring, ring_bytes) = (args.queue_type, spec.ring, spec.ring_bytes);
                let queue = Queue { vm, hw, kind, doorbell, ring, ring_bytes, state: State::Running };
                inner.queues.queues.fill(number, queue);
                args.queue_id = number;
                args.doorbell_offset = offset | spec.doorbell;
                Ok(())
            }
            Err(e) => {
                inner.queues.queues.remove(number);
                inner.queues.doorbells[device.index()].remove(doorbell);
                Err(e)
            }
        }
    }

    /// A device says that a queue has stopped for good: on `fault`, or on something it cannot execute. The first reason stays.
    pub(crate) fn queue_stopped(&self, gpu: usize, hw: HwQueue, fault: Option<PageFault>) {
        let mut inner = self.lock();
        let mut queues = inner.queues.queues.iter_mut();
        if let Some(queue) = queues.find(|q| q.vm.gpu_index() == gpu && q.hw == hw) {
            if matches!(queue.state, State::Running | State::Off) {
                queue.state = fault.map_or(State::Broken, State::Faulted);
            }
        }
    }

    /// Ends a queue. EINVAL when there is none.
    pub(crate) fn destroy_queue(&self, number: u32) -> Result {
        let queue = self.lock().queues.queues.remove(number).ok_or(Errno::EINVAL)?;
        queue.vm.gpu().remove_queue(queue.hw);
        let mut inner = self.lock();
        if let Some(doorbells) = inner.queues.doorbells.get_mut(queue.vm.gpu_index()) {
            doorbells.remove(queue.doorbell);
        }
        Ok(())
    }

    /// Changes a queue's ring, or turns it off (percentage or ring 0).
    pub(crate) fn update_queue(&self, args: &abi::UpdateQueueArgs) -> Result {
        check_ring(args.ring_size, args.queue_percentage, args.queue_priority)?;
        let enabled = args.queue_percentage > 0 && args.ring_size > 0 && args.ring_base_address != 0;
        let (vm, hw, ring) = {
            let mut inner = self.lock();
            let queue = inner.queues.queues.get_mut(args.queue_id).ok_or(Errno::EINVAL)?;
            if enabled {
                queue.ring = GpuVa(args.ring_base_address);
                queue.ring_bytes = args.ring_size.into();
            }
            if matches!(queue.state, State::Running | State::Off) {
                queue.state = if enabled { State::Running } else { State::Off };
            }
            (queue.vm.clone(), queue.hw, queue.ring)
        };
        vm.gpu().update_queue(hw, ring, args.ring_size.into(), enabled)
    }
}
