// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What copy and compute queues have in common: creation, the doorbell, flow control, the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vkfd_uapi::command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::queue::{
    CreateQueueArgs, DestroyQueueArgs, MAX_QUEUE_PERCENTAGE, MIN_QUEUE_RING_SIZE, QUEUE_TYPE_COMPUTE_AQL,
    QUEUE_TYPE_SDMA,
};

use crate::address::{GpuId, PAGE};
use crate::buffer::{AllocOptions, Buffer};
use crate::client::{Client, GpuSet};
use crate::doorbell::Doorbells;
use crate::error::{ClientError, Result};
use crate::fence::{Counting, Timeline, SPIN};
use crate::ring::Ring;
use crate::topology::GpuInfo;

/// How long a submission waits for room in the ring.
pub const RING_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a ring unless another size is asked for.
pub const RING_BYTES: u32 = 64 << 10;
/// Bytes of an AQL queue's end-of-pipe buffer on gfx8 and later.
const EOP_BYTES: u64 = 4096;
/// The middle of the priorities 0 to 15.
const PRIORITY: u32 = 7;

/// A queue on a GPU; destroyed on drop.
pub(crate) struct Queue {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) ring: Ring,
    doorbells: Arc<Doorbells>,
    doorbell: u64,
    id: u32,
    // Held because the GPU uses them as long as the queue exists.
    _memory: Vec<Buffer>,
}

impl Queue {
    pub(crate) fn new(client: &Client, gpu: GpuId, counting: Counting, ring_bytes: u32) -> Result<Self> {
        let info = client.gpu(gpu)?;
        if info.gfx_major() < 9 {
            return Err(ClientError::Unsupported(format!("GPU {gpu} ({}) is older than gfx9", info.name)));
        }
        if !ring_bytes.is_power_of_two() || ring_bytes < MIN_QUEUE_RING_SIZE {
            return Err(ClientError::Invalid(format!("a ring has a power of two of bytes, not {ring_bytes:#x}")));
        }
        let timeline = Timeline::new(client, gpu, counting)?;
        let memory = |bytes| AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(bytes) };
        let ring_memory = client.alloc(&AllocOptions { executable: true, ..memory(u64::from(ring_bytes)) })?;
        let base = ring_memory.cpu_ptr().ok_or_else(|| ClientError::Invalid("no ring".into()))?.cast();
        let mut args = CreateQueueArgs {
            ring_base_address: ring_memory.gpu_va().0,
            write_pointer_address: timeline.write_pointer_va().0,
            read_pointer_address: timeline.read_pointer_va().0,
            ring_size: ring_bytes,
            gpu_id: gpu.0,
            queue_type: QUEUE_TYPE_SDMA,
            queue_percentage: MAX_QUEUE_PERCENTAGE,
            queue_priority: PRIORITY,
            ..CreateQueueArgs::zeroed()
        };
        let mut buffers = vec![ring_memory];
        if counting == Counting::Aql {
            args.queue_type = QUEUE_TYPE_COMPUTE_AQL;
            let eop = client.alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(gpu, EOP_BYTES) })?;
            args.eop_buffer_address = eop.gpu_va().0;
            args.eop_buffer_size = EOP_BYTES;
            buffers.push(eop);
            if let Some(bytes) = save_area_bytes(info) {
                let area = client.alloc(&memory(bytes))?;
                args.ctx_save_restore_address = area.gpu_va().0;
                args.ctx_save_restore_size = info.cwsr_bytes;
                args.ctl_stack_size = info.ctl_stack_bytes;
                buffers.push(area);
            }
        }
        client.ioctl(command::CREATE_QUEUE, &mut args).map_err(ClientError::call("CREATE_QUEUE"))?;
        timeline.created(args.queue_id);
        let doorbells = match client.doorbells(gpu, args.doorbell_offset) {
            Ok(doorbells) => doorbells,
            Err(error) => {
                destroy(client, args.queue_id);
                return Err(error);
            }
        };
        // SAFETY: the ring's buffer is this queue's alone, has `ring_bytes` bytes, and lives as
        // long as the queue (`_memory`).
        let ring = unsafe { Ring::new(base, u64::from(ring_bytes) / 4) };
        Ok(Self { timeline, ring, doorbells, doorbell: args.doorbell_offset, id: args.queue_id, _memory: buffers })
    }

    /// Puts a packet, waiting for room. `unit` is the number of words that the read pointer counts
    /// by one; `publish` is called before the wait, so that the GPU makes room.
    pub(crate) fn put(&mut self, packet: &[u32], read: fn(u64) -> u64, publish: fn(&Self) -> Result) -> Result {
        if self.ring.put(packet, read(self.timeline.read_pointer())) {
            return Ok(());
        }
        publish(self)?;
        let start = Instant::now();
        while !self.ring.put(packet, read(self.timeline.read_pointer())) {
            if start.elapsed() >= RING_LIMIT {
                return Err(ClientError::Timeout(RING_LIMIT));
            }
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                self.timeline.sleep(Duration::from_millis(1))?;
            }
        }
        Ok(())
    }

    /// Announces new packets to the GPU: the write pointer in memory, and the doorbell.
    pub(crate) fn ring_doorbell(&self, write_pointer: u64, doorbell: u64) -> Result {
        self.timeline.set_write_pointer(write_pointer)?;
        self.doorbells.ring(self.doorbell, doorbell);
        let client = self.timeline.client();
        if client.caps().vkfd {
            // A software GPU may sleep; hardware sees the write itself and its driver has not the
            // command.
            client.ring_hint().map_err(ClientError::call("RINGED"))?;
        }
        Ok(())
    }
}

/// The save area of a compute queue, where the topology tells its size: one for each die, and the
/// debugger's memory behind them.
fn save_area_bytes(info: &GpuInfo) -> Option<u64> {
    let bytes = u64::from(info.cwsr_bytes) * u64::from(info.xcc) + u64::from(info.debug_bytes);
    (info.cwsr_bytes > 0).then(|| bytes.next_multiple_of(PAGE))
}

fn destroy(client: &Client, id: u32) {
    let mut args = DestroyQueueArgs { queue_id: id, pad: 0 };
    if let Err(errno) = client.ioctl(command::DESTROY_QUEUE, &mut args) {
        tracing::warn!("DESTROY_QUEUE {id}: {errno}");
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        destroy(self.timeline.client(), self.id);
        self.timeline.close();
    }
}
