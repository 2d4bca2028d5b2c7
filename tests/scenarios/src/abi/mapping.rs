// SPDX-License-Identifier: GPL-2.0 OR MIT
//! MAP, UNMAP and FREE.

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{MapMemoryToGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM};
use vkfd_client::uapi::vkfd;
use vkfd_client::{Client, Errno, GpuVa, PAGE};

use crate::memory::Memory;
use crate::raw::{self, Form, Request};
use crate::{Scenario, Stop, World, WorldSpec};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "map_that_fails_half_way_says_how_far_it_came_and_is_resumed",
        about: "n_success counts the GPUs done; the same call with the bad one put right goes on from there.",
        run: resume,
    },
    Scenario {
        name: "map_and_unmap_can_be_repeated",
        about:
            "Mapping what is mapped is no error and changes nothing; unmapping what is not is EINVAL, as KFD has it.",
        run: idempotent,
    },
    Scenario {
        name: "mapped_memory_cannot_be_freed_and_freed_memory_is_gone",
        about: "FREE of a mapped BO is EBUSY, of a freed or foreign one EINVAL; fault (c), memory freed twice.",
        run: free,
    },
    Scenario {
        name: "map_arguments_are_checked",
        about: "No GPU, a count beyond the list, a list that cannot be read, a handle that is none.",
        run: arguments,
    },
];

fn mapped(client: &Client, handle: u64) -> Result<u32, Stop> {
    let bo = client.bos()?.into_iter().find(|bo| bo.handle == handle);
    bo.map(|bo| bo.mapped_gpus).ok_or_else(|| anyhow::anyhow!("BO {handle:#x} is not there").into())
}

fn two_gpus() -> Result<(World, Memory, Memory, u64), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let memory = Memory::anonymous(16 * PAGE)?;
    let window = raw::gpu_window(16 * PAGE)?;
    let ranges = [memory.range(8 * PAGE, 8 * PAGE), memory.range(0, 8 * PAGE)];
    let handle = Request::new(Form::Command, world.gpu(0), window.whole().start, &ranges).send(world.client())?;
    Ok((world, memory, window, handle))
}

fn resume() -> Result<(), Stop> {
    let (world, _memory, _window, handle) = two_gpus()?;
    let (client, a, b) = (world.client(), world.gpu(0).0, world.gpu(1).0);
    let bad = u32::MAX;
    ensure_eq!(raw::map(client, handle, &[bad, a, b], 0), (0, Err(Errno::INVAL)));
    ensure_eq!(mapped(client, handle)?, 0b00);
    ensure_eq!(raw::map(client, handle, &[a, bad, b], 0), (1, Err(Errno::INVAL)));
    ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_BAD_GPU);
    ensure_eq!(mapped(client, handle)?, 0b01);
    // Entries before n_success are not looked at again.
    ensure_eq!(raw::map(client, handle, &[bad, b, b], 1), (3, Ok(())));
    ensure_eq!(mapped(client, handle)?, 0b11);
    ensure_eq!(raw::map(client, handle, &[bad, bad, bad], 3), (3, Ok(())), "nothing is left to do");
    ensure_eq!(raw::unmap(client, handle, &[b, bad, a], 0), (1, Err(Errno::INVAL)));
    ensure_eq!(mapped(client, handle)?, 0b01);
    ensure_eq!(raw::unmap(client, handle, &[bad, a], 1), (2, Ok(())));
    ensure_eq!(mapped(client, handle)?, 0b00);
    raw::free(client, handle)?;
    Ok(())
}

fn idempotent() -> Result<(), Stop> {
    let (world, memory, window, handle) = two_gpus()?;
    let (client, a, b) = (world.client(), world.gpu(0).0, world.gpu(1).0);
    let va = GpuVa(window.whole().start);
    ensure_eq!(raw::unmap(client, handle, &[a, b, a], 0), (0, Err(Errno::INVAL)), "not mapped yet");
    ensure_eq!(client.ptes(world.gpu(0), va, 1)?, [0]);
    ensure_eq!(raw::map(client, handle, &[a, a, b, a], 0), (4, Ok(())));
    let entries = client.ptes(world.gpu(0), va, 16)?;
    let tables = client.snapshot()?.page_table_bytes;
    ensure!(entries.iter().all(|entry| entry & 1 == 1), "every page has an entry: {entries:x?}");
    ensure_eq!(raw::map(client, handle, &[b, a], 0), (2, Ok(())), "again");
    ensure_eq!(client.ptes(world.gpu(0), va, 16)?, entries);
    ensure_eq!(client.snapshot()?.page_table_bytes, tables);
    ensure_eq!(raw::unmap(client, handle, &[a, a], 0), (1, Err(Errno::INVAL)), "the second time");
    ensure_eq!(client.ptes(world.gpu(0), va, 16)?, [0; 16]);
    ensure_eq!(mapped(client, handle)?, 0b10, "the other GPU's mapping stays");
    ensure_eq!(client.ptes(world.gpu(1), va, 16)?, entries);
    ensure_eq!(raw::unmap(client, handle, &[b], 0), (1, Ok(())));
    raw::free(client, handle)?;
    drop(memory);
    // The same for an object without an address, which cannot be mapped.
    let bare = raw::alloc(client, 0, PAGE, 0, a, ALLOC_MEM_FLAGS_VRAM)?.handle;
    ensure_eq!(raw::unmap(client, bare, &[a], 0), (0, Err(Errno::INVAL)), "without an address");
    raw::free(client, bare)?;
    Ok(())
}

fn free() -> Result<(), Stop> {
    let (world, _memory, window, batch) = two_gpus()?;
    let (client, gpu) = (world.client(), world.id());
    let more = raw::gpu_window(8 * PAGE)?;
    let at = more.whole().start;
    let vram = raw::alloc(client, at, 4 * PAGE, 0, gpu, ALLOC_MEM_FLAGS_VRAM)?.handle;
    let gtt = raw::alloc(client, at + 4 * PAGE, 4 * PAGE, 0, gpu, ALLOC_MEM_FLAGS_GTT)?.handle;
    let other = world.open()?;
    for handle in [batch, vram, gtt] {
        ensure_eq!(raw::map(client, handle, &[gpu], 0), (1, Ok(())));
        ensure_eq!(raw::free(client, handle), Err(Errno::BUSY));
        ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_STILL_MAPPED);
        ensure_eq!(raw::free(&other, handle), Err(Errno::INVAL), "a foreign process's handle");
        ensure_eq!(raw::unmap(client, handle, &[gpu], 0), (1, Ok(())));
        // The upper half is part of it.
        ensure_eq!(raw::free(client, handle & 0xffff_ffff), Err(Errno::INVAL), "half a handle");
        ensure_eq!(raw::free(client, handle ^ 1 << 33), Err(Errno::INVAL), "another GPU's handle");
        raw::free(client, handle)?;
        ensure_eq!(raw::free(client, handle), Err(Errno::INVAL), "freed twice");
        ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_BAD_HANDLE);
        ensure_eq!(raw::map(client, handle, &[gpu], 0).1, Err(Errno::NOMEM), "mapped after it was freed");
        ensure_eq!(raw::unmap(client, handle, &[gpu], 0).1, Err(Errno::NOMEM), "unmapped after it was freed");
    }
    ensure_eq!(client.snapshot()?.bos, 0);
    drop(window);
    Ok(())
}

fn arguments() -> Result<(), Stop> {
    let (world, _memory, _window, handle) = two_gpus()?;
    let (client, gpu) = (world.client(), world.id());
    ensure_eq!(raw::map(client, handle, &[], 0), (0, Err(Errno::INVAL)), "no GPU");
    ensure_eq!(raw::map(client, handle, &[gpu], 2), (2, Err(Errno::INVAL)), "more done than there are");
    ensure_eq!(raw::unmap(client, handle, &[], 0), (0, Err(Errno::INVAL)), "no GPU");
    // As KFD: EINVAL for a GPU that is none, ENOMEM for a number that is none.
    let (none, nothing) = (Errno::INVAL, Errno::NOMEM);
    for (wrong, errno) in [(0, none), (handle + 1, nothing), (u64::MAX, none), (handle >> 32, none)] {
        ensure_eq!(raw::map(client, wrong, &[gpu], 0).1, Err(errno), "handle {wrong:#x}");
        ensure_eq!(raw::unmap(client, wrong, &[gpu], 0).1, Err(errno), "handle {wrong:#x}");
    }
    // The list ends where the mapping does. It is copied first, so no GPU is mapped.
    let list = Memory::anonymous(2 * PAGE)?;
    list.unmap(PAGE, PAGE)?;
    list.write(PAGE - 4, &gpu.to_ne_bytes());
    let mut args =
        MapMemoryToGpuArgs { handle, device_ids_array_ptr: list.whole().start + PAGE - 4, n_devices: 2, n_success: 0 };
    ensure_eq!(raw::ioctl(client, command::MAP_MEMORY_TO_GPU, &mut args), Err(Errno::FAULT));
    ensure_eq!(args.n_success, 0);
    ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_BAD_POINTER);
    ensure_eq!(client.bos()?.iter().map(|bo| bo.mapped_gpus).max(), Some(0));
    for bad in [0, 1 << 47, u64::MAX - 3] {
        let mut args = MapMemoryToGpuArgs { handle, device_ids_array_ptr: bad, n_devices: 1, n_success: 0 };
        ensure_eq!(raw::ioctl(client, command::MAP_MEMORY_TO_GPU, &mut args), Err(Errno::FAULT), "list at {bad:#x}");
    }
    raw::free(client, handle)?;
    Ok(())
}
