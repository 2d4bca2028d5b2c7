// SPDX-License-Identifier: GPL-2.0 OR MIT
//! mmap of the device files: DMA pages and VRAM in a client's memory.
//!
//! A DMA page in a mapping has a reference of the mapping's own. The area keeps the page's memory,
//! so that it stays charged as long as it is mapped. VRAM is mapped without page structures, so the
//! area keeps it. No other client gets the VRAM before its last mapping has gone. That also holds
//! for a mapping that fails half way: the entries made until then, by which other threads may reach
//! the VRAM already, go before the object does. The kernel would remove them afterwards.
//!
//! Called with the client's mmap lock held.

use crate::dma::DmaPages;
use crate::machine::{Machine, RemoteGpu};
use kernel::bindings;
use kernel::error::to_result;
use kernel::mm::virt::{flags, VmaNew};
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::types::ForeignOwnable;
use vkfd_driver::base::addr::index;
use vkfd_driver::buffers::bo::VramMemory;
use vkfd_driver::seams::gpu::DmaMemory;
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::sabotage::FailPoint;

/// Sets `vma` up for the process's memory at the mapping's offset. EBADF in another process than
/// the one that opened the file, EINVAL for a mapping that is private and can be written to: its
/// writes would not reach the GPU. libhsakmt makes private mappings of VRAM without access, to keep
/// the addresses. Such a mapping is accepted, and can never be made writable, as in amdgpu.
pub(crate) fn map(machine: &Machine, process: &Process, vma: &VmaNew) -> Result {
    if !process.mm().is_current() {
        return Err(EBADF);
    }
    let (offset, bytes) = place(vma);
    map_as(process.mmap(offset, bytes)?, &|gpu_id| machine.gpu(gpu_id), vma)
}

/// The part of its file that a new mapping shows: the offset, and how many bytes.
pub(crate) fn place(vma: &VmaNew) -> (u64, u64) {
    // SAFETY: the area is being set up.
    let pages = unsafe { (*vma.as_ptr()).vm_pgoff };
    ((pages as u64) << PAGE_SHIFT, (vma.end() - vma.start()) as u64)
}

/// Sets `vma` up as a mapping of `memory`. EINVAL as [`map`].
pub(crate) fn map_as<'a>(memory: Mapped, gpu: &dyn Fn(u32) -> Option<&'a RemoteGpu>, vma: &VmaNew) -> Result {
    if vma.flags() & flags::SHARED == 0 && vma.flags() & flags::MAYWRITE != 0 {
        if vma.readable() || vma.executable() {
            return Err(EINVAL);
        }
        // EINVAL if it can be written to now.
        vma.try_clear_maywrite()?;
    }
    vma.set_dontexpand();
    vma.set_dontdump();
    match memory {
        Mapped::Dma(memory, from) => {
            // Made before: nothing may fail once there are entries.
            let kept = Arc::new(Kept::Dma { _memory: memory.clone() }, GFP_KERNEL_ACCOUNT)?;
            map_dma(vma, &*memory, index(from))?;
            keep(vma, kept);
            Ok(())
        }
        Mapped::Vram { gpu_id, pieces, memory } => {
            let kept = Arc::new(Kept::Vram { _memory: memory }, GFP_KERNEL_ACCOUNT)?;
            let gpu = gpu(gpu_id).ok_or(ENODEV)?;
            let mut end = vma.start();
            for (offset, bytes) in pieces.iter() {
                let phys = gpu.bar().phys(gpu.bar_offset(*offset));
                if let Err(error) = map_vram(vma, end, phys, index(*bytes)) {
                    if end > vma.start() {
                        // SAFETY: the area is being set up, and has only entries that were made
                        // above.
                        unsafe { bindings::zap_special_vma_range(vma.as_ptr(), vma.start(), end - vma.start()) };
                    }
                    return Err(error);
                }
                end += index(*bytes);
            }
            keep(vma, kept);
            Ok(())
        }
    }
}

/// Makes the entries of one piece of VRAM; none if it fails.
fn map_vram(vma: &VmaNew, at: usize, phys: u64, bytes: usize) -> Result {
    if bytes > vma.end() - at {
        return Err(EINVAL);
    }
    os::failpoint(FailPoint::Mmap)?;
    // SAFETY: the area is being set up and the piece lies in it; VRAM is this driver's.
    to_result(unsafe {
        let protection = (*vma.as_ptr()).vm_page_prot;
        bindings::remap_pfn_range(vma.as_ptr(), at, index(phys >> PAGE_SHIFT), bytes, protection)
    })
}

fn map_dma(vma: &VmaNew, memory: &dyn DmaMemory, from: usize) -> Result {
    let memory = memory.as_any().downcast_ref::<DmaPages>().ok_or(EINVAL)?;
    let area = vma.set_mixedmap();
    let mut pages = memory.pages().skip(from / PAGE_SIZE);
    for at in (vma.start()..vma.end()).step_by(PAGE_SIZE) {
        let page = pages.next().ok_or(EINVAL)?;
        area.vm_insert_page(at, &page)?;
    }
    Ok(())
}

struct Operations(bindings::vm_operations_struct);

// SAFETY: never written to.
unsafe impl Sync for Operations {}

static KEEPER: Operations =
    // What a debugger reads and writes where there are no page structures: VRAM.
    Operations(bindings::vm_operations_struct {
        open: Some(again),
        close: Some(gone),
        access: Some(bindings::generic_access_phys),
        ..pin_init::zeroed()
    });

/// What an area keeps.
enum Kept {
    /// The VRAM.
    Vram {
        /// Never looked at.
        _memory: Arc<VramMemory>,
    },
    /// The memory, with its charge. The area holds references to its pages as well.
    Dma {
        /// Never looked at.
        _memory: Arc<dyn DmaMemory>,
    },
}

/// Has the area, and what it is split into and copied to, keep `object`. Nothing may fail after
/// that.
fn keep(vma: &VmaNew, object: Arc<Kept>) {
    // SAFETY: the area is being set up; the operations are constants.
    unsafe {
        (*vma.as_ptr()).vm_private_data = object.into_foreign();
        (*vma.as_ptr()).vm_ops = &raw const KEEPER.0;
    }
}

/// # Safety
///
/// Called by the kernel for an area that is a copy of one of `keep`.
unsafe extern "C" fn again(vma: *mut bindings::vm_area_struct) {
    // SAFETY: the copied area has a reference.
    let object: Arc<Kept> = unsafe { Arc::<Kept>::borrow((*vma).vm_private_data) }.into();
    // The new area has one of its own.
    let _ = object.into_foreign();
}

/// # Safety
///
/// Called by the kernel for an area of `keep`, once.
unsafe extern "C" fn gone(vma: *mut bindings::vm_area_struct) {
    // SAFETY: the area's own reference.
    drop(unsafe { Arc::<Kept>::from_foreign((*vma).vm_private_data) });
}
