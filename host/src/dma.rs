// SPDX-License-Identifier: GPL-2.0 OR MIT
//! DMA memory: system memory of the driver's own that GPU, driver and client share (GTT buffers,
//! doorbells, events).
//!
//! A shared mapping, anonymous or of the machine's [`DeviceFile`], with a pinned frame for each
//! page. The client's view is a second mapping of the same pages, made by mremap with an old size
//! of zero. So no file descriptor is held, and the pages live as long as either mapping. 2 MiB and
//! more are aligned to 2 MiB, so that their frames can form huge entries.

use crate::device_file::DeviceFile;
use crate::mm::Mm;
use crate::sys;
use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use vkfd_driver::base::addr::{index, CpuSpan, CpuVa, PhysAddr, HUGE, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::gpuvm::vm::DOORBELL_BYTES;
use vkfd_driver::seams::gpu::DmaMemory;

/// The memory.
pub struct SharedMemory {
    mm: &'static Mm,
    span: CpuSpan,
    pages: Box<[PhysAddr]>,
    /// The file it is in, and where.
    file: Option<(Arc<DeviceFile>, u64)>,
}

impl SharedMemory {
    /// Zeroed memory of `bytes`, rounded up to pages, in `file` if there is one.
    ///
    /// # Errors
    /// EINVAL for nothing; ENOMEM.
    pub fn new(mm: &'static Mm, file: Option<&Arc<DeviceFile>>, bytes: u64) -> Result<Self> {
        let bytes = bytes.checked_next_multiple_of(PAGE).filter(|b| *b != 0).ok_or(Errno::EINVAL)?;
        let align = if bytes >= HUGE { HUGE } else { PAGE };
        let file = match file {
            Some(file) => Some((file.clone(), file.take(bytes, align).ok_or(Errno::ENOMEM)?)),
            None => None,
        };
        Self::at(mm, file, bytes, align)
    }

    /// As [`SharedMemory::new`], for a process's doorbells.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn doorbells(mm: &'static Mm, file: Option<&Arc<DeviceFile>>) -> Result<Self> {
        Self::at(mm, file.map(|file| (file.clone(), file.take_doorbells())), DOORBELL_BYTES, PAGE)
    }

    fn at(mm: &'static Mm, file: Option<(Arc<DeviceFile>, u64)>, bytes: u64, align: u64) -> Result<Self> {
        let start = map_aligned(bytes, align, file.as_ref()).map_err(|_| Errno::ENOMEM)?;
        // From here on dropping `memory` undoes everything.
        let span = CpuSpan::between(CpuVa(start), CpuVa(start + bytes));
        let mut memory = Self { mm, span, pages: Box::default(), file };
        let mut pages = Vec::new();
        pages.try_reserve_exact(index(bytes / PAGE)).map_err(|_| Errno::ENOMEM)?;
        mm.frames().assign_pinned(memory.span, |at| pages.push(at))?;
        memory.pages = pages.into_boxed_slice();
        Ok(memory)
    }

    /// Where it is in the machine's file, if it is in one.
    pub(crate) fn place(&self) -> Option<u64> {
        self.file.as_ref().map(|(_, at)| *at)
    }

    /// The word at byte `at`, which is inside and a multiple of 8. It is mapped as long as `self`.
    pub(crate) fn word_pointer(&self, at: u64) -> Option<NonNull<u64>> {
        let inside = at % 8 == 0 && at.checked_add(8)? <= self.span.bytes();
        let word = std::ptr::with_exposed_provenance_mut(index(self.span.start().0.wrapping_add(at)));
        NonNull::new(word).filter(|_| inside)
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let word = self.word_pointer(at);
        debug_assert!(word.is_some(), "word at {at:#x} of {:#x} bytes of DMA memory", self.span.bytes());
        // SAFETY: inside the mapping, aligned, mapped as long as `self`; everyone accesses it
        // atomically or from outside Rust.
        word.map(|word| unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// Maps `bytes` from `offset` a second time, at `at` if that is given (whatever is there goes).
    ///
    /// # Errors
    /// EINVAL outside the memory, else what mremap says.
    ///
    /// # Safety
    /// As for mmap: with `at`, nothing that Rust relies on may be there.
    pub unsafe fn map_again(&self, offset: u64, bytes: u64, prot: i32, at: Option<CpuVa>) -> io::Result<CpuVa> {
        let inside =
            offset % PAGE == 0 && bytes != 0 && offset.checked_add(bytes).is_some_and(|end| end <= self.span.bytes());
        if !inside {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let fixed = if at.is_some() { libc::MREMAP_FIXED } else { 0 };
        let flags = libc::MREMAP_MAYMOVE | fixed;
        let from = self.span.start().0 + offset;
        // SAFETY: an old size of zero leaves the old mapping alone; the target is the caller's
        // responsibility.
        let mapped = unsafe { sys::mremap(from, 0, bytes, flags, at.unwrap_or_default().0) }?;
        // SAFETY: the mapping was just made for the caller, which asked for this protection.
        if let Err(error) = unsafe { sys::mprotect(mapped, bytes, prot) } {
            // SAFETY: nobody has seen the mapping yet.
            unsafe { sys::unmap(mapped, bytes) };
            return Err(error);
        }
        Ok(CpuVa(mapped))
    }
}

/// Shared zeroed memory at a multiple of `align`.
fn map_aligned(bytes: u64, align: u64, file: Option<&(Arc<DeviceFile>, u64)>) -> io::Result<u64> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let (flags, fd, offset) = match file {
        Some((file, offset)) => (flags, file.raw(), i64::try_from(*offset).map_err(|_| io::ErrorKind::OutOfMemory)?),
        None => (flags | libc::MAP_ANONYMOUS, -1, 0),
    };
    if align <= PAGE {
        // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
        return unsafe { sys::mmap(0, bytes, prot, flags, fd, offset) };
    }
    let more = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
    let reserved = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping at a place of the kernel's choice touches nothing that exists.
    let area = unsafe { sys::mmap(0, more, libc::PROT_NONE, reserved, -1, 0) }?;
    let start = area.next_multiple_of(align);
    // SAFETY: the target is part of the area that was just reserved.
    let mapped = unsafe { sys::mmap(start, bytes, prot, flags | libc::MAP_FIXED, fd, offset) };
    let kept = if mapped.is_ok() { start..start + bytes } else { area..area };
    for rest in [area..kept.start, kept.end..area + more] {
        if !rest.is_empty() {
            // SAFETY: part of the area that was just reserved, and nobody uses it.
            unsafe { sys::unmap(rest.start, rest.end - rest.start) };
        }
    }
    mapped
}

impl DmaMemory for SharedMemory {
    fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    fn page(&self, page: u64) -> PhysAddr {
        debug_assert!(page < self.span.pages());
        self.pages.get(index(page)).copied().unwrap_or_default()
    }

    fn write_u64(&self, at: u64, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn read_u64(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn mmap_offset(&self) -> Option<u64> {
        self.file.as_ref().map(|(_, offset)| *offset)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // A forked child must not touch the frame table: its lock may be held for ever.
        if self.mm.is_current() {
            self.mm.frames().release(self.span);
        }
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        unsafe { sys::unmap(self.span.start().0, self.span.bytes()) };
        if let Some((file, offset)) = self.file.take().filter(|_| self.mm.is_current()) {
            file.give(offset, self.span.bytes());
        }
    }
}
