// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory changes while the GPU works, and while ranges are registered, mapped and freed.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, Errno, GpuSet, PAGE};

use super::{batch, expect_same, filled, options, world};
use crate::coherence::batch::{Batch, FIRST, RANGE_PAGES};
use crate::engine::Engine;
use crate::memory::{wrong_page, Layout, Memory};
use crate::{Scenario, Seen, Stop, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "flag_copies_while_ranges_are_invalidated",
        about: "The GPU copies all of a batch again and again; half of its ranges are discarded meanwhile. The other half is always right, and in \
                the end all of it is (faults b, e).",
        run: copies,
    },
    Scenario {
        name: "flag_registered_mapped_and_freed_while_ranges_are_invalidated",
        about: "Registrations, mappings and ends in a storm of changes, by two threads: each works, with the right memory (faults c, d, e).",
        run: life,
    },
    Scenario {
        name: "flag_a_range_changes_again_while_it_is_restored",
        about: "Two changes of one range with pauses between them that come to lie within the restore: the GPU sees the second one (fault e).",
        run: twice,
    },
    Scenario {
        name: "flag_writes_while_ranges_are_invalidated",
        about: "The GPU writes quiet ranges and the CPU reads them, while others come and go.",
        run: writes,
    },
];

/// The time after which something that should have happened has not.
const LIMIT: Duration = Duration::from_secs(300);

/// Between two changes of a storm, at least.
const PAUSE: Duration = Duration::from_millis(3);

/// Runs `work` while another thread calls `storm` with the number of the call. `work` gets the
/// number of calls so far.
fn during<R>(
    storm: impl Fn(u64) -> io::Result<()> + Sync,
    work: impl FnOnce(&AtomicU64) -> Result<R, Stop>,
) -> Result<R, Stop> {
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                storm(calls.fetch_add(1, Ordering::Relaxed))?;
                // An emulated machine, or a kernel that checks each access, must come to its work.
                std::thread::sleep(PAUSE.max(5 * begun.elapsed()));
            }
            Ok(())
        });
        let result = work(&calls);
        stop.store(true, Ordering::Relaxed);
        thread.join().map_err(|_| anyhow::anyhow!("the storm panicked"))??;
        result
    })
}

/// Ranges whose memory is in the second half, which no storm hits.
fn quiet(batch: &Batch) -> Vec<usize> {
    let half = batch.memory.bytes() / 2;
    (0..batch.ranges.len()).filter(|range| batch.offset(*range) >= half).collect()
}

/// Changes a range in the first half of the memory.
fn change(memory: &Memory, n: u64) -> io::Result<()> {
    let size = RANGE_PAGES * PAGE;
    let at = n * 7 % (memory.bytes() / size / 2) * size;
    match n % 3 {
        0 => memory.replace(at, size)?,
        _ => memory.discard(at, size)?,
    }
    memory.fill_pages(at / PAGE..at / PAGE + RANGE_PAGES, 100 + n);
    Ok(())
}

fn copies() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let batch = batch(&world, 128)?;
    let quiet = quiet(&batch);
    let target = world.client().alloc(&AllocOptions::gtt(batch.buffer.len()))?;
    let range_bytes = usize::try_from(batch.range_bytes())?;
    during(
        |n| change(&batch.memory, n),
        |calls| {
            let start = Instant::now();
            let mut rounds = 0;
            while rounds < 40 || calls.load(Ordering::Relaxed) < 100 {
                ensure!(start.elapsed() < LIMIT, "only {rounds} copies");
                world.copy(target.gpu_va(), batch.buffer.gpu_va(), target.len())?;
                let mut seen = vec![0; usize::try_from(target.len())?];
                target.read(0, &mut seen)?;
                for range in &quiet {
                    batch.compare(*range, &seen[range * range_bytes..][..range_bytes], FIRST)?;
                }
                rounds += 1;
            }
            Ok(())
        },
    )?;
    world.told();
    expect_same(&world, &batch)
}

fn twice() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let batch = batch(&world, 16)?;
    expect_same(&world, &batch)?;
    for round in 0..120 {
        let hit = usize::try_from(round % 16)?;
        let (offset, bytes) = (batch.offset(hit), batch.range_bytes());
        batch.memory.discard(offset, bytes)?;
        batch.memory.fill_pages(batch.pages(hit), 1000 + round);
        // A restore begins some milliseconds after the change, and takes less than one.
        std::thread::sleep(Duration::from_micros(100 * (round % 60)));
        batch.memory.replace(offset, bytes)?;
        batch.memory.fill_pages(batch.pages(hit), 2000 + round);
        world.told();
        batch.expect(&world, hit, 2000 + round)?;
    }
    expect_same(&world, &batch)
}

fn writes() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let batch = batch(&world, 64)?;
    let quiet = quiet(&batch);
    during(
        |n| change(&batch.memory, n),
        |_| {
            for (seed, range) in (10..).zip(quiet.iter().cycle().take(64)) {
                batch.write_from_gpu(&world, *range, seed)?;
            }
            Ok(())
        },
    )?;
    world.told();
    expect_same(&world, &batch)
}

/// One thread's part of [`life`].
fn live(world: &World, memory: &Memory, layout: Layout) -> Result<(), Stop> {
    let size = RANGE_PAGES * PAGE;
    let ranges = memory.scatter(memory.bytes() / size, size, layout);
    let half = memory.whole().start + memory.bytes() / 2;
    let order = ranges.iter().flat_map(|range| {
        let first = (range.start - memory.whole().start) / PAGE;
        first..first + RANGE_PAGES
    });
    let order: Vec<u64> = order.collect();
    let mut engine = Engine::new(world.client(), world.gpu(0))?;
    let start = Instant::now();
    for round in 0..25 {
        let buffer = loop {
            // SAFETY: no reference to the memory is ever made.
            match unsafe { world.client().register_ranges(&ranges, &options(round % 2 == 0)) } {
                // It may fail at its deadline.
                Err(error) if error.errno() == Some(Errno::AGAIN) && start.elapsed() < LIMIT => {}
                done => break done?,
            }
        };
        if round % 2 != 0 {
            buffer.map(&GpuSet::All)?;
        }
        let seen = engine.read(buffer.gpu_va(), buffer.len())?;
        let page = usize::try_from(PAGE)?;
        for (number, bytes) in order.iter().zip(seen.chunks(page)) {
            let quiet = memory.whole().start + number * PAGE >= half;
            ensure!(!quiet || wrong_page(bytes, [*number], FIRST).is_none(), "round {round}: page {number} is wrong");
        }
        buffer.free()?;
    }
    Ok(())
}

fn life() -> Result<(), Stop> {
    let world = world()?;
    world.sees(Seen::Discard)?;
    world.sees(Seen::Unmap)?;
    let memory = filled(128 * RANGE_PAGES)?;
    during(
        |n| change(&memory, n),
        |_| {
            let (world, memory) = (&world, &memory);
            std::thread::scope(|scope| {
                let workers =
                    [Layout::Shuffled, Layout::Reversed].map(|layout| scope.spawn(move || live(world, memory, layout)));
                for worker in workers {
                    worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
                }
                Ok(())
            })
        },
    )?;
    Ok(())
}
