// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Buffers as files: an object's memory behind a descriptor, and objects made of such.
//!
//! What is shared is the memory, not the object: both may be mapped and freed on their own, and the
//! memory goes with the last of objects and files. VRAM and GTT memory can be shared; a userptr is
//! the caller's own memory (EPERM, as amdgpu has it).
//!
//! Limits: within one machine of this driver.

use crate::buffers::bo::Backing;
use crate::buffers::metadata::Metadata;
use crate::os::Arc;

/// Memory that a file stands for.
pub struct DmaBuf {
    /// The memory: VRAM or DMA memory.
    pub(crate) backing: Backing,
    pub(crate) bytes: u64,
    pub(crate) gpu_id: u32,
    /// Its type, and whether the CPU may map it.
    pub(crate) flags: u32,
    /// What was noted about it.
    pub(crate) metadata: Arc<Metadata>,
}

impl DmaBuf {
    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One of a DRM object.
    pub(crate) const fn of_gem(backing: Backing, bytes: u64, gpu_id: u32, flags: u32, metadata: Arc<Metadata>) -> Self {
        Self { backing, bytes, gpu_id, flags, metadata }
    }

    /// Its memory.
    pub(crate) const fn backing(&self) -> &Backing {
        &self.backing
    }

    /// What was noted about it.
    pub(crate) const fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &Self) -> bool {
        self.backing.is(&other.backing)
    }
}
