// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A queue of AQL packets: kernels and barriers.
//!
//! Mechanism: every packet has the barrier bit, so packets run one after the other, and decrements
//! the queue's one signal. Arguments are copied into a ring of slots, one for each packet slot,
//! which is free again when its packet is finished.

use std::time::{Duration, Instant};

use crate::address::GpuId;
use crate::aql::{self, Dispatch, Packet, PACKET_BYTES};
use crate::buffer::{AllocOptions, Buffer};
use crate::client::{Client, GpuSet};
use crate::code_object::{CodeObject, LoadedKernel};
use crate::error::{ClientError, Result};
use crate::fence::{Counting, Fence};
use crate::kernel::Kernel;
use crate::queue::{Queue, RING_BYTES, RING_LIMIT};

/// Most bytes of a kernel's arguments.
pub const MAX_ARGS: usize = 256;

const ARGS_BYTES: u64 = 256;
const PACKET_WORDS: u64 = PACKET_BYTES / 4;

/// A dispatch packet's content.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel, from a [`CodeObject`] on the queue's GPU that stays loaded until the launch has
    /// finished.
    pub kernel: LoadedKernel,
    /// The argument block, at most [`MAX_ARGS`] bytes.
    pub args: &'a [u8],
    /// Work items in x, y and z; at least 1 each.
    pub grid: [u32; 3],
    /// Work items of a work group; at least 1 each.
    pub workgroup: [u16; 3],
    /// LDS of a work group in bytes, beyond what the kernel has without asking.
    pub dynamic_bytes: u32,
}

/// A compute queue: for kernels. Packets run in order; for work that may overlap, make several
/// queues.
///
/// A queue that met an error (a page fault, an instruction that the GPU does not execute) has
/// stopped for good. All earlier and later submissions to it fail. Drop it, fix the error, and make
/// a new one; other queues and all buffers are as they were. `examples/recover.rs` does this.
pub struct ComputeQueue {
    queue: Queue,
    args: Buffer,
    code: CodeObject,
    slots: u64,
}

impl ComputeQueue {
    /// Makes a queue on a GPU.
    ///
    /// # Errors
    ///
    /// What the calls failed with; [`ClientError::Unsupported`] for a processor that this library
    /// has no kernels for.
    pub fn new(client: &Client, gpu: GpuId) -> Result<Self> {
        let version = client.gpu(gpu)?.gfx_target_version;
        let code = vkfd_kernels::code(version).ok_or_else(|| {
            let [major, minor, step] = [version / 10_000, version / 100 % 100, version % 100];
            ClientError::Unsupported(format!("there are no kernels for GPU {gpu}, processor {major}.{minor}.{step}"))
        })?;
        let queue = Queue::new(client, gpu, Counting::Aql, RING_BYTES)?;
        let slots = u64::from(RING_BYTES) / PACKET_BYTES;
        let memory = |bytes| AllocOptions { gpus: GpuSet::from(gpu), ..AllocOptions::gtt(bytes) };
        let args = client.alloc(&memory(slots * ARGS_BYTES))?;
        let code = CodeObject::load(client, gpu, code)?;
        Ok(Self { queue, args, code, slots })
    }

    /// The GPU it is on.
    #[must_use]
    pub fn gpu(&self) -> GpuId {
        self.queue.timeline.gpu()
    }

    /// Submits a computation, which starts when everything before it is done.
    ///
    /// # Errors
    ///
    /// As [`crate::CopyQueue::submit`].
    pub fn launch(&mut self, kernel: &Kernel) -> Result<Fence> {
        let mut last = None;
        for step in kernel.steps() {
            let kernel = self.code.kernel(step.name);
            let kernel = kernel.ok_or_else(|| ClientError::Invalid(format!("no kernel {}", step.name)))?;
            let workgroup = [vkfd_kernels::GROUP, 1, 1];
            last = Some(self.dispatch(&Launch {
                kernel,
                args: &step.args,
                grid: step.grid,
                workgroup,
                dynamic_bytes: 0,
            })?);
        }
        last.ok_or_else(|| ClientError::Invalid("nothing to launch".into()))
    }

    /// Submits any dispatch, which starts when everything before it is done.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] for a grid or work group with a zero, too many arguments or too
    /// few; [`ClientError::Unsupported`] for a kernel that needs scratch; otherwise as
    /// [`crate::CopyQueue::submit`].
    pub fn dispatch(&mut self, launch: &Launch<'_>) -> Result<Fence> {
        let bytes = launch.args.len();
        if launch.grid.contains(&0) || launch.workgroup.contains(&0) || bytes > MAX_ARGS {
            let Launch { grid, workgroup, .. } = launch;
            return Err(ClientError::Invalid(format!(
                "cannot launch a grid of {grid:?} in groups of {workgroup:?} with {bytes} bytes of arguments"
            )));
        }
        let LoadedKernel { object, group_bytes, private_bytes, kernarg_bytes } = launch.kernel;
        if private_bytes > 0 {
            return Err(ClientError::Unsupported(format!("the kernel needs {private_bytes} bytes of scratch")));
        }
        if (bytes as u64) < u64::from(kernarg_bytes) {
            return Err(ClientError::Invalid(format!("{bytes} bytes of arguments instead of {kernarg_bytes}")));
        }
        let number = self.next()?;
        let slot = (number - 1) % self.slots * ARGS_BYTES;
        self.args.write(slot, launch.args)?;
        let kernarg = self.args.gpu_va().offset(slot);
        let Launch { grid, workgroup, dynamic_bytes, .. } = *launch;
        let group_bytes = group_bytes.saturating_add(dynamic_bytes);
        let dispatch = Dispatch { kernel_object: object.0, kernarg, grid, workgroup, group_bytes, private_bytes };
        self.submit(&aql::dispatch(&dispatch, self.queue.timeline.signal_va()))
    }

    /// Submits a barrier: its fence is done when everything before it is.
    ///
    /// # Errors
    ///
    /// As [`crate::CopyQueue::submit`].
    pub fn barrier(&mut self) -> Result<Fence> {
        self.next()?;
        let packet = aql::barrier_and(&[], self.queue.timeline.signal_va());
        self.submit(&packet.ok_or_else(|| ClientError::Invalid("a barrier takes five signals".into()))?)
    }

    /// Waits for a fence; the same as [`Fence::wait`].
    ///
    /// # Errors
    ///
    /// As [`Fence::wait`].
    pub fn wait(&self, fence: &Fence, timeout: Duration) -> Result {
        fence.wait(timeout)
    }

    /// The next packet's number, when its slot's last packet is finished.
    fn next(&self) -> Result<u64> {
        let timeline = &self.queue.timeline;
        timeline.check()?;
        let number = timeline.submitted() + 1;
        let start = Instant::now();
        while timeline.finished() + self.slots < number {
            if start.elapsed() >= RING_LIMIT {
                return Err(ClientError::Timeout(RING_LIMIT));
            }
            timeline.sleep(Duration::from_millis(1))?;
        }
        Ok(number)
    }

    fn submit(&mut self, packet: &Packet) -> Result<Fence> {
        // The read pointer counts packets; publishing again is needless because every packet is
        // published at once.
        self.queue.put(packet, |packets| packets * PACKET_WORDS, |_| Ok(()))?;
        let number = self.queue.timeline.submit_next();
        self.queue.ring_doorbell(number, number - 1)?;
        Ok(Fence::new(&self.queue.timeline, number))
    }
}

const _: () = {
    const fn sendable<T: Send>() {}
    sendable::<ComputeQueue>();
    assert!(MAX_ARGS == 256 && ARGS_BYTES == 256);
};
