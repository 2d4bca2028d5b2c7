// SPDX-License-Identifier: GPL-2.0 OR MIT
//! User mode queues.
//!
//! Mechanism: the caller allocates the ring and the read and write pointers. CREATE returns an id
//! and the mmap offset of a doorbell. From then on, memory writes alone submit work. Source:
//! `kfd_ioctl.h`.
//!
//! Limits: CREATE_QUEUE grew from 88 to 96 bytes with interface 1.17; both forms are here, and the
//! longer begins with the shorter. The kernel accepts either by zero-filling what a caller does not
//! pass.

use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// Argument of `CREATE_QUEUE` up to interface 1.16.
    pub struct CreateQueueArgs {
        /// In: GPU address of the ring.
        pub ring_base_address: u64,
        /// In: address of the write pointer (AMD's header calls it an output; the driver reads it).
        pub write_pointer_address: u64,
        /// In: address of the read pointer.
        pub read_pointer_address: u64,
        /// Out: mmap offset of the doorbell.
        pub doorbell_offset: u64,
        /// In: bytes of the ring, a power of two.
        pub ring_size: u32,
        /// In: the GPU.
        pub gpu_id: u32,
        /// In: `QUEUE_TYPE_*`.
        pub queue_type: u32,
        /// In: share of the GPU, 0 to `MAX_QUEUE_PERCENTAGE`; 0 disables the queue.
        pub queue_percentage: u32,
        /// In: 0 to `MAX_QUEUE_PRIORITY`.
        pub queue_priority: u32,
        /// Out: the queue's id.
        pub queue_id: u32,
        /// In: address of the end-of-pipe buffer.
        pub eop_buffer_address: u64,
        /// In: its bytes.
        pub eop_buffer_size: u64,
        /// In: address of the area for saved waves.
        pub ctx_save_restore_address: u64,
        /// In: its bytes.
        pub ctx_save_restore_size: u32,
        /// In: bytes of the control stack in it.
        pub ctl_stack_size: u32,
    }
}

pod! {
    /// Argument of `CREATE_QUEUE` since interface 1.17.
    pub struct CreateQueueEngineArgs {
        /// The fields of the shorter form.
        pub base: CreateQueueArgs,
        /// In: the engine, for `QUEUE_TYPE_SDMA_BY_ENG_ID`.
        pub sdma_engine_id: u32,
        /// In: bytes of the metadata ring (padding before interface 1.22).
        pub metadata_ring_size: u32,
    }
}

pod! {
    /// Argument of `DESTROY_QUEUE`.
    pub struct DestroyQueueArgs {
        /// In: the queue.
        pub queue_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `UPDATE_QUEUE`.
    pub struct UpdateQueueArgs {
        /// In: GPU address of the ring; 0 disables the queue.
        pub ring_base_address: u64,
        /// In: the queue.
        pub queue_id: u32,
        /// In: bytes of the ring.
        pub ring_size: u32,
        /// In: share of the GPU, 0 to `MAX_QUEUE_PERCENTAGE`.
        pub queue_percentage: u32,
        /// In: 0 to `MAX_QUEUE_PRIORITY`.
        pub queue_priority: u32,
    }
}

pod! {
    /// Argument of `SET_CU_MASK`.
    pub struct SetCuMaskArgs {
        /// In: the queue.
        pub queue_id: u32,
        /// In: bits in the mask, a multiple of 32.
        pub num_cu_mask: u32,
        /// In: user pointer to the mask.
        pub cu_mask_ptr: u64,
    }
}

pod! {
    /// Argument of `GET_QUEUE_WAVE_STATE`.
    pub struct GetQueueWaveStateArgs {
        /// In: user pointer to room for the control stack.
        pub ctl_stack_address: u64,
        /// Out: bytes of control stack.
        pub ctl_stack_used_size: u32,
        /// Out: bytes of the save area in use.
        pub save_area_used_size: u32,
        /// In: the queue.
        pub queue_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `ALLOC_QUEUE_GWS`.
    pub struct AllocQueueGwsArgs {
        /// In: the queue.
        pub queue_id: u32,
        /// In: number of global wave sync barriers.
        pub num_gws: u32,
        /// Out: the first of them.
        pub first_gws: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

assert_layout! {
    CreateQueueArgs: 88 {
        write_pointer_address: 8, read_pointer_address: 16, doorbell_offset: 24, ring_size: 32, gpu_id: 36,
        queue_type: 40, queue_percentage: 44, queue_priority: 48, queue_id: 52, eop_buffer_address: 56,
        eop_buffer_size: 64, ctx_save_restore_address: 72, ctx_save_restore_size: 80, ctl_stack_size: 84,
    }
    CreateQueueEngineArgs: 96 { base: 0, sdma_engine_id: 88, metadata_ring_size: 92 }
    DestroyQueueArgs: 8 { queue_id: 0 }
    UpdateQueueArgs: 24 { queue_id: 8, ring_size: 12, queue_percentage: 16, queue_priority: 20 }
    SetCuMaskArgs: 16 { num_cu_mask: 4, cu_mask_ptr: 8 }
    GetQueueWaveStateArgs: 24 { ctl_stack_used_size: 8, save_area_used_size: 12, queue_id: 16 }
    AllocQueueGwsArgs: 16 { num_gws: 4, first_gws: 8 }
}

/// Compute with PM4 packets.
pub const QUEUE_TYPE_COMPUTE: u32 = 0;
/// SDMA, the driver picks the engine.
pub const QUEUE_TYPE_SDMA: u32 = 1;
/// Compute with AQL packets.
pub const QUEUE_TYPE_COMPUTE_AQL: u32 = 2;
/// SDMA on an engine for links between GPUs.
pub const QUEUE_TYPE_SDMA_XGMI: u32 = 3;
/// SDMA on the engine that the caller names (interface 1.17).
pub const QUEUE_TYPE_SDMA_BY_ENG_ID: u32 = 4;

/// Largest queue_percentage.
pub const MAX_QUEUE_PERCENTAGE: u32 = 100;
/// Largest queue_priority.
pub const MAX_QUEUE_PRIORITY: u32 = 15;
/// Smallest ring, in bytes.
pub const MIN_QUEUE_RING_SIZE: u32 = 1024;
