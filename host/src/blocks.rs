// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What checks know of a process's objects: a look at the calls that make and free them.
//!
//! An object that is freed is known by its handle; the mutex guards these. It is held for a look-up
//! and never during a call.
//!
//! Limits: objects of DRM and imported ones are not known, nor is SVM memory. Accesses there are in
//! nobody's bounds.

use crate::address_space::ProcessMemory;
use crate::mm::Mm;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use vkfd_driver::base::addr::CpuVa;
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_gpu::check::{Block, Ledger};
use vkfd_uapi::command::{ALLOC_MEMORY_OF_GPU, FREE_MEMORY_OF_GPU};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_MMIO_REMAP,
    ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_VRAM,
};
use vkfd_uapi::pod::Pod;

/// A process's objects, by handle: their addresses.
pub(crate) struct Blocks {
    ledger: Arc<Ledger>,
    known: Mutex<BTreeMap<u64, u64>>,
}

/// An argument, where it can be read.
fn argument<T: Pod>(mm: &'static Mm, at: CpuVa) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: a Pod type is valid for all bytes, and these are zero.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    ProcessMemory::new(mm).read(at, bytes).ok()?;
    // SAFETY: as above.
    Some(unsafe { value.assume_init() })
}

impl Blocks {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Blocks {
        Blocks { ledger, known: Mutex::default() }
    }

    /// A call is about to be made: the handle of the object that it frees. Its caller may change
    /// the argument meanwhile.
    pub(crate) fn before(&self, mm: &'static Mm, command: u32, at: CpuVa) -> Option<u64> {
        let frees = Command(command).same_call(FREE_MEMORY_OF_GPU);
        frees.then(|| argument::<FreeMemoryOfGpuArgs>(mm, at)).flatten().map(|args| args.handle)
    }

    /// A call has been made.
    pub(crate) fn after(&self, mm: &'static Mm, command: u32, at: CpuVa, freed: Option<u64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(va) = freed.and_then(|handle| known.remove(&handle)) {
            self.ledger.remove_block(va);
        }
        if !Command(command).same_call(ALLOC_MEMORY_OF_GPU) {
            return;
        }
        let Some(args) = argument::<AllocMemoryOfGpuArgs>(mm, at) else { return };
        if args.flags & (ALLOC_MEM_FLAGS_DOORBELL | ALLOC_MEM_FLAGS_MMIO_REMAP) != 0 {
            return;
        }
        let has = |flag| args.flags & flag != 0;
        let (device, visible) = (has(ALLOC_MEM_FLAGS_VRAM), has(ALLOC_MEM_FLAGS_PUBLIC));
        known.insert(args.handle, args.va_addr);
        self.ledger.add_block(&Block { va: args.va_addr, bytes: args.size, device, visible });
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        for va in std::mem::take(known).into_values() {
            self.ledger.remove_block(va);
        }
    }
}
