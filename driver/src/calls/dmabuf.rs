// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The calls that make files of objects, and objects of files ([`crate::buffers::dmabuf`]).

use crate::base::addr::{CpuVa, GpuSpan, GpuVa};
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::buffers::bo::{Bo, Origin, Spec};
use crate::buffers::dmabuf::DmaBuf;
use crate::gpuvm::page_table::VA_END;
use crate::os::{self, Arc};
use crate::process::Process;
use vkfd_uapi::memory as abi;

/// Makes a file of an object.
pub(crate) fn export_dmabuf(process: &Process, args: &mut abi::ExportDmabufArgs) -> Result {
    let bo = process.bo(args.handle)?;
    let kind = bo.flags() & abi::ALLOC_MEM_TYPES;
    if kind == abi::ALLOC_MEM_FLAGS_USERPTR {
        return Err(Errno::EPERM.into());
    }
    if kind & (abi::ALLOC_MEM_FLAGS_VRAM | abi::ALLOC_MEM_FLAGS_GTT) == 0 {
        return Err(Error::new(Errno::EINVAL, Reason::BadFlags));
    }
    let buffer = DmaBuf {
        backing: bo.backing().share(),
        bytes: bo.span().bytes(),
        gpu_id: bo.device().id(),
        flags: bo.flags() & (abi::ALLOC_MEM_TYPES | abi::ALLOC_MEM_FLAGS_PUBLIC),
        metadata: bo.metadata()?,
    };
    args.dmabuf_fd = process.kfd().files().export(&os::arc(buffer)?, args.flags)?;
    Ok(())
}

/// Says what a file is, and what was noted about it. EINVAL where that has no room.
pub(crate) fn dmabuf_info(process: &Process, args: &mut abi::GetDmabufInfoArgs) -> Result {
    let buffer = process.kfd().files().import(args.dmabuf_fd)?;
    args.size = buffer.bytes;
    let noted = buffer.metadata.get();
    let bytes = noted.bytes.get(..noted.length).unwrap_or_default();
    if args.metadata_ptr != 0 {
        if (args.metadata_size as usize) < bytes.len() {
            return Err(Errno::EINVAL.into());
        }
        let written = process.mm().write(CpuVa(args.metadata_ptr), bytes);
        written.map_err(|error| Error { reason: Reason::BadPointer, ..error })?;
    }
    args.metadata_size = u32::try_from(bytes.len()).unwrap_or(0);
    args.gpu_id = buffer.gpu_id;
    // KFD takes it as a hint alone that CPUs are to see the memory.
    args.flags = buffer.flags & abi::ALLOC_MEM_TYPES;
    Ok(())
}

/// Makes an object of a file's memory for the named GPU, at a GPU address, and returns its
/// handle. At address 0 the object has none, as in KFD: ROCR imports memory that way before it
/// maps it through DRM.
pub(crate) fn import_dmabuf(process: &Arc<Process>, args: &mut abi::ImportDmabufArgs) -> Result {
    let device = process.kfd().device(args.gpu_id)?.clone();
    process.vm(device.index())?;
    let buffer = process.kfd().files().import(args.dmabuf_fd)?;
    let Some(span) = GpuSpan::new(GpuVa(args.va_addr), buffer.bytes) else {
        return Err(Error::new(Errno::EINVAL, Reason::Wraps));
    };
    if !span.is_whole_pages() {
        return Err(Error::new(Errno::EINVAL, Reason::ZeroOrUnaligned));
    }
    if span.end().0 > VA_END {
        return Err(Error::new(Errno::EINVAL, Reason::OutOfAperture));
    }
    process.svm_work().sweep()?;
    let flags = buffer.flags | abi::ALLOC_MEM_FLAGS_WRITABLE | abi::ALLOC_MEM_FLAGS_EXECUTABLE;
    let mmap_offset = process.offsets().take(span.bytes());
    let number = super::memory::reserve_number(process)?;
    let backing = buffer.backing.share();
    let gpus = process.gpu_count();
    let origin = Origin::Imported;
    let bo =
        Bo::new(Spec { number, device, span, flags, mmap_offset, backing, first_page: 0, charge: None, gpus, origin });
    let bo = super::memory::publish(process, number, bo)?;
    bo.share_metadata(buffer.metadata.clone());
    bo.set_ready();
    args.handle = bo.handle();
    Ok(())
}
