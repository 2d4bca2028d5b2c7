// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A contiguous range of GPU memory: VRAM, GTT, or CPU memory registered in place.
//!
//! Mechanism: one reserved address range, and the buffer objects (BOs) that fill it from its start
//! without a gap. There is one object, or one for each CPU range if the driver has no batch form.
//! Mapping and unmapping act on all of them and on all GPUs of the set, or on none.
//!
//! Lock: `mapped` (the GPUs that the buffer is mapped on) is held during MAP and UNMAP, so that two
//! threads cannot interleave them.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use vkfd_uapi::batch::UserptrRange;
use vkfd_uapi::command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs, ALLOC_MEM_FLAGS_COHERENT,
    ALLOC_MEM_FLAGS_EXECUTABLE, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_NO_SUBSTITUTE, ALLOC_MEM_FLAGS_PUBLIC,
    ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};

use crate::address::{index, CpuVa, GpuId, GpuVa, Handle, PAGE};
use crate::client::{Client, GpuSet};
use crate::error::{ClientError, Errno, Result};
use crate::transport::MmapFile;
use crate::va::Reservation;

/// Where a buffer's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Memory of a GPU.
    Vram(GpuId),
    /// System memory of the driver.
    Gtt,
    /// The process's own memory, registered.
    Userptr,
}

/// What [`Client::alloc`] allocates.
#[derive(Clone, Debug)]
pub struct AllocOptions {
    /// VRAM or GTT.
    pub kind: BufferKind,
    /// Bytes; rounded up to pages.
    pub bytes: u64,
    /// GPUs to map it on.
    pub gpus: GpuSet,
    /// Map it for the CPU too, at the same address.
    pub cpu_map: bool,
    /// The GPU may execute from it.
    pub executable: bool,
    /// Fine-grained coherence with the CPU.
    pub coherent: bool,
}

impl AllocOptions {
    /// VRAM of one GPU, mapped on all GPUs and for the CPU.
    #[must_use]
    pub fn vram(gpu: GpuId, bytes: u64) -> Self {
        Self { kind: BufferKind::Vram(gpu), coherent: false, ..Self::gtt(bytes) }
    }

    /// Coherent system memory, mapped on all GPUs and for the CPU.
    #[must_use]
    pub fn gtt(bytes: u64) -> Self {
        let kind = BufferKind::Gtt;
        Self { kind, bytes, gpus: GpuSet::All, cpu_map: true, executable: false, coherent: true }
    }
}

/// A BO of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bo {
    pub(crate) handle: Handle,
    /// Where the caller's list had its range; only of interest with more than one BO.
    pub(crate) range: Option<(CpuVa, u64)>,
}

/// A contiguous range of GPU memory, from [`Client::alloc`] (the GPU's or the driver's memory) or
/// [`Client::register_ranges`] (the process's own, where it lies). Dropping it unmaps and frees it;
/// [`Buffer::free`] does so and reports errors.
#[derive(Debug)]
pub struct Buffer {
    client: Client,
    kind: BufferKind,
    bytes: u64,
    bos: Vec<Bo>,
    mapped: Mutex<Vec<GpuId>>,
    /// Of registered memory: where each range of the list ends, relative to the start.
    ends: Vec<u64>,
    cpu_mapped: bool,
    // Given back after the BOs are freed; kept for ever if one cannot be, because the GPU still
    // uses its addresses.
    reservation: ManuallyDrop<Reservation>,
}

impl Client {
    /// Allocates VRAM or GTT memory.
    ///
    /// # Errors
    ///
    /// What the calls failed with; nothing is left behind then.
    pub fn alloc(&self, options: &AllocOptions) -> Result<Buffer> {
        let gpus = self.resolve(&options.gpus)?;
        let (gpu, kind) = match options.kind {
            BufferKind::Vram(gpu) => (self.gpu(gpu)?.id, ALLOC_MEM_FLAGS_VRAM),
            BufferKind::Gtt => (gpus[0], ALLOC_MEM_FLAGS_GTT),
            BufferKind::Userptr => return Err(ClientError::Invalid("registered memory is not allocated".into())),
        };
        let flags = kind
            | ALLOC_MEM_FLAGS_WRITABLE
            | ALLOC_MEM_FLAGS_NO_SUBSTITUTE
            | flag(options.executable, ALLOC_MEM_FLAGS_EXECUTABLE)
            | flag(options.coherent, ALLOC_MEM_FLAGS_COHERENT)
            | flag(options.cpu_map && kind == ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_PUBLIC);
        let reservation = Reservation::new(options.bytes, &self.aperture())?;
        let mut args = AllocMemoryOfGpuArgs {
            va_addr: reservation.gpu_va().0,
            size: reservation.bytes(),
            handle: 0,
            mmap_offset: 0,
            gpu_id: gpu.0,
            flags,
        };
        self.memory_ioctl(command::ALLOC_MEMORY_OF_GPU, &mut args)?;
        let bo = Bo { handle: Handle(args.handle), range: None };
        let mut buffer = Buffer::new(self, options.kind, options.bytes, vec![bo], reservation);
        if options.cpu_map {
            buffer.map_cpu(gpu, args.mmap_offset)?;
        }
        buffer.map_on(&gpus)?;
        Ok(buffer)
    }
}

pub(crate) fn flag(set: bool, bit: u32) -> u32 {
    if set {
        bit
    } else {
        0
    }
}

impl Buffer {
    pub(crate) fn new(client: &Client, kind: BufferKind, bytes: u64, bos: Vec<Bo>, reservation: Reservation) -> Self {
        Self {
            client: client.clone(),
            kind,
            bytes,
            bos,
            mapped: Mutex::new(Vec::new()),
            ends: Vec::new(),
            cpu_mapped: false,
            reservation: ManuallyDrop::new(reservation),
        }
    }

    fn map_cpu(&mut self, gpu: GpuId, offset: u64) -> Result {
        // SAFETY: the addresses are reserved for this buffer, which has told nobody of them yet.
        let at = unsafe {
            self.client.transport().mmap(
                MmapFile::Render(gpu),
                self.reservation.start().as_ptr(),
                index(self.reservation.bytes()),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                offset,
            )
        };
        let at = at.inspect_err(|_| self.reservation.doubt()).map_err(ClientError::call("mmap (VRAM or GTT)"))?;
        debug_assert_eq!(at, self.reservation.start().as_ptr());
        // A child would write to the parent's device memory, as if it were its own.
        // SAFETY: advice about a mapping that this buffer owns.
        unsafe { libc::madvise(at, index(self.reservation.bytes()), libc::MADV_DONTFORK) };
        self.cpu_mapped = true;
        Ok(())
    }

    /// Its first GPU address.
    #[must_use]
    pub fn gpu_va(&self) -> GpuVa {
        self.reservation.gpu_va()
    }

    /// Notes the list that it was registered with.
    pub(crate) fn with_ranges(mut self, ranges: &[UserptrRange]) -> Self {
        let mut end = 0_u64;
        let ends = ranges.iter().map(|range| {
            end = end.wrapping_add(range.size);
            end
        });
        self.ends = ends.collect();
        self
    }

    /// Which range of the list that was registered is at a GPU address, and how far into it: of a
    /// [`ClientError::GpuFault`] for instance. `None` for an address outside of the buffer, and for
    /// a buffer that was allocated.
    #[must_use]
    pub fn range_at(&self, va: GpuVa) -> Option<(usize, u64)> {
        let offset = va.0.checked_sub(self.gpu_va().0)?;
        let range = self.ends.partition_point(|end| *end <= offset);
        let start = range.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(range)?;
        Some((range, offset - start))
    }

    /// Its size in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no byte; never true, because such a buffer cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where its memory is.
    #[must_use]
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// The handles of its BOs, in the order of their addresses: one, or one per range without a
    /// batch form.
    pub fn handles(&self) -> impl ExactSizeIterator<Item = Handle> + '_ {
        self.bos.iter().map(|bo| bo.handle)
    }

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where the CPU sees it (VRAM and GTT with `cpu_map`): the same address as the GPU's.
    ///
    /// The GPU writes there at any time, so it must be accessed by atomic or volatile operations or
    /// copies, never by reference.
    #[must_use]
    pub fn cpu_ptr(&self) -> Option<NonNull<u8>> {
        self.cpu_mapped.then(|| self.reservation.start().cast())
    }

    /// Copies bytes into CPU-mapped memory.
    ///
    /// # Errors
    ///
    /// [`ClientError::Invalid`] when it is not CPU-mapped or the bytes do not fit.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result {
        let to = self.cpu_span(at, bytes.len())?;
        // SAFETY: the span is inside the mapping, which lives as long as `self`; no reference to it
        // exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of CPU-mapped memory.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result {
        let from = self.cpu_span(at, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn cpu_span(&self, at: u64, len: usize) -> Result<NonNull<u8>> {
        let Some(base) = self.cpu_ptr() else {
            return Err(ClientError::Invalid("the buffer is not mapped for the CPU".into()));
        };
        let end = u64::try_from(len).ok().and_then(|len| at.checked_add(len));
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ClientError::Invalid(format!("{len:#x} bytes at {at:#x} are outside of the buffer")));
        }
        // SAFETY: `at` is within the mapping, which is one allocation.
        Ok(unsafe { base.add(index(at)) })
    }

    /// The GPUs it is mapped on.
    #[must_use]
    pub fn mapped_on(&self) -> Vec<GpuId> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Maps it on GPUs where it is not mapped yet; on failure it is mapped as before.
    ///
    /// # Errors
    ///
    /// What the call failed with.
    pub fn map(&self, gpus: &GpuSet) -> Result {
        self.map_on(&self.client.resolve(gpus)?)
    }

    pub(crate) fn map_on(&self, gpus: &[GpuId]) -> Result {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<_> = gpus.iter().copied().filter(|gpu| !mapped.contains(gpu)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for (i, bo) in self.bos.iter().enumerate() {
            let mut args = map_args(bo.handle, &new);
            if let Err(error) = self.client.memory_ioctl(command::MAP_MEMORY_TO_GPU, &mut args) {
                let done = usize::try_from(args.n_success).unwrap_or(0).min(new.len());
                self.undo_map(bo, &new[..done]);
                for earlier in self.bos[..i].iter().rev() {
                    self.undo_map(earlier, &new);
                }
                return Err(crate::call::name_range(error, i, bo.range));
            }
        }
        mapped.extend(new);
        Ok(())
    }

    fn undo_map(&self, bo: &Bo, gpus: &[GpuId]) {
        if let Err(error) = self.unmap_bo(bo, gpus) {
            tracing::warn!("undoing a map of {}: {error}", bo.handle);
        }
    }

    /// Unmaps it from GPUs where it is mapped. Accesses by the GPU fault from then on.
    ///
    /// # Errors
    ///
    /// What the first failed call failed with; the buffer still counts as mapped then, and
    /// unmapping can be tried again.
    pub fn unmap(&self, gpus: &GpuSet) -> Result {
        let gpus = self.client.resolve(gpus)?;
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = mapped.iter().copied().filter(|gpu| gpus.contains(gpu)).collect();
        self.unmap_all(&gone)?;
        mapped.retain(|gpu| !gone.contains(gpu));
        Ok(())
    }

    fn unmap_all(&self, gpus: &[GpuId]) -> Result {
        self.bos.iter().rev().try_for_each(|bo| self.unmap_bo(bo, gpus))
    }

    fn unmap_bo(&self, bo: &Bo, gpus: &[GpuId]) -> Result {
        if gpus.is_empty() {
            return Ok(());
        }
        let MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices, n_success } = map_args(bo.handle, gpus);
        let mut args = UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr, n_devices, n_success };
        loop {
            match self.client.memory_ioctl(command::UNMAP_MEMORY_FROM_GPU, &mut args) {
                // A GPU that does not have it, after a call that came to it and failed later.
                Err(error) if error.errno() == Some(Errno::INVAL) && args.n_success < n_devices => {
                    args.n_success += 1;
                    if args.n_success == n_devices {
                        return Ok(());
                    }
                }
                result => return result,
            }
        }
    }

    /// Unmaps it and maps it again on the same GPUs: for a registered buffer whose CPU memory was
    /// unmapped and is there again.
    ///
    /// # Errors
    ///
    /// What the calls failed with; if mapping fails, the buffer is unmapped.
    pub fn revalidate(&self) -> Result {
        let gpus = self.mapped_on();
        if gpus.is_empty() {
            return Ok(());
        }
        self.unmap(&GpuSet::Only(gpus.clone()))?;
        self.map_on(&gpus)
    }

    /// Unmaps and frees it.
    ///
    /// # Errors
    ///
    /// The first error. All objects that can be freed are; the addresses of the others are not used
    /// again.
    pub fn free(mut self) -> Result {
        self.release()
    }

    /// Gives the BOs over to the driver, which frees them when the process closes, and keeps only
    /// their addresses.
    pub(crate) fn into_addresses(mut self) -> Reservation {
        self.bos.clear();
        // SAFETY: `bos` is empty, so `drop` does not touch the reservation any more.
        unsafe { ManuallyDrop::take(&mut self.reservation) }
    }

    fn release(&mut self) -> Result {
        let mapped = std::mem::take(self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut first = Ok(());
        for bo in std::mem::take(&mut self.bos).iter().rev() {
            let mut args = FreeMemoryOfGpuArgs { handle: bo.handle.0 };
            let freed = self
                .unmap_bo(bo, &mapped)
                .and_then(|()| self.client.memory_ioctl(command::FREE_MEMORY_OF_GPU, &mut args));
            first = first.and(freed);
        }
        if first.is_ok() {
            // SAFETY: `bos` is empty from here on, so `drop` does not come here again, and nothing
            // uses the addresses: the BOs are gone.
            unsafe { ManuallyDrop::drop(&mut self.reservation) };
        }
        first
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bos.is_empty() {
            return;
        }
        let at: *const c_void = self.reservation.start().as_ptr();
        if let Err(error) = self.release() {
            tracing::warn!("freeing the buffer at {at:p}: {error}");
        }
    }
}

/// The arguments for all of `gpus`, which must outlive the call.
fn map_args(handle: Handle, gpus: &[GpuId]) -> MapMemoryToGpuArgs {
    const { assert!(size_of::<GpuId>() == size_of::<u32>() && PAGE == 4096) };
    MapMemoryToGpuArgs {
        handle: handle.0,
        device_ids_array_ptr: CpuVa::of(gpus.as_ptr()).0,
        n_devices: u32::try_from(gpus.len()).unwrap_or(u32::MAX),
        n_success: 0,
    }
}
