// SPDX-License-Identifier: GPL-2.0 OR MIT
//! mmap offsets of `/dev/kfd`.
//!
//! Mechanism: bits 63:62 have the kind of memory, bits 61:46 the low 16 bits of the gpu_id. The
//! rest is free for the driver (the position of a doorbell in its page). Source: the kernel's
//! `kfd_priv.h`, `KFD_MMAP_*`. The kernel keeps no other state in an offset; a client passes back
//! what an ioctl gave it.

/// Position of the two type bits.
pub const MMAP_TYPE_SHIFT: u32 = 62;
/// The type bits.
pub const MMAP_TYPE_MASK: u64 = 3 << MMAP_TYPE_SHIFT;
/// The doorbell pages of one GPU.
pub const MMAP_TYPE_DOORBELL: u64 = 3 << MMAP_TYPE_SHIFT;
/// The page of signal event slots.
pub const MMAP_TYPE_EVENTS: u64 = 2 << MMAP_TYPE_SHIFT;
/// Memory reserved for the trap handler.
pub const MMAP_TYPE_RESERVED_MEM: u64 = 1 << MMAP_TYPE_SHIFT;
/// The remapped MMIO page of one GPU.
pub const MMAP_TYPE_MMIO: u64 = 0;

/// Position of the gpu_id.
pub const MMAP_GPU_ID_SHIFT: u32 = 46;
/// Width of a gpu_id in an offset, in bits.
pub const GPU_ID_HASH_WIDTH: u32 = 16;
/// The bits of the gpu_id.
pub const MMAP_GPU_ID_MASK: u64 = ((1 << GPU_ID_HASH_WIDTH) - 1) << MMAP_GPU_ID_SHIFT;

/// The offset of type `mmap_type` (one of `MMAP_TYPE_*`) for `gpu_id`; its bits above 16 are
/// dropped, as in the kernel.
#[must_use]
pub const fn encode(mmap_type: u64, gpu_id: u32) -> u64 {
    mmap_type & MMAP_TYPE_MASK | (gpu_id as u64) << MMAP_GPU_ID_SHIFT & MMAP_GPU_ID_MASK
}

/// The type bits of an offset: one of `MMAP_TYPE_*`.
#[must_use]
pub const fn mmap_type(offset: u64) -> u64 {
    offset & MMAP_TYPE_MASK
}

/// The low 16 bits of the gpu_id in an offset.
#[must_use]
pub const fn gpu_id(offset: u64) -> u32 {
    // 16 bits remain after the mask.
    #[allow(clippy::cast_possible_truncation)]
    let id = ((offset & MMAP_GPU_ID_MASK) >> MMAP_GPU_ID_SHIFT) as u32;
    id
}

/// What an offset carries besides its type and gpu_id, in bytes.
#[must_use]
pub const fn position(offset: u64) -> u64 {
    offset & !(MMAP_TYPE_MASK | MMAP_GPU_ID_MASK)
}

const _: () = assert!(MMAP_TYPE_MASK == 0xc000_0000_0000_0000);
const _: () = assert!(MMAP_GPU_ID_MASK == 0x3fff_c000_0000_0000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_offset_as_seen_from_real_hardware() {
        // Seen in a trace of a GPU whose gpu_id is 0x433d: the second doorbell of its page.
        let offset = encode(MMAP_TYPE_DOORBELL, 0x433d) | 8;
        assert_eq!(offset, 0xd0cf_4000_0000_0008);
        assert_eq!(mmap_type(offset), MMAP_TYPE_DOORBELL);
        assert_eq!(gpu_id(offset), 0x433d);
        assert_eq!(position(offset), 8);
    }

    #[test]
    fn a_wide_gpu_id_cannot_change_the_type() {
        let offset = encode(MMAP_TYPE_MMIO, u32::MAX);
        assert_eq!(mmap_type(offset), MMAP_TYPE_MMIO);
        assert_eq!(gpu_id(offset), 0xffff);
        assert_eq!(position(offset), 0);
    }
}
