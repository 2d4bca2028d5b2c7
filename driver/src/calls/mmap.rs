// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client's mmap of the device files shows: doorbells, the event page, registers, VRAM and GTT objects.
//!
//! `/dev/kfd` takes KFD's encoded offsets (type in bits 63:62, a hash of `gpu_id` in 61:46); the render node takes the
//! offsets that ALLOC returned. Where the host keeps what clients map in a file that they have open, all offsets are that file's.
//!
//! A kernel calls with the address space's lock held, which the driver's calls take under the locks of a process and of an object. So what
//! can be mapped is in a table with a lock of its own (rank `Offset`).

use crate::addr::{VramOffset, PAGE};
use crate::bo::{Backing, Bo, VramMemory};
use crate::drm::GemObject;
use crate::errno::{Errno, Result};
use crate::gpu::DmaMemory;
use crate::interval::IntervalMap;
use crate::lock_rank::Rank;
use crate::os::{self, Arc, Mutex, Vec};
use crate::process::Process;
use vkfd_uapi::mmap as abi;

/// Client mmap offsets of VRAM and GTT objects begin here, as DRM's do.
const FIRST_OFFSET: u64 = 4 << 30;

/// What is at an offset.
#[derive(Clone)]
pub enum Shown {
    /// A VRAM or GTT object.
    Object(Arc<Bo>),
    /// A VM's doorbells, or its registers.
    Page(Arc<dyn DmaMemory>),
    /// An object of a render file's.
    Gem(Arc<GemObject>),
}

impl PartialEq for Shown {
    /// Whether both are the same memory.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b),
            (Self::Gem(a), Self::Gem(b)) => Arc::ptr_eq(a, b),
            (Self::Page(a), Self::Page(b)) => core::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
            _ => false,
        }
    }
}

struct Table {
    shown: IntervalMap<Shown>,
    next: u64,
}

/// What a process can map.
pub struct Offsets(Mutex<Table>);

impl Offsets {
    /// Nothing.
    pub fn new() -> Result<Self> {
        Self::beginning_at(FIRST_OFFSET)
    }

    /// Nothing, with offsets of its own from `first` on.
    pub(crate) fn beginning_at(first: u64) -> Result<Self> {
        let shown = IntervalMap::seeded(os::random());
        Ok(Self(Mutex::new(Rank::Offset, Table { shown, next: first })?))
    }

    /// An offset for an object of `bytes` that nothing else had.
    pub fn take(&self, bytes: u64) -> u64 {
        let mut table = self.0.lock();
        let offset = table.next;
        table.next = offset.saturating_add(bytes);
        offset
    }

    /// Makes something mappable. ENOMEM shows nothing.
    pub fn show(&self, offset: u64, bytes: u64, what: Shown) -> Result {
        self.0.lock().shown.insert(offset, offset.saturating_add(bytes), what)
    }

    /// The opposite. Nothing if it is not there.
    pub fn hide(&self, offset: u64, bytes: u64, what: &Shown) {
        self.0.lock().shown.remove(offset, offset.saturating_add(bytes), what);
    }

    /// Hides everything.
    pub fn clear(&self) {
        let mut shown = IntervalMap::new();
        core::mem::swap(&mut self.0.lock().shown, &mut shown);
        drop(shown); // without the lock
    }

    /// What has all of `bytes` from `offset` on, and where that begins in it.
    pub(crate) fn find(&self, offset: u64, bytes: u64) -> Option<(Shown, u64)> {
        let end = offset.checked_add(bytes)?;
        let (start, last, what) = self.0.lock().shown.first_overlap(offset, end)?;
        let from = offset.checked_sub(start)?;
        (end <= last).then_some((what, from))
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        self.0.lock().shown.memory()
    }
}

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
                self.page_at(abi::encode(abi::MMAP_TYPE_DOORBELL, device(offset).ok_or(Errno::EINVAL)?.id()), bytes)
            }
            abi::MMAP_TYPE_EVENTS => {
                let device = self.kfd().devices().first().ok_or(Errno::EINVAL)?;
                whole(self.events().page(&**device.gpu())?, bytes)
            }
            abi::MMAP_TYPE_RESERVED_MEM => Err(Errno::EINVAL.into()),
            _ if offset >> abi::MMAP_GPU_ID_SHIFT != 0 => {
                self.page_at(abi::encode(abi::MMAP_TYPE_MMIO, device(offset).ok_or(Errno::EINVAL)?.id()), bytes)
            }
            _ => self.mmap_bo(offset, bytes),
        }
    }

    /// Doorbells or registers. ENODEV before ACQUIRE_VM, when there are none.
    fn page_at(&self, offset: u64, bytes: u64) -> Result<Mapped> {
        match self.offsets().find(offset, PAGE) {
            Some((Shown::Page(memory), _)) => whole(memory, bytes),
            _ => Err(Errno::ENODEV.into()),
        }
    }

    fn mmap_bo(&self, offset: u64, bytes: u64) -> Result<Mapped> {
        match self.offsets().find(offset, bytes) {
            Some((Shown::Object(bo), from)) => Mapped::of(bo.backing(), from, bytes),
            Some((Shown::Page(memory), from)) => Ok(Mapped::Dma(memory, from)),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

fn whole(memory: Arc<dyn DmaMemory>, bytes: u64) -> Result<Mapped> {
    if bytes > memory.bytes() {
        return Err(Errno::EINVAL.into());
    }
    Ok(Mapped::Dma(memory, 0))
}
