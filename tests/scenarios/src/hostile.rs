// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a client may ask for and must not get: calls at the ends of their types, memory that nobody
//! is charged for, resources that others need.
//!
//! Those that a kernel alone can show (other users, signals, memory cgroups) are in
//! `kernel::hostile`.

use std::time::{Duration, Instant};

use vkfd_client::uapi::command;
use vkfd_client::uapi::event::CreateEventArgs;
use vkfd_client::uapi::memory::{
    AllocMemoryOfGpuArgs, ExportDmabufArgs, FreeMemoryOfGpuArgs, MapMemoryToGpuArgs, ALLOC_MEM_FLAGS_GTT,
    ALLOC_MEM_FLAGS_MMIO_REMAP, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::vkfd::{self, MeasureArgs, MoveArgs, SnapshotArgs, WindowsArgs, CAP_DIAGNOSIS};
use vkfd_client::{Client, Errno, GpuId, PAGE};

use crate::limits::caps;
use crate::memory::Memory;
use crate::{raw, Scenario, Stop, World, WorldSpec};

/// The scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "snapshots_from_the_last_number_on_are_empty",
        about: "One ioctl of any client ended the kernel: counting on from 0xffffffff. Every operation from every end.",
        run: last_numbers,
    },
    Scenario {
        name: "calls_for_tests_and_benchmarks_are_off_unless_switched_on",
        about: "MEASURE pins pages, MOVE and SET_WINDOWS take what others need: EPERM on a driver as it is shipped.",
        run: as_shipped,
    },
    Scenario {
        name: "an_exported_buffer_is_charged_until_its_file_is_closed",
        about: "ALLOC, EXPORT_DMABUF, FREE, and again: system memory without limit and without an owner.",
        run: exported,
    },
    Scenario {
        name: "the_signal_page_cannot_be_freed",
        about: "The object that the events' page is of stays, and stays charged: EPERM, as KFD has it.",
        run: signal_page,
    },
    Scenario {
        name: "a_list_of_gpus_is_no_longer_than_a_machine_can_have",
        about: "MAP and UNMAP with 2^32 - 1 entries, and with a list that cannot be read: nothing is mapped, and nothing takes long.",
        run: long_list,
    },
    Scenario {
        name: "closing_takes_time_for_each_object_and_no_more",
        about: "A client with 20,000 objects is closed: it took as long as their number squared.",
        run: closing,
    },
];

/// Where objects are put.
const VA: u64 = 0x60_0000_0000;

/// Allocates an object of `bytes` at `va`: its handle.
pub(crate) fn alloc(client: &Client, gpu: GpuId, va: u64, bytes: u64, flags: u32) -> Result<u64, Errno> {
    let flags = flags | ALLOC_MEM_FLAGS_WRITABLE;
    let mut args = AllocMemoryOfGpuArgs { va_addr: va, size: bytes, handle: 0, mmap_offset: 0, gpu_id: gpu.0, flags };
    raw::ioctl(client, command::ALLOC_MEMORY_OF_GPU, &mut args).map(|()| args.handle)
}

fn free(client: &Client, handle: u64) -> Result<(), Errno> {
    raw::ioctl(client, command::FREE_MEMORY_OF_GPU, &mut FreeMemoryOfGpuArgs { handle })
}

fn last_numbers() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let own = alloc(client, world.gpu(0), VA, PAGE, ALLOC_MEM_FLAGS_GTT)?;
    let mut room = [0u64; 64];
    let ends = [u32::MAX, u32::MAX - 1, 1 << 31];
    for op in 0..8 {
        for index in ends {
            for handle in [0, own, u64::MAX, u64::MAX - 4095, 1 << 47] {
                let buffer = room.as_mut_ptr() as u64;
                let mut args = SnapshotArgs { op, index, handle, buffer, capacity: 1, ..SnapshotArgs::zeroed() };
                let result = raw::ioctl(client, vkfd::SNAPSHOT, &mut args);
                let listed = [vkfd::SNAPSHOT_BOS, vkfd::SNAPSHOT_QUEUES].contains(&op);
                ensure!(!listed || (result == Ok(()) && args.count == 0), "{op} from {index:#x}: {result:?} {args:?}");
            }
        }
    }
    let capacity = u32::MAX;
    let mut args = SnapshotArgs { op: vkfd::SNAPSHOT_PAGES, handle: VA, capacity, ..SnapshotArgs::zeroed() };
    ensure_eq!(raw::ioctl(client, vkfd::SNAPSHOT, &mut args), Err(Errno::INVAL), "2^32 - 1 pages");
    Ok(free(client, own)?)
}

fn as_shipped() -> Result<(), Stop> {
    let world = World::new(WorldSpec { diagnosis: false, ..WorldSpec::default() })?;
    let client = world.client();
    let memory = Memory::anonymous(PAGE)?;
    let (start, size, gpu_id) = (memory.whole().start, PAGE, world.gpu(0).0);
    let mut windows = WindowsArgs { gap: 0, per_range: 1, pad: 0 };
    ensure_eq!(raw::ioctl(client, vkfd::SET_WINDOWS, &mut windows), Err(Errno::PERM));
    for what in [vkfd::MEASURE_FAULT, vkfd::MEASURE_PIN, vkfd::MEASURE_FAULT_BARE] {
        let ranges = [memory.whole()];
        let ranges_ptr = ranges.as_ptr() as u64;
        let mut measure = MeasureArgs { ranges_ptr, num_ranges: 1, what, ..MeasureArgs::zeroed() };
        ensure_eq!(raw::ioctl(client, vkfd::MEASURE, &mut measure), Err(Errno::PERM));
    }
    let mut to_gpu = MoveArgs { start, size, gpu_id, ..MoveArgs::zeroed() };
    ensure_eq!(raw::ioctl(client, vkfd::MOVE, &mut to_gpu), Err(Errno::PERM));
    ensure_eq!(caps(client)?.caps & CAP_DIAGNOSIS, 0, "what it says that it can do");
    Ok(())
}

fn exported() -> Result<(), Stop> {
    const BYTES: u64 = 8 << 20;
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let before = caps(client)?.max_bytes;
    let mut files = Vec::new();
    for number in 0..4 {
        let handle = alloc(client, world.gpu(0), VA, BYTES, ALLOC_MEM_FLAGS_GTT)?;
        let mut export = ExportDmabufArgs { handle, flags: 0, dmabuf_fd: 0 };
        match raw::ioctl(client, command::EXPORT_DMABUF, &mut export) {
            Ok(()) => files.push(i32::try_from(export.dmabuf_fd)?),
            Err(Errno::OPNOTSUPP) => return Err(Stop::Skip("this host has no files for buffers".into())),
            Err(errno) => bail!("EXPORT_DMABUF: {errno:?}"),
        }
        free(client, handle)?;
        let now = caps(client)?.max_bytes;
        ensure_eq!(before - now, (number + 1) * BYTES, "what is charged for so many files");
    }
    for file in files {
        // SAFETY: a descriptor that the call gave to this process.
        unsafe { libc::close(file) };
    }
    let start = Instant::now();
    // A file that is closed ends a moment later.
    while caps(client)?.max_bytes != before {
        ensure!(start.elapsed() < Duration::from_secs(30), "what was charged for files does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn signal_page() -> Result<(), Stop> {
    const BYTES: u64 = 2 << 20;
    let world = World::new(WorldSpec::default())?;
    let before = caps(world.client())?.max_bytes;
    let other = world.open()?;
    let page = alloc(&other, world.gpu(0), VA, BYTES, ALLOC_MEM_FLAGS_GTT)?;
    let mut event = CreateEventArgs { event_page_offset: page, ..CreateEventArgs::zeroed() };
    raw::ioctl(&other, command::CREATE_EVENT, &mut event)?;
    ensure_eq!(free(&other, page), Err(Errno::PERM));
    ensure_eq!(before - caps(world.client())?.max_bytes, BYTES, "what is charged");
    drop(other);
    let start = Instant::now();
    while caps(world.client())?.max_bytes != before {
        ensure!(start.elapsed() < Duration::from_secs(30), "what was charged does not come back");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn long_list() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let handle = alloc(client, world.gpu(0), VA, PAGE, ALLOC_MEM_FLAGS_GTT)?;
    let ids = [world.gpu(0).0; 33];
    let list =
        |pointer: u64, n_devices| MapMemoryToGpuArgs { handle, device_ids_array_ptr: pointer, n_devices, n_success: 0 };
    let pointer = ids.as_ptr() as u64;
    for (pointer, count, errno) in
        [(pointer, u32::MAX, Errno::INVAL), (pointer, 33, Errno::INVAL), (8, 2, Errno::FAULT)]
    {
        for command in [command::MAP_MEMORY_TO_GPU, command::UNMAP_MEMORY_FROM_GPU] {
            let mut args = list(pointer, count);
            ensure_eq!(raw::ioctl(client, command, &mut args), Err(errno), "{count} entries at {pointer:#x}");
            ensure_eq!(args.n_success, 0);
        }
    }
    // As many as there may be, one GPU again and again.
    raw::ioctl(client, command::MAP_MEMORY_TO_GPU, &mut list(pointer, 32))?;
    raw::ioctl(client, command::UNMAP_MEMORY_FROM_GPU, &mut list(pointer, 1))?;
    Ok(free(client, handle)?)
}

fn closing() -> Result<(), Stop> {
    const OBJECTS: u64 = 20_000;
    let world = World::new(WorldSpec::default())?;
    let other = world.open()?;
    let start = Instant::now();
    for number in 0..OBJECTS {
        alloc(&other, world.gpu(0), VA + number * PAGE, PAGE, ALLOC_MEM_FLAGS_MMIO_REMAP)?;
    }
    let made = start.elapsed();
    let start = Instant::now();
    drop(other);
    let closed = start.elapsed();
    // Making them takes a call each, so it is the longer part of it. With the square it was thirty
    // times as long.
    ensure!(closed < made * 4 + Duration::from_secs(1), "{OBJECTS} objects: made in {made:?}, closed in {closed:?}");
    Ok(())
}
