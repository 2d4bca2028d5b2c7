// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Eviction and restore: what waits, what goes on, and what must not spin.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vkfd_client::uapi::vkfd::{RANGE_DENIED, RANGE_VALID};
use vkfd_client::{
    AllocOptions, Client, ClientError, CopyQueue, Errno, GpuId, GpuSet, MmapFile, Node, RegisterOptions, Transport,
    PAGE,
};

use super::batch::{since, Batch, FIRST};
use crate::engine::Engine;
use crate::memory::{Layout, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

const LONG: Duration = Duration::from_secs(60);

/// A restore that finds the permission gone ends: KFD's spins for ever with the queues stopped.
pub(super) fn denied_does_not_spin() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    const HIT: usize = 1;
    let batch = Batch::new(&world, 32)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let before = world.client().snapshot()?;
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ)?;
    // Not every source shows the first; both are one invalidation at most.
    batch.memory.discard(batch.offset(HIT), batch.range_bytes())?;
    world.settle()?;
    ensure_eq!(batch.state()?[HIT].state, RANGE_DENIED);
    batch.expect_all_but(&world, &[HIT], FIRST)?;
    let settled = world.client().snapshot()?;
    ensure!(settled.restore_runs - before.restore_runs <= 5, "restore runs: {}", settled.restore_runs);
    std::thread::sleep(Duration::from_millis(300));
    let later = world.client().snapshot()?;
    ensure_eq!((later.restore_runs, later.evictions, later.evicted), (settled.restore_runs, settled.evictions, 0));
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ | libc::PROT_WRITE)?;
    batch.buffer.revalidate()?;
    world.settle()?;
    batch.expect_valid(world.gpu(0))?;
    batch.expect_zero(&world, HIT)?;
    batch.write_from_gpu(&world, HIT, 2)
}

/// Work that is submitted while the queues are stopped waits, and then is done.
pub(super) fn work_waits_while_evicted() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    // Large, so that a restore takes a while.
    let memory = Memory::anonymous(32 << 20)?;
    let ranges = memory.scatter(64, 512 << 10, Layout::Shuffled);
    let batch = Batch::of(world.client(), memory, ranges, &RegisterOptions::default())?;
    let target = world.client().alloc(&AllocOptions::gtt(4 * PAGE))?;
    let mut queue = CopyQueue::new(world.client(), world.gpu(0))?;
    let mut waited = 0;
    // A restore may be over before work is submitted; then the round shows nothing.
    for round in 0..1000_u64 {
        let pages = batch.pages(40).start..batch.pages(40).start + 4;
        batch.memory.fill_pages(pages.clone(), round);
        let before = world.client().snapshot()?;
        batch.memory.discard(0, batch.memory.bytes())?;
        world.told();
        batch.memory.fill_pages(pages.clone(), round + 100);
        queue.copy(target.gpu_va(), batch.va(40), 4 * PAGE);
        let fence = queue.submit()?;
        let done = fence.is_done();
        let now = world.client().snapshot()?;
        ensure!(now.evictions > before.evictions, "the discard stopped nothing");
        if now.restores == before.restores {
            // The queues have been stopped all along.
            ensure!(!done, "work was done by a stopped queue");
            waited += 1;
        }
        fence.wait(LONG)?;
        let mut seen = vec![0; usize::try_from(4 * PAGE)?];
        target.read(0, &mut seen)?;
        ensure_eq!(crate::memory::wrong_page(&seen, pages, round + 100), None);
        world.settle()?;
        if waited == 5 {
            break;
        }
    }
    ensure!(waited > 0, "no restore took long enough to submit work meanwhile");
    Ok(())
}

/// Two GPUs see the same changes; unmapping from one leaves the other's mapping.
pub(super) fn two_gpus() -> Result<(), Stop> {
    let world = World::new(WorldSpec { gpus: 2, ..WorldSpec::default() })?;
    world.sees(Seen::Discard)?;
    let batch = Batch::new(&world, 32)?;
    let on = |gpu: usize, range: usize, seed: u64| -> Result<(), Stop> {
        let seen = world.with_engine(gpu, |engine| engine.read(batch.va(range), batch.range_bytes()))?;
        batch.compare(range, &seen, seed)
    };
    for gpu in 0..2 {
        for range in 0..32 {
            on(gpu, range, FIRST)?;
        }
    }
    let before = world.client().snapshot()?;
    batch.memory.discard(batch.offset(4), batch.range_bytes())?;
    batch.memory.fill_pages(batch.pages(4), 2);
    world.settle()?;
    ensure_eq!(since(&world, &before)?.evictions, 1, "one eviction of both GPUs");
    for gpu in 0..2 {
        on(gpu, 4, 2)?;
        ensure_eq!(batch.ptes(world.gpu(gpu), 4)?, batch.ptes(world.gpu(1 - gpu), 4)?);
    }
    let one: GpuSet = world.gpu(1).into();
    batch.buffer.unmap(&one)?;
    ensure!(batch.all_ptes(world.gpu(1))?.iter().all(|pte| *pte == 0));
    batch.expect_valid(world.gpu(0))?;
    match on(1, 4, 2) {
        Err(Stop::Fail(error)) => ensure!(
            matches!(error.downcast_ref(), Some(ClientError::GpuFault { va, gpu, .. }) if *va == batch.va(4) && *gpu == world.gpu(1)),
            "{error}"
        ),
        other => bail!("an access by the GPU that has it no longer should fault, but: {other:?}"),
    }
    batch.memory.discard(batch.offset(5), batch.range_bytes())?;
    batch.memory.fill_pages(batch.pages(5), 3);
    world.settle()?;
    on(0, 5, 3)?;
    on(0, 4, 2)?;
    batch.buffer.map(&one)?;
    on(1, 5, 3)?;
    on(1, 4, 2)
}

/// Two process objects over the same memory: each learns of it, and only the process that has
/// it mapped stops.
pub(super) fn two_processes() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    let other = world.open()?;
    let batch = Batch::new(&world, 32)?;
    // The other process has the first half of the list.
    // SAFETY: as for the first registration of this memory.
    let half = unsafe { other.register_ranges(&batch.ranges[..16], &RegisterOptions::default())? };
    let mut engine = Engine::new(&other, world.gpu(0))?;
    let mut hit = |range: usize, seed: u64, others: u64| -> Result<(), Stop> {
        let (mine, its) = (world.client().snapshot()?, other.snapshot()?);
        batch.memory.discard(batch.offset(range), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(range), seed);
        world.settle()?;
        while other.snapshot()?.evicted != 0 {
            std::thread::yield_now();
        }
        ensure_eq!(since(&world, &mine)?.evictions, 1);
        let now = other.snapshot()?;
        ensure_eq!((now.evictions - its.evictions, now.ranges_restored - its.ranges_restored), (others, others));
        batch.expect(&world, range, seed)?;
        if others == 1 {
            let va = half.gpu_va().offset(range as u64 * batch.range_bytes());
            batch.compare(range, &engine.read(va, batch.range_bytes())?, seed)?;
        }
        Ok(())
    };
    hit(3, 2, 1)?;
    hit(20, 3, 0)?;
    hit(15, 4, 1)?;
    hit(16, 5, 0)?;
    // One ends; the other goes on.
    drop((engine, half));
    drop(other);
    batch.memory.discard(batch.offset(3), batch.range_bytes())?;
    world.told();
    batch.expect_zero(&world, 3)?;
    batch.expect_all_but(&world, &[3, 15, 16, 20], FIRST)
}

/// A connection that can be closed while buffers and queues are alive, as when a process is killed.
struct Severable {
    transport: Mutex<Option<Arc<dyn Transport>>>,
    /// What was mapped through it: addresses and lengths.
    mapped: Mutex<Vec<(usize, usize)>>,
}

impl Severable {
    fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport: Mutex::new(Some(transport)), mapped: Mutex::default() }
    }

    fn get(&self) -> Result<Arc<dyn Transport>, Errno> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno::BADF)
    }

    fn sever(&self) {
        let transport = self.transport.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(transport);
    }

    /// Puts ordinary memory at the addresses of the device's mappings. A kernel keeps a file open
    /// as long as a mapping exists, and a killed process leaves none.
    fn unmap_all(&self) -> std::io::Result<()> {
        for (at, bytes) in self.mapped.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let at = std::ptr::with_exposed_provenance_mut::<c_void>(at);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: mapped for queues and buffers of this connection, which are not used any
            // more; the place stays theirs.
            if unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) } == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl Transport for Severable {
    unsafe fn ioctl(&self, command: u32, arg: *mut c_void) -> Result<(), Errno> {
        // SAFETY: promised by the caller.
        unsafe { self.get()?.ioctl(command, arg) }
    }

    unsafe fn mmap(
        &self,
        what: MmapFile,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, Errno> {
        // SAFETY: promised by the caller.
        let at = unsafe { self.get()?.mmap(what, addr, len, prot, flags, offset) }?;
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).push((at.expose_provenance(), len));
        Ok(at)
    }

    fn topology(&self) -> Result<Vec<Node>, ClientError> {
        self.get().map_err(|errno| ClientError::Call { call: "topology", errno })?.topology()
    }

    fn render_fd(&self, gpu: GpuId) -> Result<u32, ClientError> {
        self.get().map_err(|errno| ClientError::Call { call: "render_fd", errno })?.render_fd(gpu)
    }
}

/// A process ends with objects mapped, work queued and a restore to come: nothing hangs, nothing is
/// left.
pub(super) fn closed_while_evicted() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let free = |world: &World| -> Result<u64, Stop> { Ok(world.open()?.caps().max_bytes) };
    let all = free(&world)?;
    for round in 0..10 {
        let connection = Arc::new(Severable::new(world.transport()?));
        let client = Client::with_transport(connection.clone())?;
        let memory = Memory::anonymous(512 * 4 * PAGE)?;
        memory.fill(FIRST);
        let ranges = memory.scatter(512, 4 * PAGE, Layout::Shuffled);
        let batch = Batch::of(&client, memory, ranges, &RegisterOptions::default())?;
        let vram = client.alloc(&AllocOptions::vram(world.gpu(0), batch.buffer.len()))?;
        let mut queue = CopyQueue::new(&client, world.gpu(0))?;
        ensure!(free(&world)? < all, "registered memory does not count");
        for _ in 0..20 {
            queue.copy(vram.gpu_va(), batch.buffer.gpu_va(), batch.buffer.len());
            queue.submit()?;
        }
        if round % 2 == 0 {
            batch.memory.discard(0, batch.memory.bytes())?;
        }
        connection.sever();
        if !world.in_process() {
            connection.unmap_all()?;
        }
        ensure_eq!(client.snapshot().map(drop).map_err(|e| e.errno()), Err(Some(Errno::BADF)));
        ensure_eq!(free(&world)?, all, "bytes that can be registered after round {round}");
        // The memory is its owner's alone now.
        let Batch { buffer, memory, ranges, .. } = batch;
        memory.discard(0, memory.bytes() / 2)?;
        memory.unmap(memory.bytes() / 2, PAGE)?;
        memory.fill_pages(0..memory.pages() / 2, 5);
        ensure_eq!(memory.find_wrong(0..memory.pages() / 2, 5), None);
        drop((queue, vram, buffer, ranges));
    }
    let batch = Batch::new(&world, 64)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    ensure!(batch.state()?.iter().all(|range| range.state == RANGE_VALID));
    Ok(())
}
