// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An open render node's objects: creating, closing, sharing and mapping them, on the CPU and on
//! the GPU.
//!
//! Objects are the file's, by handle. GPU addresses are those of the process that the file was
//! bound to with ACQUIRE_VM. A mapping is a buffer object of that process without a KFD handle. So
//! KFD's rules and DRM's hold for all of its address space together. Runtimes map memory so that
//! they have allocated without addresses (HIP's virtual memory), or were given by others (dma-buf).
//!
//! The lock of rank `Gem` guards handles and mappings. What the CPU can map is in a table of its
//! own, which is read with the address space's lock held ([`crate::calls::mmap`]).
//!
//! Limits: GPU addresses only once the file is bound (EINVAL before), for whole mappings (no CLEAR,
//! no REPLACE, no partially resident memory: EOPNOTSUPP). An import looks for a file's buffer among
//! all objects. Nothing is submitted through render nodes, so nothing is ever waited for. There are
//! no userptr objects here; KFD has those.

use super::Argument;
use crate::base::addr::{GpuSpan, GpuVa, PAGE};
use crate::base::errno::{Errno, Result};
use crate::base::lock_rank::Rank;
use crate::buffers::bo::{Backing, Bo, Origin, Spec};
use crate::buffers::dmabuf::DmaBuf;
use crate::buffers::gem_object::{allocate, GemObject, Wanted, DOMAIN_GTT, DOMAIN_VRAM, NO_CPU_ACCESS};
use crate::buffers::metadata::{Metadata, Noted, METADATA_BYTES};
use crate::calls::memory;
use crate::calls::mmap::Mapped;
use crate::collections::handle::Handles;
use crate::device::Device;
use crate::gpuvm::page_table::VA_END;
use crate::machine::kfd::Kfd;
use crate::os::{self, Arc, Mutex, Vec};
use crate::process::offsets::{Offsets, Shown};
use crate::process::Process;
use vkfd_uapi::memory as kfd_abi;

/// CPU offsets of objects that the host has no file for: away from those of KFD's objects, which
/// the same file shows.
const FIRST_OFFSET: u64 = 1 << 42;
/// Below are no mappings (`AMDGPU_VA_RESERVED_BOTTOM`).
const FIRST_VA: u64 = 1 << 20;

const VA_MAP: u32 = 1;
const VA_UNMAP: u32 = 2;
const VA_CLEAR: u32 = 3;
const VA_REPLACE: u32 = 4;
const VA_WRITEABLE: u32 = 1 << 2;
const VA_EXECUTABLE: u32 = 1 << 3;
const VA_PARTIALLY_RESIDENT: u32 = 1 << 4;
/// Delayed update, access, memory type, and what it is cached as.
const VA_FLAGS: u32 = 0x3ff;

const METADATA_SET: u32 = 1;
const METADATA_GET: u32 = 2;
const OP_GET_CREATE_INFO: u32 = 0;
const OP_SET_PLACEMENT: u32 = 1;

/// A mapping on the GPU.
struct Map {
    va: u64,
    bo: Arc<Bo>,
    process: Arc<Process>,
}

impl Map {
    /// Takes it away; nothing if the process has ended.
    fn end(self, gpu: usize) {
        // Errors mean that it has gone.
        let _ = self.bo.unmap(gpu);
        if self.bo.free().is_ok() {
            self.process.forget(&self.bo);
        }
    }
}

struct Entry {
    object: Arc<GemObject>,
    maps: Vec<Map>,
}

/// A file's objects.
pub(super) struct Objects {
    kfd: Arc<Kfd>,
    device: Arc<Device>,
    entries: Mutex<Handles<Entry>>,
    offsets: Offsets,
}

/// Handles count from 1.
fn number(handle: u32) -> Option<u32> {
    handle.checked_sub(1)
}

impl Objects {
    pub(super) fn new(kfd: &Arc<Kfd>, device: &Arc<Device>) -> Result<Self> {
        Ok(Self {
            kfd: kfd.clone(),
            device: device.clone(),
            entries: Mutex::new(Rank::Gem, Handles::new())?,
            offsets: Offsets::beginning_at(FIRST_OFFSET)?,
        })
    }

    /// What the CPU maps at `offset`, if that is an object's.
    pub(super) fn mmap(&self, offset: u64, bytes: u64) -> Option<Result<Mapped>> {
        match self.offsets.find(offset, bytes)? {
            (Shown::Gem(object), from) => Some(Mapped::of(&object.backing, from, bytes)),
            _ => None,
        }
    }

    fn object(&self, handle: u32) -> Result<Arc<GemObject>> {
        let entries = self.entries.lock();
        let entry = number(handle).and_then(|number| entries.get(number));
        Ok(entry.ok_or(Errno::ENOENT)?.object.clone())
    }

    /// Gives an object a handle.
    fn enter(&self, backing: Backing, wanted: Wanted, metadata: Arc<Metadata>) -> Result<u32> {
        let own = match &backing {
            Backing::Vram(memory) => memory.mmap_offset(),
            Backing::Dma(memory) => memory.mmap_offset(),
            Backing::Userptr(_) => return Err(Errno::EINVAL.into()),
        };
        let mmap_offset = own.unwrap_or_else(|| self.offsets.take(wanted.bytes));
        let object = os::arc(GemObject { backing, wanted, mmap_offset, metadata })?;
        let number = self.entries.lock().reserve()?;
        if let Err(error) = self.offsets.show(mmap_offset, wanted.bytes, Shown::Gem(object.clone())) {
            self.entries.lock().remove(number);
            return Err(error);
        }
        self.entries.lock().fill(number, Entry { object, maps: Vec::new() });
        Ok(number.wrapping_add(1))
    }

    /// `{bo_size: u64, alignment: u64, domains: u64, domain_flags: u64}`, answered by
    /// `{handle: u32}`.
    pub(super) fn create(&self, argument: &Argument<'_>) -> Result {
        let domains = u32::try_from(argument.u64(16)?).map_err(|_| Errno::EINVAL)?;
        let wanted = Wanted { bytes: argument.u64(0)?, alignment: argument.u64(8)?, domains, flags: argument.u64(24)? };
        let (backing, wanted) = allocate(self.kfd.limit(), &self.device, wanted)?;
        let handle = self.enter(backing, wanted, Metadata::new()?)?;
        argument.put_u32(0, handle).inspect_err(|_| {
            let _ = self.close(handle);
        })
    }

    /// Bytes of the objects that are in VRAM, and in system memory; of the latter, those that were
    /// to be in VRAM. O(objects).
    pub(super) fn held(&self) -> [u64; 3] {
        let entries = self.entries.lock();
        entries.iter().fold([0; 3], |[vram, gtt, elsewhere], (_, Entry { object, .. })| {
            let bytes = object.wanted.bytes;
            match object.backing {
                Backing::Vram(_) => [vram.saturating_add(bytes), gtt, elsewhere],
                _ if object.wanted.domains & DOMAIN_VRAM != 0 => {
                    [vram, gtt.saturating_add(bytes), elsewhere.saturating_add(bytes)]
                }
                _ => [vram, gtt.saturating_add(bytes), elsewhere],
            }
        })
    }

    /// `{handle: u32}`, answered by `{addr_ptr: u64}`.
    pub(super) fn offset(&self, argument: &Argument<'_>) -> Result {
        let object = self.object(argument.u32(0)?)?;
        if object.wanted.flags & NO_CPU_ACCESS != 0 {
            return Err(Errno::EPERM.into());
        }
        argument.put(0, &object.mmap_offset.to_ne_bytes())
    }

    /// Ends a handle, with the mappings that were made by it. EINVAL for one that is none.
    pub(super) fn close(&self, handle: u32) -> Result {
        let entry = number(handle).and_then(|number| self.entries.lock().remove(number)).ok_or(Errno::EINVAL)?;
        self.end(entry);
        Ok(())
    }

    fn end(&self, entry: Entry) {
        let Entry { object, maps } = entry;
        self.offsets.hide(object.mmap_offset, object.wanted.bytes, &Shown::Gem(object));
        maps.into_iter().for_each(|map| map.end(self.device.index()));
    }

    /// `{handle: u32, op: u32, flags: u64, tiling_info: u64, data_size_bytes: u32,
    /// data: [u32; 64]}`.
    pub(super) fn metadata(&self, argument: &Argument<'_>) -> Result {
        let object = self.object(argument.u32(0)?)?;
        match argument.u32(4)? {
            METADATA_SET => {
                let length = argument.u32(24)? as usize;
                if length > METADATA_BYTES {
                    return Err(Errno::EINVAL.into());
                }
                let mut bytes: [u8; METADATA_BYTES] = argument.get(28)?;
                bytes.iter_mut().skip(length).for_each(|byte| *byte = 0);
                object.metadata.set(Noted { flags: argument.u64(8)?, tiling: argument.u64(16)?, bytes, length });
                Ok(())
            }
            METADATA_GET => {
                let noted = object.metadata.get();
                argument.put(8, &noted.flags.to_ne_bytes())?;
                argument.put(16, &noted.tiling.to_ne_bytes())?;
                argument.put_u32(24, u32::try_from(noted.length).unwrap_or(0))?;
                argument.put(28, noted.bytes.get(..noted.length).unwrap_or_default())
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// `{handle: u32, flags: u32, timeout: u64}`, answered by `{status: u32, domain: u32}`: nothing
    /// is under way, ever.
    pub(super) fn wait_idle(&self, argument: &Argument<'_>) -> Result {
        let object = self.object(argument.u32(0)?)?;
        argument.put_u32(0, 0)?;
        argument.put_u32(4, object.wanted.domains)
    }

    /// `{handle: u32, op: u32, value: u64}`.
    pub(super) fn operation(&self, argument: &Argument<'_>) -> Result {
        let object = self.object(argument.u32(0)?)?;
        match argument.u32(4)? {
            OP_GET_CREATE_INFO => {
                let Wanted { bytes, alignment, domains, flags } = object.wanted;
                let info = Argument { caller: argument.caller, at: argument.u64(8)? };
                for (offset, value) in (0..).step_by(8).zip([bytes, alignment, domains.into(), flags]) {
                    info.put(offset, &value.to_ne_bytes())?;
                }
                Ok(())
            }
            // A wish; memory stays where it is.
            OP_SET_PLACEMENT => Ok(()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// `{handle: u32, flags: u32, fd: i32}`: a file of an object.
    pub(super) fn export(&self, argument: &Argument<'_>) -> Result {
        let object = self.object(argument.u32(0)?)?;
        let buffer = DmaBuf::of_gem(
            object.backing.share(),
            object.wanted.bytes,
            self.device.id(),
            object.kfd_flags(),
            object.metadata.clone(),
        );
        let file = self.kfd.files().export(&os::arc(buffer)?, argument.u32(4)?)?;
        argument.put_u32(8, file)
    }

    /// The same the other way round. The same object has the same handle.
    pub(super) fn import(&self, argument: &Argument<'_>) -> Result {
        let buffer = self.kfd.files().import(argument.u32(8)?)?;
        let known = {
            let entries = self.entries.lock();
            let mut all = entries.iter();
            all.find(|(_, entry)| entry.object.backing.is(buffer.backing())).map(|(number, _)| number.wrapping_add(1))
        };
        if let Some(handle) = known {
            return argument.put_u32(0, handle);
        }
        let domains = if matches!(buffer.backing(), Backing::Vram(_)) { DOMAIN_VRAM } else { DOMAIN_GTT };
        let wanted = Wanted { bytes: buffer.bytes(), alignment: PAGE, domains, flags: 0 };
        let handle = self.enter(buffer.backing().share(), wanted, buffer.metadata().clone())?;
        argument.put_u32(0, handle).inspect_err(|_| {
            let _ = self.close(handle);
        })
    }

    /// `{handle: u32, pad: u32, operation: u32, flags: u32, va_address: u64, offset_in_bo: u64,
    /// map_size: u64}`.
    pub(super) fn address(&self, argument: &Argument<'_>, bound: Option<&Arc<Process>>) -> Result {
        let (handle, operation, flags) = (argument.u32(0)?, argument.u32(8)?, argument.u32(12)?);
        let (va, offset, bytes) = (argument.u64(16)?, argument.u64(24)?, argument.u64(32)?);
        if !(FIRST_VA..VA_END).contains(&va) || flags & !VA_FLAGS != 0 {
            return Err(Errno::EINVAL.into());
        }
        if flags & VA_PARTIALLY_RESIDENT != 0 || matches!(operation, VA_CLEAR | VA_REPLACE) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        match operation {
            VA_MAP => self.map(handle, flags, va, offset, bytes, bound.ok_or(Errno::EINVAL)?),
            VA_UNMAP => self.unmap(handle, va),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn map(&self, handle: u32, flags: u32, va: u64, offset: u64, bytes: u64, process: &Arc<Process>) -> Result {
        let object = self.object(handle)?;
        let end = offset.checked_add(bytes).ok_or(Errno::EINVAL)?;
        let span = GpuSpan::new(GpuVa(va), bytes).filter(|span| span.is_whole_pages()).ok_or(Errno::EINVAL)?;
        if bytes == 0 || offset % PAGE != 0 || end > object.wanted.bytes || span.end().0 > VA_END {
            return Err(Errno::EINVAL.into());
        }
        let mut access = object.kfd_flags();
        if flags & VA_WRITEABLE != 0 {
            access |= kfd_abi::ALLOC_MEM_FLAGS_WRITABLE;
        }
        if flags & VA_EXECUTABLE != 0 {
            access |= kfd_abi::ALLOC_MEM_FLAGS_EXECUTABLE;
        }
        let bo = map_gem(process, &self.device, &object.backing, offset / PAGE, span, access)?;
        let map = Map { va, bo, process: process.clone() };
        let mut entries = self.entries.lock();
        let entry = number(handle).and_then(|number| entries.get_mut(number));
        // Another thread may have closed the handle, and it may be another object's.
        let entered = match entry.filter(|entry| Arc::ptr_eq(&entry.object, &object)) {
            Some(entry) => entry.maps.reserve(1).map(|()| entry),
            None => Err(Errno::ENOENT.into()),
        };
        match entered {
            Ok(entry) => {
                entry.maps.push_reserved(map);
                Ok(())
            }
            Err(error) => {
                drop(entries);
                map.end(self.device.index());
                Err(error)
            }
        }
    }

    /// ENOENT where the object has no mapping that begins there.
    fn unmap(&self, handle: u32, va: u64) -> Result {
        let map = {
            let mut entries = self.entries.lock();
            let entry = number(handle).and_then(|number| entries.get_mut(number)).ok_or(Errno::ENOENT)?;
            let at = entry.maps.iter().position(|map| map.va == va).ok_or(Errno::ENOENT)?;
            entry.maps.swap_remove(at)
        };
        map.end(self.device.index());
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let mut entries = core::mem::take(&mut *self.entries.lock());
        // Also the mappings of a process that lives on.
        for entry in entries.iter_mut() {
            let maps = core::mem::take(&mut entry.maps);
            maps.into_iter().for_each(|map| map.end(self.device.index()));
        }
        self.offsets.clear();
    }
}

/// Maps pages of a DRM object at GPU addresses that nothing has: an object of this process's
/// without a handle. EINVAL where there is something, as amdgpu says.
fn map_gem(
    process: &Arc<Process>,
    device: &Arc<Device>,
    backing: &Backing,
    first_page: u64,
    span: GpuSpan,
    flags: u32,
) -> Result<Arc<Bo>> {
    let vm = process.vm(device.index())?;
    process.svm_work().sweep()?;
    let number = memory::reserve_number(process)?;
    let (device, backing, gpus) = (device.clone(), backing.share(), process.gpu_count());
    let spec = Spec {
        number,
        device,
        span,
        flags,
        mmap_offset: 0,
        backing,
        first_page,
        charge: None,
        gpus,
        origin: Origin::Gem,
    };
    let bo = memory::publish(process, number, Bo::new(spec)).map_err(|error| match error.errno {
        Errno::EADDRINUSE => Errno::EINVAL.into(),
        _ => error,
    })?;
    if let Err(error) = bo.map_with_room(&vm, process.deadline()) {
        let _ = bo.free();
        process.forget(&bo);
        return Err(error);
    }
    Ok(bo)
}
