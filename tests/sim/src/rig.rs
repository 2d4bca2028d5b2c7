// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A driver, a process and its simulated memory and GPUs, put together; and the calls that tests
//! make most.

use crate::caller::{ARGUMENT, LIST};
use crate::files::OneFile;
use crate::patience::wait_for;
use crate::{SimGpu, SimMm};
use std::sync::Arc;
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
use vkfd_uapi::pod::Pod;
use vkfd_uapi::vkfd::{ProcessInfo, RangeInfo, SnapshotArgs, SNAPSHOT, SNAPSHOT_PROCESS, SNAPSHOT_RANGES};

/// The first GPU's `gpu_id`; the others follow.
pub const GPU_ID: u32 = 5;
pub const WRITABLE_USERPTR: u32 = 1 << 31 | 1 << 2;
/// Ranges of an object that a snapshot has at most.
const MOST_RANGES: usize = 4096;

/// The result of a call.
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
    pub mm: Arc<SimMm>,
    /// The first.
    pub gpu: Arc<SimGpu>,
    pub gpus: Vec<Arc<SimGpu>>,
    pub process: Arc<Process>,
    pub files: Arc<OneFile>,
}

impl Rig {
    /// A machine of one GPU.
    pub fn new(options: Options) -> Self {
        Self::with_gpus(options, 1, 2048)
    }

    /// GPUs [`GPU_ID`], `GPU_ID + 1` and so on, each with `vram` pages. With the calls that only
    /// tests use.
    pub fn with_gpus(options: Options, count: u32, vram: u64) -> Self {
        Self::with_vms(options, count, vram, count)
    }

    /// The same, with VMs on the first `vms` GPUs only.
    pub fn with_vms(options: Options, count: u32, vram: u64, vms: u32) -> Self {
        Self::made(SimMm::default(), Options { diagnosis: true, ..options }, count, vram, vms)
    }

    /// As [`with_gpus`](Self::with_gpus), with these options and no others, on `mm`.
    pub fn on(mm: SimMm, options: Options, count: u32, vram: u64) -> Self {
        Self::made(mm, options, count, vram, count)
    }

    fn made(mm: SimMm, options: Options, count: u32, vram: u64, vms: u32) -> Self {
        let mm = Arc::new(mm);
        mm.set_kind(Some(options.device_memory));
        let gpus: Vec<_> = (GPU_ID..GPU_ID + count).map(|id| SimGpu::new(id, vram)).collect();
        let mut own: os::Vec<Arc<dyn Gpu>> = os::Vec::new();
        for gpu in &gpus {
            own.push(gpu.clone()).expect("memory");
        }
        let files = Arc::new(OneFile::default());
        let kfd = Kfd::with_files(own, options, files.clone()).expect("a driver");
        let process = kfd.open(mm.clone()).expect("a process");
        for gpu_id in GPU_ID..GPU_ID + vms {
            process.acquire_vm(gpu_id).expect("a VM");
        }
        Self { mm, gpu: gpus[0].clone(), gpus, process, files }
    }

    /// A call.
    pub fn call<T: Pod>(&self, command: u32, args: &mut T) -> Called {
        self.call_bytes(command, args.as_bytes_mut())
    }

    pub(crate) fn call_bytes(&self, command: u32, args: &mut [u8]) -> Called {
        let at = self.mm.lend(ARGUMENT, args);
        let result = self.process.ioctl(command, CpuVa(at));
        self.mm.take_back(ARGUMENT, args);
        result.map_err(|e| e.errno)
    }

    /// Registers page ranges `(first page, pages)` at a GPU address.
    pub fn register(&self, va: u64, list: &[(u64, u64)], flags: u32) -> Called<u64> {
        self.register_as(Form::Batch, va, list, flags)
    }

    /// The same, by one call or another.
    pub fn register_as(&self, form: Form, va: u64, list: &[(u64, u64)], flags: u32) -> Called<u64> {
        let total_size = list.iter().map(|range| range.1 * PAGE).sum();
        let num_ranges = u32::try_from(list.len()).expect("a short list");
        let ranges = list.iter().map(|range| UserptrRange { start: range.0 * PAGE, size: range.1 * PAGE });
        let mut bytes: Vec<u8> = ranges.flat_map(|range| range.as_bytes().to_vec()).collect();
        match (form, list) {
            (Form::Batch, _) => {
                let ranges_ptr = self.mm.lend(LIST, &mut bytes);
                let mut args = AllocMemoryOfGpuBatchArgs {
                    va_addr: va,
                    total_size,
                    ranges_ptr,
                    num_ranges,
                    gpu_id: GPU_ID,
                    flags,
                    ..AllocMemoryOfGpuBatchArgs::zeroed()
                };
                self.call(ALLOC_MEMORY_OF_GPU_BATCH.0, &mut args).map(|()| args.handle)
            }
            (Form::Single, [(first, _)]) => self.alloc_at(va, total_size, flags, first * PAGE),
            _ => {
                bytes.splice(0..0, u64::from(num_ranges).to_ne_bytes());
                let at = self.mm.lend(LIST, &mut bytes);
                self.alloc_at(va, total_size, flags | ALLOC_MEM_FLAGS_USERPTR_BATCH, at)
            }
        }
    }

    /// Allocates VRAM or GTT memory.
    pub fn alloc(&self, va: u64, bytes: u64, flags: u32) -> Called<u64> {
        self.alloc_at(va, bytes, flags, 0)
    }

    fn alloc_at(&self, va_addr: u64, size: u64, flags: u32, mmap_offset: u64) -> Called<u64> {
        let mut args = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset, gpu_id: GPU_ID, flags };
        self.call(command::ALLOC_MEMORY_OF_GPU.0, &mut args).map(|()| args.handle)
    }

    /// Maps an object on the first GPU.
    pub fn map(&self, handle: u64) -> Called {
        self.map_on(0, handle)
    }

    /// Maps an object on a GPU, by its place.
    pub fn map_on(&self, gpu: usize, handle: u64) -> Called {
        let mut id = self.gpus[gpu].id().to_ne_bytes();
        let device_ids_array_ptr = self.mm.lend(LIST, &mut id);
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 };
        self.call(command::MAP_MEMORY_TO_GPU.0, &mut args)
    }

    /// Unmaps an object from the first GPU.
    pub fn unmap(&self, handle: u64) -> Called {
        self.unmap_on(0, handle)
    }

    /// Unmaps an object from a GPU, by its place.
    pub fn unmap_on(&self, gpu: usize, handle: u64) -> Called {
        let mut id = self.gpus[gpu].id().to_ne_bytes();
        let device_ids_array_ptr = self.mm.lend(LIST, &mut id);
        let mut args = UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr, n_devices: 1, n_success: 0 };
        self.call(command::UNMAP_MEMORY_FROM_GPU.0, &mut args)
    }

    /// Frees an object.
    pub fn free(&self, handle: u64) -> Called {
        self.call(command::FREE_MEMORY_OF_GPU.0, &mut FreeMemoryOfGpuArgs { handle })
    }

    /// A snapshot of at most `room` entries.
    pub fn snapshot<T: Pod>(&self, op: u32, handle: u64, room: usize) -> Called<Vec<T>> {
        let room = room.min(self.mm.list_room() / size_of::<T>());
        let mut bytes = vec![0; room * size_of::<T>()];
        let buffer = self.mm.lend(LIST, &mut bytes);
        let capacity = u32::try_from(room).unwrap_or(u32::MAX);
        let mut args = SnapshotArgs { op, handle, buffer, capacity, ..SnapshotArgs::zeroed() };
        self.call(SNAPSHOT.0, &mut args)?;
        self.mm.take_back(LIST, &mut bytes);
        let entries = bytes.chunks_exact(size_of::<T>()).take(usize::try_from(args.count).unwrap_or(room));
        Ok(entries
            .map(|bytes| {
                let mut entry = T::zeroed();
                entry.as_bytes_mut().copy_from_slice(bytes);
                entry
            })
            .collect())
    }

    /// The process's counters.
    pub fn info(&self) -> ProcessInfo {
        self.snapshot(SNAPSHOT_PROCESS, 0, 1).expect("a snapshot")[0]
    }

    /// The ranges of a userptr object.
    pub fn ranges(&self, handle: u64) -> Vec<RangeInfo> {
        self.snapshot(SNAPSHOT_RANGES, handle, MOST_RANGES).expect("a snapshot")
    }

    /// Waits until the queues run and nothing is left to restore. False when that takes too long.
    pub fn settled(&self) -> bool {
        let settled = wait_for(|| (self.info().evicted == 0).then_some(())).is_some();
        self.audit();
        settled
    }

    /// As [`settled`](Self::settled), which must be.
    #[track_caller]
    pub fn settle(&self) {
        assert!(self.settled(), "still evicted: {:?}", self.info());
    }

    /// A GPU, by its place, reports a retry fault of a queue of the process.
    pub fn report_fault(&self, gpu: usize, page: u64, write: bool, reason: FaultReason) {
        let (va, queue) = (GpuVa(page * PAGE), HwQueue(1));
        let fault = PageFault { vmid: Vmid(1), queue, va, write, reason, retry: true };
        self.process.kfd().page_fault(self.gpus[gpu].id(), fault);
    }

    /// The same, and the answer. `None` when none comes.
    pub fn faulted(&self, gpu: usize, page: u64, write: bool, reason: FaultReason) -> Option<bool> {
        self.report_fault(gpu, page, write, reason);
        wait_for(|| self.gpus[gpu].take_answer(page * PAGE))
    }

    /// Checks that the GPU sees the frames that the CPU has, range by range in array order.
    #[track_caller]
    pub fn check(&self, va: u64, list: &[(u64, u64)]) {
        let pages = list.iter().flat_map(|(first, count)| *first..first + count);
        for (at, page) in (va / PAGE..).zip(pages) {
            assert_eq!(self.gpu.walk(at * PAGE), self.mm.frame(page), "GPU page {at:#x}, CPU page {page:#x}");
        }
    }

    /// Ends the process, and then its memory.
    pub fn close(&self) -> Result<(), String> {
        self.process.release();
        self.mm.end();
        let kfd = self.process.kfd();
        let vram: u64 = kfd.devices().iter().map(|device| device.vram().used()).sum();
        let stopped = self.gpus.iter().filter(|gpu| gpu.is_suspended()).count();
        let left: Vec<_> = [
            ("notifiers", self.mm.watch_count() as u64),
            ("bytes charged", kfd.limit().used()),
            ("bytes of VRAM", vram),
            ("references to the process", Arc::strong_count(&self.process) as u64 - 1),
            ("GPUs with stopped queues", stopped as u64),
        ]
        .into_iter()
        .filter(|(_, count)| *count != 0)
        .collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("left by a process that has ended: {left:?}"))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.audit();
        }
        self.process.release();
    }
}
