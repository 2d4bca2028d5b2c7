// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client's mmap of the device files shows: doorbells, the event page, registers, VRAM and
//! GTT objects.
//!
//! `/dev/kfd` takes KFD's encoded offsets (type in bits 63:62, a hash of `gpu_id` in 61:46); the
//! render node takes the offsets that ALLOC returned. Where the host keeps what clients map in a
//! file that they have open, all offsets are that file's.

use crate::base::addr::{VramOffset, PAGE};
use crate::base::errno::{Errno, Result};
use crate::buffers::bo::{Backing, VramMemory};
use crate::gpuvm::vm::DOORBELL_BYTES;
use crate::os::{Arc, Vec};
use crate::process::offsets::Shown;
use crate::process::Process;
use crate::seams::gpu::DmaMemory;
use vkfd_uapi::mmap as abi;

/// Memory to map, in order.
pub enum Mapped {
    /// System memory of the driver, from a byte offset on.
    Dma(Arc<dyn DmaMemory>, u64),
    /// Pieces of a GPU's VRAM.
    Vram {
        gpu_id: u32,
        /// Where, and how many bytes.
        pieces: Vec<(VramOffset, u64)>,
        /// As long as somebody has this, the VRAM is nobody else's, also when the object is freed.
        memory: Arc<VramMemory>,
    },
}

impl Mapped {
    /// `bytes` of an object's memory, `from` on. EINVAL for the caller's own.
    pub(crate) fn of(backing: &Backing, from: u64, bytes: u64) -> Result<Self> {
        match backing {
            Backing::Dma(memory) => Ok(Self::Dma(memory.clone(), from)),
            Backing::Vram(memory) => {
                let mut pieces = Vec::with_capacity(memory.blocks().len())?;
                let mut at = 0u64;
                let wanted_end = from.saturating_add(bytes);
                for block in memory.blocks() {
                    let end = block.pages.saturating_mul(PAGE).saturating_add(at);
                    let (first, last) = (from.max(at), wanted_end.min(end));
                    if first < last {
                        let within = first.saturating_sub(at);
                        pieces.push((VramOffset(block.at.0.saturating_add(within)), last.saturating_sub(first)))?;
                    }
                    at = end;
                }
                Ok(Self::Vram { gpu_id: memory.device().id(), pieces, memory: memory.clone() })
            }
            Backing::Userptr(_) => Err(Errno::EINVAL.into()),
        }
    }
}

pub(super) fn mmap(process: &Process, offset: u64, bytes: u64) -> Result<Mapped> {
    if bytes == 0 || bytes % PAGE != 0 {
        return Err(Errno::EINVAL.into());
    }
    let device = |offset| {
        let id = abi::gpu_id(offset);
        process.kfd().devices().iter().find(|d| abi::gpu_id(abi::encode(0, d.id())) == id)
    };
    match abi::mmap_type(offset) {
        abi::MMAP_TYPE_DOORBELL => {
            let offset = abi::encode(abi::MMAP_TYPE_DOORBELL, device(offset).ok_or(Errno::ENODEV)?.id());
            // All of them or none, as in KFD.
            if bytes != DOORBELL_BYTES {
                return Err(Errno::EINVAL.into());
            }
            page_at(process, offset, bytes)
        }
        abi::MMAP_TYPE_EVENTS => {
            let device = process.kfd().devices().first().ok_or(Errno::EINVAL)?;
            whole(process.events().page(&**device.gpu())?, bytes)
        }
        abi::MMAP_TYPE_RESERVED_MEM => Err(Errno::EINVAL.into()),
        _ if offset >> abi::MMAP_GPU_ID_SHIFT != 0 => {
            page_at(process, abi::encode(abi::MMAP_TYPE_MMIO, device(offset).ok_or(Errno::ENODEV)?.id()), bytes)
        }
        _ => mmap_bo(process, offset, bytes),
    }
}

/// Doorbells or registers. ENODEV before ACQUIRE_VM, when there are none.
fn page_at(process: &Process, offset: u64, bytes: u64) -> Result<Mapped> {
    match process.offsets().find(offset, PAGE) {
        Some((Shown::Page(memory), _)) => whole(memory, bytes),
        _ => Err(Errno::ENODEV.into()),
    }
}

fn mmap_bo(process: &Process, offset: u64, bytes: u64) -> Result<Mapped> {
    match process.offsets().find(offset, bytes) {
        // Of an object, a mapping has the beginning: DRM finds it by that.
        Some((Shown::Object(bo), 0)) => Mapped::of(bo.backing(), 0, bytes),
        Some((Shown::Page(memory), from)) => Ok(Mapped::Dma(memory, from)),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn whole(memory: Arc<dyn DmaMemory>, bytes: u64) -> Result<Mapped> {
    if bytes > memory.bytes() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Mapped::Dma(memory, 0))
}
