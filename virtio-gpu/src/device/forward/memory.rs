// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocations.
//!
//! Memory that the guest's processors reach is the guest's own, or a part of the window. Either way
//! it comes with the call as pieces of resources, and to KFD it is one batch registration at the
//! address that the guest wants. Memory without pieces is KFD's: VRAM that the processors do not
//! reach, registers, doorbells.
//!
//! Handles are the context's own numbers, so that KFD's can change behind one (see
//! `replace_by_own`). A registration ends with the first resource that it uses.

use std::sync::Arc;

use vkfd_client::{Embedded, Transport, UserptrRange};
use vkfd_remote::protocol::forward::Piece;
use vkfd_remote::protocol::{index, PAGE};
use vkfd_sabotage::Switch;
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command as c;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs, ALLOC_MEM_FLAGS_CONTIGUOUS,
    ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_USERPTR_BATCH,
    ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_TYPES,
};
use vkfd_uapi::pod::Pod;

use super::super::ram::GuestMemory;
use super::super::sharing::Offer;
use super::super::window::Place;
use super::call::Call;
use super::{Forward, Object};

/// Most objects of a context.
pub(super) const MAX_OBJECTS: usize = 65_536;

/// What a registration's memory belongs to.
pub enum Owner {
    #[allow(dead_code)] // kept alive
    Window(Arc<Place>),
    #[allow(dead_code)]
    Guest(Arc<GuestMemory>),
}

/// The memory that a call brings.
struct Brought {
    ranges: Vec<UserptrRange>,
    /// In order, each once.
    resources: Vec<u32>,
    /// The object that keeps each resource's memory.
    owners: Vec<Owner>,
}

/// An allocation.
pub struct Bo {
    /// KFD's number.
    pub(super) handle: u64,
    gpu: u32,
    va: u64,
    bytes: u64,
    flags: u32,
    /// What other processes import it by.
    pub(super) offer: Option<Box<Offer>>,
    /// The GPUs that it is mapped on.
    mapped: Vec<u32>,
    /// In order, each once.
    resources: Vec<u32>,
    /// Bytes of VRAM that the guest thinks it has.
    vram: u64,
    _owners: Vec<Owner>,
}

pub(super) fn kfd<T: Pod>(file: &Embedded, command: vkfd_uapi::ioctl::Command, args: &mut T) -> Result<(), i32> {
    // SAFETY: the argument is the command's own, and its pointers are to live memory of the sizes
    // that it says.
    unsafe { file.ioctl(command.0, std::ptr::from_mut(args).cast()) }.map_err(|errno| errno.0)
}

impl Bo {
    /// Whether its memory is the guest's or the window's.
    pub fn is_brought(&self) -> bool {
        !self.resources.is_empty()
    }

    /// Unmaps and frees it. The object is back when KFD does not.
    pub fn end(mut self, file: &Embedded) -> Result<(), Self> {
        let mut args = UnmapMemoryFromGpuArgs {
            handle: self.handle,
            device_ids_array_ptr: self.mapped.as_ptr().expose_provenance() as u64,
            n_devices: u32::try_from(self.mapped.len()).unwrap_or(0),
            n_success: 0,
        };
        if !self.mapped.is_empty() && kfd(file, c::UNMAP_MEMORY_FROM_GPU, &mut args).is_ok() {
            self.mapped.clear();
        }
        match kfd(file, c::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle: self.handle }) {
            Ok(()) => Ok(()),
            Err(errno) => {
                tracing::error!(errno, va = format_args!("{:#x}", self.va), "memory cannot be freed");
                Err(self)
            }
        }
    }
}

impl Forward {
    /// The ranges of pieces, in order, and the objects that keep them there. EINVAL for pieces that
    /// are not whole pages of the context's memory, another sum than `bytes`, or more ranges than
    /// KFD takes. O(pieces log runs + ranges).
    fn ranges(&self, pieces: &[Piece], bytes: u64) -> Result<Brought, i32> {
        // First of all: no piece is less than a page, and the requested size bounds the list.
        let sum = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
        let unchecked = self.shared.options.sabotage.has(Switch::ExpandUnchecked);
        if sum != Some(bytes) && !unchecked {
            return Err(libc::EINVAL);
        }
        let most = self.file.file().process().kfd().options().max_ranges;
        let mut ranges = Vec::new();
        let mut push = |range| {
            if ranges.len() >= index(most) && !unchecked {
                return Err(libc::EINVAL);
            }
            ranges.try_reserve(1).map_err(|_| libc::ENOMEM)?;
            ranges.push(range);
            Ok(())
        };
        for piece in pieces {
            let whole = piece.bytes != 0 && piece.bytes % PAGE == 0 && piece.offset % PAGE == 0;
            let end = piece.offset.checked_add(piece.bytes).filter(|_| whole).ok_or(libc::EINVAL)?;
            match self.objects.get(&piece.resource) {
                Some(Object::Memory(Some(place))) if end <= place.bytes() => {
                    let start = place.start().as_ptr().expose_provenance() as u64 + piece.offset;
                    push(UserptrRange { start, size: piece.bytes })?;
                }
                Some(Object::Guest(memory)) if end <= memory.bytes() => {
                    memory.part(piece.offset, end).try_for_each(&mut push)?;
                }
                _ => return Err(libc::EINVAL),
            }
        }
        if unchecked {
            return Err(libc::EINVAL);
        }
        let mut resources: Vec<u32> = pieces.iter().map(|piece| piece.resource).collect();
        resources.sort_unstable();
        resources.dedup();
        let owner = |resource: &u32| match self.objects.get(resource) {
            Some(Object::Memory(Some(place))) => Some(Owner::Window(place.clone())),
            Some(Object::Guest(memory)) => Some(Owner::Guest(memory.clone())),
            _ => None,
        };
        let owners = resources.iter().filter_map(owner).collect();
        Ok(Brought { ranges, resources, owners })
    }

    /// ALLOC_MEMORY_OF_GPU.
    pub(super) fn alloc(&mut self, call: &mut Call) -> Result<(), i32> {
        if self.bos.len() >= MAX_OBJECTS {
            return Err(libc::ENOMEM);
        }
        let asked: AllocMemoryOfGpuArgs = call.argument();
        let pieces = call.request().pieces.clone();
        let bo = if pieces.is_empty() {
            // Addresses of the guest's processors mean nothing here.
            if asked.flags & (ALLOC_MEM_FLAGS_USERPTR | ALLOC_MEM_FLAGS_USERPTR_BATCH) != 0 {
                return Err(libc::EFAULT);
            }
            // SAFETY: as in `kfd`; the call has no pointers.
            call.make(|command, argument| unsafe { self.file.ioctl(command, argument) }.map_err(|e| e.0))?;
            let made: AllocMemoryOfGpuArgs = call.argument();
            self.bo(made.handle, &asked, vec![], vec![])
        } else {
            let bytes = asked.size.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
            let Brought { ranges, resources, owners } = self.ranges(&pieces, bytes)?;
            let vram = if asked.flags & ALLOC_MEM_FLAGS_VRAM == 0 { 0 } else { bytes };
            if vram > self.vram_left(asked.gpu_id)? {
                return Err(libc::ENOMEM);
            }
            let handle = self.register(&asked, bytes, &ranges)?;
            Bo { vram, ..self.bo(handle, &AllocMemoryOfGpuArgs { size: bytes, ..asked }, resources, owners) }
        };
        let handle = self.enter(bo);
        call.change(|args: &mut AllocMemoryOfGpuArgs| args.handle = handle);
        Ok(())
    }

    /// Gives an allocation a number.
    pub(super) fn enter(&mut self, bo: Bo) -> u64 {
        let handle = self.next_handle;
        self.next_handle += 1;
        self.bos.insert(handle, bo);
        handle
    }

    pub(super) fn bo(&self, handle: u64, asked: &AllocMemoryOfGpuArgs, resources: Vec<u32>, owners: Vec<Owner>) -> Bo {
        let AllocMemoryOfGpuArgs { va_addr: va, size: bytes, gpu_id: gpu, flags, .. } = *asked;
        Bo { handle, gpu, va, bytes, flags, offer: None, mapped: vec![], resources, vram: 0, _owners: owners }
    }

    /// One batch call. The handle.
    fn register(&self, asked: &AllocMemoryOfGpuArgs, bytes: u64, ranges: &[UserptrRange]) -> Result<u64, i32> {
        let not_here =
            ALLOC_MEM_TYPES | ALLOC_MEM_FLAGS_PUBLIC | ALLOC_MEM_FLAGS_CONTIGUOUS | ALLOC_MEM_FLAGS_USERPTR_BATCH;
        let mut args = AllocMemoryOfGpuBatchArgs {
            va_addr: asked.va_addr,
            total_size: bytes,
            handle: 0,
            ranges_ptr: ranges.as_ptr().expose_provenance() as u64,
            num_ranges: u32::try_from(ranges.len()).map_err(|_| libc::EINVAL)?,
            gpu_id: asked.gpu_id,
            flags: asked.flags & !not_here | ALLOC_MEM_FLAGS_USERPTR,
            pad: 0,
        };
        let began = std::time::Instant::now();
        kfd(&self.file, ALLOC_MEMORY_OF_GPU_BATCH, &mut args)?;
        // The same words for both kinds of context: tests look for them.
        tracing::info!(ranges = ranges.len(), bytes, microseconds = began.elapsed().as_micros(), "registered");
        Ok(args.handle)
    }

    /// FREE_MEMORY_OF_GPU.
    pub(super) fn free(&mut self, call: &mut Call) -> Result<(), i32> {
        let args: FreeMemoryOfGpuArgs = call.argument();
        let bo = self.bos.get(&args.handle).ok_or(libc::EINVAL)?;
        // What is mapped stays, as with KFD.
        kfd(&self.file, c::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle: bo.handle })?;
        self.bos.remove(&args.handle);
        Ok(())
    }

    /// MAP_MEMORY_TO_GPU and UNMAP_MEMORY_FROM_GPU, whose arguments are alike.
    pub(super) fn map(&mut self, call: &mut Call, maps: bool) -> Result<(), i32> {
        let asked: MapMemoryToGpuArgs = call.argument();
        let bo = self.bos.get_mut(&asked.handle).ok_or(libc::EINVAL)?;
        call.change(|args: &mut MapMemoryToGpuArgs| args.handle = bo.handle);
        // SAFETY: `make` gives an argument whose pointers are to arrays of the sizes that it says.
        let done = call.make(|command, argument| unsafe { self.file.ioctl(command, argument) }.map_err(|e| e.0));
        let made: MapMemoryToGpuArgs = call.argument();
        for gpu in call.words(0).into_iter().take(made.n_success as usize).skip(asked.n_success as usize) {
            bo.mapped.retain(|mapped| *mapped != gpu);
            if maps {
                bo.mapped.push(gpu);
            }
        }
        call.change(|args: &mut MapMemoryToGpuArgs| args.handle = asked.handle);
        done
    }

    /// VRAM of a GPU that is left, if what the window stands in for were there.
    fn vram_left(&self, gpu_id: u32) -> Result<u64, i32> {
        let mut args = vkfd_uapi::memory::GetAvailableMemoryArgs { available: 0, gpu_id, pad: 0 };
        kfd(&self.file, c::AVAILABLE_MEMORY, &mut args)?;
        let shown = self.bos.values().filter(|bo| bo.gpu == gpu_id).map(|bo| bo.vram).sum::<u64>();
        Ok(args.available.saturating_sub(shown))
    }

    /// AVAILABLE_MEMORY.
    pub(super) fn available(&self, call: &mut Call) -> Result<(), i32> {
        let asked: vkfd_uapi::memory::GetAvailableMemoryArgs = call.argument();
        let available = self.vram_left(asked.gpu_id)?;
        call.change(|args: &mut vkfd_uapi::memory::GetAvailableMemoryArgs| args.available = available);
        Ok(())
    }

    /// KFD's number of the memory for event slots. KFD wants its own memory there. The guest cannot
    /// know and has announced a part of the window. Only the GPU and KFD look at slots, so KFD's
    /// memory replaces that part at the same address.
    pub(super) fn replace_by_own(&mut self, handle: u64) -> Result<u64, i32> {
        let bo = self.bos.get(&handle).ok_or(libc::EINVAL)?;
        if bo.resources.is_empty() {
            return Ok(bo.handle);
        }
        if bo.flags & ALLOC_MEM_FLAGS_GTT == 0 {
            return Err(libc::EINVAL);
        }
        let Some(bo) = self.bos.remove(&handle) else { return Err(libc::EINVAL) };
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: bo.va,
            size: bo.bytes,
            handle: 0,
            mmap_offset: 0,
            gpu_id: bo.gpu,
            flags: bo.flags,
        };
        let gpus = bo.mapped.clone();
        if let Err(bo) = bo.end(&self.file) {
            self.bos.insert(handle, bo);
            return Err(libc::EBUSY);
        }
        kfd(&self.file, c::ALLOC_MEMORY_OF_GPU, &mut args)?;
        let mut own = self.bo(args.handle, &args, vec![], vec![]);
        let mut map = MapMemoryToGpuArgs {
            handle: args.handle,
            device_ids_array_ptr: gpus.as_ptr().expose_provenance() as u64,
            n_devices: u32::try_from(gpus.len()).unwrap_or(0),
            n_success: 0,
        };
        let mapped = if gpus.is_empty() { Ok(()) } else { kfd(&self.file, c::MAP_MEMORY_TO_GPU, &mut map) };
        own.mapped = gpus.into_iter().take(map.n_success as usize).collect();
        let number = own.handle;
        self.bos.insert(handle, own);
        mapped.map(|()| number)
    }

    /// Ends the registrations that use a resource.
    pub(super) fn end_users(&mut self, resource: u32) {
        let users: Vec<u64> = self
            .bos
            .iter()
            .filter(|(_, bo)| bo.resources.binary_search(&resource).is_ok())
            .map(|(handle, _)| *handle)
            .collect();
        for handle in users {
            if let Some(Err(bo)) = self.bos.remove(&handle).map(|bo| bo.end(&self.file)) {
                // Its memory stays as long as the context.
                self.stuck.push(bo);
            }
        }
    }
}
