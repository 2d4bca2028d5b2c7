// SPDX-License-Identifier: GPL-2.0 OR MIT
//! DRM's memory objects (GEM): their memory, and a client's notes about them.
//!
//! An object is memory of the driver, VRAM of the file's GPU or system memory, the same as behind
//! KFD's buffer objects: both become the other through a file (dma-buf). The memory goes with the
//! last that has it.

use crate::base::addr::PAGE;
use crate::base::errno::{Errno, Result};
use crate::buffers::bo::{Backing, VramMemory};
use crate::buffers::metadata::Metadata;
use crate::device::limit::{ChargedDma, Limit};
use crate::device::Device;
use crate::os::{self, Arc};
use crate::sabotage::FailPoint;
use vkfd_uapi::memory as kfd_abi;

/// `AMDGPU_GEM_DOMAIN_*`: the CPU's is never chosen, GDS, GWS, OA and doorbells are not offered.
pub(crate) const DOMAIN_CPU: u32 = 1;
/// System memory that the GPU reaches.
pub(crate) const DOMAIN_GTT: u32 = 2;
/// The GPU's own.
pub(crate) const DOMAIN_VRAM: u32 = 4;
/// `AMDGPU_GEM_CREATE_NO_CPU_ACCESS`.
pub(crate) const NO_CPU_ACCESS: u64 = 1 << 1;
/// `AMDGPU_GEM_CREATE_*` that amdgpu takes from clients.
const FLAGS: u64 =
    1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15;

/// What an object is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub bytes: u64,
    /// Of addresses; the object begins at a page.
    pub alignment: u64,
    /// `DOMAIN_*` that it may be in, the first of VRAM and GTT that has room.
    pub domains: u32,
    /// `AMDGPU_GEM_CREATE_*`.
    pub flags: u64,
}

/// An object.
pub struct GemObject {
    pub(crate) backing: Backing,
    pub(crate) wanted: Wanted,
    pub(crate) mmap_offset: u64,
    pub(crate) metadata: Arc<Metadata>,
}

fn system(limit: &Arc<Limit>, device: &Device, bytes: u64) -> Result<Backing> {
    let charge = limit.charge(bytes)?;
    os::failpoint(FailPoint::Dma)?;
    Ok(Backing::Dma(ChargedDma::charged(device.gpu().alloc_dma(bytes)?, charge)?))
}

/// Memory for an object. EINVAL for a description that no object can have. As amdgpu, an object for
/// VRAM alone is in system memory when VRAM is full.
pub(crate) fn allocate(limit: &Arc<Limit>, device: &Arc<Device>, wanted: Wanted) -> Result<(Backing, Wanted)> {
    let bytes = wanted.bytes.checked_next_multiple_of(PAGE).filter(|bytes| *bytes != 0).ok_or(Errno::EINVAL)?;
    let known = wanted.domains & !(DOMAIN_CPU | DOMAIN_GTT | DOMAIN_VRAM) == 0 && wanted.domains != 0;
    if !known || wanted.flags & !FLAGS != 0 {
        return Err(Errno::EINVAL.into());
    }
    let backing = if wanted.domains & DOMAIN_VRAM != 0 {
        match VramMemory::new(device, bytes / PAGE) {
            Ok(memory) => Backing::Vram(memory),
            Err(error) if error.errno == Errno::ENOMEM => system(limit, device, bytes)?,
            Err(error) => return Err(error),
        }
    } else {
        system(limit, device, bytes)?
    };
    Ok((backing, Wanted { bytes, ..wanted }))
}

impl GemObject {
    /// Its memory as KFD calls it: a type of allocation, and whether the CPU may map it.
    pub(crate) fn kfd_flags(&self) -> u32 {
        let kind = match self.backing {
            Backing::Vram(_) => kfd_abi::ALLOC_MEM_FLAGS_VRAM,
            _ => kfd_abi::ALLOC_MEM_FLAGS_GTT,
        };
        let hidden = self.wanted.flags & NO_CPU_ACCESS != 0;
        kind | if hidden { 0 } else { kfd_abi::ALLOC_MEM_FLAGS_PUBLIC }
    }
}
