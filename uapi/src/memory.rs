// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Buffer objects (BOs): allocate, free, map, unmap, share as dma-buf.
//!
//! Mechanism: ALLOC reserves a GPU address range and returns a handle (`gpu_id << 32 | id`); MAP
//! and UNMAP write and clear its page-table entries on a list of GPUs; FREE ends the BO. Source:
//! `kfd_ioctl.h`. The batch forms are in [`super::batch`].

use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// Argument of `ALLOC_MEMORY_OF_GPU`.
    pub struct AllocMemoryOfGpuArgs {
        /// In: first GPU address.
        pub va_addr: u64,
        /// In: bytes.
        pub size: u64,
        /// Out: the BO's handle.
        pub handle: u64,
        /// In for USERPTR: the CPU address (for USERPTR_BATCH: of the range list). Out otherwise:
        /// the offset to map.
        pub mmap_offset: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// In: `ALLOC_MEM_FLAGS_*`.
        pub flags: u32,
    }
}

pod! {
    /// Argument of `FREE_MEMORY_OF_GPU`.
    pub struct FreeMemoryOfGpuArgs {
        /// In: the BO's handle.
        pub handle: u64,
    }
}

pod! {
    /// Argument of `MAP_MEMORY_TO_GPU`. A call that failed part of the way is resumed by passing
    /// the argument again.
    pub struct MapMemoryToGpuArgs {
        /// In: the BO's handle.
        pub handle: u64,
        /// In: user pointer to `n_devices` gpu_ids (u32).
        pub device_ids_array_ptr: u64,
        /// In: length of that array.
        pub n_devices: u32,
        /// In: GPUs to skip at its start. Out: GPUs done.
        pub n_success: u32,
    }
}

pod! {
    /// Argument of `UNMAP_MEMORY_FROM_GPU`; as for mapping.
    pub struct UnmapMemoryFromGpuArgs {
        /// In: the BO's handle.
        pub handle: u64,
        /// In: user pointer to `n_devices` gpu_ids (u32).
        pub device_ids_array_ptr: u64,
        /// In: length of that array.
        pub n_devices: u32,
        /// In: GPUs to skip at its start. Out: GPUs done.
        pub n_success: u32,
    }
}

pod! {
    /// Argument of `AVAILABLE_MEMORY`.
    pub struct GetAvailableMemoryArgs {
        /// Out: bytes of VRAM that can still be allocated.
        pub available: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// Padding without a meaning.
        pub pad: u32,
    }
}

pod! {
    /// Argument of `GET_DMABUF_INFO`.
    pub struct GetDmabufInfoArgs {
        /// Out: bytes.
        pub size: u64,
        /// In: user pointer to a buffer for the metadata.
        pub metadata_ptr: u64,
        /// In: bytes of that buffer. Out: bytes of metadata.
        pub metadata_size: u32,
        /// Out: the GPU.
        pub gpu_id: u32,
        /// Out: `ALLOC_MEM_FLAGS_*`.
        pub flags: u32,
        /// In: the dma-buf's file descriptor.
        pub dmabuf_fd: u32,
    }
}

pod! {
    /// Argument of `IMPORT_DMABUF`.
    pub struct ImportDmabufArgs {
        /// In: first GPU address.
        pub va_addr: u64,
        /// Out: the new BO's handle.
        pub handle: u64,
        /// In: the GPU.
        pub gpu_id: u32,
        /// In: the dma-buf's file descriptor.
        pub dmabuf_fd: u32,
    }
}

pod! {
    /// Argument of `EXPORT_DMABUF` (interface 1.12).
    pub struct ExportDmabufArgs {
        /// In: the BO's handle.
        pub handle: u64,
        /// In: flags for the new file (`O_CLOEXEC`, `O_RDWR`).
        pub flags: u32,
        /// Out: the dma-buf's file descriptor.
        pub dmabuf_fd: u32,
    }
}

assert_layout! {
    AllocMemoryOfGpuArgs: 40 { size: 8, handle: 16, mmap_offset: 24, gpu_id: 32, flags: 36 }
    FreeMemoryOfGpuArgs: 8 { handle: 0 }
    MapMemoryToGpuArgs: 24 { device_ids_array_ptr: 8, n_devices: 16, n_success: 20 }
    UnmapMemoryFromGpuArgs: 24 { device_ids_array_ptr: 8, n_devices: 16, n_success: 20 }
    GetAvailableMemoryArgs: 16 { gpu_id: 8 }
    GetDmabufInfoArgs: 32 { metadata_ptr: 8, metadata_size: 16, gpu_id: 20, flags: 24, dmabuf_fd: 28 }
    ImportDmabufArgs: 24 { handle: 8, gpu_id: 16, dmabuf_fd: 20 }
    ExportDmabufArgs: 16 { flags: 8, dmabuf_fd: 12 }
}

/// Memory of the GPU.
pub const ALLOC_MEM_FLAGS_VRAM: u32 = 1 << 0;
/// System memory that the driver allocates.
pub const ALLOC_MEM_FLAGS_GTT: u32 = 1 << 1;
/// Memory of the caller's address space.
pub const ALLOC_MEM_FLAGS_USERPTR: u32 = 1 << 2;
/// The process's doorbells.
pub const ALLOC_MEM_FLAGS_DOORBELL: u32 = 1 << 3;
/// The remapped MMIO page.
pub const ALLOC_MEM_FLAGS_MMIO_REMAP: u32 = 1 << 4;
/// Batch userptr by flag (posts v3 and v4): `mmap_offset` points to a range list. Only with
/// USERPTR.
pub const ALLOC_MEM_FLAGS_USERPTR_BATCH: u32 = 1 << 22;
/// Physically contiguous VRAM (interface 1.16).
pub const ALLOC_MEM_FLAGS_CONTIGUOUS: u32 = 1 << 23;
/// Coherent for atomics of device scope.
pub const ALLOC_MEM_FLAGS_EXT_COHERENT: u32 = 1 << 24;
/// Not cached by the GPU.
pub const ALLOC_MEM_FLAGS_UNCACHED: u32 = 1 << 25;
/// Fine-grained coherence.
pub const ALLOC_MEM_FLAGS_COHERENT: u32 = 1 << 26;
/// For an AQL queue's ring, mapped twice in a row on some GPUs.
pub const ALLOC_MEM_FLAGS_AQL_QUEUE_MEM: u32 = 1 << 27;
/// No other memory type instead.
pub const ALLOC_MEM_FLAGS_NO_SUBSTITUTE: u32 = 1 << 28;
/// The CPU may map it.
pub const ALLOC_MEM_FLAGS_PUBLIC: u32 = 1 << 29;
/// The GPU may execute from it.
pub const ALLOC_MEM_FLAGS_EXECUTABLE: u32 = 1 << 30;
/// The GPU may write to it.
pub const ALLOC_MEM_FLAGS_WRITABLE: u32 = 1 << 31;

/// All memory types.
pub const ALLOC_MEM_TYPES: u32 = ALLOC_MEM_FLAGS_VRAM
    | ALLOC_MEM_FLAGS_GTT
    | ALLOC_MEM_FLAGS_USERPTR
    | ALLOC_MEM_FLAGS_DOORBELL
    | ALLOC_MEM_FLAGS_MMIO_REMAP;

/// Every flag that this crate names.
pub const ALLOC_MEM_FLAGS_ALL: u32 = ALLOC_MEM_TYPES
    | ALLOC_MEM_FLAGS_USERPTR_BATCH
    | ALLOC_MEM_FLAGS_CONTIGUOUS
    | ALLOC_MEM_FLAGS_EXT_COHERENT
    | ALLOC_MEM_FLAGS_UNCACHED
    | ALLOC_MEM_FLAGS_COHERENT
    | ALLOC_MEM_FLAGS_AQL_QUEUE_MEM
    | ALLOC_MEM_FLAGS_NO_SUBSTITUTE
    | ALLOC_MEM_FLAGS_PUBLIC
    | ALLOC_MEM_FLAGS_EXECUTABLE
    | ALLOC_MEM_FLAGS_WRITABLE;

const _: () = assert!(ALLOC_MEM_FLAGS_ALL == 0xffc0_001f);

/// Offset in the MMIO page of the register that flushes HDP memory, in bytes.
pub const MMIO_REMAP_HDP_MEM_FLUSH_CNTL: u32 = 0;
/// Offset in the MMIO page of the register that flushes HDP registers, in bytes.
pub const MMIO_REMAP_HDP_REG_FLUSH_CNTL: u32 = 4;

/// "No file" in the dma-buf and CRIU structures.
pub const INVALID_FD: u32 = u32::MAX;
