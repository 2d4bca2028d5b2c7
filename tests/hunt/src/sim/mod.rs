// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A simulated host: CPU memory that is a table of pages, GPUs that are arrays of entries with a
//! TLB. Thousands of driver lives a second, every race at a place that the test chooses, and no
//! memory but its own: it can be fed anything.
//!
//! The driver under it is the real one, restore and fault workers included, with no pause before a
//! restore.

pub mod gpu;
pub mod memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

use vkfd_driver::base::addr::{CpuVa, GpuVa, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::machine::kfd::{Kfd, Options};
use vkfd_driver::os;
use vkfd_driver::process::Process;
use vkfd_driver::seams::gpu::{FaultReason, Gpu, HwQueue, Interrupts, PageFault, Vmid};
use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, ALLOC_MEMORY_OF_GPU_BATCH};
use vkfd_uapi::command;
use vkfd_uapi::memory::{
    AllocMemoryOfGpuArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, UnmapMemoryFromGpuArgs,
    ALLOC_MEM_FLAGS_USERPTR_BATCH,
};
use vkfd_uapi::pod::{slice_as_bytes, Pod};
use vkfd_uapi::process::SetXnackModeArgs;
use vkfd_uapi::vkfd::{
    BoInfo, ProcessInfo, RangeInfo, SnapshotArgs, SNAPSHOT, SNAPSHOT_BOS, SNAPSHOT_PROCESS, SNAPSHOT_RANGES,
};

use gpu::{Device, SimGpu};
use memory::{Mm, SimMemory, CALLER};

/// The first GPU's `gpu_id`.
pub const FIRST_GPU_ID: u32 = 5;
/// VRAM of each GPU, in pages.
pub const VRAM_PAGES: u64 = 128;
/// Where [`Rig::call`] puts the argument, and where it puts lists.
const ARGUMENT: u64 = CALLER;
const LIST: u64 = CALLER + 0x1000;
/// A wait this long means that what is waited for does not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a call gives.
pub type Called<T = ()> = std::result::Result<T, Errno>;

/// How a list of ranges is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The batch command.
    Batch,
    /// The batch flag of ALLOC.
    Flag,
    /// An ordinary ALLOC: one range.
    Single,
}

/// A machine with one process.
pub struct Rig {
    /// CPU memory.
    pub memory: Arc<SimMemory>,
    pub gpus: Vec<Arc<SimGpu>>,
    /// The driver.
    pub kfd: Arc<Kfd>,
    /// The process, with a VM on every GPU.
    pub process: Arc<Process>,
}

impl Rig {
    /// A machine of `gpus` GPUs on `memory`.
    ///
    /// # Panics
    ///
    /// When the driver refuses, which it has no reason for.
    #[must_use]
    pub fn new(memory: SimMemory, gpus: u32, options: Options) -> Self {
        let memory = Arc::new(memory);
        let gpus: Vec<_> = (0..gpus).map(|i| SimGpu::new(FIRST_GPU_ID + i, VRAM_PAGES)).collect();
        let mut seam: os::Vec<Arc<dyn Gpu>> = os::Vec::new();
        for gpu in &gpus {
            seam.push(Arc::new(Device(gpu.clone()))).expect("memory");
        }
        let kfd = Kfd::new(seam, options).expect("a driver");
        let process = kfd.open(Arc::new(Mm(memory.clone()))).expect("a process");
        for gpu in &gpus {
            process.acquire_vm(gpu.id()).expect("a VM");
        }
        Self { memory, gpus, kfd, process }
    }

    /// Options for a driver that restores without pauses, and looks for nothing by the clock.
    #[must_use]
    pub fn options() -> Options {
        Options { restore_pause: Duration::ZERO, looks: 0, ..Options::default() }
    }

    /// An ioctl.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn call<T: Pod>(&self, command: u32, args: &mut T) -> Called {
        self.memory.put(ARGUMENT, args.as_bytes());
        let result = self.process.ioctl(command, CpuVa(ARGUMENT));
        self.memory.get(ARGUMENT, args.as_bytes_mut());
        result.map_err(|e| e.errno)
    }

    /// Registers page ranges `(first page, pages)` at a GPU address.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn register(&self, va: u64, list: &[(u64, u64)], flags: u32, form: Form) -> Called<u64> {
        let ranges: Vec<_> = list.iter().map(|r| UserptrRange { start: r.0 * PAGE, size: r.1 * PAGE }).collect();
        let total = list.iter().map(|r| r.1 * PAGE).sum();
        let count = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let gpu_id = FIRST_GPU_ID;
        if form == Form::Batch {
            self.memory.put(LIST, slice_as_bytes(&ranges));
            let ranges_ptr = LIST;
            let mut args = AllocMemoryOfGpuBatchArgs {
                va_addr: va,
                total_size: total,
                handle: 0,
                ranges_ptr,
                num_ranges: count,
                gpu_id,
                flags,
                pad: 0,
            };
            return self.call(ALLOC_MEMORY_OF_GPU_BATCH.0, &mut args).map(|()| args.handle);
        }
        let (pointer, flags) = match (form, &list) {
            (Form::Single, [(first, _)]) => (first * PAGE, flags),
            _ => {
                self.memory.put(LIST, u64::from(count).as_bytes());
                self.memory.put(LIST + 8, slice_as_bytes(&ranges));
                (LIST, flags | ALLOC_MEM_FLAGS_USERPTR_BATCH)
            }
        };
        self.alloc_at(va, total, flags, pointer)
    }

    /// Allocates VRAM or GTT memory.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn alloc(&self, va: u64, bytes: u64, flags: u32) -> Called<u64> {
        self.alloc_at(va, bytes, flags, 0)
    }

    fn alloc_at(&self, va_addr: u64, size: u64, flags: u32, mmap_offset: u64) -> Called<u64> {
        let mut args = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset, gpu_id: FIRST_GPU_ID, flags };
        self.call(command::ALLOC_MEMORY_OF_GPU.0, &mut args).map(|()| args.handle)
    }

    /// Maps an object on one GPU.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn map(&self, handle: u64, gpu: usize) -> Called {
        self.memory.put(LIST, &self.gpus[gpu].id().to_ne_bytes());
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr: LIST, n_devices: 1, n_success: 0 };
        self.call(command::MAP_MEMORY_TO_GPU.0, &mut args)
    }

    /// Unmaps an object from one GPU.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn unmap(&self, handle: u64, gpu: usize) -> Called {
        self.memory.put(LIST, &self.gpus[gpu].id().to_ne_bytes());
        let mut args = UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr: LIST, n_devices: 1, n_success: 0 };
        self.call(command::UNMAP_MEMORY_FROM_GPU.0, &mut args)
    }

    /// Frees an object.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn free(&self, handle: u64) -> Called {
        self.call(command::FREE_MEMORY_OF_GPU.0, &mut FreeMemoryOfGpuArgs { handle })
    }

    /// Turns retry of faults on or off.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn set_xnack(&self, on: bool) -> Called {
        self.call(command::SET_XNACK_MODE.0, &mut SetXnackModeArgs { xnack_enabled: on.into() })
    }

    fn snapshot<T: Pod>(&self, op: u32, handle: u64, room: usize) -> Called<Vec<T>> {
        let capacity = u32::try_from(room).unwrap_or(u32::MAX);
        let mut args = SnapshotArgs { op, handle, buffer: LIST, capacity, ..SnapshotArgs::zeroed() };
        self.call(SNAPSHOT.0, &mut args)?;
        let mut out = vec![T::zeroed(); usize::try_from(args.count).unwrap_or(0).min(room)];
        for (at, item) in (LIST..).step_by(size_of::<T>()).zip(&mut out) {
            self.memory.get(at, item.as_bytes_mut());
        }
        Ok(out)
    }

    /// The process's counters.
    ///
    /// # Panics
    ///
    /// When the driver refuses to tell.
    #[must_use]
    pub fn info(&self) -> ProcessInfo {
        self.snapshot(SNAPSHOT_PROCESS, 0, 1).expect("a snapshot")[0]
    }

    /// Its objects.
    ///
    /// # Panics
    ///
    /// When the driver refuses to tell.
    #[must_use]
    pub fn bos(&self) -> Vec<BoInfo> {
        self.snapshot(SNAPSHOT_BOS, 0, 256).expect("a snapshot")
    }

    /// The ranges of a userptr object.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn ranges(&self, handle: u64) -> Called<Vec<RangeInfo>> {
        self.snapshot(SNAPSHOT_RANGES, handle, 256)
    }

    /// Waits until the queues run. False when they do not in 20 seconds.
    #[must_use]
    pub fn settle(&self) -> bool {
        let start = Instant::now();
        while self.info().evicted != 0 {
            if start.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// A retried fault of a GPU, and what the driver answers; none if it does not answer.
    pub fn fault(&self, gpu: usize, va: u64, write: bool) -> Option<bool> {
        let gpu = &self.gpus[gpu];
        let fault = PageFault {
            vmid: Vmid(1),
            queue: HwQueue(1),
            va: GpuVa(va),
            write,
            reason: FaultReason::NotPresent,
            retry: true,
        };
        self.kfd.page_fault(gpu.id(), fault);
        let start = Instant::now();
        loop {
            if let Some((_, served)) = gpu.take_answer() {
                return Some(served);
            }
            if start.elapsed() > PATIENCE {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Ends the process, and says what is left of it that should not be.
    ///
    /// # Errors
    ///
    /// What has leaked.
    pub fn close(&self) -> Result<(), String> {
        self.process.release();
        let mut left = Vec::new();
        if self.memory.watches() != 0 {
            left.push(format!("{} notifiers", self.memory.watches()));
        }
        if self.kfd.limit().used() != 0 {
            left.push(format!("{:#x} bytes charged", self.kfd.limit().used()));
        }
        let references = Arc::strong_count(&self.process) - 1;
        if references != 0 {
            left.push(format!("{references} references to the process"));
        }
        let vram: u64 = self.kfd.devices().iter().map(|d| d.vram().used()).sum();
        if vram != 0 {
            left.push(format!("{vram:#x} bytes of VRAM"));
        }
        if self.gpus.iter().any(|gpu| gpu.is_suspended(1)) {
            left.push("a VMID whose queues are stopped".into());
        }
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("left by a process that has ended: {}", left.join(", ")))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.process.release();
    }
}
