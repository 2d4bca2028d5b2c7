// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The PCI device's memory: [`vkfd_wire::Bar`] over the mapped BARs of an ivshmem device. It may
//! have memory outside of them that the machine keeps for it (`memmap=`, or firmware's
//! special-purpose memory).
//!
//! The mappings are this value's own and last as long as it does, which may be longer than the PCI
//! driver is bound. Accesses then go to a device without a process behind it, and do no harm.

use crate::dma::DmaPages;
use core::ptr::NonNull;
use core::sync::atomic::{fence, AtomicU64, Ordering};
use kernel::bindings;
use kernel::error::{code, Result as KernelResult};
use kernel::ffi::{c_int, c_ulong, c_void};
use kernel::pci;
use kernel::time::{delay::fsleep, Delta};
use vkfd_driver::base::addr::{index, PhysAddr, PAGE};
use vkfd_driver::base::errno::{Errno, Result};
use vkfd_driver::seams::gpu::DmaMemory;
use vkfd_driver::os::{self, Arc};
use vkfd_wire::Bar;

unsafe extern "C" {
    fn vkfd_may_sleep() -> bool;
    fn region_intersects(start: u64, size: usize, flags: usize, desc: usize) -> c_int;
}

/// Registers: BAR 0.
const REGISTERS: u32 = 0;
/// Shared memory: BAR 2.
const SHARED: u32 = 2;
/// ivshmem's doorbell register.
const DOORBELL: usize = 12;
const REGISTER_BYTES: u64 = 16;

/// `region_intersects` found no resource of the requested kind (`REGION_DISJOINT`).
const DISJOINT: c_int = 1;

/// Turns of waiting for a few nanoseconds each.
const SHORT_TURNS: u32 = 100;

/// The memory.
///
/// # Invariants
///
/// `registers` is a mapping of at least [`REGISTER_BYTES`], `shared` one of `bytes`, both made here
/// and not undone before drop.
pub(crate) struct PciBar {
    registers: NonNull<u8>,
    shared: NonNull<u8>,
    bytes: u64,
    /// Where `shared` is for others.
    phys: u64,
    /// What follows it, for whom offsets from `bytes` on are.
    memory: Option<Memory>,
}

/// Memory outside of the BARs.
///
/// # Invariants
///
/// `start` is a mapping of `bytes` bytes, made by [`Memory::map`] and not undone before drop.
struct Memory {
    start: NonNull<u8>,
    bytes: u64,
    phys: u64,
}

impl Memory {
    /// Maps memory that the kernel does not allocate from, cached. EBUSY if it allocates from some
    /// of it.
    fn map(phys: u64, bytes: u64) -> KernelResult<Self> {
        let (ram, any) = (bindings::IORESOURCE_SYSTEM_RAM as usize, bindings::IORES_DESC_NONE as usize);
        // SAFETY: only looks the range up.
        if unsafe { region_intersects(phys, index(bytes), ram, any) } != DISJOINT {
            return Err(code::EBUSY);
        }
        // SAFETY: no RAM of the kernel; the device says that the machine keeps it for it.
        let start = unsafe { bindings::memremap(phys, index(bytes), bindings::MEMREMAP_WB as c_ulong) };
        let start = NonNull::new(start.cast()).ok_or(code::ENOMEM)?;
        Ok(Self { start, bytes, phys })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`.
        unsafe { bindings::memunmap(self.start.as_ptr().cast()) };
    }
}

// SAFETY: the mappings are the kernel's, the same for all threads; accesses are single words.
unsafe impl Send for PciBar {}
// SAFETY: as above.
unsafe impl Sync for PciBar {}

impl PciBar {
    /// Maps the BARs of a device whose memory is enabled.
    pub(crate) fn new(device: &pci::Device) -> KernelResult<Self> {
        let (phys, bytes) = (device.resource_start(SHARED)?, device.resource_len(SHARED)?);
        if device.resource_len(REGISTERS)? < REGISTER_BYTES || bytes == 0 {
            return Err(code::ENODEV);
        }
        let registers = device.resource_start(REGISTERS)?;
        // SAFETY: a BAR of the device, which this driver was given.
        let registers = NonNull::new(unsafe { bindings::ioremap(registers, index(REGISTER_BYTES)) });
        let registers = registers.ok_or(code::ENOMEM)?;
        // Memory of this computer, and cached as such.
        // SAFETY: as above.
        let shared = NonNull::new(unsafe { bindings::memremap(phys, index(bytes), bindings::MEMREMAP_WB as c_ulong) });
        let Some(shared) = shared else {
            // SAFETY: mapped above.
            unsafe { bindings::iounmap(registers.as_ptr()) };
            return Err(code::ENOMEM);
        };
        Ok(Self { registers: registers.cast(), shared: shared.cast(), bytes, phys, memory: None })
    }

    /// The physical address of offset `at`, which is inside.
    pub(crate) fn phys(&self, at: u64) -> u64 {
        match &self.memory {
            Some(memory) if at >= self.bytes => memory.phys + (at - self.bytes),
            _ => self.phys + at,
        }
    }

    /// Where the `bytes` bytes at `at`, a multiple of `bytes`, are mapped.
    fn mapped(&self, at: u64, bytes: u64) -> *mut u8 {
        let (start, first, size) = match &self.memory {
            Some(memory) if at >= self.bytes => (memory.start, self.bytes, memory.bytes),
            _ => (self.shared, 0, self.bytes),
        };
        let inside = at % bytes == 0 && at - first < size && size - (at - first) >= bytes;
        assert!(inside, "{bytes} bytes at {at:#x} of {size:#x} from {first:#x} on");
        // SAFETY: inside the mapping.
        unsafe { start.as_ptr().add(index(at - first)) }
    }

    /// Where the page at `at` is mapped.
    fn page(&self, at: u64) -> *mut c_void {
        self.mapped(at, PAGE).cast()
    }

    /// Copies a page of shared memory, at `at`, out.
    ///
    /// # Safety
    ///
    /// There is room for a page at `to`.
    pub(crate) unsafe fn read_page(&self, at: u64, to: *mut u8) {
        // SAFETY: mapped as long as `self`; promised by the caller. The kernel's function allows
        // other writers there.
        unsafe { bindings::memcpy(to.cast(), self.page(at), index(PAGE)) };
    }

    /// Copies a page into shared memory, to `at`.
    ///
    /// # Safety
    ///
    /// There is a page at `from`.
    pub(crate) unsafe fn write_page(&self, at: u64, from: *const u8) {
        // SAFETY: as above.
        unsafe { bindings::memcpy(self.page(at), from.cast(), index(PAGE)) };
    }

    /// Zeroes a page of shared memory.
    pub(crate) fn zero_page(&self, at: u64) {
        // SAFETY: mapped as long as `self`.
        unsafe { bindings::memset(self.page(at), 0, index(PAGE)) };
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: mapped as long as `self`, inside, aligned. Everyone accesses it atomically or
        // from outside Rust.
        unsafe { AtomicU64::from_ptr(self.mapped(at, 8).cast()) }
    }
}

impl Drop for PciBar {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe {
            bindings::memunmap(self.shared.as_ptr().cast());
            bindings::iounmap(self.registers.as_ptr().cast());
        }
    }
}

impl Bar for PciBar {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn map_memory(&mut self, phys: PhysAddr, bytes: u64) -> Result<u64> {
        self.memory = Some(Memory::map(phys.0, bytes).map_err(|error| Errno(-error.to_errno()))?);
        Ok(self.bytes)
    }

    fn read(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn write(&self, at: u64, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    fn zero(&self, at: u64, bytes: u64) {
        for at in (at..at + bytes).step_by(8) {
            self.word(at).store(0, Ordering::Relaxed);
        }
        fence(Ordering::Release);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn doorbell(&self, value: u32) {
        // SAFETY: mapped as long as `self`; orders after what was written to memory before.
        unsafe { bindings::writel(value, self.registers.as_ptr().add(DOORBELL).cast()) };
    }

    fn relax(&self, turn: u32) {
        // SAFETY: no preconditions.
        if turn < SHORT_TURNS || !unsafe { vkfd_may_sleep() } {
            kernel::processor::cpu_relax();
        } else {
            fsleep(Delta::from_micros(if turn < 2 * SHORT_TURNS { 20 } else { 100 }));
        }
    }

    fn alloc_dma(&self, bytes: u64) -> Result<Arc<dyn DmaMemory>> {
        let pages: Arc<DmaPages> = os::arc(DmaPages::new(bytes)?)?;
        Ok(pages)
    }
}
