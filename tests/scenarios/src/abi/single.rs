// SPDX-License-Identifier: GPL-2.0 OR MIT
//! ALLOC's ordinary path: one CPU range, and the driver's own memory.

use vkfd_client::uapi::memory::{
    ALLOC_MEM_FLAGS_AQL_QUEUE_MEM, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_MMIO_REMAP,
    ALLOC_MEM_FLAGS_USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_WRITABLE,
};
use vkfd_client::uapi::vkfd;
use vkfd_client::{Errno, PAGE};

use crate::memory::Memory;
use crate::raw::{self, USERPTR};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "single_range_checks_are_those_of_kfd",
        about: "Section 5: size 0, CPU address 0, unaligned, no mapping, no permission, unknown GPU, wrong flags.",
        run: checks,
    },
    Scenario {
        name: "gpu_addresses_are_used_once",
        about: "A GPU range that shares a page with another BO's is EADDRINUSE; next to it and after it has gone there is room.",
        run: gpu_addresses,
    },
    Scenario {
        name: "kinds_of_memory_exclude_each_other",
        about: "ALLOC wants exactly one kind; doorbells and registers have their one size.",
        run: kinds,
    },
];

fn checks() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(4 * PAGE)?;
    let window = raw::gpu_window(4 * PAGE)?;
    let (client, gpu) = (world.client(), world.id());
    let (va, cpu) = (window.whole().start, memory.whole().start);
    let fail = |va, size, cpu, gpu, flags, errno, reason, range: Option<u64>| {
        let result = raw::alloc(client, va, size, cpu, gpu, flags);
        let what = format!("ALLOC of {size:#x} bytes at {cpu:#x}, flags {flags:#x}");
        ensure_eq!(result, Err(errno), "{what}");
        raw::nothing_made(client, errno, reason, range, &what)
    };
    let zero = vkfd::REASON_ZERO_OR_UNALIGNED;
    fail(va, 0, cpu, gpu, USERPTR, Errno::INVAL, zero, None)?;
    fail(va, PAGE, 0, gpu, USERPTR, Errno::INVAL, zero, Some(0))?;
    fail(va, PAGE, cpu + 1, gpu, USERPTR, Errno::INVAL, zero, Some(0))?;
    fail(va, PAGE + 1, cpu, gpu, USERPTR, Errno::INVAL, zero, Some(0))?;
    fail(va + 1, PAGE, cpu, gpu, USERPTR, Errno::INVAL, zero, None)?;
    fail(va, u64::MAX - PAGE + 1, cpu, gpu, USERPTR, Errno::INVAL, vkfd::REASON_WRAPS, Some(0))?;
    fail(va, PAGE, cpu, !gpu, USERPTR, Errno::INVAL, vkfd::REASON_BAD_GPU, None)?;
    let aql = USERPTR | ALLOC_MEM_FLAGS_AQL_QUEUE_MEM;
    fail(va, PAGE, cpu, gpu, aql, Errno::INVAL, vkfd::REASON_BAD_FLAGS, None)?;
    fail(va, PAGE, cpu, gpu, USERPTR | 1 << 5, Errno::INVAL, vkfd::REASON_BAD_FLAGS, None)?;
    // A hole in the middle.
    memory.unmap(2 * PAGE, PAGE)?;
    fail(va, 4 * PAGE, cpu, gpu, USERPTR, Errno::FAULT, vkfd::REASON_NOT_MAPPED, Some(0))?;
    memory.map_again(2 * PAGE, PAGE)?;
    // Writing where only reading is allowed; reading is enough for reading.
    memory.protect(3 * PAGE, PAGE, libc::PROT_READ)?;
    fail(va, 4 * PAGE, cpu, gpu, USERPTR, Errno::PERM, vkfd::REASON_NO_PERMISSION, Some(0))?;
    let read_only = raw::alloc(client, va, 4 * PAGE, cpu, gpu, ALLOC_MEM_FLAGS_USERPTR)?;
    raw::free(client, read_only.handle)?;
    memory.protect(3 * PAGE, PAGE, libc::PROT_NONE)?;
    let flags = ALLOC_MEM_FLAGS_USERPTR;
    fail(va, 4 * PAGE, cpu, gpu, flags, Errno::PERM, vkfd::REASON_NO_PERMISSION, Some(0))?;
    memory.protect(3 * PAGE, PAGE, libc::PROT_READ | libc::PROT_WRITE)?;
    let good = raw::alloc(client, va, 4 * PAGE, cpu, gpu, USERPTR)?;
    ensure_eq!(good.mmap_offset, 0, "registered memory cannot be mapped through the device");
    ensure_eq!(good.handle >> 32, u64::from(gpu), "a handle has the gpu_id in its upper half");
    raw::free(client, good.handle)?;
    Ok(())
}

fn gpu_addresses() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let memory = Memory::anonymous(4 * PAGE)?;
    let window = raw::gpu_window(8 * PAGE)?;
    let (client, gpu) = (world.client(), world.id());
    let (va, cpu) = (window.whole().start, memory.whole().start);
    let alloc = |page: u64, pages: u64, flags| raw::alloc(client, va + page * PAGE, pages * PAGE, cpu, gpu, flags);
    let middle = alloc(2, 2, USERPTR)?;
    for flags in [USERPTR, ALLOC_MEM_FLAGS_VRAM, ALLOC_MEM_FLAGS_GTT] {
        for (page, pages) in [(2, 2), (1, 2), (3, 2), (1, 4), (2, 1)] {
            let result = alloc(page, pages, flags);
            ensure_eq!(result, Err(Errno::ADDRINUSE), "pages {page}+{pages}, flags {flags:#x}");
            if client.caps().vkfd {
                ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_GPU_RANGE_BUSY);
            }
        }
    }
    let below = alloc(0, 2, ALLOC_MEM_FLAGS_VRAM)?;
    let above = alloc(4, 4, USERPTR)?;
    for handle in [middle.handle, below.handle, above.handle] {
        raw::free(client, handle)?;
    }
    let whole = raw::alloc(client, va, 8 * PAGE, 0, gpu, ALLOC_MEM_FLAGS_GTT)?;
    // Another process has GPU addresses of its own.
    let other = world.open()?;
    let same = raw::alloc(&other, va, 8 * PAGE, 0, gpu, ALLOC_MEM_FLAGS_GTT)?;
    raw::free(&other, same.handle)?;
    raw::free(client, whole.handle)?;
    Ok(())
}

fn kinds() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let window = raw::gpu_window(4 << 20)?;
    let memory = Memory::anonymous(PAGE)?;
    let (client, gpu, va) = (world.client(), world.id(), window.whole().start);
    let all = [
        ALLOC_MEM_FLAGS_VRAM,
        ALLOC_MEM_FLAGS_GTT,
        ALLOC_MEM_FLAGS_USERPTR,
        ALLOC_MEM_FLAGS_DOORBELL,
        ALLOC_MEM_FLAGS_MMIO_REMAP,
    ];
    for (i, a) in all.iter().enumerate() {
        for b in &all[i + 1..] {
            let result = raw::alloc(client, va, PAGE, memory.whole().start, gpu, a | b);
            ensure_eq!(result, Err(Errno::INVAL), "flags {:#x}", a | b);
        }
    }
    ensure_eq!(raw::alloc(client, va, PAGE, 0, gpu, ALLOC_MEM_FLAGS_WRITABLE), Err(Errno::INVAL));
    for (flags, bytes) in [(ALLOC_MEM_FLAGS_DOORBELL, 8192), (ALLOC_MEM_FLAGS_MMIO_REMAP, PAGE)] {
        for wrong in [bytes + PAGE, 16 * PAGE] {
            ensure_eq!(raw::alloc(client, va, wrong, 0, gpu, flags), Err(Errno::INVAL), "flags {flags:#x}");
        }
        let made = raw::alloc(client, va, bytes, 0, gpu, flags)?;
        ensure!(made.mmap_offset != 0, "flags {flags:#x} can be mapped by the client");
        ensure_eq!(raw::map(client, made.handle, &[gpu], 0), (1, Ok(())));
        ensure_eq!(raw::unmap(client, made.handle, &[gpu], 0), (1, Ok(())));
        raw::free(client, made.handle)?;
    }
    Ok(())
}
