// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Limits hold, can be read, and what was taken is given back.

use std::time::Duration;

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{GetAvailableMemoryArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::vkfd::{self, CapsArgs, QUERY_CAPS};
use vkfd_client::{
    AllocOptions, Buffer, Client, CopyQueue, Errno, GpuId, ProcessInfo, RegisterOptions, Strategy, UserptrRange, PAGE,
};

use crate::memory::{Layout, Memory};
use crate::raw::{self, Request, FORMS};
use crate::{Scenario, Stop, World, WorldSpec};

/// The scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "memory_limit_holds_to_the_byte_and_is_given_back",
        about: "Row 15 and fault (h): registrations and GTT of all processes count, also each alias of a page; what the capabilities say \
                is left fits, and a page more does not.",
        run: memory_limit,
    },
    Scenario {
        name: "vram_runs_out_and_comes_back",
        about: "ENOMEM when VRAM is used up, also for page tables of registered memory; AVAILABLE_MEMORY agrees.",
        run: vram,
    },
    Scenario {
        name: "nothing_is_left_after_everything_was_freed",
        about: "Page tables, notifiers, BOs, queues, events and accounts are as before, twice in a row.",
        run: freed,
    },
    Scenario {
        name: "nothing_is_left_after_a_process_closed_with_everything_in_use",
        about: "Mapped BOs of every kind and running queues; VRAM, the memory limit and the notifiers come back. Faults (c) and (d).",
        run: closed,
    },
    Scenario {
        name: "bookkeeping_of_a_batch_is_small",
        about: "At most 64 bytes a range and 16 a page, page-table entries of one GPU among them, for 65,536 ranges and for one.",
        run: bookkeeping,
    },
    Scenario {
        name: "notifiers_are_few_however_many_ranges_there_are",
        about: "Section 4's first objection, a notifier a range: ranges near each other share one, and there is a most.",
        run: windows,
    },
    Scenario {
        name: "capabilities_tell_the_limits_in_force",
        about: "Section 7: published limits are missing. What was configured is what is reported.",
        run: capabilities,
    },
];

/// The capabilities now.
pub(crate) fn caps(client: &Client) -> Result<CapsArgs, Errno> {
    let mut args = CapsArgs::zeroed();
    raw::ioctl(client, QUERY_CAPS, &mut args).map(|()| args)
}

/// VRAM left, in bytes.
pub(crate) fn available(client: &Client, gpu: GpuId) -> Result<u64, Errno> {
    let mut args = GetAvailableMemoryArgs { available: 0, gpu_id: gpu.0, pad: 0 };
    raw::ioctl(client, command::AVAILABLE_MEMORY, &mut args).map(|()| args.available)
}

/// A process's objects, without its history.
pub(crate) fn holdings(info: &ProcessInfo) -> [(&'static str, u64); 11] {
    [
        ("BOs", info.bos),
        ("userptr BOs", info.userptr_bos),
        ("ranges", info.userptr_ranges),
        ("userptr bytes", info.userptr_bytes),
        ("GTT bytes", info.gtt_bytes),
        ("VRAM bytes", info.vram_bytes),
        ("notifiers", info.notifiers),
        ("queues", info.queues),
        ("events", info.events),
        ("VMs", info.vms),
        ("page-table bytes", info.page_table_bytes),
    ]
}

fn register(client: &Client, ranges: &[UserptrRange], options: &RegisterOptions) -> vkfd_client::Result<Buffer> {
    // SAFETY: the scenario accesses the memory by volatile operations only.
    unsafe { client.register_ranges(ranges, options) }
}

fn memory_limit() -> Result<(), Stop> {
    // 63/64 of it less 1.5 GiB: 39 MiB.
    let world = World::new(WorldSpec { ram: Some(1600 << 20), ..WorldSpec::default() })?;
    let (first, second) = (world.client(), world.open()?);
    let limit = caps(first)?.max_bytes;
    ensure_eq!(limit, 39 << 20);
    let memory = Memory::anonymous(1 << 20)?;
    let window = raw::gpu_window(128 << 20)?;
    let va = window.whole().start;
    for form in FORMS {
        // The same MiB again and again: the bytes asked for count.
        let list = |mib: usize| vec![memory.whole(); mib];
        let batch = |mib| Request::new(form, world.gpu(0), va, &list(mib));
        batch(40).must_fail(first, Errno::NOMEM, vkfd::REASON_MEMORY_LIMIT, None)?;
        ensure_eq!(caps(first)?.max_bytes, limit, "nothing is charged for a refused batch");
        let most = batch(39).send(first)?;
        ensure_eq!(caps(first)?.max_bytes, 0);
        for client in [first, &second] {
            let gtt = raw::alloc(client, va + (64 << 20), PAGE, 0, world.id(), ALLOC_MEM_FLAGS_GTT);
            ensure_eq!(gtt, Err(Errno::NOMEM), "a page of GTT memory more");
            ensure_eq!(raw::last_error(client)?.reason, vkfd::REASON_MEMORY_LIMIT);
        }
        raw::free(first, most)?;
        let gtt = raw::alloc(&second, va, 9 << 20, 0, world.id(), ALLOC_MEM_FLAGS_GTT)?;
        ensure_eq!(caps(first)?.max_bytes, 30 << 20, "another process's GTT memory counts");
        batch(31).must_fail(first, Errno::NOMEM, vkfd::REASON_MEMORY_LIMIT, None)?;
        let less = batch(30).send(first)?;
        let single = raw::alloc(first, va + (64 << 20), PAGE, memory.whole().start, world.id(), raw::USERPTR);
        ensure_eq!(single, Err(Errno::NOMEM), "a page more of a single range");
        raw::free(first, less)?;
        raw::free(&second, gtt.handle)?;
        ensure_eq!(caps(first)?.max_bytes, limit);
    }
    // VRAM is not system memory.
    let vram = raw::alloc(first, va, 64 << 20, 0, world.id(), ALLOC_MEM_FLAGS_VRAM)?;
    ensure_eq!(caps(first)?.max_bytes, limit);
    raw::free(first, vram.handle)?;
    Ok(())
}

fn vram() -> Result<(), Stop> {
    let world = World::new(WorldSpec { vram_bytes: 32 << 20, ..WorldSpec::default() })?;
    let (client, gpu) = (world.client(), world.gpu(0));
    let memory = Memory::anonymous(8 << 20)?;
    let start = available(client, gpu)?;
    // A MiB for each object: as many as there are MiB, a few small ones, and the batch's place
    // behind them.
    let objects = (start >> 20) + 64;
    let window = raw::gpu_window((objects << 20) + memory.bytes())?;
    let va = window.whole().start;
    let before = holdings(&client.snapshot()?);
    let mut taken = Vec::new();
    for _ in 0..2 {
        let mut handles = Vec::new();
        // From a MiB down to a page, until nothing fits.
        for size in [1 << 20, 64 << 10, PAGE] {
            loop {
                let at = va + (handles.len() as u64) * (1 << 20);
                let left = available(client, gpu)?;
                match raw::alloc(client, at, size, 0, gpu.0, ALLOC_MEM_FLAGS_VRAM) {
                    Ok(made) => {
                        handles.push(made.handle);
                        ensure_eq!(available(client, gpu)?, left - size, "after {size:#x} bytes");
                    }
                    Err(errno) => {
                        ensure_eq!((errno, raw::last_error(client)?.reason), (Errno::NOMEM, vkfd::REASON_NO_VRAM));
                        break;
                    }
                }
            }
        }
        ensure_eq!(available(client, gpu)?, 0, "a page would have fitted");
        // Registering takes no VRAM, mapping takes page tables.
        let ranges = memory.scatter(2048, PAGE, Layout::Shuffled);
        let batch = Request::new(FORMS[0], gpu, va + (objects << 20), &ranges).send(client)?;
        let full = client.snapshot()?.page_table_bytes;
        ensure_eq!(raw::map(client, batch, &[gpu.0], 0), (0, Err(Errno::NOMEM)), "no VRAM for page tables");
        ensure_eq!(client.snapshot()?.page_table_bytes, full);
        taken.push(handles.len());
        for handle in handles {
            raw::free(client, handle)?;
        }
        ensure_eq!(raw::map(client, batch, &[gpu.0], 0), (1, Ok(())), "there is room now");
        ensure_eq!(raw::unmap(client, batch, &[gpu.0], 0), (1, Ok(())));
        raw::free(client, batch)?;
        ensure_eq!(available(client, gpu)?, start);
        ensure_eq!(holdings(&client.snapshot()?), before);
    }
    ensure_eq!(taken[0], taken[1], "VRAM does not crumble");
    Ok(())
}

/// One of everything; the memory and the buffers stay until the result is dropped.
fn one_of_everything(client: &Client, memory: &Memory) -> Result<Vec<Buffer>, Stop> {
    let gpu = client.gpus()[0].id;
    let mut all = vec![client.alloc(&AllocOptions::vram(gpu, 3 << 20))?, client.alloc(&AllocOptions::gtt(5 * PAGE))?];
    let ranges = memory.scatter(256, 2 * PAGE, Layout::Shuffled);
    for strategy in [Strategy::Batch, Strategy::BatchFlag, Strategy::PerRange] {
        all.push(register(client, &ranges, &RegisterOptions { strategy, ..RegisterOptions::default() })?);
    }
    Ok(all)
}

fn freed() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let client = world.client();
    let memory = Memory::anonymous(512 * PAGE)?;
    memory.fill(1);
    // The signal page of a process stays: it is made before.
    drop(CopyQueue::new(client, world.gpu(0))?);
    let state = || -> Result<_, Stop> {
        let info = client.snapshot()?;
        let gpus = [available(client, world.gpu(0))?, available(client, world.gpu(1))?];
        Ok((holdings(&info), gpus, caps(client)?.max_bytes, info.driver_bytes))
    };
    let mut before = state()?;
    for round in 0..3 {
        let buffers = one_of_everything(client, &memory)?;
        let mut queue = CopyQueue::new(client, world.gpu(1))?;
        let (target, source) = (&buffers[0], &buffers[2]);
        queue.copy_now(target.gpu_va(), source.gpu_va(), source.len(), Duration::from_secs(60))?;
        drop(queue);
        for buffer in buffers {
            buffer.free()?;
        }
        let after = state()?;
        if round == 0 {
            // Tables that have grown keep their room, once.
            before.3 = after.3;
        }
        ensure_eq!(after, before, "round {round}");
    }
    Ok(())
}

fn closed() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let watcher = world.client();
    let memory = Memory::anonymous(512 * PAGE)?;
    memory.fill(1);
    let state = || -> Result<_, Stop> {
        let gpus = [available(watcher, world.gpu(0))?, available(watcher, world.gpu(1))?];
        Ok((gpus, caps(watcher)?.max_bytes, holdings(&watcher.snapshot()?)))
    };
    let empty = holdings(&world.open()?.snapshot()?);
    let before = state()?;
    for _ in 0..3 {
        let client = world.open()?;
        ensure_eq!(holdings(&client.snapshot()?), empty, "a new process");
        let window = raw::gpu_window(16 << 20)?;
        let gpus = [world.gpu(0).0, world.gpu(1).0];
        for (i, form) in (0..).zip(FORMS) {
            let ranges = memory.scatter(256, 2 * PAGE, Layout::Shuffled);
            let va = window.whole().start + i * (4 << 20);
            let handle = Request::new(form, world.gpu(0), va, &ranges).send(&client)?;
            ensure_eq!(raw::map(&client, handle, &gpus, 0), (2, Ok(())));
        }
        for (i, flags) in [(2, ALLOC_MEM_FLAGS_VRAM), (3, ALLOC_MEM_FLAGS_GTT)] {
            let va = window.whole().start + i * (4 << 20);
            let made = raw::alloc(&client, va, 1 << 20, 0, world.id(), flags)?;
            ensure_eq!(raw::map(&client, made.handle, &gpus, 0), (2, Ok(())));
        }
        ensure!(state()? != before, "what the process holds shows");
        drop(client);
        ensure_eq!(state()?, before, "after the process closed");
        // Invalidations of its former registrations reach nobody.
        memory.discard(0, memory.bytes())?;
        world.told();
        ensure_eq!(watcher.snapshot()?.invalidations, 0);
        memory.fill(1);
    }
    Ok(())
}

fn bookkeeping() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let pages = 65_536;
    let memory = Memory::anonymous(pages * PAGE)?;
    // What one small batch costs is there in any case.
    let fixed = 16 << 10;
    for (ranges, count) in [(memory.scatter(pages, PAGE, Layout::Shuffled), pages), (vec![memory.whole()], 1)] {
        let before = client.snapshot()?;
        let buffer = register(client, &ranges, &RegisterOptions::default())?;
        let after = client.snapshot()?;
        ensure_eq!(after.userptr_ranges - before.userptr_ranges, count);
        let driver = after.driver_bytes - before.driver_bytes;
        let tables = after.page_table_bytes - before.page_table_bytes;
        ensure!(driver > 0 && tables >= 8 * pages / 512, "{driver} and {tables} bytes are counted");
        // Half of it is page-table entries, on each GPU.
        let gpus = client.gpus().len() as u64;
        let most = 64 * count + 8 * (1 + gpus) * pages + fixed * gpus;
        ensure!(driver + tables <= most, "{driver} and {tables} bytes for {count} ranges of {pages} pages, not {most}");
        buffer.free()?;
        ensure!(client.snapshot()?.driver_bytes <= before.driver_bytes + fixed, "what a freed batch leaves");
    }
    Ok(())
}

fn windows() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let (most, gap) = (client.caps().max_windows, client.caps().window_gap);
    ensure!(most > 0 && gap >= PAGE, "the capabilities say {most} windows and a gap of {gap:#x}");
    let notifiers = |ranges: &[UserptrRange]| -> Result<u64, Stop> {
        let buffer = register(client, ranges, &RegisterOptions::default())?;
        let count = client.snapshot()?.notifiers;
        buffer.free()?;
        ensure_eq!(client.snapshot()?.notifiers, 0, "notifiers of a freed batch");
        Ok(count)
    };
    let far = Memory::anonymous((gap + 2 * PAGE) * 200)?;
    // Exactly the gap apart share a window, a page more does not.
    ensure_eq!(notifiers(&[far.range(0, PAGE), far.range(PAGE + gap, PAGE)])?, 1);
    ensure_eq!(notifiers(&[far.range(0, PAGE), far.range(2 * PAGE + gap, PAGE)])?, 2);
    ensure_eq!(notifiers(&far.scatter(4096, PAGE, Layout::Gaps))?, 1, "4096 ranges next to each other");
    let spread: Vec<UserptrRange> = (0..200).map(|i| far.range(i * (gap + 2 * PAGE), PAGE)).collect();
    let count = notifiers(&spread)?;
    ensure!((1..=most).contains(&count), "{count} notifiers for 200 ranges that are far apart, not up to {most}");
    let few = usize::try_from(most)?.min(spread.len());
    ensure_eq!(notifiers(&spread[..few])?, few as u64, "as many as there may be");
    Ok(())
}

fn capabilities() -> Result<(), Stop> {
    let deadline = Duration::from_millis(1234);
    let spec = WorldSpec {
        ram: Some(8 << 30),
        register_deadline: Some(deadline),
        per_range_windows: true,
        ..WorldSpec::default()
    };
    let world = World::new(spec)?;
    let caps = world.client().caps();
    ensure!(caps.vkfd && caps.batch && caps.batch_flag && caps.read_only && caps.snapshot);
    ensure_eq!(caps.register_deadline_ms, 1234);
    ensure!(caps.restore_pause_ms > 0 && caps.max_ranges >= 65_536);
    ensure_eq!(caps.max_bytes, (8 << 30) - (8 << 30) / 64 - (3 << 29));
    ensure_eq!(caps.window_gap, 0);
    ensure_eq!(caps.max_windows, caps.max_ranges, "one a range");
    let memory = Memory::anonymous(200 * PAGE)?;
    let buffer = register(world.client(), &memory.scatter(100, PAGE, Layout::Gaps), &RegisterOptions::default())?;
    ensure_eq!(world.client().snapshot()?.notifiers, 100);
    buffer.free()?;
    ensure_eq!(world.client().snapshot()?.notifiers, 0);
    Ok(())
}
