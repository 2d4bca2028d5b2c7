// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A driver, a process and its simulated memory and GPUs, put together.

use super::*;

/// A machine of one GPU with one process.
pub struct Rig {
    pub mm: Arc<SimMm>,
    /// The first.
    pub gpu: Arc<SimGpu>,
    pub gpus: Vec<Arc<SimGpu>>,
    pub process: Arc<Process>,
    pub files: Arc<files::OneFile>,
}

pub const GPU_ID: u32 = 5;
pub const WRITABLE_USERPTR: u32 = 1 << 31 | 1 << 2;

impl Rig {
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
        Self::made(Options { diagnosis: true, ..options }, count, vram, vms)
    }

    /// As [`with_gpus`](Self::with_gpus), with these options and no others.
    pub fn as_shipped(options: Options, count: u32, vram: u64) -> Self {
        Self::made(options, count, vram, count)
    }

    fn made(options: Options, count: u32, vram: u64, vms: u32) -> Self {
        let mm = Arc::new(SimMm::default());
        *mm.kind.lock().unwrap() = Some(options.device_memory);
        let gpus: Vec<_> = (GPU_ID..GPU_ID + count).map(|id| SimGpu::new(id, vram)).collect();
        let mut own: os::Vec<Arc<dyn Gpu>> = os::Vec::new();
        for gpu in &gpus {
            own.push(Arc::new(Device(gpu.clone()))).unwrap();
        }
        let files = Arc::new(files::OneFile::default());
        let kfd = Kfd::with_files(own, options, files.clone()).unwrap();
        let process = kfd.open(Arc::new(Mm(mm.clone()))).unwrap();
        for gpu_id in GPU_ID..GPU_ID + vms {
            process.acquire_vm(gpu_id).unwrap();
        }
        Self { mm, gpu: gpus[0].clone(), gpus, process, files }
    }

    pub fn call<T: Pod>(&self, command: u32, args: &mut T) -> std::result::Result<(), Errno> {
        let at = CpuVa(std::ptr::from_mut(args) as u64);
        self.process.ioctl(command, at).map_err(|e| e.errno)
    }

    /// Registers page ranges `(first page, pages)` at a GPU address.
    pub fn register(&self, va: u64, list: &[(u64, u64)], flags: u32) -> std::result::Result<u64, Errno> {
        use vkfd_uapi::batch::{AllocMemoryOfGpuBatchArgs, UserptrRange, ALLOC_MEMORY_OF_GPU_BATCH};
        let ranges: Vec<_> = list.iter().map(|r| UserptrRange { start: r.0 * PAGE, size: r.1 * PAGE }).collect();
        let mut args = AllocMemoryOfGpuBatchArgs {
            va_addr: va,
            total_size: list.iter().map(|r| r.1 * PAGE).sum(),
            handle: 0,
            ranges_ptr: ranges.as_ptr() as u64,
            num_ranges: u32::try_from(ranges.len()).unwrap(),
            gpu_id: GPU_ID,
            flags,
            pad: 0,
        };
        self.call(ALLOC_MEMORY_OF_GPU_BATCH.0, &mut args).map(|()| args.handle)
    }

    pub fn map(&self, handle: u64) -> std::result::Result<(), Errno> {
        use vkfd_uapi::memory::MapMemoryToGpuArgs;
        let ids = [GPU_ID];
        let mut args =
            MapMemoryToGpuArgs { handle, device_ids_array_ptr: ids.as_ptr() as u64, n_devices: 1, n_success: 0 };
        self.call(vkfd_uapi::command::MAP_MEMORY_TO_GPU.0, &mut args)
    }

    pub fn unmap(&self, handle: u64) -> std::result::Result<(), Errno> {
        use vkfd_uapi::memory::UnmapMemoryFromGpuArgs;
        let ids = [GPU_ID];
        let mut args =
            UnmapMemoryFromGpuArgs { handle, device_ids_array_ptr: ids.as_ptr() as u64, n_devices: 1, n_success: 0 };
        self.call(vkfd_uapi::command::UNMAP_MEMORY_FROM_GPU.0, &mut args)
    }

    pub fn free(&self, handle: u64) -> std::result::Result<(), Errno> {
        let mut args = vkfd_uapi::memory::FreeMemoryOfGpuArgs { handle };
        self.call(vkfd_uapi::command::FREE_MEMORY_OF_GPU.0, &mut args)
    }

    pub fn info(&self) -> vkfd_uapi::vkfd::ProcessInfo {
        use vkfd_uapi::vkfd::{ProcessInfo, SnapshotArgs, SNAPSHOT, SNAPSHOT_PROCESS};
        let mut info = ProcessInfo::zeroed();
        let mut args = SnapshotArgs {
            op: SNAPSHOT_PROCESS,
            buffer: std::ptr::from_mut(&mut info) as u64,
            capacity: 1,
            ..SnapshotArgs::zeroed()
        };
        self.call(SNAPSHOT.0, &mut args).unwrap();
        info
    }

    pub fn ranges(&self, handle: u64) -> Vec<vkfd_uapi::vkfd::RangeInfo> {
        use vkfd_uapi::vkfd::{RangeInfo, SnapshotArgs, SNAPSHOT, SNAPSHOT_RANGES};
        let mut out = vec![RangeInfo::zeroed(); 4096];
        let mut args = SnapshotArgs {
            op: SNAPSHOT_RANGES,
            handle,
            buffer: out.as_mut_ptr() as u64,
            capacity: 4096,
            ..SnapshotArgs::zeroed()
        };
        self.call(SNAPSHOT.0, &mut args).unwrap();
        out.truncate(args.count as usize);
        out
    }

    /// Waits until the queues run and nothing is left to restore; a minute is never needed.
    pub fn settle(&self) {
        for _ in 0..60_000 {
            if self.info().evicted == 0 {
                self.audit();
                return;
            }
            os::sleep(std::time::Duration::from_millis(1));
        }
        panic!("still evicted: {:?}", self.info());
    }

    /// Checks that the GPU sees the frames that the CPU has, range by range in array order.
    pub fn check(&self, va: u64, list: &[(u64, u64)]) {
        let mut at = va / PAGE;
        for (first, count) in list {
            for page in *first..first + count {
                assert_eq!(self.gpu.walk(at * PAGE), self.mm.frame(page), "GPU page {at:#x}, CPU page {page:#x}");
                at += 1;
            }
        }
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
