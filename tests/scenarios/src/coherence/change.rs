// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that changes in place: discarded, protected, forked, paged out.

use vkfd_client::uapi::vkfd::{RANGE_DENIED, RANGE_GONE, RANGE_VALID};
use vkfd_client::{ClientError, RegisterOptions, PAGE};

use super::batch::{moved, since, Batch, Happened, FIRST};
use super::unmap::expect_fault;
use crate::memory::{Backing, Layout, Memory};
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// MADV_DONTNEED: the GPU sees zeroes, and then what the CPU writes.
pub fn discard(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    const HIT: usize = 11;
    let batch = Batch::new(&world, 32)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let (ranges, before) = (batch.state()?, world.client().snapshot()?);
    batch.memory.discard(batch.offset(HIT), batch.range_bytes())?;
    world.told();
    // First what the GPU sees: with nothing waited for, it must not see what was there.
    batch.expect_zero(&world, HIT)?;
    world.settle()?;
    ensure_eq!(
        since(&world, &before)?,
        Happened { invalidations: 1, evictions: 1, restores: 1, ranges_invalidated: 1, ranges_restored: 1 },
    );
    ensure_eq!(moved(&ranges, &batch.state()?), [HIT]);
    batch.memory.fill_pages(batch.pages(HIT), 2);
    batch.expect(&world, HIT, 2)?;
    batch.write_from_gpu(&world, HIT, 3)?;
    batch.expect_all_but(&world, &[HIT], FIRST)
}

/// The same mechanism, access by access through one queue whose TLB has every page: a restore ends
/// with a flush.
pub fn restored_pages_through_a_warm_tlb(spec: WorldSpec) -> Result<(), Stop> {
    let world = World::new(spec)?;
    world.sees(Seen::Discard)?;
    let batch = Batch::new(&world, 8)?;
    for seed in 2..8 {
        batch.memory.fill(seed);
        for range in 0..8 {
            batch.expect(&world, range, seed)?;
        }
        batch.memory.discard(0, batch.memory.bytes())?;
        world.settle()?;
        for range in 0..8 {
            batch.expect_zero(&world, range)?;
            batch.write_from_gpu(&world, range, seed + 50)?;
        }
    }
    Ok(())
}

/// mprotect to read-only under a writable registration: denied; back to read-write, it works again.
pub(super) fn protect() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Protect)?;
    const HIT: usize = 2;
    let batch = Batch::new(&world, 16)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let before = batch.state()?;
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ)?;
    world.settle()?;
    ensure_eq!(batch.state()?[HIT].state, RANGE_DENIED);
    ensure_eq!(batch.ptes(world.gpu(0), HIT)?, [0; 4]);
    ensure_eq!(moved(&before, &batch.state()?), [HIT]);
    expect_write_fault(&world, &batch, HIT)?;
    batch.expect_all_but(&world, &[HIT], FIRST)?;
    // Nobody maps it again: the change back is an invalidation, and the restore looks.
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), READ_WRITE)?;
    world.settle()?;
    batch.expect_valid(world.gpu(0))?;
    batch.expect(&world, HIT, FIRST)?;
    batch.write_from_gpu(&world, HIT, 2)
}

fn expect_write_fault(world: &World, batch: &Batch, range: usize) -> Result<(), Stop> {
    match world.write_gpu(batch.va(range), &[0xee; 64]) {
        Err(ClientError::GpuFault { va, .. }) => ensure_eq!(va, batch.va(range)),
        other => bail!("a write to protected memory should fault, but: {other:?}"),
    }
    batch.compare(range, &batch.memory.read(batch.offset(range), batch.range_bytes()), FIRST)
}

/// A driver that is not notified of mprotect must still not let the GPU write, nor crash.
pub(super) fn protect_found_by_access() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    const HIT: usize = 2;
    let batch = Batch::new(&world, 16)?;
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), libc::PROT_READ)?;
    expect_write_fault(&world, &batch, HIT)?;
    world.settle()?;
    batch.memory.protect(batch.offset(HIT), batch.range_bytes(), READ_WRITE)?;
    batch.buffer.revalidate()?;
    world.settle()?;
    batch.expect_valid(world.gpu(0))?;
    batch.write_from_gpu(&world, HIT, 2)?;
    batch.expect_all_but(&world, &[HIT], FIRST)
}

/// Whatever a driver is notified of, the GPU must see what the CPU sees, and fault where nothing
/// is.
pub(super) fn found_by_access() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let batch = Batch::new(&world, 16)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    batch.memory.discard(batch.offset(3), batch.range_bytes())?;
    batch.memory.replace(batch.offset(4), batch.range_bytes())?;
    batch.memory.fill_pages(batch.pages(4), 2);
    batch.memory.unmap(batch.offset(5), batch.range_bytes())?;
    batch.expect_zero(&world, 3)?;
    batch.expect(&world, 4, 2)?;
    expect_fault(&world, batch.va(5))?;
    batch.expect_all_but(&world, &[3, 4, 5], FIRST)?;
    world.settle()?;
    ensure_eq!(batch.state()?[5].state, RANGE_GONE);
    batch.memory.map_again(batch.offset(5), batch.range_bytes())?;
    batch.buffer.revalidate()?;
    for range in [3, 4, 5] {
        batch.write_from_gpu(&world, range, 3)?;
    }
    batch.expect_valid(world.gpu(0))
}

/// Parent and child both write after a fork; the GPU keeps seeing the parent's memory.
pub(super) fn fork() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Fork)?;
    let batch = Batch::new(&world, 16)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let before = world.client().snapshot()?;
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    ensure_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the child only writes to memory that is its own, reads a pipe, and ends; no lock is
    // taken there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: as above; the descriptors are inherited, the memory is mapped and nobody has a
        // reference to it.
        unsafe {
            libc::close(pipe[1]);
            for page in 0..batch.memory.pages() {
                batch.memory.at(page * PAGE).cast::<u64>().write_volatile(0xbad);
            }
            // Until the parent has looked.
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    let checked = (|| {
        ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
        world.settle()?;
        ensure!(world.client().snapshot()?.invalidations > before.invalidations, "the fork was not seen");
        batch.expect_all_but(&world, &[], FIRST)?;
        batch.memory.fill(2);
        batch.expect_all_but(&world, &[], 2)?;
        for range in 0..16 {
            batch.write_from_gpu(&world, range, 3)?;
        }
        Ok(())
    })();
    // SAFETY: the descriptors are this function's; closing lets the child end.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
    }
    let mut status = -1;
    // SAFETY: room for the status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    checked?;
    ensure_eq!(status, 0, "the child's status");
    world.settle()?;
    batch.expect_all_but(&world, &[], 3)?;
    batch.expect_valid(world.gpu(0))
}

/// MADV_PAGEOUT: memory goes to swap or stays; in any case GPU and CPU go on seeing the same.
pub(super) fn page_out() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Pageout)?;
    let batch = Batch::new(&world, 16)?;
    let before = world.client().snapshot()?;
    match batch.memory.page_out(0, batch.memory.bytes()) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return Err(Stop::Skip("this kernel has no MADV_PAGEOUT".into()))
        }
        result => result?,
    }
    world.settle()?;
    let info = world.client().snapshot()?;
    let (evictions, restores) = (info.evictions - before.evictions, info.restores - before.restores);
    // A kernel goes page by page, and may let a restore in between.
    let most = if world.in_process() { 1 } else { batch.memory.pages() };
    ensure!((1..=most).contains(&evictions) && restores == evictions, "{evictions} evictions, {restores} restores");
    batch.expect_all_but(&world, &[], FIRST)?;
    batch.memory.fill(2);
    batch.expect_all_but(&world, &[], 2)?;
    batch.write_from_gpu(&world, 1, 3)
}

/// A read-only registration: the GPU reads, cannot write, and neither registering nor restoring
/// breaks copy-on-write.
pub(super) fn read_only() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    world.sees(Seen::Discard)?;
    if !world.client().caps().read_only {
        return Err(Stop::Skip("the driver does not register read-only memory".into()));
    }
    const RANGES: u64 = 8;
    let memory = Memory::new(Backing::FilePrivate, RANGES * 4 * PAGE)?;
    if !world.sees_files() {
        return Err(Stop::Skip("changes of file mappings are not shown".into()));
    }
    let contents: Vec<u8> = (0..RANGES * 4).flat_map(|page| crate::memory::pattern(page, FIRST)).collect();
    let file = memory.file().ok_or_else(|| anyhow::anyhow!("the mapping has a file"))?;
    std::os::unix::fs::FileExt::write_all_at(file, &contents, 0)?;
    memory.protect(0, memory.bytes(), libc::PROT_READ)?;
    let ranges = memory.scatter(RANGES, 4 * PAGE, Layout::Reversed);
    let options = RegisterOptions { writable: false, ..RegisterOptions::default() };
    let batch = Batch::of(world.client(), memory, ranges, &options)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let shared = |what: &str| {
        for page in 0..batch.memory.pages() {
            let entry = crate::maps::page(batch.memory.range(page * PAGE, PAGE).start)?;
            // A copy would be an anonymous page.
            ensure!(
                entry & crate::maps::PRESENT == 0 || entry & crate::maps::FILE_PAGE != 0,
                "{what}: page {page} was copied"
            );
        }
        Ok::<(), Stop>(())
    };
    shared("registered and read")?;
    match world.write_gpu(batch.va(1), &[0xee; 64]) {
        Err(ClientError::GpuFault { va, read_only, not_present, .. }) => {
            ensure_eq!((va, read_only, not_present), (batch.va(1), true, false));
        }
        other => bail!("a write to a read-only registration should fault, but: {other:?}"),
    }
    let before = batch.state()?;
    batch.memory.discard(batch.offset(3), batch.range_bytes())?;
    world.settle()?;
    ensure_eq!(moved(&before, &batch.state()?), [3]);
    batch.expect_all_but(&world, &[], FIRST)?;
    shared("restored")?;
    ensure!(batch.state()?.iter().all(|range| range.state == RANGE_VALID));
    Ok(())
}
