// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Allocations, and the program's own memory as blobs.
//!
//! Memory that the program maps is a blob of the host. Memory that it registers (USERPTR) has to
//! become a blob of the guest, and a stock kernel makes no blob of pages that are there. So a blob
//! is made, gets the contents, and is mapped over the program's range. Addresses and contents stay
//! the same, and the host knows the pages as a scatter list. The pages stay when the registration
//! ends, as long as the program maps them. A second registration finds its blob already.
//!
//! The blobs' places are not remembered but read from `/proc/self/maps` at each registration. A
//! program, and its C library even more, unmaps and moves memory without notice. Blobs that nothing
//! maps and nothing uses are closed then.
//!
//! Limits of replaced memory, all of them the stock kernel's:
//! - It is shared with forked children, and not copied for them. `madvise(MADV_DONTNEED)` does not
//!   empty it.
//! - System calls that pin pages refuse it (O_DIRECT, `process_vm_readv`): EFAULT.
//! - What another thread writes to the range just while it is replaced can be lost.
//! - Unmapping it does not end a registration; the GPU keeps the pages.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::io;

use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, UserptrRangesHeader, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_USERPTR,
    ALLOC_MEM_FLAGS_USERPTR_BATCH, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_uapi::mmap as abi;
use vkfd_uapi::pod::{slice_as_bytes_mut, Pod};

use super::super::{size, Blob, Transport};
use super::maps::{self, Mapping};
use super::{access, address, errno, Process};
use crate::protocol::forward::{BlobKind, Piece, MAX_PIECES};
use crate::protocol::PAGE;

/// The program's mmap offsets of allocations begin here, as DRM's do.
const FIRST_OFFSET: u64 = 4 << 30;
const DOORBELL_BYTES: u64 = 8192;
/// Most ranges of a registration.
const MAX_RANGES: usize = 65_536;

/// An allocation.
struct Object {
    /// What the program maps.
    offset: Option<u64>,
    /// Of the host's memory.
    blob: Option<Blob>,
    /// Resources of the guest's memory.
    uses: Vec<u32>,
}

/// Guest memory that replaced the program's.
struct Replaced {
    blob: Blob,
    users: usize,
}

/// What a process has.
#[derive(Default)]
pub struct Memory {
    /// By their handles.
    objects: HashMap<u64, Object>,
    /// By their offsets: bytes, and the blob unless the processors do not reach it.
    offsets: BTreeMap<u64, (u64, Option<Blob>)>,
    next_offset: u64,
    replaced: HashMap<u32, Replaced>,
    doorbells: HashMap<u32, Blob>,
    registers: Option<Blob>,
}

fn structure<T: Pod>(bytes: &[u8]) -> T {
    let mut value = T::zeroed();
    let length = value.as_bytes().len().min(bytes.len());
    value.as_bytes_mut()[..length].copy_from_slice(&bytes[..length]);
    value
}

impl Process {
    /// An allocation, in any of its forms. What came of it and the argument as it is then; an errno
    /// before anything was asked.
    ///
    /// # Safety
    /// As for ioctl.
    pub(super) unsafe fn alloc(&self, command: Command, bytes: Vec<u8>) -> Result<(Result<(), i32>, Vec<u8>), i32> {
        let batch = command == ALLOC_MEMORY_OF_GPU_BATCH;
        let (mut args, ranges) = if batch {
            let args: AllocMemoryOfGpuBatchArgs = structure(&bytes);
            if args.flags & ALLOC_MEM_FLAGS_USERPTR == 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if args.num_ranges == 0 || args.ranges_ptr == 0 || args.pad != 0 {
                return Err(libc::EINVAL);
            }
            // SAFETY: reading what is not there is an error.
            let ranges = unsafe { read_ranges(args.ranges_ptr, args.num_ranges)? };
            let AllocMemoryOfGpuBatchArgs { va_addr, total_size: size, gpu_id, flags, .. } = args;
            (AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset: 0, gpu_id, flags }, Some(ranges))
        } else {
            let args: AllocMemoryOfGpuArgs = structure(&bytes);
            let user = args.flags & ALLOC_MEM_FLAGS_USERPTR != 0;
            let ranges = if args.flags & ALLOC_MEM_FLAGS_USERPTR_BATCH != 0 {
                if !user {
                    return Err(libc::EOPNOTSUPP);
                }
                let mut header = UserptrRangesHeader::zeroed();
                // SAFETY: reading what is not there is an error.
                unsafe { access::read(address(args.mmap_offset), header.as_bytes_mut())? };
                if header.num_ranges == 0 || header.reserved != 0 {
                    return Err(libc::EINVAL);
                }
                // SAFETY: as above.
                Some(unsafe { read_ranges(args.mmap_offset + 8, header.num_ranges)? })
            } else {
                user.then(|| vec![UserptrRange { start: args.mmap_offset, size: args.size }])
            };
            (args, ranges)
        };
        args.flags &= !ALLOC_MEM_FLAGS_USERPTR_BATCH;
        let done = match ranges {
            // SAFETY: promised by the caller.
            Some(ranges) => unsafe { self.register(&mut args, &ranges) },
            None => self.alloc_backed(&mut args),
        };
        if batch {
            let args = AllocMemoryOfGpuBatchArgs { handle: args.handle, ..structure(&bytes) };
            return Ok((done, args.as_bytes().to_vec()));
        }
        // The flags as the program had them.
        args.flags = structure::<AllocMemoryOfGpuArgs>(&bytes).flags;
        Ok((done, args.as_bytes().to_vec()))
    }

    fn alloc_backed(&self, args: &mut AllocMemoryOfGpuArgs) -> Result<(), i32> {
        if self.transport.shared_machine().is_some() {
            return self.alloc_shared(args);
        }
        let reached = args.flags & ALLOC_MEM_FLAGS_GTT != 0
            || args.flags & ALLOC_MEM_FLAGS_VRAM != 0 && args.flags & ALLOC_MEM_FLAGS_PUBLIC != 0;
        let kept = args.flags & (ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_VRAM) != 0;
        let bytes = args.size.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0).ok_or(libc::EINVAL)?;
        let mut memory = self.lock();
        let mut blob = None;
        let mut pieces = Vec::new();
        if reached {
            let made = self.transport.host_blob(BlobKind::Memory, bytes).map_err(|error| match errno(&error) {
                libc::ENOSPC | libc::EIO => libc::ENOMEM,
                other => other,
            })?;
            blob = Some(made);
            pieces.push(Piece { resource: made.resource, offset: 0, bytes });
        }
        match self.ask_for_memory(args.as_bytes(), pieces) {
            Ok(answer) => {
                let made: AllocMemoryOfGpuArgs = structure(&answer);
                (args.handle, args.mmap_offset) = (made.handle, made.mmap_offset);
                let mut offset = None;
                if kept {
                    let at = memory.next_offset.max(FIRST_OFFSET);
                    memory.next_offset = at + bytes;
                    memory.offsets.insert(at, (bytes, blob));
                    args.mmap_offset = at;
                    offset = Some(at);
                }
                memory.objects.insert(made.handle, Object { offset, blob, uses: Vec::new() });
                Ok(())
            }
            Err((errno, _)) => {
                if let Some(blob) = blob {
                    self.transport.close(&blob);
                }
                Err(errno)
            }
        }
    }

    /// Memory of the program.
    ///
    /// # Safety
    /// Its pages are replaced.
    unsafe fn register(&self, args: &mut AllocMemoryOfGpuArgs, ranges: &[UserptrRange]) -> Result<(), i32> {
        let mut memory = self.lock();
        let write = args.flags & ALLOC_MEM_FLAGS_WRITABLE != 0;
        // SAFETY: forwarded to the caller.
        let pieces = unsafe { memory.pieces(&*self.transport, ranges, write)? };
        let mut uses: Vec<u32> = pieces.iter().map(|piece| piece.resource).collect();
        uses.sort_unstable();
        uses.dedup();
        match self.ask_for_memory(args.as_bytes(), pieces) {
            Ok(answer) => {
                let made: AllocMemoryOfGpuArgs = structure(&answer);
                args.handle = made.handle;
                for resource in &uses {
                    if let Some(replaced) = memory.replaced.get_mut(resource) {
                        replaced.users += 1;
                    }
                }
                memory.objects.insert(made.handle, Object { offset: None, blob: None, uses });
                Ok(())
            }
            Err((errno, _)) => Err(errno),
        }
    }
}

unsafe fn read_ranges(at: u64, count: u32) -> Result<Vec<UserptrRange>, i32> {
    let count = count as usize;
    if count > MAX_RANGES {
        return Err(libc::EINVAL);
    }
    let mut ranges = vec![UserptrRange::zeroed(); count];
    // SAFETY: forwarded to the caller.
    unsafe { access::read(address(at), slice_as_bytes_mut(&mut ranges))? };
    Ok(ranges)
}

impl Memory {
    /// What an allocation's freeing leaves behind.
    pub(super) fn freed(&mut self, transport: &dyn Transport, argument: &[u8]) {
        let args: FreeMemoryOfGpuArgs = structure(argument);
        let Some(object) = self.objects.remove(&args.handle) else { return };
        if let Some(offset) = object.offset {
            self.offsets.remove(&offset);
        }
        if let Some(blob) = object.blob {
            transport.close(&blob);
        }
        for resource in object.uses {
            if let Some(replaced) = self.replaced.get_mut(&resource) {
                replaced.users -= 1;
            }
        }
    }

    /// What an mmap of `bytes` at `offset` shows; `None` for memory that the processors do not
    /// reach. EINVAL for nothing.
    pub(super) fn shown(&mut self, transport: &dyn Transport, offset: u64, bytes: u64) -> Result<Option<Blob>, i32> {
        let made = |blob: io::Result<Blob>| blob.map_err(|error| errno(&error));
        match abi::mmap_type(offset) {
            abi::MMAP_TYPE_DOORBELL => {
                let gpu = abi::gpu_id(offset);
                let blob = match self.doorbells.get(&gpu) {
                    Some(blob) => *blob,
                    None => {
                        let blob = made(transport.host_blob(BlobKind::Doorbells(gpu), DOORBELL_BYTES))?;
                        self.doorbells.insert(gpu, blob);
                        blob
                    }
                };
                if bytes > DOORBELL_BYTES {
                    return Err(libc::EINVAL);
                }
                Ok(Some(blob))
            }
            // Nobody may look at slots of events, and the trap handler's memory is not there.
            abi::MMAP_TYPE_EVENTS | abi::MMAP_TYPE_RESERVED_MEM => Err(libc::EINVAL),
            _ if offset >> abi::MMAP_GPU_ID_SHIFT != 0 => {
                let blob = match self.registers {
                    Some(blob) => blob,
                    None => made(transport.host_blob(BlobKind::Page, PAGE))?,
                };
                self.registers = Some(blob);
                if bytes > PAGE {
                    return Err(libc::EINVAL);
                }
                Ok(Some(blob))
            }
            _ => {
                // A blob is mapped as a whole.
                let (whole, blob) = *self.offsets.get(&offset).ok_or(libc::EINVAL)?;
                match bytes.checked_next_multiple_of(PAGE) {
                    Some(bytes) if bytes == whole => Ok(blob),
                    _ => Err(libc::EINVAL),
                }
            }
        }
    }

    /// The program's ranges as pieces of resources. EFAULT for a hole and for memory that may not
    /// be accessed like that, EOPNOTSUPP for memory that it shares with others.
    ///
    /// # Safety
    /// Pages of the ranges are replaced.
    unsafe fn pieces(
        &mut self,
        transport: &dyn Transport,
        ranges: &[UserptrRange],
        write: bool,
    ) -> Result<Vec<Piece>, i32> {
        for range in ranges {
            let whole = range.start != 0 && range.start % PAGE == 0 && range.size != 0 && range.size % PAGE == 0;
            if !whole || range.start.checked_add(range.size).is_none() {
                return Err(libc::EINVAL);
            }
        }
        let mappings = maps::all().map_err(|error| errno(&error))?;
        self.close_unused(transport, &mappings);
        let mut plain = Vec::new();
        for range in ranges {
            let there = maps::within(&mappings, range.start, range.start + range.size).ok_or(libc::EFAULT)?;
            for (mapping, start, end) in there {
                let wanted = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
                if mapping.protection & wanted != wanted || mapping.special {
                    return Err(libc::EFAULT);
                }
                let offset = mapping.offset + (start - mapping.start);
                // What was moved here is as other memory: where it was, it has gone.
                let moved = transport.shared_machine().is_some_and(|machine| !machine.is_in_place(start, offset));
                match transport.find(mapping.file, offset) {
                    Some(found) if found.guest && moved => plain.push((start, end, mapping.protection)),
                    Some(found) if found.guest => {}
                    // The host's memory, whose pages no kernel gives out.
                    Some(_) => return Err(libc::EFAULT),
                    None if mapping.shared && !transport.is_private(mapping.file) => return Err(libc::EOPNOTSUPP),
                    None => plain.push((start, end, mapping.protection)),
                }
            }
        }
        // A list may name a page twice.
        plain.sort_unstable();
        let mut spans: Vec<(u64, u64, i32)> = Vec::new();
        for (start, end, protection) in plain {
            match spans.last_mut() {
                Some(last) if start <= last.1 && protection == last.2 => last.1 = last.1.max(end),
                _ => spans.push((start, end, protection)),
            }
        }
        let new = !spans.is_empty();
        for (start, end, protection) in spans {
            // SAFETY: forwarded to the caller.
            let blob = unsafe { replace_safely(transport, start, end, protection) }.map_err(|error| errno(&error))?;
            self.replaced.insert(blob.resource, Replaced { blob, users: 0 });
        }
        let mappings = if new { maps::all().map_err(|error| errno(&error))? } else { mappings };
        resolve(transport, &mappings, ranges)
    }

    /// Closes blobs that no registration uses and nothing maps.
    fn close_unused(&mut self, transport: &dyn Transport, mappings: &[Mapping]) {
        let mut seen = HashSet::new();
        for mapping in mappings.iter().filter(|mapping| mapping.shared) {
            let (mut at, end) = (mapping.offset, mapping.offset + (mapping.end - mapping.start));
            while at < end {
                let Some(found) = transport.find(mapping.file, at) else { break };
                seen.insert(found.resource);
                at += found.bytes;
            }
        }
        self.replaced.retain(|resource, replaced| {
            let keep = replaced.users > 0 || seen.contains(resource);
            if !keep {
                transport.close(&replaced.blob);
            }
            keep
        });
    }

    /// Gives all of it up. The memory that replaced the program's stays there: its contents are the
    /// program's, and the host forgets it with the context.
    pub(super) fn clear(&mut self, transport: &dyn Transport) {
        let objects = self.objects.drain().filter_map(|(_, object)| object.blob);
        let others = self.doorbells.drain().map(|(_, blob)| blob).chain(self.registers.take());
        for blob in objects.chain(others) {
            transport.close(&blob);
        }
        self.replaced.clear();
        self.offsets.clear();
    }
}

/// The ranges as pieces, all of which are there.
fn resolve(transport: &dyn Transport, mappings: &[Mapping], ranges: &[UserptrRange]) -> Result<Vec<Piece>, i32> {
    let mut pieces: Vec<Piece> = Vec::new();
    for range in ranges {
        for (mapping, start, end) in
            maps::within(mappings, range.start, range.start + range.size).ok_or(libc::EFAULT)?
        {
            let mut at = start;
            while at < end {
                let found = transport.find(mapping.file, mapping.offset + (at - mapping.start)).ok_or(libc::EFAULT)?;
                let bytes = found.bytes.min(end - at);
                match pieces.last_mut() {
                    Some(last) if last.resource == found.resource && last.offset + last.bytes == found.offset => {
                        last.bytes += bytes;
                    }
                    _ => pieces.push(Piece { resource: found.resource, offset: found.offset, bytes }),
                }
                at += bytes;
            }
        }
    }
    if pieces.len() > MAX_PIECES {
        return Err(libc::ENOMEM);
    }
    Ok(pieces)
}

/// Most of its stack that a thread writes in [`replace`].
const FRAMES: u64 = 256 << 10;

/// As [`replace`], also where that is the stack of the calling thread: what it writes there between
/// the copy and the mapping would be lost, so another thread does it.
///
/// # Safety
/// As for [`replace`].
unsafe fn replace_safely(transport: &dyn Transport, start: u64, end: u64, protection: i32) -> io::Result<Blob> {
    let here = std::ptr::from_ref(&protection).expose_provenance() as u64;
    if start > here + PAGE || end < here.saturating_sub(FRAMES) {
        // SAFETY: forwarded to the caller.
        return unsafe { replace(transport, start, end, protection) };
    }
    // SAFETY: forwarded to the caller; the calling thread waits.
    vkfd_rt::thread::elsewhere("vkfd-replace", || unsafe { replace(transport, start, end, protection) })?
}

/// Replaces `[start, end)` by a blob with the same contents.
///
/// # Safety
/// As for mmap with MAP_FIXED there.
unsafe fn replace(transport: &dyn Transport, start: u64, end: u64, protection: i32) -> io::Result<Blob> {
    let bytes = size(end - start);
    let blob = transport.guest_blob(end - start)?;
    // SAFETY: at an address of the kernel's choice.
    let copied = unsafe { transport.map(&blob, std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE) };
    let copied = copied.and_then(|copy| {
        // From here to the mapping nothing is allocated: the range may be the very heap that
        // allocations come from. SAFETY: the new mapping is as long and nobody else's. What is
        // replaced is the caller's, and what vanishes meanwhile is an error.
        unsafe {
            let contents = vkfd_raw::copy(copy.cast(), address(start).cast(), bytes);
            let mapped = match contents {
                Ok(()) => transport.map(&blob, address(start), protection).map(|_| ()),
                Err(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            };
            if mapped.is_ok() {
                touch(address(start), bytes);
            }
            libc::munmap(copy, bytes);
            mapped
        }
    });
    if let Err(error) = copied {
        transport.close(&blob);
        return Err(error);
    }
    Ok(blob)
}

/// Has every page of a new mapping be there. Linux's virtio-gpu finds the page of a fault by its
/// distance from the mapping's start, which changes once a program has unmapped a part of it.
///
/// # Safety
/// The range is mapped readable.
unsafe fn touch(at: *mut c_void, bytes: usize) {
    for page in (0..bytes).step_by(size(PAGE)) {
        // SAFETY: promised by the caller.
        unsafe { at.cast::<u8>().wrapping_add(page).read_volatile() };
    }
}
