// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The inner loops that the cost of batch userptr rests on, each by itself: for criterion
//! (`benches/hot_paths.rs`) and for counts of instructions (`src/bin/hotpaths.rs` under callgrind).
//! They start no threads and take the same steps every time.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{anyhow, Result};
use vkfd_driver::base::addr::{CpuSpan, CpuVa, FabricAddr, GpuSpan, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::{self, Errno};
use vkfd_driver::base::pte::{self, Target};
use vkfd_driver::collections::interval::IntervalMap;
use vkfd_driver::device::vram::Vram;
use vkfd_driver::gpuvm::page_table::{Leaves, PageTable};
use vkfd_driver::seams::gpu::{DmaMemory, Gpu, GpuProperties, HwQueue, QueueSpec, Vmid, Work};
use vkfd_driver::userptr::range_set::{Builder, RangeSet};
use vkfd_gpu::{BusError, HostSpan, QueueError, QueueId};
use vkfd_host::frame::Frames;

use crate::arena::Random;

/// The names of all paths.
pub const NAMES: [&str; 9] = [
    "range-set-build",
    "range-set-cpu-query",
    "range-set-page-query",
    "interval-map-insert-remove",
    "interval-map-query",
    "frames-assign-kill",
    "page-table-write",
    "page-table-walk",
    "guarded-copy",
];

/// Ranges of the sets and maps.
const RANGES: u64 = 65_536;
/// Queries of one pass.
const QUERIES: u64 = 10_000;
/// Ranges and pages a range of the frames and the page tables.
const BATCH: u64 = 4096;
const BATCH_PAGES: u64 = 16;
const VRAM_BYTES: u64 = 64 << 20;
const TABLE_VA: u64 = 1 << 32;

/// One pass over a path. Call it through [`measured`].
pub type Path = Box<dyn FnMut()>;

/// Makes what a path needs.
///
/// # Errors
///
/// When there is no path of this name or what it needs cannot be made.
pub fn prepare(name: &str) -> Result<Path> {
    match name {
        "range-set-build" => Ok(Box::new(|| {
            black_box(ranges().map(|set| set.len()).unwrap_or(0));
        })),
        "range-set-cpu-query" => {
            let set = ranges()?;
            Ok(Box::new(move || cpu_queries(&set)))
        }
        "range-set-page-query" => {
            let set = ranges()?;
            Ok(Box::new(move || {
                let mut random = Random(3);
                for _ in 0..QUERIES {
                    black_box(set.of_page(random.below(set.pages())));
                }
            }))
        }
        "interval-map-insert-remove" => Ok(Box::new(|| {
            let mut map = IntervalMap::new();
            let mut random = Random(4);
            let list: Vec<(u64, u64)> =
                (0..QUERIES).map(|_| (random.below(1 << 40), 1 + random.below(1 << 20))).collect();
            for (i, (start, bytes)) in list.iter().enumerate() {
                black_box(map.insert(*start, start + bytes, i).is_ok());
            }
            for (i, (start, bytes)) in list.iter().enumerate() {
                black_box(map.remove(*start, start + bytes, &i));
            }
        })),
        "interval-map-query" => {
            let mut map = IntervalMap::new();
            for i in 0..RANGES {
                map.insert(i * 4 * PAGE, (i * 4 + 2) * PAGE, i).map_err(refused)?;
            }
            Ok(Box::new(move || {
                let mut random = Random(5);
                for _ in 0..QUERIES {
                    let at = random.below(RANGES * 4) * PAGE;
                    black_box(map.first_overlap(at, at + PAGE));
                }
            }))
        }
        "frames-assign-kill" => {
            let frames = Frames::new()?;
            Ok(Box::new(move || assign_and_kill(&frames)))
        }
        "page-table-write" => {
            let tables = Tables::new()?;
            Ok(Box::new(move || tables.write()))
        }
        "page-table-walk" => {
            let tables = Tables::new()?;
            tables.write();
            Ok(Box::new(move || tables.walk()))
        }
        "guarded-copy" => Ok(guarded_copy()),
        _ => Err(anyhow!("there is no path {name:?}; there are {}", NAMES.join(", "))),
    }
}

/// Runs one pass. Never inlined: instructions are counted inside of this function
/// (`--toggle-collect='*hotpath::measured*'`).
#[inline(never)]
pub fn measured(path: &mut Path) {
    black_box(&mut *path)();
}

fn refused(error: errno::Error) -> anyhow::Error {
    anyhow!("the driver refused: {}", error.errno.name())
}

/// Ranges of one to four pages with gaps, in shuffled order.
fn ranges() -> Result<RangeSet> {
    let mut random = Random(1);
    let mut list: Vec<(u64, u64)> = (0..RANGES).map(|i| (1 + i * 8, 1 + random.below(4))).collect();
    for i in (1..list.len()).rev() {
        list.swap(i, random.position(i + 1));
    }
    let mut builder = Builder::new(list.len()).map_err(refused)?;
    for (start, pages) in list {
        builder.push(CpuVa(start * PAGE), pages * PAGE).map_err(refused)?;
    }
    builder.build().map_err(refused)
}

fn cpu_queries(set: &RangeSet) {
    let mut random = Random(2);
    for _ in 0..QUERIES {
        let at = (1 + random.below(RANGES * 8)) * PAGE;
        let mut hits = 0;
        set.overlapping(CpuSpan::between(CpuVa(at), CpuVa(at + PAGE)), &mut |_| {
            hits += 1;
            true
        });
        black_box(hits);
    }
}

fn assign_and_kill(frames: &Frames) {
    let span = |i: u64| {
        let start = (1 << 30) + i * (BATCH_PAGES + 2) * PAGE;
        CpuSpan::between(CpuVa(start), CpuVa(start + BATCH_PAGES * PAGE))
    };
    for i in 0..BATCH {
        black_box(frames.assign(&[span(i)], |at| {
            black_box(at);
        }))
        .ok();
    }
    for i in 0..BATCH {
        frames.kill(span(i));
    }
}

/// Copies 256 KiB in pieces of a page, each guarded against faults as the GPU's accesses are.
fn guarded_copy() -> Path {
    vkfd_gpu::raw::install();
    let page = usize::try_from(PAGE).unwrap_or(4096);
    let (from, mut to) = (vec![1_u8; 64 * page], vec![0_u8; 64 * page]);
    Box::new(move || {
        for (from, to) in from.chunks_exact(page).zip(to.chunks_exact_mut(page)) {
            // SAFETY: both are as long as said, and apart.
            black_box(unsafe { vkfd_gpu::raw::copy(to.as_mut_ptr(), from.as_ptr(), page) }).ok();
        }
    })
}

/// Page tables for a batch, in the software GPU's VRAM.
struct Tables {
    device: Arc<Device>,
    leaves: Leaves,
    // The tables live as long as the tree.
    _table: PageTable,
}

impl Tables {
    fn new() -> Result<Self> {
        let device = Arc::new(Device::new()?);
        let gpu: Arc<dyn Gpu> = device.clone();
        let vram = Arc::new(Vram::new(VRAM_BYTES).map_err(refused)?);
        let mut table = PageTable::new(gpu, vram).map_err(refused)?;
        let end = TABLE_VA + BATCH * BATCH_PAGES * PAGE;
        let leaves = table.reserve(GpuSpan::between(GpuVa(TABLE_VA), GpuVa(end))).map_err(refused)?;
        device.set_root(Vmid(1), Some(FabricAddr(device.properties.vram_base.0 + table.root().0)), false);
        Ok(Self { device, leaves, _table: table })
    }

    /// Writes the entries of all ranges: contiguous in a range, with gaps between them.
    fn write(&self) {
        for range in 0..BATCH {
            let first = (1 << 20) + range * (BATCH_PAGES + 1);
            let target = |page| (Target::System(PhysAddr((first + page) * PAGE)), pte::READABLE | pte::WRITEABLE);
            self.leaves.write(&*self.device, range * BATCH_PAGES, BATCH_PAGES, target);
        }
    }

    fn walk(&self) {
        for page in 0..QUERIES {
            black_box(self.device.gpu.translate(vkfd_gpu::Vmid(1), TABLE_VA + page * PAGE)).ok();
        }
    }
}

/// The software GPU as the driver's page tables need it: VRAM and a root. It runs no queues.
struct Device {
    gpu: Arc<vkfd_gpu::Gpu>,
    properties: GpuProperties,
}

struct Nothing;

impl vkfd_gpu::Bus for Nothing {
    fn resolve(&self, _: vkfd_gpu::PhysAddr, _: usize, _: bool) -> std::result::Result<HostSpan, BusError> {
        Err(BusError::NoMemory)
    }
    fn lost(&self, _: vkfd_gpu::PhysAddr, _: bool) {}
}

impl vkfd_gpu::Interrupts for Nothing {
    fn page_fault(&self, _: vkfd_gpu::PageFault) {}
    fn signal_event(&self, _: vkfd_gpu::Vmid, _: u32) {}
    fn queue_error(&self, _: vkfd_gpu::Vmid, _: QueueId, _: QueueError) {}
}

impl Device {
    fn new() -> Result<Self> {
        let config = vkfd_gpu::Config { vram_bytes: VRAM_BYTES, ..vkfd_gpu::Config::default() };
        let fabric = vkfd_gpu::Fabric::new(&[VRAM_BYTES])?;
        let properties = GpuProperties {
            gpu_id: 1,
            vram_bytes: VRAM_BYTES,
            vram_base: FabricAddr(fabric.base(0).0),
            vmids: config.vmids,
            gfx_target_version: 90_000,
            model: *vkfd_driver::targets::Target::Gfx900.model(),
            xnack_capable: false,
            clock_hz: vkfd_gpu::CLOCK_HZ,
        };
        let gpu = vkfd_gpu::Gpu::new(config, 0, fabric, Arc::new(Nothing), Arc::new(Nothing))?;
        Ok(Self { gpu, properties })
    }
}

impl Gpu for Device {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }
    fn read_entry(&self, at: VramOffset) -> u64 {
        self.gpu.vram().read_u64(at.0).unwrap_or(0)
    }
    fn write_entries(&self, at: VramOffset, first: u64, step: u64, count: u64) {
        black_box(self.gpu.vram().write_entries(at.0, first, step, count)).ok();
    }
    fn clear(&self, at: VramOffset, bytes: u64) {
        black_box(self.gpu.vram().fill(at.0, bytes, 0)).ok();
    }
    fn set_root(&self, vmid: Vmid, root: Option<FabricAddr>, retry: bool) {
        self.gpu.set_root(vkfd_gpu::Vmid(vmid.0), root.map(|at| vkfd_gpu::FabricAddr(at.0)), retry);
    }
    fn flush_tlb(&self, vmid: Vmid) {
        self.gpu.flush_tlb(vkfd_gpu::Vmid(vmid.0));
    }
    fn suspend(&self, _: Vmid) {}
    fn resume(&self, _: Vmid) {}
    fn fault_done(&self, _: Vmid, _: GpuVa, _: bool) {}
    fn add_queue(&self, _: &QueueSpec) -> errno::Result<HwQueue> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn update_queue(&self, _: HwQueue, _: GpuVa, _: u64, _: bool) -> errno::Result {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn remove_queue(&self, _: HwQueue) {}
    fn ring(&self) {}
    fn clock(&self) -> u64 {
        vkfd_gpu::clock()
    }
    fn work(&self) -> Work {
        Work::default()
    }
    fn alloc_dma(&self, _: u64) -> errno::Result<Arc<dyn DmaMemory>> {
        Err(Errno::EOPNOTSUPP.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_runs_and_others_are_refused() {
        for name in NAMES {
            measured(&mut prepare(name).unwrap());
        }
        assert!(prepare("no-such-path").is_err());
    }

    #[test]
    fn what_is_written_is_what_is_walked() {
        let tables = Tables::new().unwrap();
        let find = |page: u64| tables.device.gpu.translate(vkfd_gpu::Vmid(1), TABLE_VA + page * PAGE);
        assert!(find(17).is_err());
        tables.write();
        let found = find(17).unwrap();
        let at = found.target.offset(TABLE_VA + 17 * PAGE - found.base);
        let expected = ((1 << 20) + BATCH_PAGES + 1 + 1) * PAGE;
        assert_eq!(at, vkfd_gpu::memory::pte::Target::System(vkfd_gpu::PhysAddr(expected)));
    }
}
