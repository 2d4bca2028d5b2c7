// SPDX-License-Identifier: GPL-2.0 OR MIT
//! mmap of the device files: DMA memory and VRAM in the client's memory.

use crate::devices::Devices;
use crate::dma::SharedMemory;
use crate::source::Source;
use crate::sys;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::calls::mmap::Mapped;
use vkfd_driver::seams::gpu::Gpu;

/// Maps driver memory, whole pages.
///
/// # Safety
/// As for mmap.
pub(crate) unsafe fn map(
    devices: &Devices,
    mapped: &Mapped,
    hint: *mut c_void,
    bytes: u64,
    prot: i32,
    flags: i32,
) -> Result<*mut c_void, i32> {
    let fixed = flags & libc::MAP_FIXED != 0;
    let hint = hint.expose_provenance() as u64;
    if fixed && hint % PAGE != 0 {
        return Err(libc::EINVAL);
    }
    let at = if fixed { hint } else { reserve(hint, bytes, flags)? };
    let span = CpuSpan::new(CpuVa(at), bytes).ok_or(libc::EINVAL)?;
    let mm = devices.mm;
    // The host's own calls pass no hook, so what they replace is announced here. userfaultfd
    // shows it by itdevices.
    let under_way = (mm.source() == Source::Interposed && mm.is_watched(span)).then(|| mm.invalidation(span));
    // SAFETY: the area is reserved for this call, or the caller gave it away with MAP_FIXED.
    let result = unsafe { place(devices, mapped, span, prot) };
    if under_way.is_some() {
        mm.memory_gone(span);
    }
    drop(under_way);
    match result {
        Ok(()) => Ok(std::ptr::with_exposed_provenance_mut(index(at))),
        Err(errno) => {
            if !fixed {
                // SAFETY: the area was reserved by this call, and nobody has seen it.
                unsafe { sys::unmap(at, bytes) };
            }
            Err(errno)
        }
    }
}

/// Maps `mapped` at `span`.
///
/// # Safety
/// Nothing that Rust relies on is at `span`.
unsafe fn place(devices: &Devices, mapped: &Mapped, span: CpuSpan, prot: i32) -> Result<(), i32> {
    let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOMEM);
    match mapped {
        Mapped::Dma(memory, offset) => {
            let memory = memory.as_any().downcast_ref::<SharedMemory>().ok_or(libc::EINVAL)?;
            // SAFETY: forwarded to the caller.
            unsafe { memory.map_again(*offset, span.bytes(), prot, Some(span.start())) }.map(drop).map_err(errno)
        }
        Mapped::Vram { gpu_id, pieces, .. } => {
            let gpu = devices.gate.0.iter().find(|g| g.properties().gpu_id == *gpu_id).ok_or(libc::ENODEV)?;
            let memory = gpu.software().vram();
            let vram = memory.as_fd().as_raw_fd();
            let mut at = span.start().0;
            for (offset, bytes) in pieces.iter() {
                if at + bytes > span.end().0 {
                    return Err(libc::EINVAL);
                }
                let offset = i64::try_from(memory.start() + offset.0).map_err(|_| Errno::EINVAL.0)?;
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                // SAFETY: forwarded to the caller; the piece lies inside `span`.
                unsafe { sys::mmap(at, *bytes, prot, flags, vram, offset) }.map_err(errno)?;
                at += bytes;
            }
            Ok(())
        }
    }
}

/// An area of address space near `hint`, inaccessible.
fn reserve(hint: u64, bytes: u64, flags: i32) -> Result<u64, i32> {
    let wanted = flags & (libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | wanted;
    // SAFETY: without MAP_FIXED nothing that exists is touched.
    unsafe { sys::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) }
        .map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM))
}
