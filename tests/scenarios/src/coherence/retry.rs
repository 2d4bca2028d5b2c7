// SPDX-License-Identifier: GPL-2.0 OR MIT
//! XNACK on: no queue stops; the GPU faults, is served, and retries.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vkfd_client::uapi::vkfd::{RANGE_GONE, RANGE_INVALID, RANGE_VALID};
use vkfd_client::{AllocOptions, Errno, RegisterOptions, PAGE};

use super::batch::{moved, Batch, FIRST};
use super::unmap::expect_fault;
use crate::engine::Engine;
use crate::memory::Layout;
use crate::verdict::Stop;
use crate::world::{Seen, World, WorldSpec};

fn xnack() -> WorldSpec {
    WorldSpec { xnack: true, ..WorldSpec::default() }
}

/// An invalidation clears the entries it hits and stops nothing; the GPU's access brings them back.
pub(super) fn served_on_access() -> Result<(), Stop> {
    let world = World::new(xnack())?;
    world.sees(Seen::Discard)?;
    const HIT: usize = 6;
    let batch = Batch::new(&world, 32)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    let (ranges, entries, before) = (batch.state()?, batch.all_ptes(world.gpu(0))?, world.client().snapshot()?);
    batch.memory.discard(batch.offset(HIT), batch.range_bytes())?;
    batch.memory.fill_pages(batch.pages(HIT), 2);
    world.told();
    ensure_eq!(batch.ptes(world.gpu(0), HIT)?, [0; 4]);
    ensure_eq!(moved(&ranges, &batch.state()?), [HIT]);
    ensure_eq!(batch.state()?[HIT].state, RANGE_INVALID);
    batch.expect_all_but(&world, &[HIT], FIRST)?;
    ensure_eq!(world.client().snapshot()?.gpu_faults, before.gpu_faults, "faults on pages that nothing happened to");
    batch.expect(&world, HIT, 2)?;
    let now = world.client().snapshot()?;
    ensure!(now.gpu_faults > before.gpu_faults, "nobody faulted");
    ensure_eq!((now.evictions, now.restores), (before.evictions, before.restores));
    ensure_eq!(batch.state()?[HIT].state, RANGE_VALID);
    batch.expect_valid(world.gpu(0))?;
    let pages = usize::try_from(batch.range_bytes() / PAGE)?;
    let differs =
        |page: &usize| entries.get(*page) != batch.all_ptes(world.gpu(0)).ok().as_ref().and_then(|e| e.get(*page));
    ensure!((0..entries.len()).step_by(pages).filter(differs).all(|page| page / pages == HIT));
    // A write faults and is served as well.
    batch.memory.discard(batch.offset(HIT), batch.range_bytes())?;
    world.told();
    batch.write_from_gpu(&world, HIT, 3)
}

/// What is gone cannot be served: reported, the queue halts; what comes back is served again.
pub(super) fn gone_is_reported() -> Result<(), Stop> {
    let world = World::new(xnack())?;
    world.sees(Seen::Unmap)?;
    const GONE: usize = 9;
    let batch = Batch::new(&world, 16)?;
    batch.expect_all_but(&world, &[], FIRST)?;
    batch.memory.unmap(batch.offset(GONE), batch.range_bytes())?;
    world.told();
    expect_fault(&world, batch.va(GONE))?;
    ensure_eq!(batch.state()?[GONE].state, RANGE_GONE);
    ensure_eq!(world.client().snapshot()?.evictions, 0);
    batch.expect_all_but(&world, &[GONE], FIRST)?;
    // No MAP is needed: the fault looks again.
    batch.memory.map_again(batch.offset(GONE), batch.range_bytes())?;
    batch.memory.fill_pages(batch.pages(GONE), 2);
    batch.expect(&world, GONE, 2)?;
    ensure_eq!(batch.state()?[GONE].state, RANGE_VALID);
    Ok(())
}

/// A long copy goes through a storm of invalidations that no pause interrupts, and ends right.
pub(super) fn copy_through_a_storm() -> Result<(), Stop> {
    let world = World::new(xnack())?;
    world.sees(Seen::Unmap)?;
    // Half of the ranges are stormed at: zero or what the storm writes there. The rest has its
    // pattern.
    const N: usize = 512;
    const STORMS: u64 = 3;
    let batch = Batch::with(&world, N as u64, Layout::Adjacent, &RegisterOptions::default())?;
    let (half, size) = (N as u64 / 2 * batch.range_bytes(), batch.range_bytes());
    let target = world.client().alloc(&AllocOptions::vram(world.gpu(0), batch.buffer.len()))?;
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let result = std::thread::scope(|scope| {
        let storm = |storm: u64| {
            let mut n = storm;
            while !stop.load(Ordering::Relaxed) {
                let at = n * 7 % (half / size) * size;
                match n % 3 {
                    0 => batch.memory.replace(at, size)?,
                    _ => batch.memory.discard(at, size)?,
                }
                batch.memory.fill_pages(at / PAGE..at / PAGE + 1, FIRST);
                rounds.fetch_add(1, Ordering::Relaxed);
                n += STORMS;
            }
            Ok::<(), std::io::Error>(())
        };
        let storms: Vec<_> = (0..STORMS).map(|i| scope.spawn(move || storm(i))).collect();
        let result = (|| {
            let mut copies = 0;
            // Work enough that the storm is in the middle of it.
            while copies < 10 || rounds.load(Ordering::Relaxed) < 1000 {
                world.copy(target.gpu_va(), batch.buffer.gpu_va(), batch.buffer.len())?;
                copies += 1;
                let mut seen = vec![0; usize::try_from(batch.buffer.len())?];
                target.read(0, &mut seen)?;
                let page = usize::try_from(PAGE)?;
                for (number, bytes) in (0..).zip(seen.chunks(page)) {
                    let stormed = number * PAGE < half;
                    let pattern = crate::memory::pattern(number, FIRST);
                    let legal = |(a, b): (&[u8], &[u8])| a == b || (stormed && a.iter().all(|byte| *byte == 0));
                    let wrong = bytes.chunks(8).zip(pattern.chunks(8)).position(|pair| !legal(pair));
                    ensure_eq!(wrong, None, "word of page {number} that is neither old nor new in copy {copies}");
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        for storm in storms {
            storm.join().map_err(|_| anyhow::anyhow!("a storm panicked"))??;
        }
        result
    });
    result?;
    ensure_eq!(world.client().snapshot()?.evictions, 0);
    batch.memory.fill(2);
    batch.expect_all_but(&world, &[], 2)
}

/// The mode of before cannot be set either, as KFD has it.
pub(super) fn stays() -> Result<(), Stop> {
    let world = World::new(xnack())?;
    let client = world.client();
    for now in [true, false] {
        let engine = Engine::new(client, world.gpu(0))?;
        for on in [true, false] {
            ensure_eq!(client.set_xnack(on).map_err(|error| error.errno()), Err(Some(Errno::BUSY)));
        }
        ensure_eq!(client.xnack()?, now);
        drop(engine);
        client.set_xnack(!now)?;
        ensure_eq!(client.xnack()?, !now);
    }
    Ok(())
}

/// Switching XNACK is refused while there are queues; switched off, everything is restored without
/// a fault.
pub(super) fn switched_off() -> Result<(), Stop> {
    let world = World::new(xnack())?;
    world.sees(Seen::Discard)?;
    let batch = Batch::new(&world, 32)?;
    let mut engine = Engine::new(world.client(), world.gpu(0))?;
    for on in [true, false] {
        ensure_eq!(world.client().set_xnack(on).map_err(|error| error.errno()), Err(Some(Errno::BUSY)));
    }
    batch.compare(0, &engine.read(batch.va(0), batch.range_bytes())?, FIRST)?;
    drop(engine);
    for range in [1, 30] {
        batch.memory.discard(batch.offset(range), batch.range_bytes())?;
        batch.memory.fill_pages(batch.pages(range), 2);
    }
    world.told();
    ensure_eq!(batch.ptes(world.gpu(0), 30)?, [0; 4]);
    let before = world.client().snapshot()?;
    ensure_eq!((before.xnack, before.evictions), (1, 0));
    world.client().set_xnack(false)?;
    world.until("all ranges are restored", |info| {
        info.evicted == 0 && info.ranges_restored >= before.ranges_restored + 2
    })?;
    batch.expect_valid(world.gpu(0))?;
    batch.expect(&world, 30, 2)?;
    batch.expect(&world, 1, 2)?;
    batch.expect_all_but(&world, &[1, 30], FIRST)?;
    ensure_eq!(world.client().snapshot()?.gpu_faults, before.gpu_faults);
    // And it stays off: invalidations stop the queues.
    batch.memory.discard(batch.offset(2), batch.range_bytes())?;
    world.told();
    batch.expect_zero(&world, 2)?;
    let now = world.client().snapshot()?;
    ensure_eq!((now.xnack, now.evictions), (0, before.evictions + 2));
    Ok(())
}
