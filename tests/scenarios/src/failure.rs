// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whatever a call fails at, it leaves nothing behind, and the next one works.
//!
//! Mechanism: the driver passes a failpoint at each allocation and each call to its host. A
//! scenario lets the first one of a call fail, then the second one, and so on, until the call
//! succeeds because it has no more.

use vkfd_client::uapi::command;
use vkfd_client::uapi::event::{CreateEventArgs, DestroyEventArgs, EVENT_SIGNAL};
use vkfd_client::uapi::memory::{
    ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_MMIO_REMAP, ALLOC_MEM_FLAGS_VRAM,
};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::queue::{
    CreateQueueArgs, DestroyQueueArgs, MAX_QUEUE_PERCENTAGE, QUEUE_TYPE_COMPUTE_AQL, QUEUE_TYPE_SDMA,
};
use vkfd_client::uapi::vkfd::{
    self, BoInfo, RangeInfo, SnapshotArgs, SNAPSHOT, SNAPSHOT_BOS, SNAPSHOT_PAGES, SNAPSHOT_PROCESS, SNAPSHOT_RANGES,
};
use vkfd_client::{AllocOptions, Client, CpuVa, Errno, PAGE};

use crate::limits::{available, caps, holdings};
use crate::memory::{Layout, Memory};
use crate::raw::{self, Form, Request, FORMS};
use crate::{Scenario, Seen, Stop, World, WorldSpec};

/// The scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "allocations_of_every_kind_fail_anywhere_and_leave_nothing",
        about: "VRAM, GTT, a single range, doorbells, registers: each failpoint in turn.",
        run: allocations,
    },
    Scenario {
        name: "batch_of_a_hundred_fails_anywhere_and_leaves_nothing",
        about: "Both forms, one notifier for all and one a range. Faults (c) and (d): arrays and notifiers of a list that failed half way.",
        run: batches,
    },
    Scenario {
        name: "objects_accumulate_although_every_growth_of_a_table_fails_first",
        about: "Forty of each kind at once: what a table that cannot grow had been given before is taken back.",
        run: growth,
    },
    Scenario {
        name: "map_and_unmap_fail_anywhere_and_leave_nothing",
        about: "MAP to two GPUs can fail at each step and is taken back; UNMAP and FREE need no memory and do not fail.",
        run: mappings,
    },
    Scenario {
        name: "queues_and_events_fail_anywhere_and_leave_nothing",
        about: "CREATE_QUEUE of both kinds, CREATE_EVENT.",
        run: queues,
    },
    Scenario {
        name: "svm_calls_fail_anywhere_and_register_nothing",
        about: "A failed SVM call leaves no SVM range that would be in a registration's way.",
        run: svm,
    },
    Scenario {
        name: "snapshots_fail_or_not_and_change_nothing",
        about: "Looking at a process is no change of it.",
        run: snapshots,
    },
    Scenario {
        name: "opening_and_acquire_vm_fail_anywhere_and_leave_nothing",
        about: "A process that could not be opened, or got no VM, takes neither memory nor VRAM nor a VMID.",
        run: opening,
    },
    Scenario {
        name: "a_hole_in_the_list_leaves_no_notifier_on_any_range",
        about: "Fault (d): one unmapped range of 100, at each end and inside; EFAULT names it, and no later change of the memory is anyone's \
                invalidation.",
        run: holes,
    },
];

/// No call has more failpoints on its way.
const ENOUGH: u64 = 4000;

struct Sweep<'a> {
    world: &'a World,
    client: &'a Client,
}

type State = ([(&'static str, u64); 11], Vec<u64>, u64);

impl<'a> Sweep<'a> {
    fn new(world: &'a World) -> Self {
        Self { world, client: world.client() }
    }

    fn state(&self) -> Result<State, Stop> {
        let gpus = self.client.gpus().iter().map(|gpu| available(self.client, gpu.id));
        let left = gpus.collect::<Result<_, _>>()?;
        Ok((holdings(&self.client.snapshot()?), left, caps(self.client)?.max_bytes))
    }

    /// Lets `call` fail at each point in turn. What it made is undone by `undo`. Returns how many
    /// points there were.
    fn run<T>(
        &self,
        what: &str,
        call: impl Fn() -> Result<T, Errno>,
        undo: impl Fn(T) -> Result<(), Errno>,
    ) -> Result<u64, Stop> {
        // Tables grow once.
        undo(call()?)?;
        let before = self.state()?;
        let bytes = self.client.snapshot()?.driver_bytes;
        for n in 0..ENOUGH {
            let (result, reached) = self.world.fail_nth(n, &call)?;
            match result {
                Ok(made) => undo(made)?,
                Err(errno) => {
                    ensure!(reached, "{what}: {errno:?} although nothing was made to fail");
                    ensure_eq!(errno, Errno::NOMEM, "{what}: failing at point {n}");
                }
            }
            ensure_eq!(self.state()?, before, "{what}: what is left after failing at point {n}");
            let again = call();
            ensure!(again.is_ok(), "{what}: after failing at point {n} the same call ends in {:?}", again.err());
            undo(again?)?;
            ensure_eq!(self.state()?, before, "{what}: what is left after point {n} and a success");
            if !reached {
                let now = self.client.snapshot()?.driver_bytes;
                ensure!(now <= bytes, "{what}: {bytes} bytes of bookkeeping before, {now} after");
                return Ok(n);
            }
        }
        bail!("{what}: more than {ENOUGH} failpoints")
    }

    /// Makes `count` of something that stay, so that tables grow; each fails at every point first.
    fn accumulate<T: Copy>(
        &self,
        what: &str,
        count: u64,
        make: impl Fn(u64) -> Result<T, Errno>,
        end: impl Fn(T) -> Result<(), Errno>,
    ) -> Result<(), Stop> {
        let before = self.state()?;
        let mut all = Vec::new();
        for i in 0..count {
            let state = self.state()?;
            for n in 0..ENOUGH {
                let (result, reached) = self.world.fail_nth(n, || make(i))?;
                match result {
                    Ok(made) if !reached => {
                        all.push(made);
                        break;
                    }
                    Ok(made) => end(made)?,
                    Err(errno) => ensure_eq!((errno, reached), (Errno::NOMEM, true), "{what} {i} at point {n}"),
                }
                ensure_eq!(self.state()?, state, "{what} {i} at point {n}");
            }
        }
        ensure_eq!(all.len() as u64, count, "{what}");
        for made in all {
            end(made)?;
        }
        ensure_eq!(self.state()?, before, "{what}: what is left in the end");
        Ok(())
    }
}

fn allocations() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let sweep = Sweep::new(&world);
    let memory = Memory::anonymous(32 * PAGE)?;
    let window = raw::gpu_window(8 << 20)?;
    let (client, va, cpu) = (world.client(), window.whole().start, memory.whole().start);
    for (what, flags, bytes) in [
        ("VRAM", ALLOC_MEM_FLAGS_VRAM, 3 << 20),
        ("GTT", ALLOC_MEM_FLAGS_GTT, 3 << 20),
        ("a single range", raw::USERPTR, 32 * PAGE),
        ("doorbells", ALLOC_MEM_FLAGS_DOORBELL, 8192),
        ("registers", ALLOC_MEM_FLAGS_MMIO_REMAP, PAGE),
    ] {
        let points = sweep.run(
            what,
            || raw::alloc(client, va, bytes, if flags == raw::USERPTR { cpu } else { 0 }, world.id(), flags),
            |made| raw::free(client, made.handle),
        )?;
        ensure!(points >= 3, "{what}: only {points} failpoints");
    }
    Ok(())
}

fn batches() -> Result<(), Stop> {
    for per_range_windows in [false, true] {
        let world = World::new(WorldSpec { per_range_windows, ..WorldSpec::default() })?;
        let sweep = Sweep::new(&world);
        let memory = Memory::anonymous(400 * PAGE)?;
        memory.fill(1);
        let window = raw::gpu_window(400 * PAGE)?;
        let client = world.client();
        for form in FORMS {
            let ranges = memory.scatter(100, 2 * PAGE, Layout::Gaps);
            let request = Request::new(form, world.gpu(0), window.whole().start, &ranges);
            let points =
                sweep.run(&format!("{form:?}"), || request.send(client), |handle| raw::free(client, handle))?;
            ensure!(points >= 10, "{form:?}: only {points} failpoints");
        }
        let heard = client.snapshot()?.invalidations;
        memory.discard(0, memory.bytes())?;
        world.told();
        ensure_eq!(client.snapshot()?.invalidations, heard, "a failed batch hears of its memory");
    }
    Ok(())
}

fn growth() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let sweep = Sweep::new(&world);
    let client = world.client();
    let memory = Memory::anonymous(100 * PAGE)?;
    let window = raw::gpu_window(16 << 20)?;
    let va = |i: u64| window.whole().start + i * 16 * PAGE;
    let gpu = world.gpu(0);
    let free = |handle| raw::free(client, handle);
    for (what, flags) in [("VRAM", ALLOC_MEM_FLAGS_VRAM), ("GTT", ALLOC_MEM_FLAGS_GTT), ("userptr", raw::USERPTR)] {
        // Ranges that do not overlap, so that each has a place of its own in the tables.
        let cpu = |i: u64| if flags == raw::USERPTR { memory.range(2 * i * PAGE, PAGE).start } else { 0 };
        let make = |i| raw::alloc(client, va(i), PAGE, cpu(i), gpu.0, flags).map(|made| made.handle);
        sweep.accumulate(what, 40, make, free)?;
    }
    let ranges = |i: u64| [memory.range((2 * i + 1) * PAGE, PAGE), memory.range(2 * i * PAGE, PAGE)];
    sweep.accumulate("batches", 40, |i| Request::new(Form::Command, gpu, va(i), &ranges(i)).send(client), free)?;
    Ok(())
}

const BATCH: &str = "a batch";

type Make<'a> = &'a dyn Fn() -> Result<u64, Errno>;

fn mappings() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let sweep = Sweep::new(&world);
    let client = world.client();
    let memory = Memory::anonymous(400 * PAGE)?;
    let window = raw::gpu_window(32 << 20)?;
    let va = window.whole().start;
    let ranges = memory.scatter(100, 2 * PAGE, Layout::Gaps);
    let gpus = [world.gpu(0).0, world.gpu(1).0];
    let batch = || Request::new(Form::Command, world.gpu(0), va, &ranges).send(client);
    let vram = || raw::alloc(client, va + (8 << 20), 6 << 20, 0, world.id(), ALLOC_MEM_FLAGS_VRAM).map(|a| a.handle);
    let gtt = || raw::alloc(client, va + (16 << 20), 6 << 20, 0, world.id(), ALLOC_MEM_FLAGS_GTT).map(|a| a.handle);
    let makers: [(&str, Make<'_>); 3] = [(BATCH, &batch), ("VRAM", &vram), ("GTT", &gtt)];
    for (what, make) in makers {
        let handle = make()?;
        let unmap_all = || raw::unmap(client, handle, &gpus, 0).1;
        let map_all = || {
            let (done, result) = raw::map(client, handle, &gpus, 0);
            if result.is_err() {
                // As the ABI has it, what n_success counts stays mapped.
                let done = usize::try_from(done).unwrap_or(0);
                raw::unmap(client, handle, &gpus[..done], 0).1.or(if done == 0 { Ok(()) } else { Err(Errno::BUSY) })?;
            }
            result
        };
        let points = sweep.run(&format!("MAP of {what}"), map_all, |()| unmap_all())?;
        ensure!(points >= 2, "MAP of {what}: only {points} failpoints");
        if what == BATCH && world.sees(Seen::Discard).is_ok() {
            // Its memory changed while it was not mapped: MAP has pages to fault in, and can fail
            // at that too.
            let changed = || {
                memory.discard(0, memory.bytes()).map_err(|_| Errno::IO)?;
                world.told();
                map_all()
            };
            let more = sweep.run("MAP of an invalidated batch", changed, |()| unmap_all())?;
            ensure!(more > points, "{more} failpoints with pages to fault in, {points} without");
        }
        map_all()?;
        let points = sweep.run(&format!("UNMAP of {what}"), unmap_all, |()| map_all())?;
        ensure_eq!(points, 0, "UNMAP of {what} has failpoints on its way");
        unmap_all()?;
        let freed = world.fail_nth(0, || raw::free(client, handle))?;
        ensure_eq!(freed, (Ok(()), false), "FREE of {what} needs memory");
    }
    ensure_eq!(client.snapshot()?.bos, 0);
    Ok(())
}

fn queues() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let sweep = Sweep::new(&world);
    let client = world.client();
    let ring = client.alloc(&AllocOptions::gtt(4 * PAGE))?;
    for (what, queue_type) in [("an SDMA queue", QUEUE_TYPE_SDMA), ("a compute queue", QUEUE_TYPE_COMPUTE_AQL)] {
        let create = || {
            let mut args = CreateQueueArgs {
                ring_base_address: ring.gpu_va().0,
                ring_size: 4096,
                read_pointer_address: ring.gpu_va().0 + 2 * PAGE,
                write_pointer_address: ring.gpu_va().0 + 2 * PAGE + 64,
                eop_buffer_address: ring.gpu_va().0 + 3 * PAGE,
                eop_buffer_size: PAGE,
                gpu_id: world.id(),
                queue_type,
                queue_percentage: MAX_QUEUE_PERCENTAGE,
                ..CreateQueueArgs::zeroed()
            };
            raw::ioctl(client, command::CREATE_QUEUE, &mut args).map(|()| args.queue_id)
        };
        let destroy = |queue_id| raw::ioctl(client, command::DESTROY_QUEUE, &mut DestroyQueueArgs { queue_id, pad: 0 });
        let points = sweep.run(what, create, destroy)?;
        ensure!(points >= 1, "{what}: only {points} failpoints");
        ensure_eq!(destroy(create()?), Ok(()));
    }
    let create = || {
        let mut args = CreateEventArgs { event_type: EVENT_SIGNAL, ..CreateEventArgs::zeroed() };
        raw::ioctl(client, command::CREATE_EVENT, &mut args).map(|()| args.event_id)
    };
    let destroy = |event_id| raw::ioctl(client, command::DESTROY_EVENT, &mut DestroyEventArgs { event_id, pad: 0 });
    sweep.accumulate("events", 100, |_| create(), destroy)?;
    ensure_eq!(client.snapshot()?.events, 0);
    Ok(())
}

fn svm() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let memory = Memory::anonymous(64 * PAGE)?;
    let window = raw::gpu_window(64 * PAGE)?;
    let (mut failures, mut n) = (0, 0);
    for page in (0..64).step_by(2) {
        let range = memory.range(page * PAGE, PAGE);
        let (result, reached) = world.fail_nth(n, || raw::register_svm(client, range))?;
        let registered = raw::alloc(client, window.whole().start, PAGE, range.start, world.id(), raw::USERPTR);
        match result {
            Ok(()) => ensure_eq!(registered, Err(Errno::ADDRINUSE), "point {n}"),
            Err(errno) => {
                ensure_eq!((errno, reached), (Errno::NOMEM, true), "point {n}");
                raw::free(client, registered?.handle)?;
                failures += 1;
                ensure_eq!(raw::register_svm(client, range), Ok(()), "again after point {n}");
            }
        }
        n = if reached { n + 1 } else { 0 };
    }
    ensure!(failures >= 5, "only {failures} calls failed");
    Ok(())
}

fn snapshots() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let client = world.client();
    let sweep = Sweep::new(&world);
    let memory = Memory::anonymous(200 * PAGE)?;
    let window = raw::gpu_window(200 * PAGE)?;
    let ranges = memory.scatter(100, PAGE, Layout::Gaps);
    let handle = Request::new(Form::Command, world.gpu(0), window.whole().start, &ranges).send(client)?;
    ensure_eq!(raw::map(client, handle, &[world.id()], 0), (1, Ok(())));
    let room = vec![0_u64; 100 * size_of::<BoInfo>().max(size_of::<RangeInfo>()) / 8];
    for (what, op, subject, count) in [
        ("process", SNAPSHOT_PROCESS, 0, 1),
        ("BOs", SNAPSHOT_BOS, 0, 1),
        ("ranges", SNAPSHOT_RANGES, handle, 100),
        ("pages", SNAPSHOT_PAGES, window.whole().start, 100),
    ] {
        let look = || {
            let buffer = CpuVa::of(room.as_ptr()).0;
            let mut args = SnapshotArgs { op, index: 0, handle: subject, buffer, capacity: 100, count: 0, total: 0 };
            raw::ioctl(client, SNAPSHOT, &mut args).map(|()| args.count)
        };
        ensure_eq!(look(), Ok(count), "{what}");
        sweep.run(what, look, |_| Ok(()))?;
    }
    // Room that cannot be written, and none.
    for op in [SNAPSHOT_PROCESS, SNAPSHOT_BOS] {
        let mut args = SnapshotArgs { op, index: 0, handle: 0, buffer: 1 << 47, capacity: 1, count: 0, total: 0 };
        ensure_eq!(raw::ioctl(client, SNAPSHOT, &mut args), Err(Errno::FAULT));
        args.capacity = 0;
        ensure_eq!(raw::ioctl(client, SNAPSHOT, &mut args), Ok(()));
        ensure_eq!((args.count, args.total), (0, 1));
    }
    ensure_eq!(raw::unmap(client, handle, &[world.id()], 0), (1, Ok(())));
    raw::free(client, handle)?;
    Ok(())
}

fn opening() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    let sweep = Sweep::new(&world);
    let before = sweep.state()?;
    let acquire = |process: &dyn vkfd_client::Transport, gpu: usize| {
        let mut args = [process.render_fd(world.gpu(gpu)).unwrap_or(0), world.gpu(gpu).0];
        raw::send(process, command::ACQUIRE_VM, CpuVa::of(args.as_mut_ptr()).0)
    };
    let mut failures = 0;
    for n in 0..ENOUGH {
        let (process, reached) = world.fail_nth(n, || world.transport())?;
        if let Err(Stop::Fail(error)) = &process {
            let text = error.to_string();
            ensure!(reached && text.contains("ENOMEM"), "open, failing at point {n}: {text}");
            failures += 1;
        }
        drop(process);
        ensure_eq!(sweep.state()?, before, "open, failing at point {n}");
        if !reached {
            break;
        }
    }
    ensure!(failures >= 5, "open failed {failures} times");
    for n in 0..ENOUGH {
        let process = world.transport()?;
        acquire(&*process, 1)?;
        // Opening the render node, which may fail as well, is not what is tried here.
        let _ = process.render_fd(world.gpu(0));
        let (result, reached) = world.fail_nth(n, || acquire(&*process, 0))?;
        ensure!(result == Ok(()) || (reached && result == Err(Errno::NOMEM)), "ACQUIRE_VM at point {n}: {result:?}");
        ensure_eq!(acquire(&*process, 0), Ok(()), "again after point {n}");
        ensure_eq!(acquire(&*process, 0), Ok(()), "a VM that is there");
        drop(process);
        ensure_eq!(sweep.state()?, before, "ACQUIRE_VM, failing at point {n}");
        if !reached {
            ensure!(n >= 2, "ACQUIRE_VM has only {n} failpoints");
            return Ok(());
        }
    }
    bail!("more than {ENOUGH} failpoints")
}

fn holes() -> Result<(), Stop> {
    for per_range_windows in [false, true] {
        let world = World::new(WorldSpec { per_range_windows, ..WorldSpec::default() })?;
        let client = world.client();
        let memory = Memory::anonymous(100 * PAGE)?;
        let window = raw::gpu_window(100 * PAGE)?;
        let order = memory.scatter(100, PAGE, Layout::Shuffled);
        for k in [0, 1, 50, 98, 99] {
            let offset = order[k].start - memory.whole().start;
            for form in FORMS {
                memory.unmap(offset, PAGE)?;
                let heard = client.snapshot()?.invalidations;
                let request = Request::new(form, world.gpu(0), window.whole().start, &order);
                request.must_fail(client, Errno::FAULT, vkfd::REASON_NOT_MAPPED, Some(k as u64))?;
                memory.map_again(offset, PAGE)?;
                // Every range changes, the ones before the hole and the ones behind it.
                memory.discard(0, memory.bytes())?;
                memory.replace(0, memory.bytes())?;
                memory.fill(1);
                world.told();
                ensure_eq!(client.snapshot()?.invalidations, heard, "{form:?}, hole at {k}: someone listens");
                let handle = request.send(client)?;
                if world.sees(Seen::Discard).is_ok() {
                    // A registered list does hear.
                    memory.discard(0, memory.bytes())?;
                    world.until("the discard was heard", |info| info.invalidations > heard)?;
                }
                raw::free(client, handle)?;
            }
        }
        ensure_eq!(client.snapshot()?.bos, 0);
    }
    Ok(())
}
