// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client's mmap of the device files shows: doorbells, the event page, registers, VRAM and GTT objects.
//!
//! `/dev/kfd` takes KFD's encoded offsets (type in bits 63:62, a hash of `gpu_id` in 61:46); the render node takes the
//! offsets that ALLOC returned.

use crate::addr::{VramOffset, PAGE};
use crate::bo::Backing;
use crate::errno::{Errno, Result};
use crate::gpu::DmaMemory;
use crate::os::{Arc, Vec};
use crate::process::Process;
use vkfd_uapi::mmap as abi;

/// Memory to map, in order.
pub enum Mapped {
    /// System memory of the driver's, from a byte offset on.
    Dma(Arc<dyn DmaMemory>, u64),
    /// Pieces of a GPU's VRAM.
    Vram {
        /// Whose.
        gpu_id: u32,
        /// Where, and how many bytes.
        pieces: Vec<(VramOffset, u64)>,
    },
}

impl Process {
    /// What `bytes` (whole pages) at `offset` are. EINVAL when that is nothing.
    pub fn mmap(&self, offset: u64, bytes: u64) -> Result<Mapped> {
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let device = |offset| {
            let id = abi::gpu_id(offset);
            self.kfd().devices().iter().find(|d| abi::gpu_id(abi::encode(0, d.id())) == id)
        };
        match abi::mmap_type(offset) {
            abi::MMAP_TYPE_DOORBELL => {
                let vm = self.vm(device(offset).ok_or(Errno::EINVAL)?.index())?;
                whole(vm.doorbells().clone(), bytes)
            }
            abi::MMAP_TYPE_EVENTS => {
                let device = self.kfd().devices().first().ok_or(Errno::EINVAL)?;
                whole(self.events().page(&**device.gpu())?, bytes)
            }
            abi::MMAP_TYPE_RESERVED_MEM => Err(Errno::EINVAL.into()),
            _ if offset >> abi::MMAP_GPU_ID_SHIFT != 0 => {
                whole(device(offset).ok_or(Errno::EINVAL)?.mmio().clone(), bytes)
            }
            _ => self.mmap_bo(offset, bytes),
        }
    }

    fn mmap_bo(&self, offset: u64, bytes: u64) -> Result<Mapped> {
        let end = offset.checked_add(bytes).ok_or(Errno::EINVAL)?;
        let inner = self.lock();
        let hit = inner.offsets.first_overlap(offset, end).filter(|(start, last, _)| *start <= offset && end <= *last);
        let (start, _, number) = hit.ok_or(Errno::EINVAL)?;
        let bo = inner.bos.get(number).ok_or(Errno::EINVAL)?.clone();
        drop(inner);
        let from = offset - start;
        match bo.backing() {
            Backing::Dma(memory) => Ok(Mapped::Dma(memory.clone(), from)),
            Backing::Vram(memory) => {
                let mut pieces = Vec::with_capacity(memory.blocks().len())?;
                let mut at = 0;
                for block in memory.blocks() {
                    let (first, last) = (from.max(at), (from + bytes).min(at + block.pages * PAGE));
                    if first < last {
                        pieces.push((VramOffset(block.at.0 + (first - at)), last - first))?;
                    }
                    at += block.pages * PAGE;
                }
                Ok(Mapped::Vram { gpu_id: bo.device().id(), pieces })
            }
            Backing::Userptr(_) => Err(Errno::EINVAL.into()),
        }
    }
}

fn whole(memory: Arc<dyn DmaMemory>, bytes: u64) -> Result<Mapped> {
    if bytes > memory.bytes() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Mapped::Dma(memory, 0))
}
